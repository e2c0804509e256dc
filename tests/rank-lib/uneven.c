/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AllToAllv of host devices whose links are modelled: a router divides each call among direct paths, relays and the
 * host, and whatever it decides every byte arrives, and none beside. Lengths that differ end the job before anything
 * has moved. Ranks are threads of this process. How fast it is: host_machines.c; router kills: tests/trials.cmake.
 */
#include "tests/hosted.h"
#include "tests/sanitized.h"
#include "tests/succeeds.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_RANKS 8
#define MIB        (1u << 20)
#define CALLS      3 /* in a group, beside an AllReduce */
#define SUMS       700
#define GUARD      0x5a

#define ROUNDS REPEATS(12, 3)

struct call {
	int nranks;
	size_t counts[MOST_RANKS][MOST_RANKS]; /* bytes, from, to */
	size_t send_at[MOST_RANKS][MOST_RANKS], receive_at[MOST_RANKS][MOST_RANKS]; /* rank, peer */
	size_t sends[MOST_RANKS], receives[MOST_RANKS];
	unsigned char *send[MOST_RANKS], *receive[MOST_RANKS];
	bool sends_again; /* what another one sends, out of its buffers */
	unsigned salt;
};

static ferryComm_t comms[MOST_RANKS];
static uint64_t state_of_random = 88172645463325252ull;

static uint64_t draw(uint64_t below)
{
	state_of_random ^= state_of_random << 13;
	state_of_random ^= state_of_random >> 7;
	state_of_random ^= state_of_random << 17;
	return state_of_random % below;
}

static void machine_open(const char *links, const char *fabrics, const char *domains, int nranks)
{
	setenv("FERRY_HOST_LINK", links, 1);
	setenv("FERRY_FABRICS", fabrics, 1);
	hosted_routers(atoi(domains));
	OK(ferryCommInitAll(comms, nranks, NULL));
}

static void machine_close(int nranks)
{
	for (int rank = 0; rank < nranks; rank++)
		OK(ferryCommDestroy(comms[rank]));
}

/* ---- a call ---- */

#define RUN 512 /* bytes that are made at a time, a multiple of 8 */

/* Bytes of a block, from `first` on, a multiple of 8. */
UNSEEN static void make_run(const struct call *call, int from, int to, size_t first, unsigned char run[RUN])
{
	const uint64_t pair = (uint64_t)(from * 64 + to + 1) * 0xff51afd7ed558ccdull ^ call->salt;
	for (size_t i = 0; i < RUN; i += 8) {
		uint64_t word = ((first + i) / 8 + 1) * 0x9e3779b97f4a7c15ull ^ pair;
		word ^= (word >> 33 & 0xff) * 0x0101010101010101ull;
		memcpy(run + i, &word, sizeof word);
	}
}

static unsigned char *guarded(size_t bytes)
{
	unsigned char *buffer = malloc(bytes + 1);
	assert_non_null(buffer);
	sampled_set(buffer, GUARD, bytes + 1);
	return buffer;
}

UNSEEN static void fill_block(const struct call *call, int from, int to)
{
	unsigned char run[RUN];
	size_t count = call->counts[from][to];
	for (size_t at = 0; at < count; at += RUN) {
		make_run(call, from, to, at, run);
		sampled_copy(call->send[from] + call->send_at[from][to] + at, run,
		             count - at < RUN ? count - at : RUN);
	}
}

UNSEEN static void judge_block(const struct call *call, int from, int to, const unsigned char *block)
{
	unsigned char run[RUN];
	size_t count = call->counts[from][to];
	for (size_t at = 0; at < count; at += RUN) {
		size_t length = count - at < RUN ? count - at : RUN, i = 0;
		make_run(call, from, to, at, run);
		if (sampled_same(block + at, run, length))
			continue;
		while (block[at + i] == run[i])
			i++;
		fail_msg("rank %d: byte %zu of %zu from rank %d is %d, not %d", to, at + i, count, from, block[at + i],
		         run[i]);
	}
}

