/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is chosen for a call fits its box, for all facts that there are: packets, flags, lines and chunks of every
 * collective lie where kernel_call.h has room for them, no block is without work, and every rank hears from each other
 * one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rank-lib/kernels/choice.h"
#include "rank-lib/kernels/kernel_call.h"

#define MIB  (1ull << 20)
#define STEP 499u /* between sizes that are tried; all are near a border */

/* As mailboxes.c makes them. */
static uint64_t box_bytes_of(uint32_t nranks, bool peer)
{
	uint64_t most = 18 * MIB / (nranks - 1);
	uint64_t each = nranks == 2 ? 18 * MIB : 5 * MIB;
	return !peer ? 4 * MIB + (64u << 10) : most < each ? most / 4096 * 4096 : each;
}

static bool sends_parts(enum ferry_collective collective)
{
	return collective == FERRY_REDUCESCATTER || collective == FERRY_ALLTOALL || collective == FERRY_SCATTER;
}

/* Bytes or flags of a region, where a rank's own part is one of `parts` in a row. */
static uint64_t end_of(const struct ferry_kernel_facts *facts, uint64_t part, uint64_t used)
{
	return (!facts->peer && sends_parts(facts->collective) ? (facts->nranks - 1) * part : 0) + used;
}

static bool fits_ll(const struct ferry_kernel_facts *facts, const struct ferry_kernel_choice *choice)
{
	uint64_t words = (facts->bytes + 7) / 8;
	return end_of(facts, 16 * words, 16 * words) <= FERRY_BOX_LL_BYTES && choice->threads <= 512 &&
	       (choice->blocks - 1) * (uint64_t)choice->threads < words;
}

static bool fits_bulk(const struct ferry_kernel_facts *facts, const struct ferry_kernel_choice *choice)
{
	if (facts->peer || !choice->chunk || choice->chunk % 16)
		return false;
	uint64_t chunks = (facts->bytes + choice->chunk - 1) / choice->chunk;
	return end_of(facts, chunks * choice->chunk, (facts->bytes + 15) / 16 * 16) <= facts->box_bytes &&
	       end_of(facts, chunks, chunks) <= FERRY_KERNEL_FLAGS && choice->blocks <= chunks &&
	       choice->threads <= 512;
}

static bool fits_ll128(const struct ferry_kernel_facts *facts, const struct ferry_kernel_choice *choice)
{
	uint64_t lines = (facts->bytes + 119) / 120, part = (lines + facts->nranks - 1) / facts->nranks;
	bool two = choice->two_phases;
	return facts->peer && 128 * (two ? 2 * part : lines) <= facts->box_bytes && choice->threads <= 1024 &&
	       (!two || (facts->collective == FERRY_ALLREDUCE && (facts->nranks - 1) * part < lines));
}

static bool fits(const struct ferry_kernel_facts *facts, const struct ferry_kernel_choice *choice)
{
	if (choice->kernel == FERRY_KERNEL_NONE)
		return true;
	uint32_t most = choice->kernel == FERRY_KERNEL_LL128 ? facts->line_blocks : facts->blocks;
	if (!choice->blocks || choice->blocks > most || 16 * choice->blocks > FERRY_BOX_HEADER_BYTES ||
	    choice->threads < 128 || choice->threads % 32)
		return false;
	return choice->kernel == FERRY_KERNEL_LL     ? fits_ll(facts, choice)
	       : choice->kernel == FERRY_KERNEL_BULK ? fits_bulk(facts, choice)
	                                             : fits_ll128(facts, choice);
}

static void look(struct ferry_kernel_facts *facts, uint64_t bytes)
{
	facts->bytes = bytes;
	struct ferry_kernel_choice choice = ferry_kernel_choose(facts);
	if (!fits(facts, &choice))
		fail_msg("%s of %llu bytes, %u ranks, peer %d, at most %u blocks: kernel %d with %u blocks of %u "
		         "threads, chunks of %u, two phases %d",
		         ferry_collective_name(facts->collective), (unsigned long long)bytes, facts->nranks,
		         facts->peer, facts->blocks, choice.kernel, choice.blocks, choice.threads, choice.chunk,
		         choice.two_phases);
}

