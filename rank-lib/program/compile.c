/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From checked programs to a plan. The single-assignment form (versions.c) has a value per chunk version; a value whose
 * only reader is a REDUCE disappears into that one ("absorbed"), so a chain becomes one pass over its leaves. Every
 * value left gets a window and every statement left an instruction (instructions.c); needs and reuse become edges
 * (edges.c). Parts of one call are compiled one behind another, with one slice and one window for all of them.
 */
#include "ipc/error.h"
#include "rank-lib/program/edges.h"
#include "rank-lib/program/instructions.h"

#include <stdlib.h>
#include <string.h>

/* ---- slices and windows ---- */

static uint64_t longest_chunk(const struct ferry_part *part)
{
	uint64_t longest = 0;
	for (uint32_t chunk = 0; chunk < part->program->nchunks; chunk++)
		if (ferry_part_chunk_length(part, chunk) > longest)
			longest = ferry_part_chunk_length(part, chunk);
	return longest;
}

static bool has_windows(const struct ferry_part *part)
{
	return part->versions.nvalues > 0;
}

static bool any_forwards(const struct ferry_part *parts, uint32_t nparts)
{
	for (uint32_t p = 0; p < nparts; p++)
		for (uint32_t i = 0; i < parts[p].program->nstatements; i++)
			if (parts[p].program->statements[i].forwards)
				return true;
	return false;
}

static bool any_puts(const struct ferry_part *parts, uint32_t nparts)
{
	for (uint32_t p = 0; p < nparts; p++)
		for (uint32_t i = 0; i < parts[p].program->nstatements; i++)
			if (parts[p].program->statements[i].opcode == FERRY_PUT)
				return true;
	return false;
}

/* Returns the part that decides slices, windows and workers: of the parts with windows, that of the longest chunks. */
static const struct ferry_part *find_leader(const struct ferry_part *parts, uint32_t nparts)
{
	const struct ferry_part *leader = &parts[0];
	for (uint32_t p = 1; p < nparts; p++)
		if (has_windows(&parts[p]) != has_windows(leader)
		            ? has_windows(&parts[p])
		            : longest_chunk(&parts[p]) > longest_chunk(leader))
			leader = &parts[p];
	return leader;
}

/* homes: bytes that are taken in each. */
static void place_windows(struct ferry_part *part, uint64_t *homes)
{
	const struct ferry_plan *head = &part->compiler->head;
	uint64_t bytes = ((uint64_t)head->slice * head->window + 127) / 128 * 128;
	for (uint32_t v = 0; v < part->versions.nvalues; v++)
		if (!part->absorbed[v]) {
			uint64_t *next = &homes[ferry_part_home(part, part->versions.values[v].place)];
			part->window_offset[v] = *next;
			*next += bytes;
		}
}

static struct ferry_tuning_facts facts_of(const struct ferry_compiler *compiler, const struct ferry_part *parts,
                                          uint32_t nparts)
{
	const struct ferry_part *leader = find_leader(parts, nparts);
	struct ferry_tuning_facts facts = {.options = compiler->options,
	                                   .program = leader->program,
	                                   .longest = longest_chunk(leader),
	                                   .puts = any_puts(parts, nparts),
	                                   .forwards = any_forwards(parts, nparts)};
	for (uint32_t p = 0; p < nparts; p++) {
		uint64_t longest = longest_chunk(&parts[p]);
		facts.windows |= has_windows(&parts[p]);
		facts.longest_of_all = longest > facts.longest_of_all ? longest : facts.longest_of_all;
		for (uint32_t v = 0; v < parts[p].versions.nvalues; v++)
			if (!parts[p].absorbed[v])
				facts.nwindows[ferry_part_home(&parts[p], parts[p].versions.values[v].place)]++;
	}
	return facts;
}

