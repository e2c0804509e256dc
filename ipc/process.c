/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/process.h"

#include "ipc/descriptors.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

uint64_t ferry_process_start(pid_t process)
{
	char path[40], text[1024];
	unsigned long long start = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	FILE *file = fopen(path, "r");
	if (!file)
		return 0;
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	const char *next = strrchr(text, ')'); /* its name may hold anything */
	for (int field = 2; next && field < 22; field++)
		next = strchr(next + 1, ' ');
	if (next)
		sscanf(next, " %llu", &start);
	return start;
}

uint64_t ferry_process_names(void)
{
	struct stat space;
	return stat("/proc/self/ns/pid", &space) ? 0 : (uint64_t)space.st_ino;
}

int ferry_process_open(pid_t process)
{
	return ferry_descriptor_above((int)syscall(SYS_pidfd_open, process, 0));
}

bool ferry_process_has_ended(int descriptor)
{
	struct pollfd end = {descriptor, POLLIN, 0};
	return poll(&end, 1, 0) > 0;
}

bool ferry_process_lives(pid_t process, uint64_t start)
{
	if (process == getpid())
		return true;
	int descriptor = ferry_process_open(process);
	if (descriptor < 0 && errno == ESRCH)
		return false;
	/* Behind the opening: if the number is another's by now, so was it to begin with, and ours has ended. */
	uint64_t now = ferry_process_start(process);
	bool another = start && now && now != start;
	bool ended = another || (descriptor >= 0 && ferry_process_has_ended(descriptor));
	if (descriptor >= 0)
		close(descriptor);
	return !ended;
}
