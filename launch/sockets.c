/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/sockets.h"

#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "launch/run_directory.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ABSTRACT "@ferry/"

static ferryResult_t add(struct ferry_sockets *sockets, const char *path, const char *place)
{
	if (sockets->count == sockets->capacity) {
		size_t capacity = sockets->capacity ? 2 * sockets->capacity : 16;
		void *grown = realloc(sockets->all, capacity * sizeof *sockets->all);
		if (!grown)
			return ferry_fail(ferrySystemError, "no memory for %zu sockets", capacity);
		sockets->all = grown;
		sockets->capacity = capacity;
	}
	struct ferry_socket *socket = &sockets->all[sockets->count++];
	snprintf(socket->path, sizeof socket->path, "%s", path);
	snprintf(socket->place, sizeof socket->place, "%s", place);
	return ferrySuccess;
}

static ferryResult_t look_in(struct ferry_sockets *sockets, const char *directory, const char *place)
{
	char path[512];
	struct stat status;
	ferryResult_t result = ferrySuccess;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS && !result; domain++) {
		snprintf(path, sizeof path, "%s/router-%u.sock", directory, domain);
		if (!lstat(path, &status) && S_ISSOCK(status.st_mode))
			result = add(sockets, path, place);
	}
	return result;
}

static ferryResult_t look_for_runs(struct ferry_sockets *sockets, const char *parent)
{
	struct stat status;
	struct dirent **names;
	char path[400];
	ferryResult_t result = ferrySuccess;
	int count = scandir(parent, &names, NULL, alphasort);
	for (int i = 0; i < count; i++) {
		const char *name = names[i]->d_name;
		snprintf(path, sizeof path, "%s/%s", parent, name);
		if (!result && ferry_run_directory_is(name) && !lstat(path, &status) && S_ISDIR(status.st_mode) &&
		    status.st_uid == geteuid())
			result = look_in(sockets, path, strstr(name, "run-"));
		free(names[i]);
	}
	if (count >= 0)
		free(names);
	return result;
}

/* They have no file; the kernel lists them with an @ in front, those of all users. */
static ferryResult_t look_for_embedded(struct ferry_sockets *sockets)
{
	char line[512];
	ferryResult_t result = ferrySuccess;
	FILE *file = fopen("/proc/net/unix", "re");
	while (file && !result && fgets(line, sizeof line, file)) {
		unsigned flags;
		char path[160];
		/* Num RefCount Protocol Flags Type St Inode Path; 10000: it listens */
		if (sscanf(line, "%*s %*s %*s %x %*s %*s %*s %159s", &flags, path) == 2 && flags & 0x10000 &&
		    !strncmp(path, ABSTRACT, sizeof ABSTRACT - 1))
			result = add(sockets, path, "embedded");
	}
	if (file)
		fclose(file);
	return result;
}

ferryResult_t ferry_sockets_find(struct ferry_sockets *sockets)
{
	*sockets = (struct ferry_sockets){.count = 0};
	ferryResult_t result = ferry_endpoint_directory(sockets->directory, sizeof sockets->directory, false);
	if (result)
		return result;
	sockets->missing = access(sockets->directory, X_OK);
	if (sockets->missing && errno != ENOENT)
		return ferry_fail(ferrySystemError, "looking for routers in %s: %s", sockets->directory,
		                  strerror(errno));
	result = look_in(sockets, sockets->directory, "shared");
	if (!result)
		result = look_for_runs(sockets, sockets->directory);
	if (!result && strcmp(sockets->directory, "/tmp") != 0)
		result = look_for_runs(sockets, "/tmp");
	return result ? result : look_for_embedded(sockets);
}

void ferry_sockets_free(struct ferry_sockets *sockets)
{
	free(sockets->all);
	sockets->all = NULL;
}
