/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/hosting.h"

#include "ipc/error.h"
#include "router/daemon/router.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PREFIXES 256

static struct hosted {
	char path[136];
	struct ferry_router *router;
	struct hosted *next;
} *hosted; /* under hosted_lock */
/* Communicators of this process by the name of their routers; under hosted_lock. */
static struct {
	char prefix[48];
	uint32_t users;
} prefixes[MOST_PREFIXES];
static pthread_mutex_t hosted_lock = PTHREAD_MUTEX_INITIALIZER;

static ferryResult_t use_prefix(const char *prefix)
{
	int free_one = -1;
	for (int i = 0; i < MOST_PREFIXES; i++) {
		if (prefixes[i].users && !strcmp(prefixes[i].prefix, prefix)) {
			prefixes[i].users++;
			return ferrySuccess;
		}
		if (!prefixes[i].users)
			free_one = i;
	}
	if (free_one < 0)
		return ferry_fail(ferryInvalidUsage, "more than %d jobs with embedded routers in one process",
		                  MOST_PREFIXES);
	snprintf(prefixes[free_one].prefix, sizeof prefixes[free_one].prefix, "%s", prefix);
	prefixes[free_one].users = 1;
	return ferrySuccess;
}

static uint32_t leave_prefix(const char *prefix)
{
	for (int i = 0; i < MOST_PREFIXES; i++)
		if (prefixes[i].users && !strcmp(prefixes[i].prefix, prefix))
			return --prefixes[i].users;
	return 0;
}

ferryResult_t ferry_hosting_join(const char *prefix)
{
	pthread_mutex_lock(&hosted_lock);
	ferryResult_t result = use_prefix(prefix);
	pthread_mutex_unlock(&hosted_lock);
	return result;
}

void ferry_hosting_leave(const char *directory, const char *prefix, bool abort)
{
	struct hosted *mine = NULL, **link;
	char start[120];
	snprintf(start, sizeof start, "%s/%s-", directory, prefix);
	pthread_mutex_lock(&hosted_lock);
	if (leave_prefix(prefix)) {
		pthread_mutex_unlock(&hosted_lock);
		return;
	}
	for (link = &hosted; *link;) {
		struct hosted *entry = *link;
		if (strncmp(entry->path, start, strlen(start))) {
			link = &entry->next;
			continue;
		}
		*link = entry->next;
		entry->next = mine;
		mine = entry;
	}
	pthread_mutex_unlock(&hosted_lock);
	for (struct hosted *entry = mine; entry; entry = entry->next)
		ferry_router_retire(entry->router);
	while (mine) {
		struct hosted *entry = mine;
		mine = entry->next;
		if (!abort)
			ferry_router_wait(entry->router);
		ferry_router_stop(entry->router);
		free(entry);
	}
}

ferryResult_t ferry_hosting_start(const struct ferry_layout *layout, uint32_t domain, const char *directory,
                                  const char *prefix, const char *path)
{
	struct ferry_router_options options = {
		.domain = domain, .layout = layout, .directory = directory, .prefix = prefix, .pin = true};
	struct hosted *entry = calloc(1, sizeof *entry);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory for an embedded router");
	ferryResult_t result = ferry_router_start(&options, &entry->router);
	if (result) {
		free(entry);
		return result;
	}
	snprintf(entry->path, sizeof entry->path, "%s", path);
	pthread_mutex_lock(&hosted_lock);
	entry->next = hosted;
	hosted = entry;
	pthread_mutex_unlock(&hosted_lock);
	return ferrySuccess;
}

bool ferry_hosting_any(void)
{
	pthread_mutex_lock(&hosted_lock);
	bool any = hosted;
	pthread_mutex_unlock(&hosted_lock);
	return any;
}

void ferry_hosting_before_fork(void)
{
	pthread_mutex_lock(&hosted_lock);
}

void ferry_hosting_after_fork(void)
{
	pthread_mutex_unlock(&hosted_lock);
}
