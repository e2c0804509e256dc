/* SPDX-License-Identifier: Apache-2.0 */
/* Calls take their place in CUDA streams: nothing but the stream between the kernel that writes and the one that reads. */
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

/* More than the hardware has queues: streams that wait must not keep out the copies that they wait for. */
static int calls_in_forty_streams_wait_at_once_and_all_finish(void)
{
	enum { STREAMS = 40, SMALL = 1001 };
	static struct place places[STREAMS][GANG_MOST];
	struct gang gang;
	TRY(gang_open(&gang, "cuda"));
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_open(places[stream], &gang, SMALL + stream));
	for (uint32_t round = 1; round <= 3; round++)
		for (int stream = 0; stream < STREAMS; stream++)
			for (int i = 0; i < gang.nlocal; i++) {
				bool last = places[stream][i].rank == gang.nranks - 1;
				TRY(place_write(&places[stream][i], round, last && !stream ? 50000000 : 0));
				TRY(place_call(&places[stream][i], gang.comm[i]));
				TRY(place_judge(&places[stream][i], round));
			}
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_settle(places[stream], &gang, "forty streams"));
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_close(places[stream], &gang));
	return gang_close(&gang);
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

/* No SM is needed: the call ends while kernels of another stream have them all. */
static int calls_finish_while_kernels_hold_every_multiprocessor(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaStream_t busy[GANG_MOST];
	cudaEvent_t over[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
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

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(call_starts_when_its_stream_reaches_it_and_later_work_waits_for_it),
	        TEST(the_default_stream_is_a_stream_too),
	        TEST(the_default_stream_of_a_thread_is_a_stream_too),
	        TEST(two_communicators_work_on_two_streams_at_once),
	        TEST(calls_in_forty_streams_wait_at_once_and_all_finish),
	        TEST(a_kernel_is_launched_for_the_first_time_beside_a_call_that_waits),
	        TEST(calls_finish_while_kernels_hold_every_multiprocessor),
	        TEST(a_communicator_is_destroyed_beside_calls_of_another),
	};
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
