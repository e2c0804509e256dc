/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of programs that push from GPU to GPU, and of calls in parts: what passes the checker compiles to a plan
 * that moves every byte to its place, and a plan that would have a router do otherwise is refused. program_puts [SEED]
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdlib.h>
#include <string.h>

#define PROGRAMS 1000
#define MOST_PARTS 4

static uint64_t first_seed = 1;

static const char ring[] = "program allgather ranks 3 domains 1 chunks 1\n"
                           "rank 0\nPUT gpu[0] -> gpu@1[0]\nPUT gpu[2] -> gpu@1[2] deps: gpu[2]>=1\n"
                           "rank 1\nPUT gpu[0] -> gpu@2[1]\nPUT gpu[0] -> gpu@2[0] deps: gpu[0]>=1\n"
                           "rank 2\nPUT gpu[0] -> gpu@0[2]\nPUT gpu[1] -> gpu@0[1] deps: gpu[1]>=1\n";

static const char pairs[] = "program allgather ranks 2 domains 1 chunks 1\n"
                            "rank 0\nPUT gpu[0] -> gpu@1[0]\nrank 1\nPUT gpu[0] -> gpu@0[1]\n";

static const char by_host[] = "program allgather ranks 2 domains 1 chunks 1\n"
                              "rank 0\nD2H gpu[0] -> host[0]\nH2D host[1] -> gpu[1] deps: host[1]>=1\n"
                              "rank 1\nD2H gpu[0] -> host[1]\nH2D host[0] -> gpu[0] deps: host[0]>=1\n";

static const char imported_arena_by_host[] = "program allreduce ranks 2 domains 1 chunks 1\n"
                                             "rank 0\nD2H gpu[0] -> host[0]\nREDUCE host[0] -> host[2]\n"
                                             "H2D host[2] -> gpu[0] deps: host[2]>=2\n"
                                             "PUT gpu[0] -> gpu@1[0] deps: gpu[0]>=1\n"
                                             "rank 1\nD2H gpu[0] -> host[1]\nREDUCE host[1] -> host[2]\n";

static struct ferry_compile_options options_for(uint64_t count)
{
	struct ferry_compile_options options = {.count = count, .type = ferryUint32, .redop = ferrySum};
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		options.staging[domain] = 4u << 20;
	return options;
}

static struct ferry_plan *plan_of(const char *text, uint64_t count)
{
	struct ferry_compile_options options = options_for(count);
	struct ferry_program *program = program_of(text);
	struct ferry_plan *plan;
	if (ferry_program_compile(program, &options, &plan))
		fail_msg("%s\n%s", text, ferry_last_message());
	ferry_program_free(program);
	return plan;
}

static struct ferry_instr *instrs_of(struct ferry_plan *plan)
{
	return (struct ferry_instr *)((char *)plan + plan->instrs_at);
}

static ferryResult_t validate(struct ferry_plan *plan)
{
	struct ferry_plan_room room = {
	        .nranks = plan->nranks, .ndomains = plan->ndomains, .rank_domain = plan->rank_domain};
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++) {
		room.staging[domain] = 4u << 20;
		room.counters[domain] = 1u << 14;
	}
	plan->hash = ferry_plan_hash(plan);
	return ferry_plan_validate(plan, plan->bytes, &room);
}

/* ---- programs ---- */

static void assert_right(const struct ferry_program *program, uint64_t *seed)
{
	char reason[256], *text = NULL;
	assert_int_equal(ferry_program_print(program, &text), ferrySuccess);
	if (ferry_program_check(program))
		fail_msg("%s\n%s", text, ferry_last_message());
	for (uint32_t order = 0; order < 3; order++)
		if (!interpret_program(program, draw_below(seed, 120), draw(seed), reason) ||
		    !compile_and_execute(program, draw(seed), reason))
			fail_msg("%s\n%s", text, reason);
	free(text);
}

