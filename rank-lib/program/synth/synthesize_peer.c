/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs that push data from device to device. Data that one rank has and all others need (AllGather, Broadcast) goes
 * along trees (routes.h), where every rank forwards from its receive buffer. Data for one rank alone goes there
 * directly, as it has no place in another's buffers. If no links lead to a rank, the data goes through the host: once
 * to each island of devices, which forwards it itself.
 */
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/synth/cuts.h"
#include "rank-lib/program/synth/packing.h"
#include "rank-lib/program/synth/routes.h"
#include "rank-lib/program/synth/writer.h"

#include <math.h>

#define CLOSE       0.02  /* times that differ by less than this part count as equal */
#define MOST_CHUNKS 24    /* that a block is divided into */
#define MOST_PUTS   8192  /* of a program */
#define MANY_RANKS  16    /* more than these: less search */

static void put(struct ferry_writer *writer, uint32_t from, bool forwards, uint32_t chunk, uint32_t to,
                uint32_t receive_chunk)
{
	struct ferry_statement *statement = ferry_writer_add(writer, FERRY_PUT, from);
	statement->gpu = (uint16_t)chunk;
	statement->forwards = forwards;
	statement->peer = (uint16_t)to;
	statement->peer_gpu = (uint16_t)receive_chunk;
}

/* Writes a chunk from one rank to one other rank. */
static void to_one(struct ferry_writer *writer, const struct ferry_links *links, uint32_t from, uint32_t send_chunk,
                   uint32_t to, uint32_t receive_chunk)
{
	if (from == to)
		return;
	if (links->speed[from][to] > 0)
		put(writer, from, false, send_chunk, to, receive_chunk);
	else
		ferry_writer_h2d(writer, ferry_writer_d2h(writer, from, send_chunk), 1, to, receive_chunk);
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
	case FERRY_ALLTOALLV:
		for (uint32_t shift = 1; shift < n; shift++)
			for (uint32_t rank = 0; rank < n; rank++)
				to_one(writer, links, rank, (rank + shift) % n, (rank + shift) % n, rank);
		break;
	case FERRY_SENDRECV:
		to_one(writer, links, 0, 0, 1, 0);
		break;
	case FERRY_ALLGATHER:
	case FERRY_BROADCAST: /* spread */
	case FERRY_ALLREDUCE: /* sums */
	case FERRY_REDUCESCATTER:
	case FERRY_REDUCE_TO_ROOT:
		break;
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
	bool is_d2h = false;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		if (route->parent[rank] != FERRY_FROM_HOST)
			continue;
		if (!is_d2h)
			place = ferry_writer_d2h(writer, route->source, route->chunk);
		is_d2h = true;
		ferry_writer_h2d(writer, place, 1, rank, receive_chunk(program, route));
	}
}

/* Writes a rank's PUTs: those that others wait for come first, each group in shifted order. */
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

/* ---- which routes ---- */

/* The routes that need the least time so far, and how much: as ferry_routes_time. */
struct choice {
	struct ferry_links links; /* ports as well */
	uint32_t nranks;
	uint64_t sources;
	struct ferry_ring_path rings[FERRY_MOST_RINGS];
	uint32_t nrings;
	struct ferry_routes best;
	double time, least; /* least: no routes can need less */
};

static bool is_good(const struct choice *choice)
{
	return choice->best.routes && choice->time <= choice->least * (1 + CLOSE);
}

/*
 * Takes the routes if they are clearly faster than the best so far, which have fewer chunks or hops; else frees them.
 */
static void consider(struct choice *choice, struct ferry_routes *routes)
{
	double time = ferry_routes_time(routes);
	if (choice->best.routes && !(time < choice->time * (1 - CLOSE))) {
		ferry_routes_free(routes);
		return;
	}
	ferry_routes_free(&choice->best);
	choice->best = *routes;
	choice->time = time;
}

/*
 * Returns the least time that any routes need (cuts.h). If the host brings some data, only what must go out of all
 * ports together is known, as other routes might bring data through the host to other ranks.
 */
static double find_least(const struct choice *choice)
{
	const struct ferry_links *links = &choice->links;
	uint32_t n = choice->nranks, nsources = (uint32_t)__builtin_popcountll(choice->sources), imported_arena = 0;
	double out = 0;
	for (uint32_t rank = 0; rank < n; rank++) {
		imported_arena += choice->best.from_host[rank];
		out += links->port[rank];
	}
	return imported_arena ? (nsources * (n - 1.0) - imported_arena) / out
	                      : ferry_cut_spread_time(links, n, choice->sources);
}

static bool try_rings(struct choice *choice, uint32_t nchunks)
{
	struct ferry_routes routes;
	if (!choice->nrings || is_good(choice))
		return true;
	if (!ferry_routes_begin(&routes, &choice->links, choice->nranks, choice->sources, nchunks))
		return false;
	ferry_routes_go_round(&routes, choice->rings, choice->nrings);
	consider(choice, &routes);
	return true;
}

