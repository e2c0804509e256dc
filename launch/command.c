/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/command.h"

#include "ipc/error.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(const char *path, int error)
{
	ferry_fail(ferryInvalidArgument, "cannot run %s: %s", path, strerror(error));
	return error == ENOENT || error == ENOTDIR ? FERRY_COMMAND_MISSING : FERRY_COMMAND_REFUSED;
}

static int check_file(const char *path)
{
	struct stat status;
	if (stat(path, &status))
		return fail(path, errno);
	if (S_ISDIR(status.st_mode))
		return fail(path, EISDIR);
	if (S_ISREG(status.st_mode) && !eaccess(path, X_OK))
		return 0;
	ferry_fail(ferryInvalidArgument, "cannot run %s: no permission to execute it (mode %04o)", path,
	           status.st_mode & 07777);
	return FERRY_COMMAND_REFUSED;
}

/* Looks in all parts of the list: a file that may be executed counts even behind one that may not. */
static int check_list(const char *list, const char *name)
{
	char path[PATH_MAX], refused[PATH_MAX] = "";
	for (const char *part = list, *end; part; part = *end ? end + 1 : NULL) {
		end = part + strcspn(part, ":");
		const char *between = end > part ? "/" : "./"; /* an empty part is this directory */
		if (snprintf(path, sizeof path, "%.*s%s%s", (int)(end - part), part, between, name) >= PATH_MAX)
			continue;
		int code = check_file(path);
		if (!code)
			return 0;
		if (code == FERRY_COMMAND_REFUSED && !*refused)
			memcpy(refused, path, sizeof refused);
	}
	if (*refused)
		return check_file(refused);
	ferry_fail(ferryInvalidArgument, "cannot run %s: no such command on PATH (%s)", name, list);
	return FERRY_COMMAND_MISSING;
}

int ferry_command_check(const char *name)
{
	char usual[256] = "";
	const char *list = getenv("PATH");
	if (strchr(name, '/') || !*name)
		return check_file(name);
	if (!list)
		confstr(_CS_PATH, usual, sizeof usual);
	return check_list(list ? list : usual, name);
}
