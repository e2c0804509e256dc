/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rounds.h"

#include "tests/fake_cuda/routers.h"
#include "tests/sanitized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AROUND 61 /* bytes before and behind what a call may touch */

static const char *const kinds[KINDS] = {"AllGather", "AllToAll", "Broadcast", "Gather",
                                         "Scatter",   "a ring of messages", "messages between all",
                                         "AllToAllv"};

/*
 * What rank `from` sends to rank `to` (a call that sends all the same: 0) in that round: stretches of a ramp, of PERIOD
 * bytes, each beginning elsewhere in it. They are written and compared by the stretch, as the sanitizers look at bytes
 * one by one.
 */
#define PERIOD 256

static unsigned char ramp[2 * PERIOD];

__attribute__((constructor)) static void make_ramp(void)
{
	for (unsigned i = 0; i < sizeof ramp; i++)
		ramp[i] = (unsigned char)(i * 7);
}

static const unsigned char *stretch(uint32_t round, int from, int to, size_t at)
{
	return ramp + (round * 101 + (uint32_t)from * 37 + (uint32_t)to * 59 + at / PERIOD * 13 + 1) % PERIOD;
}

/* Bytes from a rank to another one: a block, but of an AllToAllv none, one, a third of it, or all. */
static size_t length_of(const struct what *what, int from, int to)
{
	const size_t lengths[] = {0, what->bytes > 0, what->bytes / 3, what->bytes};
	return what->kind == UNEVEN ? lengths[(from + 2 * to) % 4] : what->bytes;
}

static size_t length_at(size_t length, size_t at)
{
	return length - at < PERIOD ? length - at : PERIOD;
}

static bool sends_to_each(const struct what *what)
{
	return what->kind == ALLTOALL || what->kind == SCATTER || what->kind == EXCHANGE ||
	       what->kind == UNEVEN;
}

static size_t blocks_sent(const struct what *what, int rank)
{
	switch (what->kind) {
	case BROADCAST:
		return rank == what->root;
	case SCATTER:
		return rank == what->root ? (size_t)what->nranks : 0;
	default:
		return sends_to_each(what) ? (size_t)what->nranks : 1;
	}
}

static size_t blocks_received(const struct what *what, int rank)
{
	switch (what->kind) {
	case GATHER:
		return rank == what->root ? (size_t)what->nranks : 0;
	case BROADCAST:
	case SCATTER:
	case RING:
		return 1;
	default:
		return (size_t)what->nranks;
	}
}

/* Whose block comes to that place. */
static int source_of(const struct what *what, int rank, size_t block)
{
	if (what->kind == BROADCAST || what->kind == SCATTER)
		return what->root;
	return what->kind == RING ? (rank + what->nranks - 1) % what->nranks : (int)block;
}

unsigned char *seen(char *address)
{
	return fake_cuda_reach((CUdeviceptr)(uintptr_t)address);
}

void fill(void *argument)
{
	struct rank *mine = argument;
	const struct what *what = mine->what;
	size_t sent = blocks_sent(what, mine->rank), received = blocks_received(what, mine->rank);
	if (received)
		sampled_set(seen(mine->receive), 0xee, received * what->bytes);
	for (size_t block = 0; block < sent; block++) {
		unsigned char *into = seen(mine->send) + block * what->bytes;
		int to = sends_to_each(what) ? (int)block : 0;
		for (size_t at = 0; at < what->bytes; at += PERIOD)
			sampled_copy(into + at, stretch(mine->filled, mine->rank, to, at), length_at(what->bytes, at));
	}
	mine->filled++;
	if (mine->late_ms)
		doze(mine->late_ms);
}

void judge(void *argument)
{
	struct rank *mine = argument;
	const struct what *what = mine->what;
	size_t received = blocks_received(what, mine->rank);
	if (mine->late_ms)
		doze(mine->late_ms); /* a rank that goes on too early shows */
	for (size_t block = 0; block < received; block++) {
		const unsigned char *there = seen(mine->receive) + block * what->bytes;
		int from = source_of(what, mine->rank, block), to = sends_to_each(what) ? mine->rank : 0;
		size_t length = length_of(what, from, mine->rank);
		for (size_t at = 0; at < length; at += PERIOD)
			mine->wrong +=
				!sampled_same(there + at, stretch(mine->judged, from, to, at), length_at(length, at));
		mine->wrong += length < what->bytes && there[length] != 0xee;
	}
	mine->judged++;
}

/* ---- buffers ---- */

static CUdeviceptr make_memory(struct rank *mine, size_t bytes, bool pooled)
{
	CUdeviceptr memory;
	CU(pooled ? cuMemAllocAsync(&memory, bytes, mine->stream) : cuMemAlloc(&memory, bytes));
	CU(cuStreamSynchronize(mine->stream));
	sampled_set(fake_cuda_reach(memory), 0xa5, bytes);
	return memory;
}

