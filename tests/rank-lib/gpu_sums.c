/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that GPUs make themselves (rank-lib/call/gpu_sums.h), over the double of the CUDA driver: they have the bits of
 * the routers' sums, in whichever pieces; nothing of one call meets another's memory; and failures end on all ranks.
 * Pieces are of 1 to 64 KiB (fake_cuda.cmake). What short kernels would carry is said to be shared, as calls beside
 * NCCL are.
 */
#include "rank-lib/call/gpu_sums.h"

#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_BYTES (500u << 10) /* of a buffer */
#define MORE_BYTES 64           /* behind it: nobody writes there */
#define NOISES     1000         /* inputs that differ */

static const int devices[] = {0, 1, 2, 3};

static void use(const char *kernels, const char *fabric)
{
	setenv("FERRY_KERNELS", kernels, 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

static uint64_t next(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void enter(const struct gang *gang, int rank)
{
	const struct place place = {.device = gang->devices[rank]};
	place_enter(&place);
}

/* How many calls the rank has given its router. */
static uint64_t submitted(ferryComm_t comm)
{
	return comm->mapped.journal->number;
}

/* Whether memory for blocks has been made. */
static bool has_memory(ferryComm_t comm)
{
	return comm->mapped.bounces.all;
}

/* ---- every type and operation, against routers ---- */

struct call {
	enum ferry_collective collective;
	ferryDataType_t type;
	ferryRedOp_t op;
	size_t count;
	bool in_place, aside; /* aside: an element off */
};

/* A rank's, of one of the two communicators. */
struct peer {
	CUstream stream;
	CUdeviceptr send, receive;
};

static void peers_open(struct peer *peers, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamCreate(&peers[rank].stream, CU_STREAM_NON_BLOCKING));
		CU(cuMemAlloc(&peers[rank].send, MOST_BYTES + MORE_BYTES));
		CU(cuMemAlloc(&peers[rank].receive, MOST_BYTES + MORE_BYTES));
	}
}

static void peers_close(struct peer *peers, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamDestroy(peers[rank].stream));
		CU(cuMemFree(peers[rank].send));
		CU(cuMemFree(peers[rank].receive));
	}
}

static struct ferry_request request_of(const struct call *call, const struct gang *gang, const struct peer *peer,
                                       int rank)
{
	const size_t size = ferry_type_size(call->type), off = call->aside ? size : 0;
	char *receive = (char *)pointer_of(peer->receive) + off, *send = (char *)pointer_of(peer->send) + off;
	const bool scatters = call->collective == FERRY_REDUCESCATTER;
	return (struct ferry_request){.collective = call->collective,
	                              .send = call->in_place ? receive : send,
	                              .receive = receive + (call->in_place && scatters ? rank * call->count * size : 0),
	                              .count = call->count,
	                              .type = call->type,
	                              .op = call->op,
	                              .comm = gang->comms[rank],
	                              .stream = (ferryStream_t)peer->stream,
	                              .shared = true};
}

static void fill(const struct peer *peer, uint64_t seed)
{
	static uint64_t noise[(MOST_BYTES + MORE_BYTES) / 8 + NOISES];
	for (size_t at = 0; at < sizeof noise / 8 && !noise[sizeof noise / 8 - 1]; at++)
		noise[at] = next(&(uint64_t){at});
	memcpy(fake_cuda_reach(peer->send), noise + next(&seed) % NOISES, MOST_BYTES + MORE_BYTES);
	memcpy(fake_cuda_reach(peer->receive), noise + next(&seed) % NOISES, MOST_BYTES + MORE_BYTES);
}

static void make(const struct call *call, const struct gang *gang, const struct peer *peers)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct ferry_request request = request_of(call, gang, &peers[rank], rank);
		enter(gang, rank);
		OK(ferry_group_call(&request));
	}
	for (int rank = 0; rank < gang->nranks; rank++)
		CU(cuStreamSynchronize(peers[rank].stream));
}

/* The same call by both, after which all memory is the same, around the buffers too. */
static void compare(const struct call *call, const struct gang *gangs, struct peer peers[2][MOST_PLACES], uint64_t seed)
{
	for (int which = 0; which < 2; which++) {
		for (int rank = 0; rank < gangs[0].nranks; rank++)
			fill(&peers[which][rank], seed * 64 + (uint64_t)rank);
		make(call, &gangs[which], peers[which]);
	}
	for (int rank = 0; rank < gangs[0].nranks; rank++)
		if (memcmp(fake_cuda_reach(peers[0][rank].receive), fake_cuda_reach(peers[1][rank].receive),
		           MOST_BYTES + MORE_BYTES) ||
		    memcmp(fake_cuda_reach(peers[0][rank].send), fake_cuda_reach(peers[1][rank].send),
		           MOST_BYTES + MORE_BYTES))
			fail_msg("rank %d of %d: %s of %zu %s, %s, in place %d, aside %d: other bits than by a router",
			         rank, gangs[0].nranks, ferry_collective_name(call->collective), call->count,
			         ferry_type_name(call->type), ferry_redop_name(call->op), call->in_place, call->aside);
}

