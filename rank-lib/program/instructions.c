/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/instructions.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

#include <stdlib.h>

/* ---- values: absorbed or windowed ---- */

void ferry_part_absorb(struct ferry_part *part)
{
	struct ferry_versions *versions = &part->versions;
	const struct ferry_program *program = part->program;
	for (uint32_t i = 0; i < program->nstatements; i++)
		for (uint32_t j = 0; j < versions->uses[i].nwaits; j++)
			part->waited[versions->waits[versions->uses[i].first_wait + j]] = true;
	for (uint32_t i = 0; i < program->nstatements; i++) { /* producers first */
		const struct ferry_use *use = &versions->uses[versions->order[i]];
		int opcode = program->statements[versions->order[i]].opcode;
		if (use->writes != FERRY_NO_VALUE)
			part->raw[use->writes] = opcode == FERRY_D2H ||
			                         (opcode == FERRY_H2H && part->raw[use->reads]);
	}
	for (uint32_t i = program->nstatements; i-- > 0;) { /* consumers first, so that their roots are known */
		uint32_t v = versions->uses[versions->order[i]].writes;
		if (v == FERRY_NO_VALUE)
			continue;
		const struct ferry_value *value = &versions->values[v];
		part->root[v] = v;
		if (program->statements[value->writer].opcode != FERRY_REDUCE || value->nreaders != 1 ||
		    part->waited[v])
			continue;
		uint32_t reader = versions->readers[value->first_reader];
		if (program->statements[reader].opcode != FERRY_REDUCE)
			continue;
		part->absorbed[v] = true;
		part->root[v] = part->root[versions->uses[reader].writes];
	}
}

/* ---- instructions ---- */

static struct ferry_instr *new_instr(struct ferry_part *part, uint8_t opcode, uint32_t owner, uint32_t domain,
                                     uint32_t chunk)
{
	struct ferry_compiler *compiler = part->compiler;
	struct ferry_instr *instr = ferry_compiler_grow(compiler, &compiler->instrs, sizeof *instr);
	struct ferry_instr_origin *origin = ferry_compiler_grow(compiler, &compiler->origins, sizeof *origin);
	if (!instr || !origin)
		return NULL;
	origin->statement = FERRY_NO_STATEMENT;
	instr->opcode = opcode;
	instr->owner = (uint8_t)owner;
	instr->domain = (uint8_t)domain;
	instr->counter = compiler->head.counters[domain]++;
	instr->length = ferry_part_chunk_length(part, chunk);
	instr->nslices = (uint32_t)((instr->length + compiler->head.slice - 1) / compiler->head.slice);
	return instr;
}

static int by_lowest_rank(const void *left, const void *right)
{
	uint64_t a = ((const uint64_t *)left)[0], b = ((const uint64_t *)right)[0];
	return (int)ferry_rankset_lowest(a) - (int)ferry_rankset_lowest(b);
}

/* Whether a value is one rank's input, unchanged since its D2H. */
static bool is_raw(const struct ferry_part *part, uint32_t v)
{
	return part->raw[v];
}

/* Lists the operands of v and of all values absorbed into it, as (ranks, value) pairs in the order of ranks. */
static uint32_t collect_leaves(struct ferry_part *part, uint32_t v, uint64_t (*leaves)[2])
{
	uint32_t depth = 0, count = 0;
	part->stack[depth++] = v;
	while (depth) {
		const struct ferry_value *value = &part->versions.values[part->stack[--depth]];
		uint32_t operands[2] = {value->base, value->source};
		for (int i = 0; i < 2; i++) {
			if (operands[i] == FERRY_NO_VALUE)
				continue;
			if (part->absorbed[operands[i]]) {
				part->stack[depth++] = operands[i];
				continue;
			}
			leaves[count][0] = part->versions.values[operands[i]].ranks;
			leaves[count++][1] = operands[i];
		}
	}
	qsort(leaves, count, sizeof *leaves, by_lowest_rank);
	return count;
}

static void add_source(struct ferry_part *part, struct ferry_instr *instr, uint32_t v)
{
	struct ferry_source *source = ferry_compiler_grow(part->compiler, &part->compiler->sources, sizeof *source);
	if (!source)
		return;
	const struct ferry_value *value = &part->versions.values[v];
	source->window_offset = part->window_offset[v];
	source->domain = (uint16_t)ferry_part_home(part, value->place);
	source->rank = is_raw(part, v) ? (uint16_t)ferry_rankset_lowest(value->ranks) : FERRY_PARTIAL;
	instr->nsources++;
}

static uint16_t line_of(const struct ferry_statement *statement)
{
	return statement->line > UINT16_MAX ? UINT16_MAX : (uint16_t)statement->line;
}

