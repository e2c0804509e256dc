/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must be right every time, however often: calls with a kernel directly behind, replays, buffers that are freed
 * and come again at the same addresses; and buffers of every kind. Arguments beside the tests' names: calls=N,
 * replays=N, buffers=N.
 */
#include "tests/gpu/data.cuh"
#include "tests/gpu/vmm.cuh"

static long most_calls = 100000, most_replays = 10000, most_buffers = 1000;

#define SMALL               1024 /* elements: 4 KiB */
#define SMALL_GRID          4, 256
#define AT_LEAST_PER_SECOND 2000 /* calls, or the test has not ended in time */

static void allow(long calls)
{
	alarm(60 + (unsigned)(calls / AT_LEAST_PER_SECOND));
}

/* ---- a kernel directly behind each call ---- */

/* Judges what the call before it has brought, and writes what the one behind it takes. */
static __global__ void judge_and_write(const uint32_t *output, bool gathered, uint32_t *input, size_t count, int rank,
                                       int nranks, uint32_t round, unsigned long long *wrong)
{
	unsigned long long mine = 0;
	size_t first = blockIdx.x * (size_t)blockDim.x + threadIdx.x, step = (size_t)gridDim.x * blockDim.x;
	for (size_t i = first; i < (gathered ? count * (size_t)nranks : count); i += step)
		mine += output[i] != (gathered ? data_gathered(count, round, i) : data_sum(nranks, round, i));
	if (mine)
		atomicAdd(wrong, mine);
	for (size_t i = first; i < count; i += step)
		input[i] = data_value(rank, round + 1, i);
}

static int call_and_judge(struct place *place, ferryComm_t comm, bool gathers, uint32_t round)
{
	CUDA(cudaSetDevice(place->device));
	if (gathers)
		FERRY(ferryAllGather(place->input, place->output, SMALL, ferryUint32, comm,
		                     (ferryStream_t)place->stream));
	else
		FERRY(ferryAllReduce(place->input, place->output, SMALL, ferryUint32, ferrySum, comm,
		                     (ferryStream_t)place->stream));
	judge_and_write<<<SMALL_GRID, 0, place->stream>>>(place->output, gathers, place->input, SMALL, place->rank,
	                                                  place->nranks, round, place->wrong);
	CUDA(cudaGetLastError());
	return 0;
}

static int calls_in_a_row(bool gathers)
{
	struct gang gang;
	struct place places[GANG_MOST];
	long calls = most_calls / 2;
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, (size_t)SMALL * (size_t)gang.nranks));
	allow(calls);
	for (int i = 0; i < gang.nlocal; i++)
		TRY(place_write(&places[i], 1, 0));
	double start = check_seconds();
	for (long round = 1; round <= calls; round++)
		for (int i = 0; i < gang.nlocal; i++)
			TRY(call_and_judge(&places[i], gang.comm[i], gathers, (uint32_t)round));
	TRY(places_settle(places, &gang, gathers ? "AllGathers in a row" : "AllReduces in a row"));
	check_note("%ld %s of 4 KiB, each judged by a kernel directly behind: all right, %.1f us each", calls,
	           gathers ? "AllGathers" : "AllReduces", 1e6 * (check_seconds() - start) / (double)calls);
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int what_allreduce_brings_is_there_for_the_kernel_behind_it_every_time(void)
{
	return calls_in_a_row(false);
}

static int what_allgather_brings_is_there_for_the_kernel_behind_it_every_time(void)
{
	return calls_in_a_row(true);
}

/* ---- replays ---- */

#define EIGHT 8

/*
 * Of eight outputs, one behind another: every other pair has gathered, the others have reduced. What was judged is
 * wiped, so that a call that does nothing shows.
 */