/* Two communicators of as many ranks: routers add up for the first. */
static void gangs_open(struct gang *gangs, struct peer peers[2][MOST_PLACES], int nranks, const char *fabric)
{
	for (int which = 0; which < 2; which++) {
		use(which ? "on" : "off", fabric);
		gang_open(&gangs[which], nranks, devices, nranks == 3 ? 2 : 1);
		peers_open(peers[which], &gangs[which]);
	}
	assert_true(gangs[1].comms[0]->mailboxes.ready);
	assert_int_equal(gangs[1].comms[0]->mailboxes.peer, !strcmp(fabric, "peer"));
}

static void gangs_close(struct gang *gangs, struct peer peers[2][MOST_PLACES])
{
	for (int which = 0; which < 2; which++) {
		gang_close(&gangs[which]);
		peers_close(peers[which], &gangs[which]);
	}
}

/* What is submitted for the call: a step of each piece, or two. */
static uint64_t steps_of(const struct call *call, const struct gang *gang, const struct peer *peer)
{
	struct ferry_request request = request_of(call, gang, peer, 0);
	assert_true(ferry_gpu_sums_carry(gang->comms[0], &request));
	return (uint64_t)ferry_gpu_sums_pieces(&request) * (call->collective == FERRY_ALLREDUCE ? 2 : 1);
}

/*
 * Bytes of a rank's block that are one short piece, one, one and a bit, two of which one is short, or several; a rest
 * behind the last line, or a line that is not whole.
 */
static size_t count_of(const struct call *call, int nranks, uint64_t which)
{
	static const size_t blocks[] = {256, 1024, 1152, 4096 + 384, 48 * 1024, 120 * 1024};
	const size_t size = ferry_type_size(call->type), n = (size_t)nranks, bytes = blocks[which % 6];
	return call->collective == FERRY_ALLREDUCE ? bytes * n / size + which % 7 % (128 / size * n)
	                                           : bytes / size - which % 3;
}

static void compare_all(struct gang *gangs, struct peer peers[2][MOST_PLACES], enum ferry_collective collective)
{
	uint64_t which = 0;
	for (ferryDataType_t type = 0; type < ferryNumTypes; type++)
		for (ferryRedOp_t op = 0; op < ferryNumOps; op++)
			for (int in_place = 0; in_place < 2; in_place++, which++) {
				struct call call = {.collective = collective,
				                    .type = type,
				                    .op = op,
				                    .in_place = in_place,
				                    .aside = which % 5 > 2};
				call.count = count_of(&call, gangs[0].nranks, which);
				uint64_t before = submitted(gangs[1].comms[0]);
				compare(&call, gangs, peers, which);
				assert_int_equal(submitted(gangs[1].comms[0]) - before,
				                 steps_of(&call, &gangs[1], &peers[1][0]));
			}
	assert_true(has_memory(gangs[1].comms[0]));
	assert_false(has_memory(gangs[0].comms[0]));
}

static void sums_over_links_have_the_bits_of_routers(void **state)
{
	(void)state;
	for (int nranks = 2; nranks <= 4; nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		gangs_open(gangs, peers, nranks, "peer");
		compare_all(gangs, peers, FERRY_ALLREDUCE);
		compare_all(gangs, peers, FERRY_REDUCESCATTER);
		gangs_close(gangs, peers);
	}
}

/* AllReduces of more than two ranks are the routers'. */
static void sums_by_the_host_have_the_bits_of_routers(void **state)
{
	(void)state;
	for (int nranks = 2; nranks <= 4; nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		gangs_open(gangs, peers, nranks, "host");
		compare_all(gangs, peers, FERRY_REDUCESCATTER);
		if (nranks == 2)
			compare_all(gangs, peers, FERRY_ALLREDUCE);
		struct ferry_request request = request_of(
		        &(struct call){.collective = FERRY_ALLREDUCE, .count = 5000}, &gangs[1], &peers[1][0], 0);
		assert_int_equal(ferry_gpu_sums_carry(gangs[1].comms[0], &request), nranks == 2);
		gangs_close(gangs, peers);
	}
}

