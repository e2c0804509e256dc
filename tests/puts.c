/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers push from GPU to GPU, over the double of the driver: what arrives, on how many ranks, GPUs and fabrics
 * whatsoever, and that nothing arrives before its receiver is ready. A round is a kernel that fills the buffers, the
 * call, and a kernel that judges, so that a push that comes early shows in the round before. What happens when somebody
 * dies: puts_failures.c.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include "ipc/attach.h"
#include "ipc/endpoint.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MOST_BYTES 300007 /* of a block */
#define AROUND     61     /* bytes before and behind what a call may touch */

static const int spread[] = {0, 1, 2, 3, 0, 1, 2, 3}, pairs[] = {0, 0, 1, 1, 0, 0, 1, 1};

enum kind { ALLGATHER, ALLTOALL, BROADCAST, GATHER, SCATTER, RING, EXCHANGE, KINDS };

static const char *const kinds[KINDS] = {"AllGather", "AllToAll", "Broadcast", "Gather",
                                         "Scatter",   "a ring of messages", "messages between all"};

/* What all ranks of a call have in common. */
struct what {
	enum kind kind;
	size_t bytes, offset; /* of a block; of the buffers in their allocations */
	int nranks, root;
	bool in_place;
};

struct rank {
	const struct what *what;
	int rank, device, late_ms;
	CUstream stream;
	CUdeviceptr memory[2];
	char *send, *receive;
	uint32_t filled, judged; /* rounds; the kernels' */
	size_t wrong;
};

/* Byte i of what rank `from` sends to rank `to` (a call that sends all the same: 0) in that round. */
static unsigned char byte_of(uint32_t round, int from, int to, size_t i)
{
	return (unsigned char)(round * 101 + (uint32_t)from * 37 + (uint32_t)to * 59 + i * 7 + (i >> 8) * 13 + 1);
}

static bool sends_to_each(const struct what *what)
{
	return what->kind == ALLTOALL || what->kind == SCATTER || what->kind == EXCHANGE;
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

/* Between the buffers' kernels and the host's view of them. */
static unsigned char *seen(char *address)
{
	return fake_cuda_reach((CUdeviceptr)(uintptr_t)address);
}

static void fill(void *argument)
{
	struct rank *mine = argument;
	const struct what *what = mine->what;
	size_t sent = blocks_sent(what, mine->rank), received = blocks_received(what, mine->rank);
	if (received)
		memset(seen(mine->receive), 0xee, received * what->bytes);
	for (size_t block = 0; block < sent; block++) {
		unsigned char *to = seen(mine->send) + block * what->bytes;
		for (size_t i = 0; i < what->bytes; i++)
			to[i] = byte_of(mine->filled, mine->rank, sends_to_each(what) ? (int)block : 0, i);
	}
	mine->filled++;
	if (mine->late_ms)
		doze(mine->late_ms);
}

static void judge(void *argument)
{
	struct rank *mine = argument;
	const struct what *what = mine->what;
	size_t received = blocks_received(what, mine->rank);
	if (mine->late_ms)
		doze(mine->late_ms); /* who is early shows */
	for (size_t block = 0; block < received; block++) {
		const unsigned char *there = seen(mine->receive) + block * what->bytes;
		int from = source_of(what, mine->rank, block);
		for (size_t i = 0; i < what->bytes; i++)
			mine->wrong += there[i] !=
			               byte_of(mine->judged, from, sends_to_each(what) ? mine->rank : 0, i);
	}
	mine->judged++;
}

/* ---- buffers ---- */

static CUdeviceptr make_memory(struct rank *mine, size_t bytes, bool pooled)
{
	CUdeviceptr memory;
	CU(pooled ? cuMemAllocAsync(&memory, bytes, mine->stream) : cuMemAlloc(&memory, bytes));
	CU(cuStreamSynchronize(mine->stream));
	memset(fake_cuda_reach(memory), 0xa5, bytes);
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

static void ranks_open(struct rank *ranks, const struct what *what, const struct gang *gang, bool pooled)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		rank_open(&ranks[rank], what, rank, gang->devices[rank], pooled);
}

static void ranks_close(struct rank *ranks, const struct gang *gang)
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

static void call(const struct rank *mine, ferryComm_t comm)
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
	default:
		messages(mine, comm);
	}
}

