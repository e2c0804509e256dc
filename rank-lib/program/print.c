/* SPDX-License-Identifier: Apache-2.0 */
/* Statements to text: the inverse of parse.c, in the same grammar. */
#include "ipc/error.h"
#include "rank-lib/program/versions.h"

#include <stdlib.h>

static void print_size(FILE *out, uint64_t bytes)
{
	static const char units[] = {'G', 'M', 'K'};
	for (unsigned i = 0; i < 3; i++) {
		unsigned shift = 30 - 10 * i;
		if (bytes && !(bytes & ((1ull << shift) - 1))) {
			fprintf(out, "%llu%c", (unsigned long long)(bytes >> shift), units[i]);
			return;
		}
	}
	fprintf(out, "%llu", (unsigned long long)bytes);
}

static void print_statement(FILE *out, const struct ferry_program *program, const struct ferry_statement *statement)
{
	char gpu[16], source[32], destination[32], place[32];
	const char *between = "  deps: ";
	bool puts = statement->opcode == FERRY_PUT;
	uint32_t domain = program->rank_domain[statement->rank];
	snprintf(gpu, sizeof gpu, "gpu[%u]", statement->gpu);
	ferry_place_text(statement->source, domain, source);
	if (puts)
		snprintf(destination, sizeof destination, "gpu@%u[%u]", statement->peer, statement->peer_gpu);
	else
		ferry_place_text(statement->destination, domain, destination);
	fprintf(out, "  %-6s %s -> %s", ferry_statement_name(statement),
	        (puts && !ferry_statement_puts_memory(statement)) || statement->opcode == FERRY_D2H ? gpu : source,
	        statement->opcode == FERRY_H2D ? gpu : destination);
	if (statement->forwards) {
		fprintf(out, "%s%s>=1", between, gpu);
		between = ", ";
	}
	for (uint32_t i = 0; i < statement->ndependencies; i++, between = ", ")
		fprintf(out, "%s%s>=%u", between, ferry_place_text(statement->dependencies[i].place, domain, place),
		        statement->dependencies[i].version);
	fputc('\n', out);
}

ferryResult_t ferry_program_print(const struct ferry_program *program, char **text)
{
	size_t bytes;
	FILE *out = open_memstream(text, &bytes);
	if (!out)
		return ferry_fail(ferrySystemError, "%s: no memory to print it", program->name);
	fprintf(out, "program %s  ranks %u  domains %u  chunks %u", ferry_collective_name(program->collective),
	        program->nranks, program->ndomains, program->nchunks);
	if (ferry_collective_has_root(program->collective))
		fprintf(out, "  root %u", program->root);
	if (program->least_bytes || program->most_bytes != UINT64_MAX) {
		fprintf(out, "  bytes ");
		print_size(out, program->least_bytes);
		fprintf(out, "..");
		print_size(out, program->most_bytes);
	}
	fputc('\n', out);
	uint32_t next = 0;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		fprintf(out, "rank %u", rank);
		if (program->ndomains > 1)
			fprintf(out, " domain %u", program->rank_domain[rank]);
		fputc('\n', out);
		for (; next < program->nstatements && program->statements[next].rank == rank; next++)
			print_statement(out, program, &program->statements[next]);
	}
	if (fclose(out))
		return ferry_fail(ferrySystemError, "%s: no memory to print it", program->name);
	return ferrySuccess;
}
