/* SPDX-License-Identifier: Apache-2.0 */
/* Clocks, over the double of the driver: what they ask of it ends no capture, of their thread's or of another's. */
#include "orchestrator/clock.h"
#include "tests/fake_cuda/promises.h"

#include <pthread.h>
#include <stdlib.h>

static CUcontext context;

static int use_device(void **state)
{
	(void)state;
	return cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context);
}

/* Starts one, reads it when its stream has passed, and gives it up. (In a capture that it has ended: never.) */
static void time_a_stream(CUstream stream)
{
	struct ferry_clock clock = {NULL, NULL, NULL};
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
	struct ferry_clock clock = {NULL, NULL, NULL};
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

int main(void)
{
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(a_capture_of_the_thread_goes_on, use_device),
	        cmocka_unit_test_setup(a_global_capture_goes_on, use_device),
	        cmocka_unit_test_setup(a_clock_follows_its_streams_context, use_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