static void a_thousand_random_programs_with_puts_are_right(void **state)
{
	(void)state;
	uint64_t seed = first_seed;
	uint32_t programs = 0, pure = 0, raw = 0, forwarding = 0;
	while (programs < PROGRAMS) {
		struct ferry_program *program = random_pushing_program(&seed, 8, 3);
		uint32_t before = raw + forwarding;
		bool host = false;
		for (uint32_t i = 0; i < program->nstatements; i++) {
			const struct ferry_statement *statement = &program->statements[i];
			forwarding += statement->forwards;
			raw += statement->opcode == FERRY_PUT && !statement->forwards;
			host |= statement->opcode != FERRY_PUT;
		}
		assert_right(program, &seed);
		programs += raw + forwarding > before; /* chance may have left it all to the host */
		pure += !host;
		ferry_program_free(program);
	}
	print_message("seed %llu: %u programs with %u PUTs of own input and %u that forward, %u without the host\n",
	              (unsigned long long)first_seed, programs, raw, forwarding, pure);
	assert_true(raw > PROGRAMS && forwarding > PROGRAMS && pure > PROGRAMS / 10);
}

/* ---- plans ---- */

static const struct ferry_edge *only_edge(const struct ferry_plan *plan, uint32_t instr)
{
	const struct ferry_instr *what = &ferry_plan_instrs(plan)[instr];
	assert_int_equal(what->nedges, 1);
	return &ferry_plan_edges(plan)[what->first_edge];
}

static void a_ring_compiles_to_puts_behind_what_brings_and_a_land_for_each(void **state)
{
	(void)state;
	struct ferry_plan *plan = plan_of(ring, 1000);
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	uint32_t puts = 0, put_waits = 0;
	assert_int_equal(plan->flags, FERRY_PLAN_PUTS);
	assert_int_equal(plan->staging[0], 0);
	assert_int_equal(plan->ninstrs, 15); /* 6 PUTs, 6 WAIT_PUTs, 3 COPYs */
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		if (instrs[i].opcode == FERRY_WAIT_PUT) {
			const struct ferry_instr *put = &instrs[only_edge(plan, i)->instr];
			put_waits++;
			assert_int_equal(put->opcode, FERRY_PUT);
			assert_int_equal(put->peer, instrs[i].owner);
			assert_int_equal(put->owner, instrs[i].peer);
			assert_int_equal(put->user_destination, instrs[i].user_offset);
			assert_int_equal(put->wakes_h2d, 1u << instrs[i].owner);
		}
		if (instrs[i].opcode == FERRY_PUT)
			puts++;
		if (instrs[i].opcode == FERRY_PUT && (instrs[i].flags & FERRY_INSTR_FORWARDS)) {
			const struct ferry_instr *brings = &instrs[only_edge(plan, i)->instr];
			assert_int_equal(brings->opcode, FERRY_PUT);
			assert_int_equal(brings->peer, instrs[i].owner);
			assert_int_equal(brings->user_destination, instrs[i].user_offset);
			assert_int_equal(brings->wakes_d2h, 1u << instrs[i].owner);
			assert_int_equal(instrs[i].user_offset, instrs[i].user_destination);
		}
	}
	assert_int_equal(puts, 6);
	assert_int_equal(put_waits, 6);
	free(plan);
}

/* Bytes of a slice where all moves by PUTs, with blocks of so many bytes. */
static uint32_t slice_of(const char *text, uint64_t bytes)
{
	struct ferry_plan *plan = plan_of(text, bytes / 4);
	uint32_t slice = plan->slice;
	assert_int_equal(validate(plan), ferrySuccess);
	free(plan);
	return slice;
}

static void puts_go_whole_and_what_is_forwarded_in_slices(void **state)
{
	(void)state;
	assert_int_equal(slice_of(pairs, 4000), 4032);
	assert_int_equal(slice_of(pairs, 64u << 20), 64u << 20);
	assert_int_equal(slice_of(pairs, 1u << 30), 1u << 30);
	assert_int_equal(slice_of(pairs, 3ull << 29), 3u << 28); /* two equal ones: a plan says no more than 1 GiB */
	assert_int_equal(slice_of(ring, 100u << 10), 50u << 10); /* two equal ones, of 64 KiB at most */
	assert_int_equal(slice_of(ring, 1u << 20), 64u << 10);
	assert_int_equal(slice_of(ring, 64u << 20), 1u << 20);
	assert_int_equal(slice_of(ring, 1u << 30), 16u << 20);
	assert_int_equal(slice_of(imported_arena_by_host, 1u << 20), slice_of(by_host, 1u << 20)); /* windows decide */
}

