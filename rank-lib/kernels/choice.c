/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/choice.h"

#include "rank-lib/kernels/kernel_call.h"

/*
 * Measured on two H200s (docs/lab/kernels.md): by peer memory LL up to 128 KiB, then LL128; an AllReduce in two phases
 * from 1 MiB on. By host memory LL up to 128 KiB, then bulk. Beyond, copy engines move what needs no sum, and NCCL or
 * the host sums. With a root one link works in one direction, and NCCL has less to do sooner. Two ranks with twice the
 * blocks carry twice as much: 16 MiB in 0.78 to 0.85 of NCCL's time, where copy engines had 0.87 to 1.15.
 */
#ifndef KIB /* suites of sums that GPUs make have less (tests/CMakeLists.txt) */
#define KIB         1024u
#define MANY_BLOCKS 48u /* with so many two ranks carry twice as much */
#endif
#define LL_MOST           (128u * KIB)
#define TWO_PHASE_FROM    (1024u * KIB)
#define PEER_MOST         (4096u * KIB)
#define PEER_PAIR_SUM     (8192u * KIB) /* an AllReduce of two ranks */
#define PEER_ROOTED_COPY  (2048u * KIB)
#define PEER_ROOTED_SUM   (1024u * KIB)
#define HOST_MOST         (4096u * KIB)
#define CHUNK             (32u << 10)
#define PIECE_LEAST       (2u << 10) /* as above */
#define PIECE_MOST        (8u << 10)
#define MESSAGE_LL_MOST   (128u << 10)
#define MESSAGE_MOST      (1u << 20) /* of two ranks */
#define MESSAGE_MOST_MORE (256u << 10)
#define MESSAGE_MOST_HOST (32u << 10)

static uint32_t at_most(uint64_t blocks, uint32_t most)
{
	return blocks > most ? most : blocks ? (uint32_t)blocks : 1;
}

/* A block for each 2 KiB of data while they last: more of them start more of the links' latency at once. */
static struct ferry_kernel_choice ll(const struct ferry_kernel_facts *facts)
{
	uint32_t threads = facts->bytes > 4096 && facts->bytes <= 65536 ? 256 : 512;
	uint64_t words = (facts->bytes + 7) / 8;
	if (words < 128)
		threads = 128;
	return (struct ferry_kernel_choice){.kernel = FERRY_KERNEL_LL,
	                                    .threads = threads,
	                                    .blocks = at_most((words + threads - 1) / threads, facts->blocks)};
}

static struct ferry_kernel_choice bulk(const struct ferry_kernel_facts *facts)
{
	uint64_t chunk = CHUNK;
	while (chunk > 4096 && facts->bytes < 8 * chunk)
		chunk /= 2;
	return (struct ferry_kernel_choice){.kernel = FERRY_KERNEL_BULK,
	                                    .threads = 512,
	                                    .chunk = (uint32_t)chunk,
	                                    .blocks = at_most((facts->bytes + chunk - 1) / chunk, facts->blocks)};
}

static struct ferry_kernel_choice ll128(const struct ferry_kernel_facts *facts)
{
	uint64_t lines = (facts->bytes + 119) / 120;
	return (struct ferry_kernel_choice){.kernel = FERRY_KERNEL_LL128,
	                                    .threads = 1024,
	                                    .blocks = at_most((lines + 127) / 128, facts->line_blocks),
	                                    .two_phases = facts->collective == FERRY_ALLREDUCE &&
	                                                  facts->bytes >= TWO_PHASE_FROM / (facts->nranks - 1)};
}

/* An outbox has a block for each receiver where they differ; an inbox holds one for its rank. */
static uint64_t blocks_in_box(const struct ferry_kernel_facts *facts)
{
	return facts->peer || !ferry_collective_sends_blocks(facts->collective) ? 1 : facts->nranks;
}

uint64_t ferry_kernel_packets(const struct ferry_kernel_facts *facts)
{
	return blocks_in_box(facts) * 16 * ((facts->bytes + 7) / 8);
}

