/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/places.h"

#include "tests/fake_cuda/routers.h"
#include "tests/hosted.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BEFORE       20 /* bytes of an allocation before a buffer: off every line, on the element */
#define PATIENCE_MS  60000

static CUcontext contexts[FERRY_MAX_RANKS];
static int open_gangs; /* of the test */
static bool hosted;    /* routers are in this process */

bool places_reduce(void)
{
	return getenv("FERRY_TEST_REDUCES");
}

bool places_gather(void)
{
	return getenv("FERRY_TEST_PUSHES");
}

static size_t outputs(const struct place *place)
{
	return places_gather() ? place->count * (size_t)place->nranks : place->count;
}

void doze(int milliseconds)
{
	nanosleep(&(struct timespec){milliseconds / 1000, milliseconds % 1000 * 1000000l}, NULL);
}

void *pointer_of(CUdeviceptr address)
{
	return (void *)(uintptr_t)address;
}

void hold(void *until_zero)
{
	const _Atomic int *held = until_zero;
	while (atomic_load(held))
		doze(1);
}

void fake_is_the_driver(void)
{
	const char *host = getenv("FERRY_TEST_HOST");
	char machine[32];
	hosted = host && !strcmp(host, "here");
	snprintf(machine, sizeof machine, "suite %d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 0); /* a suite's processes share GPUs with no other suite */
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	setenv("FERRY_DEVICE", host ? "host" : "cuda", 1);
	setenv("FERRY_KERNELS", "off", 0); /* suites are about what routers do, unless they say otherwise */
	if (!hosted)
		routers_use();
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		exit(1);
}

int no_misuse(void **state)
{
	(void)state;
	open_gangs = 0;
	routers_close();
	assert_int_equal(fake_cuda_misuses(), 0);
	return 0;
}

/* ---- gangs ---- */

/* Routers have the environment of the first gang. */
int domains_asked_for(void)
{
	const char *asked = getenv("FERRY_TEST_DOMAINS");
	return asked ? atoi(asked) : 1;
}

void domains_open(int domains)
{
	char text[8];
	snprintf(text, sizeof text, "%d", domains);
	setenv("FERRY_DOMAINS", text, 1);
	if (domains < domains_asked_for()) {
		domains = 2;
		setenv("FERRY_LAYOUT", "0: cpus=0 devices=0,2; 1: cpus=1 devices=1,3", 1);
	} else {
		unsetenv("FERRY_LAYOUT");
	}
	if (hosted) {
		hosted_routers(domains);
		return;
	}
	if (!open_gangs)
		routers_close();
	routers_open(domains);
	open_gangs++;
}

void domains_close(void)
{
	open_gangs--;
}

void gang_open(struct gang *gang, int nranks, const int *devices, int domains)
{
	domains_open(domains);
	*gang = (struct gang){nranks, devices, {NULL}};
	OK(ferryCommInitAll(gang->comms, nranks, devices));
}

void gang_close(struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		OK(ferryCommDestroy(gang->comms[rank]));
	domains_close();
}

void place_enter(const struct place *place)
{
	CUdevice device;
	CU(cuDeviceGet(&device, place->device));
	if (!contexts[place->device])
		CU(cuDevicePrimaryCtxRetain(&contexts[place->device], device));
	CU(cuCtxSetCurrent(contexts[place->device]));
}

static CUdeviceptr open_buffer(CUdeviceptr *memory, size_t bytes)
{
	CU(cuMemAlloc(memory, bytes + 2 * BEFORE));
	sampled_set(fake_cuda_reach(*memory), 0xa5, bytes + 2 * BEFORE);
	return *memory + BEFORE;
}

/* The bytes around a buffer are what they were. */
static void close_buffer(CUdeviceptr memory, size_t bytes)
{
	const unsigned char *all = fake_cuda_reach(memory);
	for (size_t i = 0; i < BEFORE; i++)
		if (all[i] != 0xa5 || all[BEFORE + bytes + i] != 0xa5)
			fail_msg("byte %zu before or behind a buffer was written", i);
	CU(cuMemFree(memory));
}

void place_open(struct place *place, int device, int rank, int nranks, size_t count)
{
	*place = (struct place){.device = device, .rank = rank, .nranks = nranks, .count = count};
	place_enter(place);
	CU(cuStreamCreate(&place->stream, CU_STREAM_NON_BLOCKING));
	place->input = open_buffer(&place->memory[0], count * sizeof(uint32_t));
	place->output = open_buffer(&place->memory[1], outputs(place) * sizeof(uint32_t));
	if (places_reduce()) /* as after a round */
		memset(fake_cuda_reach(place->output), 0, outputs(place) * sizeof(uint32_t));
}

void place_close(struct place *place)
{
	place_enter(place);
	if (place->stream && place->stream != CU_STREAM_PER_THREAD)
		CU(cuStreamDestroy(place->stream));
	for (int which = 0; which < 2; which++)
		close_buffer(place->memory[which], (which ? outputs(place) : place->count) * sizeof(uint32_t));
}

void places_open(struct place *places, const struct gang *gang, size_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		place_open(&places[rank], gang->devices[rank], rank, gang->nranks, count);
}

void places_close(struct place *places, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		place_close(&places[rank]);
}

/* ---- rounds ---- */

/*
 * Buffers are written and judged by runs of elements: ThreadSanitizer looks at each access, and at a copy once. What
 * makes a run touches nothing else.
 */
#define RUN 512

#define ROOT 1 /* of a Reduce */

/* Adds a rank's elements from `first` on, if it is not the only one. */
UNSEEN static void make_run(uint32_t *run, uint32_t rank, uint32_t round, size_t first, size_t count, bool added)
{
	for (size_t i = 0; i < count; i++)
		run[i] = (added ? run[i] : 0) + (rank + 1) * 2654435761u +
		         (round + 3) * (uint32_t)(first + i + 1) * 40503u;
}

static size_t run_length(const struct place *place, size_t first)
{
	return place->count - first < RUN ? place->count - first : RUN;
}

/* Whether it is so, and from now on 0. */
static void judge_run(struct place *place, uint32_t *output, const uint32_t *run, size_t count)
{
	bool same = sampled_same(output, run, count * sizeof *run);
	for (size_t i = 0; i < count && !same; i++)
		place->wrong += output[i] != run[i];
	sampled_set(output, 0, count * sizeof *run);
}

/* One rank's elements. */
static void judge_elements(struct place *place, uint32_t *output, int rank)
{
	uint32_t run[RUN];
	for (size_t i = 0; i < place->count; i += RUN) {
		make_run(run, (uint32_t)rank, place->round, i, run_length(place, i), false);
		judge_run(place, output + i, run, run_length(place, i));
	}
}

static void write_input(void *argument)
{
	struct place *place = argument;
	uint32_t *input = fake_cuda_reach(place->input);
	if (place->wait_ms)
		doze(place->wait_ms);
	uint32_t run[RUN];
	for (size_t i = 0; i < place->count; i += RUN) {
		make_run(run, (uint32_t)place->rank, place->round, i, run_length(place, i), false);
		sampled_copy(input + i, run, run_length(place, i) * sizeof *run);
	}
}

static void judge_gathered(struct place *place)
{
	uint32_t *output = fake_cuda_reach(place->output);
	for (int rank = 0; rank < place->nranks; rank++)
		judge_elements(place, output + (size_t)rank * place->count, rank);
	place->round++;
}

static void judge_output(void *argument)
{
	struct place *place = argument;
	uint32_t *output = fake_cuda_reach(place->output);
	if (places_gather()) {
		judge_gathered(place);
		return;
	}
	uint32_t sums[RUN] = {0};
	const int added = places_reduce() && place->rank != ROOT ? 0 : place->nranks;
	for (size_t i = 0; i < place->count; i += RUN) {
		for (int rank = 0; rank < added; rank++)
			make_run(sums, (uint32_t)rank, place->round, i, run_length(place, i), rank > 0);
		judge_run(place, output + i, sums, run_length(place, i));
	}
	place->round++;
}

void place_write(struct place *place)
{
	CU(fake_cuda_launch(place->stream, write_input, place));
}

ferryResult_t place_try(const struct place *place, ferryComm_t comm)
{
	void *input = pointer_of(place->input), *output = pointer_of(place->output);
	ferryStream_t stream = (ferryStream_t)place->stream;
	if (places_reduce())
		return ferryReduce(input, place->rank == ROOT ? output : NULL, place->count, ferryUint32, ferrySum,
		                   ROOT, comm, stream);
	return places_gather() ? ferryAllGather(input, output, place->count, ferryUint32, comm, stream)
	                 : ferryAllReduce(input, output, place->count, ferryUint32, ferrySum, comm, stream);
}

void place_call(struct place *place, ferryComm_t comm)
{
	OK(place_try(place, comm));
}

/* Its input in the output, which it has come to by messages. */
static void judge_message(void *argument)
{
	struct place *place = argument;
	judge_elements(place, fake_cuda_reach(place->output), (place->rank + place->nranks - 1) % place->nranks);
	place->round++;
}

void place_judge_message(struct place *place)
{
	CU(fake_cuda_launch(place->stream, judge_message, place));
}

void place_judge(struct place *place)
{
	CU(fake_cuda_launch(place->stream, judge_output, place));
}

void place_round(struct place *place, ferryComm_t comm)
{
	place_enter(place);
	place_write(place);
	place_call(place, comm);
	place_judge(place);
}

void places_round(struct place *places, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		place_round(&places[rank], gang->comms[rank]);
}

static void settle(const struct place *place, ferryComm_t comm)
{
	CUresult state;
	place_enter(place);
	for (int waited = 0; (state = cuStreamQuery(place->stream)) == CUDA_ERROR_NOT_READY && waited < PATIENCE_MS;
	     waited++)
		doze(1);
	if (state) {
		ferryResult_t error = ferrySuccess;
		ferryCommGetAsyncError(comm, &error);
		fail_msg("rank %d: its stream has not come to its end in %d s: CUDA error %d; the communicator: %s, "
		         "\"%s\"",
		         place->rank, PATIENCE_MS / 1000, (int)state, ferryGetErrorString(error),
		         error ? ferryGetLastError(comm) : "");
	}
}

void places_settle(struct place *places, const struct gang *gang, uint32_t rounds)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		settle(&places[rank], gang->comms[rank]);
	for (int rank = 0; rank < gang->nranks; rank++)
		if (places[rank].wrong || places[rank].round != rounds)
			fail_msg("rank %d: %zu of %zu elements wrong, %u of %u rounds", rank, places[rank].wrong,
			         places[rank].count * places[rank].round, places[rank].round, rounds);
}
