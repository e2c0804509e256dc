/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs from a topology. Every chunk goes up once. Across a boundary between domains go: partial sums to the domain
 * that owns a chunk and its result back, so an AllReduce of S bytes among D domains moves 2(D-1)S in all, the least for
 * a reduction whose result everybody needs; and for collectives that only move data, each chunk once per domain that
 * needs it (HyLink Figure 1(c)), by H2H where several ranks there need it, read directly by H2D where one does.
 *
 * Where the domains are together in one memory node, nothing crosses: every rank moves its slices to and from the
 * domain whose router works on them, which shares the work out and keeps the order of the sum that one domain has.
 *
 * Host chunks are numbered per domain in order of use. A statement is written into the section of a rank of the domain
 * that executes it, or of the rank whose device it moves.
 */
#include "ipc/error.h"
#include "rank-lib/program/program.h"

#include <stdlib.h>
#include <string.h>

struct writer {
	struct ferry_program *program;
	uint32_t capacity;
	bool failed;                                       /* out of memory; looked at once at the end */
	struct ferry_statement spare;                      /* where statements go then; nobody reads it */
	uint32_t populated[FERRY_MAX_DOMAINS], npopulated; /* domains that have ranks */
	uint32_t members[FERRY_MAX_DOMAINS];
	bool together;
	uint16_t first[FERRY_MAX_DOMAINS]; /* lowest rank of each domain */
	uint16_t next_chunk[FERRY_MAX_DOMAINS];
};

static struct ferry_place new_place(struct writer *writer, uint32_t domain)
{
	return (struct ferry_place){(uint16_t)domain, writer->next_chunk[domain]++};
}

static void depend(struct writer *writer, struct ferry_statement *statement, struct ferry_place place, uint32_t version)
{
	if (writer->failed)
		return;
	void *grown = realloc(statement->dependencies,
	                      (statement->ndependencies + 1) * sizeof *statement->dependencies);
	if (!grown) {
		writer->failed = true;
		return;
	}
	statement->dependencies = grown;
	statement->dependencies[statement->ndependencies++] = (struct ferry_dependency){place, version};
}

static struct ferry_statement *add(struct writer *writer, uint8_t opcode, uint32_t rank)
{
	struct ferry_program *program = writer->program;
	if (program->nstatements == writer->capacity) {
		uint32_t capacity = writer->capacity ? 2 * writer->capacity : 64;
		void *grown = realloc(program->statements, capacity * sizeof *program->statements);
		if (!grown) {
			writer->failed = true;
			return &writer->spare;
		}
		program->statements = grown;
		writer->capacity = capacity;
	}
	struct ferry_statement *statement = &program->statements[program->nstatements];
	memset(statement, 0, sizeof *statement);
	statement->opcode = opcode;
	statement->rank = (uint16_t)rank;
	statement->line = ++program->nstatements;
	return statement;
}

static struct ferry_place up_to(struct writer *writer, uint32_t rank, uint32_t chunk, uint32_t domain)
{
	struct ferry_statement *statement = add(writer, FERRY_D2H, rank);
	statement->gpu = (uint16_t)chunk;
	return statement->destination = new_place(writer, domain);
}

static struct ferry_place up(struct writer *writer, uint32_t rank, uint32_t chunk)
{
	return up_to(writer, rank, chunk, writer->program->rank_domain[rank]);
}

static void down(struct writer *writer, struct ferry_place place, uint32_t version, uint32_t rank, uint32_t chunk)
{
	struct ferry_statement *statement = add(writer, FERRY_H2D, rank);
	statement->gpu = (uint16_t)chunk;
	statement->source = place;
	depend(writer, statement, place, version);
}

static struct ferry_place across(struct writer *writer, struct ferry_place place, uint32_t version, uint32_t domain)
{
	struct ferry_statement *statement = add(writer, FERRY_H2H, writer->first[domain]);
	statement->source = place;
	statement->destination = new_place(writer, domain);
	depend(writer, statement, place, version);
	return statement->destination;
}

/* Sums version 1 of the places, in order, into a fresh chunk of their domain; the sum is version `count` of it. */
static struct ferry_place sum(struct writer *writer, const struct ferry_place *places, uint32_t count)
{
	struct ferry_place total = new_place(writer, places[0].domain);
	for (uint32_t i = 0; i < count; i++) {
		struct ferry_statement *statement = add(writer, FERRY_REDUCE, writer->first[total.domain]);
		statement->source = places[i];
		statement->destination = total;
		depend(writer, statement, places[i], 1);
	}
	return total;
}

