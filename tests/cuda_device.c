/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device over the double of the driver: streams, buffers, faults. Graphs: cuda_graphs.c. */
#include "tests/fake_cuda/places.h"
#include "tests/trial_run.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 30011
#define GUARD 128 /* of trial_run.c */

static const int devices[] = {0, 1, 2, 3}, one_device[] = {1, 1, 1};

static void *host(CUdeviceptr address)
{
	return (void *)(uintptr_t)address;
}

/* ---- streams ---- */

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
	setenv("FERRY_DOMAINS", "1", 1);
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

static _Atomic int held_up;

static void wait_while_held_up(void *unused)
{
	(void)unused;
	while (atomic_load(&held_up))
		doze(1);
}

static _Atomic int other_held_up;

static void wait_while_other_held_up(void *unused)
{
	(void)unused;
	while (atomic_load(&other_held_up))
		doze(1);
}

/* More than the lines that the device allocates at once, all of them behind a kernel that does not end. */
static void thousands_of_calls_wait_behind_a_kernel(void **state)
{
	(void)state;
	enum { CALLS = 2500 };
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, 16);
	atomic_store(&held_up, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[rank]);
		CU(fake_cuda_launch(places[rank].stream, wait_while_held_up, NULL));
	}
	for (int i = 0; i < CALLS; i++)
		places_round(places, &gang);
	atomic_store(&held_up, 0);
	places_settle(places, &gang, CALLS);
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
 * More workers than this machine may have cores, each with its own part of every slice: those that look, and take the parts of who is
 * late, and those that sleep and must be woken. Two communicators, so that they go from one to the other.
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
		for (int round = 0; round < 12; round++)
			for (int which = 0; which < 2; which++)
				places_round(places[which], &gangs[which]);
		for (int which = 0; which < 2; which++) {
			places_settle(places[which], &gangs[which], 12);
			gang_close(&gangs[which]);
			places_close(places[which], &gangs[which]);
		}
	}
	unsetenv("FERRY_WORKERS");
	unsetenv("FERRY_STAGING");
	unsetenv("FERRY_SPIN_US");
}

/*
 * A long call, alone in the staging, and two short ones behind it, which rank 0's streams reach in the other order while rank 1
 * has them in one stream: the later one, begun at rank 0, holds up nobody who waits for the long one to be over.
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

/* ---- every collective, in device memory ---- */

struct on_device {
	struct trial_buffers buffers;
	CUdeviceptr memory[2];
	size_t bytes[2];
	CUstream stream;
	ferryRedOp_t op;
};

static char *moved(const struct on_device *mine, const char *pointer)
{
	for (int which = 0; which < 2; which++)
		if (pointer >= mine->buffers.memory[which] && pointer <= mine->buffers.memory[which] + mine->bytes[which])
			return (char *)host(mine->memory[which]) + (pointer - mine->buffers.memory[which]);
	return NULL;
}

static void start_trial(struct ferry_trial *trial, int rank, ferryComm_t comm, unsigned offset, struct on_device *mine)
{
	struct trial_buffers *buffers = &mine->buffers;
	assert_true(trial_buffers_open(trial, rank, offset, buffers));
	place_enter(&(struct place){.device = devices[rank]});
	CU(cuStreamCreate(&mine->stream, CU_STREAM_NON_BLOCKING));
	for (int which = 0; which < 2; which++) {
		mine->bytes[which] = (size_t)(buffers->area[which] - buffers->memory[which]) + buffers->bytes[which] + GUARD;
		CU(cuMemAlloc(&mine->memory[which], mine->bytes[which]));
		CU(cuMemcpy(mine->memory[which], (uintptr_t)buffers->memory[which], mine->bytes[which]));
	}
	OK(trial_op(trial, rank, comm, &mine->op));
	OK(ferry_trial_start(trial, rank, moved(mine, buffers->send), moved(mine, buffers->receive), mine->op, comm,
	                     (ferryStream_t)mine->stream));
}

