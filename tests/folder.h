/* SPDX-License-Identifier: Apache-2.0 */
/** A folder for the sockets of one run. */
#ifndef FERRY_TESTS_FOLDER_H
#define FERRY_TESTS_FOLDER_H

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/** Makes one of that name's beginning; false: it cannot. */
static inline bool folder_make(char folder[64], const char *name)
{
	snprintf(folder, 64, "/tmp/ferry-%s-XXXXXX", name);
	return mkdtemp(folder);
}

/** With the files that are left in it; one that holds folders stays. */
static inline void folder_remove(const char *folder)
{
	char path[4096];
	struct dirent *entry;
	DIR *files = opendir(folder);
	while (files && (entry = readdir(files))) {
		snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
		unlink(path);
	}
	if (files)
		closedir(files);
	rmdir(folder);
}

#endif
