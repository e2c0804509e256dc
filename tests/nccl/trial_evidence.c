/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/trial_evidence.h"

#include "tests/commands_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ssize_t slurp(const char *path, char *text, size_t room)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t bytes = file < 0 ? -1 : read(file, text, room - 1);
	if (file >= 0)
		close(file);
	text[bytes > 0 ? bytes : 0] = 0;
	return bytes;
}

/* Without a debugger: where in the kernel each thread is. */
static void print_threads(pid_t process)
{
	char path[300], name[64], place[128], call[160];
	snprintf(path, sizeof path, "/proc/%d/task", (int)process);
	DIR *threads = opendir(path);
	const struct dirent *entry;
	while (threads && (entry = readdir(threads))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", (int)process, entry->d_name);
		slurp(path, name, sizeof name);
		name[strcspn(name, "\n")] = 0;
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/wchan", (int)process, entry->d_name);
		slurp(path, place, sizeof place);
		snprintf(path, sizeof path, "/proc/%d/task/%.20s/syscall", (int)process, entry->d_name);
		slurp(path, call, sizeof call);
		printf("  thread %s (%s) in %s, call %s\n", entry->d_name, name, place, *call ? call : "unknown\n");
	}
	if (threads)
		closedir(threads);
}

static void print_process(const char *what, pid_t process)
{
	char command[256];
	printf("---- %s %d ----\n", what, (int)process);
	print_threads(process);
	snprintf(command, sizeof command,
	         "command -v gdb >/dev/null && env -u LD_PRELOAD timeout 30 gdb -q -p %d -batch "
	         "-ex 'set pagination off' -ex 'thread apply all bt 24' 2>/dev/null | grep -v '^\\[New LWP\\|^warning'",
	         (int)process);
	fflush(stdout);
	if (system(command))
		printf("  no stacks: gdb is missing, or may not look\n");
}

/* Also of one that listens no more. */
static bool is_router_of(const char *folder, const char *process)
{
	char path[300], line[1024];
	snprintf(path, sizeof path, "/proc/%.20s/cmdline", process);
	ssize_t bytes = slurp(path, line, sizeof line);
	for (ssize_t i = 0; i < bytes; i += (ssize_t)strlen(line + i) + 1)
		if (!strcmp(line + i, folder))
			return strstr(line, "ferry-router");
	return false;
}

void trial_evidence(const char *folder, const pid_t *workers, int n)
{
	char commands[400] = "", command[1200];
	for (int i = 0; i < n; i++)
		if (workers[i])
			print_process("ranks", workers[i]);
	DIR *processes = opendir("/proc");
	const struct dirent *entry;
	while (processes && (entry = readdir(processes)))
		if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && is_router_of(folder, entry->d_name))
			print_process("router", (pid_t)atoi(entry->d_name));
	if (processes)
		closedir(processes);
	commands_folder(commands, sizeof commands);
	snprintf(command, sizeof command,
	         "export FERRY_SOCKET_DIR=%s; unset LD_PRELOAD; timeout 20 %s/ferry-stat --routers; "
	         "timeout 20 %s/ferry-stat --json", folder, commands,
	         commands);
	printf("---- what routers say ----\n");
	fflush(stdout);
	if (system(command))
		printf("  nothing\n");
	fflush(stdout);
}
