/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rank-lib/program/program_interpreter.h"

#include "rank-lib/program/chunks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLICE  6 /* elements: chunks of a few dozen have several slices and a ragged last one */
#define NONE   UINT32_MAX
#define POISON 0xdeadbeefu

struct act { /* a statement while it runs */
	uint32_t requirement, version;
	uint32_t reads, base; /* the statements that wrote what it reads and what it accumulates on */
	uint64_t length;      /* elements */
	uint32_t nslices, done;
	uint32_t slot[SLICE]; /* its value's window: one slice */
};

struct run {
	const struct ferry_program *program;
	struct act *acts;
	uint64_t count;
	uint64_t pair[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* alltoallv: elements from, to */
	uint32_t *send[FERRY_MAX_RANKS], *receive[FERRY_MAX_RANKS];
	uint64_t most; /* elements of the largest buffer */
	char *reason;
};

uint64_t draw(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

uint32_t draw_below(uint64_t *state, uint32_t bound)
{
	return (uint32_t)(draw(state) % bound);
}

static bool wrong(struct run *run, uint32_t line, const char *what)
{
	snprintf(run->reason, 256, "line %u: %s", line, what);
	return false;
}

/* ---- versions, as the manual defines them ---- */

static bool same(struct ferry_place a, struct ferry_place b)
{
	return a.domain == b.domain && a.chunk == b.chunk;
}

static bool writes(const struct ferry_statement *s, struct ferry_place place)
{
	return s->opcode != FERRY_H2D && s->opcode != FERRY_PUT && same(s->destination, place);
}

static uint32_t least_version(const struct ferry_statement *s, struct ferry_place place)
{
	uint32_t version = 0;
	for (uint32_t i = 0; i < s->ndependencies; i++)
		if (same(s->dependencies[i].place, place) && s->dependencies[i].version > version)
			version = s->dependencies[i].version;
	return version;
}

/* The nearest earlier writer of the place in the same section. */
static uint32_t earlier_writer(const struct ferry_program *program, uint32_t statement, struct ferry_place place)
{
	for (uint32_t i = statement; i-- > 0;)
		if (program->statements[i].rank == program->statements[statement].rank &&
		    writes(&program->statements[i], place))
			return i;
	return NONE;
}

static void number_versions(struct run *run)
{
	const struct ferry_program *program = run->program;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *s = &program->statements[i];
		uint32_t before = earlier_writer(program, i, s->destination);
		run->acts[i].requirement = least_version(s, s->destination);
		if (!run->acts[i].requirement && before != NONE)
			run->acts[i].requirement = run->acts[before].requirement + 1;
	}
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *s = &program->statements[i];
		run->acts[i].version = 1;
		for (uint32_t j = 0; j < program->nstatements; j++) {
			const struct ferry_statement *t = &program->statements[j];
			uint32_t mine = run->acts[i].requirement, other = run->acts[j].requirement;
			bool first = other != mine ? other < mine : t->rank != s->rank ? t->rank < s->rank : j < i;
			run->acts[i].version += j != i && first && writes(t, s->destination);
		}
	}
}

static uint32_t writer_of(const struct run *run, struct ferry_place place, uint32_t version)
{
	for (uint32_t i = 0; i < run->program->nstatements; i++)
		if (writes(&run->program->statements[i], place) && run->acts[i].version == version)
			return i;
	return NONE;
}

/* The statement that writes chunk i of a rank's receive buffer. */
static uint32_t receive_writer(const struct ferry_program *program, uint32_t rank, uint32_t chunk)
{
	for (uint32_t i = 0; i < program->nstatements; i++) {
		const struct ferry_statement *s = &program->statements[i];
		if ((s->opcode == FERRY_H2D && s->rank == rank && s->gpu == chunk) ||
		    (s->opcode == FERRY_PUT && s->peer == rank && s->peer_gpu == chunk))
			return i;
	}
	return NONE;
}

static bool resolve_reads(struct run *run)
{
	for (uint32_t i = 0; i < run->program->nstatements; i++) {
		const struct ferry_statement *s = &run->program->statements[i];
		struct act *act = &run->acts[i];
		act->reads = act->base = NONE;
		if (s->opcode != FERRY_REDUCE && s->opcode != FERRY_H2H &&
		    s->gpu >= run->program->nranks * run->program->nchunks)
			return wrong(run, s->line, "copies a chunk that no buffer has");
		if (s->opcode == FERRY_PUT &&
		    (s->peer >= run->program->nranks || s->peer_gpu >= run->program->nranks * run->program->nchunks))
			return wrong(run, s->line, "puts where nobody is");
		if (s->forwards) {
			act->reads = receive_writer(run->program, s->rank, s->gpu);
			if (act->reads == NONE)
				return wrong(run, s->line, "forwards what nobody brings");
		} else if (s->opcode != FERRY_D2H && (s->opcode != FERRY_PUT || ferry_statement_puts_memory(s))) {
			uint32_t version = least_version(s, s->source);
			act->reads = version ? writer_of(run, s->source, version)
			                     : earlier_writer(run->program, i, s->source);
			if (act->reads == NONE)
				return wrong(run, s->line, "reads a version that nobody writes");
		}
		if (s->opcode == FERRY_REDUCE && act->version > 1)
			act->base = writer_of(run, s->destination, act->version - 1);
		for (uint32_t j = 0; j < s->ndependencies; j++)
			if (writer_of(run, s->dependencies[j].place, s->dependencies[j].version) == NONE)
				return wrong(run, s->line, "waits for a version that nobody writes");
	}
	return true;
}