static __global__ void judge_eight(uint32_t *outputs, size_t count, int nranks, const uint32_t *round,
                                   unsigned long long *wrong)
{
	unsigned long long mine = 0;
	size_t each = count * (size_t)nranks, step = (size_t)gridDim.x * blockDim.x;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < EIGHT * each; i += step) {
		bool gathered = i / each / 2 % 2;
		size_t at = i % each;
		if (!gathered && at >= count)
			continue;
		mine += outputs[i] != (gathered ? data_gathered(count, *round, at) : data_sum(nranks, *round, at));
		outputs[i] = 0xdeadbeef;
	}
	if (mine)
		atomicAdd(wrong, mine);
}

/* The calls take turns on two communicators, two collectives each. */
static int capture_eight(struct place *place, ferryComm_t *comms, cudaGraphExec_t *graph)
{
	cudaGraph_t captured;
	CUDA(cudaSetDevice(place->device));
	CUDA(cudaStreamBeginCapture(place->stream, cudaStreamCaptureModeGlobal));
	write_input_of<<<SMALL_GRID, 0, place->stream>>>(place->input, SMALL, place->rank, place->round);
	for (int call = 0; call < EIGHT; call++) {
		uint32_t *output = place->output + (size_t)call * SMALL * (size_t)place->nranks;
		ferryStream_t stream = (ferryStream_t)place->stream;
		if (call / 2 % 2)
			FERRY(ferryAllGather(place->input, output, SMALL, ferryUint32, comms[call % 2], stream));
		else
			FERRY(ferryAllReduce(place->input, output, SMALL, ferryUint32, ferrySum, comms[call % 2],
			                     stream));
	}
	judge_eight<<<GRID, 0, place->stream>>>(place->output, SMALL, place->nranks, place->round, place->wrong);
	next_round<<<1, 1, 0, place->stream>>>(place->round);
	CUDA(cudaStreamEndCapture(place->stream, &captured));
	CUDA(cudaGraphInstantiate(graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	return 0;
}

static int a_graph_of_eight_calls_on_two_communicators_is_right_in_every_replay(void)
{
	struct gang gangs[2];
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	for (int which = 0; which < 2; which++)
		TRY(gang_open(&gangs[which], "cuda"));
	int nlocal = gangs[0].nlocal;
	TRY(places_open(places, &gangs[0], (size_t)SMALL * EIGHT * (size_t)gangs[0].nranks));
	for (int i = 0; i < nlocal; i++) {
		ferryComm_t comms[2] = {gangs[0].comm[i], gangs[1].comm[i]};
		TRY(capture_eight(&places[i], comms, &graphs[i]));
	}
	allow(most_replays * EIGHT);
	double start = check_seconds();
	for (long replay = 0; replay < most_replays; replay++)
		for (int i = 0; i < nlocal; i++) {
			CUDA(cudaSetDevice(places[i].device));
			CUDA(cudaGraphLaunch(graphs[i], places[i].stream));
		}
	TRY(places_settle(places, &gangs[0], "replays"));
	double us = 1e6 * (check_seconds() - start) / (double)most_replays;
	for (int i = 0; i < nlocal; i++) {
		uint32_t rounds = 0;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMemcpy(&rounds, places[i].round, sizeof rounds, cudaMemcpyDeviceToHost));
		REQUIRE(rounds == (uint32_t)most_replays, "%u replays instead of %ld", rounds, most_replays);
		CUDA(cudaGraphExecDestroy(graphs[i]));
	}
	check_note("%ld replays of eight calls on two communicators: all right, %.1f us each", most_replays, us);
	for (int which = 0; which < 2; which++)
		TRY(gang_close(&gangs[which]));
	return places_close(places, &gangs[0]);
}

/* ---- memory that comes and goes ---- */

#define MIB          ((size_t)1 << 20)
#define LARGE        (512 * MIB)
#define REMAINS      (64 * MIB) /* that may not come back */
#define COMES_BACK_S 2.0

static int free_memory(int device, size_t *bytes)
{
	size_t all;
	CUDA(cudaSetDevice(device));
	CUDA(cudaMemGetInfo(bytes, &all));
	return 0;
}

/* Allocates an input and an output, uses them, frees them; *first: the input's address. */
static int use_new_buffers(struct place *places, const struct gang *gang, size_t bytes, uint32_t round, void **first)
{
	struct place borrowed[GANG_MOST];
	for (int i = 0; i < gang->nlocal; i++) {
		borrowed[i] = places[i];
		borrowed[i].count = bytes / 4 - 64;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMalloc((void **)&borrowed[i].input, bytes));
		CUDA(cudaMalloc((void **)&borrowed[i].output, bytes));
	}
	*first = borrowed[0].input;
	TRY(places_round(borrowed, gang, round, 0));
	TRY(places_settle(borrowed, gang, "new buffers"));
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		/* in turns, so that what was the output comes again as the input */
		CUDA(cudaFree(round % 2 ? borrowed[i].input : borrowed[i].output));
		CUDA(cudaFree(round % 2 ? borrowed[i].output : borrowed[i].input));
	}
	return 0;
}

