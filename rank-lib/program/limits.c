/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/limits.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_FILE (1 << 20)
#define MOST_ISSUE_NS 1000000
#define MOST_LINK 10000

/* Four H200 on PCIe Gen5 x16: docs/lab/README.md. */
#define TYPICAL_ISSUE_NS 4000
#define TYPICAL_LINK 50
/*
 * From the end of a slice until the next lane sees it, which is not measured: that machine's best slices cost 4000 ns,
 * of which the measured parts are the rest.
 */
#define HANDOVER_NS 1800

/* ---- the schema ---- */

enum form { TEXT, WHOLE, REAL, FLAG };

/*
 * A value of the file: its name, or "object.name" if it lies in an object within. An optional value is left out if it
 * is 0 or "", unless it is a REAL and its object is there already.
 */
struct field {
	const char *name;
	enum form form;
	bool optional;
	size_t offset, bytes;
};

#define FIELD(of, name, form, optional, member) \
	{name, form, optional, offsetof(struct of, member), sizeof((struct of *)0)->member}
#define RATES(of, prefix, optional, member) \
	FIELD(of, prefix "d2h", REAL, optional, member.d2h), FIELD(of, prefix "h2d", REAL, optional, member.h2d)

static const struct field values[] = {
	FIELD(ferry_limits, "about.command", TEXT, false, command),
	FIELD(ferry_limits, "about.date", TEXT, false, date),
	FIELD(ferry_limits, "about.units", TEXT, false, units),
	FIELD(ferry_limits, "about.quick", FLAG, false, quick),
	FIELD(ferry_limits, "about.seconds", REAL, false, seconds),
	FIELD(ferry_limits, "about.cpu", TEXT, false, cpu),
	FIELD(ferry_limits, "about.cores", WHOLE, false, cores),
	FIELD(ferry_limits, "about.cpus", WHOLE, false, cpus),
	FIELD(ferry_limits, "about.numa_nodes", WHOLE, false, numa_nodes),
	FIELD(ferry_limits, "about.cuda_driver", WHOLE, true, cuda_driver),
	FIELD(ferry_limits, "about.no_gpu", TEXT, true, no_gpu),
	FIELD(ferry_limits, "about.no_links", TEXT, true, no_links),
	FIELD(ferry_limits, "about.astray", FLAG, false, astray),
	RATES(ferry_limits, "copy.", true, copy),
	FIELD(ferry_limits, "copy.d2h_overhead_us", REAL, true, copy.d2h_overhead_us),
	FIELD(ferry_limits, "copy.h2d_overhead_us", REAL, true, copy.h2d_overhead_us),
	FIELD(ferry_limits, "copy.enqueue_us", REAL, true, copy.enqueue_us),
	FIELD(ferry_limits, "crossing", REAL, true, crossing),
	{0}};
static const struct field of_gpu[] = {
	FIELD(ferry_limits_gpu, "name", TEXT, false, name),
	FIELD(ferry_limits_gpu, "pci", TEXT, false, pci),
	FIELD(ferry_limits_gpu, "numa_node", WHOLE, false, numa_node),
	RATES(ferry_limits_gpu, "", false, alone),
	RATES(ferry_limits_gpu, "both.", false, both),
	FIELD(ferry_limits_gpu, "push", REAL, true, push),
	{0}};
static const struct field of_link[] = {
	FIELD(ferry_limits_link, "from", WHOLE, false, from),
	FIELD(ferry_limits_link, "to", WHOLE, false, to),
	FIELD(ferry_limits_link, "alone", REAL, false, alone),
	FIELD(ferry_limits_link, "both", REAL, true, both),
	FIELD(ferry_limits_link, "overhead_us", REAL, false, overhead_us),
	FIELD(ferry_limits_link, "pcie", FLAG, false, pcie),
	{0}};