/* Other GPUs push for longer than rank 0's, so that one piece of a call is there whole before another has come. */
static void pieces_do_not_meet_in_memory(void **state)
{
	(void)state;
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	for (int nranks = 3; nranks <= 4; nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		struct call call = {.collective = FERRY_ALLREDUCE, .type = ferryUint32};
		gangs_open(gangs, peers, nranks, "peer");
		for (size_t kbytes = 8; kbytes <= 128; kbytes += 24) {
			call.count = (kbytes << 10) / sizeof(uint32_t);
			compare(&call, gangs, peers, kbytes);
		}
		gangs_close(gangs, peers);
	}
	unsetenv("FAKE_CUDA_PUSH_MS");
}

/* ---- what GPUs do not add up ---- */

/* A factor of each rank's own. */
static void a_premulsum_is_the_routers(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		gangs_open(gangs, peers, 3, fabric ? "peer" : "host");
		for (int which = 0; which < 4; which++) {
			struct call call = {.collective = which % 2 ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER,
			                    .type = ferryFloat32,
			                    .in_place = which / 2,
			                    .count = 3000};
			for (int i = 0; i < 2; i++)
				for (int rank = 0; rank < 3; rank++) {
					float factor = 0.25f + (float)rank;
					OK(ferryRedOpCreatePreMulSum(&call.op, &factor, ferryFloat32,
					                             ferryScalarHostImmediate, gangs[i].comms[rank]));
				}
			uint64_t before = submitted(gangs[1].comms[0]);
			compare(&call, gangs, peers, (uint64_t)which);
			assert_int_equal(submitted(gangs[1].comms[0]) - before, 1);
			assert_false(has_memory(gangs[1].comms[0]));
			for (int i = 0; i < 2; i++)
				for (int rank = 0; rank < 3; rank++)
					OK(ferryRedOpDestroy(call.op, gangs[i].comms[rank]));
		}
		gangs_close(gangs, peers);
	}
}

static const char two_chunks[] = "program allreduce ranks 2 domains 1 chunks 2\n"
                                 "rank 0\n"
                                 "D2H gpu[0] -> host[0]\n"
                                 "D2H gpu[1] -> host[1]\n"
                                 "REDUCE host[0] -> host[4] deps: host[0]>=1\n"
                                 "REDUCE host[2] -> host[4] deps: host[2]>=1\n"
                                 "H2D host[4] -> gpu[0] deps: host[4]>=2\n"
                                 "H2D host[5] -> gpu[1] deps: host[5]>=2\n"
                                 "rank 1\n"
                                 "D2H gpu[0] -> host[2]\n"
                                 "D2H gpu[1] -> host[3]\n"
                                 "REDUCE host[1] -> host[5] deps: host[1]>=1\n"
                                 "REDUCE host[3] -> host[5] deps: host[3]>=1\n"
                                 "H2D host[4] -> gpu[0] deps: host[4]>=2\n"
                                 "H2D host[5] -> gpu[1] deps: host[5]>=2\n";

/* One of ferryRunProgram's, or one that replaces Ferry's own. */
static void users_programs_are_the_routers(void **state)
{
	(void)state;
	char file[] = "/tmp/ferry-gpu-sums-XXXXXX";
	int descriptor = mkstemp(file);
	assert_true(descriptor >= 0);
	assert_int_equal(write(descriptor, two_chunks, strlen(two_chunks)), strlen(two_chunks));
	close(descriptor);
	for (int replaces = 0; replaces < 2; replaces++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		struct call call = {.collective = FERRY_ALLREDUCE, .type = ferryInt32, .count = 3000};
		if (replaces)
			setenv("FERRY_PROGRAM_PATH", file, 1);
		gangs_open(gangs, peers, 2, "peer");
		for (int i = 0; i < 2; i++)
			for (int rank = 0; rank < 2; rank++) {
				struct ferry_request request = request_of(&call, &gangs[i], &peers[i][rank], rank);
				request.program = replaces ? NULL : two_chunks;
				fill(&peers[i][rank], (uint64_t)rank);
				enter(&gangs[i], rank);
				OK(ferry_group_call(&request));
			}
		for (int i = 0; i < 2; i++)
			for (int rank = 0; rank < 2; rank++)
				CU(cuStreamSynchronize(peers[i][rank].stream));
		for (int rank = 0; rank < 2; rank++)
			assert_memory_equal(fake_cuda_reach(peers[0][rank].receive),
			                    fake_cuda_reach(peers[1][rank].receive), MOST_BYTES);
		assert_false(has_memory(gangs[1].comms[0]));
		compare(&call, gangs, peers, 5);
		assert_int_equal(has_memory(gangs[1].comms[0]), !replaces);
		gangs_close(gangs, peers);
	}
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(file);
}

/* ---- rounds, in streams and graphs ---- */