static int require_it_back(const struct place *places, const struct gang *gang, const size_t *before)
{
	double start = check_seconds(), longest = 0;
	for (int i = 0; i < gang->nlocal; i++) {
		size_t now = 0;
		bool back = false;
		while (!back && check_seconds() - start < COMES_BACK_S) {
			TRY(free_memory(places[i].device, &now));
			back = now + REMAINS >= before[i];
			usleep(back ? 0 : 20000);
		}
		longest = check_seconds() - start;
		REQUIRE(back, "rank %d: %zu MiB free, %zu at the start, %.1f s after the last call", places[i].rank,
		        now / MIB, before[i] / MIB, longest);
	}
	check_note("memory that was freed came back within %.0f ms of the last call", 1e3 * longest);
	return 0;
}

static int buffers_allocated_again_at_the_same_addresses_have_the_right_data_and_come_back(void)
{
	static const size_t sizes[] = {64 << 10, 2 * MIB, 6 * MIB, 20 * MIB, 512};
	struct gang gang;
	struct place places[GANG_MOST];
	size_t before[GANG_MOST];
	void *seen[64] = {}, *first;
	long again = 0;
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, 1001));
	TRY(places_round(places, &gang, 1, 0));
	TRY(use_new_buffers(places, &gang, LARGE, 2, &first)); /* what CUDA and Ferry themselves keep */
	usleep(1500000);                                         /* the router has forgotten it */
	TRY(places_round(places, &gang, 3, 0));
	TRY(places_settle(places, &gang, "before"));
	for (int i = 0; i < gang.nlocal; i++)
		TRY(free_memory(places[i].device, &before[i]));
	TRY(places_round(places, &gang, 4, 0)); /* nobody allocates before all have looked */
	TRY(places_settle(places, &gang, "before"));
	allow(20 * most_buffers);
	double start = check_seconds();
	for (long n = 0; n < most_buffers; n++) {
		bool known = false;
		TRY(use_new_buffers(places, &gang, sizes[n / 3 % 5], (uint32_t)n + 5, &first));
		for (void *one : seen)
			known = known || one == first;
		again += known;
		seen[n % 64] = first;
	}
	check_note("%ld pairs of buffers allocated, used and freed, %ld at addresses known before: all right, %.2f ms "
	           "each",
	           most_buffers, again, 1e3 * (check_seconds() - start) / (double)most_buffers);
	TRY(use_new_buffers(places, &gang, LARGE, 7, &first));
	TRY(require_it_back(places, &gang, before));
	TRY(places_round(places, &gang, 8, 0));
	TRY(places_settle(places, &gang, "after"));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* ---- buffers of every kind ---- */

enum kind { PLAIN, POOL, EXPORTABLE, PRIVATE, KINDS };
static const char *const kinds[] = {"cudaMalloc", "cudaMallocAsync", "exportable cuMemCreate", "private cuMemCreate"};

#define KIND_COUNT ((size_t)900001)
#define KIND_AT    ((size_t)12345) /* words before the buffer */
#define KIND_BYTES ((size_t)8 << 20)

