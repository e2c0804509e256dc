/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/edges.h"

#include <stdlib.h>

#define NONE UINT32_MAX

static void wake(const struct ferry_instr *waiter, struct ferry_instr *producer)
{
	if (ferry_opcode_is_d2h(waiter->opcode))
		producer->wakes_d2h |= 1ull << waiter->owner;
	else if (ferry_opcode_is_h2d(waiter->opcode))
		producer->wakes_h2d |= 1ull << waiter->owner;
	else
		producer->wakes_domains |= (uint8_t)(1u << waiter->owner);
}

static void add_edge(struct ferry_part *part, uint32_t waiter, uint32_t producer, uint32_t lag)
{
	struct ferry_instr *instr = ferry_compiler_instr(part->compiler, waiter);
	uint32_t *last = &part->compiler->last_edge[2 * (size_t)producer + (lag != 0)];
	if (*last == waiter + 1)
		return;
	*last = waiter + 1;
	struct ferry_edge *edge = ferry_compiler_grow(part->compiler, &part->compiler->edges, sizeof *edge);
	if (!edge)
		return;
	*edge = (struct ferry_edge){producer, lag};
	instr->nedges++;
	wake(instr, ferry_compiler_instr(part->compiler, producer));
}

/*
 * The writer may write slice k when the reader has read slice k - W, which had the same slot; a copy engine stays
 * `guard` slots further behind cores that read.
 */
static void add_reuse(struct ferry_part *part, uint32_t writer, uint32_t reader)
{
	bool guarded = ferry_compiler_instr(part->compiler, writer)->opcode == FERRY_D2H &&
	               ferry_compiler_instr(part->compiler, reader)->opcode == FERRY_REDUCE;
	add_edge(part, writer, reader, part->compiler->head.window - (guarded ? part->compiler->tuning.guard : 0));
}

static uint32_t writer_instr(const struct ferry_part *part, uint32_t v)
{
	return part->instr_of[part->versions.values[v].writer];
}

static void add_waits(struct ferry_part *part, uint32_t waiter, uint32_t statement)
{
	const struct ferry_use *use = &part->versions.uses[statement];
	for (uint32_t i = 0; i < use->nwaits; i++)
		add_edge(part, waiter, writer_instr(part, part->versions.waits[use->first_wait + i]), 0);
}

/* Adds what a REDUCE and all REDUCEs that it absorbed read and wait for. */
static void add_reduce_needs(struct ferry_part *part, uint32_t waiter, uint32_t v)
{
	uint32_t depth = 0;
	part->stack[depth++] = v;
	while (depth) {
		const struct ferry_value *value = &part->versions.values[part->stack[--depth]];
		uint32_t operands[2] = {value->base, value->source};
		add_waits(part, waiter, value->writer);
		for (int i = 0; i < 2; i++)
			if (operands[i] != FERRY_NO_VALUE && part->absorbed[operands[i]])
				part->stack[depth++] = operands[i];
			else if (operands[i] != FERRY_NO_VALUE)
				add_edge(part, waiter, writer_instr(part, operands[i]), 0);
	}
}

/* Returns the send chunk that has the same memory as a rank's receive chunk if the call is in place, or NONE. */
static uint32_t overwritten_chunk(const struct ferry_program *program, uint32_t rank, uint32_t receive)
{
	switch (program->collective) {
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		return receive / program->nchunks == rank ? receive % program->nchunks : NONE;
	case FERRY_REDUCESCATTER:
	case FERRY_SCATTER:
		return rank * program->nchunks + receive;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		return NONE;
	case FERRY_ALLREDUCE:
	case FERRY_BROADCAST:
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_ALLTOALL:
		return receive;
	}
	return NONE;
}

/*
 * In a call in place, a write of a receive chunk comes after the D2Hs and PUTs that read the same bytes from the send
 * buffer. That makes no cycle: D2Hs and what routers do wait for no PUT and no H2D; a PUT from a send buffer waits for
 * those, and for such a PUT of an earlier round; H2Ds and PUTs that forward wait for all of these, and for each other
 * in the checker's order. So a PUT from a send buffer gets no edge to the PUTs that read what it overwrites: in
 * AllToAll two ranks swap, and each would wait for the other. There the caller avoids the conflict: a rank whose
 * buffers overlap pushes from a copy.
 */
static void add_in_place_edges(struct ferry_part *part, uint32_t waiter, uint32_t statement)
{
	const struct ferry_program *program = part->program;
	const struct ferry_statement *what = &program->statements[statement];
	bool puts = what->opcode == FERRY_PUT;
	uint32_t rank = puts ? what->peer : what->rank, receive = puts ? what->peer_gpu : what->gpu;
	uint32_t most = program->nranks * program->nchunks, chunk = overwritten_chunk(program, rank, receive);
	if (chunk == NONE || chunk >= most)
		return;
	for (uint32_t i = part->sender_first[rank * most + chunk]; i != NONE; i = part->sender_next[i])
		if (!puts || what->forwards || ferry_statement_puts_memory(what) ||
		    program->statements[i].opcode == FERRY_D2H)
			add_edge(part, waiter, part->instr_of[i], 0);
}

