/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The promise of every collective, type and operation, with all ranks and the routers in this process:
 * bench/trial/trial.h says what is right and states the bound for floats. Guard bytes, buffers at any
 * address and untouched inputs are checked with it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/trial/element.h"
#include "tests/hosted.h"
#include "tests/sanitized.h"
#include "tests/trial_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE 4096

struct setting {
	int nranks, domains;
	const char *slice, *window; /* NULL: chosen by Ferry */
	/* of the counts in and out of place, what a type and an operation have: one, three, or all */
	enum { ONE, SOME, ALL } counts;
};

static void set_or_clear(const char *name, const char *value)
{
	if (value)
		setenv(name, value, 1);
	else
		unsetenv(name);
}

static void open_comms(const struct setting *setting, ferryComm_t *comms)
{
	hosted_routers(setting->domains);
	set_or_clear("FERRY_SLICE", setting->slice);
	set_or_clear("FERRY_SHORT", setting->slice ? "0" : NULL); /* short calls have no slices */
	set_or_clear("FERRY_WINDOW", setting->window);
	if (ferryCommInitAll(comms, setting->nranks, NULL))
		fail_msg("%d ranks, %d domains: %s", setting->nranks, setting->domains, ferryGetLastError(NULL));
}

static void close_comms(const struct setting *setting, ferryComm_t *comms)
{
	for (int rank = 0; rank < setting->nranks; rank++)
		assert_int_equal(ferryCommDestroy(comms[rank]), ferrySuccess);
}

/* None, one, an odd number, a count that no number of ranks divides, and one element to each side of whole slices. */
static size_t count_of(const struct setting *setting, const struct ferry_trial *trial, int which)
{
	size_t most = setting->slice && atoi(setting->slice) > SLICE ? (size_t)atoi(setting->slice) : SLICE;
	size_t slice = most / ferry_type_size(trial->type);
	const size_t counts[] = {0, 1, 7, 1009, slice - 1, slice, slice + 1, 3 * slice * (size_t)trial->nranks + 5};
	return counts[which];
}

#define COUNTS 8

/* Numbers are for the plain build, and all of them for `make soak`. */
static int most_counts(void)
{
	return SANITIZED ? ONE : getenv("FERRY_TEST_TIMES") ? ALL : SOME;
}

/* The steps are prime to the loops, so every value gets its turn. */
static bool has_its_turn(int counts, unsigned now)
{
	return counts == ALL || now % (counts == SOME ? 5 : COUNTS * 2 - 3) == 0;
}

static unsigned run_kind(const struct setting *setting, ferryComm_t *comms, struct ferry_trial *trial, unsigned *turn)
{
	unsigned failures = 0;
	int places = ferry_trial_can_be_in_place(trial->collective) ? 2 : 1;
	for (int which = 0; which < COUNTS; which++)
		for (int place = 0; place < places; place++) {
			unsigned now = (*turn)++;
			if (!has_its_turn(setting->counts, now))
				continue;
			trial->count = count_of(setting, trial, which);
			trial->in_place = place;
			trial->seed = now;
			trial->root = (int)(now % (unsigned)trial->nranks);
			failures += !trial_run(trial, comms, NULL, now % 4);
		}
	return failures;
}

static void run_matrix(const struct setting *setting)
{
	ferryComm_t comms[FERRY_MAX_RANKS];
	unsigned failures = 0, turn = 0;
	open_comms(setting, comms);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES && failures < 10; collective++)
		for (int type = 0; type < ferryNumTypes && failures < 10; type++)
			for (int op = 0; op <= ferryNumOps && failures < 10; op++) {
				struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
				                            .type = (ferryDataType_t)type,
				                            .op = (ferryRedOp_t)op,
				                            .nranks = setting->nranks,
				                            .ndomains = (unsigned)setting->domains,
				                            .exact = setting->domains == 1};
				if (op && !ferry_collective_reduces(trial.collective))
					break;
				failures += run_kind(setting, comms, &trial, &turn);
			}
	close_comms(setting, comms);
	assert_int_equal(failures, 0);
}

static void every_call_is_right_in_one_domain_and_bits_are_those_of_rank_order(void **state)
{
	(void)state;
	run_matrix(&(struct setting){.nranks = 3, .domains = 1, .counts = most_counts()});
}

static void every_call_is_right_over_two_domains(void **state)
{
	(void)state;
	run_matrix(&(struct setting){.nranks = 4, .domains = 2, .counts = most_counts()});
}

static void every_call_is_right_in_many_slices(void **state)
{
	(void)state;
	run_matrix(&(struct setting){.nranks = 2, .domains = 1, .slice = "4096"});
	run_matrix(&(struct setting){.nranks = 3, .domains = 2, .slice = "4096"});
	run_matrix(&(struct setting){.nranks = 5, .domains = 3, .slice = "192"});
}

static void every_call_is_right_with_one_slot_windows(void **state)
{
	(void)state;
	run_matrix(&(struct setting){.nranks = 4, .domains = 1, .slice = "4096", .window = "1"});
	run_matrix(&(struct setting){.nranks = 5, .domains = 2, .slice = "1024", .window = "1"});
}

/* No number of parts divides these slices, nor last slices of a few elements, into whole cache lines. */
static void every_call_is_right_in_slices_that_many_workers_share(void **state)
{
	(void)state;
	const char *workers = getenv("FERRY_WORKERS");
	hosted_end();
	setenv("FERRY_WORKERS", "16", 1);
	run_matrix(&(struct setting){.nranks = 3, .domains = 1, .slice = "98368", .window = "2"});
	run_matrix(&(struct setting){.nranks = 2, .domains = 2, .slice = "163904", .window = "1"});
	hosted_end();
	set_or_clear("FERRY_WORKERS", workers);
}

