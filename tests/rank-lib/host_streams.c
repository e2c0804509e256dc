/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of host devices where threads share them, and where a host function waits for its own. */
#include "tests/api_ranks.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>

#define SOON_MS 30000

static bool comes(_Atomic int *flag)
{
	for (int waited = 0; !atomic_load(flag) && waited < SOON_MS; waited++)
		nanosleep(&(struct timespec){0, 1000000}, NULL);
	return atomic_load(flag);
}

/* ---- default streams ---- */

/* A thread with a communicator of its own: it makes one rank's call, lets the other thread do so, then the other's. */
struct caller {
	ferryComm_t comms[2];
	int first;
	pthread_barrier_t *both;
	float input[2], output[2];
	_Atomic int done;
	ferryResult_t result;
	pthread_t thread;
};

static ferryResult_t reduce(struct caller *caller, int rank)
{
	return ferryAllReduce(&caller->input[rank], &caller->output[rank], 1, ferryFloat32, ferrySum,
	                      caller->comms[rank], NULL);
}

static void *call(void *argument)
{
	struct caller *caller = argument;
	caller->result = reduce(caller, caller->first);
	pthread_barrier_wait(caller->both);
	if (!caller->result)
		caller->result = reduce(caller, !caller->first);
	if (!caller->result)
		caller->result = ferryStreamSynchronize(NULL);
	atomic_store(&caller->done, 1);
	return NULL;
}

/* Ranks of one communicator are on the devices of the other: in one order for all threads each waits for the other. */
static void two_threads_call_with_a_communicator_each_on_default_streams(void **state)
{
	struct caller callers[2];
	pthread_barrier_t both;
	(void)state;
	hosted_routers(1);
	for (int round = 0; round < 4; round++) {
		pthread_barrier_init(&both, NULL, 2);
		for (int i = 0; i < 2; i++) {
			callers[i] = (struct caller){.first = i, .both = &both, .input = {1, 2}};
			OK(ferryCommInitAll(callers[i].comms, 2, NULL));
		}
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&callers[i].thread, NULL, call, &callers[i]), 0);
		for (int i = 0; i < 2; i++) {
			assert_true(comes(&callers[i].done));
			pthread_join(callers[i].thread, NULL);
			assert_int_equal(callers[i].result, ferrySuccess);
			for (int rank = 0; rank < 2; rank++) {
				assert_true(callers[i].output[rank] == 3);
				OK(ferryCommDestroy(callers[i].comms[rank]));
			}
		}
		pthread_barrier_destroy(&both);
	}
}

static void *call_and_end(void *argument)
{
	struct caller *caller = argument;
	for (int i = 0; i < 3 && !caller->result; i++)
		caller->result = reduce(caller, caller->first);
	return NULL;
}

/* Three calls are in its default stream, of which the first has begun. */
static void calls_of_a_thread_that_has_ended_go_on(void **state)
{
	struct caller callers[2];
	ferryComm_t comms[2];
	(void)state;
	OK(ferryCommInitAll(comms, 2, NULL));
	for (int i = 0; i < 2; i++) {
		callers[i] = (struct caller){.first = i, .input = {1, 2}, .comms = {comms[0], comms[1]}};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, call_and_end, &callers[i]), 0);
		pthread_join(callers[i].thread, NULL);
		assert_int_equal(callers[i].result, ferrySuccess);
	}
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommFinalize(comms[rank]));
	for (int rank = 0; rank < 2; rank++) {
		assert_true(callers[rank].output[rank] == 3);
		OK(ferryCommDestroy(comms[rank]));
	}
}

/* ---- host functions ---- */

struct inside {
	ferryStream_t stream, other;
	ferryEvent_t event;
	_Atomic int recorded, done;
	ferryResult_t results[5];
	char messages[5][160];
};

static void note(struct inside *inside, int which, ferryResult_t result)
{
	inside->results[which] = result;
	snprintf(inside->messages[which], sizeof inside->messages[which], "%s", ferryGetLastError(NULL));
}

static void wait_inside(void *argument)
{
	struct inside *inside = argument;
	note(inside, 0, ferryStreamSynchronize(inside->stream));
	note(inside, 1, ferryStreamDestroy(inside->stream));
	comes(&inside->recorded);
	note(inside, 2, ferryEventSynchronize(inside->event));
	note(inside, 3, ferryStreamSynchronize(inside->other));
	note(inside, 4, ferryStreamSynchronize(NULL));
	atomic_store(&inside->done, 1);
}

static void host_functions_are_refused_what_waits_for_themselves(void **state)
{
	struct inside inside = {.recorded = 0};
	(void)state;
	OK(ferryStreamCreate(&inside.stream, 0));
	OK(ferryStreamCreate(&inside.other, 0));
	OK(ferryEventCreate(&inside.event));
	OK(ferryLaunchHostFunc(inside.stream, wait_inside, &inside));
	OK(ferryEventRecord(inside.event, inside.stream));
	atomic_store(&inside.recorded, 1);
	assert_true(comes(&inside.done));
	for (int i = 0; i < 3; i++)
		if (inside.results[i] != ferryInvalidUsage ||
		    !strstr(inside.messages[i], "inside a host function of the same stream"))
			fail_msg("%d: %s: \"%s\"", i, ferryGetErrorString(inside.results[i]), inside.messages[i]);
	assert_int_equal(inside.results[3], ferrySuccess);
	assert_int_equal(inside.results[4], ferrySuccess);
	OK(ferryStreamSynchronize(inside.stream));
	OK(ferryEventSynchronize(inside.event));
	OK(ferryEventDestroy(inside.event));
	OK(ferryStreamDestroy(inside.stream));
	OK(ferryStreamDestroy(inside.other));
}

