/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a checked program to a plan. The single-assignment form (versions.c) has a value per chunk version; a value
 * whose only reader is a REDUCE disappears into that one ("absorbed"), so a chain becomes one pass over its leaves.
 * Every value left gets a window and every statement left an instruction; needs and reuse become edges.
 */
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "rank-lib/program/slicing.h"
#include "rank-lib/program/versions.h"

#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX

struct growing {
	void *items;
	uint32_t count, capacity;
};

struct compiler {
	const struct ferry_program *program;
	const struct ferry_compile_options *options;
	struct ferry_versions versions;
	bool failed;              /* out of memory; looked at once at the end of each stage */
	bool *absorbed, *waited;  /* per value */
	bool *raw;                /* per value: one rank's input, unchanged since its D2H */
	uint32_t *root;           /* per value: the value that it ends up in; itself if not absorbed */
	uint32_t *instr_of;       /* per statement: its instruction, or the one it is part of */
	uint64_t *window_offset;  /* per value */
	uint32_t *stack;          /* per value: scratch */
	uint32_t *last_edge; /* per instruction and kind of lag: one more than who got an edge to it last */
	uint32_t *d2h_first, *d2h_next; /* D2H instructions by (rank, send chunk), and the next of the same */
	struct growing instrs, edges, sources;
	struct growing origins;   /* of instructions, for people */
	struct ferry_plan head;
	uint64_t longest;         /* bytes of the longest chunk */
	uint32_t guard;           /* slots of a window that a copy engine leaves alone behind the cores that read it */
};

static void *grow(struct compiler *compiler, struct growing *list, size_t item)
{
	if (list->count == list->capacity) {
		uint32_t capacity = list->capacity ? 2 * list->capacity : 64;
		void *grown = realloc(list->items, capacity * item);
		if (!grown) {
			compiler->failed = true;
			return NULL;
		}
		list->items = grown;
		list->capacity = capacity;
	}
	void *slot = (char *)list->items + item * list->count++;
	memset(slot, 0, item);
	return slot;
}

static struct ferry_instr *instr_at(const struct compiler *compiler, uint32_t index)
{
	return (struct ferry_instr *)compiler->instrs.items + index;
}

static struct ferry_instr_origin *origin_at(const struct compiler *compiler, uint32_t index)
{
	return (struct ferry_instr_origin *)compiler->origins.items + index;
}

/* ---- values: absorbed or windowed ---- */

static void absorb(struct compiler *compiler)
{
	struct ferry_versions *versions = &compiler->versions;
	const struct ferry_program *program = compiler->program;
	for (uint32_t i = 0; i < program->nstatements; i++)
		for (uint32_t j = 0; j < versions->uses[i].nwaits; j++)
			compiler->waited[versions->waits[versions->uses[i].first_wait + j]] = true;
	for (uint32_t i = 0; i < program->nstatements; i++) { /* producers first */
		const struct ferry_use *use = &versions->uses[versions->order[i]];
		int opcode = program->statements[versions->order[i]].opcode;
		if (use->writes != FERRY_NO_VALUE)
			compiler->raw[use->writes] = opcode == FERRY_D2H ||
			                             (opcode == FERRY_H2H && compiler->raw[use->reads]);
	}
	for (uint32_t i = program->nstatements; i-- > 0;) { /* consumers first, so that their roots are known */
		uint32_t v = versions->uses[versions->order[i]].writes;
		if (v == FERRY_NO_VALUE)
			continue;
		const struct ferry_value *value = &versions->values[v];
		compiler->root[v] = v;
		if (program->statements[value->writer].opcode != FERRY_REDUCE || value->nreaders != 1 ||
		    compiler->waited[v])
			continue;
		uint32_t reader = versions->readers[value->first_reader];
		if (program->statements[reader].opcode != FERRY_REDUCE)
			continue;
		compiler->absorbed[v] = true;
		compiler->root[v] = compiler->root[versions->uses[reader].writes];
	}
}

static uint32_t block_chunk(const struct compiler *compiler, uint32_t chunk)
{
	return chunk % compiler->program->nchunks;
}

