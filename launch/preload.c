/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/preload.h"

#include "ipc/error.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libferry-nccl.so"
#define BY_NAME "ferry/nccl" /* beside the library: a folder with libnccl.so.2 alone */

/* Finds the folder of this command's libraries, in a build folder or as installed. */
static ferryResult_t find_folder(char folder[PATH_MAX])
{
	static const char *const places[] = {"../lib", FERRY_LIBDIR_FROM_BINDIR};
	char program[PATH_MAX], path[PATH_MAX + 64];
	ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
	program[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(program, '/');
	if (!slash)
		return ferry_fail(ferrySystemError, "/proc/self/exe: %s", strerror(errno));
	*slash = '\0';
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		snprintf(path, sizeof path, "%s/%s/" LIBRARY, program, places[i]);
		if (access(path, R_OK))
			continue;
		snprintf(path, sizeof path, "%s/%s", program, places[i]);
		if (realpath(path, folder))
			return ferrySuccess;
	}
	return ferry_fail(ferrySystemError, "no " LIBRARY " in %s/%s or %s/%s", program, places[0], program, places[1]);
}

/* Puts the text in front of a list. */
static ferryResult_t put_first(const char *variable, const char *text)
{
	const char *before = getenv(variable);
	size_t bytes = strlen(text) + (before ? strlen(before) : 0) + 2;
	char *list = malloc(bytes);
	if (!list)
		return ferry_fail(ferrySystemError, "no memory for %s", variable);
	snprintf(list, bytes, "%s%s%s", text, before && *before ? ":" : "", before ? before : "");
	int failed = setenv(variable, list, 1);
	free(list);
	return failed ? ferry_fail(ferrySystemError, "setenv %s: %s", variable, strerror(errno)) : ferrySuccess;
}

ferryResult_t ferry_preload_nccl(bool by_name)
{
	char folder[PATH_MAX], path[PATH_MAX + 64];
	ferryResult_t result = find_folder(folder);
	if (result)
		return result;
	if (strpbrk(folder, " \t\n:;"))
		return ferry_fail(ferrySystemError,
		                  "%s/" LIBRARY ": the loader takes no path with spaces or colons in LD_PRELOAD",
		                  folder);
	snprintf(path, sizeof path, "%s/" LIBRARY, folder);
	result = put_first("LD_PRELOAD", path);
	snprintf(path, sizeof path, "%s/" BY_NAME "/libnccl.so.2", folder);
	if (!result && setenv("VLLM_NCCL_SO_PATH", path, 0))
		result = ferry_fail(ferrySystemError, "setenv VLLM_NCCL_SO_PATH: %s", strerror(errno));
	if (result || !by_name)
		return result;
	result = put_first("LD_PRELOAD", path);
	*strrchr(path, '/') = '\0';
	return result ? result : put_first("LD_LIBRARY_PATH", path);
}