/* Blocks in another order on each side, with gaps of odd lengths. */
UNSEEN static void call_open(struct call *call)
{
	int n = call->nranks;
	call->salt = (unsigned)draw(UINT32_MAX);
	for (int rank = 0; rank < n; rank++) {
		call->sends[rank] = call->receives[rank] = 0;
		for (int i = 0; i < n; i++) {
			int last = n - 1 - i;
			call->send_at[rank][last] = call->sends[rank];
			call->sends[rank] += call->counts[rank][last] + (size_t)draw(5);
			call->receive_at[rank][i] = call->receives[rank];
			call->receives[rank] += call->counts[i][rank] + (size_t)draw(70);
		}
		call->send[rank] = guarded(call->sends[rank]);
		call->receive[rank] = guarded(call->receives[rank]);
		for (int to = 0; to < n; to++)
			fill_block(call, rank, to);
	}
}

/* The same once more, from the same buffers into others. */
static void call_repeat(const struct call *call, struct call *again)
{
	*again = *call;
	again->sends_again = true;
	for (int rank = 0; rank < call->nranks; rank++)
		again->receive[rank] = guarded(call->receives[rank]);
}

static void call_close(struct call *call)
{
	for (int rank = 0; rank < call->nranks; rank++) {
		if (!call->sends_again)
			free(call->send[rank]);
		free(call->receive[rank]);
	}
}

static void call_make(const struct call *call)
{
	for (int rank = 0; rank < call->nranks; rank++) {
		size_t receives[MOST_RANKS];
		for (int from = 0; from < call->nranks; from++)
			receives[from] = call->counts[from][rank];
		OK(ferryAllToAllv(call->send[rank], call->counts[rank], call->send_at[rank], call->receive[rank],
		                  receives, call->receive_at[rank], ferryUint8, comms[rank], NULL));
	}
}

UNSEEN static void call_judge(const struct call *call)
{
	for (int rank = 0; rank < call->nranks; rank++) {
		size_t at = 0;
		sample(call->receive[rank], call->receives[rank], false);
		for (int from = 0; from < call->nranks; from++) {
			const unsigned char *block = call->receive[rank] + call->receive_at[rank][from];
			for (; at < call->receive_at[rank][from]; at++)
				if (call->receive[rank][at] != GUARD)
					fail_msg("rank %d: byte %zu, before rank %d's block, is written", rank, at,
					         from);
			judge_block(call, from, rank, block);
			at += call->counts[from][rank];
		}
		for (; at <= call->receives[rank]; at++)
			if (call->receive[rank][at] != GUARD)
				fail_msg("rank %d: byte %zu, behind all blocks, is written", rank, at);
	}
}

/* ---- traffic ---- */

/* Nothing, an element, what stays on one path, what is divided. */
static size_t draw_count(void)
{
	uint64_t kind = draw(12);
	return kind < 3    ? 0
	       : kind < 5  ? 1
	       : kind < 8  ? (size_t)draw(3000)
	       : kind < 11 ? (size_t)draw(300000)
	                   : 2 * MIB + (size_t)draw(2 * MIB);
}

/* Some ranks send or receive nothing at all; some calls have equal blocks. */
static void draw_counts(struct call *call, int nranks)
{
	uint64_t mute = draw(4) ? 0 : draw(1u << nranks), deaf = draw(4) ? 0 : draw(1u << nranks);
	size_t equal = draw(6) ? 0 : 1 + draw_count() / 4;
	*call = (struct call){.nranks = nranks};
	for (int from = 0; from < nranks; from++)
		for (int to = 0; to < nranks; to++) {
			size_t count = equal ? equal : draw_count();
			bool none = mute >> from & 1 || deaf >> to & 1;
			call->counts[from][to] = none || (from == to && count > 300000) ? 0 : count;
		}
}