/* The PUT of the round before into the same rank; NULL: it waits for none. */
static const struct ferry_instr *put_before(const struct ferry_plan *plan, const struct ferry_instr *put)
{
	const struct ferry_edge *edges = ferry_plan_edges(plan) + put->first_edge;
	const struct ferry_instr *before = put->nedges ? &ferry_plan_instrs(plan)[edges->instr] : NULL;
	assert_true(put->nedges <= 1);
	assert_true(!before || (before->opcode == FERRY_PUT && before->peer == put->peer));
	return before;
}

/* Into each rank they go one after another, in whole blocks; the first one at once. Without ports all go at once. */
static void puts_through_one_port_take_turns(void **state)
{
	enum { RANKS = 5 };
	struct ferry_topology topology = {.nranks = RANKS, .ndomains = 1};
	struct ferry_links links = {0};
	(void)state;
	for (int from = 0; from < RANKS; from++)
		for (int to = 0; to < RANKS; to++)
			links.speed[from][to] = from != to;
	for (int ports = 0; ports < 2; ports++)
		for (int gathers = 0; gathers < 2; gathers++) {
			struct ferry_compile_options options = options_for(RANKS << 20);
			struct ferry_program *program;
			struct ferry_plan *plan;
			uint32_t puts = 0, first = 0;
			options.ports = ports;
			assert_int_equal(ferry_program_synthesize_peer(gathers ? FERRY_ALLGATHER : FERRY_ALLTOALL,
			                                               &topology, &links, 0, &program), ferrySuccess);
			assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
			assert_int_equal(validate(plan), ferrySuccess);
			for (uint32_t i = 0; i < plan->ninstrs; i++) {
				const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
				uint32_t rounds = 0;
				if (instr->opcode != FERRY_PUT)
					continue;
				for (const struct ferry_instr *at = instr; (at = put_before(plan, at)); rounds++)
					assert_int_equal(at->owner, (instr->owner + rounds + 1) % RANKS);
				assert_int_equal(rounds, ports ? (instr->peer + RANKS - instr->owner - 1) % RANKS : 0);
				puts++;
				first += !rounds;
				assert_int_equal(instr->nslices, 1);
			}
			assert_int_equal(puts, RANKS * (RANKS - 1));
			assert_int_equal(first, ports ? RANKS : puts);
			free(plan);
			ferry_program_free(program);
		}
}

static void premulsum_refuses_a_put_of_what_nothing_scales(void **state)
{
	(void)state;
	struct ferry_compile_options options = options_for(100);
	struct ferry_program *program = program_of(pairs), *sum = program_of(imported_arena_by_host);
	struct ferry_plan *plan;
	options.redop = ferryNumOps;
	assert_int_equal(ferry_program_compile(program, &options, &plan), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "test:3: premulsum scales in a REDUCE"));
	assert_int_equal(ferry_program_compile(sum, &options, &plan), ferrySuccess);
	free(plan);
	ferry_program_free(program);
	ferry_program_free(sum);
}

/* ---- what no router may take ---- */

/* The first instruction of that opcode; forwarding: a PUT that forwards. */
static struct ferry_instr *first_of(struct ferry_plan *plan, uint8_t opcode, bool forwarding)
{
	struct ferry_instr *instr = instrs_of(plan);
	while (instr->opcode != opcode || (forwarding && !(instr->flags & FERRY_INSTR_FORWARDS)))
		instr++;
	assert_true(instr < instrs_of(plan) + plan->ninstrs);
	return instr;
}

static struct ferry_edge *first_edge(struct ferry_plan *plan, const struct ferry_instr *instr)
{
	return (struct ferry_edge *)((char *)plan + plan->edges_at) + instr->first_edge;
}

