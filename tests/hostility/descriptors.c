/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Descriptors of every kind, handed to routers by a user without a tenant and by a tenant's user. Meanwhile routers
 * answer others, and calls take no longer: both times are printed, for a person to judge.
 */
#include "tests/hostility/hostility.h"
#include "tests/hostility/random.h"
#include "tests/hostility/strange.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "ipc/quarantine.h"
#include "ipc/wait.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST     253 /* descriptors in a message */
#define TOGETHER 16
#define USERS    2
#define QUIET_US 2000000
#define PAUSE_US 5000

static void socket_path(char *path, size_t bytes, uint64_t domain)
{
	snprintf(path, bytes, "%s/router-%d.sock", directory, (int)domain);
}

/* ---- hostile users ---- */

static void send_many(int connection, const void *bytes, size_t length, int descriptor, uint32_t count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(MOST * sizeof(int))] = {0};
	int descriptors[MOST];
	struct iovec part = {(void *)(uintptr_t)bytes, length};
	struct msghdr message = {.msg_iov = &part,
	                         .msg_iovlen = 1,
	                         .msg_control = control,
	                         .msg_controllen = CMSG_SPACE(count * sizeof(int))};
	for (uint32_t i = 0; i < count; i++)
		descriptors[i] = descriptor;
	*CMSG_FIRSTHDR(&message) = (struct cmsghdr){
		.cmsg_len = CMSG_LEN(count * sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), descriptors, count * sizeof(int));
	(void)!sendmsg(connection, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* A message that takes descriptors, or that takes none. */
static struct ferry_attach_message ask_for(uint64_t *state, uint32_t count)
{
	static const uint32_t kinds[] = {FERRY_ATTACH_ADOPT, FERRY_ATTACH_EXPORT, FERRY_ATTACH_READY,
	                                 FERRY_ATTACH_RANK, FERRY_ATTACH_STATUS};
	struct ferry_attach_message message = {.magic = FERRY_ATTACH_MAGIC,
	                                       .abi = FERRY_ATTACH_ABI,
	                                       .kind = kinds[random_below(state, sizeof kinds / sizeof *kinds)],
	                                       .nranks = 2,
	                                       .ndomains = count <= MOST_DOMAINS ? count : 1,
	                                       .descriptors = count};
	memset(message.key, 0x33, sizeof message.key);
	return message;
}

/* A connection with what is sent on it. */
struct attempt {
	int connection, descriptor, kind;
};

static void connect_one(struct attempt *attempt, uint64_t *state, int kind)
{
	char path[200];
	*attempt = (struct attempt){-1, -1, kind};
	socket_path(path, sizeof path, random_below(state, (uint64_t)options.domains));
	if (!ferry_endpoint_connect(path, &attempt->connection))
		attempt->descriptor = strange_make(kind, attempt->connection);
}

static void hand_over_one(const struct attempt *attempt, uint64_t *state)
{
	static const uint32_t counts[] = {1, 1, 2, 240, MOST};
	uint32_t count = counts[random_below(state, sizeof counts / sizeof *counts)];
	struct ferry_attach_message message = ask_for(state, count);
	size_t length = random_below(state, 3) ? sizeof message : 1 + random_below(state, 100);
	if (attempt->descriptor < 0)
		return;
	send_many(attempt->connection, &message, length, attempt->descriptor, count);
	atomic_fetch_or(&shared->kinds, 1u << attempt->kind);
	atomic_fetch_add(&shared->handed, 1);
	ferry_quarantine_close(&attempt->descriptor, 1); /* it may be the last, if the router did not take it */
}

/* Several at a time, so that some are sent before the router comes to their connections. */
static void hand_over_some(uint64_t first, uint64_t count, uint64_t seed)
{
	struct attempt attempts[TOGETHER];
	uint64_t state = random_begin(seed, first);
	for (uint64_t i = 0; i < count; i++)
		connect_one(&attempts[i], &state, (int)((first + i) % STRANGE_KINDS));
	for (uint64_t i = 0; i < count; i++)
		hand_over_one(&attempts[i], &state);
	for (uint64_t i = 0; i < count; i++) {
		struct pollfd answer = {attempts[i].connection, POLLIN, 0};
		if (random_below(&state, 2))
			poll(&answer, 1, 20);
		ferry_quarantine_close(&attempts[i].connection, 1);
	}
}

/* Stays until it is released: what it has sent does harm as long as it is there. */
static pid_t start_hostile(uid_t user, uint64_t count)
{
	pid_t child = fork();
	if (child)
		return child;
	pid_t parent = getppid();
	strange_leave_to_parent();
	if (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))
		_exit(2);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of users takes it back */
	if (getppid() != parent)
		_exit(2);
	for (uint64_t i = 0; i < count; i += TOGETHER)
		hand_over_some(i, count - i < TOGETHER ? count - i : TOGETHER, options.seed ^ user);
	atomic_fetch_add(&shared->done, 1);
	while (!atomic_load(&shared->released))
		usleep(PAUSE_US);
	_exit(0);
}

