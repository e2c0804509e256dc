/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of programs of PUTs: right for every collective that only moves data, on any links, with every chunk written
 * once; and as fast as arithmetic allows on machines that there are.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/gpu_links.h"
#include "ipc/rankset.h"
#include "rank-lib/program/synth/cuts.h"
#include "tests/rank-lib/program/program_cases.h"
#include "tests/rank-lib/program/program_execution.h"
#include "tests/rank-lib/program/program_interpreter.h"
#include "tests/sanitized.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const enum ferry_collective moving[] = {FERRY_ALLGATHER, FERRY_BROADCAST, FERRY_GATHER,   FERRY_SCATTER,
                                               FERRY_ALLTOALL,  FERRY_ALLTOALLV, FERRY_SENDRECV};
#define MOVING (sizeof moving / sizeof *moving)

static void fail_on(const struct ferry_program *program, const char *reason)
{
	fail_msg("%s of %u ranks, root %u, %u chunks, %u statements: %s", ferry_collective_name(program->collective),
	         program->nranks, program->root, program->nchunks, program->nstatements, reason);
}

static uint64_t seed = 7;

/* It passes the checker, both readings of the language run it right, and it pushes where there are links alone. */
static void assert_right(const struct ferry_program *program, const struct ferry_links *links)
{
	char reason[256];
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (statement->opcode == FERRY_PUT && !(links->speed[statement->rank][statement->peer] > 0))
			fail_on(program, "a PUT where there is no link");
	}
	if (ferry_program_check(program))
		fail_on(program, ferry_last_message());
	if (!interpret_program(program, draw_below(&seed, 50), draw(&seed), reason) ||
	    !compile_and_execute(program, draw(&seed), reason))
		fail_on(program, reason);
}

/* ---- machines ---- */

static struct ferry_links links_of(const char *text, uint32_t nranks)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	if (ferry_host_links_parse("links", text, &machine) ||
	    ferry_host_links_place("links", &machine, nranks, &links))
		fail_msg("%s", ferry_last_message());
	return links;
}

static struct ferry_program *synthesize(enum ferry_collective collective, const struct ferry_topology *topology,
                                        const struct ferry_links *links, uint32_t root)
{
	struct ferry_program *program = NULL;
	if (ferry_program_synthesize_peer(collective, topology, links, root, &program))
		fail_msg("%s of %u ranks: %s", ferry_collective_name(collective), topology->nranks,
		         ferry_last_message());
	return program;
}

static void every_collective_is_right_on_all_links(const char *text, uint32_t nranks)
{
	struct ferry_links links = links_of(text, nranks);
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 2};
	for (uint32_t rank = 0; rank < nranks; rank++)
		topology.rank_domain[rank] = rank >= nranks / 2;
	for (size_t i = 0; i < MOVING; i++)
		for (uint32_t root = 0; root < nranks; root += ferry_collective_has_root(moving[i]) ? 1 : nranks) {
			if (moving[i] == FERRY_SENDRECV && nranks != 2)
				continue;
			struct ferry_program *program = synthesize(moving[i], &topology, &links, root);
			assert_right(program, &links);
			ferry_program_free(program);
		}
	static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};
	for (size_t i = 0; i < 3 && ferry_cut_reduce_time(&links, nranks) < INFINITY; i++) {
		struct ferry_program *program = synthesize(sums[i], &topology, &links, nranks - 1);
		assert_right(program, &links);
		ferry_program_free(program);
	}
}

static void machines_of_two_to_64_ranks_get_right_programs(void **state)
{
	(void)state;
	for (uint32_t nranks = 2; nranks <= 8; nranks += REPEATS(1, 6)) {
		every_collective_is_right_on_all_links("links=nvswitch:450", nranks);
		every_collective_is_right_on_all_links("links=pcie2:12:6", nranks);
		every_collective_is_right_on_all_links("links=dgx1v:25", nranks);
		every_collective_is_right_on_all_links("peer=10", nranks);
	}
	every_collective_is_right_on_all_links("links=nvswitch:450", 16);
}