static void index_senders(struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	uint32_t most = program->nranks * program->nchunks;
	for (uint32_t i = 0; i < program->nranks * most; i++)
		part->sender_first[i] = NONE;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (!ferry_opcode_is_d2h(statement->opcode) || statement->forwards ||
		    ferry_statement_puts_memory(statement))
			continue;
		uint32_t *first = &part->sender_first[statement->rank * most + statement->gpu];
		part->sender_next[i] = *first;
		*first = i;
	}
}

/*
 * Two copy engines that write through one port have half its rate each, while another port is idle. Two that met in one
 * round meet in the next, too: four GPUs behind a switch push 200 GB/s each so, and 330 in turns
 * (docs/lab/four-gpus.md). So a PUT waits for the PUT of the round before into the same rank, in AllGather and
 * AllToAll, whose rounds are permutations. That makes no cycle, as rounds go up and such PUTs wait for D2Hs alone
 * otherwise. Where PUTs forward, or lengths differ, rounds are not regular, and PUTs run without turns.
 */
static bool puts_in_turns(const struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	if (!part->compiler->options->ports || program->nchunks > 1 || program->collective == FERRY_ALLTOALLV)
		return false;
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (program->statements[i].forwards || ferry_statement_puts_memory(&program->statements[i]))
			return false;
	return true;
}

/* Fills in put_before. The k-th PUT of a rank is of round k. */
static void index_turns(struct ferry_part *part)
{
	const struct ferry_program *program = part->program;
	uint32_t n = program->nranks, rounds[FERRY_MAX_RANKS] = {0}, last[FERRY_MAX_RANKS] = {0};
	bool turns = puts_in_turns(part);
	uint32_t *into = turns ? calloc((size_t)n * n, sizeof *into) : NULL; /* by round and peer: 1 + the PUT */
	part->compiler->failed |= turns && !into;
	for (uint32_t i = 0; into && i < program->nstatements; i++) {
		const struct ferry_statement *put = &program->statements[i];
		if (put->opcode == FERRY_PUT && rounds[put->rank] < n)
			into[n * rounds[put->rank]++ + put->peer] = i + 1;
	}
	for (uint32_t i = 0; into && i < program->nstatements; i++) {
		const struct ferry_statement *put = &program->statements[i];
		if (put->opcode == FERRY_PUT && last[put->rank] < n && last[put->rank]++)
			part->put_before[i] = into[n * (last[put->rank] - 2) + put->peer];
	}
	free(into);
}

/* Adds the edges of a statement with an instruction of its own. */
static void add_statement_edges(struct ferry_part *part, uint32_t statement)
{
	const struct ferry_versions *versions = &part->versions;
	const struct ferry_use *use = &versions->uses[statement];
	const struct ferry_statement *what = &part->program->statements[statement];
	uint32_t waiter = part->instr_of[statement];
	ferry_compiler_instr(part->compiler, waiter)->first_edge = part->compiler->edges.count;
	if (what->opcode == FERRY_REDUCE) {
		add_reduce_needs(part, waiter, use->writes);
	} else {
		if (use->reads != FERRY_NO_VALUE)
			add_edge(part, waiter, writer_instr(part, use->reads), 0);
		if (use->forwards != FERRY_NO_STATEMENT)
			add_edge(part, waiter, part->instr_of[use->forwards], 0);
		add_waits(part, waiter, statement);
	}
	if (what->opcode == FERRY_H2D || what->opcode == FERRY_PUT)
		add_in_place_edges(part, waiter, statement);
	if (part->put_before[statement])
		add_edge(part, waiter, part->instr_of[part->put_before[statement] - 1], 0);
	if (what->opcode == FERRY_PUT) {
		ferry_compiler_instr(part->compiler, waiter + 1)->first_edge = part->compiler->edges.count;
		add_edge(part, waiter + 1, waiter, 0);
	}
	if (use->writes == FERRY_NO_VALUE)
		return;
	const struct ferry_value *value = &versions->values[use->writes];
	for (uint32_t j = 0; j < value->nreaders; j++)
		add_reuse(part, waiter, part->instr_of[versions->readers[value->first_reader + j]]);
}

void ferry_part_add_edges(struct ferry_part *part)
{
	const struct ferry_versions *versions = &part->versions;
	index_senders(part);
	index_turns(part);
	for (uint32_t i = 0; i < part->program->nstatements && !part->compiler->failed; i++) {
		uint32_t written = versions->uses[versions->order[i]].writes;
		if (written == FERRY_NO_VALUE || !part->absorbed[written])
			add_statement_edges(part, versions->order[i]);
	}
}