static ferryResult_t lay_out(struct ferry_compiler *compiler, struct ferry_part *parts, uint32_t nparts)
{
	struct ferry_tuning_facts facts = facts_of(compiler, parts, nparts);
	struct ferry_plan *head = &compiler->head;
	uint64_t homes[FERRY_HOMES] = {0};
	ferryResult_t result = ferry_tune(&facts, &compiler->tuning);
	if (result)
		return result;
	head->slice = compiler->tuning.slice;
	head->window = compiler->tuning.window;
	head->workers = compiler->tuning.workers;
	head->advance = compiler->tuning.advance;
	for (uint32_t p = 0; p < nparts; p++)
		place_windows(&parts[p], homes);
	memcpy(head->staging, homes, sizeof head->staging);
	for (uint32_t home = FERRY_MAX_DOMAINS; home < FERRY_HOMES; home++)
		head->memory = homes[home] ? compiler->options->memory : head->memory;
	head->ndomains = (uint8_t)facts.program->ndomains;
	head->collective = (uint8_t)facts.program->collective;
	head->nchunks = (uint16_t)facts.program->nchunks;
	return ferrySuccess;
}

/* ---- the blob ---- */

static ferryResult_t finish(struct ferry_compiler *compiler, const struct ferry_program *program,
                          struct ferry_plan **sealed)
{
	struct ferry_plan *head = &compiler->head;
	const struct ferry_compile_options *options = compiler->options;
	head->magic = FERRY_PLAN_MAGIC;
	head->abi = FERRY_PLAN_ABI;
	head->count = program->collective == FERRY_ALLTOALLV ? 0 : options->count;
	head->root = program->root;
	head->collective = (uint8_t)program->collective;
	head->type = (uint8_t)options->type;
	head->redop = (uint8_t)(ferry_collective_reduces(program->collective) ? options->redop : ferrySum);
	if (program->collective == FERRY_ALLTOALLV)
		head->flags |= FERRY_PLAN_VARIABLE;
	if (options->dma)
		head->flags |= FERRY_PLAN_DMA;
	head->nranks = (uint8_t)program->nranks;
	memcpy(head->rank_domain, program->rank_domain, program->nranks);
	head->ninstrs = compiler->instrs.count;
	head->nedges = compiler->edges.count;
	head->nsources = compiler->sources.count;
	head->instrs_at = sizeof *head;
	head->edges_at = head->instrs_at + head->ninstrs * (uint32_t)sizeof(struct ferry_instr);
	head->sources_at = head->edges_at + head->nedges * (uint32_t)sizeof(struct ferry_edge);
	head->bytes = head->sources_at + head->nsources * sizeof(struct ferry_source);
	if (options->network) {
		head->network_at = (uint32_t)head->bytes;
		head->bytes += sizeof *options->network;
	}
	if (head->bytes > FERRY_PLAN_MAX_BYTES)
		return ferry_fail(ferryProgramError, "%s: a plan of %llu bytes, at most %u", program->name,
		                  (unsigned long long)head->bytes, FERRY_PLAN_MAX_BYTES);
	struct ferry_plan *plan = malloc(head->bytes);
	if (!plan)
		return ferry_fail(ferrySystemError, "%s: no memory for a plan of %llu bytes", program->name,
		                  (unsigned long long)head->bytes);
	memcpy(plan, head, sizeof *head);
	if (head->ninstrs)
		memcpy((char *)plan + head->instrs_at, compiler->instrs.items,
		       head->ninstrs * sizeof(struct ferry_instr));
	if (head->nedges)
		memcpy((char *)plan + head->edges_at, compiler->edges.items, head->nedges * sizeof(struct ferry_edge));
	if (head->nsources)
		memcpy((char *)plan + head->sources_at, compiler->sources.items,
		       head->nsources * sizeof(struct ferry_source));
	if (head->network_at)
		memcpy((char *)plan + head->network_at, options->network, sizeof *options->network);
	plan->hash = ferry_plan_hash(plan);
	*sealed = plan;
	return ferrySuccess;
}

/* ---- parts ---- */

