/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound that ferry-perf prints beside a rate (bench/limits/bound.h), from a file of limits with MADE-UP round
 * figures, so that each bound can be worked out by hand.
 */
#include "bench/limits/bound.h"
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

#define GIB (1ull << 30)

/* Four GPUs, made up. The cache carries 200 both ways, 160 up, 180 down where D2H has just written; a link
 * 50, 80 both ways, but the last one less. */
static const char made_up[] =
        "{\"gpus\": [{\"d2h\": 50, \"h2d\": 50, \"both\": {\"d2h\": 40, \"h2d\": 40}},"
        " {\"d2h\": 50, \"h2d\": 50, \"both\": {\"d2h\": 40, \"h2d\": 40}},"
        " {\"d2h\": 50, \"h2d\": 50, \"both\": {\"d2h\": 40, \"h2d\": 40}},"
        " {\"d2h\": 40, \"h2d\": 40, \"both\": {\"d2h\": 30, \"h2d\": 30}}],"
        "\"windows\": ["
        "{\"gpus\": 2, \"bytes\": 2097152, \"d2h\": 90, \"h2d\": 80, "
        " \"both\": {\"d2h\": 75, \"h2d\": 75}, \"gather\": {\"d2h\": 50, \"h2d\": 90}},"
        "{\"gpus\": 4, \"bytes\": 2097152, \"d2h\": 150, \"h2d\": 140, "
        " \"both\": {\"d2h\": 110, \"h2d\": 90}, \"gather\": {\"d2h\": 20, \"h2d\": 180}},"
        "{\"gpus\": 4, \"bytes\": 4194304, \"d2h\": 160, \"h2d\": 120, "
        " \"both\": {\"d2h\": 100, \"h2d\": 100}, \"gather\": {\"d2h\": 20, \"h2d\": 170}}],"
        "\"copy\": {\"d2h_overhead_us\": 3, \"h2d_overhead_us\": 2}, \"flags\": {\"round_trip_us\": 5}}";

static char path[64];

static void write_limits(const char *text)
{
	FILE *file = fopen(path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	bound_forget();
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
	bound_forget();
	unlink(path);
	return 0;
}

/* At 64 GiB the fixed 10 us no longer count. */
static void assert_bound(enum ferry_collective collective, int nranks, double expected)
{
	double bound = bound_algbw(collective, nranks, 64 * GIB);
	if (bound < expected * 0.999 || bound > expected * 1.001)
		fail_msg("%s of %d ranks: bound %.3f, by hand %.3f", ferry_collective_name(collective), nranks, bound,
		         expected);
}

static void large_messages_are_bound_by_the_scarcest_resource(void **state)
{
	(void)state;
	write_limits(made_up);
	assert_bound(FERRY_ALLREDUCE, 4, 25);           /* 8 S over 200 both ways */
	assert_bound(FERRY_ALLGATHER, 4, 50);           /* 4 S over 200 both ways; 3 S over 180 down would be 60 */
}

static void rooted_collectives_are_bound_by_one_link(void **state)
{
	(void)state;
	write_limits(made_up);
	assert_bound(FERRY_GATHER, 4, 50 / 0.75); /* 3/4 S into the root, whose link may be the fastest */
	assert_bound(FERRY_SCATTER, 4, 50 / 0.75);
	/* 4 S over 160 up, 5 S over 200 both ways, 2 S over 80 on a link: all 40. */
	assert_bound(FERRY_REDUCE_TO_ROOT, 4, 40);
}

static void fewer_ranks_use_the_figures_of_fewer_gpus(void **state)
{
	(void)state;
	write_limits(made_up);
	assert_bound(FERRY_ALLREDUCE, 2, 37.5);     /* 4 S over 150 both ways; 2 S over 80 on a link would be 40 */
	assert_bound(FERRY_ALLREDUCE, 3, 200. / 6); /* not measured: those of four, and 2 S over 80 is no closer */
}

static void small_messages_are_bound_by_the_flags_and_one_copy_each_way(void **state)
{
	(void)state;
	write_limits(made_up);
	double expected = 1e6 / (8e6 / 200 + 10e3); /* bytes per ns: 40 us of flow and 10 us fixed */
	double bound = bound_algbw(FERRY_ALLREDUCE, 4, 1000000);
	assert_true(bound > expected * 0.999 && bound < expected * 1.001);
}

static void what_is_not_known_has_no_bound(void **state)
{
	(void)state;
	write_limits(made_up);
	assert_true(bound_algbw(FERRY_ALLREDUCE, 5, GIB) == 0);
	assert_true(bound_algbw(FERRY_ALLREDUCE, 1, GIB) == 0);
	assert_true(bound_algbw(FERRY_ALLTOALLV, 4, GIB) == 0);
	assert_true(bound_algbw(FERRY_ALLREDUCE, 4, 0) == 0);
}

static void a_missing_or_broken_file_has_no_bound(void **state)
{
	static const char *const broken[] = {
	        "",
	        "{",
	        "[]",
	        "{\"gpus\": 1, \"windows\": 2}",
	        "{\"gpus\": [], \"windows\": []}",
	        "{\"gpus\": [3], \"windows\": [{\"gpus\": 4}, null, {\"gpus\": 4, \"d2h\": \"x\"}]}"};
	(void)state;
	unlink(path);
	bound_forget();
	assert_true(bound_algbw(FERRY_ALLREDUCE, 4, GIB) == 0);
	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
		write_limits(broken[i]);
		assert_true(bound_algbw(FERRY_ALLREDUCE, 4, GIB) == 0);
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
	        .flags = {5, 0.5},
	        .ndomains = 1,
	        .ngpus = 2,
	        .nwindows = 2,
	        .nsizes = 1,
	        .nlinks = 2,
	        .npasses = 2,
	        .ncollectives = 1,
	        .domains = {{4, -1, 1 << 20, 1ull << 33}},
	        .gpus = {{"one", "0000:1B:00.0", -1, {50, 51}, {40, 41}, 380},
	                 {"two", "", 1, {52, 53}, {42, 43}, 0}},
	        .windows = {{.gpus = 1, .bytes = 1 << 21, .alone = {1, 2}, .both = {3, 4}},
	                    {.gpus = 2, .gather = {0, 6}}},
	        .sizes = {{65536, 2, 1.5, 1.75}},
	        .links = {{0, 1, 390, 370, 1.25}, {1, 0, 391, 0, 0}},
	        .no_links = "none",
	        .passes = {{"memcpy", "", 1, true, 1 << 20, 7}, {"sum", "stream", 4, false, 2, 8}},
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
		cmocka_unit_test(large_messages_are_bound_by_the_scarcest_resource),
		cmocka_unit_test(rooted_collectives_are_bound_by_one_link),
		cmocka_unit_test(fewer_ranks_use_the_figures_of_fewer_gpus),
		cmocka_unit_test(small_messages_are_bound_by_the_flags_and_one_copy_each_way),
		cmocka_unit_test(what_is_not_known_has_no_bound),
		cmocka_unit_test(a_missing_or_broken_file_has_no_bound),
		cmocka_unit_test(what_is_written_is_what_is_read),
		cmocka_unit_test(rows_beyond_what_there_is_room_for_are_left_out),
	};
	return cmocka_run_group_tests_name("limits_bound", tests, name_file, remove_file);
}