static void look_at_all_sizes(struct ferry_kernel_facts facts)
{
	for (uint64_t bytes = 1; bytes <= 17 * MIB; bytes += bytes < 4200 || bytes % 65536 < 20 ? 1 : STEP)
		look(&facts, bytes);
	for (uint64_t border = 4096; border <= 16 * MIB; border *= 2)
		for (uint64_t ranks = 1; ranks <= FERRY_KERNEL_RANKS; ranks++)
			for (uint64_t bytes = border / ranks - 20; bytes < border / ranks + 20; bytes++)
				look(&facts, bytes);
	for (int i = 0; i < 200; i++)
		look(&facts, UINT64_MAX - (uint64_t)i);
	for (int bit = 23; bit < 64; bit++)
		look(&facts, 1ull << bit);
}

static void what_is_chosen_fits_the_box(void **state)
{
	static const uint32_t blocks[] = {1, 3, 33, FERRY_KERNEL_BLOCKS};
	(void)state;
	for (uint32_t nranks = 2; nranks <= FERRY_KERNEL_RANKS; nranks++)
		for (int peer = 0; peer < 2; peer++)
			for (enum ferry_collective collective = 0; collective < FERRY_ALLTOALLV; collective++)
				for (int i = 0; i < 4; i++)
					look_at_all_sizes((struct ferry_kernel_facts){
					        .collective = collective,
					        .nranks = nranks,
					        .peer = peer,
					        .box_bytes = box_bytes_of(nranks, peer),
					        .blocks = blocks[i] == FERRY_KERNEL_BLOCKS ? 33 : blocks[i],
					        .line_blocks = blocks[i]});
}

static int kernel_with(uint32_t line_blocks, enum ferry_collective collective, uint32_t nranks, bool peer,
                       uint64_t bytes)
{
	const struct ferry_kernel_facts facts = {.collective = collective,
	                                         .nranks = nranks,
	                                         .peer = peer,
	                                         .bytes = bytes,
	                                         .box_bytes = box_bytes_of(nranks, peer),
	                                         .blocks = 33,
	                                         .line_blocks = line_blocks};
	return (int)ferry_kernel_choose(&facts).kernel;
}

static int kernel_of(enum ferry_collective collective, uint32_t nranks, bool peer, uint64_t bytes)
{
	return kernel_with(33, collective, nranks, peer, bytes);
}

static void sums_of_more_ranks_by_host_memory_are_shorter(void **state)
{
	(void)state;
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 2, false, 4 * MIB), FERRY_KERNEL_BULK);
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 4, false, MIB / 2), FERRY_KERNEL_BULK);
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 4, false, MIB / 2 + 16), FERRY_KERNEL_NONE);
	assert_int_equal(kernel_of(FERRY_ALLGATHER, 4, false, 4 * MIB), FERRY_KERNEL_BULK);
	assert_int_equal(kernel_of(FERRY_REDUCESCATTER, 4, false, MIB / 2 + 16), FERRY_KERNEL_BULK);
}

static void blocks_for_each_rank_are_shorter_the_more_there_are(void **state)
{
	static const enum ferry_collective collectives[] = {FERRY_ALLGATHER, FERRY_ALLTOALL, FERRY_REDUCESCATTER};
	(void)state;
	for (int i = 0; i < 3; i++)
		for (uint32_t nranks = 2; nranks <= 8; nranks *= 2) {
			assert_int_equal(kernel_of(collectives[i], nranks, true, 8 * MIB / nranks), FERRY_KERNEL_LL128);
			assert_int_equal(kernel_of(collectives[i], nranks, true, 8 * MIB / nranks + 16),
			                 FERRY_KERNEL_NONE);
		}
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 4, true, 4 * MIB), FERRY_KERNEL_LL128);
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 2, true, 8 * MIB), FERRY_KERNEL_LL128);
	assert_int_equal(kernel_of(FERRY_ALLREDUCE, 2, true, 8 * MIB + 16), FERRY_KERNEL_NONE);
}

/* Two ranks carry twice as much with half of the multiprocessors, and more ranks do not. */
static void more_blocks_carry_longer_calls(void **state)
{
	(void)state;
	for (uint32_t nranks = 2; nranks <= 4; nranks += 2) {
		const uint64_t most = (nranks == 2 ? 16 : 8) * MIB / nranks;
		assert_int_equal(kernel_with(64, FERRY_ALLGATHER, nranks, true, most), FERRY_KERNEL_LL128);
		assert_int_equal(kernel_with(64, FERRY_ALLGATHER, nranks, true, most + 16), FERRY_KERNEL_NONE);
	}
	assert_int_equal(kernel_with(64, FERRY_ALLREDUCE, 2, true, 16 * MIB), FERRY_KERNEL_LL128);
	assert_int_equal(kernel_with(40, FERRY_ALLREDUCE, 2, true, 16 * MIB), FERRY_KERNEL_NONE);
	assert_int_equal(kernel_with(64, FERRY_ALLREDUCE, 4, true, 4 * MIB + 16), FERRY_KERNEL_NONE);
	assert_int_equal(kernel_with(64, FERRY_BROADCAST, 2, true, 2 * MIB + 16), FERRY_KERNEL_NONE);
}

