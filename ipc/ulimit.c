/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/ulimit.h"

#include "ipc/error.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/resource.h>

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
