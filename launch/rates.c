/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/rates.h"

#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/synth/cuts.h"
#include "rank-lib/program/synth/packing.h"
#include "rank-lib/program/synth/routes.h"

#include <math.h>

/* Returns the time of the synthesizer's program, in nanoseconds per byte of a block. */
static ferryResult_t find_time(enum ferry_collective collective, const struct ferry_links *links, uint32_t nranks,
                               uint32_t root, double *time)
{
	struct ferry_topology topology = {.nranks = nranks, .ndomains = 1};
	struct ferry_program *program = NULL;
	ferryResult_t result = ferry_program_synthesize_peer(collective, &topology, links, root, &program);
	if (result)
		return result;
	*time = ferry_program_peer_time(program, links);
	ferry_program_free(program);
	return ferrySuccess;
}

/* Returns the time of all blocks round the best rings; INFINITY: there are none. */
static double find_ring_time(const struct ferry_links *links, uint32_t nranks, uint64_t sources)
{
	struct ferry_ring_path rings[FERRY_MOST_RINGS];
	struct ferry_routes routes;
	uint32_t nrings = ferry_rings_find(links, nranks, rings);
	if (!nrings || !ferry_routes_begin(&routes, links, nranks, sources, 24))
		return INFINITY;
	ferry_routes_go_round(&routes, rings, nrings);
	double time = ferry_load_time(&routes.load);
	ferry_routes_free(&routes);
	return time;
}

static void print_row(FILE *out, const char *name, double best, double ours, double rings, double one_root)
{
	char by_rings[32] = "none", by_root[32] = "";
	if (rings > 0)
		snprintf(by_rings, sizeof by_rings, "%.4g", rings);
	if (one_root > 0)
		snprintf(by_root, sizeof by_root, "%.4g", one_root);
	fprintf(out, "| %-14s | %8.4g | %8.4g | %5.3f | %8s | %8s |\n", name, best, ours, ours / best, by_rings,
	        by_root);
}

/* Gives ports without a speed that of their links together, as rings and routes need one. */
static void fill_ports(struct ferry_links *links, uint32_t nranks)
{
	for (uint32_t from = 0; from < nranks; from++) {
		float sum = 0;
		for (uint32_t to = 0; to < nranks; to++)
			sum += links->speed[from][to];
		links->port[from] = links->port[from] > 0 ? fminf(links->port[from], sum) : sum;
	}
}

/*
 * For the root at which Ferry is furthest from the optimum. *blink: the rate of the best root, which Blink's trees
 * have.
 */
static ferryResult_t print_broadcast(FILE *out, const struct ferry_links *links, uint32_t nranks, double *blink)
{
	double best = 0, time = 0, most = INFINITY, ratio = 0;
	for (uint32_t root = 0; root < nranks; root++) {
		double cut = ferry_cut_spread_time(links, nranks, 1ull << root), taken;
		ferryResult_t result = find_time(FERRY_BROADCAST, links, nranks, root, &taken);
		if (result)
			return result;
		most = fmin(most, cut);
		if (taken / cut <= ratio)
			continue;
		ratio = taken / cut;
		best = cut;
		time = taken;
	}
	double ring = find_ring_time(links, nranks, 1);
	*blink = 1 / most;
	print_row(out, "Broadcast", 1 / best, 1 / time, 1 / ring, 1 / best);
	return ferrySuccess;
}

ferryResult_t ferry_rates_print(const char *name, const struct ferry_host_links *machine, uint32_t nranks, FILE *out)
{
	struct ferry_links links;
	struct ferry_packing packing;
	uint32_t has = machine->nplaced ? machine->nplaced : machine->ndevices;
	uint32_t n = nranks ? nranks : has;
	if (!nranks && n == FERRY_MAX_RANKS)
		return ferry_fail(ferryInvalidUsage, "%s: for how many ranks? --ranks N", name);
	ferryResult_t result = ferry_host_links_place(name, machine, n, &links);
	if (result)
		return result;
	fill_ports(&links, n);
	uint64_t all = ferry_rankset_all(n);
	double gather = ferry_cut_spread_time(&links, n, all), taken, blink = 0;
	if (n < 2 || gather == INFINITY || !ferry_packing_find(&links, n, &packing))
		return ferry_fail(ferryInvalidUsage, "%s: its links do not connect the %u ranks", name, n);
	fprintf(out, "| GB/s, %2u ranks | optimum  | trees    | ratio | rings    | one root |\n", n);
	fprintf(out, "| --- | --- | --- | --- | --- | --- |\n");
	if ((result = print_broadcast(out, &links, n, &blink)) ||
	    (result = find_time(FERRY_ALLGATHER, &links, n, 0, &taken)))
		return result;
	double ring = n / find_ring_time(&links, n, all);
	print_row(out, "AllGather", n / gather, n / taken, ring, blink);
	print_row(out, "AllReduce", 1 / ferry_cut_reduce_time(&links, n), 1 / packing.time, ring / 2, 0);
	fprintf(out, "AllReduce in %u trees.\n", packing.ntrees);
	return ferrySuccess;
}