static size_t finish_trial(struct ferry_trial *trial, int rank, ferryComm_t comm, struct on_device *mine)
{
	place_enter(&(struct place){.device = devices[rank]});
	CU(cuStreamSynchronize(mine->stream));
	for (int which = 0; which < 2; which++)
		CU(cuMemcpy((uintptr_t)mine->buffers.memory[which], mine->memory[which], mine->bytes[which]));
	size_t wrong = trial_buffers_wrong(trial, rank, &mine->buffers);
	if (wrong)
		fprintf(stderr, "%s: rank %d: %zu wrong\n", trial_text(trial), rank, wrong);
	for (int which = 0; which < 2; which++)
		CU(cuMemFree(mine->memory[which]));
	if (mine->op >= ferryNumOps)
		OK(ferryRedOpDestroy(mine->op, comm));
	CU(cuStreamDestroy(mine->stream));
	trial_buffers_close(&mine->buffers);
	return wrong;
}

static size_t run_trial(struct ferry_trial *trial, const struct gang *gang, unsigned offset)
{
	struct on_device ranks[MOST_PLACES];
	size_t wrong = 0;
	assert_true(ferry_trial_open(trial));
	for (int rank = 0; rank < gang->nranks; rank++)
		start_trial(trial, rank, gang->comms[rank], offset, &ranks[rank]);
	for (int rank = 0; rank < gang->nranks; rank++)
		wrong += finish_trial(trial, rank, gang->comms[rank], &ranks[rank]);
	ferry_trial_close(trial);
	return wrong;
}

static void every_collective_over(int nranks, int domains)
{
	static const size_t counts[] = {0, 1, 1009, 40007};
	struct gang gang;
	size_t wrong = 0;
	unsigned turn = 0;
	gang_open(&gang, nranks, devices, domains);
	for (int collective = 0; collective < FERRY_NUM_COLLECTIVES; collective++)
		for (int in_place = 0; in_place <= ferry_trial_can_be_in_place((enum ferry_collective)collective); in_place++)
			for (size_t i = 0; i < sizeof counts / sizeof *counts; i++, turn++) {
				struct ferry_trial trial = {.collective = (enum ferry_collective)collective,
				                            .type = turn % 2 ? ferryFloat32 : ferryBfloat16,
				                            .op = turn % 3 ? ferrySum : ferryNumOps,
				                            .nranks = nranks,
				                            .ndomains = (unsigned)domains,
				                            .exact = domains == 1,
				                            .count = counts[i],
				                            .in_place = in_place,
				                            .root = (int)turn % nranks,
				                            .seed = turn};
				if (!ferry_collective_reduces(trial.collective))
					trial.op = ferrySum;
				wrong += run_trial(&trial, &gang, turn % 4);
			}
	gang_close(&gang);
	assert_int_equal(wrong, 0);
}

static void every_collective_is_right_in_device_memory(void **state)
{
	(void)state;
	every_collective_over(3, 1);
	every_collective_over(4, 2);
}

/* Its slots wait for no reader: the next copy into one may start while the lane is still at the last. Under ThreadSanitizer. */
static void a_window_that_nobody_reads_is_the_copy_engines_alone(void **state)
{
	static const char text[] = "program allgather  ranks 2  domains 1  chunks 1\n"
	                           "rank 0\n"
	                           "  D2H gpu[0] -> host[0]\n"
	                           "  D2H gpu[0] -> host[2]\n"
	                           "  H2D host[1] -> gpu[1]  deps: host[1]>=1\n"
	                           "rank 1\n"
	                           "  D2H gpu[0] -> host[1]\n"
	                           "  H2D host[0] -> gpu[0]  deps: host[0]>=1\n";
	struct ferry_trial trial = {.collective = FERRY_ALLGATHER, .type = ferryFloat32, .nranks = 2, .ndomains = 1, .count = COUNT};
	char file[] = "/tmp/ferry-unread-XXXXXX";
	struct gang gang;
	(void)state;
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0 && write(descriptor, text, sizeof text - 1) == sizeof text - 1);
	close(descriptor);
	setenv("FERRY_PROGRAM_PATH", file, 1);
	setenv("FERRY_SLICE", "1024", 1);
	setenv("FERRY_WINDOW", "1", 1);
	gang_open(&gang, 2, devices, 1);
	unsetenv("FERRY_PROGRAM_PATH");
	unsetenv("FERRY_SLICE");
	unsetenv("FERRY_WINDOW");
	unlink(file);
	for (int i = 0; i < 20; i++)
		assert_int_equal(run_trial(&trial, &gang, 0), 0);
	gang_close(&gang);
}