static void the_largest_machines_get_right_programs(void **state)
{
	(void)state;
	struct ferry_topology topology = {.nranks = 64, .ndomains = 8};
	for (uint32_t rank = 0; rank < 64; rank++)
		topology.rank_domain[rank] = (uint8_t)(rank / 8);
	static const char *const machines[] = {"links=nvswitch:450", "peer=10,peer@0-1=0,port=30"};
	for (size_t m = 0; m < REPEATS(2, 1); m++) {
		struct ferry_links links = links_of(machines[m], 64);
		for (size_t i = 0; i + 1 < MOVING; i++) {
			struct ferry_program *program = synthesize(moving[i], &topology, &links, 63);
			assert_right(program, &links);
			ferry_program_free(program);
		}
	}
}

/* One way, in islands, some ranks alone. */
static void random_links_get_right_programs(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 600; i += REPEATS(1, 8)) {
		enum ferry_collective collective = moving[i % MOVING];
		struct ferry_topology topology = random_topology(&seed, i < 500 ? 8 : 20, 8);
		topology.nranks = collective == FERRY_SENDRECV ? 2 : topology.nranks;
		uint32_t n = topology.nranks, density = draw_below(&seed, 100);
		struct ferry_links links = {0};
		for (uint32_t from = 0; from < n; from++) {
			links.port[from] = draw_below(&seed, 3) ? 0 : (float)draw_below(&seed, 40);
			for (uint32_t to = 0; to < n; to++)
				if (from != to && draw_below(&seed, 100) < density)
					links.speed[from][to] = (float)(1 + draw_below(&seed, 20));
		}
		struct ferry_program *program = NULL;
		ferryResult_t result = ferry_program_synthesize_peer(collective, &topology, &links,
		                                                     draw_below(&seed, n), &program);
		bool any = false;
		for (uint32_t from = 0; from < n; from++)
			for (uint32_t to = 0; to < n; to++)
				any |= links.speed[from][to] > 0;
		assert_int_equal(result, any ? ferrySuccess : ferryInvalidUsage);
		if (result)
			continue;
		assert_right(program, &links);
		ferry_program_free(program);
	}
}

static void what_puts_cannot_do_is_refused_with_the_reason(void **state)
{
	(void)state;
	struct ferry_topology topology = {.nranks = 4, .ndomains = 1};
	struct ferry_links links = links_of("peer=10", 4), none = {0};
	struct ferry_program *program = NULL;
	assert_int_equal(ferry_program_synthesize_peer(FERRY_ALLGATHER, &topology, &none, 0, &program),
	                 ferryInvalidUsage);
	assert_non_null(strstr(ferry_last_message(), "none of the 4 ranks' devices reaches another"));
	assert_int_equal(ferry_program_synthesize_peer(FERRY_BROADCAST, &topology, &links, 4, &program),
	                 ferryInvalidArgument);
	assert_null(program);
}

/* ---- speed, by arithmetic ---- */

/* A time of a program by ferry_program_peer_time, nanoseconds per byte of a block. */
static void assert_takes(enum ferry_collective collective, const char *machine, uint32_t nranks, double time)
{
	struct ferry_links links = links_of(machine, nranks);
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
	struct ferry_program *program = synthesize(collective, &topology, &links, 0);
	double taken = ferry_program_peer_time(program, &links);
	if (taken < time * 0.999 || taken > time * 1.021) {
		char reason[128];
		snprintf(reason, sizeof reason, "%s: %.5f ns a byte, by arithmetic %.5f", machine, taken, time);
		fail_on(program, reason);
	}
	ferry_program_free(program);
}