/* In a process of its own, with which the file system goes. */
static void run_hostile(uint64_t count)
{
	char file[200];
	int status;
	bool well = true;
	snprintf(file, sizeof file, "%s/strange", directory);
	close(open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0666));
	if (strange_mount(file))
		strange_use_mounted(file);
	pid_t stranger = start_hostile(HOSTILE_STRANGER, (count + 1) / 2);
	pid_t tenant = start_hostile(HOSTILE_TENANT, count / 2);
	waitpid(stranger, &status, 0);
	well &= !status;
	waitpid(tenant, &status, 0);
	_exit(well && !status ? 0 : 1);
}

/* ---- who watches ---- */

/* Asks a router something as any client does; how long that took, in nanoseconds. */
static bool ask(uint64_t *longest)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_STATUS};
	for (int domain = 0; domain < options.domains; domain++) {
		char path[200];
		int connection, page;
		uint64_t began = ferry_now_ns();
		socket_path(path, sizeof path, (uint64_t)domain);
		ferryResult_t result = ferry_endpoint_connect_patiently(path, &connection);
		if (!result && !(result = ferry_attach_call(connection, &message, NULL, &page)))
			close(page);
		if (result) {
			fprintf(stderr, "the router of domain %d: %s\n", domain, ferry_last_message());
			return false;
		}
		close(connection);
		uint64_t took = ferry_now_ns() - began;
		*longest = took > *longest ? took : *longest;
	}
	return true;
}

static bool watch(pid_t hostile, uint64_t count, uint64_t *longest)
{
	uint64_t rounds = atomic_load(&shared->rounds), since = ferry_now_ns();
	int status;
	while (waitpid(hostile, &status, WNOHANG) == 0) {
		uint64_t now = ferry_now_ns();
		bool done = atomic_load(&shared->done) == USERS;
		if (!ask(longest) || !all_is_well())
			return false;
		if (atomic_load(&shared->rounds) != rounds) {
			rounds = atomic_load(&shared->rounds);
			since = now;
		} else if (now - since > (uint64_t)options.patience_s * 1000000000u) {
			fprintf(stderr, "the other job has made no call for %d s\n", options.patience_s);
			return false;
		}
		progress("descriptors", atomic_load(&shared->handed), count);
		if (done)
			atomic_store(&shared->released, 1);
		usleep(PAUSE_US);
	}
	return !status && ask(longest);
}

bool hand_over(uint64_t count)
{
	uint64_t answers[2] = {0, 0}, calls[2];
	if (geteuid() != 0) {
		printf("descriptors: only root can pose as another user: left out\n");
		return true;
	}
	atomic_store(&shared->longest_ns, 0);
	for (uint64_t end = ferry_now_ns() + QUIET_US * 1000ull; ferry_now_ns() < end; usleep(PAUSE_US))
		if (!ask(&answers[0]))
			return false;
	calls[0] = atomic_exchange(&shared->longest_ns, 0);
	fflush(stdout);
	pid_t hostile = fork();
	if (!hostile) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		run_hostile(count);
	}
	bool well = watch(hostile, count, &answers[1]);
	kill(hostile, SIGKILL);
	calls[1] = atomic_load(&shared->longest_ns);
	unsigned made = atomic_load(&shared->kinds);
	printf("%llu hostile descriptors of %d kinds, messages of up to %d\n"
	       "longest call of the other job: %.1f ms before, %.1f ms meanwhile\n"
	       "longest answer to a new client: %.1f ms before, %.1f ms meanwhile\n",
	       (unsigned long long)atomic_load(&shared->handed), __builtin_popcount(made), MOST, (double)calls[0] / 1e6,
	       (double)calls[1] / 1e6, (double)answers[0] / 1e6, (double)answers[1] / 1e6);
	for (int kind = 0; kind < STRANGE_KINDS && options.verbose; kind++)
		printf("%s: %s\n", made >> kind & 1 ? "handed over" : "not to be had", strange_name(kind));
	return well;
}