/* ---- buffers ---- */

/* Alltoallv: a block is cut evenly among those of its parts that somebody brings, a rank's own is one. */
static void part_of_block(const struct run *run, uint32_t from, uint32_t to, uint32_t part, uint64_t *offset,
                          uint64_t *length)
{
	uint32_t K = run->program->nchunks, brought = 0, before = 0;
	for (uint32_t i = 0; i < K; i++) {
		bool is = !i || (from != to && receive_writer(run->program, to, from * K + i) != NONE);
		before += is && i < part;
		brought += is;
		if (i == part && !is) {
			*length = 0;
			return;
		}
	}
	uint64_t all = run->pair[from][to];
	*offset += all * before / brought;
	*length = all * (before + 1) / brought - all * before / brought;
}

/*
 * Where chunk i of a rank's buffer is: in blocks of `count`, each in K chunks; alltoallv: in blocks of the pairs'
 * counts.
 */
static void chunk_in_buffer(const struct run *run, uint32_t rank, uint32_t chunk, bool sends, uint64_t *offset,
                            uint64_t *length)
{
	const struct ferry_program *program = run->program;
	if (program->collective == FERRY_ALLTOALLV) {
		uint32_t block = chunk / program->nchunks;
		*offset = 0;
		for (uint32_t peer = 0; peer < block; peer++)
			*offset += sends ? run->pair[rank][peer] : run->pair[peer][rank];
		part_of_block(run, sends ? rank : block, sends ? block : rank, chunk % program->nchunks, offset,
		              length);
		return;
	}
	ferry_chunk_span(run->count, sizeof(uint32_t), program->nchunks, chunk % program->nchunks, offset, length);
	*offset = *offset / sizeof(uint32_t) + chunk / program->nchunks * run->count;
	*length /= sizeof(uint32_t);
}

static bool allocate(struct run *run, uint64_t *seed)
{
	const struct ferry_program *program = run->program;
	run->most = program->nranks * run->count;
	run->acts = calloc(program->nstatements + 1, sizeof *run->acts);
	for (uint32_t rank = 0; rank < program->nranks; rank++) {
		run->send[rank] = malloc((run->most + 1) * sizeof(uint32_t));
		run->receive[rank] = malloc((run->most + 1) * sizeof(uint32_t));
		if (!run->acts || !run->send[rank] || !run->receive[rank])
			return wrong(run, 0, "no memory");
		for (uint64_t i = 0; i < run->most; i++) {
			run->send[rank][i] = (uint32_t)draw(seed);
			run->receive[rank][i] = POISON;
		}
		for (uint32_t peer = 0; peer < program->nranks; peer++)
			run->pair[rank][peer] = draw(seed) % (run->count + 1);
	}
	return true;
}

static void release(struct run *run)
{
	for (uint32_t rank = 0; rank < run->program->nranks; rank++) {
		free(run->send[rank]);
		free(run->receive[rank]);
	}
	free(run->acts);
}

/*
 * What reads a send buffer takes its chunk's length, everything else its source's; where sources form a circle there is
 * none.
 */
static bool find_lengths(struct run *run)
{
	uint64_t offset;
	const struct ferry_program *program = run->program;
	for (uint32_t i = 0; i < program->nstatements; i++) {
		uint32_t at = i, steps = 0;
		while (run->acts[at].reads != NONE && steps++ <= program->nstatements)
			at = run->acts[at].reads;
		if (run->acts[at].reads != NONE)
			return wrong(run, program->statements[i].line, "reads what it writes itself, through others");
		chunk_in_buffer(run, program->statements[at].rank, program->statements[at].gpu, true, &offset,
		                &run->acts[i].length);
		run->acts[i].nslices = (uint32_t)((run->acts[i].length + SLICE - 1) / SLICE);
	}
	for (uint32_t i = 0; i < program->nstatements; i++)
		if (run->acts[i].base != NONE && run->acts[run->acts[i].base].length != run->acts[i].length)
			return wrong(run, program->statements[i].line, "adds chunks of different lengths");
	return true;
}

