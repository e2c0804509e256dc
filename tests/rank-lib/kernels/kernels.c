/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that kernels carry, over the double of the CUDA driver: they have the bits of the routers' calls, in graphs and
 * out of them, whichever memory the mailboxes lie in; and all ranks have kernels or none. The kernels by themselves:
 * kernel_exchange.c; what fails: kernel_faults.c.
 */
#include "rank-lib/call/comm.h"
#include "router/reduce/reduce.h"
#include "tests/fake_cuda/rank_process.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_BYTES (160u << 10) /* of a buffer: beyond what LL carries */
#define COUNT      3011
#define NOISES     1000 /* inputs that differ */
#define REPLAYS    REPEATS(100, 20)

static const int devices[] = {0, 1, 2, 3};

/* Where the mailboxes are to lie; both: how often each test is run. */
static const char *const fabrics[] = {"host", "peer"};

static void use(const char *kernels, const char *fabric)
{
	setenv("FERRY_KERNELS", kernels, 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

static uint64_t carried(ferryComm_t comm)
{
	const struct ferry_rank *rank = &comm->rank;
	return atomic_load(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->mailbox.calls);
}

static uint64_t next(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* ---- every call, against routers ---- */

struct call {
	enum ferry_collective collective;
	ferryDataType_t type;
	int op; /* ferryNumOps: premulsum */
	int root;
	size_t count;
	bool in_place, scalar_on_device;
};

static struct call call_of(uint64_t seed, int nranks)
{
	static const enum ferry_collective collectives[] = {FERRY_ALLREDUCE, FERRY_ALLGATHER,      FERRY_REDUCESCATTER,
	                                                    FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT, FERRY_ALLTOALL,
	                                                    FERRY_GATHER,    FERRY_SCATTER};
	struct call call = {.collective = collectives[next(&seed) % 8], .type = next(&seed) % ferryNumTypes};
	size_t most = MOST_BYTES / (size_t)nranks / ferry_type_size(call.type);
	call.op = (int)(next(&seed) % (ferryNumOps + 1));
	call.root = (int)(next(&seed) % (uint64_t)nranks);
	call.count = next(&seed) % 4 ? next(&seed) % 300 : next(&seed) % most;
	call.in_place = next(&seed) % 2;
	call.scalar_on_device = next(&seed) % 2;
	return call;
}

struct peer {
	CUstream stream;
	CUdeviceptr send, receive, scalar;
	ferryRedOp_t ops[ferryNumTypes][2]; /* premulsum, by where the factor is */
};

static void enter(const struct gang *gang, int rank)
{
	const struct place place = {.device = gang->devices[rank]};
	place_enter(&place);
}

static void peers_open(struct peer *peers, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct peer *peer = &peers[rank];
		enter(gang, rank);
		CU(cuStreamCreate(&peer->stream, CU_STREAM_NON_BLOCKING));
		CU(cuMemAlloc(&peer->send, MOST_BYTES));
		CU(cuMemAlloc(&peer->receive, MOST_BYTES));
		CU(cuMemAlloc(&peer->scalar, 64 * ferryNumTypes));
		for (ferryDataType_t type = 0; type < ferryNumTypes; type++) {
			uint64_t half = ferry_reduce_reciprocal(type, 2 + (uint32_t)rank), factor = half ? half : 3;
			char *scalar = (char *)fake_cuda_reach(peer->scalar) + 64 * type;
			memcpy(scalar, &factor, sizeof factor);
			OK(ferryRedOpCreatePreMulSum(&peer->ops[type][0], &factor, type, ferryScalarHostImmediate,
			                             gang->comms[rank]));
			OK(ferryRedOpCreatePreMulSum(&peer->ops[type][1], pointer_of(peer->scalar + 64 * type), type,
			                             ferryScalarDevice, gang->comms[rank]));
		}
	}
}

static void peers_close(struct peer *peers, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamDestroy(peers[rank].stream));
		CU(cuMemFree(peers[rank].send));
		CU(cuMemFree(peers[rank].receive));
		CU(cuMemFree(peers[rank].scalar));
	}
}

/* Where the send buffer lies if the call is in place. */
static char *send_in_place(const struct call *call, char *receive, int rank)
{
	size_t block = call->count * ferry_type_size(call->type) * (size_t)rank;
	return call->collective == FERRY_ALLGATHER || call->collective == FERRY_GATHER ? receive + block : receive;
}