/* Speeds in GB/s are bytes per nanosecond. */
static void programs_take_what_machines_allow(void **state)
{
	(void)state;
	/* An NVSwitch: a device sends its block to 7 others through its port; what it broadcasts, once. */
	assert_takes(FERRY_ALLGATHER, "links=nvswitch:450", 8, 7 / 450.0);
	assert_takes(FERRY_ALLTOALL, "links=nvswitch:450", 8, 7 / 450.0);
	assert_takes(FERRY_SCATTER, "links=nvswitch:450", 8, 7 / 450.0);
	assert_takes(FERRY_GATHER, "links=nvswitch:450", 8, 1 / 450.0);
	assert_takes(FERRY_BROADCAST, "links=nvswitch:450", 8, 1 / 450.0);
	assert_takes(FERRY_BROADCAST, "links=nvswitch:450", 64, 1 / 450.0);
	assert_takes(FERRY_SENDRECV, "links=nvswitch:450", 2, 1 / 450.0);
	/* A DGX-1V: 7 blocks come in over six NVLinks; what is broadcast goes out over six. */
	assert_takes(FERRY_ALLGATHER, "links=dgx1v:25", 8, 7 / 150.0);
	assert_takes(FERRY_BROADCAST, "links=dgx1v:25", 8, 1 / 150.0);
	/* Each device pushes directly to its four neighbours, over one NVLink to two of them. */
	assert_takes(FERRY_ALLTOALL, "links=dgx1v:25", 8, 1 / 25.0);
	/* Devices 0 to 3 alone: rank 0 has four NVLinks there. A line 1 - 0 - 4: two blocks come over one. */
	assert_takes(FERRY_ALLGATHER, "links=dgx1v:25", 4, 3 / 100.0);
	assert_takes(FERRY_ALLGATHER, "links=dgx1v:25,devices=1,0,4", 3, 2 / 25.0);
	/* PCIe: all goes out of one port. Each pair of devices of two sockets has a link of its own, for one block. */
	assert_takes(FERRY_ALLGATHER, "links=pcie2:12:6", 8, 7 / 12.0);
	assert_takes(FERRY_ALLTOALL, "links=pcie2:12:6", 8, 7 / 12.0);
	assert_takes(FERRY_ALLTOALL, "links=pcie2:12:1", 8, 1 / 1.0);
	assert_takes(FERRY_ALLGATHER, "links=pcie2:12:1", 8, 7 / 12.0);
	/* Sums up and down trees (packing.c has all allocations). */
	assert_takes(FERRY_ALLREDUCE, "links=dgx1v:25", 8, 7 / 600.0);
	assert_takes(FERRY_ALLREDUCE, "links=nvswitch:450", 8, 14 / 8.0 / 450);
	assert_takes(FERRY_ALLREDUCE, "links=bridges:52:25", 4, 1 / 50.0);
	assert_takes(FERRY_REDUCESCATTER, "links=bridges:52:25", 4, 4 / 100.0);
	assert_takes(FERRY_REDUCESCATTER, "links=dgx1v:25", 8, 7 / 150.0);
	assert_takes(FERRY_REDUCESCATTER, "links=nvswitch:450", 8, 7 / 450.0);
	assert_takes(FERRY_REDUCE_TO_ROOT, "links=dgx1v:25", 8, 1 / 150.0);
	/* Links alone: the root's seven send a seventh each, the others hand it on. */
	assert_takes(FERRY_BROADCAST, "peer=10", 8, 1 / 70.0);
	assert_takes(FERRY_ALLGATHER, "peer=10,port=35", 8, 7 / 35.0);
	assert_takes(FERRY_ALLGATHER, "peer=10,port=35,peer@0-1=0", 8, 7 / 35.0);
}

/* Parts of a port's speed, measured; 0: not. */
struct crossing {
	double pair, all;
};

/* As routers find that machine: so many NVLinks where nothing is shared, of `nvlink` GB/s each; the rest is PCIe. */
static struct ferry_links links_of_gpus(const struct ferry_links *machine, uint32_t nranks, double nvlink, bool nodes,
                                        struct crossing crossing)
{
	struct ferry_gpu_reach found = {.across = (float)crossing.pair, .crossing = (float)crossing.all};
	struct ferry_links links;
	for (uint32_t from = 0; from < nranks; from++) {
		found.node[from] = nodes && from >= nranks / 2;
		for (uint32_t to = 0; to < nranks; to++) {
			double speed = machine->speed[from][to];
			found.reach[from] |= (uint64_t)(speed > 0) << to;
			found.nvlinks[from][to] = nvlink > 0 && !machine->through[from][to]
			                                  ? (uint8_t)lround(speed / nvlink)
			                                  : FERRY_NVLINKS_NONE;
		}
	}
	ferry_gpu_links_make(&found, nranks, &links);
	return links;
}

/* What GPUs with these links take of the best time that their real speeds allow, of AllGather and from every root. */
static double part_of_gpus(const char *text, uint32_t nranks, double nvlink, bool nodes, struct crossing crossing)
{
	struct ferry_links machine = links_of(text, nranks);
	struct ferry_links links = links_of_gpus(&machine, nranks, nvlink, nodes, crossing);
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
	double least = 1;
	for (uint32_t root = 0; root <= nranks; root++) {
		bool all = root == nranks;
		struct ferry_program *program =
		        synthesize(all ? FERRY_ALLGATHER : FERRY_BROADCAST, &topology, &links, all ? 0 : root);
		double best = ferry_cut_spread_time(&machine, nranks, all ? ferry_rankset_all(nranks) : 1ull << root);
		least = fmin(least, best / ferry_program_peer_time(program, &machine));
		ferry_program_free(program);
	}
	return least;
}