/* As places.h's, for either sum: of uint32. */
struct seat {
	enum ferry_collective collective;
	int rank, nranks;
	size_t count; /* as the call takes it */
	CUstream stream;
	CUdeviceptr send, receive;
	uint32_t round; /* these two: the kernels' */
	size_t wrong;
};

static size_t sent(const struct seat *seat)
{
	return seat->collective == FERRY_REDUCESCATTER ? seat->count * (size_t)seat->nranks : seat->count;
}

static uint32_t element(uint32_t rank, uint32_t round, size_t i)
{
	return (rank + 1) * 2654435761u + (round + 3) * (uint32_t)(i + 1) * 40503u;
}

UNSEEN static void make_input(const struct seat *seat, uint32_t *made)
{
	for (size_t i = 0; i < sent(seat); i++)
		made[i] = element((uint32_t)seat->rank, seat->round, i);
}

UNSEEN static void make_output(const struct seat *seat, uint32_t *made)
{
	size_t first = seat->collective == FERRY_REDUCESCATTER ? seat->count * (size_t)seat->rank : 0;
	for (size_t i = 0; i < seat->count; i++)
		for (int rank = 0; rank < seat->nranks; rank++)
			made[i] = (rank ? made[i] : 0) + element((uint32_t)rank, seat->round, first + i);
}

static void write_input(void *argument)
{
	const struct seat *seat = argument;
	uint32_t *made = malloc(sent(seat) * sizeof *made);
	make_input(seat, made);
	memcpy(fake_cuda_reach(seat->send), made, sent(seat) * sizeof *made);
	free(made);
}

static void judge_output(void *argument)
{
	struct seat *seat = argument;
	uint32_t *made = malloc(seat->count * sizeof *made);
	make_output(seat, made);
	seat->wrong += memcmp(fake_cuda_reach(seat->receive), made, seat->count * sizeof *made) != 0;
	memset(fake_cuda_reach(seat->receive), 0, seat->count * sizeof *made);
	seat->round++;
	free(made);
}

static void seats_open(struct seat *seats, const struct gang *gang, enum ferry_collective collective, size_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct seat *seat = &seats[rank];
		*seat = (struct seat){collective, rank, gang->nranks, count, NULL, 0, 0, 0, 0};
		enter(gang, rank);
		CU(cuStreamCreate(&seat->stream, CU_STREAM_NON_BLOCKING));
		CU(cuMemAlloc(&seat->send, sent(seat) * sizeof(uint32_t)));
		CU(cuMemAlloc(&seat->receive, count * sizeof(uint32_t)));
	}
}

static void seats_close(struct seat *seats, const struct gang *gang)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamDestroy(seats[rank].stream));
		CU(cuMemFree(seats[rank].send));
		CU(cuMemFree(seats[rank].receive));
	}
}

static ferryResult_t seat_try(const struct seat *seat, ferryComm_t comm)
{
	const struct ferry_request request = {.collective = seat->collective,
	                                      .send = pointer_of(seat->send),
	                                      .receive = pointer_of(seat->receive),
	                                      .count = seat->count,
	                                      .type = ferryUint32,
	                                      .op = ferrySum,
	                                      .comm = comm,
	                                      .stream = (ferryStream_t)seat->stream,
	                                      .shared = true};
	return ferry_group_call(&request);
}

static void seat_round(struct seat *seat, const struct gang *gang)
{
	enter(gang, seat->rank);
	CU(fake_cuda_launch(seat->stream, write_input, seat));
	OK(seat_try(seat, gang->comms[seat->rank]));
	CU(fake_cuda_launch(seat->stream, judge_output, seat));
}

static void seats_settle(struct seat *seats, const struct gang *gang, uint32_t rounds)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamSynchronize(seats[rank].stream));
		if (seats[rank].wrong || seats[rank].round != rounds)
			fail_msg("rank %d: %zu of %u rounds wrong, %u expected", rank, seats[rank].wrong,
			         seats[rank].round, rounds);
	}
}

#define REPLAYS REPEATS(40, 12)