static bool allocate(struct ferry_part *part)
{
	uint32_t n = part->program->nstatements + 1, most = part->program->nranks * part->program->nchunks;
	part->absorbed = calloc(n, sizeof *part->absorbed);
	part->waited = calloc(n, sizeof *part->waited);
	part->raw = calloc(n, sizeof *part->raw);
	part->root = calloc(n, sizeof *part->root);
	part->instr_of = calloc(n, sizeof *part->instr_of);
	part->window_offset = calloc(n, sizeof *part->window_offset);
	part->stack = calloc(n, sizeof *part->stack);
	part->sender_next = calloc(n, sizeof *part->sender_next);
	part->put_before = calloc(n, sizeof *part->put_before);
	part->sender_first = calloc((size_t)part->program->nranks * most, sizeof *part->sender_first);
	return part->absorbed && part->waited && part->raw && part->root && part->instr_of && part->window_offset &&
	       part->stack && part->sender_next && part->sender_first && part->put_before;
}

static void close_part(struct ferry_part *part)
{
	ferry_versions_free(&part->versions);
	free(part->absorbed);
	free(part->waited);
	free(part->raw);
	free(part->root);
	free(part->instr_of);
	free(part->window_offset);
	free(part->stack);
	free(part->sender_next);
	free(part->sender_first);
	free(part->put_before);
}

static ferryResult_t open_part(struct ferry_compiler *compiler, const struct ferry_program_part *given,
                               struct ferry_part *part)
{
	*part = (struct ferry_part){
	        .compiler = compiler, .program = given->program, .first = given->first, .count = given->count};
	ferryResult_t result = ferry_program_check(part->program);
	if (!result)
		result = ferry_versions_build(part->program, &part->versions);
	if (result)
		return result;
	if (!allocate(part))
		return ferry_fail(ferrySystemError, "%s: no memory to compile", part->program->name);
	ferry_part_absorb(part);
	return ferrySuccess;
}

static bool same_job(const struct ferry_program *a, const struct ferry_program *b)
{
	return a->collective == b->collective && a->nranks == b->nranks && a->ndomains == b->ndomains &&
	       a->root == b->root && !memcmp(a->rank_domain, b->rank_domain, a->nranks);
}

/* The parts are of one collective, and every element that is not left out is in one of them. */
static ferryResult_t check_parts(const struct ferry_program_part *parts, uint32_t nparts,
                                 const struct ferry_compile_options *options)
{
	const struct ferry_program *program = parts[0].program;
	uint64_t moved = options->count - options->left_out.count, left = moved;
	if (program->collective == FERRY_ALLTOALLV && program->nchunks > 1 && !options->network)
		return ferry_fail(ferryProgramError, "%s: an alltoallv whose blocks have %u parts each, and no network "
		                  "by which a router would divide calls among them", program->name, program->nchunks);
	if (nparts > 1 && program->collective == FERRY_ALLTOALLV)
		return ferry_fail(ferryInvalidArgument, "%s: an alltoallv in %u parts", program->name, nparts);
	for (uint32_t p = 0; p < nparts && program->collective != FERRY_ALLTOALLV; p++) {
		const struct ferry_program_part *part = &parts[p];
		bool inside = part->count <= left && part->first <= moved - part->count;
		for (uint32_t q = 0; q < p && inside; q++)
			inside = !part->count || !parts[q].count || part->first >= parts[q].first + parts[q].count ||
			         parts[q].first >= part->first + part->count;
		if (!inside || !same_job(program, part->program))
			return ferry_fail(ferryInvalidArgument,
			                  "%s: part %u of a call of %llu elements has %llu from %llu: %s",
			                  part->program->name, p, (unsigned long long)moved,
			                  (unsigned long long)part->count, (unsigned long long)part->first,
			                  inside ? "it is of another collective or for other ranks"
			                         : "they are not there, or another part has some");
		left -= part->count;
	}
	if (left && program->collective != FERRY_ALLTOALLV)
		return ferry_fail(ferryInvalidArgument, "%s: %llu of %llu elements are in no part", program->name,
		                  (unsigned long long)left, (unsigned long long)moved);
	return ferrySuccess;
}

