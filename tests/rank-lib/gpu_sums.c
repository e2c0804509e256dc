/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that GPUs make themselves (rank-lib/call/gpu_sums.h), over the double of the CUDA driver: they have the bits of
 * the routers' sums, in whichever pieces. Pieces are of 4 to 64 KiB (tests/CMakeLists.txt). What short kernels would
 * carry is said to be shared, as calls beside NCCL are.
 */
#include "rank-lib/call/gpu_sums.h"

#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "tests/fake_cuda/places.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MOST_BYTES (300u << 10) /* of a buffer */
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
	int root;
	bool null; /* ranks that get nothing have no receive buffer */
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
	const bool scatters = call->collective == FERRY_REDUCESCATTER,
	           nothing = call->collective == FERRY_REDUCE_TO_ROOT && rank != call->root && call->null;
	return (struct ferry_request){.collective = call->collective,
	                              .send = call->in_place ? receive : send,
	                              .receive = nothing ? NULL
	                                                 : receive + (call->in_place && scatters
	                                                                      ? rank * call->count * size
	                                                                      : 0),
	                              .count = call->count,
	                              .type = call->type,
	                              .op = call->op,
	                              .root = call->root,
	                              .comm = gang->comms[rank],
	                              .stream = (ferryStream_t)peer->stream,
	                              .shared = true};
}

/* Bytes of a buffer that the call may reach, and some behind them. */
static size_t reach_of(const struct call *call, int nranks)
{
	const size_t blocks = call->collective == FERRY_REDUCESCATTER ? (size_t)nranks : 1;
	return (call->count * blocks + call->aside) * ferry_type_size(call->type) + MORE_BYTES;
}

static void fill(const struct peer *peer, size_t bytes, uint64_t seed)
{
	static uint64_t noise[(MOST_BYTES + MORE_BYTES) / 8 + NOISES];
	for (size_t at = 0; at < sizeof noise / 8 && !noise[sizeof noise / 8 - 1]; at++)
		noise[at] = next(&(uint64_t){at});
	memcpy(fake_cuda_reach(peer->send), noise + next(&seed) % NOISES, bytes);
	memcpy(fake_cuda_reach(peer->receive), noise + next(&seed) % NOISES, bytes);
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
	const int nranks = gangs[0].nranks;
	const size_t bytes = reach_of(call, nranks);
	assert_true(bytes <= MOST_BYTES + MORE_BYTES);
	for (int which = 0; which < 2; which++) {
		for (int rank = 0; rank < nranks; rank++)
			fill(&peers[which][rank], bytes, seed * 64 + (uint64_t)rank);
		make(call, &gangs[which], peers[which]);
	}
	for (int rank = 0; rank < nranks; rank++)
		if (memcmp(fake_cuda_reach(peers[0][rank].receive), fake_cuda_reach(peers[1][rank].receive), bytes) ||
		    memcmp(fake_cuda_reach(peers[0][rank].send), fake_cuda_reach(peers[1][rank].send), bytes))
			fail_msg("rank %d of %d: %s of %zu %s, %s, in place %d, aside %d, root %d: other bits than by "
			         "a router",
			         rank, nranks, ferry_collective_name(call->collective), call->count,
			         ferry_type_name(call->type), ferry_redop_name(call->op), call->in_place, call->aside,
			         call->root);
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

/* Whether the call's blocks are made by Ferry, and their sums brought together. */
static bool gathers(const struct call *call, int nranks)
{
	return call->collective == FERRY_ALLREDUCE || (call->collective == FERRY_REDUCE_TO_ROOT && nranks > 2);
}

/* What is submitted for the call: a step of each piece, or two. */
static uint64_t steps_of(const struct call *call, const struct gang *gang, const struct peer *peer)
{
	struct ferry_request request = request_of(call, gang, peer, 0);
	assert_true(ferry_gpu_sums_carry(gang->comms[0], &request));
	return (uint64_t)ferry_gpu_sums_pieces(&request) * (gathers(call, gang->nranks) ? 2 : 1);
}

/*
 * Bytes of a rank's block that are one short piece, one, one and a bit, two, or several; a rest behind the last line,
 * or a line that is not whole.
 */
static size_t count_of(const struct call *call, int nranks, uint64_t which)
{
	static const size_t blocks[] = {256, 4096, 4096 + 384, 20 * 1024, 72 * 1024};
	const size_t size = ferry_type_size(call->type), n = (size_t)nranks, bytes = blocks[which % 5];
	return gathers(call, nranks) ? bytes * n / size + which % 7 % (128 / size * n) : bytes / size - which % 3;
}

/* Of calls that go through the operations; each operation meets every length. */
static void compare_next(struct gang *gangs, struct peer peers[2][MOST_PLACES], struct call call, uint64_t which)
{
	which += which / ferryNumOps;
	call.aside = which % 7 > 3;
	call.null = which % 3;
	call.root = call.collective == FERRY_REDUCE_TO_ROOT ? (int)(which / 2) % gangs[0].nranks : 0;
	call.count = count_of(&call, gangs[0].nranks, which);
	const uint64_t before = submitted(gangs[1].comms[0]);
	compare(&call, gangs, peers, which);
	assert_int_equal(submitted(gangs[1].comms[0]) - before, steps_of(&call, &gangs[1], &peers[1][0]));
}

/* Every type with every operation. */
static void compare_all(struct gang *gangs, struct peer peers[2][MOST_PLACES], enum ferry_collective collective)
{
	uint64_t which = 0;
	for (ferryDataType_t type = 0; type < ferryNumTypes; type++)
		for (ferryRedOp_t op = 0; op < ferryNumOps; op++, which++)
			compare_next(gangs, peers, (struct call){collective, type, op, .in_place = which % 2}, which);
}

/* Every type, and every operation; each of these in place and not. */
static void compare_some(struct gang *gangs, struct peer peers[2][MOST_PLACES], enum ferry_collective collective)
{
	for (uint64_t which = 0; which < ferryNumTypes; which++)
		compare_next(gangs, peers,
		             (struct call){collective, (ferryDataType_t)which, (ferryRedOp_t)(which % ferryNumOps),
		                           .in_place = which / ferryNumOps % 2},
		             which);
	assert_true(has_memory(gangs[1].comms[0]));
	assert_false(has_memory(gangs[0].comms[0]));
}

static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};

