/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks whose routers move their data: nothing that the application does beside a call can hold it up or deadlock with
 * it, under lazy loading and with any number of connections. No variable of CUDA's is set but where a test says so.
 */
#include "tests/gpu/again.h"
#include "tests/gpu/data.cuh"

#include <dirent.h>

#include <algorithm>

#define LATE_US      300000
#define LATE_SECONDS 10 /* for what must not hang */

/* ---- a rank that is late ---- */

#define LATE_COUNT ((size_t)16 << 20) /* 64 MiB */

/* What rank 0 has at hand beside its calls. */
struct beside {
	void *buffer, *host;
	cudaStream_t other;
	uint32_t *word;
};

static __global__ void never_launched_before(uint32_t *word)
{
	*word = 4711;
}

static int free_a_buffer(struct beside *beside)
{
	CUDA(cudaFree(beside->buffer));
	beside->buffer = NULL;
	return 0;
}

static int register_host_memory(struct beside *beside)
{
	CUDA(cudaHostRegister(beside->host, (size_t)16 << 20, cudaHostRegisterDefault));
	CUDA(cudaHostUnregister(beside->host));
	return 0;
}

static int launch_a_new_kernel(struct beside *beside)
{
	uint32_t found = 0;
	never_launched_before<<<1, 1, 0, beside->other>>>(beside->word);
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpyAsync(&found, beside->word, sizeof found, cudaMemcpyDeviceToHost, beside->other));
	CUDA(cudaStreamSynchronize(beside->other));
	REQUIRE(found == 4711, "the kernel has written %u", found);
	return 0;
}

static int wait_for_other_work(struct beside *beside)
{
	write_input<<<GRID, 0, beside->other>>>(beside->word, 1, 0, 1, 1000000);
	CUDA(cudaGetLastError());
	CUDA(cudaStreamSynchronize(beside->other));
	return 0;
}

static int wait_for_the_device(struct beside *beside)
{
	TRY(wait_for_other_work(beside));
	CUDA(cudaDeviceSynchronize()); /* for the late rank, too */
	return 0;
}

static int allocate(struct beside *beside)
{
	void *more;
	CUDA(cudaMalloc(&more, (size_t)48 << 20));
	CUDA(cudaMemsetAsync(more, 1, (size_t)48 << 20, beside->other));
	CUDA(cudaStreamSynchronize(beside->other));
	CUDA(cudaFree(more));
	return 0;
}

static int make_and_destroy_streams(struct beside *beside)
{
	cudaStream_t streams[8];
	for (cudaStream_t &stream : streams)
		CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	for (cudaStream_t &stream : streams)
		CUDA(cudaStreamDestroy(stream));
	return wait_for_other_work(beside);
}

static int beside_open(struct beside *beside)
{
	CUDA(cudaMalloc(&beside->buffer, (size_t)32 << 20));
	CUDA(cudaMalloc((void **)&beside->word, 64));
	CUDA(cudaStreamCreateWithFlags(&beside->other, cudaStreamNonBlocking));
	beside->host = aligned_alloc(4096, (size_t)16 << 20);
	REQUIRE(beside->host, "no 16 MiB");
	memset(beside->host, 1, (size_t)16 << 20);
	return 0;
}

static int beside_close(struct beside *beside)
{
	CUDA(cudaFree(beside->buffer));
	CUDA(cudaFree(beside->word));
	CUDA(cudaStreamDestroy(beside->other));
	free(beside->host);
	return 0;
}

/* AllReduce and AllGather, then `act` before anything waits for them; the judging kernels behind it. */
static int calls_with(struct place *place, ferryComm_t comm, uint32_t *gathered, uint32_t round,
                      int (*act)(struct beside *), struct beside *beside)
{
	size_t part = place->count / (size_t)place->nranks;
	TRY(place_write(place, round, 0));
	TRY(place_call(place, comm));
	FERRY(ferryAllGather(place->input, gathered, part, ferryUint32, comm, (ferryStream_t)place->stream));
	double start = check_seconds();
	if (act)
		TRY(act(beside));
	if (act)
		check_note("%-45s returned after %6.1f ms (the other ranks come at %d)", check_name,
		           1e3 * (check_seconds() - start), LATE_US / 1000);
	TRY(place_judge(place, round));
	count_wrong_gathered<<<GRID, 0, place->stream>>>(gathered, part, place->nranks, round, place->wrong);
	CUDA(cudaGetLastError());
	CUDA(cudaStreamSynchronize(place->stream));
	return 0;
}