/* ---- calls far ahead ---- */

static _Atomic int released;

static void wait_for_release(void *nothing)
{
	(void)nothing;
	while (!atomic_load(&released))
		nanosleep(&(struct timespec){0, 1000000}, NULL);
}

struct synchronizer {
	ferryStream_t stream;
	_Atomic int done;
};

static void *synchronize(void *argument)
{
	struct synchronizer *synchronizer = argument;
	if (!ferryStreamSynchronize(synchronizer->stream))
		atomic_store(&synchronizer->done, 1);
	return NULL;
}

/* Calls take turns on two streams, of which one is held: those of the other are in the other parity, and go on. */
static void calls_of_a_stream_go_on_beside_one_that_is_held(void **state)
{
	static float data[2][8];
	ferryStream_t streams[2][2];
	ferryComm_t comms[2];
	pthread_t thread;
	(void)state;
	hosted_routers(1);
	assert_int_equal(ferryCommInitAll(comms, 2, NULL), ferrySuccess);
	for (int rank = 0; rank < 2; rank++)
		for (int i = 0; i < 2; i++)
			assert_int_equal(ferryStreamCreate(&streams[rank][i], rank), ferrySuccess);
	atomic_store(&released, 0);
	assert_int_equal(ferryLaunchHostFunc(streams[1][0], wait_for_release, NULL), ferrySuccess);
	for (int call = 0; call < 8; call++)
		for (int rank = 0; rank < 2; rank++)
			assert_int_equal(ferryAllReduce(&data[rank][call], &data[rank][call], 1, ferryFloat32, ferrySum,
			                                comms[rank], streams[rank][call % 2]),
			                 ferrySuccess);
	struct synchronizer other = {.stream = streams[1][1]};
	assert_int_equal(pthread_create(&thread, NULL, synchronize, &other), 0);
	bool came = comes(&other.done);
	atomic_store(&released, 1);
	pthread_join(thread, NULL);
	for (int rank = 0; rank < 2; rank++)
		for (int i = 0; i < 2; i++) {
			assert_int_equal(ferryStreamSynchronize(streams[rank][i]), ferrySuccess);
			assert_int_equal(ferryStreamDestroy(streams[rank][i]), ferrySuccess);
		}
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(ferryCommDestroy(comms[rank]), ferrySuccess);
	assert_true(came);
}

/* Memory that the caller frees after the error must not be written later. */
static void work_that_no_thread_can_do_is_refused_and_not_done(void **state)
{
	pthread_attr_t usual, endless;
	ferryStream_t stream;
	ferryEvent_t event;
	int to = 1, from = 2;
	(void)state;
	assert_int_equal(ferryStreamCreate(&stream, 0), ferrySuccess);
	assert_int_equal(ferryEventCreate(&event), ferrySuccess);
	assert_int_equal(pthread_getattr_default_np(&usual), 0);
	assert_int_equal(pthread_attr_init(&endless), 0);
	assert_int_equal(pthread_attr_setstacksize(&endless, (size_t)1 << 47), 0); /* more than there are addresses */
	assert_int_equal(pthread_setattr_default_np(&endless), 0);
	ferryResult_t copy = ferryMemcpyAsync(&to, &from, sizeof to, stream), record = ferryEventRecord(event, stream);
	assert_int_equal(pthread_setattr_default_np(&usual), 0);
	assert_int_equal(copy, ferrySystemError);
	assert_int_equal(record, ferrySystemError);
	assert_int_equal(ferryEventSynchronize(event), ferrySuccess); /* never recorded */
	assert_int_equal(ferryStreamSynchronize(stream), ferrySuccess);
	assert_int_equal(to, 1);
	assert_int_equal(ferryMemcpyAsync(&to, &from, sizeof to, stream), ferrySuccess);
	assert_int_equal(ferryStreamSynchronize(stream), ferrySuccess);
	assert_int_equal(to, 2);
	assert_int_equal(ferryEventDestroy(event), ferrySuccess);
	assert_int_equal(ferryStreamDestroy(stream), ferrySuccess);
	pthread_attr_destroy(&usual);
	pthread_attr_destroy(&endless);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(calls_of_a_stream_go_on_beside_one_that_is_held),
	        cmocka_unit_test(host_functions_are_refused_what_waits_for_themselves),
	        cmocka_unit_test(two_threads_call_with_a_communicator_each_on_default_streams),
	        cmocka_unit_test(work_that_no_thread_can_do_is_refused_and_not_done),
	        cmocka_unit_test(calls_of_a_thread_that_has_ended_go_on),
	};
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_STAGING", "1M", 1);
	hosted_routers(0);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
