/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device over the double of the driver: calls in streams, by one thread or several. Graphs: cuda_graphs.c. */
#include "tests/fake_cuda/places.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 30011

static const int devices[] = {0, 1, 2, 3}, one_device[] = {1, 1, 1};

static void rounds_in(CUstream stream)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 3, devices, 2);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		places[rank].wait_ms = 10 * rank;
		if (!stream || stream == CU_STREAM_PER_THREAD) {
			place_enter(&places[rank]);
			CU(cuStreamDestroy(places[rank].stream));
			places[rank].stream = stream;
		}
	}
	for (int i = 0; i < 5; i++)
		places_round(places, &gang);
	places_settle(places, &gang, 5);
	gang_close(&gang);
	places_close(places, &gang);
}

#define STREAM_OF_ITS_OWN ((CUstream)-1)

static void call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it(void **state)
{
	(void)state;
	rounds_in(STREAM_OF_ITS_OWN);
}

static void the_default_streams_are_streams_too(void **state)
{
	(void)state;
	rounds_in(NULL);
	rounds_in(CU_STREAM_PER_THREAD);
}

struct joiner {
	ferryUniqueId id;
	ferryComm_t comm;
	ferryResult_t result;
	int rank;
	pthread_t thread;
};

static void *join_on_device_one(void *argument)
{
	struct joiner *joiner = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = 1;
	joiner->result = ferryCommInitRankConfig(&joiner->comm, 3, joiner->id, joiner->rank, &config);
	if (joiner->result)
		fprintf(stderr, "rank %d: %s\n", joiner->rank, ferryGetLastError(NULL));
	return NULL;
}

static void ranks_of_three_threads_may_share_a_device(void **state)
{
	(void)state;
	struct joiner joiners[3];
	struct gang gang = {3, one_device, {NULL}};
	struct place places[MOST_PLACES];
	ferryUniqueId id;
	domains_open(1);
	OK(ferryGetUniqueId(&id));
	for (int rank = 0; rank < 3; rank++) {
		joiners[rank] = (struct joiner){.id = id, .rank = rank};
		pthread_create(&joiners[rank].thread, NULL, join_on_device_one, &joiners[rank]);
	}
	for (int rank = 0; rank < 3; rank++) {
		pthread_join(joiners[rank].thread, NULL);
		assert_int_equal(joiners[rank].result, ferrySuccess);
		gang.comms[rank] = joiners[rank].comm;
	}
	places_open(places, &gang, COUNT);
	for (int i = 0; i < 5; i++)
		places_round(places, &gang);
	places_settle(places, &gang, 5);
	gang_close(&gang);
	places_close(places, &gang);
}

/* The second communicator's calls are made first at odd ranks, and none waits for the other. */
static void two_communicators_on_two_streams_at_once(void **state)
{
	(void)state;
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, devices, 1);
		places_open(places[which], &gangs[which], COUNT);
	}
	for (int i = 0; i < 50; i++)
		for (int rank = 0; rank < 2; rank++)
			for (int which = 0; which < 2; which++)
				place_round(&places[(which + rank) % 2][rank], gangs[(which + rank) % 2].comms[rank]);
	for (int which = 0; which < 2; which++) {
		places_settle(places[which], &gangs[which], 50);
		gang_close(&gangs[which]);
		places_close(places[which], &gangs[which]);
	}
}

/* Forgetting the first one's staging waits for the device, where the other's calls are still under way. */
static void a_communicator_is_destroyed_beside_calls_of_another(void **state)
{
	(void)state;
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, devices, 1);
		places_open(places[which], &gangs[which], COUNT);
		places_round(places[which], &gangs[which]);
	}
	for (int which = 0; which < 2; which++)
		places_settle(places[which], &gangs[which], 1);
	for (int rank = 0; rank < 2; rank++)
		places[1][rank].wait_ms = 20 + 20 * rank;
	for (int i = 0; i < 10; i++)
		places_round(places[1], &gangs[1]);
	gang_close(&gangs[0]);
	places_settle(places[1], &gangs[1], 11);
	gang_close(&gangs[1]);
	for (int which = 0; which < 2; which++)
		places_close(places[which], &gangs[which]);
}

