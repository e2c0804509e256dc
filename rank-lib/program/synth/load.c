/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/synth/load.h"

#include <math.h>

void ferry_load_add(struct ferry_load *load, uint32_t from, uint32_t to, double blocks)
{
	load->link[from][to] += blocks;
	load->port[from] += blocks;
	for (uint64_t shared = load->links->through[from][to]; shared; shared &= shared - 1)
		load->shared[__builtin_ctzll(shared)] += blocks;
}

/* 1 GB/s is a byte per nanosecond. */
double ferry_load_after(const struct ferry_load *load, uint32_t from, uint32_t to, double blocks)
{
	float link = load->links->speed[from][to], port = load->links->port[from];
	if (!(link > 0))
		return INFINITY;
	double time = (load->link[from][to] + blocks) / link;
	if (port > 0)
		time = fmax(time, (load->port[from] + blocks) / port);
	for (uint64_t shared = load->links->through[from][to]; shared; shared &= shared - 1) {
		int k = __builtin_ctzll(shared);
		time = fmax(time, (load->shared[k] + blocks) / load->links->shared[k]);
	}
	return time;
}

double ferry_load_time(const struct ferry_load *load)
{
	double longest = 0;
	for (uint32_t from = 0; from < FERRY_MAX_RANKS; from++)
		for (uint32_t to = 0; to < FERRY_MAX_RANKS; to++)
			if (load->link[from][to] > 0)
				longest = fmax(longest, ferry_load_after(load, from, to, 0));
	return longest;
}

double ferry_program_peer_time(const struct ferry_program *program, const struct ferry_links *links)
{
	struct ferry_load load = {.links = links};
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		bool up = (statement->opcode == FERRY_D2H || statement->opcode == FERRY_H2H) &&
		          ferry_place_is_memory(statement->destination);
		uint32_t to = up ? statement->destination.domain - FERRY_MAX_DOMAINS : statement->peer;
		if ((up || statement->opcode == FERRY_PUT) && to != statement->rank)
			ferry_load_add(&load, statement->rank, to, 1.0 / program->nchunks);
	}
	return ferry_load_time(&load);
}