static bool try_trees(struct choice *choice, uint32_t nchunks, double limit)
{
	struct ferry_routes routes;
	uint32_t rounds = choice->nranks > MANY_RANKS ? 1 : 8;
	if (is_good(choice))
		return true;
	if (!ferry_routes_begin(&routes, &choice->links, choice->nranks, choice->sources, nchunks))
		return false;
	ferry_routes_go(&routes, limit);
	if (!ferry_routes_improve(&routes, limit, rounds, choice->least * (1 + CLOSE))) {
		ferry_routes_free(&routes);
		return false;
	}
	consider(choice, &routes);
	return true;
}

/* Finds choice->best. False: no memory. */
static bool choose(struct choice *choice, uint32_t most_chunks)
{
	static const uint32_t chunks[] = {1, 2, 3, 4, 6, 7, 8, 12, 16, 24};
	choice->least = INFINITY;
	if (!try_trees(choice, 1, INFINITY))
		return false;
	choice->least = find_least(choice);
	if (!is_good(choice))
		choice->nrings = ferry_rings_find(&choice->links, choice->nranks, choice->rings);
	bool made = true;
	for (uint32_t i = 0; made && i < sizeof chunks / sizeof *chunks && chunks[i] <= most_chunks; i++)
		made = try_rings(choice, chunks[i]) &&
		       try_trees(choice, chunks[i], choice->least * (1 + CLOSE / 2)) &&
		       try_trees(choice, chunks[i], 0);
	return made;
}

/* Returns the links with a speed for every port: where a port has none, the sum of its links' speeds. */
static struct ferry_links with_ports(const struct ferry_links *links, uint32_t nranks)
{
	struct ferry_links filled = *links;
	for (uint32_t from = 0; from < nranks; from++) {
		float sum = 0;
		for (uint32_t to = 0; to < nranks; to++)
			sum += filled.speed[from][to];
		filled.port[from] = filled.port[from] > 0 ? fminf(filled.port[from], sum) : sum;
	}
	return filled;
}

static ferryResult_t spread(struct ferry_writer *writer, const struct ferry_links *links)
{
	const struct ferry_program *program = writer->program;
	uint32_t n = program->nranks;
	bool all = program->collective == FERRY_ALLGATHER;
	struct choice choice = {.links = with_ports(links, n), .nranks = n};
	choice.sources = all ? ferry_rankset_all(n) : 1ull << program->root;
	uint32_t most_chunks = MOST_PUTS / ((all ? n : 1) * (n - 1));
	most_chunks = most_chunks > MOST_CHUNKS ? MOST_CHUNKS : most_chunks;
	bool made = choose(&choice, most_chunks);
	if (made)
		write_routes(writer, &choice.best);
	ferry_routes_free(&choice.best);
	return made ? ferrySuccess : ferry_fail(ferrySystemError, "no memory for the routes of %u ranks", n);
}

/* ---- sums ---- */

/* A tree along which one chunk goes up to its root, added up on the way in the ranks' memory. */
struct up_tree {
	uint32_t nranks, root, send_chunk, receive_chunk;
	const uint8_t *parent; /* of the root: anything */
};

static bool is_child(const struct up_tree *tree, uint32_t rank, uint32_t parent)
{
	return rank != tree->root && tree->parent[rank] == parent;
}

/*
 * Writes the sum of a rank's chunk and of its children's, in its memory. pushed: where each child has pushed its own.
 */
static struct ferry_place add_up(struct ferry_writer *writer, const struct up_tree *tree, uint32_t rank,
                                 const struct ferry_place *pushed, uint32_t *version)
{
	struct ferry_place own = ferry_writer_memory(writer, rank), sum = ferry_writer_memory(writer, rank);
	struct ferry_statement *copy = ferry_writer_add(writer, FERRY_D2H, rank);
	copy->gpu = (uint16_t)tree->send_chunk;
	copy->destination = own;
	*version = 0;
	for (uint32_t other = 0; other < tree->nranks; other++) {
		if (other != rank && !is_child(tree, other, rank))
			continue;
		struct ferry_statement *add = ferry_writer_add(writer, FERRY_REDUCE, rank);
		add->source = other == rank ? own : pushed[other];
		add->destination = sum;
		ferry_writer_depend(writer, add, add->source, 1);
		++*version;
	}
	return sum;
}

static uint32_t depth_of(const struct up_tree *tree, uint32_t rank)
{
	uint32_t depth = 0;
	for (; rank != tree->root; rank = tree->parent[rank])
		depth++;
	return depth;
}

/* Writes a push to the parent's memory: of the rank's sum, or, if it has no children, of its send buffer. */
static void push_up(struct ferry_writer *writer, const struct up_tree *tree, uint32_t rank, struct ferry_place *pushed,
                    bool adds)
{
	uint32_t version = 0;
	struct ferry_place sum = {0};
	if (adds)
		sum = add_up(writer, tree, rank, pushed, &version);
	pushed[rank] = ferry_writer_memory(writer, tree->parent[rank]);
	struct ferry_statement *put_up = ferry_writer_add(writer, adds ? FERRY_H2H : FERRY_D2H, rank);
	put_up->gpu = (uint16_t)tree->send_chunk;
	put_up->source = sum;
	put_up->destination = pushed[rank];
	if (adds)
		ferry_writer_depend(writer, put_up, sum, version);
}