static void sum_make(int nranks, uint32_t sums[MOST_RANKS][SUMS])
{
	for (int rank = 0; rank < nranks; rank++) {
		for (uint32_t i = 0; i < SUMS; i++)
			sums[rank][i] = i + (uint32_t)rank;
		OK(ferryAllReduce(sums[rank], sums[rank], SUMS, ferryUint32, ferrySum, comms[rank], NULL));
	}
}

static void sum_judge(int nranks, uint32_t sums[MOST_RANKS][SUMS])
{
	uint32_t n = (uint32_t)nranks;
	for (int rank = 0; rank < nranks; rank++)
		for (uint32_t i = 0; i < SUMS; i++)
			assert_int_equal(sums[rank][i], n * i + n * (n - 1) / 2);
}

/* One to three calls, every second time in a group with another collective. */
static void random_program_is_right(int nranks, int round)
{
	static uint32_t sums[MOST_RANKS][SUMS];
	struct call calls[CALLS];
	int ncalls = 1 + round % CALLS;
	for (int i = 0; i < ncalls; i++) {
		if (i && !draw(3)) {
			call_repeat(&calls[i - 1], &calls[i]);
			continue;
		}
		draw_counts(&calls[i], nranks);
		call_open(&calls[i]);
	}
	if (round % 2)
		OK(ferryGroupStart());
	for (int i = 0; i < ncalls; i++) {
		call_make(&calls[i]);
		if (round % 2 && !i)
			sum_make(nranks, sums);
	}
	if (round % 2)
		OK(ferryGroupEnd());
	OK(ferryStreamSynchronize(NULL));
	if (round % 2)
		sum_judge(nranks, sums);
	for (int i = 0; i < ncalls; i++)
		call_judge(&calls[i]);
	for (int i = 0; i < ncalls; i++)
		call_close(&calls[i]);
}

static void random_traffic_arrives(const char *links, const char *fabrics, const char *domains, int nranks)
{
	const char *times = getenv("FERRY_TEST_TIMES");
	machine_open(links, fabrics, domains, nranks);
	for (int round = 0; round < ROUNDS * (times ? atoi(times) : 1); round++)
		random_program_is_right(nranks, round);
	machine_close(nranks);
}

/* Between ranks 0 and 3 there is no link: whatever length goes by relays. */
static void any_traffic_arrives_on_a_mesh_that_lacks_a_link(void **state)
{
	(void)state;
	random_traffic_arrives("links=mesh:2,peer@0-3=0", "peer", "1", 4);
}

static void any_traffic_arrives_across_bridges(void **state)
{
	(void)state;
	random_traffic_arrives("links=bridges:4:1", "peer", "1", 4);
}

/* Three hops lead from the one four to the other. */
static void any_traffic_arrives_by_every_port_of_bridged_fours(void **state)
{
	(void)state;
	random_traffic_arrives("links=bridges:4:1:4", "peer", "1", 8);
}

static void any_traffic_arrives_on_two_sockets(void **state)
{
	(void)state;
	random_traffic_arrives("links=pcie2:2:0.6", "peer", "1", 8);
}

static void any_traffic_arrives_on_some_gpus_of_a_dgx1v(void **state)
{
	(void)state;
	random_traffic_arrives("links=dgx1v:1,devices=1,0,4,5,2", "peer", "1", 5);
}

static void any_traffic_arrives_with_the_host_beside(void **state)
{
	(void)state;
	random_traffic_arrives("links=nvswitch:1,d2h=0.5,h2d=0.5", "host,peer", "1", 4);
}

static void any_traffic_arrives_from_domain_to_domain(void **state)
{
	(void)state;
	random_traffic_arrives("links=mesh:2,peer@0-3=0,d2h=1,h2d=1", "host,peer", "2", 4);
}