static void round_of(struct rank *ranks, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		place_enter(&(struct place){.device = ranks[rank].device});
		CU(fake_cuda_launch(ranks[rank].stream, fill, &ranks[rank]));
		call(&ranks[rank], gang->comms[rank]);
		CU(fake_cuda_launch(ranks[rank].stream, judge, &ranks[rank]));
	}
}

static void settle(struct rank *ranks, const struct gang *gang, uint32_t rounds)
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
			fail_msg("%s of %zu bytes%s, rank %d of %d, root %d: %zu bytes wrong in %u of %u rounds",
			         kinds[ranks[rank].what->kind], ranks[rank].what->bytes,
			         ranks[rank].what->in_place ? " in place" : "", rank, gang->nranks,
			         ranks[rank].what->root, ranks[rank].wrong, ranks[rank].judged, rounds);
}

static void rounds_of(const struct gang *gang, struct what what, int rounds, int late, bool pooled)
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

/* Every kind, in place and not, of such blocks; back to back, with one rank that comes late. */
static void all_kinds(const struct gang *gang, size_t bytes, size_t offset, bool pooled)
{
	int last = gang->nranks - 1;
	for (int kind = 0; kind < KINDS; kind++)
		for (int in_place = 0; in_place < (kind < RING ? 2 : 1); in_place++) {
			struct what what = {.kind = (enum kind)kind,
			                    .bytes = bytes,
			                    .offset = offset,
			                    .root = kind % 2 ? last : 0,
			                    .in_place = in_place};
			rounds_of(gang, what, 4, kind % gang->nranks, pooled);
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

static void open_with(struct gang *gang, int nranks, const int *devices, const char *fabrics, const char *shares)
{
	if (fabrics)
		setenv("FERRY_FABRICS", fabrics, 1);
	if (shares)
		setenv("FERRY_SHARES", shares, 1);
	join_all(gang, nranks, devices);
	unsetenv("FERRY_FABRICS");
	unsetenv("FERRY_SHARES");
}

/* ---- right ---- */

static void everything_is_right_on(int nranks, const int *devices)
{
	static const size_t sizes[] = {1, 1021, 70001, MOST_BYTES};
	struct gang gang;
	open_with(&gang, nranks, devices, "peer", NULL);
	for (int size = 0; size < 4; size++)
		if (nranks < 8 || size != 3)
			all_kinds(&gang, sizes[size], size % 2 ? 13 : 0, false);
	gang_close(&gang);
}

static void two_ranks_push_into_each_other(void **state)
{
	(void)state;
	everything_is_right_on(2, spread);
}

static void two_ranks_of_one_gpu_push_within_it(void **state)
{
	(void)state;
	everything_is_right_on(2, pairs);
}

static void four_ranks_push_on_four_gpus(void **state)
{
	(void)state;
	everything_is_right_on(4, spread);
}

static void four_ranks_push_on_two_gpus(void **state)
{
	(void)state;
	everything_is_right_on(4, pairs);
}

static void eight_ranks_push_on_four_gpus(void **state)
{
	(void)state;
	everything_is_right_on(8, spread);
}

static void eight_ranks_push_on_two_gpus(void **state)
{
	(void)state;
	everything_is_right_on(8, pairs);
}

static void calls_of_nothing_and_of_one_rank_are_calls_too(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 3, spread, "peer", NULL);
	all_kinds(&gang, 0, 0, false);
	gang_close(&gang);
	open_with(&gang, 1, spread, "peer", NULL);
	all_kinds(&gang, 70001, 5, false);
	gang_close(&gang);
}

/* In place: who pushes first must not overwrite what its receiver has not pushed yet. */
static void in_place_all_to_all_back_to_back_mixes_nothing(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 4, pairs, "peer", NULL);
	for (int late = -1; late < 4; late++)
		rounds_of(&gang, (struct what){.kind = ALLTOALL, .bytes = 100003, .in_place = true}, 10, late, false);
	gang_close(&gang);
}

