/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/synth/writer.h"

#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

struct ferry_place ferry_writer_place(struct ferry_writer *writer, uint32_t domain)
{
	return (struct ferry_place){(uint16_t)domain, writer->next_chunk[domain]++};
}

struct ferry_place ferry_writer_memory(struct ferry_writer *writer, uint32_t rank)
{
	return ferry_writer_place(writer, FERRY_MAX_DOMAINS + rank);
}

void ferry_writer_depend(struct ferry_writer *writer, struct ferry_statement *statement, struct ferry_place place,
                         uint32_t version)
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

struct ferry_statement *ferry_writer_add(struct ferry_writer *writer, uint8_t opcode, uint32_t rank)
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

struct ferry_place ferry_writer_d2h_to(struct ferry_writer *writer, uint32_t rank, uint32_t chunk, uint32_t domain)
{
	struct ferry_statement *statement = ferry_writer_add(writer, FERRY_D2H, rank);
	statement->gpu = (uint16_t)chunk;
	return statement->destination = ferry_writer_place(writer, domain);
}

struct ferry_place ferry_writer_d2h(struct ferry_writer *writer, uint32_t rank, uint32_t chunk)
{
	return ferry_writer_d2h_to(writer, rank, chunk, writer->program->rank_domain[rank]);
}

void ferry_writer_h2d(struct ferry_writer *writer, struct ferry_place place, uint32_t version, uint32_t rank,
                      uint32_t chunk)
{
	struct ferry_statement *statement = ferry_writer_add(writer, FERRY_H2D, rank);
	statement->gpu = (uint16_t)chunk;
	statement->source = place;
	ferry_writer_depend(writer, statement, place, version);
}

ferryResult_t ferry_writer_begin(struct ferry_writer *writer, enum ferry_collective collective,
                                 const struct ferry_topology *topology, uint32_t root)
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
	*writer = (struct ferry_writer){.program = program};
	return ferrySuccess;
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

ferryResult_t ferry_writer_end(struct ferry_writer *writer, struct ferry_program **program)
{
	if (writer->failed) {
		ferry_program_free(writer->program);
		return ferry_fail(ferrySystemError, "no memory for a program of more than %u statements",
		                  writer->capacity);
	}
	sort_and_number(writer->program);
	*program = writer->program;
	return ferrySuccess;
}
