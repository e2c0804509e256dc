/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promise: a program of NCCL's does the same through Ferry as without. Random programs over the double of NCCL, in
 * threads as ranks: communicators made out of others and ended, collectives of all kinds, types and reductions, in
 * groups and groups of groups, messages, reductions destroyed early, groups that are only simulated. Each is run
 * through the names and directly; all that its buffers have ever held is compared.
 *
 * NCCL_RANDOM_PROGRAMS (200) says how many, NCCL_RANDOM_SEED (1) with which they begin.
 *
 * As nccl_kernels_random the same in streams of the double of the CUDA driver, so that short calls go by kernels,
 * longer ones by routers, and what comes before either is ready by NCCL; and steps are captured now and then.
 */
#include "ipc/hash.h"
#include "tests/nccl/ranks.h"
#include "tests/sanitized.h"

#include <dlfcn.h>

#ifdef NCCL_RANDOM_ON_GPUS
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"
#define ON_GPUS  true
#define PROGRAMS REPEATS(8, 4)
#define STEPS    60
#else
#define ON_GPUS  false
#define PROGRAMS REPEATS(200, 50)
#define STEPS    12
#endif
#define ELEMENTS 64
#define COMMS    3 /* of a rank at a time */
#define SLOTS    6 /* calls of a group, with a buffer each */

/* The functions that a program calls, by Ferry's names or the double's own. */
struct names {
#define NCCL_VALUE(since, type, name, parameters, arguments) type(*name) parameters;
#include "orchestrator/functions.def"
};

static struct names through, direct;

struct player {
	const struct names *nccl;
	uint64_t random; /* the same numbers on all ranks of a program */
	int rank;
	ncclUniqueId id;
	ncclComm_t comms[COMMS];
	int sizes[COMMS], ranks[COMMS];
	/* SLOTS of each, where this process has them, and in another one of `in` factors; */
	uint64_t (*in)[ELEMENTS * RANKS], (*out)[ELEMENTS * RANKS];
	char *send, *receive; /* as calls take them */
	cudaStream_t stream;
	uint64_t digest;
	pthread_t thread;
};

static unsigned draw(struct player *p, unsigned most)
{
	p->random = p->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (unsigned)(p->random >> 33) % most;
}

#define SLOT_BYTES (ELEMENTS * RANKS * sizeof(uint64_t))

#ifdef NCCL_RANDOM_ON_GPUS
static void open_buffers(struct player *p)
{
	CUcontext context;
	CUdeviceptr memory[2];
	EQUAL(cuDevicePrimaryCtxRetain(&context, p->rank), 0);
	EQUAL(cuCtxSetCurrent(context), 0);
	EQUAL(cuStreamCreate((CUstream *)&p->stream, CU_STREAM_NON_BLOCKING), 0);
	for (int i = 0; i < 2; i++)
		EQUAL(cuMemAlloc(&memory[i], (SLOTS + 1) * SLOT_BYTES), 0);
	p->in = fake_cuda_reach(memory[0]);
	p->out = fake_cuda_reach(memory[1]);
	p->send = pointer_of(memory[0]);
	p->receive = pointer_of(memory[1]);
	memset(p->in, 0, SLOTS * SLOT_BYTES);
	memset(p->out, 0, SLOTS * SLOT_BYTES);
}

static void close_buffers(struct player *p)
{
	EQUAL(cuMemFree((CUdeviceptr)p->send), 0);
	EQUAL(cuMemFree((CUdeviceptr)p->receive), 0);
	EQUAL(cuStreamDestroy((CUstream)p->stream), 0);
	EQUAL(cuDevicePrimaryCtxRelease(p->rank), 0);
}

static void settle(struct player *p)
{
	EQUAL(cuStreamSynchronize((CUstream)p->stream), 0);
}