static const struct field of_window[] = {
	FIELD(ferry_limits_window, "gpus", WHOLE, false, gpus),
	FIELD(ferry_limits_window, "bytes", WHOLE, false, bytes),
	FIELD(ferry_limits_window, "copy_bytes", WHOLE, false, copy_bytes),
	RATES(ferry_limits_window, "", false, alone),
	RATES(ferry_limits_window, "both.", false, both),
	{0}};
static const struct field of_collective[] = {
	FIELD(ferry_limits_collective, "settings", TEXT, false, settings),
	FIELD(ferry_limits_collective, "ranks", WHOLE, false, ranks),
	FIELD(ferry_limits_collective, "collective", TEXT, false, collective),
	FIELD(ferry_limits_collective, "bytes", WHOLE, false, bytes),
	FIELD(ferry_limits_collective, "nccl_us", REAL, true, nccl_us),
	FIELD(ferry_limits_collective, "nccl_16_channels_us", REAL, true, nccl_16_channels_us),
	FIELD(ferry_limits_collective, "ferry_us", REAL, true, ferry_us),
	{0}};

#define MEMBER(name) ((struct ferry_limits *)0)->name
#define ROWS(name, fields) \
	{#name, fields, offsetof(struct ferry_limits, name), offsetof(struct ferry_limits, n##name), \
	 sizeof *MEMBER(name), sizeof MEMBER(name) / sizeof *MEMBER(name)}

static const struct rows {
	const char *name;
	const struct field *fields;
	size_t offset, count, each, most; /* count: the offset of the number of rows, an int */
} arrays[] = {ROWS(gpus, of_gpu), ROWS(windows, of_window), ROWS(links, of_link),
              ROWS(collectives, of_collective)};

#define NARRAYS (sizeof arrays / sizeof *arrays)

/* Returns the field's own name. outer: the name of the object that it lies in, or "". */
static const char *split(const char *name, char outer[16])
{
	const char *dot = strchr(name, '.');
	snprintf(outer, 16, "%.*s", dot ? (int)(dot - name) : 0, name);
	return dot ? dot + 1 : name;
}

/* ---- writing ---- */

static void write_fields(cJSON *object, const struct field *field, const char *from)
{
	for (; field->name; field++) {
		char outer[16];
		const char *name = split(field->name, outer), *at = from + field->offset;
		cJSON *into = *outer ? cJSON_GetObjectItem(object, outer) : object;
		double value = field->form == REAL ? *(const double *)at
		               : field->form != WHOLE ? 0
		               : field->bytes == sizeof(int) ? *(const int *)at : (double)*(const uint64_t *)at;
		bool alone = field->form != REAL || !*outer || !into;
		if (field->optional && alone && (field->form == TEXT ? !*at : value == 0))
			continue;
		if (!into)
			into = cJSON_AddObjectToObject(object, outer);
		if (field->form == TEXT)
			cJSON_AddStringToObject(into, name, at);
		else if (field->form == FLAG)
			cJSON_AddBoolToObject(into, name, *(const bool *)at);
		else if (field->form == WHOLE)
			cJSON_AddNumberToObject(into, name, value);
		else /* to a hundredth of a GB/s or microsecond: more digits would be noise */
			cJSON_AddNumberToObject(into, name, floor(value * 100 + 0.5) / 100);
	}
}

struct cJSON *ferry_limits_json(const struct ferry_limits *limits)
{
	const char *from = (const char *)limits;
	cJSON *root = cJSON_CreateObject();
	write_fields(root, values, from);
	for (size_t i = 0; i < NARRAYS; i++) {
		cJSON *array = cJSON_AddArrayToObject(root, arrays[i].name);
		for (int k = 0; k < *(const int *)(from + arrays[i].count); k++) {
			cJSON *row = cJSON_CreateObject();
			write_fields(row, arrays[i].fields, from + arrays[i].offset + (size_t)k * arrays[i].each);
			cJSON_AddItemToArray(array, row);
		}
	}
	return root;
}

/* ---- reading ---- */

