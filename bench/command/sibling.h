/* SPDX-License-Identifier: Apache-2.0 */
/** The commands beside this one: those on PATH might be of another build. */
#ifndef FERRY_BENCH_SIBLING_H
#define FERRY_BENCH_SIBLING_H

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** The path of the file beside this command, or the bare name if the folder is not known. */
static inline void sibling_path(char *path, size_t bytes, const char *name)
{
	ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
	path[length > 0 ? length : 0] = '\0';
	char *slash = strrchr(path, '/');
	size_t at = slash ? (size_t)(slash + 1 - path) : 0;
	snprintf(path + at, bytes - at, "%s", name);
}

#endif
