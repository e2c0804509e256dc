/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The folder of Ferry's commands, as a test program finds it by itself: in a bundle they lie beside it, in a build tree
 * in bin/, with the tests in tests/bin/.
 */
#ifndef FERRY_TESTS_COMMANDS_FOLDER_H
#define FERRY_TESTS_COMMANDS_FOLDER_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** Writes the folder's path; false if it does not fit, or this program's own is not known. */
static inline bool commands_folder(char *path, size_t bytes)
{
	static const char there[] = "/../../bin";
	ssize_t length = readlink("/proc/self/exe", path, bytes);
	if (length < 0 || (size_t)length + sizeof there >= bytes)
		return false;
	path[length] = '\0';
	char *name = strrchr(path, '/');
	strcpy(name, "/ferryrun");
	strcpy(name, access(path, X_OK) ? there : "");
	return true;
}

#endif
