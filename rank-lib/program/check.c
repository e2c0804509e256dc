/* SPDX-License-Identifier: Apache-2.0 */
/* The checker: bounds, then the single-assignment form with its own checks, then every rank's output. */
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/chunks.h"
#include "rank-lib/program/versions.h"

static ferryResult_t check_place(const struct ferry_program *program, const struct ferry_statement *statement,
                                 struct ferry_place place)
{
	if (ferry_place_is_memory(place) ? place.domain - FERRY_MAX_DOMAINS < (int)program->nranks
	                                 : place.domain < program->ndomains)
		return ferrySuccess;
	if (ferry_place_is_memory(place))
		return ferry_fail(ferryProgramError, "%s:%u: mem@%u[%u]: the last of %u ranks is %u", program->name,
		                  statement->line, place.domain - FERRY_MAX_DOMAINS, place.chunk, program->nranks,
		                  program->nranks - 1);
	return ferry_fail(ferryProgramError, "%s:%u: host@%u[%u]: the program has domains 0 to %u", program->name,
	                  statement->line, place.domain, place.chunk, program->ndomains - 1);
}

/* Whether the rank's send or receive buffer has the chunk. */
static ferryResult_t check_chunk(const struct ferry_program *program, const struct ferry_statement *statement,
                                 uint32_t rank, uint32_t chunk, bool sends)
{
	uint32_t send, receive;
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank, &send,
	                        &receive);
	uint32_t chunks = sends ? send : receive;
	if (chunk < chunks)
		return ferrySuccess;
	return ferry_fail(ferryProgramError, "%s:%u: gpu[%u]: the %s buffer of rank %u has %u chunk%s", program->name,
	                  statement->line, chunk, sends ? "send" : "receive", rank, chunks, chunks == 1 ? "" : "s");
}

static ferryResult_t check_put(const struct ferry_program *program, const struct ferry_statement *statement)
{
	if (statement->peer >= program->nranks)
		return ferry_fail(ferryProgramError, "%s:%u: PUT to rank %u: the last of %u ranks is %u", program->name,
		                  statement->line, statement->peer, program->nranks, program->nranks - 1);
	if (statement->peer == statement->rank)
		return ferry_fail(ferryProgramError, "%s:%u: PUT from rank %u to itself", program->name,
		                  statement->line, statement->rank);
	ferryResult_t result = ferry_statement_puts_memory(statement)
	                               ? ferrySuccess
	                               : check_chunk(program, statement, statement->rank, statement->gpu,
	                                             !statement->forwards);
	return result ? result : check_chunk(program, statement, statement->peer, statement->peer_gpu, false);
}

static ferryResult_t check_places(const struct ferry_program *program, const struct ferry_statement *statement)
{
	ferryResult_t result = ferrySuccess;
	if (ferry_opcode_is_work(statement->opcode) || statement->opcode == FERRY_H2D ||
	    ferry_statement_puts_memory(statement))
		result = check_place(program, statement, statement->source);
	if (!result && ferry_opcode_writes_window(statement->opcode))
		result = check_place(program, statement, statement->destination);
	for (uint32_t i = 0; !result && i < statement->ndependencies; i++)
		result = check_place(program, statement, statement->dependencies[i].place);
	return result;
}

/* A rank reads no other rank's memory, and only PUT and ADD go from memory to memory. */
static ferryResult_t check_memory(const struct ferry_program *program, const struct ferry_statement *statement)
{
	bool from = statement->opcode != FERRY_D2H && ferry_place_is_memory(statement->source);
	bool to = ferry_place_is_memory(statement->destination);
	struct ferry_place own = ferry_place_memory(statement->rank, 0);
	char text[32];
	if (program->collective == FERRY_ALLTOALLV && program->nchunks == 1 && (from || to))
		return ferry_fail(ferryProgramError, "%s:%u: alltoallv has D2H, H2D and PUTs of its input only: only "
		                  "the two ends know a chunk's size", program->name, statement->line);
	if (from && statement->source.domain != own.domain)
		return ferry_fail(ferryProgramError, "%s:%u: %s in the section of rank %u, which reads its own alone",
		                  program->name, statement->line, ferry_place_text(statement->source, 0, text),
		                  statement->rank);
	if (ferry_opcode_is_work(statement->opcode) && from != to)
		return ferry_fail(ferryProgramError, "%s:%u: from a rank's memory to a host's, or back: no statement "
		                  "does that", program->name, statement->line);
	if (from && statement->opcode == FERRY_H2H && statement->destination.domain == own.domain)
		return ferry_fail(ferryProgramError, "%s:%u: PUT from rank %u's memory to itself", program->name,
		                  statement->line, statement->rank);
	if (to && statement->opcode == FERRY_REDUCE && statement->destination.domain != own.domain)
		return ferry_fail(ferryProgramError, "%s:%u: ADD into %s in the section of rank %u: PUT it there first",
		                  program->name, statement->line, ferry_place_text(statement->destination, 0, text),
		                  statement->rank);
	return ferrySuccess;
}