/* Writes all pushes up a tree, the deepest ranks first, and the sum into the root's receive buffer. */
static void write_up(struct ferry_writer *writer, const struct up_tree *tree)
{
	struct ferry_place pushed[FERRY_MAX_RANKS];
	uint32_t n = tree->nranks, version;
	bool adds[FERRY_MAX_RANKS] = {false};
	for (uint32_t rank = 0; rank < n; rank++)
		if (rank != tree->root)
			adds[tree->parent[rank]] = true;
	for (uint32_t depth = n; depth-- > 1;)
		for (uint32_t rank = 0; rank < n; rank++)
			if (depth_of(tree, rank) == depth)
				push_up(writer, tree, rank, pushed, adds[rank]);
	struct ferry_place sum = add_up(writer, tree, tree->root, pushed, &version);
	ferry_writer_h2d(writer, sum, version, tree->root, tree->receive_chunk);
}

/* Writes an AllReduce: up the packed trees, and from their roots down the same trees. */
static ferryResult_t write_allreduce(struct ferry_writer *writer, const struct ferry_links *links)
{
	struct ferry_packing packing;
	uint32_t n = writer->program->nranks;
	if (!ferry_packing_find(links, n, &packing))
		return ferry_fail(ferryInvalidUsage,
		                  "no program of PUTs for allreduce: links do not connect the %u ranks", n);
	writer->program->nchunks = packing.ntrees;
	for (uint32_t chunk = 0; chunk < packing.ntrees; chunk++) {
		const struct up_tree tree = {.nranks = n,
		                             .root = packing.root[chunk],
		                             .send_chunk = chunk,
		                             .receive_chunk = chunk,
		                             .parent = packing.parent[chunk]};
		write_up(writer, &tree);
		for (uint32_t rank = 0; rank < n; rank++)
			if (rank != tree.root)
				put(writer, tree.parent[rank], true, chunk, rank, chunk);
	}
	return ferrySuccess;
}

static struct ferry_links backwards(const struct ferry_links *links, uint32_t nranks)
{
	struct ferry_links turned = *links;
	for (uint32_t from = 0; from < nranks; from++)
		for (uint32_t to = 0; to < nranks; to++) {
			turned.speed[from][to] = links->speed[to][from];
			turned.through[from][to] = links->through[to][from];
		}
	return turned;
}

/* Reduce is Broadcast backwards, ReduceScatter is AllGather backwards: the same routes over reversed links. */
static ferryResult_t write_backwards(struct ferry_writer *writer, const struct ferry_links *links)
{
	struct ferry_program *program = writer->program;
	uint32_t n = program->nranks;
	bool all = program->collective == FERRY_REDUCESCATTER, through_host = false;
	struct ferry_links turned = backwards(links, n);
	struct choice choice = {.links = with_ports(&turned, n), .nranks = n};
	choice.sources = all ? ferry_rankset_all(n) : 1ull << program->root;
	uint32_t most_chunks = MOST_PUTS / ((all ? n : 1) * (n - 1));
	if (!choose(&choice, most_chunks > MOST_CHUNKS ? MOST_CHUNKS : most_chunks)) {
		ferry_routes_free(&choice.best);
		return ferry_fail(ferrySystemError, "no memory for the routes of %u ranks", n);
	}
	for (uint32_t rank = 0; rank < n; rank++)
		through_host |= choice.best.from_host[rank] > 0;
	program->nchunks = choice.best.nchunks;
	for (uint32_t i = 0; i < choice.best.nroutes && !through_host; i++) {
		const struct ferry_route *route = &choice.best.routes[i];
		uint32_t block = all ? route->source : 0;
		const struct up_tree tree = {.nranks = n,
		                             .root = route->source,
		                             .send_chunk = block * program->nchunks + route->chunk,
		                             .receive_chunk = route->chunk,
		                             .parent = route->parent};
		write_up(writer, &tree);
	}
	ferry_routes_free(&choice.best);
	if (!through_host)
		return ferrySuccess;
	return ferry_fail(ferryInvalidUsage, "no program of PUTs for %s: links do not connect the %u ranks",
	                  ferry_collective_name(program->collective), n);
}

static ferryResult_t check_possible(enum ferry_collective collective, uint32_t nranks, const struct ferry_links *links)
{
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
	else if (collective == FERRY_ALLREDUCE)
		result = write_allreduce(&writer, links);
	else if (ferry_collective_reduces(collective))
		result = write_backwards(&writer, links);
	else
		write_exchange(&writer, links);
	if (result) {
		ferry_program_free(writer.program);
		return result;
	}
	return ferry_writer_end(&writer, synthesized);
}