#define STREAMS 30

static void thirty_streams_waiting_at_once(void **state)
{
	(void)state;
	static struct place places[STREAMS][MOST_PLACES];
	struct gang gang;
	gang_open(&gang, 2, devices, 2);
	for (int i = 0; i < STREAMS; i++)
		places_open(places[i], &gang, 1000);
	for (int i = 0; i < STREAMS; i++)
		place_round(&places[i][0], gang.comms[0]);
	doze(50); /* rank 0 waits in all of them */
	for (int i = 0; i < STREAMS; i++)
		place_round(&places[i][1], gang.comms[1]);
	for (int i = 0; i < STREAMS; i++)
		places_settle(places[i], &gang, 1);
	gang_close(&gang);
	for (int i = 0; i < STREAMS; i++)
		places_close(places[i], &gang);
}

/* More than a communicator keeps flags for: it passes them on from one to the next. */
static void streams_come_and_go(void **state)
{
	(void)state;
	enum { CALLS = 400 };
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 2, devices, 2);
	places_open(places, &gang, 16);
	for (uint32_t i = 1; i <= CALLS; i++) {
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuStreamDestroy(places[rank].stream));
			CU(cuStreamCreate(&places[rank].stream, CU_STREAM_NON_BLOCKING));
		}
		places_round(places, &gang);
		places_settle(places, &gang, i);
	}
	gang_close(&gang);
	places_close(places, &gang);
}

static _Atomic int held_up;

/*
 * More than the lines that the device allocates at once, all of them behind a kernel that does not end. By kernels as
 * many as a stream takes: the driver lets no thread launch more than some thousand ahead.
 */
static void thousands_of_calls_wait_behind_a_kernel(void **state)
{
	(void)state;
	const int calls = getenv("FERRY_KERNELS") && !strcmp(getenv("FERRY_KERNELS"), "on") ? 250 : 2500;
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, 16);
	atomic_store(&held_up, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(fake_cuda_launch(places[rank].stream, hold, &held_up));
	}
	for (int i = 0; i < calls; i++)
		places_round(places, &gang);
	atomic_store(&held_up, 0);
	places_settle(places, &gang, calls);
	gang_close(&gang);
	places_close(places, &gang);
}

struct caller {
	struct gang *gang;
	struct place *places;
	int rank;
	pthread_t thread;
};

static void *call_from_thread(void *argument)
{
	struct caller *caller = argument;
	for (int i = 0; i < 100; i++)
		place_round(&caller->places[caller->rank], caller->gang->comms[caller->rank]);
	return NULL;
}

/*
 * More workers than this machine may have cores, each with its own part of every slice: those that look, and take the
 * parts of late workers, and those that sleep and must be woken. Two communicators, so that they go from one to the
 * other.
 */
static void workers_share_the_slices_of_copy_engines(void **state)
{
	static const char *const spins[] = {"0", "300"};
	(void)state;
	setenv("FERRY_WORKERS", "5", 1);
	setenv("FERRY_STAGING", "96M", 1);
	for (size_t i = 0; i < sizeof spins / sizeof *spins; i++) {
		struct gang gangs[2];
		struct place places[2][MOST_PLACES];
		setenv("FERRY_SPIN_US", spins[i], 1);
		for (int which = 0; which < 2; which++) {
			gang_open(&gangs[which], 2, devices, 1);
			places_open(places[which], &gangs[which], which ? 700001 : 300000);
		}
		const uint32_t rounds = REPEATS(12, 4);
		for (uint32_t round = 0; round < rounds; round++)
			for (int which = 0; which < 2; which++)
				places_round(places[which], &gangs[which]);
		for (int which = 0; which < 2; which++) {
			places_settle(places[which], &gangs[which], rounds);
			gang_close(&gangs[which]);
			places_close(places[which], &gangs[which]);
		}
	}
	unsetenv("FERRY_WORKERS");
	unsetenv("FERRY_STAGING");
	unsetenv("FERRY_SPIN_US");
}

/*
 * A long call, alone in the staging, and two short ones behind it, which rank 0's streams reach in the other order
 * while rank 1 has them in one stream: the later one, begun at rank 0, does not hold up the one that waits for the long
 * one to be over.
 */