/* A captured sum is the routers', in a graph with its own memory. */
static void replays_are_right_between_plain_calls(void **state)
{
	(void)state;
	for (int which = 0; which < 3; which++) {
		struct gang gang;
		struct seat seats[MOST_PLACES];
		CUgraphExec graphs[MOST_PLACES];
		const enum ferry_collective collective = which < 2 ? FERRY_REDUCESCATTER : FERRY_ALLREDUCE;
		use("on", which ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		seats_open(seats, &gang, collective, which < 2 ? 1801 : 20007);
		for (int rank = 0; rank < 3; rank++) {
			CUgraph captured;
			enter(&gang, rank);
			CU(cuStreamBeginCapture(seats[rank].stream, CU_STREAM_CAPTURE_MODE_RELAXED));
			seat_round(&seats[rank], &gang);
			CU(cuStreamEndCapture(seats[rank].stream, &captured));
			CU(cuGraphInstantiateWithFlags(&graphs[rank], captured, 0));
			CU(cuGraphDestroy(captured));
		}
		assert_int_equal(submitted(gang.comms[0]), 1);
		assert_false(has_memory(gang.comms[0]));
		for (int i = 0; i < REPLAYS; i++)
			for (int rank = 0; rank < 3; rank++) {
				enter(&gang, rank);
				CU(cuGraphLaunch(graphs[rank], seats[rank].stream));
				if (i % 2)
					seat_round(&seats[rank], &gang);
			}
		seats_settle(seats, &gang, REPLAYS + REPLAYS / 2);
		assert_true(has_memory(gang.comms[0]));
		for (int rank = 0; rank < 3; rank++)
			CU(cuGraphExecDestroy(graphs[rank]));
		gang_close(&gang);
		seats_close(seats, &gang);
	}
}

/* ---- together ---- */

#define ROWS 4

/* Each has a stream; lengths of their own, so that memory is made anew for some. */
static void rows_open(struct seat seats[][MOST_PLACES], const struct gang *gang)
{
	for (int row = 0; row < ROWS; row++)
		seats_open(seats[row], gang, row % 2 ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER,
		           row % 2 ? 9001 + 20000 * (size_t)(row / 2) : 700 + 900 * (size_t)(row / 2));
}

static void rows_close(struct seat seats[][MOST_PLACES], const struct gang *gang, uint32_t rounds)
{
	for (int row = 0; row < ROWS; row++)
		seats_settle(seats[row], gang, rounds);
	for (int row = 0; row < ROWS; row++)
		seats_close(seats[row], gang);
}

/* Nothing but the communicator puts calls of several streams in order. */
static void streams_of_a_communicator_take_turns(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct seat seats[ROWS][MOST_PLACES];
		use("on", fabric ? "peer" : "host");
		gang_open(&gang, 3, devices, 1);
		rows_open(seats, &gang);
		for (int i = 0; i < REPEATS(20, 6); i++)
			for (int row = 0; row < ROWS; row++)
				for (int rank = 0; rank < 3; rank++)
					seat_round(&seats[row][rank], &gang);
		rows_close(seats, &gang, REPEATS(20, 6));
		gang_close(&gang);
	}
}

/* Each rank makes all its calls before the next one does. */
static void communicators_take_turns(void **state)
{
	struct gang gangs[2];
	struct seat seats[2][ROWS][MOST_PLACES];
	(void)state;
	use("on", "peer");
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2 + which, devices, 1);
		rows_open(seats[which], &gangs[which]);
	}
	for (int rank = 0; rank < 3; rank++)
		for (int i = 0; i < REPEATS(6, 3); i++)
			for (int row = 0; row < ROWS; row++)
				for (int which = rank == 2; which < 2; which++)
					seat_round(&seats[which][row][rank], &gangs[which]);
	for (int which = 0; which < 2; which++) {
		rows_close(seats[which], &gangs[which], REPEATS(6, 3));
		gang_close(&gangs[which]);
	}
}

/* All in the stream of the first row. */
static void rows_join(struct seat seats[][MOST_PLACES], const struct gang *gang)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamDestroy(seats[row][rank].stream));
			seats[row][rank].stream = seats[0][rank].stream;
		}
}

static void rows_part(struct seat seats[][MOST_PLACES], const struct gang *gang)
{
	for (int row = 1; row < ROWS; row++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			enter(gang, rank);
			CU(cuStreamSynchronize(seats[0][rank].stream));
			CU(cuStreamCreate(&seats[row][rank].stream, CU_STREAM_NON_BLOCKING));
		}
}

static void released(void *value)
{
	atomic_store((_Atomic int *)value, 0);
}

/* between: goes into the first stream while the calls are open. */
static void make_group(struct seat seats[][MOST_PLACES], const struct gang *gang, int rank, bool open,
                       _Atomic int *between)
{
	struct ferry_open_group group = {0};
	enter(gang, rank);
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(seats[row][rank].stream, write_input, &seats[row][rank]));
	OK(ferryGroupStart());
	for (int row = 0; row < ROWS; row++)
		OK(seat_try(&seats[row][rank], gang->comms[rank]));
	OK(open ? ferry_group_end_open(&group) : ferryGroupEnd());
	if (between)
		CU(fake_cuda_launch(seats[0][rank].stream, released, between));
	OK(ferry_group_finish(&group));
	for (int row = 0; row < ROWS; row++)
		CU(fake_cuda_launch(seats[row][rank].stream, judge_output, &seats[row][rank]));
}