static void lacks_flag(struct ferry_plan *plan)
{
	plan->flags &= (uint8_t)~FERRY_PLAN_PUTS;
}

static void peer_is_nobody(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->peer = plan->nranks;
}

static void peer_is_itself(struct ferry_plan *plan)
{
	struct ferry_instr *put = first_of(plan, FERRY_PUT, false);
	put->peer = put->owner;
}

static void peer_of_a_copy(struct ferry_plan *plan)
{
	first_of(plan, FERRY_COPY, false)->peer = 1;
}

static void lands_elsewhere(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->user_destination += 64;
}

static void land_is_from_another(struct ferry_plan *plan)
{
	struct ferry_instr *wait = first_of(plan, FERRY_WAIT_PUT, false);
	wait->peer = (uint8_t)(3 - wait->owner - wait->peer);
}

static void land_is_of_another(struct ferry_plan *plan)
{
	struct ferry_instr *wait = first_of(plan, FERRY_WAIT_PUT, false), *put = first_of(plan, FERRY_PUT, true);
	first_edge(plan, wait)->instr = (uint32_t)(put - instrs_of(plan));
	put->wakes_h2d |= 1ull << wait->owner;
}

static void land_waits_for_nothing(struct ferry_plan *plan)
{
	struct ferry_instr *wait = first_of(plan, FERRY_WAIT_PUT, false);
	wait->nedges = 0;
}

static void wait_put_twice(struct ferry_plan *plan)
{
	struct ferry_instr *wait = first_of(plan, FERRY_WAIT_PUT, false), *other = wait + 1;
	while (other->opcode != FERRY_WAIT_PUT)
		other++;
	other->owner = wait->owner;
	other->peer = wait->peer;
	other->user_offset = wait->user_offset;
	first_edge(plan, other)->instr = first_edge(plan, wait)->instr;
}

static void nobody_waits(struct ferry_plan *plan)
{
	struct ferry_instr *wait = first_of(plan, FERRY_WAIT_PUT, false);
	wait->opcode = FERRY_COPY;
	wait->peer = 0;
	wait->user_destination = wait->user_offset;
}

static void forwards_what_it_does_not_wait_for(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->flags |= FERRY_INSTR_FORWARDS;
}

static void forwards_other_bytes(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, true)->user_offset += 64;
}

static void forwards_with_lag(struct ferry_plan *plan)
{
	first_edge(plan, first_of(plan, FERRY_PUT, true))->lag = 1;
}

static void copy_forwards(struct ferry_plan *plan)
{
	first_of(plan, FERRY_COPY, false)->flags |= FERRY_INSTR_FORWARDS;
}

static void reaches_far(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->user_destination = 1ull << 57;
}

static void wakes_nobody(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->wakes_h2d = 0;
}

static void has_sources(struct ferry_plan *plan)
{
	first_of(plan, FERRY_PUT, false)->nsources = 1;
}

static void a_plan_that_is_changed_is_refused(void **state)
{
	(void)state;
	static const struct {
		void (*change)(struct ferry_plan *);
		const char *message;
	} changes[] = {
	        {lacks_flag, "instruction 0: PUT in a plan that says it has no PUT"},
	        {peer_is_nobody, "instruction 0: PUT of rank 0, peer 3 of 3"},
	        {peer_is_itself, "instruction 0: PUT of rank 0, peer 0 of 3"},
	        {peer_of_a_copy, "COPY of rank 0, peer 1 of 3"},
	        {lands_elsewhere, "is not what instruction 0 does"},
	        {land_is_from_another, "WAIT_PUT of 4000 bytes at 0 from rank 2 is not what instruction 0 does"},
	        {land_is_of_another, "is not what instruction 6 does"},
	        {land_waits_for_nothing, "instruction 1: a WAIT_PUT with 0 edges"},
	        {wait_put_twice, "another WAIT_PUT of instruction 0"},
	        {nobody_waits, "instruction 0: rank 1 does not wait for what this PUT brings"},
	        {forwards_what_it_does_not_wait_for, "instruction 0: forwards 4000 bytes at 0 and waits for nothing"},
	        {forwards_other_bytes, "instruction 6: forwards 4000 bytes at 64 and waits for nothing"},
	        {forwards_with_lag, "instruction 6: a PUT, which has no window, waits for 0 with lag 1"},
	        {copy_forwards, "flags 0x2"},
	        {reaches_far, "instruction 0: user buffer offsets 0 and 144115188075855872"},
	        {wakes_nobody, "instruction 1 waits for 0 and would not be woken by it"},
	        {has_sources, "instruction 0: 1 sources"},
	};
	for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
		struct ferry_plan *plan = plan_of(ring, 1000);
		assert_int_equal(validate(plan), ferrySuccess);
		changes[i].change(plan);
		if (validate(plan) == ferrySuccess)
			fail_msg("change %zu is taken, and should be told \"%s\"", i, changes[i].message);
		if (!strstr(ferry_last_message(), changes[i].message))
			fail_msg("change %zu: \"%s\" and not \"%s\"", i, ferry_last_message(), changes[i].message);
		free(plan);
	}
	struct ferry_plan *plan = plan_of(by_host, 1000);
	plan->flags |= FERRY_PLAN_PUTS;
	assert_int_equal(validate(plan), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "it says that it has PUTs, and has none"));
	free(plan);
}

