/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promise: AllGather, ReduceScatter, AllToAll, Gather, Scatter and messages are divided at exact offsets, by pinned
 * shares, also with settings of their own, where Ferry can have a part of them at all. Random calls of all types, alone
 * and in groups, in place and out, captured and not, of 2 to 8 ranks: threads of this process on the double of the CUDA
 * driver, beside the double of NCCL. All that buffers have is compared, also what no call may touch.
 *
 * FERRY_TEST_ROUNDS (30) says how many rounds for each number of ranks and share, FERRY_TEST_SEED (1) where they begin.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"
#include "tests/nccl/ranks.h"

#include "ipc/shares.h"
#include "orchestrator/shadow_comm.h"
#include "rank-lib/call/comm.h"

#define MOST_RANKS 8
#define MOST_COUNT 15001 /* elements of a block of two ranks; of more fewer */
#define SLOTS      3    /* calls of a group, with buffers each */
#define SLOT_BYTES ((2 * MOST_COUNT + 64) * sizeof(uint64_t))
#define BYTES      (SLOTS * SLOT_BYTES)
#define UNTOUCHED  0xa5

static int nranks;
static bool pooled; /* memory that no router can map */
static struct ferry_shares pins;

/* The settings that calls come with; NULL: none. stays: they ask for what Ferry has not. */
static const ncclCollConfig_t *config;
static bool stays;

#define ASK(name, ...) NCCL(config ? nccl##name##Config(__VA_ARGS__, config) : nccl##name(__VA_ARGS__))

struct player {
	struct rank rank; /* first: its thread and communicator */
	CUstream stream;
	CUdeviceptr memory[2], scalars; /* a scalar for each slot */
	unsigned char *in, *out;        /* where this process has them */
	unsigned char *in_was, *wanted; /* what `in` had and still has to have, and what `out` has to */
	unsigned made;                  /* collectives that have run at once, as bits */
	uint64_t random;                /* the same numbers on all ranks */
	uint64_t parts;                 /* of Ferry's, as the shares say; messages apart, */
	uint64_t messages;              /* of which the first of a pair may be NCCL's */
};

/* One of a round. */
struct call {
	enum ferry_collective collective;
	ncclDataType_t type;
	ncclRedOp_t op;
	size_t count, element;
	int root, slot, round;
	bool in_place, scaled, on_device; /* its scalar */
	size_t at; /* bytes from the slot's start */
};

static uint64_t draw(struct player *p, uint64_t most)
{
	p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (p->random >> 33) % most;
}

/* ---- values ---- */

UNSEEN static uint64_t hash(int rank, size_t i, const struct call *c)
{
	uint64_t all = ((uint64_t)rank << 48 ^ i) + (uint64_t)c->round * 77 + (uint64_t)c->slot * 7 + 1;
	all *= UINT64_C(0xff51afd7ed558ccd);
	return all ^ all >> 31;
}

/* What is summed is small, so that sums are exact in every type. */
static unsigned small(int rank, size_t i, const struct call *c)
{
	return (unsigned)(hash(rank, i, c) >> 40) % 4;
}

UNSEEN static void encode(unsigned value, const struct call *c, unsigned char *to)
{
	uint64_t bits = value;
	float single = (float)value;
	double twice = value;
	uint32_t word;
	memcpy(&word, &single, sizeof word);
	unsigned exponent = 0;
	while (value >> (exponent + 1))
		exponent++;
	if (c->type == ncclFloat16)
		bits = value ? (exponent + 15) << 10 | ((value << (10 - exponent)) & 0x3ff) : 0;
	else if (c->type == ncclBfloat16)
		bits = word >> 16;
	else if (c->type == ncclFloat32)
		bits = word;
	else if (c->type == ncclFloat64)
		memcpy(&bits, &twice, sizeof bits);
	memcpy(to, &bits, c->element);
}