static void make(const struct call *call, const struct gang *gang, const struct peer *peer, int rank)
{
	ferryComm_t comm = gang->comms[rank];
	ferryStream_t stream = (ferryStream_t)peer->stream;
	char *receive = pointer_of(peer->receive), *send = pointer_of(peer->send);
	size_t block = call->count * ferry_type_size(call->type);
	ferryRedOp_t op = call->op < ferryNumOps ? (ferryRedOp_t)call->op
	                                         : peer->ops[call->type][call->scalar_on_device];
	if (call->in_place)
		send = send_in_place(call, receive, rank);
	bool scatters = call->collective == FERRY_REDUCESCATTER || call->collective == FERRY_SCATTER;
	if (call->in_place && scatters)
		receive += (size_t)rank * block;
	if (call->collective == FERRY_GATHER && rank != call->root)
		receive = NULL;
	if (call->collective == FERRY_SCATTER && rank != call->root)
		send = NULL;
	enter(gang, rank);
	switch (call->collective) {
	case FERRY_ALLREDUCE:
		OK(ferryAllReduce(send, receive, call->count, call->type, op, comm, stream));
		break;
	case FERRY_ALLGATHER:
		OK(ferryAllGather(send, receive, call->count, call->type, comm, stream));
		break;
	case FERRY_REDUCESCATTER:
		OK(ferryReduceScatter(send, receive, call->count, call->type, op, comm, stream));
		break;
	case FERRY_BROADCAST:
		OK(ferryBroadcast(send, receive, call->count, call->type, call->root, comm, stream));
		break;
	case FERRY_REDUCE_TO_ROOT:
		OK(ferryReduce(send, receive, call->count, call->type, op, call->root, comm, stream));
		break;
	case FERRY_ALLTOALL:
		OK(ferryAllToAll(send, receive, call->count, call->type, comm, stream));
		break;
	case FERRY_GATHER:
		OK(ferryGather(send, receive, call->count, call->type, call->root, comm, stream));
		break;
	default:
		OK(ferryScatter(send, receive, call->count, call->type, call->root, comm, stream));
	}
}

static void fill(const struct peer *peer, uint64_t seed)
{
	uint64_t *buffers[2] = {fake_cuda_reach(peer->send), fake_cuda_reach(peer->receive)};
	static uint64_t noise[MOST_BYTES / 8 + NOISES];
	for (size_t at = 0; at < sizeof noise / 8 && !noise[sizeof noise / 8 - 1]; at++)
		noise[at] = next(&(uint64_t){at});
	for (int i = 0; i < 2; i++)
		sampled_copy(buffers[i], noise + next(&seed) % NOISES, MOST_BYTES);
}

/* The same call by both: what it leaves in the receive buffers, whole, is the same. */
static void compare(const struct call *call, const struct gang *gangs, struct peer peers[2][MOST_PLACES], uint64_t seed)
{
	for (int which = 0; which < 2; which++)
		for (int rank = 0; rank < gangs[0].nranks; rank++)
			fill(&peers[which][rank], seed * 64 + (uint64_t)rank);
	for (int which = 0; which < 2; which++) {
		for (int rank = 0; rank < gangs[0].nranks; rank++)
			make(call, &gangs[which], &peers[which][rank], rank);
		for (int rank = 0; rank < gangs[0].nranks; rank++)
			CU(cuStreamSynchronize(peers[which][rank].stream));
	}
	for (int rank = 0; rank < gangs[0].nranks; rank++)
		if (!sampled_same(fake_cuda_reach(peers[0][rank].receive), fake_cuda_reach(peers[1][rank].receive),
		                  MOST_BYTES))
			fail_msg("rank %d of %d: %s of %zu %s, %s, root %d, in place %d: other bits than by a router",
			         rank, gangs[0].nranks, ferry_collective_name(call->collective), call->count,
			         ferry_type_name(call->type), ferry_redop_name((ferryRedOp_t)call->op), call->root,
			         call->in_place);
}