/* Part of each block by the host: D2H, H2D and pushes in one call. */
static void both_fabrics_carry_their_parts_of_a_call(void **state)
{
	static const char *const shares[] = {"host=0.3", "host=0.001", "peer=0.05", "host=0.5,peer=0.5"};
	(void)state;
	for (int which = 0; which < 4; which++) {
		struct gang gang;
		open_with(&gang, 4, which % 2 ? pairs : spread, "host,peer", shares[which]);
		for (size_t bytes = 1; bytes < 400000; bytes = bytes * 60 + 7)
			all_kinds(&gang, bytes, 3, false);
		gang_close(&gang);
	}
}

/* Memory of pools cannot be exported: windows take their place, at both ends. */
static void memory_that_cannot_be_exported_goes_through_windows(void **state)
{
	struct gang gang;
	(void)state;
	open_with(&gang, 4, pairs, "peer", NULL);
	all_kinds(&gang, 70001, 7, true);
	gang_close(&gang);
	open_with(&gang, 2, spread, "host,peer", "host=0.4");
	all_kinds(&gang, 70001, 7, true);
	gang_close(&gang);
}

/* Registered before the first call, as memory that nobody puts into: the first push has it exported for others too. */
static void registered_buffers_are_pushed_into(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	void *handles[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 70001, .nranks = 2};
	(void)state;
	open_with(&gang, 2, spread, "peer", NULL);
	ranks_open(ranks, &what, &gang, false);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&(struct place){.device = spread[rank]});
		OK(ferryCommRegister(gang.comms[rank], ranks[rank].receive, 2 * what.bytes, &handles[rank]));
	}
	for (int round = 0; round < 20; round++)
		round_of(ranks, &gang);
	settle(ranks, &gang, 20);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&(struct place){.device = spread[rank]});
		OK(ferryCommDeregister(gang.comms[rank], handles[rank]));
	}
	ranks_close(ranks, &gang);
	gang_close(&gang);
}

/* ---- graphs ---- */

static CUgraphExec capture(struct rank *mine, ferryComm_t comm)
{
	CUgraph captured;
	CUgraphExec graph;
	place_enter(&(struct place){.device = mine->device});
	CU(cuStreamBeginCapture(mine->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 3; i++) {
		CU(fake_cuda_launch(mine->stream, fill, mine));
		call(mine, comm);
		CU(fake_cuda_launch(mine->stream, judge, mine));
	}
	CU(cuStreamEndCapture(mine->stream, &captured));
	CU(cuGraphInstantiateWithFlags(&graph, captured, 0));
	CU(cuGraphDestroy(captured));
	return graph;
}

static void replays_of(const struct gang *gang, struct what what, bool pooled)
{
	struct rank ranks[MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	what.nranks = gang->nranks;
	ranks_open(ranks, &what, gang, pooled);
	for (int rank = 0; rank < gang->nranks; rank++)
		graphs[rank] = capture(&ranks[rank], gang->comms[rank]);
	ranks[0].late_ms = 1;
	for (int replay = 0; replay < 12; replay++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			place_enter(&(struct place){.device = ranks[rank].device});
			CU(cuGraphLaunch(graphs[rank], ranks[rank].stream));
		}
	settle(ranks, gang, 36);
	for (int rank = 0; rank < gang->nranks; rank++)
		CU(cuGraphExecDestroy(graphs[rank]));
	ranks_close(ranks, gang);
}

static void captured_calls_push_in_each_replay(void **state)
{
	(void)state;
	for (int which = 0; which < 3; which++) {
		struct gang gang;
		open_with(&gang, 3, which == 1 ? pairs : spread, which == 2 ? "host,peer" : "peer",
		          which == 2 ? "host=0.3" : NULL);
		for (int kind = 0; kind < KINDS; kind++)
			replays_of(&gang, (struct what){.kind = (enum kind)kind, .bytes = 70001, .in_place = kind == 1},
			           which == 1);
		gang_close(&gang);
	}
}

/* ---- which fabric it is ---- */

static unsigned long long moved_down_by(int domain)
{
	char path[128], line[512];
	int connection;
	snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domain);
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_ask_status(connection, FERRY_STATUS_JOB, 1, line, sizeof line), ferrySuccess);
	close(connection);
	const char *down = strstr(line, " down=");
	assert_non_null(down);
	return strtoull(down + 6, NULL, 10);
}

