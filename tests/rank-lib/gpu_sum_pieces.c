/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the steps of sums that GPUs make have their blocks (rank-lib/call/gpu_sums.h): pieces that are under way
 * together touch no byte of each other's, and all pieces together are the call.
 */
#include "rank-lib/call/gpu_sums.h"

#include "rank-lib/call/comm.h"
#include "tests/succeeds.h"

#include <stdlib.h>
#include <string.h>

#define MIB    (1024ull * 1024)
#define RANKS  8
#define BUFFER 0x100000000ull /* where the user's is, in no memory */

/* Bytes that a step touches: so many ranges of `bytes`, each `stride` behind the one before; not that at `without`. */
struct touched {
	uint64_t start, stride, bytes;
	int count, without;
};

static bool overlap(const struct touched *a, const struct touched *b)
{
	for (int i = 0; i < a->count; i++)
		for (int j = 0; j < b->count; j++) {
			uint64_t at = a->start + (uint64_t)i * a->stride, other = b->start + (uint64_t)j * b->stride;
			if (i != a->without && j != b->without && at < other + b->bytes && other < at + a->bytes)
				return true;
		}
	return false;
}

static struct touched blocks_of(const struct ferry_request *step, uint64_t start, int without)
{
	uint64_t size = ferry_type_size(step->type);
	return (struct touched){start, step->count * size, (step->count - step->left_out.count) * size,
	                        step->comm->rank.nranks, without};
}

/* In Ferry's memory: the others' blocks, one behind another. */
static struct touched packed(const struct ferry_request *step)
{
	struct touched blocks = blocks_of(step, step->sums_at, step->comm->rank.self);
	blocks.stride = blocks.bytes;
	return blocks;
}

static void step_of(const struct ferry_request *request, uint32_t piece, enum ferry_sum_step which,
                    struct ferry_request *step)
{
	memset(step, 0, sizeof *step);
	assert_true(ferry_gpu_sums_step(request, piece, which, step));
}

/* Where a piece's sum is from when it is made until all have it, if that is Ferry's memory. */
static bool sum_of(const struct ferry_request *request, uint32_t piece, struct touched *sum)
{
	struct ferry_request step;
	if (!ferry_gpu_sums_step(request, piece, FERRY_SUM_GATHERS, &step) || step.send)
		return false;
	const uint64_t elements = step.count - step.left_out.count;
	*sum = (struct touched){step.sums_at, 0, elements * ferry_type_size(step.type), 1, -1};
	assert_true(sum->start + sum->bytes <= ferry_gpu_sums_room(&step));
	return true;
}

/* Others push their blocks for this piece and for the next two before they have the sum. */
static void check_sum(const struct ferry_request *request, uint32_t piece, uint32_t pieces)
{
	struct touched sum, blocks;
	if (!sum_of(request, piece, &sum))
		return;
	for (uint32_t other = piece; other < pieces && other < piece + 3; other++) {
		struct ferry_request step;
		step_of(request, other, FERRY_SUM_SCATTERS, &step);
		blocks = packed(&step);
		if (overlap(&sum, &blocks))
			fail_msg("%d ranks, %llu elements: the sum of piece %u and the blocks of piece %u of rank %d",
			         request->comm->rank.nranks, (unsigned long long)request->count, piece, other,
			         request->comm->rank.self);
	}
}

/* What comes into Ferry's memory for the two pieces, of which the second begins before the first is added up. */
static void check_memory(const struct ferry_request *request, uint32_t piece)
{
	struct ferry_request one, next;
	step_of(request, piece, FERRY_SUM_SCATTERS, &one);
	step_of(request, piece + 1, FERRY_SUM_SCATTERS, &next);
	struct touched a = packed(&one), b = packed(&next);
	if (overlap(&a, &b))
		fail_msg("%d ranks, %llu elements: pieces %u and %u of rank %d", request->comm->rank.nranks,
		         (unsigned long long)request->count, piece, piece + 1,
		         request->comm->rank.self);
}