static int beside_calls_of_a_late_rank(int (*act)(struct beside *))
{
	struct gang gang;
	struct place place;
	struct beside beside;
	uint32_t *gathered;
	if (!check_in_job())
		SKIP("the late rank is another process");
	alarm(LATE_SECONDS + 10);
	TRY(gang_open(&gang, "cuda"));
	TRY(place_open(&place, &gang, 0, LATE_COUNT));
	TRY(beside_open(&beside));
	CUDA(cudaMalloc((void **)&gathered, LATE_COUNT * sizeof *gathered));
	TRY(calls_with(&place, gang.comm[0], gathered, 1, NULL, NULL));
	alarm(LATE_SECONDS);
	if (place.rank)
		usleep(LATE_US);
	TRY(calls_with(&place, gang.comm[0], gathered, 2, place.rank ? NULL : act, &beside));
	alarm(LATE_SECONDS);
	TRY(places_settle(&place, &gang, "beside calls of a late rank"));
	CUDA(cudaFree(gathered));
	TRY(beside_close(&beside));
	TRY(gang_close(&gang));
	return places_close(&place, &gang);
}

static int memory_is_freed_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(free_a_buffer);
}

static int host_memory_is_registered_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(register_host_memory);
}

static int a_kernel_is_loaded_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(launch_a_new_kernel);
}

static int other_work_is_waited_for_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(wait_for_other_work);
}

static int the_device_is_waited_for_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(wait_for_the_device);
}

static int memory_is_allocated_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(allocate);
}

static int streams_come_and_go_beside_calls_of_a_late_rank(void)
{
	return beside_calls_of_a_late_rank(make_and_destroy_streams);
}

/* ---- more streams than connections ---- */

#define STREAMS 64

static struct place many[STREAMS][GANG_MOST];

static int stream_round(const struct gang *gang, int stream, int local, uint32_t round)
{
	struct place *place = &many[stream][local];
	TRY(place_write(place, round, 0));
	TRY(place_call(place, gang->comm[local]));
	return place_judge(place, round);
}

/* All streams of a rank wait before the next rank makes its first call, unless they share a GPU. */
static int streams_here(void)
{
	struct gang gang;
	alarm(LATE_SECONDS + 10);
	TRY(gang_open(&gang, "cuda"));
	bool shared = gang.nlocal > gang_devices();
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_open(many[stream], &gang, 1001 + (size_t)stream));
	for (uint32_t round = 1; round <= 3; round++) {
		alarm(LATE_SECONDS);
		if (check_in_job() && gang.rank[0])
			usleep(LATE_US);
		for (int outer = 0; outer < (shared ? STREAMS : gang.nlocal); outer++)
			for (int inner = 0; inner < (shared ? gang.nlocal : STREAMS); inner++)
				TRY(stream_round(&gang, shared ? outer : inner, shared ? inner : outer, round));
		for (int stream = 0; stream < STREAMS; stream++)
			TRY(places_settle(many[stream], &gang, "sixty-four streams"));
	}
	for (int stream = 0; stream < STREAMS; stream++)
		TRY(places_close(many[stream], &gang));
	return gang_close(&gang);
}

static int sixty_four_streams_with_a_call_and_a_kernel_each_finish(void)
{
	return streams_here();
}

/* All queues of a GPU are one then: a stream of one rank that waits keeps out the other rank's, for which it waits. */
static bool shares_its_only_connection(void)
{
	struct gang gang;
	return !gang_shape(&gang) && gang.nlocal > gang_devices();
}

static int sixty_four_streams_finish_with_one_connection(void)
{
	if (shares_its_only_connection())
		SKIP("ranks of this process share a GPU, and its one connection");
	static const char *const variables[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "1", NULL};
	return again("streams_here", variables);
}

static int sixty_four_streams_finish_with_eight_connections(void)
{
	static const char *const variables[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "8", NULL};
	return again("streams_here", variables);
}

#define WAITING 8 /* streams, with nothing behind their calls */

