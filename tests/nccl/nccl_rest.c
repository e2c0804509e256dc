/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promise: what Ferry leaves of a call is one that NCCL can make with buffers that it has in windows or registered.
 * Where it reaches for other ranks' memory the offsets are the same on all of them, and what was in place still is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "orchestrator/split.c"

#include <stdio.h>

#define COUNT 30000
#define MOST_RANKS 3
#define ELEMENT sizeof(float)

static char memory[2][MOST_RANKS * COUNT * ELEMENT];

/* Where NCCL's part begins in both buffers, as the program gave them. */
struct rest {
	ptrdiff_t sent, received;
	struct ferry_nccl_call call;
};

static struct rest rest_of(enum ferry_collective collective, int rank, int nranks, double nccls)
{
	struct ferry_nccl_comm comm = {.rank = rank, .nranks = nranks};
	struct ferry_nccl_call call = {.collective = collective, .send = memory[0], .receive = memory[1],
	                               .count = COUNT, .type = ncclFloat32, .comm = &comm};
	struct ferry_shares shares = {.part = {0}};
	struct ferry_split split = {.word = 0};
	shares.part[FERRY_FABRIC_NCCL] = (uint8_t)(nccls * FERRY_SHARES_WHOLE);
	shares.part[FERRY_FABRIC_HOST] = (uint8_t)(FERRY_SHARES_WHOLE - shares.part[FERRY_FABRIC_NCCL]);
	split.word = ferry_shares_pack(&shares);
	divide(&call, &split);
	assert_true(split.ferrys && split.nccls);
	struct rest rest = {.call = ferry_split_rest(&call, &split)};
	rest.sent = (const char *)rest.call.send - memory[0];
	rest.received = (char *)rest.call.receive - memory[1];
	return rest;
}

static void same_on_all(enum ferry_collective collective, bool sent, bool received)
{
	static const double parts[] = {0.1, 0.5, 0.9};
	for (int i = 0; i < 3; i++)
		for (int nranks = 2; nranks <= MOST_RANKS; nranks++)
			for (int rank = 1; rank < nranks; rank++) {
				struct rest first = rest_of(collective, 0, nranks, parts[i]);
				struct rest other = rest_of(collective, rank, nranks, parts[i]);
				assert_int_equal(first.call.count, other.call.count);
				assert_int_equal(first.call.stride, other.call.stride);
				if (sent)
					assert_int_equal(first.sent, other.sent);
				if (received)
					assert_int_equal(first.received, other.received);
			}
}

static void a_gather_receives_at_the_same_offset_on_all_ranks(void **state)
{
	(void)state;
	same_on_all(FERRY_ALLGATHER, false, true);
}

static void a_scatter_of_sums_sends_from_the_same_offset_on_all_ranks(void **state)
{
	(void)state;
	same_on_all(FERRY_REDUCESCATTER, true, false);
}

static void all_others_have_the_same_offsets_in_both_buffers(void **state)
{
	static const enum ferry_collective others[] = {FERRY_ALLREDUCE, FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT,
	                                               FERRY_ALLTOALL, FERRY_GATHER, FERRY_SCATTER};
	(void)state;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		same_on_all(others[i], true, true);
}

/* A rank's own block lies where NCCL looks for it in place: its number times NCCL's part behind the first one. */
static void what_is_left_to_two_ranks_in_one_piece_is_in_place_where_the_call_was(void **state)
{
	(void)state;
	for (int rank = 0; rank < 2; rank++) {
		ptrdiff_t own = (ptrdiff_t)(rank * COUNT * ELEMENT);
		struct rest gather = rest_of(FERRY_ALLGATHER, rank, 2, 0.7);
		ptrdiff_t nccls = (ptrdiff_t)(gather.call.count * ELEMENT);
		assert_int_equal(own + gather.sent, gather.received + rank * nccls);
		struct rest scatter = rest_of(FERRY_REDUCESCATTER, rank, 2, 0.7);
		assert_int_equal(own + scatter.received, scatter.sent + rank * nccls);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_gather_receives_at_the_same_offset_on_all_ranks),
	        cmocka_unit_test(a_scatter_of_sums_sends_from_the_same_offset_on_all_ranks),
	        cmocka_unit_test(all_others_have_the_same_offsets_in_both_buffers),
	        cmocka_unit_test(what_is_left_to_two_ranks_in_one_piece_is_in_place_where_the_call_was),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