UNSEEN static void put_input(int rank, size_t i, const struct call *c, unsigned char *to)
{
	uint64_t bits = hash(rank, i, c);
	if (c->collective == FERRY_REDUCESCATTER)
		encode(small(rank, i, c), c, to);
	else
		memcpy(to, &bits, c->element);
}

static void put_sum(size_t i, const struct call *c, unsigned char *to)
{
	unsigned sum = 0, most = 0, least = 4;
	for (int rank = 0; rank < nranks; rank++) {
		unsigned one = small(rank, i, c);
		sum += one;
		most = one > most ? one : most;
		least = one < least ? one : least;
	}
	encode(c->scaled ? 2 * sum : c->op == ncclMax ? most : c->op == ncclMin ? least : sum, c, to);
}

/* ---- buffers ---- */

static size_t send_blocks(const struct call *c, int rank)
{
	switch (c->collective) {
	case FERRY_REDUCESCATTER:
	case FERRY_ALLTOALL:
		return (size_t)nranks;
	case FERRY_SCATTER:
		return rank == c->root ? (size_t)nranks : 0;
	default:
		return 1;
	}
}

static size_t receive_blocks(const struct call *c, int rank)
{
	switch (c->collective) {
	case FERRY_ALLGATHER:
	case FERRY_ALLTOALL:
		return (size_t)nranks;
	case FERRY_GATHER:
		return rank == c->root ? (size_t)nranks : 0;
	default:
		return 1;
	}
}

/* Offsets of what is sent, in `in` or (in place) in `out`, and of what is received. */
static void find_places(const struct call *c, int rank, size_t *sent, size_t *received)
{
	size_t mine = (size_t)rank * c->count * c->element;
	*sent = *received = (size_t)c->slot * SLOT_BYTES + c->at;
	if (!c->in_place)
		return;
	if (c->collective == FERRY_ALLGATHER || (c->collective == FERRY_GATHER && rank == c->root))
		*sent += mine;
	else if (c->collective == FERRY_REDUCESCATTER || (c->collective == FERRY_SCATTER && rank == c->root))
		*received += mine;
}

/* Element i of block b of what the rank receives. */
UNSEEN static void put_output(const struct call *c, int rank, size_t b, size_t i, unsigned char *to)
{
	switch (c->collective) {
	case FERRY_REDUCESCATTER:
		put_sum((size_t)rank * c->count + i, c, to);
		return;
	case FERRY_ALLTOALL:
		put_input((int)b, (size_t)rank * c->count + i, c, to);
		return;
	case FERRY_SCATTER:
		put_input(c->root, (size_t)rank * c->count + i, c, to);
		return;
	default:
		put_input(c->collective == FERRY_SENDRECV ? (rank + nranks - 1) % nranks : (int)b, i, c, to);
	}
}

static void prepare(struct player *p, const struct call *c)
{
	size_t sent, received, e = c->element;
	int rank = p->rank.rank;
	find_places(c, rank, &sent, &received);
	unsigned char *in = c->in_place ? p->out : p->in;
	unseen(true);
	for (size_t i = 0; i < send_blocks(c, rank) * c->count; i++)
		put_input(rank, i, c, in + sent + i * e);
	memcpy((c->in_place ? p->wanted : p->in_was) + sent, in + sent, send_blocks(c, rank) * c->count * e);
	for (size_t b = 0; b < receive_blocks(c, rank); b++)
		for (size_t i = 0; i < c->count; i++)
			put_output(c, rank, b, i, p->wanted + received + (b * c->count + i) * e);
	unseen(false);
}

/* ---- calls ---- */

