/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/gpu_links.h"

#include <math.h>
#include <string.h>

/* Speeds in NVLinks. A PCIe port is as fast as 0.5 to 2 NVLinks; programs come out the same for any of these. */
#define PORT    1.0f
#define UNKNOWN 2.0f /* of NVLinks that no GPU counts: more than a port */
/* In ports, where not measured: speed of a pair of GPUs of two nodes, and of all pairs of the two nodes together. */
#define ACROSS   0.5f
#define CROSSING 1.0f

struct maker {
	const struct ferry_gpu_reach *found;
	uint32_t nranks, nshared;
	float most, unit; /* NVLinks of the pair that has most of them, and fewest */
	bool shares;      /* PCIe ports, and what leads to other nodes, are shared */
	uint8_t of_nodes[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to: their shared link + 1 */
};

static bool reaches(const struct maker *maker, uint32_t from, uint32_t to)
{
	return from != to && maker->found->reach[from] >> to & 1;
}

static bool is_pcie(const struct maker *maker, uint32_t from, uint32_t to)
{
	return maker->found->nvlinks[from][to] == FERRY_NVLINKS_NONE;
}

static bool is_across(const struct maker *maker, uint32_t from, uint32_t to)
{
	return maker->found->node[from] != maker->found->node[to];
}

static float speed_of(const struct maker *maker, uint32_t from, uint32_t to)
{
	uint8_t nvlinks = maker->found->nvlinks[from][to];
	if (nvlinks == FERRY_NVLINKS_NONE)
		return PORT;
	return nvlinks == FERRY_NVLINKS_UNKNOWN ? maker->most : nvlinks;
}

/* If the driver does not count a pair's NVLinks, the largest count of any pair is assumed. */
static void find_units(struct maker *maker)
{
	uint32_t n = maker->nranks;
	bool counted = ferry_gpu_links_are_direct(maker->found, n);
	maker->most = counted ? 0 : UNKNOWN;
	for (uint32_t from = 0; counted && from < n; from++)
		for (uint32_t to = 0; to < n; to++)
			if (reaches(maker, from, to) && !is_pcie(maker, from, to))
				maker->most = fmaxf(maker->most, maker->found->nvlinks[from][to]);
	maker->unit = INFINITY;
	for (uint32_t from = 0; from < n; from++)
		for (uint32_t to = 0; to < n; to++)
			if (reaches(maker, from, to) && !is_pcie(maker, from, to))
				maker->unit = fminf(maker->unit, speed_of(maker, from, to));
	maker->unit = isinf(maker->unit) ? PORT : maker->unit;
}

/* Gives each ordered pair of nodes with PCIe between them a shared link, numbered after those of the ports. */
static void share_nodes(struct maker *maker)
{
	for (uint32_t from = 0; from < maker->nranks; from++)
		for (uint32_t to = 0; to < maker->nranks; to++) {
			uint8_t *shared = &maker->of_nodes[maker->found->node[from]][maker->found->node[to]];
			if (reaches(maker, from, to) && is_pcie(maker, from, to) && is_across(maker, from, to) &&
			    !*shared)
				*shared = (uint8_t)++maker->nshared;
		}
}

/* GPUs that reach each other by PCIe alone, in one node, are treated as behind a switch: all links are alike. */
static void find_shares(struct maker *maker)
{
	bool pcie = false, others = false;
	for (uint32_t from = 0; from < maker->nranks; from++)
		for (uint32_t to = 0; to < maker->nranks; to++) {
			pcie |= reaches(maker, from, to) && is_pcie(maker, from, to);
			others |= reaches(maker, from, to) && !is_pcie(maker, from, to);
		}
	maker->nshared = 2 * maker->nranks;
	share_nodes(maker);
	others |= maker->nshared > 2 * maker->nranks;
	maker->shares = pcie && others && maker->nshared <= FERRY_MAX_SHARED_LINKS;
}

static void go_through(struct ferry_links *links, uint32_t from, uint32_t to, uint32_t shared, float speed)
{
	links->through[from][to] |= 1ull << shared;
	links->shared[shared] = speed;
}

static void link_pair(const struct maker *maker, uint32_t from, uint32_t to, struct ferry_links *links)
{
	float port = PORT / maker->unit;
	links->speed[from][to] = speed_of(maker, from, to) / maker->unit;
	if (!maker->shares || !is_pcie(maker, from, to))
		return;
	go_through(links, from, to, 2 * from, port);
	go_through(links, from, to, 2 * to + 1, port);
	if (!is_across(maker, from, to))
		return;
	float across = maker->found->across > 0 ? maker->found->across : ACROSS;
	float crossing = maker->found->crossing > 0 ? maker->found->crossing : CROSSING;
	links->speed[from][to] = port * across;
	go_through(links, from, to, maker->of_nodes[maker->found->node[from]][maker->found->node[to]] - 1u,
	           port * crossing);
}

void ferry_gpu_links_make(const struct ferry_gpu_reach *found, uint32_t nranks, struct ferry_links *links)
{
	struct maker maker = {.found = found, .nranks = nranks};
	find_units(&maker);
	find_shares(&maker);
	memset(links, 0, sizeof *links);
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			if (reaches(&maker, from, to))
				link_pair(&maker, from, to, links);
}

bool ferry_gpu_links_are_direct(const struct ferry_gpu_reach *found, uint32_t nranks)
{
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++) {
			uint8_t nvlinks = found->nvlinks[from][to];
			if (from != to && found->reach[from] >> to & 1 && nvlinks != FERRY_NVLINKS_UNKNOWN &&
			    nvlinks != FERRY_NVLINKS_NONE)
				return true;
		}
	return false;
}