/* Makes the step's calls by a graph, which is launched once or twice. */
static void in_graph(struct player *p, void (*step)(struct player *p, int c), int c)
{
	CUgraph captured;
	CUgraphExec graph;
	unsigned times = 1 + draw(p, 2);
	EQUAL(cuStreamBeginCapture((CUstream)p->stream, CU_STREAM_CAPTURE_MODE_RELAXED), 0); /* NCCL connects in it */
	step(p, c);
	EQUAL(cuStreamEndCapture((CUstream)p->stream, &captured), 0);
	EQUAL(cuGraphInstantiateWithFlags(&graph, captured, 0), 0);
	EQUAL(cuGraphDestroy(captured), 0);
	for (unsigned i = 0; i < times; i++)
		EQUAL(cuGraphLaunch(graph, (CUstream)p->stream), 0);
	settle(p);
	EQUAL(cuGraphExecDestroy(graph), 0);
}
#else
static void open_buffers(struct player *p)
{
	p->in = calloc(SLOTS + 1, SLOT_BYTES);
	p->out = calloc(SLOTS, SLOT_BYTES);
	p->send = (char *)p->in;
	p->receive = (char *)p->out;
}

static void close_buffers(struct player *p)
{
	free(p->in);
	free(p->out);
}

static void settle(struct player *p)
{
	(void)p; /* calls return when they are done */
}

static void in_graph(struct player *p, void (*step)(struct player *p, int c), int c)
{
	step(p, c);
}
#endif

static void remember(struct player *p, const void *bytes, size_t count)
{
	p->digest = ferry_hash(p->digest, bytes, count);
}

/* Small integers in all types but the 8-bit floats, whatever is made of them. */
static void fill(struct player *p, int slot)
{
	unsigned char *bytes = (unsigned char *)p->in[slot];
	for (size_t i = 0; i < SLOT_BYTES; i++)
		bytes[i] = (unsigned char)((i * 7 + (size_t)p->rank * 13 + p->random) & 0x3f);
	memset(p->out[slot], 0xee, SLOT_BYTES);
}

static ncclResult_t collective(struct player *p, int c, int slot, ncclRedOp_t op, ncclDataType_t type, unsigned kind)
{
	const struct names *n = p->nccl;
	void *in = p->send + (size_t)slot * SLOT_BYTES, *out = p->receive + (size_t)slot * SLOT_BYTES;
	cudaStream_t stream = p->stream;
	size_t count = draw(p, ELEMENTS + 1);
	int root = (int)draw(p, (unsigned)p->sizes[c]);
	ncclComm_t comm = p->comms[c];
	switch (kind) {
	case 0:
		return n->AllReduce(in, out, count, type, op, comm, stream);
	case 1:
		return n->AllReduceConfig(in, in, count, type, op, comm, stream, NULL); /* in place */
	case 2:
		return n->AllGather(in, out, count, type, comm, stream);
	case 3:
		return n->ReduceScatter(in, out, count, type, op, comm, stream);
	case 4:
		return n->Broadcast(in, out, count, type, root, comm, stream);
	case 5:
		return n->Bcast(in, count, type, root, comm, stream);
	case 6:
		return n->Reduce(in, out, count, type, op, root, comm, stream);
	case 7:
		return n->AlltoAll(in, out, count, type, comm, stream);
	case 8:
		return n->Gather(in, out, count, type, root, comm, stream);
	default:
		return n->Scatter(in, out, count, type, root, comm, stream);
	}
}

static void one_collective(struct player *p, int c, int slot)
{
	static const ncclDataType_t types[] = {ncclInt8,   ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,
	                                       ncclUint64, ncclFloat16, ncclFloat32, ncclFloat64, ncclBfloat16};
	static const uint64_t twos[] = {[ncclFloat16] = 0x4000,
	                                [ncclFloat32] = 0x40000000,
	                                [ncclFloat64] = 0x4000000000000000,
	                                [ncclBfloat16] = 0x4000};
	unsigned kind = draw(p, 10);
	ncclDataType_t type = types[draw(p, 10)];
	ncclRedOp_t op = (ncclRedOp_t)draw(p, 5);
	if (op == ncclAvg && type >= ncclFloat16)
		op = ncclSum; /* the last bit of an average is not NCCL's */
	uint64_t factor = type < ncclFloat16 ? 2 : twos[type];
	fill(p, slot);
	bool own = draw(p, 4) == 0, on_device = ON_GPUS && draw(p, 2);
	p->in[SLOTS][type] = factor; /* each type's own, as graphs read it when they are launched */
	if (own)
		NCCL(p->nccl->RedOpCreatePreMulSum(&op, on_device ? p->send + SLOTS * SLOT_BYTES + type * sizeof factor
		                                                  : (char *)&factor,
		                                   type, on_device ? ncclScalarDevice : ncclScalarHostImmediate,
		                                   p->comms[c]));
	NCCL(collective(p, c, slot, op, type, kind));
	if (own)
		NCCL(p->nccl->RedOpDestroy(op, p->comms[c]));
}

