/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What calls ask of the driver under Ferry, counted: each entry that their thread takes of the table by which Ferry
 * calls it (cuda_driver.h). Two GPUs of one process, in groups of one thread or by a thread each, over both doubles.
 * Each call is waited for: so it is known which ones look at what was measured before.
 */
#include "tests/nccl/players.h"

#include "ipc/nccl_settings.h"
#include "rank-lib/program/limits.h"
#include "router/copy/cuda_driver.h"

#include <cjson/cJSON.h>
#include <unistd.h>

#define GPUS    2
#define BLOCK   100000 /* elements: over the floor */
#define SETTLED 200
#define CALLS   200

/* ---- counting ---- */

enum {
#define CUDA_FUNCTION(name, symbol, parameters) CALLS_OF_##name,
#include "router/copy/cuda_functions.def"
#undef CUDA_FUNCTION
	FUNCTIONS
};

static struct ferry_cuda_driver driver; /* the double's own entries */
static _Thread_local uint64_t counts[FUNCTIONS];

/* All that a call may ask once its communicator is there. */
#define ALL_COUNTED                                                                                                    \
	COUNTED(StreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status), (stream, status))                \
	COUNTED(ThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), (mode))                                 \
	COUNTED(CtxGetCurrent, (CUcontext * context), (context))                                                       \
	COUNTED(CtxSetCurrent, (CUcontext context), (context))                                                         \
	COUNTED(CtxPushCurrent, (CUcontext context), (context))                                                        \
	COUNTED(CtxPopCurrent, (CUcontext * context), (context))                                                       \
	COUNTED(CtxGetDevice, (CUdevice * device), (device))                                                           \
	COUNTED(StreamGetCtx, (CUstream stream, CUcontext * context), (stream, context))                               \
	COUNTED(StreamGetId, (CUstream stream, unsigned long long *id), (stream, id))                                  \
	COUNTED(StreamQuery, (CUstream stream), (stream))                                                              \
	COUNTED(EventCreate, (CUevent * event, unsigned flags), (event, flags))                                        \
	COUNTED(EventRecord, (CUevent event, CUstream stream), (event, stream))                                        \
	COUNTED(EventQuery, (CUevent event), (event))                                                                  \
	COUNTED(EventElapsedTime, (float *ms, CUevent start, CUevent end), (ms, start, end))                           \
	COUNTED(StreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), (stream, event, flags))             \
	COUNTED(PointerGetAttributes,                                                                                  \
	        (unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr address),                 \
	        (count, attributes, values, address))                                                                  \
	COUNTED(LaunchKernel,                                                                                          \
	        (CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,    \
	         unsigned shared, CUstream stream, void **parameters, void **extra),                                   \
	        (function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra))                                 \
	COUNTED(StreamBatchMemOp,                                                                                      \
	        (CUstream stream, unsigned count, CUstreamBatchMemOpParams *operations, unsigned flags),               \
	        (stream, count, operations, flags))                                                                    \
	COUNTED(StreamGetCaptureInfo,                                                                                  \
	        (CUstream stream, CUstreamCaptureStatus * status, uint64_t *id, CUgraph *graph,                        \
	         const CUgraphNode **nodes, const CUgraphEdgeData **edges, size_t *count),                             \
	        (stream, status, id, graph, nodes, edges, count))

