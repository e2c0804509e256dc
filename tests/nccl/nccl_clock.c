/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clocks, over the double of the driver: what they ask of it ends no capture, of their thread's or of another's. And
 * what calls cost that are under way at once.
 */
#include "orchestrator/clock.h"
#include "orchestrator/meter.h"
#include "tests/fake_cuda/promises.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static CUcontext context;

static int use_device(void **state)
{
	(void)state;
	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}

/* Starts one, reads it when its stream has passed, and gives it up. (In a capture that it has ended: never.) */
static void time_a_stream(CUstream stream)
{
	struct ferry_clock clock = {.start = NULL};
	double us = -1;
	assert_true(ferry_clock_start(&clock, (cudaStream_t)stream));
	assert_true(ferry_clock_stop(&clock, (cudaStream_t)stream));
	int mode = ferry_clock_relax();
	while (!ferry_clock_read(&clock, &us))
		;
	ferry_clock_restore(mode);
	assert_true(us >= 0);
	ferry_clock_free(&clock);
}

static void *time_elsewhere(void *stream)
{
	if (cuCtxSetCurrent(context))
		abort();
	time_a_stream(stream);
	return NULL;
}

static void no_clock_ends_a_capture(CUstreamCaptureMode mode)
{
	CUstream captured = open_stream(), timed = open_stream();
	pthread_t thread;
	CUgraph graph;
	CU(cuStreamBeginCapture(captured, mode));
	assert_true(ferry_clock_captures((cudaStream_t)captured));
	assert_false(ferry_clock_captures((cudaStream_t)timed));
	time_a_stream(timed);
	assert_int_equal(pthread_create(&thread, NULL, time_elsewhere, timed), 0);
	pthread_join(thread, NULL);
	CU(cuStreamEndCapture(captured, &graph));
	CU(cuGraphDestroy(graph));
	CU(cuStreamDestroy(captured));
	CU(cuStreamDestroy(timed));
}