static void ring(struct player *p, int c, int slot)
{
	int n = p->sizes[c], rank = p->ranks[c];
	size_t count = draw(p, ELEMENTS + 1);
	fill(p, slot);
	NCCL(p->nccl->GroupStart());
	NCCL(p->nccl->Send(p->send + (size_t)slot * SLOT_BYTES, count, ncclInt32, (rank + 1) % n, p->comms[c],
	                   p->stream));
	NCCL(p->nccl->Recv(p->receive + (size_t)slot * SLOT_BYTES, count, ncclInt32, (rank + n - 1) % n, p->comms[c],
	                   p->stream));
	NCCL(p->nccl->GroupEnd());
}

/* Parts of several lengths, none too, to all ranks and oneself. */
static void uneven(struct player *p, int c, int slot)
{
	int n = p->sizes[c], rank = p->ranks[c], random = (int)draw(p, ELEMENTS);
	fill(p, slot);
	NCCL(p->nccl->GroupStart());
	for (int peer = 0; peer < n; peer++) {
		size_t at = (size_t)slot * SLOT_BYTES + (size_t)peer * ELEMENTS * sizeof(uint64_t);
		size_t sent = (size_t)(random + rank * 11 + peer * 7) % ELEMENTS,
		       received = (size_t)(random + peer * 11 + rank * 7) % ELEMENTS;
		NCCL(p->nccl->Send(p->send + at, sent / 2 * (sent % 2), ncclInt64, peer, p->comms[c], p->stream));
		NCCL(p->nccl->Recv(p->receive + at, received / 2 * (received % 2), ncclInt64, peer, p->comms[c],
		                   p->stream));
	}
	NCCL(p->nccl->GroupEnd());
}

/* Of one communicator, as ranks order those of several each in its own way. */
static void a_group(struct player *p, int c)
{
	ncclSimInfo_t info = {sizeof info, 0, 0};
	int calls = 1 + (int)draw(p, SLOTS);
	bool simulate = draw(p, 5) == 0, messages = draw(p, 4) == 0;
	NCCL(p->nccl->GroupStart());
	for (int slot = 0; slot < calls; slot++) {
		bool nested = draw(p, 3) == 0;
		if (nested)
			NCCL(p->nccl->GroupStart());
		if (!messages && draw(p, 3))
			one_collective(p, c, slot);
		else
			(draw(p, 2) ? ring : uneven)(p, c, slot);
		if (nested)
			NCCL(p->nccl->GroupEnd());
	}
	if (simulate) {
		NCCL(p->nccl->GroupSimulateEnd(&info));
		remember(p, &info.version, sizeof info.version); /* the double counts calls */
	} else {
		NCCL(p->nccl->GroupEnd());
	}
}

static void a_call(struct player *p, int c)
{
	one_collective(p, c, 0);
}

/* All ranks take part in a split, so it is of the first communicator, which has all of them. */
static void a_split(struct player *p, int c)
{
	int color = (p->rank + (int)draw(p, 2)) % 2, key = -p->rank * (int)draw(p, 2);
	bool grouped = draw(p, 2);
	if (p->comms[c])
		NCCL(p->nccl->CommDestroy(p->comms[c]));
	if (grouped)
		NCCL(p->nccl->GroupStart());
	NCCL(p->nccl->CommSplit(p->comms[0], color, key, &p->comms[c], NULL));
	if (grouped)
		NCCL(p->nccl->GroupEnd());
	NCCL(p->nccl->CommCount(p->comms[c], &p->sizes[c]));
	NCCL(p->nccl->CommUserRank(p->comms[c], &p->ranks[c]));
	remember(p, &p->sizes[c], sizeof p->sizes[c]);
	remember(p, &p->ranks[c], sizeof p->ranks[c]);
}

static _Atomic uint64_t kernels;