static unsigned long long moved_down(void)
{
	unsigned long long bytes = 0;
	for (int domain = 0; domain < domains_asked_for(); domain++)
		bytes += moved_down_by(domain);
	return bytes;
}

/* Bytes that went from staging to GPUs. */
static unsigned long long through_the_host(const char *fabrics, const char *shares, enum kind kind)
{
	struct gang gang;
	open_with(&gang, 2, spread, fabrics, shares);
	rounds_of(&gang, (struct what){.kind = kind, .bytes = 100000}, 2, -1, false);
	unsigned long long bytes = moved_down();
	gang_close(&gang);
	no_misuse(NULL); /* the next one is a router's first job again */
	return bytes;
}

/* Two rounds among two ranks, of 100000 bytes to each. */
static void what_the_fabrics_carry_is_what_was_asked_for(void **state)
{
	(void)state;
	for (int kind = 0; kind < 2; kind++) {
		assert_int_equal(through_the_host("host", NULL, kind ? RING : ALLGATHER), 400000);
		assert_int_equal(through_the_host("peer", NULL, kind ? RING : ALLGATHER), 0);
		assert_int_equal(through_the_host(NULL, NULL, kind ? RING : ALLGATHER), 0);
	}
	assert_int_equal(through_the_host("host,peer", "host=0.25", ALLGATHER), 100000);
	assert_int_equal(through_the_host("host,peer", "nccl:0.6,host:0.1,peer=0.3", ALLGATHER), 100000);
	assert_int_equal(through_the_host(NULL, "peer=0", ALLGATHER), 400000);
	assert_int_equal(through_the_host(NULL, "host=0", ALLGATHER), 0);
}

static void refused_at_start(const char *name, const char *value, const char *words)
{
	ferryComm_t comms[2];
	setenv(name, value, 1);
	domains_open(1);
	REFUSED(ferryInvalidArgument, words, ferryCommInitAll(comms, 2, spread));
	domains_close();
	unsetenv(name);
}

static void nonsense_is_refused_with_what_was_expected(void **state)
{
	(void)state;
	refused_at_start("FERRY_FABRICS", "peers", "at \"peers\"");
	refused_at_start("FERRY_FABRICS", "host,", "FERRY_FABRICS=host,");
	refused_at_start("FERRY_FABRICS", "host,host", "at \"host\"");
	refused_at_start("FERRY_FABRICS", "peer host", "at \"peer host\"");
	refused_at_start("FERRY_SHARES", "host", "at \"host\"");
	refused_at_start("FERRY_SHARES", "host=", "at \"host=\"");
	refused_at_start("FERRY_SHARES", "host=1.5", "at \"host=1.5\"");
	refused_at_start("FERRY_SHARES", "host=-0.1", "from 0 to 1");
	refused_at_start("FERRY_SHARES", "host=nan", "from 0 to 1");
	refused_at_start("FERRY_SHARES", "host=0.2,peer=0.2", "they sum to 0.4");
	refused_at_start("FERRY_SHARES", "peer=0.2,peer=0.8", "at \"peer=0.8\"");
	refused_at_start("FERRY_SHARES", "gpu=0.2", "at \"gpu=0.2\"");
	refused_at_start("FERRY_SHARES", "host=0.2 ", "at \"host=0.2 \"");
	refused_at_start("FERRY_SHARES", "host:0.2,peer=0.2", "they sum to 0.4");
	refused_at_start("FERRY_SHARES", "nccl:0.9,host:0.2", "they sum to 1.1");
}