static uint64_t chunk_length(const struct compiler *compiler, uint32_t chunk)
{
	uint64_t offset, length;
	if (compiler->program->collective == FERRY_ALLTOALLV)
		return 0;
	ferry_chunk_span(compiler->options->count, ferry_type_size(compiler->options->type), compiler->program->nchunks,
	                 block_chunk(compiler, chunk), &offset, &length);
	return length;
}

static uint64_t chunk_offset(const struct compiler *compiler, uint32_t chunk)
{
	uint64_t offset, length;
	size_t element = ferry_type_size(compiler->options->type);
	if (compiler->program->collective == FERRY_ALLTOALLV)
		return 0;
	ferry_chunk_span(compiler->options->count, element, compiler->program->nchunks, block_chunk(compiler, chunk),
	                 &offset, &length);
	return chunk / compiler->program->nchunks * compiler->options->count * element + offset;
}

static ferryResult_t place_windows(struct compiler *compiler)
{
	uint32_t nwindows[FERRY_MAX_DOMAINS] = {0};
	for (uint32_t v = 0; v < compiler->versions.nvalues; v++)
		if (!compiler->absorbed[v])
			nwindows[compiler->versions.values[v].place.domain]++;
	for (uint32_t chunk = 0; chunk < compiler->program->nchunks; chunk++)
		if (chunk_length(compiler, chunk) > compiler->longest)
			compiler->longest = chunk_length(compiler, chunk);
	ferryResult_t result = ferry_choose_slices(compiler->program, compiler->options, compiler->longest, nwindows,
	                                           &compiler->head.slice, &compiler->head.window);
	if (result)
		return result;
	uint64_t bytes = ((uint64_t)compiler->head.slice * compiler->head.window + 127) / 128 * 128;
	for (uint32_t v = 0; v < compiler->versions.nvalues; v++)
		if (!compiler->absorbed[v]) {
			uint64_t *next = &compiler->head.staging[compiler->versions.values[v].place.domain];
			compiler->window_offset[v] = *next;
			*next += bytes;
		}
	compiler->head.ndomains = (uint8_t)compiler->program->ndomains;
	compiler->head.collective = (uint8_t)compiler->program->collective;
	compiler->head.workers = ferry_choose_workers(compiler->program, compiler->options, compiler->longest,
	                                              &compiler->head);
	compiler->guard = ferry_choose_guard(compiler->program, compiler->options, &compiler->head);
	return ferrySuccess;
}

/* ---- instructions ---- */

static struct ferry_instr *new_instr(struct compiler *compiler, uint8_t opcode, uint32_t owner, uint32_t domain,
                                     uint32_t chunk)
{
	struct ferry_instr *instr = grow(compiler, &compiler->instrs, sizeof *instr);
	struct ferry_instr_origin *origin = grow(compiler, &compiler->origins, sizeof *origin);
	if (!instr || !origin)
		return NULL;
	origin->statement = FERRY_NO_STATEMENT;
	instr->opcode = opcode;
	instr->owner = (uint8_t)owner;
	instr->domain = (uint8_t)domain;
	instr->counter = compiler->head.counters[domain]++;
	instr->length = chunk_length(compiler, chunk);
	instr->nslices = (uint32_t)((instr->length + compiler->head.slice - 1) / compiler->head.slice);
	return instr;
}

static int by_lowest_rank(const void *left, const void *right)
{
	uint64_t a = ((const uint64_t *)left)[0], b = ((const uint64_t *)right)[0];
	return (int)ferry_rankset_lowest(a) - (int)ferry_rankset_lowest(b);
}

/* Whether a value is one rank's input, unchanged since its D2H. */
static bool is_raw(const struct compiler *compiler, uint32_t v)
{
	return compiler->raw[v];
}

/* The leaves of the tree of absorbed values under v: (ranks, value) pairs in the order of ranks. */
static uint32_t collect_leaves(struct compiler *compiler, uint32_t v, uint64_t (*leaves)[2])
{
	uint32_t depth = 0, count = 0;
	compiler->stack[depth++] = v;
	while (depth) {
		const struct ferry_value *value = &compiler->versions.values[compiler->stack[--depth]];
		uint32_t operands[2] = {value->base, value->source};
		for (int i = 0; i < 2; i++) {
			if (operands[i] == FERRY_NO_VALUE)
				continue;
			if (compiler->absorbed[operands[i]]) {
				compiler->stack[depth++] = operands[i];
				continue;
			}
			leaves[count][0] = compiler->versions.values[operands[i]].ranks;
			leaves[count++][1] = operands[i];
		}
	}
	qsort(leaves, count, sizeof *leaves, by_lowest_rank);
	return count;
}

