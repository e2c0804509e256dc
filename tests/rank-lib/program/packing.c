/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what is packed into links: trees of all ranks, no more on a link than their time lets it carry, as fast
 * as no program can beat, on every allocation of a DGX-1 and on machines whose links share ports.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/program.h"
#include "rank-lib/program/synth/cuts.h"
#include "rank-lib/program/synth/packing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ferry_links links_of(const char *text, uint32_t nranks)
{
	struct ferry_host_links machine;
	struct ferry_links links;
	if (ferry_host_links_parse("links", text, &machine) ||
	    ferry_host_links_place("links", &machine, nranks, &links))
		fail_msg("%s", ferry_last_message());
	return links;
}

/* Each tree leads from all ranks to its root, and what links carry, counted here anew, takes no longer than it says. */
static void assert_trees(const char *text, const struct ferry_links *links, const struct ferry_packing *packing)
{
	static double load[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	uint32_t n = packing->nranks;
	memset(load, 0, sizeof load);
	for (uint32_t tree = 0; tree < packing->ntrees; tree++)
		for (uint32_t rank = 0; rank < n; rank++) {
			uint32_t at = rank, hops = 0, parent = packing->parent[tree][rank];
			while (at != packing->root[tree] && hops++ < n)
				at = packing->parent[tree][at];
			if (hops > n || parent >= n)
				fail_msg("%s: rank %u is not in tree %u", text, rank, tree);
			if (parent != rank) {
				load[rank][parent] += 1.0 / packing->ntrees;
				load[parent][rank] += 1.0 / packing->ntrees;
			}
		}
	for (uint32_t a = 0; a < n; a++)
		for (uint32_t b = 0; b < n; b++)
			if (load[a][b] > links->speed[a][b] * packing->time * (1 + 1e-5))
				fail_msg("%s: from %u to %u %g of a block", text, a, b, load[a][b]);
}

static void assert_packed(const char *text, uint32_t nranks, double least)
{
	struct ferry_links links = links_of(text, nranks);
	struct ferry_packing packing;
	double bound = ferry_cut_reduce_time(&links, nranks);
	if (!ferry_packing_find(&links, nranks, &packing))
		fail_msg("%s: no trees", text);
	assert_true(packing.ntrees && packing.ntrees <= FERRY_MOST_TREES);
	assert_trees(text, &links, &packing);
	if (packing.time < bound * 0.999 || packing.time > bound / least)
		fail_msg("%s: %g ns a byte, no less than %g are possible", text, packing.time, bound);
}

static void every_allocation_of_a_dgx1_is_packed_as_full_as_its_partitions_allow(void **state)
{
	(void)state;
	static const char *const machines[] = {"dgx1v", "dgx1p"};
	uint32_t connected = 0;
	for (uint32_t i = 0; i < 2; i++)
		for (uint32_t set = 0; set < 256; set++) {
			uint32_t nranks = (uint32_t)__builtin_popcount(set);
			char text[64];
			if (nranks < 3)
				continue;
			int length = snprintf(text, sizeof text, "links=%s:1,devices=", machines[i]);
			for (uint32_t left = set; left; left &= left - 1)
				length += snprintf(text + length, sizeof text - (size_t)length, "%s%d",
				                   left == set ? "" : ",", __builtin_ctz(left));
			struct ferry_links links = links_of(text, nranks);
			struct ferry_packing packing;
			if (ferry_cut_reduce_time(&links, nranks) == INFINITY) {
				assert_false(ferry_packing_find(&links, nranks, &packing));
				continue;
			}
			assert_packed(text, nranks, 0.98);
			connected++;
		}
	assert_int_equal(connected, 362);
}

/* Optima that were computed by other means: linear programs, and ports' arithmetic. */
static void rates_are_those_that_are_known(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		uint32_t nranks;
		double rate;
	} known[] = {{"links=dgx1v:1", 8, 24.0 / 7},
	             {"links=dgx1v:1,devices=0,2,3", 3, 2.5},
	             {"links=dgx1v:1,devices=0,3,4,7", 4, 7.0 / 3},
	             {"links=dgx1v:1,devices=0,2,3,4,6,7", 6, 2.8},
	             {"links=dgx1p:1,devices=0,1,4,5", 4, 4.0 / 3},
	             {"links=bridges:52:25", 4, 50},
	             {"links=bridges:52:25", 8, 100.0 / 3},
	             {"links=mesh:25", 4, 50},
	             {"links=nvswitch:450", 8, 1800.0 / 7},
	             {"links=pcie2:12:6:20", 8, 48.0 / 7}};
	for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
		struct ferry_links links = links_of(known[i].text, known[i].nranks);
		double rate = 1 / ferry_cut_reduce_time(&links, known[i].nranks);
		if (fabs(rate / known[i].rate - 1) > 1e-5)
			fail_msg("%s: %g, not %g", known[i].text, rate, known[i].rate);
		assert_packed(known[i].text, known[i].nranks, 0.97);
	}
	assert_packed("links=mesh:1", 16, 0.97);
	assert_packed("links=nvswitch:450", 16, 0.97);
	assert_packed("links=nvswitch:450", 64, 0.9);
}

/* On full meshes and behind a switch a chunk goes up and down one hop, or two. */
static void trees_are_least_deep(void **state)
{
	(void)state;
	struct ferry_packing packing;
	struct ferry_links links = links_of("links=nvswitch:450", 2);
	assert_true(ferry_packing_find(&links, 2, &packing));
	assert_int_equal(packing.ntrees, 1);
	links = links_of("peer@0-1=1,peer@1-2=1,peer@2-3=1,peer@3-4=1", 5);
	assert_true(ferry_packing_find(&links, 5, &packing));
	assert_int_equal(packing.root[0], 2);
	assert_false(ferry_packing_find(&links, 6, &packing));
}

static void what_is_moved_is_as_fast_as_cuts_allow_where_ports_are_shared(void **state)
{
	(void)state;
	static const char *const machines[] = {"links=bridges:52:25", "links=pcie2:12:6:20", "links=pcie2:24:24:20",
	                                       "links=mesh:25", "links=nvswitch:450"};
	static const enum ferry_collective moved[] = {FERRY_ALLGATHER, FERRY_BROADCAST};
	for (size_t i = 0; i < 5; i++)
		for (uint32_t nranks = 4; nranks <= 8; nranks += 4)
			for (size_t k = 0; k < 2; k++) {
				struct ferry_links links = links_of(machines[i], nranks);
				struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
				struct ferry_program *program = NULL;
				if (ferry_program_synthesize_peer(moved[k], &topology, &links, 1, &program))
					fail_msg("%s: %s", machines[i], ferry_last_message());
				double time = ferry_program_peer_time(program, &links);
				double least = ferry_cut_spread_time(&links, nranks,
				                                     k ? 2 : ferry_rankset_all(nranks));
				if (time > least / 0.98 || time < least * 0.999)
					fail_msg("%s, %u ranks: %g, not %g", machines[i], nranks, time, least);
				ferry_program_free(program);
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_allocation_of_a_dgx1_is_packed_as_full_as_its_partitions_allow),
	        cmocka_unit_test(rates_are_those_that_are_known),
	        cmocka_unit_test(trees_are_least_deep),
	        cmocka_unit_test(what_is_moved_is_as_fast_as_cuts_allow_where_ports_are_shared),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
