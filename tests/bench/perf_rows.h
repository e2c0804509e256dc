/* SPDX-License-Identifier: Apache-2.0 */
/** The rows that a run of ferry-perf has written as JSON into a file of the suite's; for suites of cmocka. */
#ifndef FERRY_TESTS_BENCH_PERF_ROWS_H
#define FERRY_TESTS_BENCH_PERF_ROWS_H

#include "tests/bench/perf_run.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

static char json_file[64];

/* What is in the file now, which is JSON; NULL if there is no file. */
static inline cJSON *read_json(void)
{
	static char text[1 << 18];
	FILE *file = fopen(json_file, "r");
	if (!file)
		return NULL;
	text[fread(text, 1, sizeof text - 1, file)] = '\0';
	fclose(file);
	cJSON *whole = cJSON_Parse(text);
	if (!whole)
		fail_msg("no JSON: \"%s\"", text);
	return whole;
}

/* Runs with --json and returns the rows. */
static inline cJSON *rows_of(const char *arguments)
{
	static char output[65536];
	char all[512];
	snprintf(all, sizeof all, "%s --json %s", arguments, json_file);
	int code = run(all, output, sizeof output);
	if (code)
		fail_msg("ferry-perf %s ended with %d:\n%s", all, code, output);
	cJSON *whole = read_json(), *about = cJSON_GetObjectItemCaseSensitive(whole, "about");
	assert_true(cJSON_IsObject(about) && cJSON_IsString(cJSON_GetObjectItemCaseSensitive(about, "date")));
	assert_true(cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(about, "complete")));
	cJSON *rows = cJSON_DetachItemFromObjectCaseSensitive(whole, "rows");
	assert_true(cJSON_IsArray(rows));
	cJSON_Delete(whole);
	return rows;
}

static inline double number(const cJSON *row, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
	if (!cJSON_IsNumber(item))
		fail_msg("a row has no number \"%s\"", name);
	return item->valuedouble;
}

static inline const char *string(const cJSON *row, const char *name)
{
	const cJSON *item = cJSON_GetObjectItemCaseSensitive(row, name);
	if (!cJSON_IsString(item))
		fail_msg("a row has no text \"%s\"", name);
	return item->valuestring;
}

static inline int name_file(void **state)
{
	(void)state;
	setenv("FERRY_DEVICE", "host", 0); /* with a GPU in the machine too, unless the caller wants it measured */
	snprintf(json_file, sizeof json_file, "/tmp/ferry-perf-test-%d.json", (int)getpid());
	return 0;
}

static inline int remove_file(void **state)
{
	(void)state;
	return unlink(json_file);
}

#endif
