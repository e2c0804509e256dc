/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that push data from device to device. What one rank has and all others need (AllGather, Broadcast) goes
 * along trees (routes.h), where every rank forwards what has come into its receive buffer; what is for one rank alone
 * has no place in another's, so it goes there directly. Where no links lead, it goes through the host: once to each
 * island of devices, which hands it on by itself.
 */
#include "ipc/error.h"
#include "rank-lib/program/routes.h"
#include "rank-lib/program/writer.h"

static void put(struct ferry_writer *writer, uint32_t from, bool forwards, uint32_t chunk, uint32_t to,
                uint32_t receive_chunk)
{
	struct ferry_statement *statement = ferry_writer_add(writer, FERRY_PUT, from);
	statement->gpu = (uint16_t)chunk;
	statement->forwards = forwards;
	statement->peer = (uint16_t)to;
	statement->peer_gpu = (uint16_t)receive_chunk;
}

/* A chunk that one rank sends to another alone. */
static void to_one(struct ferry_writer *writer, const struct ferry_links *links, uint32_t from, uint32_t send_chunk,
                   uint32_t to, uint32_t receive_chunk)
{
	if (from == to)
		return;
	if (links->speed[from][to] > 0)
		put(writer, from, false, send_chunk, to, receive_chunk);
	else
		ferry_writer_down(writer, ferry_writer_up(writer, from, send_chunk), 1, to, receive_chunk);
}

/* Shifted, so that no rank is pushed to by all at once. */
static void write_exchange(struct ferry_writer *writer, const struct ferry_links *links)
{
	const struct ferry_program *program = writer->program;
	uint32_t n = program->nranks, root = program->root;
	switch (program->collective) {
	case FERRY_GATHER:
		for (uint32_t rank = 0; rank < n; rank++)
			to_one(writer, links, rank, 0, root, rank);
		break;
	case FERRY_SCATTER:
		for (uint32_t shift = 1; shift < n; shift++)
			to_one(writer, links, root, (root + shift) % n, (root + shift) % n, 0);
		break;
	case FERRY_ALLTOALL:
		for (uint32_t shift = 1; shift < n; shift++)
			for (uint32_t rank = 0; rank < n; rank++)
				to_one(writer, links, rank, (rank + shift) % n, (rank + shift) % n, rank);
		break;
	default: /* sendrecv */
		to_one(writer, links, 0, 0, 1, 0);
	}
}

/* ---- what all ranks need ---- */

static uint32_t receive_chunk(const struct ferry_program *program, const struct ferry_route *route)
{
	uint32_t block = program->collective == FERRY_ALLGATHER ? route->source : 0;
	return block * program->nchunks + route->chunk;
}

static void write_from_host(struct ferry_writer *writer, const struct ferry_route *route)
{
	const struct ferry_program *program = writer->program;
	struct ferry_place place;
	bool is_up = false;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		if (route->parent[rank] != FERRY_FROM_HOST)
			continue;
		if (!is_up)
			place = ferry_writer_up(writer, route->source, route->chunk);
		is_up = true;
		ferry_writer_down(writer, place, 1, rank, receive_chunk(program, route));
	}
}

/* Of a rank, what others wait for before what they do not, and that in shifted order. */
static void write_routes(struct ferry_writer *writer, const struct ferry_routes *routes)
{
	struct ferry_program *program = writer->program;
	uint32_t n = program->nranks;
	program->nchunks = routes->nchunks;
	for (uint32_t i = 0; i < routes->nroutes; i++)
		write_from_host(writer, &routes->routes[i]);
	for (uint32_t depth = 1; depth < n; depth++)
		for (uint32_t shift = 1; shift < n; shift++)
			for (uint32_t i = 0; i < routes->nroutes; i++) {
				const struct ferry_route *route = &routes->routes[i];
				for (uint32_t to = 0; to < n; to++) {
					uint32_t from = (to + n - shift) % n, chunk = receive_chunk(program, route);
					if (route->depth[to] != depth || route->parent[to] != from)
						continue;
					bool forwards = from != route->source;
					put(writer, from, forwards, forwards ? chunk : route->chunk, to, chunk);
				}
			}
}

static ferryResult_t spread(struct ferry_writer *writer, const struct ferry_links *links)
{
	const struct ferry_program *program = writer->program;
	uint64_t sources = 1ull << program->root;
	struct ferry_routes routes;
	if (program->collective == FERRY_ALLGATHER)
		sources = program->nranks == 64 ? UINT64_MAX : (1ull << program->nranks) - 1;
	if (!ferry_routes_begin(&routes, links, program->nranks, sources, 1))
		return ferry_fail(ferrySystemError, "no memory for the routes of %u ranks", program->nranks);
	ferry_routes_go_directly(&routes);
	write_routes(writer, &routes);
	ferry_routes_free(&routes);
	return ferrySuccess;
}

static ferryResult_t check_possible(enum ferry_collective collective, uint32_t nranks, const struct ferry_links *links)
{
	if (ferry_collective_reduces(collective))
		return ferry_fail(ferryInvalidUsage, "no program of PUTs for %s: they add nothing up",
		                  ferry_collective_name(collective));
	if (collective == FERRY_ALLTOALLV)
		return ferry_fail(ferryInvalidUsage,
		                  "no program of PUTs for alltoallv: its lengths come with the call");
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++)
			if (from != to && links->speed[from][to] > 0)
				return ferrySuccess;
	return ferry_fail(ferryInvalidUsage, "no program of PUTs for %s: none of the %u ranks' devices reaches another",
	                  ferry_collective_name(collective), nranks);
}

ferryResult_t ferry_program_synthesize_peer(enum ferry_collective collective, const struct ferry_topology *topology,
                                            const struct ferry_links *links, uint32_t root,
                                            struct ferry_program **synthesized)
{
	struct ferry_writer writer;
	ferryResult_t result = ferry_writer_begin(&writer, collective, topology, root);
	if (!result && (result = check_possible(collective, topology->nranks, links)))
		ferry_program_free(writer.program);
	if (result)
		return result;
	if (collective == FERRY_ALLGATHER || collective == FERRY_BROADCAST)
		result = spread(&writer, links);
	else
		write_exchange(&writer, links);
	if (result) {
		ferry_program_free(writer.program);
		return result;
	}
	return ferry_writer_end(&writer, synthesized);
}
