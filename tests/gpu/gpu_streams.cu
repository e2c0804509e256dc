/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls take their place in CUDA streams: nothing but the stream between the kernel that writes and the one that reads.
 */
#include "tests/gpu/data.cuh"

#define COUNT 100003

static int in_stream(cudaStream_t stream)
{
	struct gang gang;
	struct place places[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	if (stream && gang.nlocal > gang_devices()) {
		TRY(gang_close(&gang));
		SKIP("ranks that share a GPU and a stream wait for each other");
	}
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++)
		if (stream)
			places[i].stream = stream == cudaStreamLegacy ? (cudaStream_t)0 : stream;
	for (uint32_t round = 1; round <= 30; round++)
		TRY(places_round(places, &gang, round, round % 10 ? 0 : 5000000));
	TRY(places_settle(places, &gang, "thirty rounds"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it(void)
{
	return in_stream(NULL);
}

static int the_default_stream_is_a_stream_too(void)
{
	return in_stream(cudaStreamLegacy);
}

static int the_default_stream_of_a_thread_is_a_stream_too(void)
{
	return in_stream(cudaStreamPerThread);
}

static int two_communicators_work_on_two_streams_at_once(void)
{
	struct gang gangs[2];
	struct place places[2][GANG_MOST];
	for (int which = 0; which < 2; which++) {
		TRY(gang_open(&gangs[which], "cuda"));
		TRY(places_open(places[which], &gangs[which], COUNT + which));
	}
	for (uint32_t round = 1; round <= 50; round++)
		for (int which = 0; which < 2; which++)
			TRY(places_round(places[which], &gangs[which], round, round % 16 ? 0 : 1000000));
	for (int which = 0; which < 2; which++)
		TRY(places_settle(places[which], &gangs[which], "fifty rounds of two communicators"));
	for (int which = 0; which < 2; which++) {
		TRY(gang_close(&gangs[which]));
		TRY(places_close(places[which], &gangs[which]));
	}
	return 0;
}

static int a_call_returns_before_its_stream_reaches_it(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	TRY(places_round(places, &gang, 1, 0)); /* makes the plan */
	TRY(places_settle(places, &gang, "the first round"));
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_write(&places[i], 2, 300000000));
	double start = check_seconds();
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_call(&places[i], gang.comm[i]));
	double took = check_seconds() - start;
	REQUIRE(took < 0.15, "%d calls behind kernels of 300 ms took %.0f ms to return", gang.nlocal, 1e3 * took);
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_judge(&places[i], 2));
	TRY(places_settle(places, &gang, "behind slow kernels"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int another_stream_that_waits_for_an_event_sees_the_result(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaStream_t reader[GANG_MOST];
	cudaEvent_t written[GANG_MOST], judged[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaStreamCreateWithFlags(&reader[i], cudaStreamNonBlocking));
		CUDA(cudaEventCreateWithFlags(&written[i], cudaEventDisableTiming));
		CUDA(cudaEventCreateWithFlags(&judged[i], cudaEventDisableTiming));
	}
	for (uint32_t round = 1; round <= 20; round++)
		for (int i = 0; i < gang.nlocal; i++) {
			TRY(place_write(&places[i], round, round % 10 ? 0 : 5000000));
			TRY(place_call(&places[i], gang.comm[i]));
			CUDA(cudaEventRecord(written[i], places[i].own));
			CUDA(cudaStreamWaitEvent(reader[i], written[i], 0));
			places[i].stream = reader[i];
			TRY(place_judge(&places[i], round));
			places[i].stream = places[i].own;
			CUDA(cudaEventRecord(judged[i], reader[i]));
			CUDA(cudaStreamWaitEvent(places[i].own, judged[i], 0));
		}
	TRY(places_settle(places, &gang, "read in another stream"));
	TRY(gang_close(&gang));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaStreamDestroy(reader[i]));
		CUDA(cudaEventDestroy(written[i]));
		CUDA(cudaEventDestroy(judged[i]));
	}
	return places_close(places, &gang);
}