static ferryResult_t check_statement(const struct ferry_program *program, const struct ferry_statement *statement)
{
	bool from_device = statement->opcode == FERRY_D2H, to_device = statement->opcode == FERRY_H2D;
	if (statement->rank >= program->nranks)
		return ferry_fail(ferryProgramError, "%s:%u: rank %u: the last of %u ranks is %u", program->name,
		                  statement->line, statement->rank, program->nranks, program->nranks - 1);
	ferryResult_t result = check_places(program, statement);
	if (!result && (from_device || to_device))
		result = check_chunk(program, statement, statement->rank, statement->gpu, from_device);
	if (!result && statement->opcode == FERRY_PUT)
		result = check_put(program, statement);
	if (!result)
		result = check_memory(program, statement);
	if (result)
		return result;
	bool one_domain = statement->source.domain == statement->destination.domain;
	if (statement->opcode == FERRY_REDUCE && !one_domain)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: REDUCE from domain %u into domain %u: move the chunk with H2H first",
		                  program->name, statement->line, statement->source.domain,
		                  statement->destination.domain);
	if (statement->opcode == FERRY_H2H && one_domain)
		return ferry_fail(ferryProgramError, "%s:%u: H2H inside domain %u", program->name, statement->line,
		                  statement->source.domain);
	if (statement->opcode == FERRY_REDUCE && statement->source.chunk == statement->destination.chunk)
		return ferry_fail(ferryProgramError, "%s:%u: %s of %s[%u] into itself", program->name, statement->line,
		                  ferry_place_is_memory(statement->source) ? "ADD" : "REDUCE",
		                  ferry_place_is_memory(statement->source) ? "mem" : "host", statement->source.chunk);
	bool puts_input = statement->opcode == FERRY_PUT && !statement->forwards;
	bool passes_on = program->nchunks > 1 && ferry_statement_passes_on(statement); /* a router tells their sizes */
	if (program->collective == FERRY_ALLTOALLV && !from_device && !to_device && !puts_input && !passes_on)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: alltoallv has D2H, H2D and PUTs of its input only, not %s: only the two ends "
		                  "know a chunk's size",
		                  program->name, statement->line, ferry_opcode_name(statement->opcode));
	return ferrySuccess;
}

static ferryResult_t check_header(const struct ferry_program *program)
{
	if (program->nranks < 1 || program->nranks > FERRY_MAX_RANKS || program->ndomains < 1 ||
	    program->ndomains > FERRY_MAX_DOMAINS || program->nchunks < 1 || program->nchunks > 1024)
		return ferry_fail(ferryProgramError,
		                  "%s: %u ranks (1 to %d), %u domains (1 to %d), %u chunks (1 to 1024)", program->name,
		                  program->nranks, FERRY_MAX_RANKS, program->ndomains, FERRY_MAX_DOMAINS,
		                  program->nchunks);
	if (program->root >= program->nranks)
		return ferry_fail(ferryProgramError, "%s: root %u: the last of %u ranks is %u", program->name,
		                  program->root, program->nranks, program->nranks - 1);
	if (program->collective == FERRY_SENDRECV && program->nranks != 2)
		return ferry_fail(ferryProgramError, "%s: sendrecv is between 2 ranks, not %u", program->name,
		                  program->nranks);
	for (uint32_t rank = 0; rank < program->nranks; rank++)
		if (program->rank_domain[rank] >= program->ndomains)
			return ferry_fail(ferryProgramError,
			                  "%s: rank %u is in domain %u: the last of %u domains is %u", program->name,
			                  rank, program->rank_domain[rank], program->ndomains, program->ndomains - 1);
	return ferrySuccess;
}

/*
 * If an H2D reads a version to which later statements add what is missing, most likely a dependency was forgotten:
 * writes a sentence that names the later version. Returns text; "" if no version has all that is missing.
 */
static const char *forgotten_dependency(const struct ferry_program *program, const struct ferry_versions *versions,
                                        uint32_t writer, uint64_t missing, char text[160])
{
	uint32_t read = versions->uses[writer].reads, later = read;
	char place[32];
	text[0] = '\0';
	if (read == FERRY_NO_VALUE)
		return text;
	const struct ferry_value *values = versions->values; /* of one place by version, from 1 */
	while (++later < versions->nvalues && values[later].version > values[read].version)
		if ((values[later].ranks & missing) == missing)
			break;
	if (later == versions->nvalues || values[later].version <= values[read].version)
		return text;
	ferry_place_text(values[read].place, program->rank_domain[program->statements[writer].rank], place);
	snprintf(text, 160, "; it reads version %u of %s, and version %u has it: deps: %s>=%u", values[read].version,
	         place, values[later].version, place, values[later].version);
	return text;
}