static void add_source(struct compiler *compiler, struct ferry_instr *instr, uint32_t v)
{
	struct ferry_source *source = grow(compiler, &compiler->sources, sizeof *source);
	if (!source)
		return;
	const struct ferry_value *value = &compiler->versions.values[v];
	source->window_offset = compiler->window_offset[v];
	source->domain = value->place.domain;
	source->rank = is_raw(compiler, v) ? (uint16_t)ferry_rankset_lowest(value->ranks) : FERRY_PARTIAL;
	instr->nsources++;
}

static void emit(struct compiler *compiler, uint32_t statement)
{
	const struct ferry_program *program = compiler->program;
	const struct ferry_statement *what = &program->statements[statement];
	const struct ferry_use *use = &compiler->versions.uses[statement];
	uint32_t carried = use->writes != FERRY_NO_VALUE ? use->writes : use->reads;
	const struct ferry_value *value = &compiler->versions.values[carried];
	bool lane = what->opcode == FERRY_D2H || what->opcode == FERRY_H2D;
	if (use->writes != FERRY_NO_VALUE && compiler->absorbed[use->writes])
		return; /* part of its root's instruction */
	uint32_t owner = lane ? what->rank : value->place.domain;
	compiler->instr_of[statement] = compiler->instrs.count;
	struct ferry_instr *instr =
		new_instr(compiler, what->opcode, owner, lane ? program->rank_domain[what->rank] : owner, value->chunk);
	if (!instr)
		return;
	origin_at(compiler, compiler->instr_of[statement])->statement = statement;
	instr->line = what->line > UINT16_MAX ? UINT16_MAX : (uint16_t)what->line;
	instr->window_domain = (uint8_t)value->place.domain;
	instr->window_offset = compiler->window_offset[carried];
	instr->first_source = compiler->sources.count;
	if (lane) {
		instr->user_offset = chunk_offset(compiler, what->gpu);
		instr->chunk = program->collective == FERRY_ALLTOALLV ? what->gpu : 0;
	} else if (what->opcode == FERRY_H2H) {
		add_source(compiler, instr, use->reads);
	} else {
		uint64_t leaves[FERRY_MAX_RANKS + 1][2];
		uint32_t count = collect_leaves(compiler, carried, leaves);
		uint64_t everyone = ferry_rankset_all(program->nranks);
		for (uint32_t i = 0; i < count; i++)
			add_source(compiler, instr, (uint32_t)leaves[i][1]);
		/* The one source of a copy may be the complete sum already. */
		if (value->ranks == everyone && (count > 1 || is_raw(compiler, (uint32_t)leaves[0][1])))
			instr->flags |= FERRY_INSTR_FINAL;
	}
	if (!instr->nsources)
		instr->first_source = 0;
}

/* Output that is the rank's own input and that no H2D writes. */
static ferryResult_t emit_copies(struct compiler *compiler, const bool *written, uint32_t most)
{
	const struct ferry_program *program = compiler->program;
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		uint32_t send, receive;
		ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank,
		                        &send, &receive);
		for (uint32_t chunk = 0; chunk < receive; chunk++) {
			uint64_t ranks;
			uint32_t send_chunk;
			if (written[(size_t)rank * most + chunk])
				continue;
			if (compiler->options->redop == ferryNumOps)
				return ferry_fail(ferryProgramError,
				                  "%s: premulsum scales in a REDUCE, and chunk %u of rank %u has "
				                  "passed none",
				                  program->name, chunk, rank);
			ferry_collective_demand(program, rank, chunk, &ranks, &send_chunk);
			struct ferry_instr *instr = new_instr(compiler, FERRY_COPY, rank, program->rank_domain[rank],
			                                      send_chunk);
			if (!instr)
				return ferrySuccess; /* `failed` says so */
			instr->user_offset = chunk_offset(compiler, send_chunk);
			instr->user_destination = chunk_offset(compiler, chunk);
			origin_at(compiler, compiler->instrs.count - 1)->send = send_chunk;
			origin_at(compiler, compiler->instrs.count - 1)->receive = chunk;
			instr->window_domain = program->rank_domain[rank];
			instr->chunk = program->collective == FERRY_ALLTOALLV ? (uint16_t)rank : 0;
		}
	}
	return ferrySuccess;
}