/*
 * The sum of send chunk `chunk` of all ranks, in domain `owner`: each domain sums its own ranks', the partial sums
 * cross, the owner sums those in the order of domains. A domain with one rank sends its input itself.
 */
static struct ferry_place sum_at(struct writer *writer, uint32_t chunk, uint32_t owner, uint32_t *version)
{
	const struct ferry_program *program = writer->program;
	struct ferry_place partial[FERRY_MAX_DOMAINS], inputs[FERRY_MAX_RANKS];
	if (writer->together) {
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			inputs[rank] = up_to(writer, rank, chunk, owner);
		*version = program->nranks;
		return sum(writer, inputs, program->nranks);
	}
	for (uint32_t i = 0; i < writer->npopulated; i++) {
		uint32_t domain = writer->populated[i], count = 0;
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain)
				inputs[count++] = up(writer, rank, chunk);
		partial[i] = inputs[0];
		*version = 1;
		if (count > 1 || writer->npopulated == 1) {
			partial[i] = sum(writer, inputs, count);
			*version = count;
		}
		if (domain != owner)
			partial[i] = across(writer, partial[i], *version, owner);
	}
	if (writer->npopulated == 1)
		return partial[0];
	struct ferry_place total = new_place(writer, owner);
	for (uint32_t i = 0; i < writer->npopulated; i++) {
		struct ferry_statement *statement = add(writer, FERRY_REDUCE, writer->first[owner]);
		bool local = writer->populated[i] == owner;
		statement->source = partial[i];
		statement->destination = total;
		depend(writer, statement, partial[i], local ? writer->members[owner] : 1);
	}
	*version = writer->npopulated;
	return total;
}

static void allreduce(struct writer *writer)
{
	struct ferry_program *program = writer->program;
	program->nchunks = writer->npopulated; /* each domain owns one */
	for (uint32_t chunk = 0; chunk < program->nchunks; chunk++) {
		uint32_t version, owner = writer->populated[chunk];
		struct ferry_place total = sum_at(writer, chunk, owner, &version);
		for (uint32_t i = 0; i < writer->npopulated; i++) {
			uint32_t domain = writer->populated[i], here = domain == owner ? version : 1;
			bool direct = domain == owner || writer->members[domain] == 1 || writer->together;
			struct ferry_place place = direct ? total : across(writer, total, version, domain);
			for (uint32_t rank = 0; rank < program->nranks; rank++)
				if (program->rank_domain[rank] == domain)
					down(writer, place, direct ? version : here, rank, chunk);
		}
	}
}

static void reduce(struct writer *writer)
{
	uint32_t version, root = writer->program->root;
	struct ferry_place total = sum_at(writer, 0, writer->program->rank_domain[root], &version);
	down(writer, total, version, root, 0);
}

static void reducescatter(struct writer *writer)
{
	for (uint32_t rank = 0; rank < writer->program->nranks; rank++) {
		uint32_t version;
		struct ferry_place total = sum_at(writer, rank, writer->program->rank_domain[rank], &version);
		down(writer, total, version, rank, 0);
	}
}

/* One rank's chunk to all other ranks: up once, across once per domain, down at each. */
static void spread(struct writer *writer, uint32_t source, uint32_t receive_chunk)
{
	const struct ferry_program *program = writer->program;
	uint32_t home = program->rank_domain[source];
	if (program->nranks == 1)
		return;
	struct ferry_place place = up(writer, source, 0);
	for (uint32_t i = 0; i < writer->npopulated; i++) {
		uint32_t domain = writer->populated[i];
		bool direct = domain == home || writer->members[domain] == 1 || writer->together;
		struct ferry_place here = direct ? place : across(writer, place, 1, domain);
		for (uint32_t rank = 0; rank < program->nranks; rank++)
			if (program->rank_domain[rank] == domain && rank != source)
				down(writer, here, 1, rank, receive_chunk);
	}
}

static void to_one(struct writer *writer, uint32_t source, uint32_t send_chunk, uint32_t destination,
                   uint32_t receive_chunk)
{
	if (source != destination)
		down(writer, up(writer, source, send_chunk), 1, destination, receive_chunk);
}