static void calls_have_the_bits_of_routers(void **state)
{
	(void)state;
	for (int nranks = 2; nranks <= 4; nranks++)
		for (int fabric = 0; fabric < 2; fabric++) {
			struct gang gangs[2];
			struct peer peers[2][MOST_PLACES];
			uint64_t made = 0;
			for (int which = 0; which < 2; which++) {
				use(which ? "on" : "off", fabrics[fabric]);
				gang_open(&gangs[which], nranks, devices, nranks == 3 ? 2 : 1);
				peers_open(peers[which], &gangs[which]);
			}
			assert_true(gangs[1].comms[0]->mailboxes.ready);
			assert_int_equal(gangs[1].comms[0]->mailboxes.peer, fabric);
			for (uint64_t seed = 0; seed < REPEATS(60, 12); seed++) {
				struct call call = call_of(seed + 1000 * (uint64_t)(2 * nranks + fabric), nranks);
				compare(&call, gangs, peers, seed);
				made += call.count > 0;
			}
			assert_int_equal(carried(gangs[0].comms[0]), 0);
			assert_int_equal(carried(gangs[1].comms[0]), made);
			for (int which = 0; which < 2; which++) {
				gang_close(&gangs[which]);
				peers_close(peers[which], &gangs[which]);
			}
		}
}

/* ---- graphs, streams and communicators ---- */

static CUgraphExec finish_capture(CUstream stream)
{
	CUgraph captured;
	CUgraphExec executable;
	CU(cuStreamEndCapture(stream, &captured));
	CU(cuGraphInstantiateWithFlags(&executable, captured, 0));
	CU(cuGraphDestroy(captured));
	return executable;
}

/* Two communicators, a stream each; plain calls of each on both streams, in the order of one of them by turns. */
static void replays_and_plain_calls_of_two_communicators_on_two_streams(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gangs[2];
		struct place places[2][MOST_PLACES];
		CUgraphExec graphs[2][MOST_PLACES];
		use("on", fabrics[fabric]);
		for (int which = 0; which < 2; which++) {
			gang_open(&gangs[which], 3, devices, 1);
			places_open(places[which], &gangs[which], COUNT + 100 * (size_t)which);
		}
		for (int which = 0; which < 2; which++)
			for (int rank = 0; rank < 3; rank++) {
				struct place *place = &places[which][rank];
				place_enter(place);
				CU(cuStreamBeginCapture(place->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
				for (int i = 0; i < 2; i++) {
					place_write(place);
					place_call(place, gangs[which].comms[rank]);
					place_judge(place);
				}
				graphs[which][rank] = finish_capture(place->stream);
			}
		for (int i = 0; i < REPLAYS; i++) /* and one plain call of each on the average, but for the last */
			for (int which = 0; which < 2; which++)
				for (int rank = 0; rank < 3; rank++) {
					place_enter(&places[which][rank]);
					CU(cuGraphLaunch(graphs[which][rank], places[which][rank].stream));
					for (int plain = 0; plain < i % 3; plain++)
						place_round(&places[which][rank], gangs[which].comms[rank]);
				}
		for (int which = 0; which < 2; which++) {
			places_settle(places[which], &gangs[which], 2 * REPLAYS + REPLAYS - 1);
			for (int rank = 0; rank < 3; rank++) {
				assert_int_equal(carried(gangs[which].comms[rank]), 2 + REPLAYS - 1);
				CU(cuGraphExecDestroy(graphs[which][rank]));
			}
			gang_close(&gangs[which]);
			places_close(places[which], &gangs[which]);
		}
	}
}

/* Nothing but the communicator puts calls of two streams in order, and every other rank is asked in another order. */
static void plain_calls_of_a_communicator_on_two_streams_are_put_in_order(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct place places[2][MOST_PLACES];
		use("on", fabrics[fabric]);
		gang_open(&gang, 3, devices, 1);
		for (int which = 0; which < 2; which++)
			places_open(places[which], &gang, 1 + 700 * (size_t)which);
		for (int i = 0; i < 300; i++)
			for (int rank = 0; rank < 3; rank++)
				place_round(&places[i / 2 % 2][rank], gang.comms[rank]);
		for (int which = 0; which < 2; which++)
			places_settle(places[which], &gang, 150);
		assert_int_equal(carried(gang.comms[2]), 300);
		gang_close(&gang);
		for (int which = 0; which < 2; which++)
			places_close(places[which], &gang);
	}
}

