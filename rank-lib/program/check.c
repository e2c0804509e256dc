/* SPDX-License-Identifier: Apache-2.0 */
/* The checker: bounds, then the single-assignment form with its own checks, then every rank's output. */
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/versions.h"

#include <stdlib.h>

static ferryResult_t check_place(const struct ferry_program *program, const struct ferry_statement *statement,
                                 struct ferry_place place)
{
	if (place.domain < program->ndomains)
		return ferrySuccess;
	return ferry_fail(ferryProgramError, "%s:%u: host@%u[%u]: the program has domains 0 to %u", program->name,
	                  statement->line, place.domain, place.chunk, program->ndomains - 1);
}

static ferryResult_t check_statement(const struct ferry_program *program, const struct ferry_statement *statement)
{
	static const char *const names[] = {"D2H", "H2D", "COPY", "REDUCE", "H2H"};
	bool from_device = statement->opcode == FERRY_D2H, to_device = statement->opcode == FERRY_H2D;
	uint32_t send, receive;
	ferryResult_t result = ferrySuccess;
	if (statement->rank >= program->nranks)
		return ferry_fail(ferryProgramError, "%s:%u: rank %u of %u", program->name, statement->line,
		                  statement->rank, program->nranks);
	if (!from_device)
		result = check_place(program, statement, statement->source);
	if (!result && !to_device)
		result = check_place(program, statement, statement->destination);
	for (uint32_t i = 0; !result && i < statement->ndependencies; i++)
		result = check_place(program, statement, statement->dependencies[i].place);
	if (result)
		return result;
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, statement->rank,
	                        &send, &receive);
	if ((from_device && statement->gpu >= send) || (to_device && statement->gpu >= receive))
		return ferry_fail(ferryProgramError, "%s:%u: gpu[%u]: the %s buffer of rank %u has %u chunk%s",
		                  program->name, statement->line, statement->gpu, from_device ? "send" : "receive",
		                  statement->rank, from_device ? send : receive,
		                  (from_device ? send : receive) == 1 ? "" : "s");
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
		return ferry_fail(ferryProgramError, "%s:%u: REDUCE of host[%u] into itself", program->name,
		                  statement->line, statement->source.chunk);
	if (program->collective == FERRY_ALLTOALLV && !from_device && !to_device)
		return ferry_fail(ferryProgramError,
		                  "%s:%u: alltoallv has D2H and H2D only, not %s: only the two ends know a chunk's "
		                  "size",
		                  program->name, statement->line, names[statement->opcode]);
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
		return ferry_fail(ferryProgramError, "%s: root %u of %u ranks", program->name, program->root,
		                  program->nranks);
	if (program->collective == FERRY_SENDRECV && program->nranks != 2)
		return ferry_fail(ferryProgramError, "%s: sendrecv is between 2 ranks, not %u", program->name,
		                  program->nranks);
	if (program->collective == FERRY_ALLTOALLV && program->nchunks != 1)
		return ferry_fail(ferryProgramError, "%s: alltoallv has 1 chunk per pair of ranks, not %u",
		                  program->name, program->nchunks);
	for (uint32_t rank = 0; rank < program->nranks; rank++)
		if (program->rank_domain[rank] >= program->ndomains)
			return ferry_fail(ferryProgramError, "%s: rank %u is in domain %u of %u", program->name, rank,
			                  program->rank_domain[rank], program->ndomains);
	return ferrySuccess;
}

static ferryResult_t wrong_output(const struct ferry_program *program, uint32_t line, uint32_t rank, uint32_t chunk,
                                  uint64_t wanted, uint32_t wanted_chunk, const struct ferry_value *value)
{
	char where[64];
	snprintf(where, sizeof where, line ? "%s:%u" : "%s", program->name, line);
	if (!value)
		return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u is never written", where, rank,
		                  chunk);
	if (value->chunk != wanted_chunk)
		return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u gets input chunk %u instead of %u",
		                  where, rank, chunk, value->chunk, wanted_chunk);
	uint64_t missing = wanted & ~value->ranks, surplus = value->ranks & ~wanted;
	if (missing && surplus)
		return ferry_fail(ferryProgramError,
		                  "%s: rank %u's output chunk %u gets the contribution of rank %u, not of rank %u",
		                  where, rank, chunk, ferry_rankset_lowest(surplus), ferry_rankset_lowest(missing));
	return ferry_fail(ferryProgramError, "%s: rank %u's output chunk %u %s the contribution of rank %u", where,
	                  rank, chunk, missing ? "lacks" : "has too much:",
	                  ferry_rankset_lowest(missing ? missing : surplus));
}

static ferryResult_t check_rank_output(const struct ferry_program *program, const struct ferry_versions *versions,
                                       uint32_t rank, const uint32_t *writer)
{
	uint32_t send, receive;
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank, &send,
	                        &receive);
	for (uint32_t chunk = 0; chunk < receive; chunk++) {
		uint64_t ranks;
		uint32_t send_chunk;
		ferry_collective_demand(program, rank, chunk, &ranks, &send_chunk);
		if (writer[chunk] == UINT32_MAX) {
			/* The rank's own input, or the sum over it alone: the compiler copies it on the device. */
			if (ranks == 1ull << rank)
				continue;
			return wrong_output(program, 0, rank, chunk, ranks, send_chunk, NULL);
		}
		const struct ferry_value *value = &versions->values[versions->uses[writer[chunk]].reads];
		if (value->ranks != ranks || value->chunk != send_chunk)
			return wrong_output(program, program->statements[writer[chunk]].line, rank, chunk, ranks,
			                    send_chunk, value);
	}
	return ferrySuccess;
}

static ferryResult_t check_outputs(const struct ferry_program *program, const struct ferry_versions *versions)
{
	uint32_t most = program->nranks * program->nchunks;
	uint32_t *writer = malloc((size_t)program->nranks * most * sizeof *writer);
	ferryResult_t result = ferrySuccess;
	if (!writer)
		return ferry_fail(ferrySystemError, "%s: no memory to check %u chunks", program->name, most);
	for (size_t i = 0; i < (size_t)program->nranks * most; i++)
		writer[i] = UINT32_MAX;
	for (uint32_t i = 0; i < program->nstatements && !result; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (statement->opcode != FERRY_H2D)
			continue;
		uint32_t *first = &writer[(size_t)statement->rank * most + statement->gpu];
		if (*first != UINT32_MAX)
			result = ferry_fail(ferryProgramError,
			                    "%s:%u: rank %u's output chunk %u is written here and in line "
			                    "%u", program->name,
			                    statement->line, statement->rank, statement->gpu,
			                    program->statements[*first].line);
		*first = i;
	}
	for (uint32_t rank = 0; rank < program->nranks && !result; rank++)
		result = check_rank_output(program, versions, rank, writer + (size_t)rank * most);
	free(writer);
	return result;
}

/* An instruction is where its counter is, and each statement is one at most; so is the copy of a rank's own input. */
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
		if (statement->opcode == FERRY_D2H)
			instrs[program->rank_domain[statement->rank]]++;
		else if (statement->opcode != FERRY_H2D) /* which are among what is received */
			instrs[statement->destination.domain]++;
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
	result = check_outputs(program, &versions);
	if (!result)
		result = check_size(program);
	ferry_versions_free(&versions);
	return result;
}