static void contradictions_are_refused_with_both_sides(void **state)
{
	static const char *const both[][3] = {
	        {"peer", "host=1", "FERRY_FABRICS=peer leaves host out, FERRY_SHARES=host=1 gives it 1 of each call"},
	        {"peer", "host=0.25", "gives it 0.25"},
	        {"host", "peer=0.5", "FERRY_FABRICS=host leaves peer out"},
	        {"host", "host=0.7,peer=0.3", "gives it 0.3"}};
	(void)state;
	for (int i = 0; i < 4; i++) {
		setenv("FERRY_SHARES", both[i][1], 1);
		refused_at_start("FERRY_FABRICS", both[i][0], both[i][2]);
		unsetenv("FERRY_SHARES");
	}
	assert_int_equal(through_the_host("peer", "host=0", ALLGATHER), 0);
	assert_int_equal(through_the_host("host", "host=1", ALLGATHER), 400000);
	assert_int_equal(through_the_host("host", "host=0.5", ALLGATHER), 400000); /* the rest might be NCCL's */
}

/* Every call says so, not the first alone: none of them takes the host in secret. */
static void peers_that_there_are_not_are_missed_at_every_call(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 1000, .nranks = 2};
	(void)state;
	setenv("FERRY_LANES", "rank", 1);
	open_with(&gang, 2, spread, "peer", NULL);
	unsetenv("FERRY_LANES");
	ranks_open(ranks, &what, &gang, false);
	for (int attempt = 0; attempt < 3; attempt++)
		for (int rank = 0; rank < 2; rank++)
			REFUSED(ferryInvalidUsage, "FERRY_FABRICS=peer",
			        ferryAllGather(ranks[rank].send, ranks[rank].receive, what.bytes + (size_t)attempt / 2,
			                       ferryUint8, gang.comms[rank], (ferryStream_t)ranks[rank].stream));
	gang_close(&gang);
	ranks_close(ranks, &gang);
}

/* ---- messages ---- */

/* The sender would push, the receiver expects too little for that: both are told, and nobody waits for ever. */
static void ends_that_disagree_on_whether_a_message_is_pushed_find_out(void **state)
{
	static const size_t lengths[][2] = {{200000, 100},
	                                    {100, 200000},
	                                    {200000, 200001},
	                                    {65537, 65536},
	                                    {200000, 0}};
	(void)state;
	for (size_t which = 0; which < sizeof lengths / sizeof *lengths; which++) {
		struct gang gang;
		struct rank ranks[MOST_PLACES];
		struct what what = {.kind = RING, .bytes = MOST_BYTES, .nranks = 2};
		ferryResult_t error = ferrySuccess;
		char said[64];
		gang_open(&gang, 2, spread, 1);
		ranks_open(ranks, &what, &gang, false);
		place_enter(&(struct place){.device = 0});
		OK(ferrySend(ranks[0].send, lengths[which][0], ferryUint8, 1, gang.comms[0],
		             (ferryStream_t)ranks[0].stream));
		place_enter(&(struct place){.device = 1});
		OK(ferryRecv(ranks[1].receive, lengths[which][1], ferryUint8, 0, gang.comms[1],
		             (ferryStream_t)ranks[1].stream));
		for (int waited = 0; !error && waited < 10000; waited++) {
			ferryCommGetAsyncError(gang.comms[0], &error);
			doze(1);
		}
		snprintf(said, sizeof said, "sent %zu bytes", lengths[which][0]);
		if (error != ferryInvalidUsage || !strstr(ferryGetLastError(gang.comms[0]), said))
			fail_msg("%zu bytes sent, %zu expected: %s, \"%s\"", lengths[which][0], lengths[which][1],
			         ferryGetErrorString(error), error ? ferryGetLastError(gang.comms[0]) : "");
		for (int rank = 0; rank < 2; rank++)
			OK(ferryCommAbort(gang.comms[rank]));
		domains_close();
		ranks_close(ranks, &gang);
	}
}