static void calls_of_a_group_are_right(void **state)
{
	(void)state;
	for (int joined = 0; joined < 2; joined++) {
		struct gang gang;
		struct seat seats[ROWS][MOST_PLACES];
		use("on", "peer");
		gang_open(&gang, 3, devices, 1);
		rows_open(seats, &gang);
		if (joined)
			rows_join(seats, &gang);
		for (int i = 0; i < REPEATS(10, 4); i++)
			for (int rank = 0; rank < 3; rank++)
				make_group(seats, &gang, rank, i % 2, NULL);
		if (joined)
			rows_part(seats, &gang);
		rows_close(seats, &gang, REPEATS(10, 4));
		gang_close(&gang);
	}
}

/* Rank 1 comes to the calls when what rank 0 has put between the two steps has run: not behind the calls, then. */
static void work_between_the_begin_and_the_end_of_open_calls_runs_beside_them(void **state)
{
	static _Atomic int held[8];
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		struct gang gang;
		struct seat seats[ROWS][MOST_PLACES];
		use("on", fabric ? "peer" : "host");
		gang_open(&gang, 2, devices, 1);
		rows_open(seats, &gang);
		rows_join(seats, &gang);
		for (int i = 0; i < 8; i++) {
			atomic_store(&held[i], 1);
			enter(&gang, 1);
			CU(fake_cuda_launch(seats[0][1].stream, hold, &held[i]));
			make_group(seats, &gang, 0, true, &held[i]);
			make_group(seats, &gang, 1, true, NULL);
		}
		rows_part(seats, &gang);
		rows_close(seats, &gang, 8);
		gang_close(&gang);
	}
}

/* ---- what fails ---- */

/* Rank 0's sum, and what another makes of it. */
static const struct {
	struct call one, other;
	const char *words;
} disagreements[] = {
        {{.collective = FERRY_REDUCESCATTER, .count = 900, .op = ferrySum},
         {.collective = FERRY_ALLTOALL, .count = 900},
         "calls reducescatter of 900 i32 (sum)"},
        {{.collective = FERRY_REDUCESCATTER, .count = 900, .op = ferrySum},
         {.collective = FERRY_REDUCESCATTER, .count = 900, .op = ferryMax},
         "calls reducescatter of 900 i32 (max)"},
        {{.collective = FERRY_REDUCESCATTER, .count = 900, .op = ferrySum},
         {.collective = FERRY_REDUCESCATTER, .count = 901, .op = ferrySum},
         "calls reducescatter of 901 i32 (sum)"},
        {{.collective = FERRY_ALLREDUCE, .count = 9600, .op = ferryProd},
         {.collective = FERRY_ALLREDUCE, .count = 9600, .op = ferryMin},
         "calls allreduce of blocks of 3200 i32 (prod)"},
        {{.collective = FERRY_ALLREDUCE, .count = 9600, .op = ferrySum},
         {.collective = FERRY_ALLREDUCE, .count = 19200, .op = ferrySum},
         "calls allreduce of blocks of"},
        {{.collective = FERRY_ALLREDUCE, .count = 2700, .op = ferrySum},
         {.collective = FERRY_REDUCESCATTER, .count = 900, .op = ferrySum},
         "calls reducescatter of 900 i32 (sum)"},
};

static void check_told(const struct gang *gang, const struct peer *peers, const char *words)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		ferryResult_t error = ferrySuccess;
		enter(gang, rank);
		CU(cuStreamSynchronize(peers[rank].stream));
		for (int waited = 0; !error && waited < 10000; waited++) {
			OK(ferryCommGetAsyncError(gang->comms[rank], &error));
			doze(1);
		}
		if (!error || !strstr(ferryGetLastError(gang->comms[rank]), words))
			fail_msg("rank %d: %s: \"%s\", not \"%s\"", rank, ferryGetErrorString(error),
			         ferryGetLastError(gang->comms[rank]), words);
	}
}

static void ranks_that_disagree_are_told_what_they_have_called(void **state)
{
	(void)state;
	for (size_t i = 0; i < sizeof disagreements / sizeof *disagreements; i++) {
		struct gang gang;
		struct peer peers[MOST_PLACES];
		use("on", "peer");
		gang_open(&gang, 3, devices, 1);
		peers_open(peers, &gang);
		for (int rank = 0; rank < 3; rank++) {
			struct call call = rank == 1 ? disagreements[i].other : disagreements[i].one;
			call.type = ferryInt32;
			struct ferry_request request = request_of(&call, &gang, &peers[rank], rank);
			enter(&gang, rank);
			(void)ferry_group_call(&request); /* an error where it is known by then */
		}
		check_told(&gang, peers, disagreements[i].words);
		for (int rank = 0; rank < 3; rank++)
			OK(ferryCommAbort(gang.comms[rank]));
		domains_close();
		peers_close(peers, &gang);
	}
}