static void write_statements(struct writer *writer)
{
	const struct ferry_program *program = writer->program;
	uint32_t n = program->nranks, root = program->root;
	switch (program->collective) {
	case FERRY_ALLREDUCE:
		allreduce(writer);
		break;
	case FERRY_REDUCE_TO_ROOT:
		reduce(writer);
		break;
	case FERRY_REDUCESCATTER:
		reducescatter(writer);
		break;
	case FERRY_BROADCAST:
		spread(writer, root, 0);
		break;
	case FERRY_ALLGATHER:
		for (uint32_t rank = 0; rank < n; rank++)
			spread(writer, rank, rank);
		break;
	case FERRY_GATHER:
		for (uint32_t rank = 0; rank < n; rank++)
			to_one(writer, rank, 0, root, rank);
		break;
	case FERRY_SCATTER:
		for (uint32_t rank = 0; rank < n; rank++)
			to_one(writer, root, rank, rank, 0);
		break;
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
		/* Shifted, so that the ranks do not all send to the same one at once. */
		for (uint32_t shift = 1; shift < n; shift++)
			for (uint32_t rank = 0; rank < n; rank++)
				to_one(writer, rank, (rank + shift) % n, (rank + shift) % n, rank);
		break;
	default:
		to_one(writer, 0, 0, 1, 0);
	}
}

static int by_rank(const void *left, const void *right)
{
	const struct ferry_statement *a = left, *b = right;
	if (a->rank != b->rank)
		return a->rank < b->rank ? -1 : 1;
	return a->line < b->line ? -1 : a->line > b->line;
}

/* Sections in order of ranks, and lines as they are printed: the header, then a line per section and statement. */
static void sort_and_number(struct ferry_program *program)
{
	uint32_t line = 1, next = 0;
	if (program->nstatements)
		qsort(program->statements, program->nstatements, sizeof *program->statements, by_rank);
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		line++;
		for (; next < program->nstatements && program->statements[next].rank == rank; next++)
			program->statements[next].line = ++line;
	}
}

/* Without statements. */
static ferryResult_t program_new(enum ferry_collective collective, const struct ferry_topology *topology, uint32_t root,
                                 struct ferry_program **made)
{
	if ((unsigned)collective >= FERRY_NUM_COLLECTIVES || topology->nranks < 1 ||
	    topology->nranks > FERRY_MAX_RANKS || topology->ndomains < 1 || topology->ndomains > FERRY_MAX_DOMAINS ||
	    root >= topology->nranks || (collective == FERRY_SENDRECV && topology->nranks != 2))
		return ferry_fail(ferryInvalidArgument, "a program for collective %d, %u ranks, %u domains, root %u",
		                  (int)collective, topology->nranks, topology->ndomains, root);
	for (uint32_t rank = 0; rank < topology->nranks; rank++)
		if (topology->rank_domain[rank] >= topology->ndomains)
			return ferry_fail(ferryInvalidArgument, "a program for rank %u in domain %u of %u", rank,
			                  topology->rank_domain[rank], topology->ndomains);
	struct ferry_program *program = calloc(1, sizeof *program);
	if (!program || !(program->name = strdup("synthesized"))) {
		free(program);
		return ferry_fail(ferrySystemError, "no memory for a program");
	}
	program->collective = collective;
	program->nranks = topology->nranks;
	program->ndomains = topology->ndomains;
	program->nchunks = 1;
	program->root = ferry_collective_has_root(collective) ? root : 0;
	program->most_bytes = UINT64_MAX;
	memcpy(program->rank_domain, topology->rank_domain, topology->nranks);
	*made = program;
	return ferrySuccess;
}

ferryResult_t ferry_program_copy(enum ferry_collective collective, const struct ferry_topology *topology, uint32_t root,
                                 struct ferry_program **synthesized)
{
	if (topology->nranks != 1)
		return ferry_fail(ferryInvalidArgument, "%u ranks have more than their own input", topology->nranks);
	return program_new(collective, topology, root, synthesized);
}

ferryResult_t ferry_program_synthesize(enum ferry_collective collective, const struct ferry_topology *topology,
                                       uint32_t root, struct ferry_program **synthesized)
{
	struct ferry_program *program = NULL;
	ferryResult_t result = program_new(collective, topology, root, &program);
	if (result)
		return result;
	struct writer writer = {.program = program, .together = topology->together};
	for (uint32_t rank = topology->nranks; rank-- > 0;) {
		writer.members[topology->rank_domain[rank]]++;
		writer.first[topology->rank_domain[rank]] = (uint16_t)rank;
	}
	for (uint32_t domain = 0; domain < topology->ndomains; domain++)
		if (writer.members[domain])
			writer.populated[writer.npopulated++] = domain;
	write_statements(&writer);
	if (writer.failed) {
		ferry_program_free(program);
		return ferry_fail(ferrySystemError, "no memory for a program of more than %u statements",
		                  writer.capacity);
	}
	sort_and_number(program);
	*synthesized = program;
	return ferrySuccess;
}