static void gpus_get_98_percent_of_what_their_links_allow(void **state)
{
	static const struct {
		const char *links;
		uint32_t nranks;
		double nvlink; /* GB/s of one; 0: there is none */
		bool nodes;
	} machines[] = {{"links=dgx1v:25", 8, 25, true},      {"links=dgx1p:20", 8, 20, true},
	                {"links=bridges:56:24", 4, 14, false}, {"links=bridges:56:24", 8, 14, false},
	                {"links=bridges:300:24", 8, 25, false}, {"links=bridges:450:50", 8, 25, false},
	                {"links=bridges:50:12", 4, 25, false}, {"links=mesh:50", 4, 25, false},
	                {"links=pcie2:24", 8, 0, false},      {"links=pcie2:24:20:40", 8, 0, true},
	                {"links=pcie2:12:6", 8, 0, true}};
	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		double part = part_of_gpus(machines[i].links, machines[i].nranks, machines[i].nvlink,
		                           machines[i].nodes, (struct crossing){0, 0});
		if (!(part >= 0.98))
			fail_msg("%s of %u: %.3f of the optimum", machines[i].links, machines[i].nranks, part);
	}
}

/* Two sockets, whose link is slower than a port: what ferry-perf limits has measured of it makes up for the guess. */
static void measured_crossings_give_97_percent_of_what_sockets_allow(void **state)
{
	static const struct {
		const char *links;
		struct crossing crossing; /* 2% off */
		double guessed;           /* the most that it gets without */
	} machines[] = {{"links=pcie2:24:20:20", {0.82, 0.85}, 0.84},  {"links=pcie2:24:10:10", {0.41, 0.425}, 0.58},
	                {"links=pcie2:24:20:40", {0.82, 1.63}, 1},     {"links=pcie2:50:12:12", {0.235, 0.245}, 0.58},
	                {"links=pcie2:24:7.2:28.8", {0.294, 1.21}, 1}, {"links=pcie2:24:24:50", {0.98, 2.06}, 1}};
	(void)state;
	for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
		double guessed = part_of_gpus(machines[i].links, 8, 0, true, (struct crossing){0, 0});
		double part = part_of_gpus(machines[i].links, 8, 0, true, machines[i].crossing);
		if (!(part >= 0.97) || guessed > machines[i].guessed)
			fail_msg("%s: %.3f of the optimum, %.3f as guessed", machines[i].links, part, guessed);
	}
}

/* The most pushes that a chunk of the root's goes through. */
static uint32_t broadcast_depth(const char *machine, uint32_t nranks)
{
	struct ferry_links links = links_of(machine, nranks);
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
	struct ferry_program *program = synthesize(FERRY_BROADCAST, &topology, &links, 0);
	uint32_t deepest = 0;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		uint32_t depth = 1;
		for (uint32_t k = 0; statement->forwards && k < program->nstatements; k++)
			if (program->statements[k].peer == statement->rank &&
			    program->statements[k].peer_gpu == statement->gpu) {
				statement = &program->statements[k];
				depth++;
				k = UINT32_MAX; /* whence that came */
			}
		deepest = depth > deepest ? depth : deepest;
	}
	ferry_program_free(program);
	return deepest;
}

static void what_is_broadcast_goes_by_few_hops_where_all_are_linked(void **state)
{
	(void)state;
	assert_int_equal(broadcast_depth("links=nvswitch:450", 2), 1);
	assert_int_equal(broadcast_depth("links=nvswitch:450", 8), 2);
	assert_true(broadcast_depth("links=nvswitch:450", 64) <= 6);
	assert_int_equal(broadcast_depth("links=pcie2:12:6", 8), 2);
	assert_int_equal(broadcast_depth("peer=10", 8), 2);
}

static uint32_t count(const struct ferry_program *program, uint8_t opcode)
{
	uint32_t found = 0;
	for (uint32_t i = 0; i < program->nstatements; i++)
		found += program->statements[i].opcode == opcode;
	return found;
}