static size_t memory_left(const struct gang *gang, int rank)
{
	size_t left, all;
	enter(gang, rank);
	CU(cuMemGetInfo(&left, &all));
	return left;
}

/* Before it has a number: the rank can make the call again, and the others have waited for it. */
static void a_rank_without_memory_for_blocks_is_told_and_may_try_again(void **state)
{
	struct gang gang;
	struct seat seats[MOST_PLACES];
	CUdeviceptr rest;
	(void)state;
	use("on", "peer");
	gang_open(&gang, 2, devices, 1);
	seats_open(seats, &gang, FERRY_ALLREDUCE, 9001);
	CU(cuMemAlloc(&rest, 1)); /* whatever its context takes */
	CU(cuMemFree(rest));
	for (int rank = 0; rank < 2; rank++) {
		enter(&gang, rank);
		CU(fake_cuda_launch(seats[rank].stream, write_input, &seats[rank]));
	}
	CU(cuMemAlloc(&rest, memory_left(&gang, 1)));
	OK(seat_try(&seats[0], gang.comms[0]));
	enter(&gang, 1);
	REFUSED(ferryUnhandledDeviceError, "memory", seat_try(&seats[1], gang.comms[1]));
	CU(cuMemFree(rest));
	OK(seat_try(&seats[1], gang.comms[1]));
	for (int rank = 0; rank < 2; rank++) {
		enter(&gang, rank);
		CU(fake_cuda_launch(seats[rank].stream, judge_output, &seats[rank]));
	}
	seats_settle(seats, &gang, 1);
	seats_close(seats, &gang);
	gang_close(&gang);
}

/* Open ones, too. */
static void a_rank_without_memory_for_blocks_may_give_up(void **state)
{
	(void)state;
	for (int open = 0; open < 2; open++) {
		struct gang gang;
		struct seat seats[MOST_PLACES];
		struct ferry_open_group group = {0};
		CUdeviceptr rest;
		use("on", "peer");
		gang_open(&gang, 2, devices, 1);
		seats_open(seats, &gang, FERRY_REDUCESCATTER, 1800);
		OK(seat_try(&seats[0], gang.comms[0]));
		enter(&gang, 1);
		CU(cuMemAlloc(&rest, memory_left(&gang, 1)));
		OK(ferryGroupStart());
		OK(seat_try(&seats[1], gang.comms[1]));
		REFUSED(ferryUnhandledDeviceError, "memory", open ? ferry_group_end_open(&group) : ferryGroupEnd());
		(void)ferry_group_finish(&group);
		OK(ferryCommAbort(gang.comms[1]));
		for (int rank = 0; rank < 2; rank++) {
			enter(&gang, rank);
			CU(cuStreamSynchronize(seats[rank].stream));
		}
		OK(ferryCommAbort(gang.comms[0]));
		CU(cuMemFree(rest));
		domains_close();
		seats_close(seats, &gang);
	}
}

/* ---- processes: AllReduces of more than short kernels carry, in hundreds of steps ---- */

#define LONG ((8u << 20) / sizeof(uint32_t) + 1000)

static void start(struct rank_process *ranks, int nranks, const char *variables)
{
	use("on", "peer");
	domains_open(1);
	for (int rank = 0; rank < nranks; rank++)
		ranks[rank] = rank_start(variables);
	ranks_join(ranks, nranks, devices, LONG);
	ranks_round(ranks, nranks, 1, 1);
	assert_int_equal(rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_KERNELS}).number, 1); /* a rest's */
}

static void give_up(struct rank_process *ranks, int nranks)
{
	for (int rank = 0; rank < nranks; rank++) {
		rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
		rank_finish(&ranks[rank]);
	}
	domains_close();
}