/* Kernels of another stream, one by one, each over within 100 ms of its launch. */
static int kernels_go_on(cudaStream_t stream, uint32_t *word)
{
	double longest = 0;
	for (uint32_t i = 0; i < 20; i++) {
		double start = check_seconds(), took = 0;
		write_input<<<GRID, 0, stream>>>(word, 1, 0, i, 0);
		CUDA(cudaGetLastError());
		while (cudaStreamQuery(stream) == cudaErrorNotReady && took < 0.1)
			took = check_seconds() - start;
		REQUIRE(cudaStreamQuery(stream) == cudaSuccess, "kernel %u has not run within 100 ms", i);
		longest = std::max(longest, took);
	}
	check_note("one connection, %d streams wait: a kernel of another takes %.0f us at most", WAITING,
	           1e6 * longest);
	return 0;
}

static int call_in_waiting_streams(const struct gang *gang, int local)
{
	for (int stream = 0; stream < WAITING; stream++)
		TRY(place_call(&many[stream][local], gang->comm[local]));
	return 0;
}

static int kernels_beside_waiting_streams(void)
{
	struct gang gang;
	cudaStream_t other;
	alarm(LATE_SECONDS + 10);
	TRY(gang_open(&gang, "cuda"));
	for (int stream = 0; stream < WAITING; stream++) {
		TRY(places_open(many[stream], &gang, 1001));
		TRY(places_round(many[stream], &gang, 1, 0));
		TRY(places_settle(many[stream], &gang, "before"));
		for (int i = 0; i < gang.nlocal; i++)
			TRY(place_write(&many[stream][i], 2, 0));
		TRY(places_settle(many[stream], &gang, "before"));
	}
	CUDA(cudaSetDevice(gang.device[0]));
	CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	if (gang.rank[0])
		usleep(2 * LATE_US);
	TRY(call_in_waiting_streams(&gang, 0));
	if (!gang.rank[0]) {
		CUDA(cudaSetDevice(gang.device[0]));
		usleep(20000); /* the streams wait by now */
		TRY(kernels_go_on(other, many[0][0].round));
		for (int stream = 0; stream < WAITING; stream++)
			REQUIRE(cudaStreamQuery(many[stream][0].stream) == cudaErrorNotReady,
			        "stream %d had ended before the other ranks called: nothing is shown", stream);
	}
	for (int i = 1; i < gang.nlocal; i++)
		TRY(call_in_waiting_streams(&gang, i));
	for (int stream = 0; stream < WAITING; stream++) {
		for (int i = 0; i < gang.nlocal; i++)
			TRY(place_judge(&many[stream][i], 2));
		TRY(places_settle(many[stream], &gang, "streams that waited"));
		TRY(places_close(many[stream], &gang));
	}
	CUDA(cudaSetDevice(gang.device[0]));
	CUDA(cudaStreamDestroy(other));
	return gang_close(&gang);
}

static int kernels_of_other_streams_go_on_with_one_connection(void)
{
	if (shares_its_only_connection())
		SKIP("ranks of this process share a GPU, and its one connection");
	static const char *const variables[] = {"CUDA_DEVICE_MAX_CONNECTIONS", "1", "FERRY_WAIT", "kernel", NULL};
	return again("kernels_beside_waiting_streams", variables);
}

/* ---- the caller ---- */

#define AHEAD   300
#define HELD_NS 5000000000ull

static __global__ void hold(const volatile uint32_t *released)
{
	for (uint64_t start = data_now(); !*released && data_now() - start < HELD_NS;)
		__nanosleep(1000);
}

static int calls_ahead_of_a_stream_that_is_held_return_at_once(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	volatile uint32_t *released;
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, 16384));
	CUDA(cudaMallocHost((void **)&released, sizeof *released));
	*released = 0;
	TRY(places_round(places, &gang, 1, 0));
	TRY(places_settle(places, &gang, "the first round"));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		hold<<<1, 1, 0, places[i].stream>>>(released);
		TRY(place_write(&places[i], 2, 0));
	}
	double start = check_seconds();
	for (int i = 0; i < gang.nlocal; i++)
		for (int call = 0; call < AHEAD; call++)
			TRY(place_call(&places[i], gang.comm[i]));
	double us = 1e6 * (check_seconds() - start) / AHEAD / gang.nlocal;
	bool held = true;
	for (int i = 0; i < gang.nlocal; i++)
		held = held && cudaStreamQuery(places[i].stream) == cudaErrorNotReady;
	*released = 1;
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_judge(&places[i], 2));
	TRY(places_settle(places, &gang, "three hundred calls"));
	check_note("%d calls of 64 KiB ahead of a held stream: %.1f us each", AHEAD, us);
	REQUIRE(held, "the stream went on before %d calls had returned (%.0f us each)", AHEAD, us);
	REQUIRE(us < 50, "%d calls ahead of a stream that is held took %.1f us each", AHEAD, us);
	CUDA(cudaFreeHost((void *)released));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