/* Calls one after another, of which each waits for nobody: relays' windows and counters take turns. */
static void calls_in_a_row_do_not_mix(void **state)
{
	struct call calls[8];
	(void)state;
	machine_open("links=mesh:4,peer@0-3=0", "peer", "1", 4);
	for (int i = 0; i < 8; i++) {
		calls[i] = (struct call){.nranks = 4};
		calls[i].counts[0][3] = (size_t)(i % 2 ? 1 : 2 * MIB + 13) * (size_t)(i != 4);
		calls[i].counts[3][0] = (size_t)i;
		calls[i].counts[1][2] = i % 3 ? 0 : 4 * MIB;
		call_open(&calls[i]);
	}
	for (int i = 0; i < 8; i++)
		call_make(&calls[i]);
	OK(ferryStreamSynchronize(NULL));
	for (int i = 0; i < 8; i++) {
		call_judge(&calls[i]);
		call_close(&calls[i]);
	}
	machine_close(4);
}

/* ---- lengths that differ ---- */

static bool is_untouched(const struct call *call)
{
	for (int rank = 0; rank < call->nranks; rank++)
		for (size_t i = 0; i <= call->receives[rank]; i++)
			if (call->receive[rank][i] != GUARD)
				return false;
	return true;
}

/* Of one pair among four, whether its block would go directly or by relays: no rank gets a byte of any block. */
static void lengths_that_differ_fail_with_both_before_anything_moves(void **state)
{
	static const struct {
		int from, to;
	} pairs[] = {{0, 3}, {1, 2}};
	(void)state;
	for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
		struct call call = {.nranks = 4};
		char wanted[128];
		int from = pairs[i].from, to = pairs[i].to;
		ferryResult_t result = ferrySuccess;
		machine_open("links=mesh:2,peer@0-3=0", "peer", "1", 4);
		for (int pair = 0; pair < 16; pair++)
			call.counts[pair / 4][pair % 4] = pair / 4 == pair % 4 ? 0 : 2 * MIB + 4;
		call_open(&call);
		for (int rank = 0; rank < 4; rank++) {
			size_t receives[MOST_RANKS];
			for (int other = 0; other < 4; other++)
				receives[other] = call.counts[other][rank];
			receives[from] -= rank == to ? 3 : 0;
			OK(ferryAllToAllv(call.send[rank], call.counts[rank], call.send_at[rank], call.receive[rank],
			                  receives, call.receive_at[rank], ferryUint8, comms[rank], NULL));
		}
		result = ferryStreamSynchronize(NULL);
		snprintf(wanted, sizeof wanted, "rank %d sends %u bytes to rank %d, which expects %u", from,
		         2 * MIB + 4, to, 2 * MIB + 1);
		ferryResult_t reason = ferryCommGetAsyncError(comms[0], &reason) ? ferrySystemError : reason;
		if (!result || !strstr(ferryGetLastError(comms[0]), wanted))
			fail_msg("%s: \"%s\", not \"%s\"", ferryGetErrorString(result), ferryGetLastError(comms[0]),
			         wanted);
		assert_true(is_untouched(&call));
		call_close(&call);
		for (int rank = 0; rank < 4; rank++)
			ferryCommAbort(comms[rank]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(any_traffic_arrives_on_a_mesh_that_lacks_a_link),
	        cmocka_unit_test(any_traffic_arrives_across_bridges),
	        cmocka_unit_test(any_traffic_arrives_by_every_port_of_bridged_fours),
	        cmocka_unit_test(any_traffic_arrives_on_two_sockets),
	        cmocka_unit_test(any_traffic_arrives_on_some_gpus_of_a_dgx1v),
	        cmocka_unit_test(any_traffic_arrives_with_the_host_beside),
	        cmocka_unit_test(any_traffic_arrives_from_domain_to_domain),
	        cmocka_unit_test(calls_in_a_row_do_not_mix),
	        cmocka_unit_test(lengths_that_differ_fail_with_both_before_anything_moves),
	};
	setenv("FERRY_SHORT", "0", 1);
	setenv("FERRY_WORKERS", "8", 0); /* as on a larger machine */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