/* Calls that kernels have carried in the communicators that the program has at its end. */
static void count_kernels(const struct player *p)
{
	for (int c = 0; c < COMMS; c++) {
		struct ferry_nccl_comm *comm = ferry_nccl_comm_take(p->comms[c]);
		struct ferry_shadow_comm *shadow_comm = comm ? atomic_load(&comm->shadow_comm) : NULL;
		if (shadow_comm)
			atomic_fetch_add(&kernels, ferry_tally_kernels(&shadow_comm->tally));
		ferry_nccl_comm_release(comm);
	}
}

static void *play(void *context)
{
	struct player *p = context;
	ncclResult_t error;
	open_buffers(p);
	NCCL(p->nccl->CommInitRank(&p->comms[0], RANKS, p->id, p->rank));
	p->sizes[0] = RANKS;
	p->ranks[0] = p->rank;
	for (int step = 0; step < STEPS; step++) {
		unsigned what = draw(p, 8);
		int c = (int)draw(p, COMMS);
		if (what == 0 && c) {
			a_split(p, c);
			continue;
		}
		uint64_t random = p->random; /* those of smaller communicators draw otherwise */
		c = p->comms[c] ? c : 0;
		if (draw(p, 4) == 0)
			in_graph(p, what < 4 ? a_group : a_call, c);
		else
			(what < 4 ? a_group : a_call)(p, c);
		settle(p);
		remember(p, p->out, SLOTS * SLOT_BYTES);
		remember(p, p->in, SLOTS * SLOT_BYTES);
		NCCL(p->nccl->CommGetAsyncError(p->comms[c], &error));
		NCCL(error);
		p->random = random;
		draw(p, 2);
	}
	count_kernels(p);
	for (int c = COMMS - 1; c >= 0; c--)
		if (p->comms[c])
			NCCL(p->nccl->CommDestroy(p->comms[c]));
	close_buffers(p);
	return NULL;
}

static struct player *run_program(const struct names *nccl, uint64_t seed)
{
	struct player *players = calloc(RANKS, sizeof *players);
	ncclUniqueId id;
	NCCL(nccl->GetUniqueId(&id));
	for (int i = 0; i < RANKS; i++) {
		players[i].nccl = nccl;
		players[i].random = seed;
		players[i].rank = i;
		players[i].id = id;
		pthread_create(&players[i].thread, NULL, play, &players[i]);
	}
	for (int i = 0; i < RANKS; i++)
		pthread_join(players[i].thread, NULL);
	return players;
}

static void random_programs_do_the_same_through_ferry(void **state)
{
	(void)state;
	const char *programs = getenv("NCCL_RANDOM_PROGRAMS"), *first = getenv("NCCL_RANDOM_SEED");
	uint64_t seed = first ? strtoull(first, NULL, 10) : 1;
	uint64_t last = seed + (programs ? strtoull(programs, NULL, 10) : PROGRAMS);
	for (; seed < last; seed++) {
		struct player *with = run_program(&through, seed), *without = run_program(&direct, seed);
		for (int i = 0; i < RANKS; i++)
			if (with[i].digest != without[i].digest)
				fail_msg("NCCL_RANDOM_SEED=%ju: rank %d ends otherwise", (uintmax_t)seed, i);
		free(with);
		free(without);
	}
	assert_true(!ON_GPUS || kernels);
}

int main(void)
{
	void *here = dlopen(NULL, RTLD_NOW), *there = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
	HOLDS(here && there);
#define NCCL_VALUE(since, type, name, parameters, arguments)                                                           \
	*(void **)&through.name = dlsym(here, "nccl" #name);                                                           \
	*(void **)&direct.name = dlsym(there, "nccl" #name);                                                           \
	HOLDS(through.name &&direct.name &&through.name != direct.name);
#include "orchestrator/functions.def"
	const struct CMUnitTest tests[] = {cmocka_unit_test(random_programs_do_the_same_through_ferry)};
#ifdef NCCL_RANDOM_ON_GPUS
	setenv("FERRY_KERNELS", "on", 0);
	fake_is_the_driver();
	setenv("FERRY_SPLIT_WAIT", "10", 0);
	setenv("FERRY_SPLIT_FLOOR", "1K", 0);
	setenv("FERRY_SHARES", "nccl:0,host:1", 0);
	domains_open(1);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	domains_close();
	return failed;
#else
	return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