#define TIMED 31

static int time_calls(struct place *places, const struct gang *gang, size_t count, double *median)
{
	double us[TIMED];
	for (int i = 0; i < gang->nlocal; i++)
		places[i].count = count;
	for (int call = -3; call < TIMED; call++)
		for (int pass = 0; pass < 2; pass++)
			for (int i = 0; i < gang->nlocal; i++) {
				CUDA(cudaSetDevice(places[i].device));
				double start = check_seconds();
				if (pass)
					CUDA(cudaStreamSynchronize(places[i].stream));
				else
					TRY(place_call(&places[i], gang->comm[i]));
				if (!pass && !i && call >= 0)
					us[call] = 1e6 * (check_seconds() - start);
			}
	std::sort(us, us + TIMED);
	*median = us[TIMED / 2];
	return 0;
}

static int a_call_costs_its_caller_little_whatever_its_size(void)
{
	static const size_t kib[] = {64, 16 << 10, 256 << 10};
	struct gang gang;
	struct place places[GANG_MOST];
	double us[3];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, (size_t)64 << 20));
	for (int i = 0; i < 3; i++)
		TRY(time_calls(places, &gang, kib[i] * 256, &us[i]));
	check_note("the caller's time per AllReduce, median: 64 KiB %.1f us, 16 MiB %.1f us, 256 MiB %.1f us", us[0],
	           us[1], us[2]);
	REQUIRE(std::max({us[0], us[1], us[2]}) < 100, "%.1f, %.1f and %.1f us", us[0], us[1], us[2]);
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int threads_here(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *entry; tasks && (entry = readdir(tasks));)
		count += entry->d_name[0] != '.';
	if (tasks)
		closedir(tasks);
	return count;
}

static int another_communicator_brings_no_thread(void)
{
	struct gang gangs[2];
	struct place places[GANG_MOST];
	int threads[2];
	for (int which = 0; which < 2; which++) {
		TRY(gang_open(&gangs[which], "cuda"));
		if (!which)
			TRY(places_open(places, &gangs[0], 1001));
		TRY(places_round(places, &gangs[which], 1, 0));
		TRY(places_settle(places, &gangs[which], "a round"));
		threads[which] = threads_here();
	}
	check_note("threads of a rank's process: %d with a communicator, %d with two", threads[0], threads[1]);
	REQUIRE(threads[0] == threads[1], "%d threads, and %d with a second communicator", threads[0], threads[1]);
	TRY(places_close(places, &gangs[0]));
	TRY(gang_close(&gangs[1]));
	return gang_close(&gangs[0]);
}

/* ---- a rank that dies ---- */

#define DEATH_DESCRIPTOR 100 /* of a file with the time of death */

static int launch_and_see_it_end(struct place *place, const struct gang *gang, cudaGraphExec_t graph)
{
	double died = 0, ended;
	ferryResult_t error = ferrySuccess;
	CUDA(cudaGraphLaunch(graph, place->stream));
	for (double start = check_seconds(); cudaStreamQuery(place->stream) == cudaErrorNotReady;) {
		REQUIRE(check_seconds() - start < LATE_SECONDS, "the stream still waits");
		usleep(100);
	}
	ended = check_seconds();
	REQUIRE(pread(DEATH_DESCRIPTOR, &died, sizeof died, 0) == sizeof died, "the replay ended before the rank died");
	CUDA(cudaStreamQuery(place->stream));
	REQUIRE(ended - died < 1, "the stream waited for %.0f ms after the death", 1e3 * (ended - died));
	while (!error && check_seconds() - died < 1)
		FERRY(ferryCommGetAsyncError(gang->comm[0], &error));
	REQUIRE(error == ferryRemoteError, "the communicator's error is \"%s\"", ferryGetErrorString(error));
	printf("# a rank died: the stream of the other went on %.1f ms later; %s\n", 1e3 * (ended - died),
	       ferryGetLastError(gang->comm[0]));
	TRY(place_write(place, 1, 0)); /* the stream is free */
	CUDA(cudaStreamSynchronize(place->stream));
	CUDA(cudaGraphExecDestroy(graph));
	return 0;
}