/* ---- parts ---- */

/* Cuts [0, count) into parts, some maybe empty, and hands them over in any order. */
static void cut(struct ferry_program_part *parts, uint32_t nparts, uint64_t count, uint64_t *seed)
{
	uint64_t from = 0;
	for (uint32_t p = 0; p < nparts; p++) {
		uint64_t left = count - from, taken = p + 1 == nparts ? left : draw(seed) % (left + 1);
		if (p + 1 < nparts && !draw_below(seed, 5))
			taken = 0;
		parts[p].first = from;
		parts[p].count = taken;
		from += taken;
	}
	for (uint32_t p = nparts; p > 1; p--) {
		uint32_t other = draw_below(seed, p);
		struct ferry_program_part kept = parts[p - 1];
		parts[p - 1] = parts[other];
		parts[other] = kept;
	}
}

static void show_parts(const struct ferry_program_part *parts, uint32_t nparts, char *text, size_t room)
{
	size_t length = 0;
	for (uint32_t p = 0; p < nparts && length < room; p++) {
		char *program;
		assert_int_equal(ferry_program_print(parts[p].program, &program), ferrySuccess);
		length += (size_t)snprintf(text + length, room - length, "%llu elements from %llu by\n%s",
		                           (unsigned long long)parts[p].count, (unsigned long long)parts[p].first,
		                           program);
		free(program);
	}
}

static void run_in_parts(bool whole, uint64_t *seed)
{
	struct ferry_program_part parts[MOST_PARTS];
	char reason[256], text[8192];
	uint32_t nparts = 1 + draw_below(seed, MOST_PARTS);
	struct ferry_topology topology = random_topology(seed, 6, 3);
	enum ferry_collective collective = (enum ferry_collective)draw_below(seed, FERRY_NUM_COLLECTIVES);
	if (collective == FERRY_ALLTOALLV)
		collective = FERRY_ALLTOALL;
	uint32_t root = draw_below(seed, topology.nranks);
	struct ferry_compile_options options = options_for(draw_below(seed, 300));
	struct ferry_plan *plan;
	options.slice = 64 * draw_below(seed, 3);
	options.window = draw_below(seed, 3);
	if (!whole) {
		options.left_out.count = draw(seed) % (options.count + 1);
		options.left_out.mirrored = draw_below(seed, 2);
	}
	cut(parts, nparts, options.count - options.left_out.count, seed);
	for (uint32_t p = 0; p < nparts; p++)
		parts[p].program = draw_below(seed, 2) ? synthesized(collective, &topology, root)
		                                       : pushing_program(collective, &topology, root, seed);
	show_parts(parts, nparts, text, sizeof text);
	if (ferry_program_compile_parts(parts, nparts, &options, &plan))
		fail_msg("%s\n%s", ferry_last_message(), text);
	for (uint32_t order = 0; order < 4; order++)
		if (!execute_plan_in_part(plan, &options.left_out, draw_below(seed, 2), draw(seed), reason))
			fail_msg("%s, %llu of %llu left out%s\n%s", reason,
			         (unsigned long long)options.left_out.count, (unsigned long long)options.count,
			         options.left_out.mirrored ? ", mirrored" : "", text);
	free(plan);
	for (uint32_t p = 0; p < nparts; p++)
		ferry_program_free((struct ferry_program *)parts[p].program);
}