static void short_calls_behind_a_long_one_begin_in_any_order(void **state)
{
	struct gang gang;
	struct place places[3][MOST_PLACES];
	(void)state;
	setenv("FERRY_STAGING", "1M", 1);
	gang_open(&gang, 2, devices, 1);
	for (int which = 0; which < 3; which++)
		places_open(places[which], &gang, which ? 3011 : 120000);
	CUstream own = places[2][1].stream;
	places[2][1].stream = places[1][1].stream;
	places[1][0].wait_ms = 100; /* behind the end of the long call */
	for (int i = 0; i < 3; i++)
		for (int which = 0; which < 3; which++)
			places_round(places[which], &gang);
	for (int which = 0; which < 3; which++)
		places_settle(places[which], &gang, 3);
	places[2][1].stream = own;
	gang_close(&gang);
	for (int which = 0; which < 3; which++)
		places_close(places[which], &gang);
	unsetenv("FERRY_STAGING");
}

static void each_rank_may_be_a_thread(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	struct caller callers[4];
	gang_open(&gang, 4, devices, 2);
	places_open(places, &gang, 2000);
	for (int rank = 0; rank < 4; rank++) {
		callers[rank] = (struct caller){&gang, places, rank, 0};
		pthread_create(&callers[rank].thread, NULL, call_from_thread, &callers[rank]);
	}
	for (int rank = 0; rank < 4; rank++)
		pthread_join(callers[rank].thread, NULL);
	places_settle(places, &gang, 100);
	gang_close(&gang);
	places_close(places, &gang);
}

/* The thread's context and capture mode are its own, and Ferry needs none to be current. */
static void a_calling_thread_finds_its_context_as_it_left_it(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUcontext before, after;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	place_enter(&places[1]);
	CU(cuCtxGetCurrent(&before));
	CU(cuThreadExchangeStreamCaptureMode(&mode));
	for (int rank = 0; rank < 2; rank++)
		place_call(&places[rank], gang.comms[rank]);
	CU(cuCtxGetCurrent(&after));
	CU(cuThreadExchangeStreamCaptureMode(&mode));
	assert_ptr_equal(before, after);
	assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	CU(cuCtxSetCurrent(NULL));
	for (int rank = 0; rank < 2; rank++)
		place_call(&places[rank], gang.comms[rank]);
	CU(cuCtxGetCurrent(&after));
	assert_null(after);
	places_settle(places, &gang, 0);
	gang_close(&gang);
	places_close(places, &gang);
}

struct factor {
	CUdeviceptr at;
	float value;
};

static void write_factor(void *argument)
{
	const struct factor *factor = argument;
	doze(10);
	*(float *)fake_cuda_reach(factor->at) = factor->value;
}

static void ones(void *argument)
{
	const struct place *place = argument;
	float *input = fake_cuda_reach(place->input);
	for (size_t i = 0; i < place->count; i++)
		input[i] = 1;
}

/* Each call reads the factor that a kernel of its stream wrote just before, and a later kernel writes the next. */
static void premulsum_reads_a_device_scalar_when_its_stream_reaches_the_call(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	struct factor factors[2][3];
	ferryRedOp_t ops[2];
	CUdeviceptr scalars[2];
	float results[3];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuMemAlloc(&scalars[rank], 64));
		OK(ferryRedOpCreatePreMulSum(&ops[rank], pointer_of(scalars[rank] + 4), ferryFloat32, ferryScalarDevice,
		                             gang.comms[rank]));
		CU(fake_cuda_launch(places[rank].stream, ones, &places[rank]));
	}
	for (int i = 0; i < 3; i++) {
		for (int rank = 0; rank < 2; rank++) {
			factors[rank][i] = (struct factor){scalars[rank] + 4, (float)((i + 1) * (rank + 2))};
			place_enter(&places[rank]);
			CU(fake_cuda_launch(places[rank].stream, write_factor, &factors[rank][i]));
			OK(ferryAllReduce(pointer_of(places[rank].input), pointer_of(places[rank].output), COUNT,
			                  ferryFloat32, ops[rank], gang.comms[rank],
			                  (ferryStream_t)places[rank].stream));
		}
		places_settle(places, &gang, 0);
		results[i] = ((float *)fake_cuda_reach(places[1].output))[COUNT - 1];
		assert_float_equal(results[i], (i + 1) * 2 + (i + 1) * 3, 0);
	}
	for (int rank = 0; rank < 2; rank++) {
		OK(ferryRedOpDestroy(ops[rank], gang.comms[rank]));
		place_enter(&places[rank]);
		CU(cuMemFree(scalars[rank]));
	}
	gang_close(&gang);
	places_close(places, &gang);
}