static void every_call_is_right_on_any_number_of_ranks_and_domains(void **state)
{
	(void)state;
	static const int domains[9] = {0, 1, 2, 3, 1, 4, 2, 8, 3};
	for (int nranks = 1; nranks <= 8; nranks += REPEATS(1, 4))
		run_matrix(&(struct setting){.nranks = nranks, .domains = domains[nranks]});
	run_matrix(&(struct setting){.nranks = 2, .domains = 8}); /* domains without ranks */
}

static void large_buffers_are_right(void **state)
{
	(void)state;
	const struct setting setting = {.nranks = 3, .domains = 2};
	ferryComm_t comms[FERRY_MAX_RANKS];
	bool fine = true;
	open_comms(&setting, comms);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (int in_place = 0; in_place <= ferry_trial_can_be_in_place((enum ferry_collective)collective);
		     in_place++) {
			struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
			                            .type = collective % 2 ? ferryBfloat16 : ferryFloat32,
			                            .op = ferrySum,
			                            .nranks = 3,
			                            .ndomains = 2,
			                            .count = (1 << 20) + 3,
			                            .in_place = in_place,
			                            .root = 2,
			                            .seed = 5};
			fine = trial_run(&trial, comms, NULL, 1) && fine;
		}
	close_comms(&setting, comms);
	assert_true(fine);
}

/* A sum of two of them is infinite, or too large for an 8-bit float. Quarters add up without rounding. */
static void averages_of_large_values_do_not_overflow(void **state)
{
	(void)state;
	static const ferryDataType_t types[] = {ferryFloat16,   ferryFloat32,    ferryFloat64,
	                                        ferryBfloat16, ferryFloat8e4m3, ferryFloat8e5m2};
	static const double large[] = {40000, 0x1.8p127, 0x1.8p1023, 0x1.8p127, 256, 49152};
	enum { COUNT = 4096 };
	static char send[4][COUNT * 8], receive[4][COUNT * 8];
	for (int domains = 1; domains <= 4; domains++) {
		const struct setting setting = {.nranks = 4, .domains = domains, .slice = "4096"};
		ferryComm_t comms[FERRY_MAX_RANKS];
		open_comms(&setting, comms);
		for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
			for (size_t i = 0; i < COUNT; i++)
				for (int rank = 0; rank < 4; rank++)
					ferry_element_set_float(types[t], send[rank], i, large[t]);
			for (int scatters = 0; scatters < 2; scatters++) {
				for (int rank = 0; rank < 4; rank++)
					assert_int_equal(
						scatters ? ferryReduceScatter(send[rank], receive[rank], COUNT / 4,
					                                      types[t], ferryAvg, comms[rank], NULL)
							 : ferryAllReduce(send[rank], receive[rank], COUNT, types[t],
					                                  ferryAvg, comms[rank], NULL),
						ferrySuccess);
				assert_int_equal(ferryStreamSynchronize(NULL), ferrySuccess);
				for (int rank = 0; rank < 4; rank++)
					assert_memory_equal(receive[rank], send[rank],
					                    (scatters ? COUNT / 4 : COUNT) * ferry_type_size(types[t]));
			}
		}
		close_comms(&setting, comms);
	}
}

static void a_result_has_the_same_bits_in_every_run_and_order_of_arrival(void **state)
{
	(void)state;
	const struct setting setting = {.nranks = 5, .domains = 2, .slice = "1024"};
	enum { COUNT = 5003, RUNS = 25 };
	static float send[5][COUNT], receive[5][COUNT], first[COUNT];
	ferryComm_t comms[FERRY_MAX_RANKS];
	uint64_t random = 12345;
	open_comms(&setting, comms);
	for (int rank = 0; rank < 5; rank++)
		for (int i = 0; i < COUNT; i++)
			send[rank][i] = (float)(int64_t)trial_random(&random) * 0x1p-61f;
	for (int run = 0; run < RUNS; run++) {
		for (int i = 0; i < 5; i++) {
			int rank = (i * (1 + run % 4) + run) % 5;
			assert_int_equal(ferryAllReduce(send[rank], receive[rank], COUNT, ferryFloat32, ferrySum,
			                                comms[rank], NULL),
			                 ferrySuccess);
		}
		assert_int_equal(ferryStreamSynchronize(NULL), ferrySuccess);
		if (!run)
			memcpy(first, receive[0], sizeof first);
		for (int rank = 0; rank < 5; rank++)
			assert_memory_equal(receive[rank], first, sizeof first);
	}
	close_comms(&setting, comms);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_call_is_right_in_one_domain_and_bits_are_those_of_rank_order),
	        cmocka_unit_test(every_call_is_right_over_two_domains),
	        cmocka_unit_test(every_call_is_right_in_many_slices),
	        cmocka_unit_test(every_call_is_right_with_one_slot_windows),
	        cmocka_unit_test(every_call_is_right_in_slices_that_many_workers_share),
	        cmocka_unit_test(every_call_is_right_on_any_number_of_ranks_and_domains),
	        cmocka_unit_test(large_buffers_are_right),
	        cmocka_unit_test(averages_of_large_values_do_not_overflow),
	        cmocka_unit_test(a_result_has_the_same_bits_in_every_run_and_order_of_arrival),
	};
	hosted_routers(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