static size_t room(const struct what *what)
{
	return what->bytes * (size_t)what->nranks + what->offset + 2 * AROUND;
}

static void rank_open(struct rank *mine, const struct what *what, int rank, int device, bool pooled)
{
	*mine = (struct rank){.what = what, .rank = rank, .device = device};
	place_enter(&(struct place){.device = device});
	CU(cuStreamCreate(&mine->stream, CU_STREAM_NON_BLOCKING));
	for (int i = 0; i < 2; i++)
		mine->memory[i] = make_memory(mine, room(what), pooled);
	mine->send = pointer_of(mine->memory[0] + AROUND + what->offset);
	mine->receive = pointer_of(mine->memory[1] + AROUND + what->offset);
	if (!what->in_place)
		return;
	if (what->kind == SCATTER && rank == what->root)
		mine->receive = mine->send + (size_t)rank * what->bytes;
	else if (what->kind == ALLGATHER || (what->kind == GATHER && rank == what->root))
		mine->send = mine->receive + (size_t)rank * what->bytes;
	else if (what->kind == ALLTOALL || what->kind == BROADCAST)
		mine->send = mine->receive;
}

static void rank_close(struct rank *mine)
{
	place_enter(&(struct place){.device = mine->device});
	CU(cuStreamSynchronize(mine->stream));
	for (int i = 0; i < 2; i++) {
		const unsigned char *all = fake_cuda_reach(mine->memory[i]);
		size_t end = room(mine->what);
		for (size_t at = 0; at < AROUND; at++)
			if (all[at] != 0xa5 || all[end - 1 - at] != 0xa5)
				fail_msg("a byte around a buffer of rank %d was written", mine->rank);
		CU(cuMemFree(mine->memory[i]));
	}
	CU(cuStreamDestroy(mine->stream));
}

void ranks_open(struct rank *ranks, const struct what *what, const struct gang *gang, bool pooled)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		rank_open(&ranks[rank], what, rank, gang->devices[rank], pooled);
}

void ranks_close(struct rank *ranks, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		rank_close(&ranks[rank]);
}

/* ---- rounds ---- */

static void messages(const struct rank *mine, ferryComm_t comm)
{
	const struct what *what = mine->what;
	ferryStream_t stream = (ferryStream_t)mine->stream;
	int next = (mine->rank + 1) % what->nranks, last = (mine->rank + what->nranks - 1) % what->nranks;
	OK(ferryGroupStart());
	if (what->kind == RING) {
		OK(ferrySend(mine->send, what->bytes, ferryUint8, next, comm, stream));
		OK(ferryRecv(mine->receive, what->bytes, ferryUint8, last, comm, stream));
	}
	for (int peer = 0; peer < what->nranks && what->kind == EXCHANGE; peer++) {
		size_t at = (size_t)peer * what->bytes;
		OK(ferrySend(mine->send + at, what->bytes, ferryUint8, peer, comm, stream));
		OK(ferryRecv(mine->receive + at, what->bytes, ferryUint8, peer, comm, stream));
	}
	OK(ferryGroupEnd());
}

static void uneven(const struct rank *mine, ferryComm_t comm)
{
	const struct what *what = mine->what;
	size_t sent[MOST_PLACES], received[MOST_PLACES], at[MOST_PLACES];
	for (int peer = 0; peer < what->nranks; peer++) {
		sent[peer] = length_of(what, mine->rank, peer);
		received[peer] = length_of(what, peer, mine->rank);
		at[peer] = (size_t)peer * what->bytes;
	}
	OK(ferryAllToAllv(mine->send, sent, at, mine->receive, received, at, ferryUint8, comm,
	                  (ferryStream_t)mine->stream));
}

void call(const struct rank *mine, ferryComm_t comm)
{
	const struct what *what = mine->what;
	ferryStream_t stream = (ferryStream_t)mine->stream;
	switch (what->kind) {
	case ALLGATHER:
		OK(ferryAllGather(mine->send, mine->receive, what->bytes, ferryUint8, comm, stream));
		break;
	case ALLTOALL:
		OK(ferryAllToAll(mine->send, mine->receive, what->bytes, ferryUint8, comm, stream));
		break;
	case BROADCAST:
		OK(ferryBroadcast(mine->send, mine->receive, what->bytes, ferryUint8, what->root, comm, stream));
		break;
	case GATHER:
		OK(ferryGather(mine->send, mine->receive, what->bytes, ferryUint8, what->root, comm, stream));
		break;
	case SCATTER:
		OK(ferryScatter(mine->send, mine->receive, what->bytes, ferryUint8, what->root, comm, stream));
		break;
	case UNEVEN:
		uneven(mine, comm);
		break;
	default:
		messages(mine, comm);
	}
}