static void islands_get_each_block_through_the_host_once(void **state)
{
	(void)state;
	struct ferry_topology topology = {.nranks = 8, .ndomains = 2, .rank_domain = {0, 0, 0, 0, 1, 1, 1, 1}};
	struct ferry_links links = links_of("links=pcie2:12", 8);
	for (uint32_t a = 0; a < 4; a++)
		for (uint32_t b = 4; b < 8; b++)
			links.speed[a][b] = links.speed[b][a] = 0;
	struct ferry_program *program = synthesize(FERRY_ALLGATHER, &topology, &links, 0);
	assert_right(program, &links);
	assert_int_equal(count(program, FERRY_D2H), 8 * program->nchunks);
	assert_int_equal(count(program, FERRY_H2D), 8 * program->nchunks);
	assert_int_equal(count(program, FERRY_PUT), (8 * 7 - 8) * program->nchunks);
	uint32_t landed[8] = {0};
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (program->statements[i].opcode == FERRY_H2D)
			landed[program->statements[i].rank]++;
	for (uint32_t rank = 0; rank < 8; rank++)
		assert_int_equal(landed[rank], program->nchunks);
	ferry_program_free(program);
}

/*
 * Whatever comes into a set of ranks comes over the links into it: the least time of any program, by all sets. 0 where
 * a set has no link.
 */
static double cut_time(enum ferry_collective collective, const struct ferry_links *links, uint32_t n, uint32_t root)
{
	double least = 0;
	for (uint32_t set = 1; set + 1 < 1u << n; set++) {
		double comes = 0,
		       lacks = collective == FERRY_ALLGATHER ? n - __builtin_popcount(set) : !(set >> root & 1);
		for (uint32_t from = 0; from < n; from++)
			for (uint32_t to = 0; to < n; to++)
				comes += set >> to & ~(set >> from) & 1 ? links->speed[from][to] : 0;
		if (comes == 0)
			return 0;
		least = lacks / comes > least ? lacks / comes : least;
	}
	return least;
}

static void assert_takes_what_links_allow(const char *machine, uint32_t n, uint32_t *connected)
{
	struct ferry_links links = links_of(machine, n);
	struct ferry_topology topology = {.nranks = n, .ndomains = 1};
	*connected += cut_time(FERRY_ALLGATHER, &links, n, 0) > 0;
	for (size_t i = 0; i < 2; i++)
		for (uint32_t root = 0; root < (moving[i] == FERRY_BROADCAST ? n : 1); root++) {
			double least = cut_time(moving[i], &links, n, root);
			struct ferry_program *program = synthesize(moving[i], &topology, &links, root);
			if (least > 0 && ferry_program_peer_time(program, &links) > least * 1.021)
				fail_on(program, machine);
			ferry_program_free(program);
		}
}

/* As jobs get them: three to seven of the eight, not all of them connected. Numbers are for the plain build. */
static void every_subset_of_a_dgx1v_gets_right_programs_as_fast_as_its_links(void **state)
{
	(void)state;
	uint32_t connected = 0;
	for (uint32_t set = 0; set < 256; set += REPEATS(1, 29)) {
		uint32_t nranks = (uint32_t)__builtin_popcount(set);
		char text[64] = "links=dgx1v:25,devices";
		if (nranks < 3 || nranks > 7)
			continue;
		for (uint32_t device = 0, first = 1; device < 8; device++)
			if (set >> device & 1) {
				snprintf(text + strlen(text), 8, "%c%u", first ? '=' : ',', device);
				first = 0;
			}
		every_collective_is_right_on_all_links(text, nranks);
		assert_takes_what_links_allow(text, nranks, &connected);
	}
	assert_true(SANITIZED || connected == 180);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(machines_of_two_to_64_ranks_get_right_programs),
	        cmocka_unit_test(the_largest_machines_get_right_programs),
	        cmocka_unit_test(programs_take_what_machines_allow),
	        cmocka_unit_test(gpus_get_98_percent_of_what_their_links_allow),
	        cmocka_unit_test(measured_crossings_give_97_percent_of_what_sockets_allow),
	        cmocka_unit_test(what_is_broadcast_goes_by_few_hops_where_all_are_linked),
	        cmocka_unit_test(islands_get_each_block_through_the_host_once),
	        cmocka_unit_test(every_subset_of_a_dgx1v_gets_right_programs_as_fast_as_its_links),
	        cmocka_unit_test(random_links_get_right_programs),
	        cmocka_unit_test(what_puts_cannot_do_is_refused_with_the_reason),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
