/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/routers.h"

#include "tests/folder.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 4
#define PATIENCE_MS 150000 /* a router that was told to end and has no ranks */

static char directory[] = "/tmp/ferry-tests-XXXXXX";
static bool used;
static pid_t owner, running[MOST]; /* 0: none */
static char tenants[MOST][64];     /* "": the router has none */

static void remove_directory(void)
{
	if (getpid() == owner)
		folder_remove(directory);
}

void routers_use(void)
{
	if (!mkdtemp(directory))
		exit(1);
	owner = getpid();
	used = true;
	atexit(remove_directory);
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER", "required", 1);
}

bool routers_used(void)
{
	return used;
}

pid_t routers_pid(int domain)
{
	return running[domain];
}

static pid_t start(int domain, bool spare, bool may_die)
{
	int ready[2];
	char number[16], descriptor[16], byte, *limited = *tenants[domain] ? tenants[domain] : NULL;
	assert_int_equal(pipe(ready), 0);
	snprintf(number, sizeof number, "%d", domain);
	snprintf(descriptor, sizeof descriptor, "%d", ready[1]);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(ready[0]);
		execl(FERRY_ROUTER_EXE, "ferry-router", "--domain", number, "--socket-dir", directory, "--ready-fd",
		      descriptor, spare ? "--spare" : limited, spare ? limited : NULL, (char *)NULL);
		_exit(1);
	}
	close(ready[1]);
	ssize_t logged;
	while ((logged = read(ready[0], &byte, 1)) < 0 && errno == EINTR)
		;
	close(ready[0]);
	assert_true(logged == 1 || may_die);
	return child;
}

void routers_limit(int domain, const char *limits)
{
	FILE *file;
	snprintf(tenants[domain], sizeof tenants[domain], "--config=%s/tenants-%d", directory, domain);
	assert_non_null(file = fopen(strchr(tenants[domain], '/'), "w"));
	fprintf(file, "[tenant own]\nusers = %u\n%s\n", (unsigned)getuid(), limits);
	assert_int_equal(fclose(file), 0);
	if (!*limits)
		*tenants[domain] = '\0';
}

void routers_open(int domains)
{
	for (int domain = 0; domain < domains; domain++)
		if (!running[domain])
			running[domain] = start(domain, false, false);
}

void routers_open_again(int domain)
{
	running[domain] = start(domain, false, true);
}

pid_t routers_open_spare(int domain)
{
	return start(domain, true, false);
}

void routers_follow(int domain, pid_t spare)
{
	running[domain] = spare;
}

/* -1: it had to be killed. */
static int wait_for_end(pid_t router)
{
	int status = -1;
	for (int waited = 0; waited < PATIENCE_MS; waited++) {
		if (waitpid(router, &status, WNOHANG) == router)
			return status;
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	}
	kill(router, SIGKILL);
	waitpid(router, &status, 0);
	return -1;
}

void routers_close(void)
{
	int statuses[MOST] = {0};
	for (int domain = 0; domain < MOST; domain++)
		if (running[domain])
			kill(running[domain], SIGTERM);
	for (int domain = 0; domain < MOST; domain++) {
		statuses[domain] = running[domain] ? wait_for_end(running[domain]) : 0;
		running[domain] = 0;
	}
	for (int domain = 0; domain < MOST; domain++)
		if (statuses[domain] == -1)
			fail_msg("the router of domain %d does not end", domain);
		else if (statuses[domain])
			fail_msg("the router of domain %d ended with status %#x", domain, (unsigned)statuses[domain]);
}

/* The child's own sockets: a copy of a descriptor shuts down what it is a copy of. */
void routers_hang_up(int domain)
{
	char path[40];
	pid_t router = running[domain];
	int process = (int)syscall(SYS_pidfd_open, router, 0);
	assert_true(process >= 0);
	assert_int_equal(kill(router, SIGSTOP), 0);
	assert_int_equal(waitpid(router, NULL, WUNTRACED), router);
	snprintf(path, sizeof path, "/proc/%d/fd", (int)router);
	DIR *descriptors = opendir(path);
	assert_non_null(descriptors);
	for (const struct dirent *entry; (entry = readdir(descriptors));) {
		int copy = entry->d_name[0] == '.' ? -1
		                                   : (int)syscall(SYS_pidfd_getfd, process, atoi(entry->d_name), 0);
		if (copy >= 0) {
			shutdown(copy, SHUT_RDWR);
			close(copy);
		}
	}
	closedir(descriptors);
	close(process);
}

int routers_await_end(int domain)
{
	int status = wait_for_end(running[domain]);
	running[domain] = 0;
	assert_true(status >= 0 && WIFEXITED(status));
	return WEXITSTATUS(status);
}

void routers_kill(int domain)
{
	kill(running[domain], SIGKILL);
	waitpid(running[domain], NULL, 0);
	running[domain] = 0;
}

void routers_kill_all(void)
{
	for (int domain = 0; domain < MOST; domain++)
		if (running[domain])
			routers_kill(domain);
}