/* In a plan with a network: names the block that the instruction moves a part of, and the path. */
static void name_part(const struct ferry_part *part, struct ferry_instr *instr, uint32_t from, uint32_t send_chunk)
{
	const struct ferry_program *program = part->program;
	if (!part->compiler->options->network)
		return;
	instr->from = (uint8_t)from;
	instr->to = (uint8_t)(send_chunk / program->nchunks);
	instr->path = (uint16_t)(1 + send_chunk % program->nchunks);
}

/* Adds a PUT and, at the receiving rank, its WAIT_PUT. Neither has a window; a PUT from memory has a source. */
static void emit_put(struct ferry_part *part, uint32_t statement)
{
	const struct ferry_statement *what = &part->program->statements[statement];
	const uint8_t *rank_domain = part->program->rank_domain;
	bool variable = part->program->collective == FERRY_ALLTOALLV, memory = ferry_statement_puts_memory(what);
	const struct ferry_use *use = &part->versions.uses[statement];
	uint64_t put_at = ferry_part_receive_offset(part, what->peer, what->peer_gpu);
	part->instr_of[statement] = part->compiler->instrs.count;
	struct ferry_instr *put = new_instr(part, FERRY_PUT, what->rank, rank_domain[what->rank],
	                                    memory ? use->chunk : what->gpu);
	if (!put)
		return;
	put->first_source = memory ? part->compiler->sources.count : 0;
	if (memory)
		add_source(part, put, use->reads);
	put->flags = what->forwards ? FERRY_INSTR_FORWARDS : 0;
	put->line = line_of(what);
	put->peer = (uint8_t)what->peer;
	put->chunk = variable ? (uint16_t)what->peer : 0;
	name_part(part, put, ferry_rankset_lowest(use->ranks), use->chunk);
	put->user_offset = memory           ? 0
	                   : what->forwards ? ferry_part_receive_offset(part, what->rank, what->gpu)
	                                  : ferry_part_send_offset(part, what->rank, what->gpu);
	put->user_destination = put_at;
	put->window_domain = put->domain;
	struct ferry_instr *wait = new_instr(part, FERRY_WAIT_PUT, what->peer, rank_domain[what->peer], what->peer_gpu);
	if (!wait)
		return;
	wait->line = line_of(what);
	wait->peer = (uint8_t)what->rank;
	wait->chunk = variable ? (uint16_t)(what->peer_gpu / part->program->nchunks) : 0;
	name_part(part, wait, ferry_rankset_lowest(use->ranks), use->chunk);
	wait->user_offset = put_at;
	wait->window_domain = wait->domain;
	ferry_compiler_origin(part->compiler, part->instr_of[statement])->statement = statement;
	ferry_compiler_origin(part->compiler, part->instr_of[statement] + 1)->statement = statement;
	part->compiler->head.flags |= FERRY_PLAN_PUTS;
}

static void emit(struct ferry_part *part, uint32_t statement)
{
	const struct ferry_program *program = part->program;
	const struct ferry_statement *what = &program->statements[statement];
	const struct ferry_use *use = &part->versions.uses[statement];
	uint32_t carried = use->writes != FERRY_NO_VALUE ? use->writes : use->reads;
	const struct ferry_value *value = &part->versions.values[carried];
	bool passes_on = ferry_statement_passes_on(what);
	uint32_t home = ferry_part_home(part, value->place);
	bool adds = what->opcode == FERRY_REDUCE && ferry_window_is_on_device(home);
	bool lane = what->opcode == FERRY_D2H || what->opcode == FERRY_H2D || passes_on || adds;
	if (use->writes != FERRY_NO_VALUE && part->absorbed[use->writes])
		return; /* part of its root's instruction */
	uint32_t owner = lane ? what->rank : home;
	part->instr_of[statement] = part->compiler->instrs.count;
	uint32_t domain = lane ? program->rank_domain[what->rank] : owner;
	struct ferry_instr *instr = new_instr(part, passes_on ? FERRY_D2H : adds ? FERRY_ADD : what->opcode, owner,
	                                      domain, value->chunk);
	if (!instr)
		return;
	ferry_compiler_origin(part->compiler, part->instr_of[statement])->statement = statement;
	instr->line = line_of(what);
	instr->window_domain = (uint8_t)home;
	instr->window_offset = part->window_offset[carried];
	instr->first_source = part->compiler->sources.count;
	if (lane && ferry_place_is_memory(value->place)) {
		instr->flags |= FERRY_INSTR_MEMORY;
		instr->peer = (uint8_t)(value->place.domain - FERRY_MAX_DOMAINS);
	}
	if (passes_on) {
		add_source(part, instr, use->reads);
	} else if (lane && !adds) {
		instr->user_offset = what->opcode == FERRY_D2H ? ferry_part_send_offset(part, what->rank, what->gpu)
		                                               : ferry_part_receive_offset(part, what->rank, what->gpu);
		instr->chunk = program->collective == FERRY_ALLTOALLV ? (uint16_t)(what->gpu / program->nchunks) : 0;
	} else if (what->opcode == FERRY_H2H) {
		add_source(part, instr, use->reads);
	} else {
		uint64_t leaves[FERRY_MAX_RANKS + 1][2];
		uint32_t count = collect_leaves(part, carried, leaves);
		uint64_t everyone = ferry_rankset_all(program->nranks);
		for (uint32_t i = 0; i < count; i++)
			add_source(part, instr, (uint32_t)leaves[i][1]);
		/* The one source of a copy may be the complete sum already. */
		if (value->ranks == everyone && (count > 1 || is_raw(part, (uint32_t)leaves[0][1])))
			instr->flags |= FERRY_INSTR_FINAL;
	}
	if (lane)
		name_part(part, instr, ferry_rankset_lowest(value->ranks), value->chunk);
	if (!instr->nsources)
		instr->first_source = 0;
}