static uint32_t sum_of_blocks(const struct ferry_kernel_choice *choices, uint32_t count, uint32_t *largest)
{
	uint32_t sum = 0;
	*largest = 0;
	for (uint32_t i = 0; i < count; i++) {
		sum += choices[i].blocks;
		*largest = choices[i].blocks > choices[*largest].blocks ? i : *largest;
	}
	return sum;
}

void ferry_kernel_share_blocks(struct ferry_kernel_choice *choices, const uint64_t *bytes, uint32_t count,
                               uint32_t most, uint32_t *threads)
{
	uint32_t largest;
	*threads = 0;
	for (uint32_t i = 0; i < count; i++)
		*threads = choices[i].threads > *threads ? choices[i].threads : *threads;
	for (uint32_t i = 0; i < count; i++)
		choices[i].blocks = at_most(((bytes[i] + 7) / 8 + *threads - 1) / *threads, choices[i].blocks);
	while (sum_of_blocks(choices, count, &largest) > most)
		choices[largest].blocks--;
}

/*
 * By host memory each rank reads the whole block of every other one, where a ring of NCCL's moves at most two blocks'
 * worth whatever the number of ranks. Four H200s had 1.5 times NCCL's rate at 256 KiB, and 0.76 at 2 MiB.
 */
static uint64_t host_most(const struct ferry_kernel_facts *facts)
{
	const uint64_t n = facts->nranks;
	if (ferry_collective_has_root(facts->collective))
		return LL_MOST;
	return facts->collective == FERRY_ALLREDUCE ? HOST_MOST * 8ull / (n * n * n) : HOST_MOST;
}

/*
 * A kernel moves the blocks of all ranks: the more ranks, the smaller the largest block. Four H200s had 1.6 times
 * NCCL's rate where a rank's buffer has 4 MiB, and 0.75 to 0.9 at 16 MiB.
 */
static uint64_t peer_most(const struct ferry_kernel_facts *facts)
{
	const uint64_t times = facts->nranks == 2 && facts->line_blocks >= MANY_BLOCKS ? 2 : 1;
	if (facts->collective == FERRY_ALLREDUCE)
		return facts->nranks == 2 ? times * PEER_PAIR_SUM : PEER_MOST;
	if (!ferry_collective_has_root(facts->collective))
		return times * PEER_MOST * 2 / facts->nranks;
	return ferry_collective_reduces(facts->collective) ? PEER_ROOTED_SUM : PEER_ROOTED_COPY;
}

uint64_t ferry_kernel_message_most(uint32_t nranks, bool peer)
{
	return !peer ? MESSAGE_MOST_HOST : nranks == 2 ? MESSAGE_MOST : MESSAGE_MOST_MORE;
}

uint32_t ferry_kernel_message_piece(uint64_t bytes, bool peer)
{
	uint32_t piece = PIECE_LEAST;
	if (peer && bytes > MESSAGE_LL_MOST)
		return FERRY_MESSAGE_LINES;
	while (piece < PIECE_MOST && bytes > (uint64_t)FERRY_MESSAGE_STRANDS(!peer) * piece)
		piece *= 2;
	return piece;
}

/* A rank sends its block to all others at once. */
struct ferry_kernel_choice ferry_kernel_choose(const struct ferry_kernel_facts *facts)
{
	const struct ferry_kernel_choice none = {.kernel = FERRY_KERNEL_NONE};
	const uint64_t blocks = blocks_in_box(facts);
	if (!facts->bytes || facts->nranks < 2 || facts->nranks > FERRY_KERNEL_RANKS)
		return none;
	if (facts->bytes <= LL_MOST && ferry_kernel_packets(facts) <= FERRY_BOX_LL_BYTES)
		return ll(facts);
	if (!facts->peer)
		return facts->bytes <= host_most(facts) && blocks * (facts->bytes + CHUNK) <= facts->box_bytes
		               ? bulk(facts)
		               : none;
	struct ferry_kernel_choice choice = ll128(facts);
	uint64_t lines = (facts->bytes + 119) / 120 + 2 * facts->nranks;
	bool fits = facts->bytes <= peer_most(facts) && 128 * lines <= facts->box_bytes;
	return fits ? choice : none;
}
