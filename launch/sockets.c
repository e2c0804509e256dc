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
	char path[sizeof ((struct ferry_socket *)0)->path];
	struct stat status;
	ferryResult_t result = ferrySuccess;
	for (unsigned domain = 0; domain < FERRY_MAX_DOMAINS && !result; domain++) {
		int length = snprintf(path, sizeof path, "%s/" FERRY_ENDPOINT_NAME, directory, domain);
		if (length < (int)sizeof path && !lstat(path, &status) && S_ISSOCK(status.st_mode))
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
	return result;
}

void ferry_sockets_free(struct ferry_sockets *sockets)
{
	free(sockets->all);
	sockets->all = NULL;
}