/* Adds COPYs for output that is the rank's own input and that no statement writes. */
static ferryResult_t emit_copies(struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	struct ferry_own_copy copy = {0};
	while (ferry_own_copy_next(program, &part->versions, &copy)) {
		if (program->collective == FERRY_ALLTOALLV && copy.send_chunk % program->nchunks)
			continue; /* its own block goes whole */
		if (part->compiler->options->redop == ferryNumOps)
			return ferry_fail(ferryProgramError,
			                  "%s: premulsum scales in a REDUCE, and chunk %u of rank %u has passed none",
			                  program->name, copy.receive_chunk, copy.rank);
		struct ferry_instr *instr = new_instr(part, FERRY_COPY, copy.rank, program->rank_domain[copy.rank],
		                                      copy.send_chunk);
		if (!instr)
			return ferrySuccess; /* compiler->failed is set */
		instr->user_offset = ferry_part_send_offset(part, copy.rank, copy.send_chunk);
		instr->user_destination = ferry_part_receive_offset(part, copy.rank, copy.receive_chunk);
		struct ferry_instr_origin *origin =
		        ferry_compiler_origin(part->compiler, part->compiler->instrs.count - 1);
		origin->send = copy.send_chunk;
		origin->receive = copy.receive_chunk;
		instr->window_domain = program->rank_domain[copy.rank];
		instr->chunk = program->collective == FERRY_ALLTOALLV ? (uint16_t)copy.rank : 0;
	}
	return ferrySuccess;
}

/* Whether a rank's input goes to an output unchanged. */
static bool is_unscaled(const struct ferry_part *part, uint32_t statement)
{
	const struct ferry_statement *what = &part->program->statements[statement];
	bool memory = ferry_statement_puts_memory(what);
	if (what->opcode == FERRY_H2D || memory)
		return is_raw(part, part->versions.uses[statement].reads);
	return what->opcode == FERRY_PUT && !what->forwards; /* another H2D or PUT has brought what this forwards */
}

/* Adds the DIVIDE, by the router of rank 0's domain, as the last instruction. */
static void emit_division(struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	uint32_t domain = program->rank_domain[0];
	struct ferry_instr *instr = new_instr(part, FERRY_DIVIDE, domain, domain, 0);
	if (!instr)
		return;
	instr->length = instr->nslices = 1;
	instr->window_domain = (uint8_t)domain;
	instr->wakes_d2h = instr->wakes_h2d = ferry_rankset_all(program->nranks);
}

ferryResult_t ferry_part_emit(struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	for (uint32_t i = 0; i < program->nstatements && !part->compiler->failed; i++) {
		uint32_t statement = part->versions.order[i];
		const struct ferry_statement *what = &program->statements[statement];
		if (what->opcode == FERRY_PUT)
			emit_put(part, statement);
		else
			emit(part, statement);
		if (part->compiler->options->redop == ferryNumOps && is_unscaled(part, statement))
			return ferry_fail(ferryProgramError,
			                  "%s:%u: premulsum scales in a REDUCE, and this output has passed none",
			                  program->name, what->line);
	}
	ferryResult_t result = emit_copies(part);
	if (result)
		return result;
	if (part->compiler->options->network)
		emit_division(part);
	/* The statements that became part of another's instruction. */
	for (uint32_t i = 0; i < program->nstatements; i++) {
		uint32_t v = part->versions.uses[i].writes;
		if (v != FERRY_NO_VALUE && part->absorbed[v])
			part->instr_of[i] = part->instr_of[part->versions.values[part->root[v]].writer];
	}
	return ferrySuccess;
}
