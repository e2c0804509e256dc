/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/process.h"

#include "ipc/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ENVIRONMENT_STEP 16384 /* bytes; most environments are smaller */

/* A field of /proc/PID/stat, counted from 1 as in proc(5), after the second; 0 where there is none. */
static uint64_t read_stat(pid_t process, int wanted)
{
	char path[40], text[1024];
	unsigned long long value = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
	FILE *file = fopen(path, "re");
	if (!file)
		return 0;
	size_t length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = '\0';
	const char *next = strrchr(text, ')'); /* its name may hold anything */
	for (int field = 2; next && field < wanted; field++)
		next = strchr(next + 1, ' ');
	if (next)
		sscanf(next, " %llu", &value);
	return value;
}

uint64_t ferry_process_start(pid_t process)
{
	return read_stat(process, 22);
}

pid_t ferry_process_parent(pid_t process)
{
	return (pid_t)read_stat(process, 4);
}

bool ferry_process_is(pid_t process, const char *const *names)
{
	char path[40], text[32] = "";
	snprintf(path, sizeof path, "/proc/%d/comm", (int)process);
	FILE *file = *names ? fopen(path, "re") : NULL;
	if (!file)
		return false;
	if (fgets(text, sizeof text, file))
		text[strcspn(text, "\n")] = '\0';
	fclose(file);
	while (*names && strcmp(text, *names))
		names++;
	return *names;
}

char *ferry_process_environment(pid_t process)
{
	char path[40], *text = NULL;
	size_t bytes = 0, got = 1;
	snprintf(path, sizeof path, "/proc/%d/environ", (int)process);
	FILE *file = fopen(path, "re");
	while (file && got) {
		char *grown = realloc(text, bytes + ENVIRONMENT_STEP + 2);
		if (!grown)
			break;
		text = grown;
		got = fread(text + bytes, 1, ENVIRONMENT_STEP, file);
		bytes += got;
		text[bytes] = text[bytes + 1] = '\0'; /* an empty entry is the end */
	}
	if (file)
		fclose(file);
	if (text && memchr(text, '=', bytes))
		return text;
	free(text);
	return NULL;
}

const char *ferry_process_variable(const char *environment, const char *name)
{
	size_t length = strlen(name);
	for (const char *entry = environment; *entry; entry += strlen(entry) + 1)
		if (!strncmp(entry, name, length) && entry[length] == '=')
			return entry[length + 1] ? entry + length + 1 : NULL;
	return NULL;
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
	/*
	 * If another process has the number by now, the descriptor is of that one, and the process has ended. Files of
	 * /proc/PID are left alone where the descriptor says as much: Linux 6.18 may spin for a minute where a process
	 * is reaped while others close such files of it.
	 */
	bool ended = descriptor >= 0 && ferry_process_has_ended(descriptor);
	uint64_t now = ended ? 0 : ferry_process_start(process);
	ended = ended || (start && now && now != start);
	if (descriptor >= 0)
		close(descriptor);
	return !ended;
}

int ferry_descriptor_above(int descriptor)
{
	if (descriptor < 0 || descriptor > STDERR_FILENO)
		return descriptor;
	int above = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
	close(descriptor);
	errno = error;
	return above;
}

bool ferry_process_widen(cpu_set_t *own)
{
	cpu_set_t all;
	memset(&all, 0xff, sizeof all); /* the kernel takes those that the control group allows */
	return !sched_getaffinity(0, sizeof *own, own) && !sched_setaffinity(0, sizeof all, &all);
}

void ferry_process_narrow(const cpu_set_t *own)
{
	sched_setaffinity(0, sizeof *own, own);
}

ferryResult_t ferry_descriptors_fill(void)
{
	for (int standard = 0; standard <= 2; standard++)
		/* open gives the lowest free number, which is this one: the ones before it are open. */
		if (fcntl(standard, F_GETFD) < 0 && open("/dev/null", O_RDWR) != standard)
			return ferry_fail(ferrySystemError,
			                  "descriptor %d is closed, and /dev/null cannot take its place: %s", standard,
			                  strerror(errno));
	return ferrySuccess;
}

const char *ferry_descriptors_hint(int error)
{
	return error == EMFILE ? " (raise ulimit -n)" : "";
}

static bool is_limited(int resource)
{
	struct rlimit limit;
	return !getrlimit(resource, &limit) && limit.rlim_cur != RLIM_INFINITY;
}

const char *ferry_ulimit_threads_hint(int error)
{
	if (error != EAGAIN)
		return "";
	return is_limited(RLIMIT_AS) ? " (too many threads and processes, or no room for one's stack: raise ulimit -u "
	                               "or -v, or a container's limit of processes)"
	                             : " (too many threads and processes: raise ulimit -u, or a container's limit of "
	                               "them)";
}

const char *ferry_ulimit_memory_hint(int error)
{
	return error == ENOMEM && is_limited(RLIMIT_AS) ? " (raise ulimit -v: this is address space, of which memory "
	                                                  "is taken as it is used)"
	                                                : "";
}

ferryResult_t ferry_ulimit_check_file(const char *what, uint64_t bytes)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur)
		return ferrySuccess;
	return ferry_fail(ferrySystemError,
	                  "%s of %llu bytes: files of this process, which shared memory counts as, may have %llu "
	                  "(raise ulimit -f)",
	                  what, (unsigned long long)bytes, (unsigned long long)limit.rlim_cur);
}