/* ---- running ---- */

static bool has_published(const struct run *run, uint32_t statement, uint32_t slice)
{
	const struct act *act = &run->acts[statement];
	return act->done > slice || act->done == act->nslices;
}

static bool is_ready(const struct run *run, uint32_t i)
{
	const struct ferry_program *program = run->program;
	const struct ferry_statement *s = &program->statements[i];
	const struct act *act = &run->acts[i];
	if (act->done == act->nslices || (act->reads != NONE && !has_published(run, act->reads, act->done)) ||
	    (act->base != NONE && !has_published(run, act->base, act->done)))
		return false;
	for (uint32_t j = 0; j < s->ndependencies; j++) {
		uint32_t writer = writer_of(run, s->dependencies[j].place, s->dependencies[j].version);
		if (!has_published(run, writer, act->done))
			return false;
	}
	for (uint32_t j = 0; j < program->nstatements;
	     j++) /* the slot still holds the slice before, until all have read it; receive buffers keep all */
		if ((run->acts[j].reads == i || run->acts[j].base == i) && run->acts[j].done < act->done &&
		    !program->statements[j].forwards)
			return false;
	return true;
}

/* From the send buffer, or from where it has come, and not later than it has; or from memory. */
static bool put_slice(struct run *run, uint32_t i)
{
	const struct ferry_statement *s = &run->program->statements[i];
	struct act *act = &run->acts[i];
	uint64_t from = (uint64_t)act->done * SLICE, source, destination, length, received;
	uint64_t n = act->length - from < SLICE ? act->length - from : SLICE;
	bool memory = ferry_statement_puts_memory(s);
	if (memory && run->acts[act->reads].done != act->done + 1)
		return wrong(run, s->line, "finds another slice in the slot");
	chunk_in_buffer(run, s->rank, s->gpu, !s->forwards, &source, &length);
	chunk_in_buffer(run, s->peer, s->peer_gpu, false, &destination, &received);
	if (memory) {
		source = 0;
		length = act->length;
	}
	if (length != act->length || received != act->length || source + length > run->most ||
	    destination + length > run->most)
		return wrong(run, s->line, "puts a chunk of another length");
	const uint32_t *buffer = s->forwards ? run->receive[s->rank] : run->send[s->rank];
	memcpy(run->receive[s->peer] + destination + from,
	       memory ? run->acts[act->reads].slot : buffer + source + from, n * sizeof *buffer);
	act->done++;
	return true;
}

static bool run_slice(struct run *run, uint32_t i)
{
	if (run->program->statements[i].opcode == FERRY_PUT)
		return put_slice(run, i);
	const struct ferry_statement *s = &run->program->statements[i];
	struct act *act = &run->acts[i];
	const struct act *source = act->reads == NONE ? NULL : &run->acts[act->reads];
	const struct act *base = act->base == NONE ? NULL : &run->acts[act->base];
	uint64_t from = (uint64_t)act->done * SLICE, offset, length;
	uint64_t n = act->length - from < SLICE ? act->length - from : SLICE;
	chunk_in_buffer(run, s->rank, s->gpu, s->opcode == FERRY_D2H, &offset, &length);
	if ((source && source->done != act->done + 1) || (base && base->done != act->done + 1))
		return wrong(run, s->line, "finds another slice in the slot");
	if ((s->opcode == FERRY_D2H || s->opcode == FERRY_H2D) &&
	    (length != act->length || offset + length > run->most))
		return wrong(run, s->line, "copies a chunk of another length");
	memset(act->slot, 0xa5, sizeof act->slot);
	for (uint64_t e = 0; e < n; e++) {
		uint32_t word = source ? source->slot[e] : run->send[s->rank][offset + from + e];
		if (s->opcode == FERRY_H2D)
			run->receive[s->rank][offset + from + e] = word;
		else
			act->slot[e] = base ? base->slot[e] + word : word;
	}
	act->done++;
	return true;
}

static bool run_all(struct run *run, uint64_t *seed)
{
	uint32_t n = run->program->nstatements, unfinished = 0;
	for (uint32_t i = 0; i < n; i++)
		unfinished += run->acts[i].nslices > 0;
	while (unfinished) {
		uint32_t start = draw_below(seed, n), tried = 0;
		while (tried < n && !is_ready(run, (start + tried) % n))
			tried++;
		if (tried == n)
			return wrong(run, 0, "nothing can run: deadlock");
		uint32_t i = (start + tried) % n;
		if (!run_slice(run, i))
			return false;
		unfinished -= run->acts[i].done == run->acts[i].nslices;
	}
	return true;
}

/* ---- what must come out ---- */