/* A fork in the graph: two branches, each with calls of the same communicator. */
static void calls_in_two_branches_of_a_graph_are_put_in_order(void **state)
{
	(void)state;
	struct gang gang;
	struct place places[2][MOST_PLACES];
	CUgraphExec graphs[MOST_PLACES];
	CUevent fork[MOST_PLACES], join[MOST_PLACES];
	use("on", "peer");
	gang_open(&gang, 2, devices, 1);
	for (int which = 0; which < 2; which++)
		places_open(places[which], &gang, COUNT);
	for (int rank = 0; rank < 2; rank++) {
		struct place *one = &places[0][rank], *two = &places[1][rank];
		place_enter(one);
		CU(cuEventCreate(&fork[rank], 0));
		CU(cuEventCreate(&join[rank], 0));
		CU(cuStreamBeginCapture(one->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
		CU(cuEventRecord(fork[rank], one->stream));
		CU(cuStreamWaitEvent(two->stream, fork[rank], 0));
		for (int i = 0; i < 4; i++)
			place_round(&places[i / 2][rank], gang.comms[rank]);
		place_round(one, gang.comms[rank]);
		CU(cuEventRecord(join[rank], two->stream));
		CU(cuStreamWaitEvent(one->stream, join[rank], 0));
		graphs[rank] = finish_capture(one->stream);
	}
	for (int i = 0; i < REPLAYS; i++)
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[0][rank]);
			CU(cuGraphLaunch(graphs[rank], places[0][rank].stream));
		}
	places_settle(places[0], &gang, 3 * REPLAYS);
	places_settle(places[1], &gang, 2 * REPLAYS);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[0][rank]);
		CU(cuGraphExecDestroy(graphs[rank]));
		CU(cuEventDestroy(fork[rank]));
		CU(cuEventDestroy(join[rank]));
	}
	gang_close(&gang);
	for (int which = 0; which < 2; which++)
		places_close(places[which], &gang);
}

/* ---- processes ---- */

static void start(struct rank_process *ranks, int nranks, const char *variables)
{
	for (int rank = 0; rank < nranks; rank++)
		ranks[rank] = rank_start(variables);
}

static void finish(struct rank_process *ranks, int nranks)
{
	ranks_tell(ranks, nranks, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
	for (int rank = 0; rank < nranks; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static int carried_there(const struct rank_process *rank)
{
	return rank_tell(rank, (struct rank_ordered){.order = RANK_KERNELS}).number;
}

static void ranks_of_several_processes_have_kernels(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct rank_process ranks[4];
		use("on", fabrics[fabric]);
		domains_open(2);
		start(ranks, 4, NULL);
		ranks_join(ranks, 4, devices, COUNT);
		ranks_round(ranks, 4, 50, 50);
		ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_CAPTURE, .number = 1}, NULL);
		ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_REPLAY, .number = 50}, NULL);
		ranks_round(ranks, 4, 5, 105);
		assert_int_equal(carried_there(&ranks[3]), 56);
		ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_FORGET}, NULL);
		finish(ranks, 4);
	}
}

/* What one of them has set; calls go by routers then, as ever. */
static void without(const char *variables, int device)
{
	struct rank_process ranks[2];
	domains_open(1);
	ranks[0] = rank_start(NULL);
	ranks[1] = rank_start(variables);
	ranks_join(ranks, 2, (const int[]){0, device}, COUNT);
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(carried_there(&ranks[rank]), -1);
	ranks_round(ranks, 2, 3, 3);
	finish(ranks, 2);
}

static void all_ranks_have_kernels_or_none(void **state)
{
	(void)state;
	use("on", "host,peer");
	without("FAKE_CUDA_NO_IPC=1", 1);     /* it can map no other process's memory */
	without("FERRY_KERNELS=off", 1);
	without("NCCL_P2P_DISABLE=1", 1);     /* it wants host memory, the other one peer memory */
	without("FAKE_CUDA_LIES=8388608", 1); /* what it names as its mailbox is smaller */
	without(NULL, 0);                     /* two processes on a GPU would wait for each other's turn */
}