static void sums_over_links_have_the_bits_of_routers(void **state)
{
	(void)state;
	for (int nranks = REPEATS(2, 3); nranks <= 4; nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		gangs_open(gangs, peers, nranks, "peer");
		for (size_t i = 0; i < sizeof sums / sizeof *sums; i++)
			(nranks == 2 && !SANITIZED ? compare_all : compare_some)(gangs, peers, sums[i]);
		gangs_close(gangs, peers);
	}
}

/* AllReduces and Reduces of more than two ranks are the routers'. */
static void sums_by_the_host_have_the_bits_of_routers(void **state)
{
	(void)state;
	for (int nranks = 2; nranks <= REPEATS(4, 2); nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		gangs_open(gangs, peers, nranks, "host");
		compare_some(gangs, peers, FERRY_REDUCESCATTER);
		for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
			struct call call = {.collective = sums[i], .count = 5000};
			struct ferry_request request = request_of(&call, &gangs[1], &peers[1][0], 0);
			const bool carried = ferry_gpu_sums_carry(gangs[1].comms[0], &request);
			assert_int_equal(carried, nranks == 2 || sums[i] == FERRY_REDUCESCATTER);
			if (carried && sums[i] != FERRY_REDUCESCATTER)
				compare_some(gangs, peers, sums[i]);
		}
		gangs_close(gangs, peers);
	}
}

/* Other GPUs push for longer than rank 0's, so that one piece of a call is there whole before another has come. */
static void pieces_do_not_meet_in_memory(void **state)
{
	(void)state;
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	for (int nranks = REPEATS(3, 4); nranks <= 4; nranks++) {
		struct gang gangs[2];
		struct peer peers[2][MOST_PLACES];
		struct call call = {.type = ferryUint32};
		gangs_open(gangs, peers, nranks, "peer");
		for (size_t kbytes = 8; kbytes <= 128; kbytes += 24)
			for (int which = 0; which < 3; which++) {
				call.collective = which ? FERRY_REDUCE_TO_ROOT : FERRY_ALLREDUCE;
				call.root = which ? which - 1 : 0; /* rank 0, or one that waits for its pushes */
				call.in_place = kbytes % 16;
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
		for (int which = 0; which < 6; which++) {
			struct call call = {.collective = sums[which % 3],
			                    .type = ferryFloat32,
			                    .in_place = which / 3,
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
				fill(&peers[i][rank], reach_of(&call, 2), (uint64_t)rank);
				enter(&gangs[i], rank);
				OK(ferry_group_call(&request));
			}
		for (int i = 0; i < 2; i++)
			for (int rank = 0; rank < 2; rank++)
				CU(cuStreamSynchronize(peers[i][rank].stream));
		for (int rank = 0; rank < 2; rank++)
			assert_memory_equal(fake_cuda_reach(peers[0][rank].receive),
			                    fake_cuda_reach(peers[1][rank].receive), reach_of(&call, 2));
		assert_false(has_memory(gangs[1].comms[0]));
		compare(&call, gangs, peers, 5);
		assert_int_equal(has_memory(gangs[1].comms[0]), !replaces);
		gangs_close(gangs, peers);
	}
	unsetenv("FERRY_PROGRAM_PATH");
	unlink(file);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(sums_over_links_have_the_bits_of_routers),
	        TEST(sums_by_the_host_have_the_bits_of_routers),
	        TEST(pieces_do_not_meet_in_memory),
	        TEST(a_premulsum_is_the_routers),
	        TEST(users_programs_are_the_routers),
	};
	fake_is_the_driver();
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