static void read_fields(const cJSON *object, const struct field *field, char *to)
{
	for (; field->name; field++) {
		char outer[16], *at = to + field->offset;
		const char *name = split(field->name, outer), *text;
		const cJSON *item = cJSON_GetObjectItem(*outer ? cJSON_GetObjectItem(object, outer) : object, name);
		double value = cJSON_IsNumber(item) && fabs(item->valuedouble) < 1e15 ? item->valuedouble : 0;
		if (field->form == TEXT && (text = cJSON_GetStringValue(item)))
			snprintf(at, field->bytes, "%s", text);
		else if (field->form == FLAG)
			*(bool *)at = cJSON_IsTrue(item);
		else if (field->form == REAL)
			*(double *)at = value > 0 ? value : 0;
		else if (field->form == WHOLE && field->bytes == sizeof(int))
			*(int *)at = fabs(value) < 1e9 ? (int)value : 0;
		else if (field->form == WHOLE)
			*(uint64_t *)at = value > 0 ? (uint64_t)value : 0;
	}
}

static bool read_limits(const cJSON *root, struct ferry_limits *limits)
{
	char *to = (char *)limits;
	if (!cJSON_IsArray(cJSON_GetObjectItem(root, "windows")) || !cJSON_IsArray(cJSON_GetObjectItem(root, "gpus")))
		return false;
	read_fields(root, values, to);
	for (size_t i = 0; i < NARRAYS; i++) {
		int *count = (int *)(to + arrays[i].count);
		const cJSON *row;
		cJSON_ArrayForEach(row, cJSON_GetObjectItem(root, arrays[i].name))
		{
			if ((size_t)*count == arrays[i].most)
				break;
			read_fields(row, arrays[i].fields, to + arrays[i].offset + (size_t)(*count)++ * arrays[i].each);
		}
	}
	return true;
}

/* ---- rows of collectives ---- */

void ferry_limits_print_settings(uint64_t settings, char text[20])
{
	snprintf(text, 20, "%016llx", (unsigned long long)settings);
}

void ferry_limits_replace(struct ferry_limits *limits, const struct ferry_limits_collective *rows, int count)
{
	struct ferry_limits_collective *all = limits->collectives;
	int kept = 0, before = limits->ncollectives;
	if (count < 1 || count > FERRY_LIMITS_COLLECTIVES)
		return;
	for (int i = 0; i < before; i++)
		if (all[i].ranks != rows->ranks || strcmp(all[i].settings, rows->settings))
			all[kept++] = all[i];
	int gone = kept + count > FERRY_LIMITS_COLLECTIVES ? kept + count - FERRY_LIMITS_COLLECTIVES : 0;
	memmove(all, all + gone, (size_t)(kept - gone) * sizeof *all);
	memcpy(all + kept - gone, rows, (size_t)count * sizeof *all);
	limits->ncollectives = kept - gone + count;
}

/* ---- the file ---- */

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
		return ferry_fail(ferryInvalidArgument,
		                  "no place for the file of limits: FERRY_LIMITS, XDG_CACHE_HOME and HOME are unset");
	if (length < 0 || (size_t)length >= bytes)
		return ferry_fail(ferryInvalidArgument,
		                  "the file of limits, by %s, has a name of %d bytes: at most %zu",
		                  file    ? "FERRY_LIMITS"
		                  : cache ? "XDG_CACHE_HOME"
		                          : "HOME",
		                  length, bytes - 1);
	return ferrySuccess;
}