/* A mailbox in this process is found by whose it is, not by what a rank says of it. */
static void ranks_find_their_own_communicators_mailboxes(void **state)
{
	(void)state;
	struct gang gangs[2];
	void *inbox;
	use("on", "peer");
	for (int which = 0; which < 2; which++)
		gang_open(&gangs[which], 2 + which, devices, 1);
	for (int which = 0; which < 2; which++)
		for (int rank = 0; rank < 3; rank++) {
			struct ferry_box *own = gangs[which].comms[0]->mailboxes.box;
			struct ferry_box longer = {.bytes = own->bytes + 1};
			struct ferry_box *box = rank < 2 + which ? gangs[which].comms[rank]->mailboxes.box : NULL;
			assert_ptr_equal(ferry_box_of(own, rank, &inbox), box ? box->device : NULL);
			assert_ptr_equal(inbox, box ? box->memory : NULL);
			memcpy(longer.key, own->key, sizeof longer.key);
			assert_null(ferry_box_of(&longer, rank, &inbox));
		}
	struct ferry_box other = {.bytes = gangs[0].comms[0]->mailboxes.box->bytes}; /* of a third communicator */
	assert_null(ferry_box_of(&other, 1, &inbox));
	for (int which = 0; which < 2; which++)
		gang_close(&gangs[which]);
}

/* ---- a GPU that ranks share ---- */

struct sharer {
	ferryUniqueId id;
	int rank;
	ferryComm_t comm;
	ferryResult_t result;
};

static void *join_on_one_gpu(void *argument)
{
	struct sharer *sharer = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.device = "cuda";
	config.ordinal = 0;
	sharer->result = ferryCommInitRankConfig(&sharer->comm, 5, sharer->id, sharer->rank, &config);
	return NULL;
}

/* Their kernels wait for each other, so all blocks must have a place. */
static void ranks_on_one_gpu_share_its_multiprocessors(void **state)
{
	struct sharer sharers[5];
	pthread_t threads[5];
	ferryUniqueId id;
	(void)state;
	use("64", "peer");
	domains_open(1);
	OK(ferryGetUniqueId(&id));
	for (int rank = 0; rank < 5; rank++) {
		sharers[rank] = (struct sharer){.id = id, .rank = rank};
		assert_int_equal(pthread_create(&threads[rank], NULL, join_on_one_gpu, &sharers[rank]), 0);
	}
	for (int rank = 0; rank < 5; rank++) {
		pthread_join(threads[rank], NULL);
		OK(sharers[rank].result);
		assert_true(sharers[rank].comm->mailboxes.ready);
		assert_int_equal(sharers[rank].comm->mailboxes.blocks, 132 / (4 * 5));
	}
	for (int rank = 0; rank < 5; rank++)
		OK(ferryCommDestroy(sharers[rank].comm));
	domains_close();
}

/* So calls of three communicators have a place at the same time. FERRY_KERNELS is kept to. */
static void long_calls_of_the_first_communicator_have_half_of_the_multiprocessors(void **state)
{
	static const struct {
		const char *kernels;
		uint32_t first, second;
	} cases[] = {{"on", FERRY_KERNEL_BLOCKS, 33}, {"40", 40, 40}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct gang first, second;
		use(cases[i].kernels, "peer");
		gang_open(&first, 2, devices, 1);
		gang_open(&second, 2, devices, 1);
		for (int rank = 0; rank < 2; rank++) {
			assert_int_equal(first.comms[rank]->mailboxes.line_blocks, cases[i].first);
			assert_int_equal(second.comms[rank]->mailboxes.line_blocks, cases[i].second);
			assert_int_equal(first.comms[rank]->mailboxes.blocks, cases[i].second);
		}
		gang_close(&second);
		gang_close(&first);
	}
}

struct opening {
	struct gang *gang;
	ferryResult_t result;
};

static void *open_beside(void *argument)
{
	struct opening *opening = argument;
	opening->result = ferryCommInitAll(opening->gang->comms, 2, devices);
	return NULL;
}

/* A GPU may be one's first and another GPU the other's: then neither has twice the blocks. */
static void communicators_that_open_at_once_do_not_both_have_half_of_the_multiprocessors(void **state)
{
	(void)state;
	use("on", "peer");
	for (int turn = 0; turn < 3; turn++) {
		struct gang gangs[2] = {{.nranks = 2, .devices = devices}, {.nranks = 2, .devices = devices}};
		struct opening openings[2];
		pthread_t threads[2];
		domains_open(1);
		for (int which = 0; which < 2; which++) {
			openings[which] = (struct opening){&gangs[which], ferrySuccess};
			assert_int_equal(pthread_create(&threads[which], NULL, open_beside, &openings[which]), 0);
		}
		for (int which = 0; which < 2; which++) {
			pthread_join(threads[which], NULL);
			OK(openings[which].result);
		}
		for (int rank = 0; rank < 2; rank++)
			assert_true(gangs[0].comms[rank]->mailboxes.line_blocks == 33 ||
			            gangs[1].comms[rank]->mailboxes.line_blocks == 33);
		for (int rank = 0; rank < 2; rank++)
			OK(ferryCommDestroy(gangs[1].comms[rank]));
		gang_close(&gangs[0]);
	}
}