#define COUNTED(name, parameters, arguments)                                                                           \
	static CUresult counted_##name parameters                                                                      \
	{                                                                                                              \
		counts[CALLS_OF_##name]++;                                                                             \
		return driver.name arguments;                                                                          \
	}
ALL_COUNTED
#undef COUNTED

static void count_from_now_on(void)
{
	const struct ferry_cuda_driver *opened;
	EQUAL(ferry_cuda_driver_open(&opened), 0);
	driver = *opened;
	struct ferry_cuda_driver *table = (struct ferry_cuda_driver *)(uintptr_t)opened;
#define COUNTED(name, parameters, arguments) table->name = counted_##name;
	ALL_COUNTED
#undef COUNTED
}

/* Of the thread, since `before`. */
static uint64_t since(const uint64_t before[FUNCTIONS], int function)
{
	return counts[function] - before[function];
}

static uint64_t all_since(const uint64_t before[FUNCTIONS])
{
	uint64_t all = 0;
	for (int i = 0; i < FUNCTIONS; i++)
		all += since(before, i);
	return all;
}

static void print_since(const uint64_t before[FUNCTIONS], const char *what)
{
	static const char *const names[] = {
#define CUDA_FUNCTION(name, symbol, parameters) #name,
#include "router/copy/cuda_functions.def"
#undef CUDA_FUNCTION
	};
	print_message("%s, in %d calls of each GPU:", what, CALLS);
	for (int i = 0; i < FUNCTIONS; i++)
		if (since(before, i))
			print_message(" %s %ju", names[i], (uintmax_t)since(before, i));
	print_message("\n");
}

/* ---- ranks ---- */

static struct player players[GPUS];
static enum ferry_collective collective;
static size_t elements;

static void make_call(struct player *player)
{
	ncclComm_t comm = player->rank.comm;
	cudaStream_t stream = (cudaStream_t)player->stream;
	if (collective == FERRY_GATHER)
		NCCL(ncclGather(player->send, player->receive, elements, ncclFloat32, 0, comm, stream));
	else if (collective == FERRY_ALLGATHER)
		NCCL(ncclAllGather(player->send, player->receive, elements, ncclFloat32, comm, stream));
	else
		NCCL(ncclAllReduce(player->send, player->receive, elements, ncclFloat32, ncclSum, comm, stream));
}

static void make_group(void)
{
	NCCL(ncclGroupStart());
	for (int i = 0; i < GPUS; i++)
		make_call(&players[i]);
	NCCL(ncclGroupEnd());
	for (int i = 0; i < GPUS; i++)
		settle(&players[i]);
}

static char limits_path[64];

/* By what was measured before NCCL is so much faster that nothing of Ferry's is ever tried. */
static void write_limits(void)
{
	static struct ferry_limits limits = {.command = "ferry-perf tune", .ncollectives = FERRY_NUM_COLLECTIVES};
	for (int i = 0; i < FERRY_NUM_COLLECTIVES; i++) {
		struct ferry_limits_collective *row = &limits.collectives[i];
		*row = (struct ferry_limits_collective){
		        .ranks = GPUS, .bytes = 1 << 10, .nccl_us = 1, .ferry_us = 1e6};
		ferry_limits_print_settings(ferry_nccl_settings(), row->settings);
		snprintf(row->collective, sizeof row->collective, "%s",
		         ferry_collective_name((enum ferry_collective)i));
	}
	struct cJSON *json = ferry_limits_json(&limits);
	char *text = cJSON_Print(json);
	snprintf(limits_path, sizeof limits_path, "/tmp/ferry-caller-test.%d", (int)getpid());
	FILE *file = fopen(limits_path, "w");
	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
	free(text);
	cJSON_Delete(json);
	setenv("FERRY_LIMITS", limits_path, 1);
}

static int open_all(void **state)
{
	ncclComm_t comms[GPUS];
	(void)state;
	setenv("FERRY_SPLIT_WAIT", "30", 1);
	setenv("FERRY_SPLIT_FLOOR", "256K", 1);
	domains_open(1);
	for (int i = 0; i < GPUS; i++) {
		players[i].rank.rank = i;
		buffers_open(&players[i]);
	}
	NCCL(ncclCommInitAll(comms, GPUS, (int[]){0, 1}));
	for (int i = 0; i < GPUS; i++)
		players[i].rank.comm = comms[i];
	return 0;
}

static int close_all(void **state)
{
	for (int i = 0; i < GPUS; i++)
		player_close(&players[i]);
	domains_close();
	return no_misuse(state);
}

/* ---- calls that stay NCCL's ---- */

/*
 * Two events around a call that is measured, which come from the stream's context; and one question about each time.
 * Else a call asks whether its stream captures, and no more.
 */
static void check_ncclss(const uint64_t before[FUNCTIONS], uint64_t calls)
{
	uint64_t records = since(before, CALLS_OF_EventRecord);
	assert_int_equal(since(before, CALLS_OF_StreamIsCapturing), calls);
	assert_true(since(before, CALLS_OF_CtxGetCurrent) <= records);
	assert_true(since(before, CALLS_OF_CtxSetCurrent) <= 2 * records);
	assert_true(since(before, CALLS_OF_EventElapsedTime) <= records);
	/* a call that has not ended yet is asked about again, on a busy machine */
	assert_true(since(before, CALLS_OF_ThreadExchangeStreamCaptureMode) <= records + calls / 8);
	assert_true(all_since(before) <= calls + 6 * records);
	assert_int_equal(counts[CALLS_OF_EventCreate], 0); /* nor of all calls before */
}

static void settle_and_count(enum ferry_collective which, const char *what)
{
	uint64_t before[FUNCTIONS];
	collective = which;
	elements = BLOCK;
	for (int i = 0; i < SETTLED; i++)
		make_group();
	memcpy(before, counts, sizeof before);
	for (int i = 0; i < CALLS; i++) {
		uint64_t now[FUNCTIONS];
		memcpy(now, counts, sizeof now);
		make_group();
		if (!since(now, CALLS_OF_EventRecord) && !since(now, CALLS_OF_EventElapsedTime))
			assert_int_equal(all_since(now), GPUS);
	}
	print_since(before, what);
	check_ncclss(before, CALLS * GPUS);
	assert_int_equal(parts_of(&players[0]), 0);
}

static void a_groups_call_that_stays_nccls_asks_for_its_stream_once(void **state)
{
	(void)state;
	settle_and_count(FERRY_GATHER, "ncclGather of two GPUs in a group");
	settle_and_count(FERRY_ALLREDUCE, "ncclAllReduce of two GPUs in a group");
}

/* By a thread each, as by processes: rank 0's is the one that measures. */
static void *settle_and_count_alone(void *argument)
{
	struct player *player = argument;
	uint64_t before[FUNCTIONS];
	CUcontext context;
	EQUAL(cuDevicePrimaryCtxRetain(&context, player->rank.rank), 0);
	EQUAL(cuCtxSetCurrent(context), 0);
	for (int i = 0; i < SETTLED + CALLS; i++) {
		if (i == SETTLED)
			memcpy(before, counts, sizeof before);
		make_call(player);
		settle(player);
	}
	check_ncclss(before, CALLS);
	assert_true(!player->rank.rank || all_since(before) == CALLS);
	EQUAL(cuDevicePrimaryCtxRelease(player->rank.rank), 0);
	return NULL;
}

static void a_plain_call_that_stays_nccls_asks_for_its_stream_once(void **state)
{
	(void)state;
	collective = FERRY_ALLGATHER;
	elements = BLOCK;
	for (int i = 0; i < GPUS; i++)
		EQUAL(pthread_create(&players[i].rank.thread, NULL, settle_and_count_alone, &players[i]), 0);
	for (int i = 0; i < GPUS; i++)
		pthread_join(players[i].rank.thread, NULL);
	assert_int_equal(parts_of(&players[0]), 0);
}

/* ---- what may become Ferry's ---- */

static void what_is_made_ready_for_ferry_asks_for_its_memory_once(void **state)
{
	struct player *player = &players[0];
	struct ferry_request request = {.collective = FERRY_ALLGATHER,
	                                .send = player->send,
	                                .receive = player->receive,
	                                .count = 100,
	                                .type = ferryFloat32,
	                                .comm = shadow_of(player->rank.comm)->comm};
	uint64_t before[FUNCTIONS];
	(void)state;
	EQUAL(ferry_launch_preregister(&request, false, true), ferrySuccess);
	memcpy(before, counts, sizeof before);
	for (int i = 0; i < CALLS; i++)
		EQUAL(ferry_launch_has_preregistered(&request, false, true, false), FERRY_PREREGISTERED);
	assert_int_equal(all_since(before), 0);
	EQUAL(ferry_launch_has_preregistered(&request, false, true, true), FERRY_PREREGISTERED); /* with a call */
	assert_true(all_since(before) > 0);
}

/* ---- calls that kernels carry ---- */

/* Its context, for another thread's may be another one; whether its stream captures, and which one it is. */
static void a_call_by_a_kernel_asks_six_times_beside_the_launch(void **state)
{
	uint64_t before[FUNCTIONS];
	int i = 0;
	(void)state;
	collective = FERRY_ALLREDUCE;
	elements = SMALL;
	for (; i < MANY && !kernels_in(players[0].rank.comm); i++) {
		make_group();
		doze(1);
	}
	assert_true(i < MANY);
	memcpy(before, counts, sizeof before);
	for (i = 0; i < CALLS; i++)
		make_group();
	print_since(before, "ncclAllReduce by kernels of two GPUs in a group");
	assert_int_equal(since(before, CALLS_OF_LaunchKernel), CALLS * GPUS);
	assert_int_equal(all_since(before), 7 * CALLS * GPUS);
}

/* ---- calls that are Ferry's alone ---- */

/*
 * Its stream: context, capture, id, and capture once more; its two buffers; one memory operation. Four for the context.
 */
static void *reduce_by_ferry(void *argument)
{
	struct player *player = argument;
	uint64_t before[FUNCTIONS];
	CUcontext context;
	EQUAL(cuDevicePrimaryCtxRetain(&context, player->rank.rank), 0);
	EQUAL(cuCtxSetCurrent(context), 0);
	for (int i = 0; i < SETTLED + CALLS; i++) {
		if (i == SETTLED)
			memcpy(before, counts, sizeof before);
		make_call(player);
		settle(player);
	}
	if (!player->rank.rank)
		print_since(before, "ncclAllReduce by Ferry alone");
	EQUAL(since(before, CALLS_OF_StreamBatchMemOp), CALLS);
	EQUAL(all_since(before), 11 * CALLS);
	EQUAL(cuDevicePrimaryCtxRelease(player->rank.rank), 0);
	return NULL;
}

static void a_plain_call_that_is_ferrys_alone_asks_eleven_times(void **state)
{
	(void)state;
	collective = FERRY_ALLREDUCE;
	elements = BLOCK;
	for (int i = 0; i < GPUS; i++)
		EQUAL(pthread_create(&players[i].rank.thread, NULL, reduce_by_ferry, &players[i]), 0);
	for (int i = 0; i < GPUS; i++)
		pthread_join(players[i].rank.thread, NULL);
	HOLDS(parts_of(&players[0]) >= CALLS);
}

static int open_by_ferry(void **state)
{
	setenv("FERRY_KERNELS", "off", 1);
	setenv("FERRY_SHARES", "nccl:0,host:1", 1);
	return open_all(state);
}

static int open_with_kernels(void **state)
{
	setenv("FERRY_KERNELS", "on", 1);
	return open_all(state);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup_teardown(a_groups_call_that_stays_nccls_asks_for_its_stream_once, open_all,
	                                        close_all),
	        cmocka_unit_test_setup_teardown(a_plain_call_that_stays_nccls_asks_for_its_stream_once, open_all,
	                                        close_all),
	        cmocka_unit_test_setup_teardown(what_is_made_ready_for_ferry_asks_for_its_memory_once, open_all,
	                                        close_all),
	        cmocka_unit_test_setup_teardown(a_call_by_a_kernel_asks_six_times_beside_the_launch,
	                                        open_with_kernels, close_all),
	        cmocka_unit_test_setup_teardown(a_plain_call_that_is_ferrys_alone_asks_eleven_times,
	                                        open_by_ferry, close_all),
	};
	fake_is_the_driver();
	write_limits();
	count_from_now_on();
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	unlink(limits_path);
	return failed;
}