static void calls_in_parts_are_right(void **state)
{
	(void)state;
	uint64_t seed = first_seed;
	for (uint32_t i = 0; i < PROGRAMS; i++)
		run_in_parts(true, &seed);
}

/* Every element that is not left out comes, and no other one is touched. */
static void calls_that_leave_something_out_are_right(void **state)
{
	(void)state;
	uint64_t seed = first_seed;
	for (uint32_t i = 0; i < PROGRAMS; i++)
		run_in_parts(false, &seed);
}

static void a_call_in_one_part_has_the_plan_of_its_program(void **state)
{
	(void)state;
	struct ferry_compile_options options = options_for(1000);
	struct ferry_program *host = program_of(by_host), *peer = program_of(pairs);
	struct ferry_program_part parts[2] = {{peer, 0, 0}, {host, 0, 1000}};
	struct ferry_plan *whole, *in_parts;
	assert_int_equal(ferry_program_compile(host, &options, &whole), ferrySuccess);
	assert_int_equal(ferry_program_compile_parts(parts + 1, 1, &options, &in_parts), ferrySuccess);
	assert_memory_equal(whole, in_parts, whole->bytes);
	free(in_parts);
	assert_int_equal(ferry_program_compile_parts(parts, 2, &options, &in_parts), ferrySuccess);
	assert_memory_equal(whole, in_parts, whole->bytes); /* an empty part costs nothing */
	free(in_parts);
	free(whole);
	ferry_program_free(host);
	ferry_program_free(peer);
}

/* The slices of a call of two fabrics are the host's: its windows are in the cache for a reason. */
static void parts_have_the_slices_that_the_windows_need(void **state)
{
	(void)state;
	struct ferry_compile_options options = options_for(1u << 20);
	struct ferry_program *host = program_of(by_host), *peer = program_of(pairs);
	struct ferry_program_part parts[2] = {{peer, 0, 700000}, {host, 700000, (1u << 20) - 700000}};
	struct ferry_plan *alone, *both;
	assert_int_equal(ferry_program_compile_parts(parts, 2, &options, &both), ferrySuccess);
	options.count = (1u << 20) - 700000;
	assert_int_equal(ferry_program_compile(host, &options, &alone), ferrySuccess);
	assert_int_equal(both->slice, alone->slice);
	assert_int_equal(both->window, alone->window);
	assert_int_equal(both->staging[0], alone->staging[0]);
	assert_int_equal(both->flags, FERRY_PLAN_PUTS);
	const struct ferry_instr *put = ferry_plan_instrs(both), *d2h = put;
	while (d2h->opcode != FERRY_D2H)
		d2h++;
	assert_int_equal(put->opcode, FERRY_PUT);
	assert_int_equal(put->length, 700000 * 4);
	assert_int_equal(d2h->user_offset, 700000 * 4);
	assert_int_equal(d2h->length, options.count * 4);
	free(alone);
	free(both);
	ferry_program_free(host);
	ferry_program_free(peer);
}

/* Else a share of a few bytes would cut what goes beside it into pieces of as few. */
static void a_small_part_of_the_host_leaves_puts_long_slices(void **state)
{
	(void)state;
	struct ferry_compile_options options = options_for(16u << 20);
	struct ferry_program *host = program_of(by_host), *peer = program_of(pairs);
	struct ferry_program_part parts[2] = {{host, 0, 100}, {peer, 100, (16u << 20) - 100}};
	struct ferry_plan *plan;
	assert_int_equal(ferry_program_compile_parts(parts, 2, &options, &plan), ferrySuccess);
	assert_int_equal(plan->slice, 2u << 20); /* two windows in 4 MiB */
	assert_int_equal(plan->staging[0], 4u << 20);
	assert_int_equal(validate(plan), ferrySuccess);
	free(plan);
	options.slice = 512;
	assert_int_equal(ferry_program_compile_parts(parts, 2, &options, &plan), ferrySuccess);
	assert_int_equal(plan->slice, 512);
	free(plan);
	ferry_program_free(host);
	ferry_program_free(peer);
}