struct caller {
	struct place *place;
	ferryComm_t comm;
	int result;
	pthread_t thread;
};

static int call_and_wait(struct caller *caller)
{
	for (uint32_t round = 1; round <= 100; round++) {
		TRY(place_write(caller->place, round, 0));
		TRY(place_call(caller->place, caller->comm));
		TRY(place_judge(caller->place, round));
		if (round % 10 == 0)
			CUDA(cudaStreamSynchronize(caller->place->stream));
	}
	return 0;
}

static void *caller_thread(void *argument)
{
	struct caller *caller = (struct caller *)argument;
	caller->result = call_and_wait(caller);
	return NULL;
}

static int a_thread_per_rank_calls_and_waits_by_itself(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	struct caller callers[GANG_MOST] = {};
	int result = 0;
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		callers[i].place = &places[i];
		callers[i].comm = gang.comm[i];
		REQUIRE(!pthread_create(&callers[i].thread, NULL, caller_thread, &callers[i]), "no thread for rank %d",
		        i);
	}
	for (int i = 0; i < gang.nlocal; i++) {
		pthread_join(callers[i].thread, NULL);
		result |= callers[i].result;
	}
	TRY(result);
	TRY(places_settle(places, &gang, "a thread per rank"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int a_stream_of_another_gpu_is_refused(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaStream_t foreign;
	if (gang_devices() < 2)
		SKIP("one GPU");
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice((places[i].device + 1) % gang_devices()));
		CUDA(cudaStreamCreate(&foreign));
		CUDA(cudaSetDevice(places[i].device));
		REFUSED(ferryInvalidArgument, "stream",
		        ferryAllReduce(places[i].input, places[i].output, COUNT, ferryUint32, ferrySum, gang.comm[i],
		                       (ferryStream_t)foreign));
		CUDA(cudaStreamDestroy(foreign));
	}
	TRY(places_round(places, &gang, 1, 0));
	TRY(places_settle(places, &gang, "after the refusal"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

#define STREAMS 16 /* how many may wait at a time; docs/design/waiting.md tells why not any number */
#define MOST_STREAMS 40

static int replace_stream(struct place *place)
{
	int least, greatest;
	CUDA(cudaSetDevice(place->device));
	CUDA(cudaStreamDestroy(place->own));
	CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	CUDA(cudaStreamCreateWithPriority(&place->own, cudaStreamNonBlocking, greatest));
	place->stream = place->own;
	return 0;
}

/* Rank by rank: all of a rank's streams wait before the next rank makes its first call. */
static int sixteen_streams_rank_by_rank(bool urgent)
{
	static struct place places[STREAMS][GANG_MOST];
	struct gang gang;
	TRY(gang_shape(&gang));
	if (gang.nlocal > gang_devices())
		SKIP("ranks that share a GPU share its hardware queues: one keeps the other out");
	TRY(gang_open(&gang, "cuda"));
	for (int stream = 0; stream < STREAMS; stream++) {
		TRY(places_open(places[stream], &gang, 1001 + (size_t)stream));
		for (int i = 0; urgent && i < gang.nlocal; i++)
			TRY(replace_stream(&places[stream][i]));
	}
	for (uint32_t round = 1; round <= 3; round++)
		for (int i = 0; i < gang.nlocal; i++)
			for (int stream = 0; stream < STREAMS; stream++) {
				TRY(place_write(&places[stream][i], round, 0));
				TRY(place_call(&places[stream][i], gang.comm[i]));
				TRY(place_judge(&places[stream][i], round));
			}
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_settle(places[stream], &gang, "sixteen streams, rank by rank"));
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_close(places[stream], &gang));
	return gang_close(&gang);
}

static int calls_in_sixteen_streams_wait_until_the_last_rank_has_made_its_own(void)
{
	return sixteen_streams_rank_by_rank(false);
}

/*
 * Ferry's copies have this priority too, and so may share a hardware queue with a stream that waits for them. Run by
 * name.
 */
static int calls_in_sixteen_streams_of_the_greatest_priority_all_finish(void)
{
	return sixteen_streams_rank_by_rank(true);
}

/* More than the hardware has queues: streams that wait must not keep out the copies that they wait for. */
static int streams_wait_at_once(int nstreams)
{
	enum { SMALL = 1001 };
	static struct place places[MOST_STREAMS][GANG_MOST];
	struct gang gang;
	TRY(gang_open(&gang, "cuda"));
	for (int stream = 0; stream < nstreams; stream++)
		TRY(places_open(places[stream], &gang, SMALL + stream));
	for (uint32_t round = 1; round <= 3; round++)
		for (int stream = 0; stream < nstreams; stream++)
			for (int i = 0; i < gang.nlocal; i++) {
				bool last = places[stream][i].rank == gang.nranks - 1;
				TRY(place_write(&places[stream][i], round, last && !stream ? 50000000 : 0));
				TRY(place_call(&places[stream][i], gang.comm[i]));
				TRY(place_judge(&places[stream][i], round));
			}
	for (int stream = 0; stream < nstreams; stream++)
		TRY(places_settle(places[stream], &gang, "streams that wait at once"));
	for (int stream = 0; stream < nstreams; stream++)
		TRY(places_close(places[stream], &gang));
	return gang_close(&gang);
}

static int calls_in_sixteen_streams_wait_at_once_and_all_finish(void)
{
	return streams_wait_at_once(STREAMS);
}

/* Not kept: more streams than hardware queues, each with a kernel behind its call, keep short copies out. */
static int calls_in_forty_streams_wait_at_once_and_all_finish(void)
{
	return streams_wait_at_once(MOST_STREAMS);
}

static __global__ void never_launched_before(uint32_t *word)
{
	*word = 7;
}

static int a_kernel_is_launched_for_the_first_time_beside_a_call_that_waits(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		TRY(place_write(&places[i], 1, places[i].rank == gang.nranks - 1 ? 100000000 : 0));
		TRY(place_call(&places[i], gang.comm[i]));
	}
	for (int i = 0; i < gang.nlocal; i++) {
		cudaStream_t other;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
		never_launched_before<<<1, 1, 0, other>>>(places[i].round);
		CUDA(cudaGetLastError());
		CUDA(cudaStreamSynchronize(other));
		CUDA(cudaStreamDestroy(other));
		TRY(place_judge(&places[i], 1));
	}
	TRY(places_settle(places, &gang, "beside a new kernel"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static __global__ void not_launched_before_either(uint32_t *word)
{
	*word = 4711;
}

struct launch {
	struct place *place;
	cudaStream_t stream;
	volatile bool over;
	int result;
};

static int launch_first_time(struct launch *launch)
{
	CUDA(cudaSetDevice(launch->place->device));
	not_launched_before_either<<<1, 1, 0, launch->stream>>>(launch->place->round);
	CUDA(cudaGetLastError());
	CUDA(cudaStreamSynchronize(launch->stream));
	launch->over = true;
	return 0;
}

static void *launch_thread(void *argument)
{
	struct launch *launch = (struct launch *)argument;
	launch->result = launch_first_time(launch);
	return NULL;
}

/* The other ranks call once the kernel has run: if the launch waited for the call it would wait for ever. */
static int a_first_launch_does_not_wait_for_a_call_whose_other_ranks_are_late(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	struct launch launch = {};
	pthread_t thread;
	if (check_in_job())
		SKIP("the late rank is a thread of this process");
	const char *loading = getenv("CUDA_MODULE_LOADING");
	if (!loading || strcmp(loading, "EAGER"))
		SKIP("CUDA loads a kernel on its first launch when the context's streams have come to their end");
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	launch.place = &places[0];
	CUDA(cudaSetDevice(places[0].device));
	CUDA(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
	TRY(place_write(&places[0], 1, 0));
	TRY(place_call(&places[0], gang.comm[0]));
	usleep(50000); /* its stream waits by now */
	REQUIRE(!pthread_create(&thread, NULL, launch_thread, &launch), "no thread");
	for (double start = check_seconds(); !launch.over && check_seconds() - start < 5;)
		usleep(1000);
	bool in_time = launch.over;
	for (int i = 1; i < gang.nlocal; i++) {
		TRY(place_write(&places[i], 1, 0));
		TRY(place_call(&places[i], gang.comm[i]));
	}
	pthread_join(thread, NULL);
	TRY(launch.result);
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_judge(&places[i], 1));
	TRY(places_settle(places, &gang, "late ranks"));
	REQUIRE(in_time, "the launch was over only after the late ranks had called (CUDA_MODULE_LOADING=%s)",
	        getenv("CUDA_MODULE_LOADING") ? getenv("CUDA_MODULE_LOADING") : "");
	CUDA(cudaStreamDestroy(launch.stream));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* By routers no SM is needed: the call ends while kernels of another stream have them all. */
static int calls_finish_while_kernels_hold_every_multiprocessor(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaStream_t busy[GANG_MOST];
	cudaEvent_t over[GANG_MOST];
	const char *kernels = getenv("FERRY_KERNELS");
	char before[16];
	snprintf(before, sizeof before, "%s", kernels ? kernels : "on");
	setenv("FERRY_KERNELS", "off", 1); /* a kernel starts when others have left it an SM, as NCCL's do */
	TRY(gang_open(&gang, "cuda"));
	setenv("FERRY_KERNELS", before, 1);
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		int processors;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, places[i].device));
		CUDA(cudaStreamCreateWithFlags(&busy[i], cudaStreamNonBlocking));
		CUDA(cudaEventCreateWithFlags(&over[i], cudaEventDisableTiming));
		TRY(place_write(&places[i], 1, 0));
		CUDA(cudaStreamSynchronize(places[i].stream));
		/* count 0: it only waits; 300 ms, and as many threads as fit at once */
		write_input<<<processors * 2, 1024, 0, busy[i]>>>(NULL, 0, 0, 0, 300000000);
		CUDA(cudaGetLastError());
	}
	for (int i = 0; i < gang.nlocal; i++) {
		TRY(place_call(&places[i], gang.comm[i]));
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaEventRecord(over[i], places[i].stream));
	}
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaEventSynchronize(over[i]));
		REQUIRE(gang.nranks > gang_devices() || cudaStreamQuery(busy[i]) == cudaErrorNotReady,
		        "rank %d: the busy kernel had ended before the call", places[i].rank);
	}
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_judge(&places[i], 1));
	TRY(places_settle(places, &gang, "beside busy kernels"));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaStreamSynchronize(busy[i]));
		CUDA(cudaStreamDestroy(busy[i]));
		CUDA(cudaEventDestroy(over[i]));
	}
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* The other one's calls are under way; nobody waits for them first. */
static int a_communicator_is_destroyed_beside_calls_of_another(void)
{
	struct gang gangs[2];
	struct place places[2][GANG_MOST];
	for (int which = 0; which < 2; which++) {
		TRY(gang_open(&gangs[which], "cuda"));
		TRY(places_open(places[which], &gangs[which], COUNT));
	}
	TRY(places_round(places[0], &gangs[0], 1, 0));
	for (uint32_t round = 1; round <= 20; round++)
		TRY(places_round(places[1], &gangs[1], round, 1000000));
	TRY(places_settle(places[0], &gangs[0], "the one that ends"));
	TRY(gang_close(&gangs[0]));
	TRY(places_settle(places[1], &gangs[1], "the one that stays"));
	TRY(gang_close(&gangs[1]));
	TRY(places_close(places[0], &gangs[0]));
	return places_close(places[1], &gangs[1]);
}