static void sends_and_receives_of_a_group_are_right(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 3, devices, 2);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		place_write(&places[rank]);
		OK(ferryGroupStart());
		OK(ferrySend(host(places[rank].input), COUNT, ferryUint32, (rank + 1) % 3, gang.comms[rank],
		             (ferryStream_t)places[rank].stream));
		OK(ferryRecv(host(places[rank].output), COUNT, ferryUint32, (rank + 2) % 3, gang.comms[rank],
		             (ferryStream_t)places[rank].stream));
		OK(ferryGroupEnd());
	}
	places_settle(places, &gang, 0);
	for (int rank = 0; rank < 3; rank++)
		assert_memory_equal(fake_cuda_reach(places[rank].output), fake_cuda_reach(places[(rank + 2) % 3].input),
		                    COUNT * sizeof(uint32_t));
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- buffers ---- */

static void memory_pools_will_do(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr pooled[3];
	gang_open(&gang, 3, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		CU(cuMemAllocAsync(&pooled[rank], COUNT * sizeof(uint32_t) + 64, places[rank].stream));
		places[rank].input = pooled[rank] + 60;
	}
	places_round(places, &gang);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		CU(cuMemFreeAsync(pooled[rank], places[rank].stream));
	}
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

static void memory_that_is_not_this_devices_is_refused_by_name(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		ferryComm_t comm = gang.comms[rank];
		ferryStream_t stream = (ferryStream_t)places[rank].stream;
		void *good = host(places[rank].input), *foreign = host(places[1 - rank].input), *pinned;
		uint32_t ordinary = 0;
		CUdeviceptr managed;
		char name[32];
		place_enter(&places[rank]);
		CU(cuMemHostAlloc(&pinned, 4096, 0));
		CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
		REFUSED(ferryInvalidArgument, "ordinary host memory", ferryAllReduce(&ordinary, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "recvbuff", ferryAllReduce(good, &ordinary, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "pinned", ferryAllReduce(pinned, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "managed memory",
		        ferryAllReduce(host(managed), good, 1, ferryUint32, ferrySum, comm, stream));
		snprintf(name, sizeof name, "%p", host(managed));
		REFUSED(ferryInvalidArgument, name, ferryAllReduce(host(managed), good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "the communicator is on device",
		        ferryAllReduce(foreign, good, 1, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "beyond", ferryAllReduce(good, good, 1 << 20, ferryUint32, ferrySum, comm, stream));
		REFUSED(ferryInvalidArgument, "stream",
		        ferryAllReduce(good, good, 1, ferryUint32, ferrySum, comm, (ferryStream_t)places[1 - rank].stream));
		CU(cuMemFreeHost(pinned));
		CU(cuMemFree(managed));
	}
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	gang_close(&gang);
	places_close(places, &gang);
}

/* ---- reductions of one's own ---- */

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
		OK(ferryRedOpCreatePreMulSum(&ops[rank], host(scalars[rank] + 4), ferryFloat32, ferryScalarDevice, gang.comms[rank]));
		CU(fake_cuda_launch(places[rank].stream, ones, &places[rank]));
	}
	for (int i = 0; i < 3; i++) {
		for (int rank = 0; rank < 2; rank++) {
			factors[rank][i] = (struct factor){scalars[rank] + 4, (float)((i + 1) * (rank + 2))};
			place_enter(&places[rank]);
			CU(fake_cuda_launch(places[rank].stream, write_factor, &factors[rank][i]));
			OK(ferryAllReduce(host(places[rank].input), host(places[rank].output), COUNT, ferryFloat32, ops[rank],
			                  gang.comms[rank], (ferryStream_t)places[rank].stream));
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

/* ---- faults ---- */

static ferryResult_t error_within(ferryComm_t comm, int milliseconds)
{
	ferryResult_t error = ferrySuccess;
	for (int waited = 0; !error && waited < milliseconds; waited++) {
		OK(ferryCommGetAsyncError(comm, &error));
		doze(1);
	}
	return error;
}

/*
 * A call that its stream has not reached ends with its communicator; the start that lies in that stream is written later. By then a
 * call of another communicator must not have it for its own.
 */
static void a_call_that_failed_before_its_stream_reached_it_starts_no_other(void **state)
{
	(void)state;
	enum { CALLS = 1500 }; /* more than these two devices have lines: each is used again */
	static const int others[] = {2, 3};
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, others, 1);
		places_open(places[which], &gangs[which], 1000);
	}
	atomic_store(&held_up, 1);
	atomic_store(&other_held_up, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[0][rank]);
		CU(fake_cuda_launch(places[0][rank].stream, wait_while_held_up, NULL));
		place_call(&places[0][rank], gangs[0].comms[rank]);
	}
	for (int rank = 0; rank < 2; rank++) { /* in a stream that is free, a call on which the two disagree */
		place_enter(&places[0][rank]);
		OK(ferryAllReduce(host(places[0][rank].input), host(places[0][rank].output), 10 + (size_t)rank, ferryUint32, ferrySum,
		                  gangs[0].comms[rank], (ferryStream_t)CU_STREAM_PER_THREAD));
	}
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(error_within(gangs[0].comms[rank], 20000), ferryInvalidUsage);
	doze(20);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[1][rank]);
		CU(fake_cuda_launch(places[1][rank].stream, wait_while_other_held_up, NULL));
	}
	for (int i = 0; i < CALLS; i++)
		places_round(places[1], &gangs[1]);
	atomic_store(&held_up, 0);
	doze(50);
	atomic_store(&other_held_up, 0);
	places_settle(places[0], &gangs[0], 0);
	places_settle(places[1], &gangs[1], CALLS);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(gangs[0].comms[rank]));
	gang_close(&gangs[1]);
	for (int which = 0; which < 2; which++)
		places_close(places[which], &gangs[which]);
}