void round_of(struct rank *ranks, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		place_enter(&(struct place){.device = ranks[rank].device});
		CU(fake_cuda_launch(ranks[rank].stream, fill, &ranks[rank]));
		call(&ranks[rank], gang->comms[rank]);
		CU(fake_cuda_launch(ranks[rank].stream, judge, &ranks[rank]));
	}
}

void settle(struct rank *ranks, const struct gang *gang, uint32_t rounds)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		CUresult state;
		int waited = 0;
		place_enter(&(struct place){.device = ranks[rank].device});
		for (; (state = cuStreamQuery(ranks[rank].stream)) == CUDA_ERROR_NOT_READY && waited < 60000; waited++)
			doze(1);
		ferryResult_t error = ferrySuccess;
		ferryCommGetAsyncError(gang->comms[rank], &error);
		if (state || error)
			fail_msg("%s, rank %d: CUDA error %d after %d ms; \"%s\"", kinds[ranks[rank].what->kind], rank,
			         (int)state, waited, error ? ferryGetLastError(gang->comms[rank]) : "");
	}
	for (int rank = 0; rank < gang->nranks; rank++)
		if (ranks[rank].wrong || ranks[rank].judged != rounds)
			fail_msg("%s of %zu bytes%s, rank %d of %d, root %d: %zu stretches wrong in %u of %u rounds",
			         kinds[ranks[rank].what->kind], ranks[rank].what->bytes,
			         ranks[rank].what->in_place ? " in place" : "", rank, gang->nranks,
			         ranks[rank].what->root, ranks[rank].wrong, ranks[rank].judged, rounds);
}

void rounds_of(const struct gang *gang, struct what what, int rounds, int late, bool pooled)
{
	struct rank ranks[MOST_PLACES];
	what.nranks = gang->nranks;
	ranks_open(ranks, &what, gang, pooled);
	if (late >= 0)
		ranks[late].late_ms = 3;
	for (int round = 0; round < rounds; round++)
		round_of(ranks, gang);
	settle(ranks, gang, (uint32_t)rounds);
	ranks_close(ranks, gang);
}

void all_kinds(const struct gang *gang, size_t bytes, size_t offset, bool pooled)
{
	int last = gang->nranks - 1;
	for (int kind = 0; kind < KINDS; kind++)
		for (int in_place = 0; in_place < (kind < RING ? 2 : 1); in_place++) {
			struct what what = {.kind = (enum kind)kind,
			                    .bytes = bytes,
			                    .offset = offset,
			                    .root = kind % 2 ? last : 0,
			                    .in_place = in_place};
			rounds_of(gang, what, REPEATS(4, 2), kind % gang->nranks, pooled);
		}
}

struct joiner {
	struct gang *gang;
	ferryUniqueId id;
	int rank;
	pthread_t thread;
	ferryResult_t result;
	char message[300];
};

static void *join(void *argument)
{
	struct joiner *joiner = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = joiner->gang->devices[joiner->rank];
	joiner->result = ferryCommInitRankConfig(&joiner->gang->comms[joiner->rank], joiner->gang->nranks, joiner->id,
	                                         joiner->rank, &config);
	if (joiner->result)
		snprintf(joiner->message, sizeof joiner->message, "%s", ferryGetLastError(NULL));
	return NULL;
}

/* As gang_open, but several ranks may be on one device. */
static void join_all(struct gang *gang, int nranks, const int *devices)
{
	struct joiner joiners[MOST_PLACES];
	ferryUniqueId id;
	domains_open(1);
	OK(ferryGetUniqueId(&id));
	*gang = (struct gang){nranks, devices, {NULL}};
	for (int rank = 0; rank < nranks; rank++) {
		joiners[rank] = (struct joiner){.gang = gang, .id = id, .rank = rank};
		assert_int_equal(pthread_create(&joiners[rank].thread, NULL, join, &joiners[rank]), 0);
	}
	for (int rank = 0; rank < nranks; rank++)
		pthread_join(joiners[rank].thread, NULL);
	for (int rank = 0; rank < nranks; rank++)
		if (joiners[rank].result)
			fail_msg("rank %d does not join: %s", rank, joiners[rank].message);
}

void open_with(struct gang *gang, int nranks, const int *devices, const char *fabrics, const char *shares)
{
	if (fabrics)
		setenv("FERRY_FABRICS", fabrics, 1);
	if (shares)
		setenv("FERRY_SHARES", shares, 1);
	join_all(gang, nranks, devices);
	unsetenv("FERRY_FABRICS");
	unsetenv("FERRY_SHARES");
}
