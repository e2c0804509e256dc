/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/limits.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FILE (1 << 20)
#define MOST_ISSUE_NS 1000000
#define MOST_LINK 10000

/* Four H200 on PCIe Gen5 x16: docs/performance.md. */
#define TYPICAL_ISSUE_NS 4000
#define TYPICAL_LINK 50
/* Until the end of a slice is seen and told, which the file has no figure of: the best slices of that machine (4000) less the rest. */
#define HANDOVER_NS 1800

ferryResult_t ferry_limits_path(char *path, size_t bytes)
{
	const char *file = ferry_env("FERRY_LIMITS"), *cache = ferry_env("XDG_CACHE_HOME"), *home = ferry_env("HOME");
	int length = 0;
	if (file)
		length = snprintf(path, bytes, "%s", file);
	else if (cache)
		length = snprintf(path, bytes, "%s/ferry/limits.json", cache);
	else if (home)
		length = snprintf(path, bytes, "%s/.cache/ferry/limits.json", home);
	if (!length)
		return ferry_fail(ferryInvalidArgument, "no place for the file of limits: FERRY_LIMITS, XDG_CACHE_HOME and HOME are unset");
	if (length < 0 || (size_t)length >= bytes)
		return ferry_fail(ferryInvalidArgument, "the file of limits, by %s, has a name of %d bytes: at most %zu",
		                  file ? "FERRY_LIMITS" : cache ? "XDG_CACHE_HOME" : "HOME", length, bytes - 1);
	return ferrySuccess;
}

ferryResult_t ferry_limits_load(struct cJSON **limits)
{
	char path[512];
	*limits = NULL;
	const char *named = ferry_env("FERRY_LIMITS");
	ferryResult_t result = ferry_limits_path(path, sizeof path);
	if (result)
		return named ? result : ferrySuccess;
	FILE *file = fopen(path, "r");
	if (!file && named && errno != ENOENT)
		return ferry_fail(ferryInvalidArgument, "FERRY_LIMITS=%s: %s", named, strerror(errno));
	if (!file)
		return ferrySuccess; /* nothing measured is the usual case */
	char *text = calloc(1, MOST_FILE);
	size_t length = text ? fread(text, 1, MOST_FILE - 1, file) : 0;
	fclose(file);
	cJSON *root = length ? cJSON_Parse(text) : NULL;
	free(text);
	if (!root || !cJSON_IsArray(cJSON_GetObjectItem(root, "windows")) || !cJSON_IsArray(cJSON_GetObjectItem(root, "gpus"))) {
		cJSON_Delete(root);
		return ferry_fail(ferryInvalidArgument, "%s is not what `ferry-perf limits` writes; run it again or remove the file", path);
	}
	*limits = root;
	return ferrySuccess;
}

/* 0 where the file has no such number, or none that makes sense. */
static double number(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItem(object, name);
	return cJSON_IsNumber(item) && item->valuedouble > 0 ? item->valuedouble : 0;
}

ferryResult_t ferry_costs_read(struct ferry_costs *costs)
{
	cJSON *limits;
	*costs = (struct ferry_costs){.issue_ns = TYPICAL_ISSUE_NS, .link = TYPICAL_LINK};
	ferryResult_t result = ferry_limits_load(&limits);
	if (result || !limits)
		return result;
	const cJSON *copy = cJSON_GetObjectItem(limits, "copy");
	double fixed = number(copy, "d2h_overhead_us") > number(copy, "h2d_overhead_us") ? number(copy, "d2h_overhead_us")
	                                                                                 : number(copy, "h2d_overhead_us");
	double issue = (fixed + number(copy, "enqueue_us")) * 1000 + HANDOVER_NS;
	double link = number(copy, "d2h") < number(copy, "h2d") ? number(copy, "d2h") : number(copy, "h2d");
	/* Without GPUs the file has no such figures. */
	if (fixed > 0 && issue >= 1 && issue <= MOST_ISSUE_NS && link >= 1 && link <= MOST_LINK)
		*costs = (struct ferry_costs){.issue_ns = (uint32_t)issue, .link = (uint32_t)link, .measured = true};
	cJSON_Delete(limits);
	return ferrySuccess;
}