enum use { BY_FREE, BY_ALLOCATION, BY_REGISTRATION, BY_PINNED_MEMORY };

/* What CUDA may do only while the GPU has nothing to do. */
static int use_the_driver(enum use use, void **memory, size_t bytes)
{
	void *pinned;
	if (use == BY_FREE)
		CUDA(cudaFree(*memory));
	if (use == BY_FREE || use == BY_ALLOCATION)
		CUDA(cudaMalloc(memory, bytes));
	if (use == BY_PINNED_MEMORY) {
		CUDA(cudaMallocHost(&pinned, bytes));
		CUDA(cudaFreeHost(pinned));
	}
	if (use == BY_REGISTRATION) {
		REQUIRE(!posix_memalign(&pinned, 4096, bytes), "no memory");
		CUDA(cudaHostRegister(pinned, bytes, cudaHostRegisterDefault));
		CUDA(cudaHostUnregister(pinned));
		free(pinned);
	}
	return 0;
}

/*
 * Calls that all ranks have made, so nothing but the driver can keep them from finishing; then this thread goes into
 * the driver.
 */
static int memory_calls_beside(enum use use)
{
	struct gang gang;
	struct place places[GANG_MOST];
	void *memory[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, 16 << 20));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMalloc(&memory[i], 8 << 20));
	}
	for (uint32_t round = 1; round <= 10; round++) {
		TRY(places_round(places, &gang, round, 0));
		for (int i = 0; i < gang.nlocal; i++) {
			CUDA(cudaSetDevice(places[i].device));
			TRY(use_the_driver(use, &memory[i], 8 << 20));
		}
	}
	TRY(places_settle(places, &gang, "beside the driver"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* Not kept: the driver waits for the call in a lock that the lanes need (docs/design/waiting.md). */
static int memory_is_freed_beside_calls_under_way(void)
{
	return memory_calls_beside(BY_FREE);
}

static int memory_is_allocated_beside_calls_under_way(void)
{
	return memory_calls_beside(BY_ALLOCATION);
}

static int memory_is_registered_beside_calls_under_way(void)
{
	return memory_calls_beside(BY_REGISTRATION);
}

static int pinned_memory_is_allocated_beside_calls_under_way(void)
{
	return memory_calls_beside(BY_PINNED_MEMORY);
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it),
	        TEST(the_default_stream_is_a_stream_too),
	        TEST(the_default_stream_of_a_thread_is_a_stream_too),
	        TEST(a_call_returns_before_its_stream_reaches_it),
	        TEST(another_stream_that_waits_for_an_event_sees_the_result),
	        TEST(a_thread_per_rank_calls_and_waits_by_itself),
	        TEST(a_stream_of_another_gpu_is_refused),
	        TEST(two_communicators_work_on_two_streams_at_once),
	        TEST(calls_in_sixteen_streams_wait_at_once_and_all_finish),
	        TEST(calls_in_sixteen_streams_wait_until_the_last_rank_has_made_its_own),
	        TEST(a_kernel_is_launched_for_the_first_time_beside_a_call_that_waits),
	        TEST(calls_finish_while_kernels_hold_every_multiprocessor),
	        TEST(a_communicator_is_destroyed_beside_calls_of_another),
	        TEST(a_first_launch_does_not_wait_for_a_call_whose_other_ranks_are_late),
	        HIDDEN(memory_is_freed_beside_calls_under_way),
	        HIDDEN(memory_is_allocated_beside_calls_under_way),
	        HIDDEN(memory_is_registered_beside_calls_under_way),
	        HIDDEN(pinned_memory_is_allocated_beside_calls_under_way),
	        HIDDEN(calls_in_forty_streams_wait_at_once_and_all_finish),
	        HIDDEN(calls_in_sixteen_streams_of_the_greatest_priority_all_finish),
	};
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