/* At least KIND_BYTES; *bytes: how many. */
static int kind_take(enum kind kind, const struct place *place, char **block, size_t *bytes)
{
	CUDA(cudaSetDevice(place->device));
	*bytes = KIND_BYTES;
	if (kind == PLAIN)
		CUDA(cudaMalloc((void **)block, *bytes));
	else if (kind == POOL)
		CUDA(cudaMallocAsync((void **)block, *bytes, place->stream));
	else
		TRY(vmm_take_pieces(place->device, 1, kind == EXPORTABLE, block, bytes));
	return 0;
}

static int kind_give_back(enum kind kind, const struct place *place, char *block, size_t bytes)
{
	CUDA(cudaSetDevice(place->device));
	if (kind == PLAIN)
		CUDA(cudaFree(block));
	else if (kind == POOL)
		CUDA(cudaFreeAsync(block, place->stream));
	else
		TRY(vmm_give_back(block, bytes));
	return 0;
}

static int rounds_between(enum kind from, enum kind to, const struct place *places, const struct gang *gang)
{
	struct place borrowed[GANG_MOST];
	char *blocks[2][GANG_MOST], when[96];
	size_t bytes[2];
	snprintf(when, sizeof when, "from %s to %s", kinds[from], kinds[to]);
	for (int i = 0; i < gang->nlocal; i++) {
		TRY(kind_take(from, &places[i], &blocks[0][i], &bytes[0]));
		TRY(kind_take(to, &places[i], &blocks[1][i], &bytes[1]));
		borrowed[i] = places[i];
		borrowed[i].input = (uint32_t *)blocks[0][i] + KIND_AT;
		borrowed[i].output = (uint32_t *)blocks[1][i] + 3 * KIND_AT;
	}
	for (uint32_t round = 1; round <= 5; round++)
		TRY(places_round(borrowed, gang, 10 * (uint32_t)(from * KINDS + to) + round, 0));
	TRY(places_settle(borrowed, gang, when));
	for (int i = 0; i < gang->nlocal; i++) {
		TRY(kind_give_back(from, &places[i], blocks[0][i], bytes[0]));
		TRY(kind_give_back(to, &places[i], blocks[1][i], bytes[1]));
	}
	return 0;
}

static int buffers_of_every_kind_go_with_each_other_at_any_offset(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, KIND_COUNT));
	for (int from = 0; from < KINDS; from++)
		for (int to = 0; to < KINDS; to++)
			TRY(rounds_between((enum kind)from, (enum kind)to, places, &gang));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static bool take_number(const char *argument, const char *name, long *number)
{
	size_t length = strlen(name);
	if (strncmp(argument, name, length) || argument[length] != '=')
		return false;
	*number = atol(argument + length + 1);
	return true;
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(what_allreduce_brings_is_there_for_the_kernel_behind_it_every_time),
	        TEST(what_allgather_brings_is_there_for_the_kernel_behind_it_every_time),
	        TEST(a_graph_of_eight_calls_on_two_communicators_is_right_in_every_replay),
	        TEST(buffers_allocated_again_at_the_same_addresses_have_the_right_data_and_come_back),
	        TEST(buffers_of_every_kind_go_with_each_other_at_any_offset),
	};
	int words = 1;
	for (int i = 1; i < argc; i++)
		if (!take_number(argv[i], "calls", &most_calls) && !take_number(argv[i], "replays", &most_replays) &&
		    !take_number(argv[i], "buffers", &most_buffers))
			argv[words++] = argv[i];
	if (most_calls < 2 || most_replays < 1 || most_buffers < 1) {
		fprintf(stderr, "gpu_repeated: calls=, replays= and buffers= take a number\n");
		return 64;
	}
	setenv("FERRY_ROUTER", "auto", 0); /* without a launcher too */
	return check_main(words, argv, tests, sizeof tests / sizeof tests[0]);
}