/*
 * CUDA has one default stream for all threads, so two communicators that are called in it in another order on each rank
 * wait for each other. The lane that finds the stall writes that to stderr.
 */
static void communicators_in_the_default_stream_in_another_order_are_told_of(void **state)
{
	static const char flags[] = "1 call of other communicators of its process is not over";
	struct gang gangs[2];
	struct place places[MOST_PLACES];
	char path[] = "/tmp/ferry-streams-XXXXXX", said[4096] = "";
	(void)state;
	if (!strcmp(getenv("FERRY_KERNELS"), "on"))
		skip(); /* a kernel waits by itself, and no lane for it */
	int file = mkstemp(path), before = dup(STDERR_FILENO);
	assert_true(file >= 0 && before >= 0);
	unlink(path);
	setenv("FERRY_TIMEOUT", "1", 1);
	dup2(file, STDERR_FILENO);
	for (int i = 0; i < 2; i++)
		gang_open(&gangs[i], 2, devices, 1);
	places_open(places, &gangs[0], 1);
	for (int i = 0; i < 4; i++) {
		struct place *place = &places[i % 2];
		place_enter(place);
		OK(ferryAllReduce(pointer_of(place->input), pointer_of(place->output), 1, ferryUint32, ferrySum,
		                  gangs[(i + i / 2) % 2].comms[i % 2], NULL));
	}
	for (int waited = 0; waited < 60000 && !strstr(said, flags); waited += 10) {
		doze(10);
		if (pread(file, said, sizeof said - 1, 0) < 0)
			break;
	}
	for (int i = 0; i < 2; i++) {
		for (int rank = 0; rank < 2; rank++)
			OK(ferryCommAbort(gangs[i].comms[rank]));
		domains_close();
	}
	dup2(before, STDERR_FILENO);
	close(before);
	close(file);
	unsetenv("FERRY_TIMEOUT");
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(cuStreamSynchronize(NULL));
	}
	places_close(places, &gangs[0]);
	if (!strstr(said, flags))
		fail_msg("not said: \"%s\" but \"%s\"", flags, said);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it,
	                                  no_misuse),
	        cmocka_unit_test_teardown(the_default_streams_are_streams_too, no_misuse),
	        cmocka_unit_test_teardown(ranks_of_three_threads_may_share_a_device, no_misuse),
	        cmocka_unit_test_teardown(two_communicators_on_two_streams_at_once, no_misuse),
	        cmocka_unit_test_teardown(a_communicator_is_destroyed_beside_calls_of_another, no_misuse),
	        cmocka_unit_test_teardown(communicators_in_the_default_stream_in_another_order_are_told_of, no_misuse),
	        cmocka_unit_test_teardown(thirty_streams_waiting_at_once, no_misuse),
	        cmocka_unit_test_teardown(streams_come_and_go, no_misuse),
	        cmocka_unit_test_teardown(thousands_of_calls_wait_behind_a_kernel, no_misuse),
	        cmocka_unit_test_teardown(workers_share_the_slices_of_copy_engines, no_misuse),
	        cmocka_unit_test_teardown(short_calls_behind_a_long_one_begin_in_any_order, no_misuse),
	        cmocka_unit_test_teardown(each_rank_may_be_a_thread, no_misuse),
	        cmocka_unit_test_teardown(a_calling_thread_finds_its_context_as_it_left_it, no_misuse),
	        cmocka_unit_test_teardown(premulsum_reads_a_device_scalar_when_its_stream_reaches_the_call, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
