/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/ulimit.h"

#include "ipc/error.h"

#include <errno.h>
#include <sys/resource.h>

const char *ferry_ulimit_threads_hint(int error)
{
	return error == EAGAIN ? " (too many threads and processes: raise ulimit -u, or a container's limit of them)"
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
