/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/rank-lib/program/program_execution.h"

#include "ipc/error.h"
#include "tests/rank-lib/program/program_interpreter.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COMPLETE 7u /* the factor that a complete sum gets, once */

struct execution {
	const struct ferry_plan *plan;
	const struct ferry_instr *instrs;
	uint64_t count; /* elements of a block; of alltoallv, of the largest part */
	bool scaled;    /* reduces, with more than one rank: contributions and sums get their factors */
	uint64_t pair[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	uint32_t npaths[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* among which the pair's block is divided; 0: it is not */
	uint32_t *input[FERRY_MAX_RANKS];                           /* what the rank sends, untouched */
	uint32_t *send[FERRY_MAX_RANKS], *receive[FERRY_MAX_RANKS]; /* in place: both inside one buffer */
	uint32_t *memory[FERRY_MAX_RANKS], *before[FERRY_MAX_RANKS]; /* before: as it was at first */
	uint32_t *staging[FERRY_MAX_DOMAINS];
	uint32_t *done; /* per instruction: slices published */
	uint64_t words; /* of a rank's buffer */
	struct ferry_left_out left_out;
	char *reason;
};

static bool wrong(struct execution *x, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool wrong(struct execution *x, const char *format, ...)
{
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(x->reason, 256, format, arguments);
	va_end(arguments);
	return false;
}

static uint32_t factor(const struct execution *x, uint32_t rank)
{
	return x->scaled ? 2 * rank + 3 : 1;
}

/* ---- buffers ---- */

/* The first element of a peer's part in a rank's buffer of an alltoallv. */
static uint64_t part(const struct execution *x, uint32_t rank, uint32_t peer, bool sends)
{
	uint64_t at = 0;
	for (uint32_t i = 0; i < peer; i++)
		at += sends ? x->pair[rank][i] : x->pair[i][rank];
	return at;
}

/* By shares that differ from pair to pair, of which many are nothing. Elements; from *at on in the block. */
static uint64_t cut(const struct execution *x, const struct ferry_instr *instr, uint64_t *at)
{
	uint32_t npaths = x->npaths[instr->from][instr->to];
	uint64_t all = x->pair[instr->from][instr->to], shares = 0, before = 0, own = 0;
	for (uint32_t path = 0; path < npaths; path++) {
		uint64_t hash = (instr->from * 64u + instr->to) * 64u + path;
		uint64_t share = draw(&hash) % 3 + (path + 1 == npaths && !shares);
		before += path + 1u < instr->path ? share : 0;
		own = path + 1u == instr->path ? share : own;
		shares += share;
	}
	*at = all * before / shares;
	return all * (before + own) / shares - *at;
}

static void count_paths(struct execution *x)
{
	for (uint32_t i = 0; i < x->plan->ninstrs; i++) {
		const struct ferry_instr *instr = &x->instrs[i];
		uint32_t *npaths = &x->npaths[instr->from][instr->to];
		*npaths = instr->path > *npaths ? instr->path : *npaths;
	}
}

/* Of its own part in the block. */
static uint64_t cut_at(const struct execution *x, const struct ferry_instr *instr)
{
	uint64_t at = 0;
	if (instr->path)
		cut(x, instr, &at);
	return at;
}

static void place_in_one_buffer(struct execution *x, uint32_t rank)
{
	const struct ferry_plan *plan = x->plan;
	bool root = rank == plan->root;
	x->receive[rank] = x->send[rank] = x->memory[rank];
	if (plan->collective == FERRY_ALLGATHER || (plan->collective == FERRY_GATHER && root))
		x->send[rank] += rank * x->count;
	if (plan->collective == FERRY_REDUCESCATTER || (plan->collective == FERRY_SCATTER && root))
		x->receive[rank] += rank * x->count;
}

static bool allocate(struct execution *x, bool in_place, uint64_t *seed)
{
	const struct ferry_plan *plan = x->plan;
	x->words = plan->nranks * x->count + 1;
	x->done = calloc(plan->ninstrs + 1, sizeof *x->done);
	bool failed = !x->done;
	for (uint32_t domain = 0; domain < plan->ndomains; domain++) {
		x->staging[domain] = malloc(plan->staging[domain] + 1);
		failed |= !x->staging[domain];
	}
	for (uint32_t rank = 0; rank < plan->nranks; rank++) {
		x->input[rank] = malloc(x->words * sizeof(uint32_t));
		x->memory[rank] = malloc(2 * x->words * sizeof(uint32_t));
		x->before[rank] = malloc(2 * x->words * sizeof(uint32_t));
		if (failed || !x->input[rank] || !x->memory[rank] || !x->before[rank])
			return wrong(x, "no memory");
		memset(x->memory[rank], 0xde, 2 * x->words * sizeof(uint32_t));
		for (uint64_t i = 0; i < x->words; i++)
			x->input[rank][i] = (uint32_t)draw(seed);
		x->send[rank] = x->memory[rank];
		x->receive[rank] = x->memory[rank] + x->words;
		if (in_place)
			place_in_one_buffer(x, rank);
		memcpy(x->send[rank], x->input[rank], x->words * sizeof(uint32_t));
		memcpy(x->before[rank], x->memory[rank], 2 * x->words * sizeof(uint32_t));
		for (uint32_t peer = 0; peer < plan->nranks; peer++)
			x->pair[rank][peer] = draw(seed) % (x->count + 1);
	}
	count_paths(x);
	return true;
}

static void release(struct execution *x)
{
	for (uint32_t rank = 0; rank < x->plan->nranks; rank++) {
		free(x->input[rank]);
		free(x->memory[rank]);
		free(x->before[rank]);
	}
	for (uint32_t domain = 0; domain < x->plan->ndomains; domain++)
		free(x->staging[domain]);
	free(x->done);
}

/* ---- running ---- */

static uint64_t instr_bytes(const struct execution *x, const struct ferry_instr *instr)
{
	if (!(x->plan->flags & FERRY_PLAN_VARIABLE))
		return instr->length;
	bool receives = instr->opcode == FERRY_H2D || instr->opcode == FERRY_WAIT_PUT;
	uint64_t at;
	if (instr->opcode == FERRY_DIVIDE)
		return 1;
	if (instr->path)
		return 4 * cut(x, instr, &at);
	return 4 * (receives ? x->pair[instr->chunk][instr->owner] : x->pair[instr->owner][instr->chunk]);
}

static uint32_t instr_slices(const struct execution *x, const struct ferry_instr *instr)
{
	return (uint32_t)((instr_bytes(x, instr) + x->plan->slice - 1) / x->plan->slice);
}

static bool is_ready(const struct execution *x, uint32_t i)
{
	const struct ferry_instr *instr = &x->instrs[i];
	if (x->done[i] == instr_slices(x, instr) || (instr->path && !x->done[x->plan->ninstrs - 1]))
		return false;
	for (uint32_t e = 0; e < instr->nedges; e++) {
		const struct ferry_edge *edge = &ferry_plan_edges(x->plan)[instr->first_edge + e];
		uint64_t all = instr_slices(x, &x->instrs[edge->instr]),
		         wanted = x->done[i] + 1 < all ? x->done[i] + 1 : all;
		if (x->done[edge->instr] + (uint64_t)edge->lag < wanted)
			return false;
	}
	return true;
}

static uint32_t *slot(const struct execution *x, uint32_t domain, uint64_t window_offset, uint32_t slice,
                      uint64_t bytes)
{
	uint64_t at = window_offset + (uint64_t)(slice % x->plan->window) * x->plan->slice;
	return at + bytes <= x->plan->staging[domain] ? x->staging[domain] + at / 4 : NULL;
}

static uint32_t *inside(const struct execution *x, uint32_t *buffer, uint64_t at, uint64_t from, uint64_t bytes)
{
	return at + (from + bytes) / 4 <= x->words ? buffer + at + from / 4 : NULL;
}

static uint32_t *user(const struct execution *x, const struct ferry_instr *instr, bool sends, uint64_t offset,
                      uint64_t from, uint64_t bytes)
{
	uint64_t at = x->plan->flags & FERRY_PLAN_VARIABLE ? part(x, instr->owner, instr->chunk, sends) : offset / 4;
	at += cut_at(x, instr);
	return inside(x, sends ? x->send[instr->owner] : x->receive[instr->owner], at, from, bytes);
}

/* Two ranks that swap by PUTs in place: as neither can wait for the other, callers let them push from a copy. */
static bool pushes_from_copy(const struct execution *x, const struct ferry_instr *put)
{
	for (uint32_t i = 0; i < x->plan->ninstrs && x->plan->collective == FERRY_ALLTOALL; i++) {
		const struct ferry_instr *other = &x->instrs[i];
		if (other->opcode == FERRY_PUT && other->peer == put->owner &&
		    other->user_destination == put->user_offset)
			return true;
	}
	return false;
}

static uint32_t *pushed(const struct execution *x, const struct ferry_instr *put, uint64_t from, uint64_t bytes)
{
	bool variable = x->plan->flags & FERRY_PLAN_VARIABLE;
	if (put->nsources) {
		const struct ferry_source *kept = &ferry_plan_sources(x->plan)[put->first_source];
		return slot(x, kept->domain, kept->window_offset, (uint32_t)(from / x->plan->slice), bytes);
	}
	uint64_t at = variable ? part(x, put->owner, put->chunk, true) + cut_at(x, put) : put->user_offset / 4;
	if (put->flags & FERRY_INSTR_FORWARDS)
		return inside(x, x->receive[put->owner], at, from, bytes);
	return inside(x, pushes_from_copy(x, put) ? x->input[put->owner] : x->send[put->owner], at, from, bytes);
}

static bool reduce_slice(struct execution *x, uint32_t i, uint32_t *to, uint64_t bytes)
{
	const struct ferry_instr *instr = &x->instrs[i];
	for (uint64_t e = 0; e < bytes / 4; e++)
		to[e] = 0;
	for (uint32_t s = 0; s < instr->nsources; s++) {
		const struct ferry_source *source = &ferry_plan_sources(x->plan)[instr->first_source + s];
		const uint32_t *from = slot(x, source->domain, source->window_offset, x->done[i], bytes);
		uint32_t scale =
		        instr->opcode == FERRY_REDUCE && source->rank != FERRY_PARTIAL ? factor(x, source->rank) : 1;
		if (!from)
			return wrong(x, "instruction %u reads outside the staging", i);
		for (uint64_t e = 0; e < bytes / 4; e++)
			to[e] += scale * from[e];
	}
	for (uint64_t e = 0; e < bytes / 4 && x->scaled && (instr->flags & FERRY_INSTR_FINAL); e++)
		to[e] *= COMPLETE;
	return true;
}

static bool run_slice(struct execution *x, uint32_t i)
{
	const struct ferry_instr *instr = &x->instrs[i];
	uint64_t from = (uint64_t)x->done[i] * x->plan->slice, left = instr_bytes(x, instr) - from;
	uint64_t bytes = left < x->plan->slice ? left : x->plan->slice, target_offset;
	uint32_t *window = slot(x, instr->window_domain, instr->window_offset, x->done[i], bytes), *source,
	         *destination;
	switch (instr->opcode) {
	case FERRY_D2H:
		source = user(x, instr, true, instr->user_offset, from, bytes);
		if (instr->nsources) {
			const struct ferry_source *kept = &ferry_plan_sources(x->plan)[instr->first_source];
			source = slot(x, kept->domain, kept->window_offset, x->done[i], bytes);
		}
		destination = window;
		break;
	case FERRY_H2D:
		source = window;
		destination = user(x, instr, false, instr->user_offset, from, bytes);
		break;
	case FERRY_COPY:
		source = user(x, instr, true, instr->user_offset, from, bytes);
		destination = user(x, instr, false, instr->user_destination, from, bytes);
		break;
	case FERRY_PUT:
		source = pushed(x, instr, from, bytes);
		target_offset = x->plan->flags & FERRY_PLAN_VARIABLE
		                  ? part(x, instr->peer, instr->path ? instr->from : instr->owner, false) +
		                            cut_at(x, instr)
		                  : instr->user_destination / 4;
		destination = inside(x, x->receive[instr->peer], target_offset, from, bytes);
		break;
	case FERRY_WAIT_PUT:
	case FERRY_DIVIDE:
		x->done[i]++;
		return true;
	default:
		if (!window || !reduce_slice(x, i, window, bytes))
			return window ? false : wrong(x, "instruction %u writes outside the staging", i);
		x->done[i]++;
		return true;
	}
	if (!source || !destination)
		return wrong(x, "instruction %u, slice %u is outside a buffer", i, x->done[i]);
	memmove(destination, source, bytes);
	x->done[i]++;
	return true;
}

static bool run_all(struct execution *x, uint64_t *seed)
{
	uint32_t n = x->plan->ninstrs, unfinished = 0;
	for (uint32_t i = 0; i < n; i++)
		unfinished += instr_slices(x, &x->instrs[i]) > 0;
	while (unfinished) {
		uint32_t start = draw_below(seed, n), tried = 0;
		while (tried < n && !is_ready(x, (start + tried) % n))
			tried++;
		if (tried == n)
			return wrong(x, "nothing can run: deadlock");
		uint32_t i = (start + tried) % n;
		if (!run_slice(x, i))
			return false;
		unfinished -= x->done[i] == instr_slices(x, &x->instrs[i]);
	}
	return true;
}

/* ---- what must come out ---- */

static uint32_t sum_of_all(const struct execution *x, uint64_t element)
{
	uint32_t sum = 0;
	for (uint32_t rank = 0; rank < x->plan->nranks; rank++)
		sum += factor(x, rank) * x->input[rank][element];
	return x->scaled ? COMPLETE * sum : sum;
}

/* Word `within` of block `block` of a rank's receive buffer; false where the rank receives nothing. */
static bool expected(const struct execution *x, uint32_t rank, uint32_t block, uint64_t within, uint32_t *word)
{
	uint32_t root = x->plan->root;
	switch (x->plan->collective) {
	case FERRY_ALLREDUCE:
		*word = sum_of_all(x, within);
		return block == 0;
	case FERRY_REDUCE_TO_ROOT:
		*word = sum_of_all(x, within);
		return block == 0 && rank == root;
	case FERRY_REDUCESCATTER:
		*word = sum_of_all(x, rank * x->count + within);
		return block == 0;
	case FERRY_ALLGATHER:
		*word = x->input[block][within];
		return true;
	case FERRY_GATHER:
		*word = x->input[block][within];
		return rank == root;
	case FERRY_BROADCAST:
		*word = x->input[root][within];
		return block == 0;
	case FERRY_SCATTER:
		*word = x->input[root][rank * x->count + within];
		return block == 0;
	case FERRY_ALLTOALL:
		*word = x->input[block][rank * x->count + within];
		return true;
	default:
		*word = x->input[0][within];
		return block == 0 && rank == 1;
	}
}

/* Of a receive buffer every second block may begin with what is left out; a single one is the rank's. */
static bool is_left_out(const struct execution *x, uint32_t rank, uint32_t block, uint64_t within)
{
	enum ferry_collective collective = x->plan->collective;
	bool own = collective == FERRY_REDUCESCATTER || collective == FERRY_SCATTER;
	bool owners = own || collective == FERRY_ALLGATHER || collective == FERRY_GATHER;
	if (x->left_out.mirrored && owners && (own ? rank : block) % 2)
		return within < x->left_out.count;
	return within >= x->count - x->left_out.count;
}

static bool check_outputs(struct execution *x)
{
	for (uint32_t rank = 0; rank < x->plan->nranks; rank++)
		for (uint32_t block = 0; block < x->plan->nranks; block++) {
			bool variable = x->plan->flags & FERRY_PLAN_VARIABLE;
			uint64_t words = variable ? x->pair[block][rank] : x->count;
			for (uint64_t e = 0; e < words; e++) {
				uint64_t at = variable ? part(x, rank, block, false) + e : block * x->count + e;
				uint32_t word = variable ? x->input[block][part(x, block, rank, true) + e] : 0;
				bool known = variable || expected(x, rank, block, e, &word);
				if (!variable && is_left_out(x, rank, block, e))
					word = x->before[rank][x->receive[rank] - x->memory[rank] + (ptrdiff_t)at];
				if (known && x->receive[rank][at] != word)
					return wrong(x, "word %llu of rank %u's output is wrong",
					             (unsigned long long)at, rank);
			}
		}
	return true;
}

static bool execute(const struct ferry_plan *plan, const struct ferry_left_out *left_out, bool in_place, uint64_t most,
                    uint64_t seed, char reason[256])
{
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	struct execution x = {.plan = plan,
	                      .instrs = ferry_plan_instrs(plan),
	                      .count = variable ? most : plan->count,
	                      .left_out = *left_out,
	                      .scaled = ferry_collective_reduces(plan->collective) && plan->nranks > 1,
	                      .reason = reason};
	struct ferry_plan_room limits = {
	        .nranks = plan->nranks, .ndomains = plan->ndomains, .rank_domain = plan->rank_domain};
	memcpy(limits.staging, plan->staging, sizeof limits.staging);
	memcpy(limits.counters, plan->counters, sizeof limits.counters);
	if (ferry_plan_validate(plan, plan->bytes, &limits))
		return wrong(&x, "%s", ferry_last_message());
	bool overlaps = in_place && !variable && plan->collective != FERRY_SENDRECV;
	bool right = allocate(&x, overlaps, &seed) && run_all(&x, &seed) && check_outputs(&x);
	release(&x);
	return right;
}

bool execute_plan(const struct ferry_plan *plan, bool in_place, uint64_t most, uint64_t seed, char reason[256])
{
	return execute(plan, &(struct ferry_left_out){0}, in_place, most, seed, reason);
}

bool execute_plan_in_part(const struct ferry_plan *plan, const struct ferry_left_out *left_out, bool in_place,
                          uint64_t seed, char reason[256])
{
	return execute(plan, left_out, in_place, 0, seed, reason);
}

bool compile_and_execute(const struct ferry_program *program, uint64_t seed, char reason[256])
{
	return compile_and_execute_divided(program, NULL, seed, reason);
}

bool compile_and_execute_divided(const struct ferry_program *program, const struct ferry_network *network,
                                 uint64_t seed, char reason[256])
{
	struct ferry_compile_options options = {.count = draw_below(&seed, 120),
	                                        .ports = draw_below(&seed, 2),
	                                        .type = ferryUint32,
	                                        .redop = ferrySum,
	                                        .network = network};
	struct ferry_plan *plan = NULL;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		options.staging[domain] = 4u << 20;
	options.slice = 64 * draw_below(&seed, 3);
	options.window = draw_below(&seed, 3);
	if (ferry_program_compile(program, &options, &plan)) {
		snprintf(reason, 256, "%s", ferry_last_message());
		return false;
	}
	bool right = execute_plan(plan, draw_below(&seed, 2), 40, draw(&seed), reason);
	free(plan);
	return right;
}
