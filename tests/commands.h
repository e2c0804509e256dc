/* SPDX-License-Identifier: Apache-2.0 */
/** Commands as people type them, each test with a socket directory of its own that must be empty at its end. */
#ifndef FERRY_TESTS_COMMANDS_H
#define FERRY_TESTS_COMMANDS_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char directory[64]; /* FERRY_SOCKET_DIR of this test */

static inline int make_directory(void **state)
{
	(void)state;
	snprintf(directory, sizeof directory, "/tmp/ferryrun-test-XXXXXX");
	/* Orphans of what we kill become our children: so we can wait until they are gone. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	return !mkdtemp(directory) || setenv("FERRY_SOCKET_DIR", directory, 1);
}

static inline int remove_directory(void **state)
{
	(void)state;
	return rmdir(directory); /* fails if anything was left in it */
}

/* Runs a shell command with $B the directory of the commands; its output in text. */
static inline int run(const char *command, char *text, size_t bytes)
{
	FILE *pipe = popen(command, "r");
	size_t got = fread(text, 1, bytes - 1, pipe);
	text[got] = '\0';
	int status = pclose(pipe);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static inline int entries_left(void)
{
	int count = 0;
	DIR *open = opendir(directory);
	for (struct dirent *entry; (entry = readdir(open));)
		count += entry->d_name[0] != '.';
	closedir(open);
	return count;
}

static inline pid_t start(const char *command)
{
	pid_t child = fork();
	if (!child) {
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	return child;
}

/* A line from a fifo that the ranks write to once they run. */
static inline void await_line(const char *fifo)
{
	char line[64];
	FILE *file = fopen(fifo, "r");
	assert_non_null(file);
	assert_non_null(fgets(line, sizeof line, file));
	fclose(file);
}

/* All descendants are our children sooner or later: wait until there is none. */
static inline void await_no_children(void)
{
	int status;
	while (waitpid(-1, &status, 0) > 0)
		;
}

/* Those that ranks have started in the test's directory, before they would end by themselves. */
static inline void end_routers(void)
{
	char text[256];
	run("pkill -f -- \"--socket-dir $FERRY_SOCKET_DIR\"", text, sizeof text);
	await_no_children();
	run("rm -f $FERRY_SOCKET_DIR/router-?.sock.lock", text, sizeof text);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, remove_directory)

#endif