static ferryResult_t emit_all(struct compiler *compiler)
{
	const struct ferry_program *program = compiler->program;
	uint32_t most = program->nranks * program->nchunks;
	bool *written = calloc((size_t)program->nranks * most, sizeof *written);
	if (!written)
		return ferry_fail(ferrySystemError, "%s: no memory to compile", program->name);
	for (uint32_t i = 0; i < program->nstatements && !compiler->failed; i++) {
		uint32_t statement = compiler->versions.order[i];
		const struct ferry_statement *what = &program->statements[statement];
		emit(compiler, statement);
		if (what->opcode == FERRY_H2D)
			written[(size_t)what->rank * most + what->gpu] = true;
		if (what->opcode == FERRY_H2D && compiler->options->redop == ferryNumOps &&
		    is_raw(compiler, compiler->versions.uses[statement].reads)) {
			free(written);
			return ferry_fail(ferryProgramError,
			                  "%s:%u: premulsum scales in a REDUCE, and this output has passed none",
			                  program->name, what->line);
		}
	}
	ferryResult_t result = emit_copies(compiler, written, most);
	free(written);
	if (result)
		return result;
	/* The statements that became part of another's instruction. */
	for (uint32_t i = 0; i < program->nstatements; i++) {
		uint32_t v = compiler->versions.uses[i].writes;
		if (v != FERRY_NO_VALUE && compiler->absorbed[v])
			compiler->instr_of[i] = compiler->instr_of[compiler->versions.values[compiler->root[v]].writer];
	}
	return ferrySuccess;
}

/* ---- edges ---- */

static void wake(const struct ferry_instr *waiter, struct ferry_instr *producer)
{
	if (waiter->opcode == FERRY_D2H)
		producer->wakes_d2h |= 1ull << waiter->owner;
	else if (waiter->opcode == FERRY_H2D)
		producer->wakes_h2d |= 1ull << waiter->owner;
	else
		producer->wakes_domains |= (uint8_t)(1u << waiter->owner);
}

static void add_edge(struct compiler *compiler, uint32_t waiter, uint32_t producer, uint32_t lag)
{
	struct ferry_instr *instr = instr_at(compiler, waiter);
	uint32_t *last = &compiler->last_edge[2 * (size_t)producer + (lag != 0)];
	if (*last == waiter + 1)
		return;
	*last = waiter + 1;
	struct ferry_edge *edge = grow(compiler, &compiler->edges, sizeof *edge);
	if (!edge)
		return;
	*edge = (struct ferry_edge){producer, lag};
	instr->nedges++;
	wake(instr, instr_at(compiler, producer));
}

/*
 * Slice k may go into the slot that slice k - W was read from; where a core read it and a copy engine writes, a little
 * later.
 */
static void add_reuse(struct compiler *compiler, uint32_t writer, uint32_t reader)
{
	bool guarded = instr_at(compiler, writer)->opcode == FERRY_D2H &&
	               instr_at(compiler, reader)->opcode == FERRY_REDUCE;
	add_edge(compiler, writer, reader, compiler->head.window - (guarded ? compiler->guard : 0));
}

static uint32_t writer_instr(const struct compiler *compiler, uint32_t v)
{
	return compiler->instr_of[compiler->versions.values[v].writer];
}

static void add_waits(struct compiler *compiler, uint32_t waiter, uint32_t statement)
{
	const struct ferry_use *use = &compiler->versions.uses[statement];
	for (uint32_t i = 0; i < use->nwaits; i++)
		add_edge(compiler, waiter, writer_instr(compiler, compiler->versions.waits[use->first_wait + i]), 0);
}

/* What a REDUCE and everything it absorbed read and wait for. */
static void add_reduce_needs(struct compiler *compiler, uint32_t waiter, uint32_t v)
{
	uint32_t depth = 0;
	compiler->stack[depth++] = v;
	while (depth) {
		const struct ferry_value *value = &compiler->versions.values[compiler->stack[--depth]];
		uint32_t operands[2] = {value->base, value->source};
		add_waits(compiler, waiter, value->writer);
		for (int i = 0; i < 2; i++)
			if (operands[i] != FERRY_NO_VALUE && compiler->absorbed[operands[i]])
				compiler->stack[depth++] = operands[i];
			else if (operands[i] != FERRY_NO_VALUE)
				add_edge(compiler, waiter, writer_instr(compiler, operands[i]), 0);
	}
}