static ferryResult_t compile_parts(struct ferry_compiler *compiler, struct ferry_part *parts, uint32_t nparts,
                                   struct ferry_plan **plan)
{
	ferryResult_t result = lay_out(compiler, parts, nparts);
	for (uint32_t p = 0; p < nparts && !result; p++)
		result = ferry_part_emit(&parts[p]);
	if (result)
		return result;
	compiler->last_edge = calloc(2 * (size_t)compiler->instrs.count + 1, sizeof *compiler->last_edge);
	compiler->failed |= !compiler->last_edge;
	for (uint32_t p = 0; p < nparts && !compiler->failed; p++)
		ferry_part_add_edges(&parts[p]);
	for (uint32_t i = 0; i < compiler->instrs.count; i++)
		if (!ferry_compiler_instr(compiler, i)->nedges)
			ferry_compiler_instr(compiler, i)->first_edge = 0;
	return compiler->failed ? ferry_fail(ferrySystemError, "%s: no memory to compile", parts[0].program->name)
	                        : finish(compiler, parts[0].program, plan);
}

static ferryResult_t compile(const struct ferry_program_part *given, uint32_t nparts,
                             const struct ferry_compile_options *options, struct ferry_plan **plan,
                             struct ferry_instr_origin **origins)
{
	struct ferry_compiler compiler = {.options = options};
	if (!nparts)
		return ferry_fail(ferryInvalidArgument, "a call of %llu elements in no part",
		                  (unsigned long long)options->count);
	if (!ferry_type_size(options->type) || (unsigned)options->redop > ferryNumOps ||
	    options->count > (1ull << 50) / FERRY_MAX_RANKS || options->left_out.count > options->count ||
	    options->slice % 64)
		return ferry_fail(ferryInvalidArgument,
		                  "%s: compiling for type %d, op %d, count %llu, %llu of them left out, slice %u",
		                  given->program->name, (int)options->type, (int)options->redop,
		                  (unsigned long long)options->count, (unsigned long long)options->left_out.count,
		                  options->slice);
	ferryResult_t result = check_parts(given, nparts, options);
	if (result)
		return result;
	struct ferry_part *parts = calloc(nparts, sizeof *parts);
	if (!parts)
		return ferry_fail(ferrySystemError, "%s: no memory to compile", given->program->name);
	uint32_t opened = 0;
	for (uint32_t p = 0; p < nparts && !result; p++)
		/* a part without elements needs no windows */
		if (given[p].count || options->count == options->left_out.count || nparts == 1)
			result = open_part(&compiler, &given[p], &parts[opened++]);
	if (!result)
		result = compile_parts(&compiler, parts, opened, plan);
	if (!result && origins) {
		*origins = compiler.origins.items;
		compiler.origins.items = NULL;
	}
	for (uint32_t p = 0; p < opened; p++)
		close_part(&parts[p]);
	free(parts);
	free(compiler.last_edge);
	free(compiler.instrs.items);
	free(compiler.edges.items);
	free(compiler.sources.items);
	free(compiler.origins.items);
	return result;
}

ferryResult_t ferry_program_compile(const struct ferry_program *program, const struct ferry_compile_options *options,
                                    struct ferry_plan **plan)
{
	return ferry_program_compile_traced(program, options, plan, NULL);
}

ferryResult_t ferry_program_compile_traced(const struct ferry_program *program,
                                           const struct ferry_compile_options *options, struct ferry_plan **plan,
                                           struct ferry_instr_origin **origins)
{
	const struct ferry_program_part whole = {program, 0, options->count - options->left_out.count};
	return compile(&whole, 1, options, plan, origins);
}

ferryResult_t ferry_program_compile_parts(const struct ferry_program_part *parts, uint32_t nparts,
                                          const struct ferry_compile_options *options, struct ferry_plan **plan)
{
	return compile(parts, nparts, options, plan, NULL);
}