/* NCCL moves what has a root in one direction, and was faster sooner. */
static void calls_with_a_root_are_shorter(void **state)
{
	(void)state;
	for (uint32_t nranks = 2; nranks <= 4; nranks += 2)
		for (enum ferry_collective collective = FERRY_BROADCAST; collective <= FERRY_SCATTER; collective++) {
			bool reduces = ferry_collective_reduces(collective);
			uint64_t most = reduces ? MIB : 2 * MIB;
			if (!ferry_collective_has_root(collective))
				continue;
			assert_int_equal(kernel_of(collective, nranks, true, most), FERRY_KERNEL_LL128);
			assert_int_equal(kernel_of(collective, nranks, true, most + 16), FERRY_KERNEL_NONE);
			assert_int_equal(kernel_of(collective, nranks, false, MIB / 8 + 16), FERRY_KERNEL_NONE);
		}
	assert_int_equal(kernel_of(FERRY_BROADCAST, 2, false, MIB / 8), FERRY_KERNEL_LL);
}

static void calls_of_a_group_share_the_blocks_that_one_call_may_have(void **state)
{
	struct ferry_kernel_choice choices[FERRY_KERNEL_GROUP];
	uint64_t bytes[FERRY_KERNEL_GROUP];
	(void)state;
	for (uint32_t most = 1; most <= FERRY_KERNEL_BLOCKS; most++)
		for (uint32_t count = 1; count <= FERRY_KERNEL_GROUP && count <= most; count++) {
			uint32_t sum = 0, threads;
			for (uint32_t i = 0; i < count; i++) {
				bytes[i] = 1 + (uint64_t)i * 8191 * most % (96u << 10);
				choices[i] = ferry_kernel_choose(&(struct ferry_kernel_facts){
				        FERRY_ALLREDUCE, bytes[i], 2, true, box_bytes_of(2, true), most, most});
			}
			ferry_kernel_share_blocks(choices, bytes, count, most, &threads);
			assert_true(threads && threads <= 512);
			for (uint32_t i = 0; i < count; i++) {
				assert_true(choices[i].blocks && choices[i].threads <= threads);
				assert_true((choices[i].blocks - 1) * (uint64_t)threads < (bytes[i] + 7) / 8);
				sum += choices[i].blocks;
			}
			assert_true(sum <= most);
		}
}

/* Both ends cut a message alike: by its bytes, the fabric and the number of ranks. */
static void messages_are_lines_where_they_are_long(void **unused)
{
	(void)unused;
	assert_int_equal(ferry_kernel_message_most(2, true), 1 << 20);
	assert_int_equal(ferry_kernel_message_most(3, true), 256 << 10);
	assert_int_equal(ferry_kernel_message_most(2, false), 32 << 10);
	for (int peer = 0; peer < 2; peer++)
		for (uint64_t bytes = 1; bytes <= ferry_kernel_message_most(2, peer); bytes += 1 + bytes / 7) {
			uint32_t piece = ferry_kernel_message_piece(bytes, peer);
			uint64_t pieces = (bytes + piece - 1) / piece;
			assert_int_equal(piece == FERRY_MESSAGE_LINES, peer && bytes > 128 << 10);
			assert_true(piece <= FERRY_MESSAGE_SLOT / 2 || piece == FERRY_MESSAGE_LINES);
			assert_true(pieces <= FERRY_MESSAGE_STRANDS(!peer) || piece == FERRY_MESSAGE_LINES);
			assert_true(pieces <= FERRY_MESSAGE_SLOTS(!peer)); /* so none waits for its receiver */
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_is_chosen_fits_the_box),
	        cmocka_unit_test(sums_of_more_ranks_by_host_memory_are_shorter),
	        cmocka_unit_test(blocks_for_each_rank_are_shorter_the_more_there_are),
	        cmocka_unit_test(more_blocks_carry_longer_calls),
	        cmocka_unit_test(calls_with_a_root_are_shorter),
	        cmocka_unit_test(messages_are_lines_where_they_are_long),
	        cmocka_unit_test(calls_of_a_group_share_the_blocks_that_one_call_may_have),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