static struct call draw_call(struct player *p, int round, int slot)
{
	static const enum ferry_collective kinds[] = {FERRY_ALLGATHER, FERRY_REDUCESCATTER, FERRY_ALLTOALL,
	                                              FERRY_GATHER,    FERRY_SCATTER,       FERRY_SENDRECV};
	static const ncclDataType_t types[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
	                                       ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
	struct call c = {.round = round, .slot = slot};
	c.collective = kinds[draw(p, 6)];
	c.type = types[draw(p, 10)];
	c.element = ferry_type_size((ferryDataType_t)c.type);
	c.op = (ncclRedOp_t[]){ncclSum, ncclMax, ncclMin}[draw(p, 3)];
	c.scaled = c.collective == FERRY_REDUCESCATTER && !draw(p, 2);
	c.on_device = c.scaled && draw(p, 2);
	c.count = draw(p, 8) ? 1 + draw(p, 2 * MOST_COUNT / (uint64_t)nranks) : draw(p, 20);
	c.root = (int)draw(p, (uint64_t)nranks);
	c.in_place = draw(p, 2) && c.collective != FERRY_ALLTOALL && c.collective != FERRY_SENDRECV;
	c.at = draw(p, 60) * c.element;
	return c;
}

/* The double of it is summed. What is on the device is read when the call runs: no earlier call has this slot now. */
static ncclRedOp_t scaled_sum(struct player *p, const struct call *c)
{
	ncclRedOp_t op;
	size_t at = (size_t)c->slot * sizeof(uint64_t);
	unsigned char factor[8] = {0};
	void *scalar = c->on_device ? (char *)pointer_of(p->scalars) + at : (void *)factor;
	encode(2, c, c->on_device ? (unsigned char *)fake_cuda_reach(p->scalars) + at : factor);
	NCCL(ncclRedOpCreatePreMulSum(&op, scalar, c->type, c->on_device ? ncclScalarDevice : ncclScalarHostImmediate,
	                              p->rank.comm));
	return op;
}

static void make_call(struct player *p, const struct call *c)
{
	size_t sent, received;
	int rank = p->rank.rank;
	find_places(c, rank, &sent, &received);
	const char *send = (const char *)pointer_of(p->memory[c->in_place]) + sent;
	char *receive = (char *)pointer_of(p->memory[1]) + received;
	ncclComm_t comm = p->rank.comm;
	cudaStream_t stream = (cudaStream_t)p->stream;
	ncclRedOp_t op = c->op;
	switch (c->collective) {
	case FERRY_ALLGATHER:
		ASK(AllGather, send, receive, c->count, c->type, comm, stream);
		break;
	case FERRY_REDUCESCATTER:
		if (c->scaled)
			op = scaled_sum(p, c);
		ASK(ReduceScatter, send, receive, c->count, c->type, op, comm, stream);
		if (c->scaled)
			NCCL(ncclRedOpDestroy(op, comm));
		break;
	case FERRY_ALLTOALL:
		ASK(AlltoAll, send, receive, c->count, c->type, comm, stream);
		break;
	case FERRY_GATHER:
		ASK(Gather, send, rank == c->root ? receive : NULL, c->count, c->type, c->root, comm, stream);
		break;
	case FERRY_SCATTER:
		ASK(Scatter, rank == c->root ? send : NULL, receive, c->count, c->type, c->root, comm, stream);
		break;
	default:
		NCCL(ncclGroupStart());
		NCCL(ncclSend(send, c->count, c->type, (rank + 1) % nranks, comm, stream));
		NCCL(ncclRecv(receive, c->count, c->type, (rank + nranks - 1) % nranks, comm, stream));
		NCCL(ncclGroupEnd());
	}
	uint64_t at, nccls;
	ferry_shares_range(&pins, FERRY_FABRIC_NCCL, c->count, 4096 / c->element, &at, &nccls);
	p->parts += c->collective != FERRY_SENDRECV && nccls < c->count && !stays;
	p->messages += c->collective == FERRY_SENDRECV && nccls < c->count;
}

/* Calls that Ferry has had a part of. */
static uint64_t parts_of(struct player *p)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(p->rank.comm);
	struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
	HOLDS(shadow_comm && ferry_shadow_comm_is_ready(shadow_comm));
	uint64_t parts = shadow_comm->comm->journal.calls;
	ferry_nccl_comm_release(comm);
	return parts;
}

