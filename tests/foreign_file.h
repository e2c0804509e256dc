/* SPDX-License-Identifier: Apache-2.0 */
/** Opens a file that another process has open. The doubles' handles for IPC are a process and its descriptor. */
#ifndef FERRY_TESTS_FOREIGN_FILE_H
#define FERRY_TESTS_FOREIGN_FILE_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

/**
 * Opens what the process has open as `file`, to read and to write; -1 if that is no more. By a descriptor of the
 * process where the system lets it be used so: Linux 6.18 may spin for a minute where a process is reaped while others
 * close files of its /proc/PID.
 */
static inline int foreign_file(pid_t process, int file)
{
	char path[64];
	int descriptor = (int)syscall(SYS_pidfd_open, process, 0);
	int copy = descriptor < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, descriptor, file, 0); /* close-on-exec */
	bool may = copy >= 0 || (errno != EPERM && errno != ENOSYS);
	if (descriptor >= 0)
		close(descriptor);
	if (may)
		return copy;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)process, file);
	return open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
}

#endif