ferryResult_t ferry_limits_load(struct ferry_limits *limits, bool *found)
{
	char path[512];
	*limits = (struct ferry_limits){0};
	*found = false;
	const char *named = ferry_env("FERRY_LIMITS");
	ferryResult_t result = ferry_limits_path(path, sizeof path);
	if (result)
		return named ? result : ferrySuccess;
	int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe may have no writer */
	FILE *file = descriptor < 0 ? NULL : fdopen(descriptor, "r");
	if (descriptor >= 0 && !file)
		close(descriptor);
	if (!file && named && errno != ENOENT)
		return ferry_fail(ferryInvalidArgument, "FERRY_LIMITS=%s: %s", named, strerror(errno));
	if (!file)
		return ferrySuccess; /* nothing measured is the usual case */
	char *text = calloc(1, MOST_FILE);
	size_t length = text ? fread(text, 1, MOST_FILE - 1, file) : 0;
	fclose(file);
	cJSON *root = length ? cJSON_Parse(text) : NULL;
	free(text);
	*found = root && read_limits(root, limits);
	cJSON_Delete(root);
	return *found ? ferrySuccess
	              : ferry_fail(ferryInvalidArgument,
	                           "%s is not what `ferry-perf limits` writes; run it again or remove the file", path);
}

/* Returns the slowest GPU's rate; 0 if one is not measured, or reaches no other. */
static double slowest_push(const struct ferry_limits *limits)
{
	double least = limits->ngpus ? limits->gpus[0].push : 0;
	for (int i = 1; i < limits->ngpus; i++)
		least = fmin(least, limits->gpus[i].push);
	return least;
}

/*
 * Returns a GPU's part of the slower direction, with all GPUs at work in both directions, each in its own window: as in
 * an AllToAll through the host. Of the best window, since plans choose that.
 */
static double slowest_host(const struct ferry_limits *limits)
{
	double best = 0;
	for (int i = 0; i < limits->nwindows; i++) {
		const struct ferry_limits_window *window = &limits->windows[i];
		if (window->gpus && window->gpus == limits->ngpus)
			best = fmax(best, fmin(window->both.d2h, window->both.h2d) / window->gpus);
	}
	return best;
}

/* Returns the rate of the slowest pair without NVLinks, in one NUMA node or across two; 0: there is none. */
static double slowest_pcie(const struct ferry_limits *limits, bool across)
{
	double least = 0;
	for (int i = 0; i < limits->nlinks; i++) {
		const struct ferry_limits_link *link = &limits->links[i];
		bool known = link->pcie && link->from >= 0 && link->from < limits->ngpus && link->to >= 0 &&
		             link->to < limits->ngpus;
		if (known && (limits->gpus[link->from].numa_node != limits->gpus[link->to].numa_node) == across)
			least = least > 0 ? fmin(least, link->alone) : link->alone;
	}
	return least;
}

static void find_crossing(const struct ferry_limits *limits, struct ferry_costs *costs)
{
	double port = slowest_pcie(limits, false), across = slowest_pcie(limits, true);
	if (!(port > 0) || !(across > 0) || !(limits->crossing > 0))
		return;
	costs->across = fmin(across / port, 1);
	costs->crossing = fmax(limits->crossing / port, costs->across);
}

ferryResult_t ferry_costs_read(struct ferry_costs *costs)
{
	struct ferry_limits limits;
	bool found;
	*costs = (struct ferry_costs){.issue_ns = TYPICAL_ISSUE_NS, .link = TYPICAL_LINK};
	ferryResult_t result = ferry_limits_load(&limits, &found);
	if (result || !found)
		return result;
	const struct ferry_limits_copy *copy = &limits.copy;
	double fixed = fmax(copy->d2h_overhead_us, copy->h2d_overhead_us), link = fmin(copy->d2h, copy->h2d);
	double issue = (fixed + copy->enqueue_us) * 1000 + HANDOVER_NS;
	/* Without GPUs the file has no such figures. */
	if (fixed > 0 && issue >= 1 && issue <= MOST_ISSUE_NS && link >= 1 && link <= MOST_LINK)
		*costs = (struct ferry_costs){.issue_ns = (uint32_t)issue,
		                              .link = (uint32_t)link,
		                              .measured = true,
		                              .push = slowest_push(&limits),
		                              .host = slowest_host(&limits)};
	find_crossing(&limits, costs);
	costs->astray = limits.astray;
	return ferrySuccess;
}