static void compare(const struct player *p, const unsigned char *is, const unsigned char *wanted,
                    const struct call *calls, int n, const char *which)
{
	bool same = sampled_same(is, wanted, BYTES);
	for (size_t i = 0; i < BYTES && !same; i++) {
		if (is[i] == wanted[i])
			continue;
		const struct call *c = &calls[i / SLOT_BYTES];
		fprintf(stderr,
		        "rank %d of %d, round %d, %d calls: %s of %zu elements of %zu bytes at %zu, root %d%s: byte "
		        "%zu of %s is %02x, not %02x\n",
		        p->rank.rank, nranks, c->round, n, ferry_collective_name(c->collective), c->count, c->element,
		        c->at, c->root, c->in_place ? ", in place" : "", i % SLOT_BYTES, which, is[i], wanted[i]);
		abort();
	}
}

static void make_calls(struct player *p, const struct call *calls, int n)
{
	if (n > 1)
		NCCL(ncclGroupStart());
	for (int i = 0; i < n; i++)
		make_call(p, &calls[i]);
	if (n > 1)
		NCCL(ncclGroupEnd());
}

/* In a graph, which runs once, as the double of NCCL cannot be replayed. */
static void capture_calls(struct player *p, const struct call *calls, int n)
{
	CUgraph captured;
	CUgraphExec graph;
	uint64_t parts = p->parts;
	EQUAL(cuStreamBeginCapture(p->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
	make_calls(p, calls, n);
	EQUAL(cuStreamEndCapture(p->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	EQUAL(cuGraphLaunch(graph, p->stream), 0);
	EQUAL(cuStreamSynchronize(p->stream), 0);
	EQUAL(cuGraphExecDestroy(graph), 0);
	p->parts = parts; /* those are counted that run at once */
}

static void play_round(struct player *p, int round, bool messages)
{
	struct call calls[SLOTS];
	int n = draw(p, 2) ? 1 : 1 + (int)draw(p, SLOTS);
	bool captured = round > 10 && !messages && !draw(p, 4);
	sampled_set(p->in, UNTOUCHED, BYTES);
	sampled_set(p->in_was, UNTOUCHED, BYTES);
	sampled_set(p->out, UNTOUCHED, BYTES);
	sampled_set(p->wanted, UNTOUCHED, BYTES);
	for (int i = 0; i < n; i++) {
		calls[i] = draw_call(p, round, i);
		if (messages)
			calls[i] = (struct call){.collective = FERRY_SENDRECV,
			                         .type = ncclFloat32,
			                         .element = sizeof(float),
			                         .count = (size_t)(2 * MOST_COUNT / nranks),
			                         .round = round,
			                         .slot = i};
		prepare(p, &calls[i]);
		/* NCCL connects ranks in the first call of a kind, and cannot in a capture */
		captured = captured && p->made >> calls[i].collective & 1;
	}
	for (int i = 0; i < n && !captured; i++)
		p->made |= 1u << calls[i].collective;
	if (captured)
		capture_calls(p, calls, n);
	else
		make_calls(p, calls, n);
	EQUAL(cuStreamSynchronize(p->stream), 0);
	compare(p, p->in, p->in_was, calls, n, "what is sent");
	compare(p, p->out, p->wanted, calls, n, "what is received");
}

/* The first call that all ranks have made: before, some may not have said that they look calls up. */
static void meet(struct player *p)
{
	ASK(AllReduce, pointer_of(p->memory[0]), pointer_of(p->memory[1]), 1, ncclInt8, ncclSum, p->rank.comm,
	    (cudaStream_t)p->stream);
	EQUAL(cuStreamSynchronize(p->stream), 0);
	p->parts = parts_of(p);
}

static void play(struct rank *rank)
{
	struct player *p = (struct player *)rank;
	const char *rounds = getenv("FERRY_TEST_ROUNDS"), *seed = getenv("FERRY_TEST_SEED");
	CUcontext context;
	p->random = seed ? strtoull(seed, NULL, 10) : 1;
	EQUAL(cuDevicePrimaryCtxRetain(&context, rank->rank), 0);
	EQUAL(cuCtxSetCurrent(context), 0);
	EQUAL(cuStreamCreate(&p->stream, CU_STREAM_NON_BLOCKING), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(pooled ? cuMemAllocAsync(&p->memory[i], BYTES, p->stream) : cuMemAlloc(&p->memory[i], BYTES), 0);
	EQUAL(cuMemAlloc(&p->scalars, SLOTS * sizeof(uint64_t)), 0);
	EQUAL(cuStreamSynchronize(p->stream), 0);
	p->in = fake_cuda_reach(p->memory[0]);
	p->out = fake_cuda_reach(p->memory[1]);
	p->in_was = malloc(BYTES);
	p->wanted = malloc(BYTES);
	NCCL(ncclCommInitRank(&rank->comm, nranks, rank->id, rank->rank));
	meet(p);
	uint64_t first = p->parts;
	int most = rounds ? atoi(rounds) : 30;
	for (int round = 0; round < most; round++)
		play_round(p, round, false);
	HOLDS(parts_of(p) >= p->parts && parts_of(p) <= p->parts + p->messages);
	uint64_t before = parts_of(p);
	for (int round = most; round < most + 5; round++)
		play_round(p, round, true);
	HOLDS(pins.part[FERRY_FABRIC_HOST] ? parts_of(p) - before >= 3 : parts_of(p) == before);
	HOLDS((pins.part[FERRY_FABRIC_HOST] && !stays) == (p->parts > first));
	NCCL(ncclCommDestroy(rank->comm));
	for (int i = 0; i < 2; i++)
		EQUAL(pooled ? cuMemFreeAsync(p->memory[i], p->stream) : cuMemFree(p->memory[i]), 0);
	EQUAL(cuMemFree(p->scalars), 0);
	EQUAL(cuStreamDestroy(p->stream), 0);
	EQUAL(cuDevicePrimaryCtxRelease(rank->rank), 0);
	free(p->in_was);
	free(p->wanted);
}

static void run(int count, const char *shares)
{
	struct player *players = calloc((size_t)count, sizeof *players);
	ncclUniqueId id;
	nranks = count;
	setenv("FERRY_SHARES", shares, 1);
	assert_int_equal(ferry_shares_pin(shares, &pins), ferrySuccess);
	domains_open(1);
	NCCL(ncclGetUniqueId(&id));
	for (int i = 0; i < count; i++) {
		players[i].rank.rank = i;
		players[i].rank.id = id;
		players[i].rank.work = play;
		pthread_create(&players[i].rank.thread, NULL, rank_main, &players[i].rank);
	}
	for (int i = 0; i < count; i++)
		pthread_join(players[i].rank.thread, NULL);
	free(players);
	domains_close();
	unsetenv("FERRY_SHARES");
}

static void two_ranks_leave_nccl_its_own_call(void **state)
{
	(void)state;
	unsigned long gathers = fake_nccl_count("AllGather"), scatters = fake_nccl_count("ReduceScatter");
	run(2, "nccl:0.5,host:0.5");
	run(2, "nccl:0.9,host:0.1");
	run(2, "nccl:0.1,host:0.9");
	assert_true(fake_nccl_count("AllGather") > gathers && fake_nccl_count("ReduceScatter") > scatters);
	assert_int_equal(fake_nccl_count("Broadcast") + fake_nccl_count("Reduce"), 0);
}

static void more_ranks_leave_nccl_blocks_with_gaps(void **state)
{
	(void)state;
	run(3, "nccl:0.6,host:0.4");
	run(5, "nccl:0.7,host:0.3");
	run(8, "nccl:0.3,host:0.7");
	assert_true(fake_nccl_count("Broadcast") > 0 && fake_nccl_count("Reduce") > 0);
}

/* Ferry's part goes through windows then, and the stream copies no byte that is NCCL's. */
static void memory_of_pools_is_divided_too(void **state)
{
	(void)state;
	pooled = true;
	run(2, "nccl:0.5,host:0.5");
	run(3, "nccl:0.5,host:0.5");
	pooled = false;
}

static void shares_of_one_alone_are_whole_calls(void **state)
{
	(void)state;
	run(3, "nccl:0,host:1");
	unsigned long blocks = fake_nccl_count("Broadcast") + fake_nccl_count("Reduce");
	run(3, "nccl:1");
	assert_int_equal(fake_nccl_count("Broadcast") + fake_nccl_count("Reduce"), blocks);
}

/* NCCL's, of 2.31. */
static struct settings {
	ncclCollConfig_t head;
	const void *extensions;
	int ctas[4];
	const char *algorithms;
	int force, policy;
	uint64_t tag;
} settings = {.head = {sizeof settings, 0xcafebeef, 23100}, .policy = NCCL_UNDEFINED_INT};

/* How often NCCL's double has been called with settings, by the call's name. */
static void count_configured(unsigned long counts[8])
{
	static const char *const names[8] = {"AllReduceConfig", "BroadcastConfig", "ReduceConfig", "AllGatherConfig",
	                                     "ReduceScatterConfig", "AlltoAllConfig", "GatherConfig", "ScatterConfig"};
	for (int i = 0; i < 8; i++)
		counts[i] = fake_nccl_count(names[i]);
}

static void run_configured(const char *shares, bool by_blocks)
{
	unsigned long before[8], after[8], plain = fake_nccl_count("Broadcast") + fake_nccl_count("Reduce");
	count_configured(before);
	config = &settings.head;
	run(3, shares);
	config = NULL;
	count_configured(after);
	for (int i = 0; i < 8; i++) {
		bool is_of_blocks = i == 1 || i == 2; /* nobody calls these here */
		if (by_blocks ? i < 3 : !is_of_blocks)
			assert_true(after[i] > before[i]);
		if (!by_blocks && is_of_blocks)
			assert_true(after[i] == before[i]);
	}
	assert_int_equal(fake_nccl_count("Broadcast") + fake_nccl_count("Reduce"), plain);
}

/* Messages, which NCCL's part of what has blocks may be made of, have no settings: they go without. */
static void calls_with_plain_settings_are_divided_and_keep_them(void **state)
{
	(void)state;
	run_configured("nccl:0.6,host:0.4", true);
}

static void calls_that_name_their_algorithm_are_nccls_alone(void **state)
{
	(void)state;
	stays = true;
	settings.algorithms = "ring";
	run_configured("nccl:0.6,host:0.4", false);
	settings.algorithms = NULL;
	stays = false;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(two_ranks_leave_nccl_its_own_call, no_misuse),
	        cmocka_unit_test_teardown(more_ranks_leave_nccl_blocks_with_gaps, no_misuse),
	        cmocka_unit_test_teardown(memory_of_pools_is_divided_too, no_misuse),
	        cmocka_unit_test_teardown(shares_of_one_alone_are_whole_calls, no_misuse),
	        cmocka_unit_test_teardown(calls_with_plain_settings_are_divided_and_keep_them, no_misuse),
	        cmocka_unit_test_teardown(calls_that_name_their_algorithm_are_nccls_alone, no_misuse),
	};
	setenv("FAKE_CUDA_DEVICES", "8", 1);
	setenv("FERRY_SPLIT_FLOOR", "1", 1);
	setenv("FERRY_SPLIT_WAIT", "60", 1); /* so that all calls are shared */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
