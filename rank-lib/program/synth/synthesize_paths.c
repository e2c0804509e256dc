/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The alltoallv of every path (ipc/paths.h): part i of the block from one rank to another goes over path i of theirs.
 * Relays have a window in their own memory, from where they push into the last rank's buffer.
 */
#include "ipc/error.h"
#include "rank-lib/program/synth/writer.h"

#define SLOTS_LEAST 2            /* of a relay's window: with one, its two links would take turns */
#define SLOT_LEAST  (16u << 10)  /* bytes of such a slot */

/* A part of the block from one rank to another. */
struct route {
	uint32_t from, to, chunk, receive_chunk;
};

static struct ferry_statement *write_put(struct ferry_writer *writer, uint32_t rank, const struct route *route)
{
	struct ferry_statement *put = ferry_writer_add(writer, FERRY_PUT, rank);
	put->peer = (uint16_t)route->to;
	put->peer_gpu = (uint16_t)route->receive_chunk;
	return put;
}

static void write_relayed(struct ferry_writer *writer, const struct route *route, const struct ferry_path *path)
{
	struct ferry_place place = ferry_writer_memory(writer, path->via[0]);
	struct ferry_statement *up = ferry_writer_add(writer, FERRY_D2H, route->from);
	up->gpu = (uint16_t)route->chunk;
	up->destination = place;
	for (uint32_t hop = 1; hop + 1 < path->hops; hop++) {
		struct ferry_place next = ferry_writer_memory(writer, path->via[hop]);
		struct ferry_statement *on = ferry_writer_add(writer, FERRY_H2H, path->via[hop - 1]);
		on->source = place;
		on->destination = next;
		ferry_writer_depend(writer, on, place, 1);
		place = next;
	}
	struct ferry_statement *last = write_put(writer, path->via[path->hops - 2], route);
	last->source = place;
	ferry_writer_depend(writer, last, place, 1);
}

static void write_path(struct ferry_writer *writer, const struct route *route, const struct ferry_path *path)
{
	if (path->hops == 1) {
		write_put(writer, route->from, route)->gpu = (uint16_t)route->chunk;
	} else if (path->hops) {
		write_relayed(writer, route, path);
	} else {
		ferry_writer_h2d(writer, ferry_writer_d2h(writer, route->from, route->chunk), 1, route->to,
		                 route->receive_chunk);
	}
}

/* Shifted, so that no rank is pushed to by all at once. */
static void write_paths(struct ferry_writer *writer, const struct ferry_paths *paths)
{
	uint32_t n = paths->nranks, parts = writer->program->nchunks;
	for (uint32_t shift = 1; shift < n; shift++)
		for (uint32_t from = 0; from < n; from++) {
			uint32_t to = (from + shift) % n, first = paths->first[from * n + to];
			for (uint32_t p = first; p < paths->first[from * n + to + 1]; p++) {
				const struct route route = {from, to, to * parts + p - first, from * parts + p - first};
				write_path(writer, &route, &paths->paths[p]);
			}
		}
}

static bool any_relays(const struct ferry_paths *paths)
{
	bool any = false;
	for (uint32_t p = 0; p < paths->npaths; p++)
		any |= paths->paths[p].hops > 1;
	return any;
}

static uint32_t most_paths(const struct ferry_paths *paths)
{
	uint32_t most = 0;
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++)
		if (paths->first[pair + 1] - paths->first[pair] > most)
			most = paths->first[pair + 1] - paths->first[pair];
	return most;
}

/* Whether every pair has a path. A block without a path would have no part by which its length is told. */
static bool all_have(const struct ferry_paths *paths)
{
	for (uint32_t pair = 0; pair < paths->nranks * paths->nranks; pair++)
		if (pair / paths->nranks != pair % paths->nranks && paths->first[pair] == paths->first[pair + 1])
			return false;
	return true;
}

/* memory: of each rank, for relays' windows; 0: those are in the staging, too. */
static bool windows_fit(const struct ferry_paths *paths, const struct ferry_topology *topology, const uint64_t *staging,
                        uint64_t memory)
{
	uint64_t windows[FERRY_MAX_DOMAINS] = {0}, relayed[FERRY_MAX_RANKS] = {0};
	uint32_t n = paths->nranks;
	for (uint32_t p = 0; p < paths->npaths; p++) {
		const struct ferry_path *path = &paths->paths[p];
		for (uint32_t hop = 0; hop + 1 < path->hops; hop++)
			memory ? relayed[path->via[hop]]++ : windows[topology->rank_domain[path->via[hop]]]++;
		if (!path->hops)
			windows[topology->rank_domain[paths->pair[p] / n]]++;
	}
	for (uint32_t domain = 0; domain < topology->ndomains; domain++)
		if (windows[domain] * SLOTS_LEAST * SLOT_LEAST > staging[domain])
			return false;
	for (uint32_t rank = 0; rank < n; rank++)
		if (relayed[rank] * SLOTS_LEAST * SLOT_LEAST > memory)
			return false;
	return true;
}

static ferryResult_t write(const struct ferry_topology *topology, const struct ferry_paths *paths,
                           struct ferry_program **program)
{
	struct ferry_writer writer;
	ferryResult_t result = ferry_writer_begin(&writer, FERRY_ALLTOALLV, topology, 0);
	if (result)
		return result;
	/* with a single part nobody would tell a relay how long it is */
	writer.program->nchunks = most_paths(paths) > 1 ? most_paths(paths) : 2;
	write_paths(&writer, paths);
	return ferry_writer_end(&writer, program);
}

ferryResult_t ferry_program_synthesize_paths(const struct ferry_topology *topology, struct ferry_network *network,
                                             const uint64_t *staging, uint64_t memory,
                                             struct ferry_program **program)
{
	ferryResult_t result = ferrySuccess;
	*program = NULL;
	bool none = network->limits.relays == FERRY_NO_RELAYS;
	for (uint32_t relays = none ? 1 : FERRY_MOST_RELAYS; relays; relays--) {
		struct ferry_paths paths;
		network->limits.relays = none ? FERRY_NO_RELAYS : relays;
		if (!ferry_paths_make(&network->links, topology->nranks, &network->limits, &paths))
			return ferry_fail(ferrySystemError, "no memory for the paths of %u ranks", topology->nranks);
		bool fits = windows_fit(&paths, topology, staging, memory);
		bool several = most_paths(&paths) > 1 || any_relays(&paths);
		if (fits && several && all_have(&paths))
			result = write(topology, &paths, program);
		ferry_paths_free(&paths);
		if (fits)
			break;
	}
	return result;
}