static void survivors_streams_are_free_when_a_rank_dies(void **state)
{
	(void)state;
	for (int after = 0; after < (SANITIZED ? 2 : 4); after++) {
		struct rank_process ranks[3];
		start(ranks, 3, NULL);
		for (int rank = 0; rank < 3; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
		doze(8 * after);
		rank_kill(&ranks[2]);
		for (int rank = 0; rank < 2; rank++)
			(void)rank_heard(&ranks[rank]);
		rank_released(&ranks[0], "rank 2");
		rank_released(&ranks[1], "rank 2");
		give_up(ranks, 2);
	}
}

static void all_streams_are_free_when_a_rank_aborts(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	start(ranks, 2, NULL);
	rank_order(&ranks[0], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1}); /* may have no room for all */
	doze(50);
	rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_ABORT});
	(void)rank_heard(&ranks[0]);
	rank_released(&ranks[0], "rank 1 aborted");
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* In the middle of the calls: all of them are right. */
static void sums_go_on_with_the_next_router(void **state)
{
	(void)state;
	const int deaths = SANITIZED ? 3 : 6;
	struct rank_process ranks[3];
	struct rank_answer answers[3];
	start(ranks, 3, NULL);
	for (int death = 0; death < deaths; death++) {
		for (int rank = 0; rank < 3; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
		doze(10 * death);
		routers_kill(0);
		routers_open(1);
		for (int rank = 0; rank < 3; rank++)
			OK(rank_heard(&ranks[rank]).result);
		ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000}, answers);
		for (int rank = 0; rank < 3; rank++)
			if (!answers[rank].settled || answers[rank].wrong ||
			    answers[rank].round != 1 + 2 * (uint32_t)(death + 1))
				fail_msg("death %d: rank %d: settled %d, %zu wrong, %u rounds: %s", death, rank,
				         answers[rank].settled, answers[rank].wrong, answers[rank].round,
				         answers[rank].message);
	}
	ranks_tell(ranks, 3, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
	for (int rank = 0; rank < 3; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* Nobody takes its place. */
static void all_streams_are_free_when_the_router_dies_for_good(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	start(ranks, 2, "FERRY_TAKEOVER=off");
	for (int rank = 0; rank < 2; rank++)
		rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
	doze(20);
	routers_kill(0);
	for (int rank = 0; rank < 2; rank++)
		(void)rank_heard(&ranks[rank]);
	for (int rank = 0; rank < 2; rank++)
		rank_released(&ranks[rank], "router of domain 0 died");
	give_up(ranks, 2);
}

/* ---- memory ---- */

/* The routers' mappings count, too: all is back when the communicator is gone, whatever its streams have had. */
static void nothing_is_left_of_a_communicator(void **state)
{
	(void)state;
	for (int fabric = 0; fabric < 2; fabric++) {
		size_t left[2] = {0};
		use("on", fabric ? "peer" : "host");
		for (int i = 0; i < REPEATS(12, 7); i++) {
			struct gang gang;
			struct seat seats[ROWS][MOST_PLACES];
			gang_open(&gang, 2, devices, 1);
			rows_open(seats, &gang);
			for (int row = 0; row < ROWS; row++)
				for (int rank = 0; rank < 2; rank++)
					seat_round(&seats[row][rank], &gang);
			for (int row = 0; row < ROWS; row++)
				seats_settle(seats[row], &gang, 1);
			assert_true(has_memory(gang.comms[0]));
			gang_close(&gang);
			for (int row = 0; row < ROWS; row++)
				seats_close(seats[row], &gang);
			for (int rank = 0; rank < 2 && i == 4; rank++)
				left[rank] = memory_left(&gang, rank);
			for (int rank = 0; rank < 2 && i > 4; rank++) {
				for (int waited = 0; waited < 1000 && memory_left(&gang, rank) < left[rank]; waited++)
					doze(10); /* a thread of its own frees mailboxes; a router, what it maps */
				assert_true(memory_left(&gang, rank) >= left[rank]);
			}
		}
	}
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        /* first: where a communicator has failed before, there is memory left */
	        TEST(a_rank_without_memory_for_blocks_is_told_and_may_try_again),
	        TEST(a_rank_without_memory_for_blocks_may_give_up),
	        TEST(sums_over_links_have_the_bits_of_routers),
	        TEST(sums_by_the_host_have_the_bits_of_routers),
	        TEST(pieces_do_not_meet_in_memory),
	        TEST(a_premulsum_is_the_routers),
	        TEST(users_programs_are_the_routers),
	        TEST(replays_are_right_between_plain_calls),
	        TEST(streams_of_a_communicator_take_turns),
	        TEST(communicators_take_turns),
	        TEST(calls_of_a_group_are_right),
	        TEST(work_between_the_begin_and_the_end_of_open_calls_runs_beside_them),
	        TEST(ranks_that_disagree_are_told_what_they_have_called),
	        TEST(survivors_streams_are_free_when_a_rank_dies),
	        TEST(all_streams_are_free_when_a_rank_aborts),
	        TEST(sums_go_on_with_the_next_router),
	        TEST(all_streams_are_free_when_the_router_dies_for_good),
	        TEST(nothing_is_left_of_a_communicator),
	};
	if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9')
		return rank_process_main(atoi(argv[1]));
	setenv("FAKE_CUDA_MEMORY", "8589934592", 1);
	fake_is_the_driver();
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