/* The send chunk whose bytes an H2D overwrites if the call is in place; NONE if it overwrites none. */
static uint32_t overwritten_chunk(const struct ferry_program *program, const struct ferry_statement *statement)
{
	switch (program->collective) {
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		return statement->gpu / program->nchunks == statement->rank ? statement->gpu % program->nchunks : NONE;
	case FERRY_REDUCESCATTER:
	case FERRY_SCATTER:
		return statement->rank * program->nchunks + statement->gpu;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		return NONE;
	default:
		return statement->gpu;
	}
}

static void add_in_place_edges(struct compiler *compiler, uint32_t waiter, const struct ferry_statement *statement)
{
	const struct ferry_program *program = compiler->program;
	uint32_t most = program->nranks * program->nchunks, chunk = overwritten_chunk(program, statement);
	if (chunk == NONE || chunk >= most)
		return;
	for (uint32_t i = compiler->d2h_first[statement->rank * most + chunk]; i != NONE; i = compiler->d2h_next[i])
		add_edge(compiler, waiter, compiler->instr_of[i], 0);
}

static void index_d2h(struct compiler *compiler)
{
	const struct ferry_program *program = compiler->program;
	uint32_t most = program->nranks * program->nchunks;
	for (uint32_t i = 0; i < program->nranks * most; i++)
		compiler->d2h_first[i] = NONE;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *statement = &program->statements[i];
		if (statement->opcode != FERRY_D2H)
			continue;
		uint32_t *first = &compiler->d2h_first[statement->rank * most + statement->gpu];
		compiler->d2h_next[i] = *first;
		*first = i;
	}
}

static void add_edges(struct compiler *compiler)
{
	const struct ferry_program *program = compiler->program;
	const struct ferry_versions *versions = &compiler->versions;
	index_d2h(compiler);
	compiler->last_edge = calloc(2 * (size_t)compiler->instrs.count + 1, sizeof *compiler->last_edge);
	compiler->failed |= !compiler->last_edge;
	for (uint32_t i = 0; i < program->nstatements && !compiler->failed; i++) {
		uint32_t statement = versions->order[i], waiter = compiler->instr_of[statement];
		const struct ferry_use *use = &versions->uses[statement];
		const struct ferry_statement *what = &program->statements[statement];
		if (use->writes != FERRY_NO_VALUE && compiler->absorbed[use->writes])
			continue;
		instr_at(compiler, waiter)->first_edge = compiler->edges.count;
		if (what->opcode == FERRY_REDUCE) {
			add_reduce_needs(compiler, waiter, use->writes);
		} else {
			if (use->reads != FERRY_NO_VALUE)
				add_edge(compiler, waiter, writer_instr(compiler, use->reads), 0);
			add_waits(compiler, waiter, statement);
		}
		if (what->opcode == FERRY_H2D)
			add_in_place_edges(compiler, waiter, what);
		if (use->writes == FERRY_NO_VALUE)
			continue;
		const struct ferry_value *value = &versions->values[use->writes];
		for (uint32_t j = 0; j < value->nreaders; j++)
			add_reuse(compiler, waiter, compiler->instr_of[versions->readers[value->first_reader + j]]);
	}
	for (uint32_t i = 0; i < compiler->instrs.count; i++)
		if (!instr_at(compiler, i)->nedges)
			instr_at(compiler, i)->first_edge = 0;
}

/* ---- the blob ---- */