static void assert_parts_refused(const struct ferry_program_part *parts, uint32_t nparts, const char *message)
{
	struct ferry_compile_options options = options_for(100);
	struct ferry_plan *plan;
	assert_int_equal(ferry_program_compile_parts(parts, nparts, &options, &plan), ferryInvalidArgument);
	if (!strstr(ferry_last_message(), message))
		fail_msg("\"%s\" and not \"%s\"", ferry_last_message(), message);
}

static void parts_that_do_not_make_a_call_are_refused(void **state)
{
	(void)state;
	struct ferry_program *a = program_of(pairs), *b = program_of(ring), *sum = program_of(figure3),
	                     *variable = program_of("program alltoallv ranks 1 domains 1 chunks 1\n");
	struct ferry_program_part parts[3] = {{a, 0, 50}, {a, 50, 50}, {a, 0, 0}};
	parts[1].first = 49;
	assert_parts_refused(parts, 2, "part 1 of a call of 100 elements has 50 from 49: they are not there, or");
	parts[1].first = 51;
	assert_parts_refused(parts, 2, "part 1 of a call of 100 elements has 50 from 51: they are not there, or");
	parts[1].count = 49;
	assert_parts_refused(parts, 2, "1 of 100 elements are in no part");
	parts[1] = (struct ferry_program_part){b, 50, 50};
	assert_parts_refused(parts, 2, "part 1 of a call of 100 elements has 50 from 50: it is of another collective");
	parts[1].program = sum;
	assert_parts_refused(parts, 2, "it is of another collective or for other ranks");
	parts[0] = (struct ferry_program_part){a, 0, 50};
	struct ferry_compile_options options = options_for(100);
	struct ferry_plan *plan;
	options.left_out.count = 51;
	assert_int_equal(ferry_program_compile_parts(parts, 1, &options, &plan), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "part 0 of a call of 49 elements has 50 from 0"));
	options.left_out.count = 101;
	assert_int_equal(ferry_program_compile_parts(parts, 1, &options, &plan), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "count 100, 101 of them left out"));
	parts[0] = (struct ferry_program_part){a, UINT64_MAX, 2};
	assert_parts_refused(parts, 1, "has 2 from 18446744073709551615: they are not there");
	parts[0] = parts[1] = (struct ferry_program_part){variable, 0, 0};
	assert_parts_refused(parts, 2, "an alltoallv in 2 parts");
	assert_parts_refused(parts, 0, "a call of 100 elements in no part");
	ferry_program_free(a);
	ferry_program_free(b);
	ferry_program_free(sum);
	ferry_program_free(variable);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_thousand_random_programs_with_puts_are_right),
	        cmocka_unit_test(a_ring_compiles_to_puts_behind_what_brings_and_a_land_for_each),
	        cmocka_unit_test(puts_go_whole_and_what_is_forwarded_in_slices),
	        cmocka_unit_test(puts_through_one_port_take_turns),
	        cmocka_unit_test(premulsum_refuses_a_put_of_what_nothing_scales),
	        cmocka_unit_test(a_plan_that_is_changed_is_refused),
	        cmocka_unit_test(calls_in_parts_are_right),
	        cmocka_unit_test(calls_that_leave_something_out_are_right),
	        cmocka_unit_test(a_call_in_one_part_has_the_plan_of_its_program),
	        cmocka_unit_test(parts_have_the_slices_that_the_windows_need),
	        cmocka_unit_test(a_small_part_of_the_host_leaves_puts_long_slices),
	        cmocka_unit_test(parts_that_do_not_make_a_call_are_refused),
	};
	if (argc > 1)
		first_seed = strtoull(argv[1], NULL, 10);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
