/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/descriptors.h"

#include "ipc/error.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int ferry_descriptor_above(int descriptor)
{
	if (descriptor < 0 || descriptor > STDERR_FILENO)
		return descriptor;
	int above = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
	close(descriptor);
	errno = error;
	return above;
}

ferryResult_t ferry_descriptors_fill(void)
{
	for (int standard = 0; standard <= 2; standard++)
		/* The lowest number that is free is this one: those before it are open. */
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