static ferryResult_t seal(struct compiler *compiler, struct ferry_plan **sealed)
{
	struct ferry_plan *head = &compiler->head;
	const struct ferry_program *program = compiler->program;
	const struct ferry_compile_options *options = compiler->options;
	head->magic = FERRY_PLAN_MAGIC;
	head->abi = FERRY_PLAN_ABI;
	head->count = program->collective == FERRY_ALLTOALLV ? 0 : options->count;
	head->root = program->root;
	head->collective = (uint8_t)program->collective;
	head->type = (uint8_t)options->type;
	head->redop = (uint8_t)(ferry_collective_reduces(program->collective) ? options->redop : ferrySum);
	head->flags = program->collective == FERRY_ALLTOALLV ? FERRY_PLAN_VARIABLE : 0;
	if (options->direct)
		head->flags |= FERRY_PLAN_DMA;
	if (ferry_choose_alone(options, compiler->longest, head))
		head->flags |= FERRY_PLAN_ALONE;
	head->nranks = (uint8_t)program->nranks;
	head->ndomains = (uint8_t)program->ndomains;
	head->nchunks = (uint16_t)program->nchunks;
	memcpy(head->rank_domain, program->rank_domain, program->nranks);
	head->advance = ferry_choose_advance(options, compiler->longest, head);
	head->ninstrs = compiler->instrs.count;
	head->nedges = compiler->edges.count;
	head->nsources = compiler->sources.count;
	head->instrs_at = sizeof *head;
	head->edges_at = head->instrs_at + head->ninstrs * (uint32_t)sizeof(struct ferry_instr);
	head->sources_at = head->edges_at + head->nedges * (uint32_t)sizeof(struct ferry_edge);
	head->bytes = head->sources_at + head->nsources * sizeof(struct ferry_source);
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
	plan->hash = ferry_plan_hash(plan);
	*sealed = plan;
	return ferrySuccess;
}

static bool allocate(struct compiler *compiler)
{
	uint32_t n = compiler->program->nstatements + 1, most = compiler->program->nranks * compiler->program->nchunks;
	compiler->absorbed = calloc(n, sizeof *compiler->absorbed);
	compiler->waited = calloc(n, sizeof *compiler->waited);
	compiler->raw = calloc(n, sizeof *compiler->raw);
	compiler->root = calloc(n, sizeof *compiler->root);
	compiler->instr_of = calloc(n, sizeof *compiler->instr_of);
	compiler->window_offset = calloc(n, sizeof *compiler->window_offset);
	compiler->stack = calloc(n, sizeof *compiler->stack);
	compiler->d2h_next = calloc(n, sizeof *compiler->d2h_next);
	compiler->d2h_first = calloc((size_t)compiler->program->nranks * most, sizeof *compiler->d2h_first);
	return compiler->absorbed && compiler->waited && compiler->raw && compiler->root && compiler->instr_of &&
	       compiler->window_offset && compiler->stack && compiler->d2h_next && compiler->d2h_first;
}

static void release(struct compiler *compiler)
{
	ferry_versions_free(&compiler->versions);
	free(compiler->absorbed);
	free(compiler->waited);
	free(compiler->raw);
	free(compiler->root);
	free(compiler->instr_of);
	free(compiler->window_offset);
	free(compiler->stack);
	free(compiler->d2h_next);
	free(compiler->d2h_first);
	free(compiler->last_edge);
	free(compiler->instrs.items);
	free(compiler->edges.items);
	free(compiler->sources.items);
	free(compiler->origins.items);
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
	struct compiler compiler = {.program = program, .options = options};
	if (!ferry_type_size(options->type) || (unsigned)options->redop > ferryNumOps ||
	    options->count > (1ull << 50) / FERRY_MAX_RANKS || options->slice % 64)
		return ferry_fail(ferryInvalidArgument, "%s: compiling for type %d, op %d, count %llu, slice %u",
		                  program->name, (int)options->type, (int)options->redop,
		                  (unsigned long long)options->count, options->slice);
	ferryResult_t result = ferry_program_check(program);
	if (result || (result = ferry_versions_build(program, &compiler.versions)))
		return result;
	if (!allocate(&compiler)) {
		result = ferry_fail(ferrySystemError, "%s: no memory to compile", program->name);
		goto done;
	}
	absorb(&compiler);
	if ((result = place_windows(&compiler)) || (result = emit_all(&compiler)))
		goto done;
	if (!compiler.failed)
		add_edges(&compiler);
	result = compiler.failed ? ferry_fail(ferrySystemError, "%s: no memory to compile", program->name)
	                         : seal(&compiler, plan);
	if (!result && origins) {
		*origins = compiler.origins.items;
		compiler.origins.items = NULL;
	}
done:
	release(&compiler);
	return result;
}
