/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/topology_tree.h"

#include <math.h>
#include <string.h>

#define SOCKETS 20.0 /* GB/s between two CPUs, each way */

enum way { UP, DOWN };

/* The shared links that have been given out so far. */
struct linker {
	struct ferry_topology_tree *tree;
	struct ferry_links *links;
	uint32_t nshared;
	uint8_t of_node[FERRY_MOST_TREE_NODES][2];      /* by node and way: the link to its parent; 0xff: none yet */
	uint8_t of_cpus[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to: by the first GPUs below the CPUs */
};

static void count_gpus(struct ferry_topology_tree *tree)
{
	for (uint32_t gpu = 0; gpu < tree->ngpus; gpu++)
		for (uint32_t node = tree->gpu[gpu]; node != FERRY_NO_NODE; node = tree->nodes[node].parent)
			tree->nodes[node].ngpus++;
}

static uint32_t cpu_of(const struct ferry_topology_tree *tree, uint32_t node)
{
	while (tree->nodes[node].parent != FERRY_NO_NODE)
		node = tree->nodes[node].parent;
	return node;
}

static uint32_t first_gpu(const struct ferry_topology_tree *tree, uint32_t cpu)
{
	uint32_t gpu = 0;
	while (cpu_of(tree, tree->gpu[gpu]) != cpu)
		gpu++;
	return gpu;
}

/* Leads the link from `from` to `to` through a shared link, which gets its number here if it is new. */
static bool share(struct linker *linker, uint32_t from, uint32_t to, uint8_t *shared, double speed)
{
	struct ferry_links *links = linker->links;
	if (*shared == 0xff) {
		if (linker->nshared == FERRY_MAX_SHARED_LINKS)
			return false;
		*shared = (uint8_t)linker->nshared++;
		links->shared[*shared] = (float)speed;
	}
	links->through[from][to] |= 1ull << *shared;
	links->speed[from][to] = fminf(links->speed[from][to], links->shared[*shared]);
	return true;
}

/* Shares the links from a node up to `above`. Bridges in a row with the same GPUs below are one link, the slowest. */
static bool climb(struct linker *linker, uint32_t from, uint32_t to, uint32_t node, uint32_t above, enum way way)
{
	const struct ferry_tree_node *nodes = linker->tree->nodes;
	while (node != above) {
		double speed = nodes[node].up;
		uint32_t first = node;
		for (node = nodes[node].parent; node != above && nodes[node].ngpus == nodes[first].ngpus;
		     node = nodes[node].parent)
			speed = fmin(speed, nodes[node].up);
		if (!share(linker, from, to, &linker->of_node[first][way], speed))
			return false;
	}
	return true;
}

/* Returns the lowest node above both; FERRY_NO_NODE if they are below different CPUs. */
static uint32_t find_above(const struct ferry_topology_tree *tree, uint32_t a, uint32_t b)
{
	while (a != b && a != FERRY_NO_NODE && b != FERRY_NO_NODE) /* parents come first, so the later one is lower */
		if (a > b)
			a = tree->nodes[a].parent;
		else
			b = tree->nodes[b].parent;
	return a == b ? a : FERRY_NO_NODE;
}

static bool link_by_pcie(struct linker *linker, uint32_t from, uint32_t to)
{
	const struct ferry_topology_tree *tree = linker->tree;
	uint32_t a = tree->gpu[from], b = tree->gpu[to], above = find_above(tree, a, b);
	uint32_t top_a = above == FERRY_NO_NODE ? cpu_of(tree, a) : above;
	uint32_t top_b = above == FERRY_NO_NODE ? cpu_of(tree, b) : above;
	linker->links->speed[from][to] = INFINITY;
	return climb(linker, from, to, a, top_a, UP) && climb(linker, from, to, b, top_b, DOWN) &&
	       (top_a == top_b ||
	        share(linker, from, to, &linker->of_cpus[first_gpu(tree, top_a)][first_gpu(tree, top_b)], SOCKETS));
}

bool ferry_topology_tree_link(struct ferry_topology_tree *tree, struct ferry_host_links *machine)
{
	*machine = (struct ferry_host_links){.peers = true, .ndevices = tree->ngpus};
	struct linker linker = {.tree = tree, .links = &machine->links};
	memset(linker.of_node, 0xff, sizeof linker.of_node);
	memset(linker.of_cpus, 0xff, sizeof linker.of_cpus);
	count_gpus(tree);
	for (uint32_t from = 0; from < tree->ngpus; from++)
		for (uint32_t to = 0; to < tree->ngpus; to++) {
			double both = fmin(tree->nvswitch[from], tree->nvswitch[to]);
			if (from == to)
				continue;
			if (tree->nvlink[from][to] > 0)
				machine->links.speed[from][to] = (float)tree->nvlink[from][to];
			else if (both > 0)
				machine->links.speed[from][to] = (float)both;
			else if (!link_by_pcie(&linker, from, to))
				return false;
			if (both > 0)
				machine->links.port[from] = (float)tree->nvswitch[from];
		}
	return true;
}