/* ---- memory ---- */

static size_t memory_left(void)
{
	size_t left, all;
	CU(cuMemGetInfo(&left, &all));
	return left;
}

/* Also one that a graph still names, until that is gone. */
static void mailboxes_are_used_again(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct place places[MOST_PLACES];
		CUgraphExec graphs[MOST_PLACES];
		size_t left = 0;
		use("on", fabrics[fabric]);
		for (int i = 0; i < REPEATS(12, 7); i++) {
			gang_open(&gang, 2, devices, 1);
			places_open(places, &gang, COUNT);
			places_round(places, &gang);
			for (int rank = 0; rank < 2; rank++) {
				place_enter(&places[rank]);
				CU(cuStreamBeginCapture(places[rank].stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
				place_round(&places[rank], gang.comms[rank]);
				graphs[rank] = finish_capture(places[rank].stream);
				CU(cuGraphLaunch(graphs[rank], places[rank].stream));
			}
			places_settle(places, &gang, 2);
			for (int rank = 0; rank < 2; rank++)
				CU(cuGraphExecDestroy(graphs[rank]));
			gang_close(&gang);
			places_close(places, &gang);
			doze(20); /* what a graph has held is let go by a thread of the driver's */
			place_enter(&(struct place){.device = 0});
			if (i == 4)
				left = memory_left();
		}
		for (int i = 0; i < 1000 && memory_left() < left; i++)
			doze(10); /* a thread of its own frees them */
		assert_true(memory_left() >= left);
	}
}

/* While another communicator is there, so that nothing is given back. */
static void mailboxes_are_used_again_beside_others(void **state)
{
	struct gang held, gang;
	struct place places[MOST_PLACES];
	size_t left = 0;
	(void)state;
	use("on", "peer");
	gang_open(&held, 2, devices, 1);
	for (int i = 0; i < 6; i++) {
		gang_open(&gang, 2, devices, 1);
		places_open(places, &gang, COUNT);
		places_round(places, &gang);
		places_settle(places, &gang, 1);
		gang_close(&gang);
		places_close(places, &gang);
		place_enter(&(struct place){.device = 0});
		if (i == 2)
			left = memory_left();
	}
	assert_int_equal(memory_left(), left);
	gang_close(&held);
}

/* Of communicators that were there at the same time: a program that has ended them wants its memory. */
static void mailboxes_that_nobody_has_are_given_back(void **state)
{
	(void)state;
	enum { GANGS = REPEATS(10, 7) };
	struct gang gangs[GANGS];
	size_t before;
	use("on", "peer");
	place_enter(&(struct place){.device = 0});
	before = memory_left();
	for (int i = 0; i < GANGS; i++)
		gang_open(&gangs[i], 2 + i % 2, devices, 1);
	for (int i = 0; i < GANGS; i++)
		gang_close(&gangs[i]);
	place_enter(&(struct place){.device = 0});
	for (int i = 0; i < 1000 && memory_left() + 4 * (26u << 20) < before; i++)
		doze(10);
	assert_true(memory_left() + 4 * (26u << 20) >= before); /* boxes of three ranks */
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(calls_have_the_bits_of_routers),
	        TEST(replays_and_plain_calls_of_two_communicators_on_two_streams),
	        TEST(plain_calls_of_a_communicator_on_two_streams_are_put_in_order),
	        TEST(calls_in_two_branches_of_a_graph_are_put_in_order),
	        TEST(ranks_of_several_processes_have_kernels),
	        TEST(all_ranks_have_kernels_or_none),
	        TEST(ranks_find_their_own_communicators_mailboxes),
	        TEST(ranks_on_one_gpu_share_its_multiprocessors),
	        TEST(long_calls_of_the_first_communicator_have_half_of_the_multiprocessors),
	        TEST(communicators_that_open_at_once_do_not_both_have_half_of_the_multiprocessors),
	        TEST(mailboxes_are_used_again),
	        TEST(mailboxes_are_used_again_beside_others),
	        TEST(mailboxes_that_nobody_has_are_given_back),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