/*
 * Rank 0 sends to 1 and 2 in one group; rank 2 comes late, and rank 1 leaves meanwhile. It has its message: its leaving
 * waits for nobody, and keeps no other communicator of the router from leaving either.
 */
static void who_has_its_message_leaves_though_the_sender_waits_for_another(void **state)
{
	static _Atomic int held;
	struct gang gang, other;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = RING, .bytes = MOST_BYTES, .nranks = 3};
	(void)state;
	gang_open(&gang, 3, spread, 1);
	gang_open(&other, 2, spread, 1);
	ranks_open(ranks, &what, &gang, false);
	atomic_store(&held, 1);
	place_enter(&(struct place){.device = 2});
	CU(fake_cuda_launch(ranks[2].stream, hold, &held));
	OK(ferryRecv(ranks[2].receive, what.bytes, ferryUint8, 0, gang.comms[2], (ferryStream_t)ranks[2].stream));
	place_enter(&(struct place){.device = 0});
	fill(&ranks[0]);
	OK(ferryGroupStart());
	for (int peer = 1; peer < 3; peer++)
		OK(ferrySend(ranks[0].send, what.bytes, ferryUint8, peer, gang.comms[0],
		             (ferryStream_t)ranks[0].stream));
	OK(ferryGroupEnd());
	place_enter(&(struct place){.device = 1});
	OK(ferryRecv(ranks[1].receive, what.bytes, ferryUint8, 0, gang.comms[1], (ferryStream_t)ranks[1].stream));
	CU(cuStreamSynchronize(ranks[1].stream));
	alarm(30); /* they would wait for ever */
	OK(ferryCommDestroy(gang.comms[1]));
	gang_close(&other);
	alarm(0);
	atomic_store(&held, 0);
	place_enter(&(struct place){.device = 2});
	CU(cuStreamSynchronize(ranks[2].stream));
	for (int rank = 1; rank < 3; rank++)
		assert_memory_equal(seen(ranks[rank].receive), seen(ranks[0].send), what.bytes);
	OK(ferryCommDestroy(gang.comms[0]));
	OK(ferryCommDestroy(gang.comms[2]));
	domains_close();
	ranks_close(ranks, &gang);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(two_ranks_push_into_each_other),
	        TEST(two_ranks_of_one_gpu_push_within_it),
	        TEST(four_ranks_push_on_four_gpus),
	        TEST(four_ranks_push_on_two_gpus),
	        TEST(eight_ranks_push_on_four_gpus),
	        TEST(eight_ranks_push_on_two_gpus),
	        TEST(calls_of_nothing_and_of_one_rank_are_calls_too),
	        TEST(in_place_all_to_all_back_to_back_mixes_nothing),
	        TEST(both_fabrics_carry_their_parts_of_a_call),
	        TEST(memory_that_cannot_be_exported_goes_through_windows),
	        TEST(registered_buffers_are_pushed_into),
	        TEST(captured_calls_push_in_each_replay),
	        TEST(what_the_fabrics_carry_is_what_was_asked_for),
	        TEST(nonsense_is_refused_with_what_was_expected),
	        TEST(contradictions_are_refused_with_both_sides),
	        TEST(peers_that_there_are_not_are_missed_at_every_call),
	        TEST(ends_that_disagree_on_whether_a_message_is_pushed_find_out),
	        TEST(who_has_its_message_leaves_though_the_sender_waits_for_another),
	};
	char machine[32];
	snprintf(machine, sizeof machine, "puts-%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