static void a_capture_of_the_thread_goes_on(void **state)
{
	(void)state;
	no_clock_ends_a_capture(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
}

static void a_global_capture_goes_on(void **state)
{
	(void)state;
	no_clock_ends_a_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
}

/* What was made ahead for streams of one context, where they are of another one. */
static void a_clock_follows_its_streams_context(void **state)
{
	struct ferry_clock clock = {.start = NULL};
	CUcontext other;
	double us = -1;
	(void)state;
	ferry_clock_prepare(&clock);
	assert_ptr_equal(clock.context, context);
	CU(cuDevicePrimaryCtxRetain(&other, 1));
	CU(cuCtxSetCurrent(other));
	CUstream stream = open_stream();
	CU(cuCtxSetCurrent(context));
	assert_true(ferry_clock_start(&clock, (cudaStream_t)stream));
	assert_true(ferry_clock_stop(&clock, (cudaStream_t)stream));
	assert_ptr_equal(clock.context, other);
	while (!ferry_clock_read(&clock, &us))
		;
	assert_true(us >= 0);
	ferry_clock_free(&clock);
	CU(cuStreamDestroy(stream));
	CU(cuDevicePrimaryCtxRelease(1));
}

/* ---- calls in two streams ---- */

struct two_calls {
	struct ferry_sample *samples[2];
	CUstream streams[2];
	uint32_t *words; /* each call ends when its word is 1 */
};

/* Both are under way when it returns. */
static void begin_both(struct ferry_meter *meter, struct two_calls *two, const bool nccls[2])
{
	const struct ferry_shares whole = {.part = {FERRY_SHARES_WHOLE, 0, 0}};
	const uint32_t whole_word = ferry_shares_pack(&whole);
	for (int i = 0; i < 2; i++) {
		const struct ferry_tuner_call call = {i ? FERRY_REDUCESCATTER : FERRY_ALLGATHER, ferryFloat32,
		                                      64u << 20, false, FERRY_FABRIC_HOST};
		uint32_t word = nccls[i] ? FERRY_SHARES_NONE : whole_word;
		struct ferry_sample *sample = two->samples[i] = ferry_meter_begin(meter, &call, word, (uint64_t)i);
		assert_non_null(sample);
		assert_true(ferry_clock_start(&sample->clock, (cudaStream_t)two->streams[i]));
		CU(cuStreamWaitValue32(two->streams[i], (uintptr_t)&two->words[i], 1, 0));
		assert_true(ferry_clock_stop(&sample->clock, (cudaStream_t)two->streams[i]));
		ferry_meter_arm(sample, true);
	}
	for (int i = 0; i < 2; i++)
		CU(cuEventSynchronize((CUevent)two->samples[i]->clock.start));
}

static double end_call(struct two_calls *two, int which)
{
	double us;
	__atomic_store_n(&two->words[which], 1, __ATOMIC_RELEASE);
	CU(cuStreamSynchronize(two->streams[which]));
	assert_true(ferry_clock_read(&two->samples[which]->clock, &us));
	return us;
}

/* What the meter has fed the tuner with, of both calls. */
static void read_costs(FILE *log, double costs[2])
{
	char line[400];
	for (int i = 0; i < 2; i++) {
		assert_non_null(fgets(line, sizeof line, log));
		assert_int_equal(sscanf(strstr(line, "\"us\""), "\"us\":%lf", &costs[i]), 1);
	}
}

static void spin(double us)
{
	for (double from = ferry_clock_now_us(); ferry_clock_now_us() < from + us;)
		;
}

/* The one that ends first ends as long before the other one as it has taken, or longer. */
static void two_calls_cost(const bool nccls[2], int first)
{
	char path[] = "/tmp/ferry-test-XXXXXX";
	static struct ferry_meter meter;
	struct ferry_share_table *table = calloc(1, ferry_share_table_bytes(2));
	struct two_calls two = {.streams = {open_stream(), open_stream()}, .words = open_words()};
	double us[2], gap_us, costs[2];
	int file = mkstemp(path);
	FILE *log = fdopen(file, "r");
	assert_non_null(log);
	setenv("FERRY_SHARES_LOG", path, 1);
	assert_int_equal(ferry_meter_init(&meter), ferrySuccess);
	ferry_meter_open(&meter, table, 2, 0, false, false, false, 50e3);
	begin_both(&meter, &two, nccls);
	spin(500); /* longer than the meter leaves the driver alone */
	us[first] = end_call(&two, first);
	ferry_meter_look(&meter);
	spin(us[first]);
	us[!first] = end_call(&two, !first);
	assert_true(ferry_clock_between(&two.samples[0]->clock, &two.samples[1]->clock, &gap_us));
	ferry_meter_look(&meter);
	read_costs(log, costs);
	double both_us = fmin(us[0], gap_us + us[1]) - fmax(gap_us, 0); /* the gap may be negative */
	bool in_turn = nccls[0] && nccls[1];
	for (int i = 0; i < 2; i++)
		assert_int_equal(two.samples[i]->line->overlap > 0, both_us > us[i] / 16);
	assert_true(fabs(costs[0] - (us[0] - (in_turn ? 0 : both_us / 2))) < 1);
	assert_true(fabs(costs[1] - fmax(us[1] - (in_turn ? both_us : both_us / 2), us[1] / 8)) < 1);
	ferry_meter_free(&meter);
	fclose(log);
	unlink(path);
	unsetenv("FERRY_SHARES_LOG");
	CU(cuMemFreeHost(two.words));
	for (int i = 0; i < 2; i++)
		CU(cuStreamDestroy(two.streams[i]));
	free(table);
}

static void time_that_two_calls_are_under_way_counts_half_to_each(void **state)
{
	(void)state;
	for (int kinds = 0; kinds < 3; kinds++)
		for (int first = 0; first < 2; first++)
			two_calls_cost((bool[]){kinds & 1, kinds >> 1}, first);
}

/* As NCCL runs a communicator's kernels one after the other. */
static void the_later_of_two_calls_of_nccls_costs_what_it_takes_behind_the_other(void **state)
{
	(void)state;
	two_calls_cost((bool[]){true, true}, 0);
}

int main(void)
{
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(a_capture_of_the_thread_goes_on, use_device),
	        cmocka_unit_test_setup(a_global_capture_goes_on, use_device),
	        cmocka_unit_test_setup(a_clock_follows_its_streams_context, use_device),
	        cmocka_unit_test_setup(time_that_two_calls_are_under_way_counts_half_to_each, use_device),
	        cmocka_unit_test_setup(the_later_of_two_calls_of_nccls_costs_what_it_takes_behind_the_other,
	                               use_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