/* In place: what others push into this rank's buffer for a piece, and what it has yet to push of the others. */
static void check_buffer(const struct ferry_request *request, uint32_t pieces)
{
	const int self = request->comm->rank.self;
	for (uint32_t gathered = 0; gathered < pieces; gathered++)
		for (uint32_t sent = gathered + 1; sent < pieces; sent++) {
			struct ferry_request from, to;
			step_of(request, gathered, FERRY_SUM_GATHERS, &to);
			step_of(request, sent, FERRY_SUM_SCATTERS, &from);
			struct touched a = blocks_of(&to, (uint64_t)(uintptr_t)to.receive, self),
			               b = blocks_of(&from, (uint64_t)(uintptr_t)from.send, -1);
			assert_false(overlap(&a, &b));
		}
}

/* Every element is pushed once, and no step leaves its buffers or its memory. */
static void check_whole(const struct ferry_request *request, uint32_t pieces)
{
	const uint64_t size = ferry_type_size(request->type), n = (uint64_t)request->comm->rank.nranks;
	const uint64_t all = request->count * size * (request->collective == FERRY_REDUCESCATTER ? n : 1);
	const uint64_t sends = request->collective == FERRY_REDUCE_TO_ROOT && n == 2 ? 1 : n; /* blocks */
	struct ferry_request step, rest = {.count = 0};
	uint64_t sent = 0;
	for (uint32_t piece = 0; piece < pieces; piece++) {
		step_of(request, piece, FERRY_SUM_SCATTERS, &step);
		struct touched blocks = blocks_of(&step, (uint64_t)(uintptr_t)step.send - BUFFER, -1);
		assert_true(blocks.start + (sends - 1) * blocks.stride + blocks.bytes <= all);
		assert_true(step.left_out.packed && step.sums_at + n * blocks.bytes <= ferry_gpu_sums_room(&step));
		sent += sends * blocks.bytes;
	}
	ferry_gpu_sums_rest(request, &rest);
	assert_int_equal(sent + rest.count * size, all);
}

static void check(struct ferryComm *comm, enum ferry_collective collective, uint64_t bytes, ferryDataType_t type)
{
	struct ferry_request request = {.collective = collective,
	                                .comm = comm,
	                                .type = type,
	                                .count = bytes / ferry_type_size(type),
	                                .root = comm->rank.nranks / 2,
	                                .send = (const void *)BUFFER,
	                                .receive = (void *)BUFFER};
	if (!ferry_gpu_sums_carry(comm, &request))
		return;
	const uint32_t pieces = ferry_gpu_sums_pieces(&request);
	check_whole(&request, pieces);
	for (uint32_t piece = 0; piece + 1 < pieces && comm->mailboxes.peer; piece++)
		check_memory(&request, piece);
	for (uint32_t piece = 0; piece < pieces; piece++)
		check_sum(&request, piece, pieces);
	if (collective == FERRY_ALLREDUCE ||
	    (collective == FERRY_REDUCE_TO_ROOT && comm->rank.nranks > 2 && comm->rank.self == request.root))
		check_buffer(&request, pieces);
}

static void pieces_under_way_touch_nothing_of_each_others(void **state)
{
	struct ferryComm *comm = calloc(1, sizeof *comm);
	(void)state;
	assert_non_null(comm);
	comm->mailboxes.ready = true;
	comm->fabrics.host_share = -1;
	for (comm->rank.nranks = 2; comm->rank.nranks <= RANKS; comm->rank.nranks++)
		for (comm->rank.self = 0; comm->rank.self < comm->rank.nranks; comm->rank.self++)
			for (uint64_t bytes = 4096; bytes <= 1100 * MIB; bytes += bytes < MIB ? 5003 : 7 * MIB + 1234) {
				comm->mailboxes.peer = bytes % 5;
				check(comm, FERRY_ALLREDUCE, bytes, bytes % 3 ? ferryFloat32 : ferryUint8);
				check(comm, FERRY_REDUCE_TO_ROOT, bytes, bytes % 3 ? ferryFloat16 : ferryUint64);
				check(comm, FERRY_REDUCESCATTER, bytes, bytes % 3 ? ferryFloat64 : ferryInt8);
			}
	free(comm);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_under_way_touch_nothing_of_each_others)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