static int replays_of_two_ranks_of_which_one_dies(void)
{
	struct gang gang;
	struct place place;
	cudaGraph_t captured;
	cudaGraphExec_t graph;
	TRY(gang_open(&gang, "cuda"));
	TRY(place_open(&place, &gang, 0, 1 << 20));
	CUDA(cudaStreamBeginCapture(place.stream, cudaStreamCaptureModeGlobal));
	write_input_of<<<GRID, 0, place.stream>>>(place.input, place.count, place.rank, place.round);
	TRY(place_call(&place, gang.comm[0]));
	count_wrong_of<<<GRID, 0, place.stream>>>(place.output, place.count, place.nranks, place.round, place.wrong);
	next_round<<<1, 1, 0, place.stream>>>(place.round);
	CUDA(cudaStreamEndCapture(place.stream, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	for (int i = 0; i < 10; i++)
		CUDA(cudaGraphLaunch(graph, place.stream));
	TRY(places_settle(&place, &gang, "ten replays"));
	if (place.rank) {
		usleep(LATE_US);
		double now = check_seconds();
		if (pwrite(DEATH_DESCRIPTOR, &now, sizeof now, 0) == sizeof now)
			kill(getpid(), SIGKILL);
		BROKEN("could not write the time of death: %s", strerror(errno));
	}
	TRY(launch_and_see_it_end(&place, &gang, graph));
	FERRY(ferryCommAbort(gang.comm[0]));
	return places_close(&place, &gang);
}

static int a_replay_whose_other_rank_dies_ends_within_a_second_and_the_stream_is_free(void)
{
	int statuses[2];
	if (check_in_job())
		SKIP("starts ranks of its own");
	FILE *file = tmpfile();
	REQUIRE(file && dup2(fileno(file), DEATH_DESCRIPTOR) >= 0, "no file: %s", strerror(errno));
	TRY(again_as_ranks("replays_of_two_ranks_of_which_one_dies", 2, statuses));
	fclose(file);
	close(DEATH_DESCRIPTOR);
	REQUIRE(WIFSIGNALED(statuses[1]) && WTERMSIG(statuses[1]) == SIGKILL, "the rank that dies has status 0x%x",
	        (unsigned)statuses[1]);
	REQUIRE(WIFEXITED(statuses[0]) && !WEXITSTATUS(statuses[0]), "the other rank has status 0x%x",
	        (unsigned)statuses[0]);
	return 0;
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(a_kernel_is_loaded_beside_calls_of_a_late_rank), /* first: nothing is loaded yet */
	        TEST(memory_is_freed_beside_calls_of_a_late_rank),
	        TEST(host_memory_is_registered_beside_calls_of_a_late_rank),
	        TEST(other_work_is_waited_for_beside_calls_of_a_late_rank),
	        TEST(the_device_is_waited_for_beside_calls_of_a_late_rank),
	        TEST(memory_is_allocated_beside_calls_of_a_late_rank),
	        TEST(streams_come_and_go_beside_calls_of_a_late_rank),
	        TEST(sixty_four_streams_with_a_call_and_a_kernel_each_finish),
	        TEST(sixty_four_streams_finish_with_one_connection),
	        TEST(sixty_four_streams_finish_with_eight_connections),
	        TEST(kernels_of_other_streams_go_on_with_one_connection),
	        TEST(calls_ahead_of_a_stream_that_is_held_return_at_once),
	        TEST(a_call_costs_its_caller_little_whatever_its_size),
	        TEST(another_communicator_brings_no_thread),
	        TEST(a_replay_whose_other_rank_dies_ends_within_a_second_and_the_stream_is_free),
	        HIDDEN(streams_here),
	        HIDDEN(kernels_beside_waiting_streams),
	        HIDDEN(replays_of_two_ranks_of_which_one_dies),
	};
	unsetenv("CUDA_MODULE_LOADING"); /* lazy */
	if (!getenv(AGAIN_MARK))
		unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
	setenv("FERRY_ROUTER", "auto", 0); /* without a launcher too */
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