/* The part of a rank's output that is its own input and that nothing writes is copied on the device. */
static void copy_own_input(struct run *run, uint32_t rank)
{
	const struct ferry_program *program = run->program;
	uint32_t chunks = program->nranks * program->nchunks, K = program->nchunks;
	for (uint32_t chunk = 0; chunk < chunks; chunk++) {
		uint64_t from, to, length;
		uint32_t own = chunk;
		bool written = receive_writer(program, rank, chunk) != NONE;
		if (program->collective == FERRY_ALLGATHER || program->collective == FERRY_GATHER)
			own = chunk / K == rank ? chunk % K : NONE;
		else if (program->collective == FERRY_ALLTOALL || program->collective == FERRY_ALLTOALLV)
			own = chunk / K == rank ? chunk : NONE;
		else if (program->collective == FERRY_BROADCAST)
			own = rank == program->root && chunk < K ? chunk : NONE;
		else if (program->collective == FERRY_SCATTER)
			own = rank == program->root && chunk < K ? rank * K + chunk : NONE;
		else if (ferry_collective_reduces(program->collective) && program->nranks == 1)
			own = chunk; /* the sum over one rank */
		else
			own = NONE;
		if (written || own == NONE)
			continue;
		chunk_in_buffer(run, rank, own, true, &from, &length);
		chunk_in_buffer(run, rank, chunk, false, &to, &length);
		memcpy(run->receive[rank] + to, run->send[rank] + from, length * sizeof(uint32_t));
	}
}

static uint64_t output_elements(const struct run *run, uint32_t rank)
{
	const struct ferry_program *program = run->program;
	switch (program->collective) {
	case FERRY_ALLGATHER:
	case FERRY_ALLTOALL:
		return program->nranks * run->count;
	case FERRY_GATHER:
		return rank == program->root ? program->nranks * run->count : 0;
	case FERRY_REDUCE_TO_ROOT:
		return rank == program->root ? run->count : 0;
	case FERRY_SENDRECV:
		return rank == 1 ? run->count : 0;
	case FERRY_ALLREDUCE:
	case FERRY_REDUCESCATTER:
	case FERRY_BROADCAST:
	case FERRY_SCATTER:
	case FERRY_ALLTOALLV: /* not asked: check_output */
		return run->count;
	}
	return 0;
}

static uint32_t sum_of_all(const struct run *run, uint64_t element)
{
	uint32_t sum = 0;
	for (uint32_t rank = 0; rank < run->program->nranks; rank++)
		sum += run->send[rank][element];
	return sum;
}

static uint32_t expected(const struct run *run, uint32_t rank, uint64_t element)
{
	uint32_t root = run->program->root, block = (uint32_t)(element / run->count);
	uint64_t within = element % run->count;
	switch (run->program->collective) {
	case FERRY_ALLREDUCE:
	case FERRY_REDUCE_TO_ROOT:
		return sum_of_all(run, element);
	case FERRY_REDUCESCATTER:
		return sum_of_all(run, rank * run->count + element);
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		return run->send[block][within];
	case FERRY_BROADCAST:
		return run->send[root][element];
	case FERRY_SCATTER:
		return run->send[root][rank * run->count + element];
	case FERRY_ALLTOALL:
		return run->send[block][rank * run->count + within];
	case FERRY_ALLTOALLV: /* not asked: check_output */
	case FERRY_SENDRECV:
		return run->send[0][element];
	}
	return 0;
}

static bool check_output(struct run *run, uint32_t rank)
{
	const struct ferry_program *program = run->program;
	uint64_t from, to, length, elements = output_elements(run, rank);
	if (program->collective == FERRY_ALLTOALLV) {
		for (uint32_t peer = 0; peer < program->nranks; peer++) {
			chunk_in_buffer(run, peer, rank * program->nchunks, true, &from, &length);
			chunk_in_buffer(run, rank, peer * program->nchunks, false, &to, &length);
			length = run->pair[peer][rank];
			if (memcmp(run->receive[rank] + to, run->send[peer] + from, length * sizeof(uint32_t)))
				return wrong(run, 0, "wrong output");
		}
		return true;
	}
	for (uint64_t e = 0; e < elements; e++)
		if (run->receive[rank][e] != expected(run, rank, e))
			return wrong(run, 0, "wrong output");
	return true;
}

bool interpret_program(const struct ferry_program *program, uint64_t count, uint64_t seed, char reason[256])
{
	struct run run = {.program = program, .count = count, .reason = reason};
	bool right = allocate(&run, &seed);
	if (right) {
		number_versions(&run);
		right = resolve_reads(&run) && find_lengths(&run) && run_all(&run, &seed);
	}
	for (uint32_t rank = 0; right && rank < program->nranks; rank++) {
		copy_own_input(&run, rank);
		right = check_output(&run, rank);
	}
	release(&run);
	return right;
}
