/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/run_directory.h"

#include "ipc/endpoint.h"
#include "ipc/error.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIQUE       "XXXXXX" /* mkdtemp's */
#define LONGEST_PATH 59       /* of a directory with sockets in it: their paths are short */
#define ATTEMPTS     100
#define LONGEST_BASE (LONGEST_PATH - (int)(sizeof "/run-" UNIQUE - 1))

static bool is_dot(const char *name)
{
	return !strcmp(name, ".") || !strcmp(name, "..");
}

static bool is_routers(const char *name, mode_t mode)
{
	char text[32];
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		snprintf(text, sizeof text, FERRY_ENDPOINT_NAME, domain);
		if (!strcmp(name, text))
			return S_ISSOCK(mode);
		strcat(text, ".lock");
		if (!strcmp(name, text))
			return S_ISREG(mode);
	}
	return false;
}

/* Whether a router may answer there: also true for another user's, and if this process may not or cannot ask. */
static bool answers(const char *directory, const char *name)
{
	char path[800];
	int connection;
	snprintf(path, sizeof path, "%s/%s", directory, name);
	ferryResult_t result = ferry_endpoint_connect(path, &connection);
	bool nobody = ferry_endpoint_nobody(result);
	if (!result)
		close(connection);
	return !nobody;
}

/*
 * Whether a directory whose lock is free is stale. So is an empty one: its ferryrun has died before its routers began,
 * or does not hold the lock yet, and then makes another directory.
 */
static bool is_left_over(DIR *directory, const char *path)
{
	struct dirent *entry;
	struct stat status;
	while ((entry = readdir(directory))) {
		if (is_dot(entry->d_name))
			continue;
		if (fstatat(dirfd(directory), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) ||
		    !is_routers(entry->d_name, status.st_mode))
			return false;
		if (S_ISSOCK(status.st_mode) && answers(path, entry->d_name))
			return false;
	}
	return true;
}

static void remove_files(DIR *directory)
{
	struct dirent *entry;
	rewinddir(directory);
	while ((entry = readdir(directory)))
		if (!is_dot(entry->d_name))
			unlinkat(dirfd(directory), entry->d_name, 0);
}

/* Works by descriptors, so that it never follows a link, or another directory, that takes the name. */
static void remove_if_left_over(int parent, const char *name, const char *path)
{
	struct stat status;
	int opened = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (opened < 0)
		return;
	bool mine = !fstat(opened, &status) && status.st_uid == geteuid() && (status.st_mode & 07777) == 0700;
	DIR *directory = mine && !flock(opened, LOCK_EX | LOCK_NB) ? fdopendir(opened) : NULL;
	if (!directory) {
		close(opened);
		return;
	}
	if (is_left_over(directory, path)) {
		remove_files(directory);
		unlinkat(parent, name, AT_REMOVEDIR);
	}
	closedir(directory);
}

/* Whether mkdtemp may have made the name from that prefix. */
static bool is_one_of(const char *name, const char *prefix)
{
	size_t front = strlen(prefix), unique = 0;
	if (strncmp(name, prefix, front))
		return false;
	while (isalnum((unsigned char)name[front + unique]))
		unique++;
	return unique == sizeof UNIQUE - 1 && !name[front + unique];
}

bool ferry_run_directory_is(const char *name)
{
	return is_one_of(name, "run-") || is_one_of(name, "ferry-run-");
}

static void remove_left_over(const char *parent, const char *prefix)
{
	struct dirent *entry;
	char path[512];
	DIR *directory = opendir(parent);
	while (directory && (entry = readdir(directory))) {
		if (!is_one_of(entry->d_name, prefix))
			continue;
		snprintf(path, sizeof path, "%s/%s", parent, entry->d_name);
		remove_if_left_over(dirfd(directory), entry->d_name, path);
	}
	if (directory)
		closedir(directory);
}

/*
 * Locks the directory. Returns false if another ferryrun has removed it: one that looks for stale directories holds the
 * lock for a moment, and takes a directory that is not locked yet for stale. If this process cannot open it, no other
 * can either.
 */
static bool lock(struct ferry_run_directory *directory)
{
	struct stat there, locked;
	directory->lock = open(directory->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (directory->lock < 0)
		return errno != ENOENT;
	flock(directory->lock, LOCK_EX);
	if (!stat(directory->path, &there) && !fstat(directory->lock, &locked) && there.st_dev == locked.st_dev &&
	    there.st_ino == locked.st_ino)
		return true;
	close(directory->lock);
	directory->lock = -1;
	return false;
}

static ferryResult_t make_locked(struct ferry_run_directory *directory, const char *parent, const char *prefix)
{
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		snprintf(directory->path, sizeof directory->path, "%.*s/%s" UNIQUE, LONGEST_BASE, parent, prefix);
		if (!mkdtemp(directory->path))
			return ferry_fail(ferrySystemError,
			                  "making %s for the routers' sockets: %s (FERRY_SOCKET_DIR names another "
			                  "place, of at most %d bytes)",
			                  directory->path, strerror(errno), LONGEST_BASE);
		if (lock(directory))
			return ferrySuccess;
	}
	return ferry_fail(ferrySystemError,
	                  "a directory in %s for the routers' sockets was removed as soon as it was made, %d times",
	                  parent, ATTEMPTS);
}

ferryResult_t ferry_run_directory_make(struct ferry_run_directory *directory)
{
	char named[64], base[PATH_MAX];
	const char *parent = base, *prefix = "run-";
	ferryResult_t result = ferry_endpoint_directory(named, sizeof named, true);
	if (result)
		return result;
	if (!realpath(named, base)) /* the ranks may work elsewhere */
		return ferry_fail(ferrySystemError, "the socket directory %s: %s", named, strerror(errno));
	if (strlen(base) > LONGEST_BASE) {
		parent = "/tmp";
		prefix = "ferry-run-";
	}
	remove_left_over(parent, prefix);
	return make_locked(directory, parent, prefix);
}

void ferry_run_directory_remove(struct ferry_run_directory *directory)
{
	DIR *opened = opendir(directory->path);
	if (opened) {
		remove_files(opened);
		closedir(opened);
	}
	rmdir(directory->path);
	if (directory->lock >= 0)
		close(directory->lock);
}