/* writer: the statement that writes the chunk, or FERRY_NO_STATEMENT. */
static ferryResult_t wrong_output(const struct ferry_program *program, const struct ferry_versions *versions,
                                  uint32_t writer, uint32_t rank, uint32_t chunk, uint64_t wanted,
                                  uint32_t wanted_chunk)
{
	char where[64], hint[160];
	if (writer == FERRY_NO_STATEMENT)
		return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u is never written", program->name,
		                  rank, chunk);
	const struct ferry_use *got = &versions->uses[writer];
	snprintf(where, sizeof where, "%s:%u", program->name, program->statements[writer].line);
	if (got->chunk != wanted_chunk)
		return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u gets input chunk %u instead of %u",
		                  where, rank, chunk, got->chunk, wanted_chunk);
	uint64_t missing = wanted & ~got->ranks, surplus = got->ranks & ~wanted;
	if (missing && surplus)
		return ferry_fail(ferryProgramError,
		                  "%s: rank %u's output chunk %u gets the contribution of rank %u, not of rank %u",
		                  where, rank, chunk, ferry_rankset_lowest(surplus), ferry_rankset_lowest(missing));
	if (surplus)
		return ferry_fail(ferryProgramError,
		                  "%s: rank %u's output chunk %u has too much: the contribution of rank %u", where,
		                  rank, chunk, ferry_rankset_lowest(surplus));
	return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u lacks the contribution of rank %u%s",
	                  where, rank, chunk, ferry_rankset_lowest(missing),
	                  forgotten_dependency(program, versions, writer, missing, hint));
}

static ferryResult_t check_rank_output(const struct ferry_program *program, const struct ferry_versions *versions,
                                       uint32_t rank)
{
	uint32_t send, receive;
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank, &send,
	                        &receive);
	for (uint32_t chunk = 0; chunk < receive; chunk++) {
		uint64_t ranks;
		uint32_t send_chunk, writer = ferry_receive_writer(program, versions, rank, chunk);
		ferry_collective_demand(program, rank, chunk, &ranks, &send_chunk);
		if (writer == FERRY_NO_STATEMENT) {
			/* The rank's own input, or the sum over it alone: the compiler copies it on the device. */
			if (ranks == 1ull << rank)
				continue;
			/* Of an alltoallv's block, a part that no path brings is empty in every call. */
			if (program->collective == FERRY_ALLTOALLV && chunk % program->nchunks)
				continue;
			return wrong_output(program, versions, writer, rank, chunk, ranks, send_chunk);
		}
		const struct ferry_use *got = &versions->uses[writer];
		if (got->ranks != ranks || got->chunk != send_chunk)
			return wrong_output(program, versions, writer, rank, chunk, ranks, send_chunk);
	}
	return ferrySuccess;
}

/*
 * Checks that each domain has counters for its instructions: at most one per statement, in the domain of its counter,
 * one per copy of a rank's own input, and a WAIT_PUT per PUT at the receiving rank.
 */
static ferryResult_t check_size(const struct ferry_program *program)
{
	uint64_t instrs[FERRY_MAX_DOMAINS] = {0};
	uint32_t send, receive;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank,
		                        &send, &receive);
		instrs[program->rank_domain[rank]] += receive;
	}
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (ferry_opcode_is_d2h(statement->opcode) || ferry_statement_passes_on(statement))
			instrs[program->rank_domain[statement->rank]]++;
		else if (ferry_opcode_is_work(statement->opcode)) /* receive chunks count H2Ds, WAIT_PUTs and copies */
			instrs[ferry_place_domain(program, statement->destination)]++;
	}
	for (uint32_t domain = 0; domain < program->ndomains; domain++)
		if (instrs[domain] > FERRY_MOST_COUNTERS)
			return ferry_fail(ferryProgramError,
			                  "%s: %llu instructions in domain %u; at most %u: take fewer chunks",
			                  program->name, (unsigned long long)instrs[domain], domain,
			                  FERRY_MOST_COUNTERS);
	return ferrySuccess;
}

ferryResult_t ferry_program_check(const struct ferry_program *program)
{
	struct ferry_versions versions;
	ferryResult_t result = check_header(program);
	for (uint32_t i = 0; i < program->nstatements && !result; i++)
		result = check_statement(program, &program->statements[i]);
	if (result || (result = ferry_versions_build(program, &versions)))
		return result;
	for (uint32_t rank = 0; rank < program->nranks && !result; rank++)
		result = check_rank_output(program, &versions, rank);
	if (!result)
		result = check_size(program);
	ferry_versions_free(&versions);
	return result;
}
