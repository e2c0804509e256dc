/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the file of limits. Figures are made up. */
#include "rank-lib/program/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

#define REFUSED 4 /* of the broken files; of the others what has no sense is 0 */

static char path[64];

static void write_limits(const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

static int name_file(void **state)
{
	(void)state;
	snprintf(path, sizeof path, "/tmp/ferry-limits-test.%d", (int)getpid());
	return setenv("FERRY_LIMITS", path, 1);
}

static int remove_file(void **state)
{
	(void)state;
	unlink(path);
	return 0;
}

static void a_missing_file_is_none_and_a_broken_one_harms_nobody(void **state)
{
	static const char *const broken[] = {
	        "",
	        "{",
	        "[]",
	        "{\"gpus\": 1, \"windows\": 2}",
	        "{\"gpus\": [], \"windows\": []}",
	        "{\"gpus\": [3], \"windows\": [{\"gpus\": 4}, null, {\"gpus\": 4, \"d2h\": \"x\"}]}"};
	struct ferry_limits read;
	bool found;
	(void)state;
	unlink(path);
	assert_int_equal(ferry_limits_load(&read, &found), ferrySuccess);
	assert_false(found);
	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
		write_limits(broken[i]);
		ferryResult_t result = ferry_limits_load(&read, &found);
		assert_int_equal(result, i < REFUSED ? ferryInvalidArgument : ferrySuccess);
		assert_int_equal(found, i >= REFUSED);
	}
}

static void what_is_written_is_what_is_read(void **state)
{
	static struct ferry_limits written = {
	        .command = "ferry-perf limits",
	        .cpu = "made up",
	        .quick = true,
	        .seconds = 1.25,
	        .cores = 4,
	        .cuda_driver = 13000,
	        .copy = {0, 2.5, 50, 49.75, 1},
	        .ngpus = 2,
	        .nwindows = 2,
	        .nlinks = 2,
	        .ncollectives = 1,
	        .gpus = {{"one", "0000:1B:00.0", -1, {50, 51}, {40, 41}, 380},
	                 {"two", "", 1, {52, 53}, {42, 43}, 0}},
	        .windows = {{.gpus = 1, .bytes = 1 << 21, .alone = {1, 2}, .both = {3, 4}},
	                    {.gpus = 2, .copy_bytes = 6}},
	        .links = {{0, 1, 390, 370, 1.25, false}, {1, 0, 391, 0, 0, true}},
	        .crossing = 20.5,
	        .no_links = "none",
	        .astray = true,
	        .collectives = {{"00ab34cd56ef7890", 2, "allreduce", 1 << 20, 40.5, 0, 60.25}}};
	struct ferry_limits read;
	bool found;
	(void)state;
	cJSON *json = ferry_limits_json(&written);
	char *text = cJSON_Print(json);
	write_limits(text);
	free(text);
	cJSON_Delete(json);
	assert_int_equal(ferry_limits_load(&read, &found), ferrySuccess);
	assert_true(found);
	assert_memory_equal(&read, &written, sizeof read);
}

static void rows_beyond_what_there_is_room_for_are_left_out(void **state)
{
	char text[4096] = "{\"windows\": [], \"gpus\": [";
	struct ferry_limits read;
	bool found;
	(void)state;
	for (int i = 0; i <= FERRY_LIMITS_GPUS; i++)
		sprintf(text + strlen(text), "%s{\"d2h\": %d}", i ? ", " : "", i + 1);
	write_limits(strcat(text, "]}"));
	assert_int_equal(ferry_limits_load(&read, &found), ferrySuccess);
	assert_int_equal(read.ngpus, FERRY_LIMITS_GPUS);
	assert_true(read.gpus[FERRY_LIMITS_GPUS - 1].alone.d2h == FERRY_LIMITS_GPUS);
	assert_int_equal(read.nwindows, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_missing_file_is_none_and_a_broken_one_harms_nobody),
		cmocka_unit_test(what_is_written_is_what_is_read),
		cmocka_unit_test(rows_beyond_what_there_is_room_for_are_left_out),
	};
	return cmocka_run_group_tests_name("limits_file", tests, name_file, remove_file);
}