/* Rank 1 never calls; rank 0's GPU fails while its call waits. Staging stays registered with it: the last test of the suite. */
/* Never returns: a call under way, and memory freed beside it. */
static void free_beside_a_call(int say)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr memory;
	dup2(say, STDERR_FILENO);
	setenv("FERRY_STALL_SECONDS", "1", 1);
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	place_enter(&places[0]);
	CU(cuMemAlloc(&memory, 4096));
	places[1].wait_ms = 100; /* so the first one's call is still under way below */
	places_round(places, &gang);
	place_enter(&places[0]);
	cuMemFree(memory);
	_exit(0);
}

static bool tells_of_it(const char *said)
{
	return strstr(said, "lane: in the device's driver for ") || strstr(said, "lane: no progress for ");
}

/*
 * The driver waits for the call in a lock that the lanes need. Nothing can be done about it here, but it is told: by the other lane
 * where one of them hangs, by the other rank's where both do.
 */
static void a_call_that_the_driver_holds_up_is_told_of(void **state)
{
	char said[4096];
	size_t length = 0;
	int ends[2];
	ssize_t got;
	(void)state;
	assert_int_equal(pipe(ends), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		free_beside_a_call(ends[1]);
	close(ends[1]);
	said[0] = '\0';
	while (!tells_of_it(said) && length < sizeof said - 1 && (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
		said[length += (size_t)got] = '\0';
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ends[0]);
	if (!tells_of_it(said))
		fail_msg("said: \"%s\"", said);
}

static int refused_settings(void)
{
	static const char *const settings[][2] = {{"FERRY_LAZY_MODULES", "yes"}, {"FERRY_LAZY_MODULES", "-1"},
	                                          {"FERRY_COPY_STREAMS", "9"},   {"FERRY_STAGING", "0"},
	                                          {"FERRY_LIMITS", "/dev/null/limits.json"}};
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		ferryComm_t comm;
		setenv(settings[i][0], settings[i][1], 1);
		ferryResult_t result = ferryCommInitAll(&comm, 1, NULL);
		const char *said = result ? ferryGetLastError(NULL) : "taken";
		if (result != ferryInvalidArgument || !strstr(said, settings[i][0]) || !strstr(said, settings[i][1])) {
			fprintf(stderr, "%s=%s: %s\n", settings[i][0], settings[i][1], said);
			return 1;
		}
		unsetenv(settings[i][0]);
	}
	return 0;
}

/* In a child: a device that has been opened keeps its settings. */
static void settings_out_of_range_are_refused_by_name_and_value(void **state)
{
	int status;
	(void)state;
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		_exit(refused_settings());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

static void a_gpu_that_fails_fails_its_communicator_and_no_other(void **state)
{
	(void)state;
	static const int others[] = {2, 3};
	struct gang gang, bystanders;
	struct place places[MOST_PLACES], other_places[MOST_PLACES];
	gang_open(&gang, 2, devices, 1);
	gang_open(&bystanders, 2, others, 1);
	places_open(places, &gang, COUNT);
	places_open(other_places, &bystanders, COUNT);
	place_round(&places[0], gang.comms[0]);
	place_round(&other_places[0], bystanders.comms[0]);
	doze(20);
	CU(fake_cuda_break(0, CUDA_ERROR_ILLEGAL_ADDRESS));
	ferryResult_t error = error_within(gang.comms[0], 20000);
	const char *why = ferryGetLastError(gang.comms[0]);
	if (error != ferryUnhandledDeviceError || !strstr(why, "700"))
		fail_msg("%s: %s", ferryGetErrorString(error), why);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(gang.comms[rank]));
	place_round(&other_places[1], bystanders.comms[1]);
	places_round(other_places, &bystanders);
	places_settle(other_places, &bystanders, 2);
	gang_close(&bystanders);
	places_close(other_places, &bystanders);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_call_that_the_driver_holds_up_is_told_of), /* first: they fork */
	        cmocka_unit_test(settings_out_of_range_are_refused_by_name_and_value),
	        cmocka_unit_test_teardown(call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it, no_misuse),
	        cmocka_unit_test_teardown(the_default_streams_are_streams_too, no_misuse),
	        cmocka_unit_test_teardown(ranks_of_three_threads_may_share_a_device, no_misuse),
	        cmocka_unit_test_teardown(two_communicators_on_two_streams_at_once, no_misuse),
	        cmocka_unit_test_teardown(a_communicator_is_destroyed_beside_calls_of_another, no_misuse),
	        cmocka_unit_test_teardown(thirty_streams_waiting_at_once, no_misuse),
	        cmocka_unit_test_teardown(thousands_of_calls_wait_behind_a_kernel, no_misuse),
	        cmocka_unit_test_teardown(workers_share_the_slices_of_copy_engines, no_misuse),
	        cmocka_unit_test_teardown(short_calls_behind_a_long_one_begin_in_any_order, no_misuse),
	        cmocka_unit_test_teardown(each_rank_may_be_a_thread, no_misuse),
	        cmocka_unit_test_teardown(a_calling_thread_finds_its_context_as_it_left_it, no_misuse),
	        cmocka_unit_test_teardown(every_collective_is_right_in_device_memory, no_misuse),
	        cmocka_unit_test_teardown(a_window_that_nobody_reads_is_the_copy_engines_alone, no_misuse),
	        cmocka_unit_test_teardown(sends_and_receives_of_a_group_are_right, no_misuse),
	        cmocka_unit_test_teardown(memory_pools_will_do, no_misuse),
	        cmocka_unit_test_teardown(memory_that_is_not_this_devices_is_refused_by_name, no_misuse),
	        cmocka_unit_test_teardown(premulsum_reads_a_device_scalar_when_its_stream_reaches_the_call, no_misuse),
	        cmocka_unit_test_teardown(a_call_that_failed_before_its_stream_reached_it_starts_no_other, no_misuse),
	        cmocka_unit_test_teardown(a_gpu_that_fails_fails_its_communicator_and_no_other, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
