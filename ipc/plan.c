/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/plan.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

uint64_t ferry_plan_hash(const struct ferry_plan *plan)
{
	uint64_t hash = 0x9e3779b97f4a7c15ull ^ plan->bytes, word;
	const unsigned char *bytes = (const unsigned char *)plan;
	for (uint64_t at = 0; at < plan->bytes; at += 8) {
		word = 0;
		memcpy(&word, bytes + at, plan->bytes - at < 8 ? plan->bytes - at : 8);
		if (at == offsetof(struct ferry_plan, hash))
			word = 0;
		hash = (hash ^ word) * 0xff51afd7ed558ccdull;
		hash ^= hash >> 32;
	}
	return hash;
}

/* ---- the header ---- */

static ferryResult_t bad(const char *format, ...) __attribute__((format(printf, 1, 2)));
static ferryResult_t bad(const char *format, ...)
{
	char text[256];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	return ferry_fail(ferryProgramError, "invalid plan: %s", text);
}

static bool array_inside(uint64_t at, uint64_t count, uint64_t item, uint64_t bytes)
{
	return at % 8 == 0 && at >= sizeof(struct ferry_plan) && at <= bytes && count <= (bytes - at) / item;
}

/* Speeds that the planner can reckon with. */
static bool are_speeds(const float *speeds, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!(speeds[i] >= 0 && speeds[i] <= FERRY_MOST_SPEED))
			return false;
	return true;
}

static ferryResult_t check_network(const struct ferry_plan *plan, uint64_t bytes)
{
	const struct ferry_network *network = ferry_plan_network(plan);
	if (!network)
		return ferrySuccess;
	if (!(plan->flags & FERRY_PLAN_VARIABLE) || !array_inside(plan->network_at, 1, sizeof *network, bytes))
		return bad("a network at %u of %llu bytes, for %s", plan->network_at, (unsigned long long)bytes,
		           ferry_collective_name(plan->collective));
	const struct ferry_links *links = &network->links;
	const struct ferry_path_limits *limits = &network->limits;
	return are_speeds(links->speed[0], FERRY_MAX_RANKS * FERRY_MAX_RANKS) &&
	                       are_speeds(links->port, FERRY_MAX_RANKS) &&
	                       are_speeds(links->shared, FERRY_MAX_SHARED_LINKS) &&
	                       are_speeds((const float[]){limits->up, limits->down, limits->relay}, 3)
	               ? ferrySuccess
	               : bad("its network has a speed below 0 or above %g", (double)FERRY_MOST_SPEED);
}

static ferryResult_t check_header(const struct ferry_plan *plan, uint64_t bytes, const struct ferry_plan_room *room)
{
	if (plan->magic != FERRY_PLAN_MAGIC || plan->abi != FERRY_PLAN_ABI)
		return bad("magic %08x and ABI %u instead of %08x and %u", plan->magic, plan->abi, FERRY_PLAN_MAGIC,
		           FERRY_PLAN_ABI);
	if (plan->bytes != bytes)
		return bad("it says %llu bytes and has %llu", (unsigned long long)plan->bytes,
		           (unsigned long long)bytes);
	if (plan->hash != ferry_plan_hash(plan))
		return bad("hash %016llx does not fit the contents", (unsigned long long)plan->hash);
	if (plan->nranks != room->nranks || plan->ndomains != room->ndomains ||
	    memcmp(plan->rank_domain, room->rank_domain, room->nranks))
		return bad("it is for %u ranks in %u domains, the job has %u in %u, or other ranks in them",
		           plan->nranks, plan->ndomains, room->nranks, room->ndomains);
	if (plan->collective >= FERRY_NUM_COLLECTIVES || !ferry_type_size(plan->type) || plan->redop > ferryNumOps ||
	    plan->root >= plan->nranks)
		return bad("collective %u, type %u, op %u, root %u", plan->collective, plan->type, plan->redop,
		           plan->root);
	if (!plan->slice || plan->slice % 64 || plan->slice > 1u << 30 || !plan->window ||
	    plan->window > FERRY_MAX_WINDOW)
		return bad("slice of %u bytes, window of %u slots", plan->slice, plan->window);
	if (plan->memory % 64 || plan->memory > FERRY_PLAN_MOST_MEMORY)
		return bad("windows in %llu bytes of each rank's memory", (unsigned long long)plan->memory);
	if (plan->advance >= plan->window && plan->advance)
		return bad("calls advance %u slots in windows of %u", plan->advance, plan->window);
	if ((plan->flags & ~(FERRY_PLAN_VARIABLE | FERRY_PLAN_DMA | FERRY_PLAN_PUTS)) ||
	    !(plan->flags & FERRY_PLAN_VARIABLE) != (plan->collective != FERRY_ALLTOALLV))
		return bad("flags %#x for %s", plan->flags, ferry_collective_name(plan->collective));
	if (!array_inside(plan->instrs_at, plan->ninstrs, sizeof(struct ferry_instr), bytes) ||
	    !array_inside(plan->edges_at, plan->nedges, sizeof(struct ferry_edge), bytes) ||
	    !array_inside(plan->sources_at, plan->nsources, sizeof(struct ferry_source), bytes))
		return bad("%u instructions at %u, %u edges at %u or %u sources at %u reach beyond %llu bytes",
		           plan->ninstrs, plan->instrs_at, plan->nedges, plan->edges_at, plan->nsources,
		           plan->sources_at, (unsigned long long)bytes);
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		if (plan->staging[domain] > room->staging[domain] ||
		    plan->counters[domain] > room->counters[domain])
			return bad("%llu bytes of staging and %u counters in domain %u; %llu and %u are there",
			           (unsigned long long)plan->staging[domain], plan->counters[domain], domain,
			           (unsigned long long)room->staging[domain], room->counters[domain]);
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		if (plan->counters[domain] > plan->ninstrs)
			return bad("%u counters in domain %u for %u instructions", plan->counters[domain], domain,
			           plan->ninstrs);
	return check_network(plan, bytes);
}

/* ---- instructions ---- */

struct validator {
	const struct ferry_plan *plan;
	const struct ferry_instr *instrs;
	const struct ferry_edge *edges;
	const struct ferry_source *sources;
	uint64_t window_bytes;
	uint32_t *missing, *order, *first, *next; /* Kahn's algorithm */
	/* by instruction: the edges that have a lag and lead to it, from first_back[i] to first_back[i + 1] */
	uint32_t *first_back, *back;
	uint32_t *seen; /* by instruction and kind of lag: 1 + the last instruction that had an edge to it */
	struct ferry_bounce_buffer {
		uint64_t offset;
		uint32_t domain, instr;
	} * windows;
	uint8_t *counter_used[FERRY_MAX_DOMAINS];
	uint8_t *put_waits; /* by instruction: WAIT_PUTs of this PUT */
};

static bool window_inside(const struct validator *v, uint32_t domain, uint64_t offset)
{
	const struct ferry_plan *plan = v->plan;
	bool device = ferry_window_is_on_device(domain);
	if (device ? domain - FERRY_MAX_DOMAINS >= plan->nranks : domain >= plan->ndomains)
		return false;
	uint64_t bytes = device ? plan->memory : plan->staging[domain];
	return offset % 64 == 0 && v->window_bytes <= bytes && offset <= bytes - v->window_bytes;
}

/* Whether windows of that domain are in the rank's own memory: its device's, or the staging that stands for it. */
static bool is_memory_of(const struct validator *v, uint32_t rank, uint32_t domain)
{
	return domain == (v->plan->memory ? FERRY_MAX_DOMAINS + rank : v->plan->rank_domain[rank]);
}

static bool is_between_ranks(const struct ferry_instr *instr)
{
	return instr->opcode == FERRY_PUT || instr->opcode == FERRY_WAIT_PUT;
}

/* Which rank or domain an instruction belongs to, and which other one it names. */
static ferryResult_t check_owner(const struct validator *v, uint32_t i)
{
	const struct ferry_instr *instr = &v->instrs[i];
	const struct ferry_plan *plan = v->plan;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	if (instr->opcode >= FERRY_NUM_OPCODES || (variable && instr->opcode == FERRY_ADD) ||
	    (variable && ferry_opcode_is_work(instr->opcode)) != (instr->opcode == FERRY_DIVIDE))
		return bad("instruction %u: opcode %u", i, instr->opcode);
	if (ferry_opcode_is_work(instr->opcode) ? instr->owner >= plan->ndomains || instr->domain != instr->owner
	                     : instr->owner >= plan->nranks || instr->domain != plan->rank_domain[instr->owner])
		return bad("instruction %u: owner %u, domain %u", i, instr->owner, instr->domain);
	if (instr->counter >= plan->counters[instr->domain])
		return bad("instruction %u: counter %u of %u in domain %u", i, instr->counter,
		           plan->counters[instr->domain], instr->domain);
	if (v->counter_used[instr->domain][instr->counter]++)
		return bad("instruction %u: counter %u of domain %u has another writer", i, instr->counter,
		           instr->domain);
	bool memory = instr->flags & FERRY_INSTR_MEMORY;
	if (is_between_ranks(instr) ? instr->peer >= plan->nranks || instr->peer == instr->owner
	    : memory                ? instr->peer >= plan->nranks
	                            : instr->peer)
		return bad("instruction %u: %s of rank %u, peer %u of %u", i, ferry_opcode_name(instr->opcode),
		           instr->owner, instr->peer, plan->nranks);
	if (is_between_ranks(instr) && !(plan->flags & FERRY_PLAN_PUTS))
		return bad("instruction %u: %s in a plan that says it has no PUT", i, ferry_opcode_name(instr->opcode));
	return ferrySuccess;
}

/* How much it moves, and from where to where. */
static ferryResult_t check_reach(const struct validator *v, uint32_t i)
{
	const struct ferry_instr *instr = &v->instrs[i];
	const struct ferry_plan *plan = v->plan;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE, divides = instr->opcode == FERRY_DIVIDE;
	bool lane = instr->opcode == FERRY_D2H || instr->opcode == FERRY_H2D;
	bool adds = instr->opcode == FERRY_ADD;
	if (instr->flags & ~(instr->opcode == FERRY_PUT ? (variable ? 0 : FERRY_INSTR_FORWARDS)
	                     : lane && instr->path      ? FERRY_INSTR_MEMORY
	                     : lane && !variable        ? FERRY_INSTR_MEMORY
	                     : adds                     ? FERRY_INSTR_MEMORY | FERRY_INSTR_FINAL
	                                                : FERRY_INSTR_FINAL))
		return bad("instruction %u: flags %#x", i, instr->flags);
	bool memory = instr->flags & FERRY_INSTR_MEMORY;
	if (memory ? !is_memory_of(v, instr->peer, instr->window_domain) || (adds && !plan->memory) ||
	                     (instr->opcode != FERRY_D2H && instr->peer != instr->owner)
	           : ferry_window_is_on_device(instr->window_domain) || adds)
		return bad("instruction %u: memory of rank %u in domain %u", i, instr->peer, instr->window_domain);
	if (variable ? instr->length != divides || instr->nslices != divides || instr->chunk >= plan->nranks
	             : instr->length > 1ull << 50 || instr->length % ferry_type_size(plan->type) ||
	                       instr->nslices != (instr->length + plan->slice - 1) / plan->slice)
		return bad("instruction %u: %llu bytes in %u slices of %u, chunk %u", i,
		           (unsigned long long)instr->length, instr->nslices, plan->slice, instr->chunk);
	if (instr->user_offset > 1ull << 56 || instr->user_destination > 1ull << 56)
		return bad("instruction %u: user buffer offsets %llu and %llu", i,
		           (unsigned long long)instr->user_offset, (unsigned long long)instr->user_destination);
	if (ferry_opcode_has_window(instr->opcode) && !window_inside(v, instr->window_domain, instr->window_offset))
		return bad("instruction %u: window of %llu bytes at %llu of domain %u", i,
		           (unsigned long long)v->window_bytes, (unsigned long long)instr->window_offset,
		           instr->window_domain);
	if (variable && instr->opcode == FERRY_COPY && instr->chunk != instr->owner)
		return bad("instruction %u: a copy of rank %u's own part is of part %u", i, instr->owner, instr->chunk);
	uint8_t other = !instr->path ? instr->peer : instr->opcode == FERRY_PUT ? instr->to : instr->from;
	if (variable && is_between_ranks(instr) && instr->chunk != other)
		return bad("instruction %u: %s of rank %u, whose peer is rank %u, is of part %u", i,
		           ferry_opcode_name(instr->opcode), instr->owner, instr->peer, instr->chunk);
	if (instr->path && (!plan->network_at || ferry_opcode_is_work(instr->opcode) || instr->opcode == FERRY_COPY ||
	                    instr->from >= plan->nranks || instr->to >= plan->nranks))
		return bad("instruction %u: path %u from rank %u to rank %u", i, instr->path, instr->from, instr->to);
	if (ferry_opcode_is_work(instr->opcode) && instr->window_domain != instr->owner)
		return bad("instruction %u: router %u writes into domain %u", i, instr->owner, instr->window_domain);
	return ferrySuccess;
}

static int by_offset(const void *left, const void *right)
{
	const struct ferry_bounce_buffer *a = left, *b = right;
	if (a->domain != b->domain)
		return a->domain < b->domain ? -1 : 1;
	return a->offset < b->offset ? -1 : a->offset > b->offset;
}

/* The writer of exactly that window, or UINT32_MAX. windows is sorted. */
static uint32_t window_writer(const struct validator *v, uint32_t nwindows, uint32_t domain, uint64_t offset)
{
	struct ferry_bounce_buffer key = {offset, domain, 0};
	const struct ferry_bounce_buffer *found = bsearch(&key, v->windows, nwindows, sizeof key, by_offset);
	return found ? found->instr : UINT32_MAX;
}

/* Whether the waiter has an edge of lag 0 to the producer: each of its slices waits for the same slice. */
static bool waits_for(const struct validator *v, uint32_t waiter, uint32_t producer)
{
	const struct ferry_instr *instr = &v->instrs[waiter];
	for (uint32_t i = 0; i < instr->nedges; i++) {
		const struct ferry_edge *edge = &v->edges[instr->first_edge + i];
		if (edge->instr == producer && !edge->lag)
			return true;
	}
	return false;
}

/*
 * Whether the writer of a window has an edge with a lag to the reader. This looks through the few edges to the reader:
 * a window may have any number of readers, and looking through all edges of its writer for each would take too long.
 */
static bool waits_behind(const struct validator *v, uint32_t writer, uint32_t reader)
{
	for (uint32_t i = v->first_back[reader]; i < v->first_back[reader + 1]; i++)
		if (v->back[i] == writer)
			return true;
	return false;
}

static void index_back_edges(const struct validator *v)
{
	uint32_t n = v->plan->ninstrs;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t e = 0; e < v->instrs[i].nedges; e++) {
			const struct ferry_edge *edge = &v->edges[v->instrs[i].first_edge + e];
			v->first_back[edge->instr + 2] += edge->lag > 0;
		}
	for (uint32_t i = 1; i <= n; i++)
		v->first_back[i + 1] += v->first_back[i];
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t e = 0; e < v->instrs[i].nedges; e++) {
			const struct ferry_edge *edge = &v->edges[v->instrs[i].first_edge + e];
			if (edge->lag) /* afterwards first_back[j] is where the edges to j begin */
				v->back[v->first_back[edge->instr + 1]++] = i;
		}
}

/* Whether both move the same part of a block that is divided among paths: then both have one length in every call. */
static bool same_part(const struct ferry_instr *a, const struct ferry_instr *b)
{
	return a->path == b->path && a->from == b->from && a->to == b->to;
}

/* Another instruction writes the window that this one reads, with the same length, and they wait for each other. */
static ferryResult_t check_read(const struct validator *v, uint32_t nwindows, uint32_t i, uint32_t domain,
                                uint64_t offset)
{
	uint32_t writer = window_writer(v, nwindows, domain, offset);
	if (writer == UINT32_MAX || writer == i)
		return bad("instruction %u: nothing writes the window at %llu of domain %u", i,
		           (unsigned long long)offset, domain);
	if (v->instrs[writer].length != v->instrs[i].length)
		return bad("instruction %u: reads %llu bytes of the %llu that instruction %u writes", i,
		           (unsigned long long)v->instrs[i].length, (unsigned long long)v->instrs[writer].length,
		           writer);
	if (!same_part(&v->instrs[writer], &v->instrs[i]))
		return bad("instruction %u: reads another part than instruction %u writes", i, writer);
	if (!waits_for(v, i, writer) || !waits_behind(v, writer, i))
		return bad("instructions %u and %u share a window and do not wait for each other", writer, i);
	return ferrySuccess;
}

static ferryResult_t check_reads(const struct validator *v, uint32_t nwindows, uint32_t i)
{
	const struct ferry_instr *instr = &v->instrs[i];
	const struct ferry_plan *plan = v->plan;
	bool adds = instr->opcode == FERRY_ADD;
	uint32_t least = adds || (ferry_opcode_is_work(instr->opcode) && instr->opcode != FERRY_DIVIDE);
	bool passes_on = (instr->opcode == FERRY_D2H && instr->flags & FERRY_INSTR_MEMORY) ||
	                 (instr->opcode == FERRY_PUT && !(instr->flags & FERRY_INSTR_FORWARDS));
	uint32_t most = instr->opcode == FERRY_REDUCE || adds ? FERRY_MAX_RANKS : passes_on ? 1 : least;
	ferryResult_t result = ferrySuccess;
	if (instr->nsources < least || instr->nsources > most || instr->first_source > plan->nsources ||
	    instr->nsources > plan->nsources - instr->first_source)
		return bad("instruction %u: %u sources from %u of %u", i, instr->nsources, instr->first_source,
		           plan->nsources);
	if (instr->opcode == FERRY_H2D)
		return check_read(v, nwindows, i, instr->window_domain, instr->window_offset);
	for (uint32_t s = 0; s < instr->nsources && !result; s++) {
		const struct ferry_source *source = &v->sources[instr->first_source + s];
		if ((source->rank >= plan->nranks && source->rank != FERRY_PARTIAL) ||
		    (passes_on || adds ? !is_memory_of(v, instr->owner, source->domain)
		                       : source->domain >= plan->ndomains ||
		                                 (instr->opcode == FERRY_REDUCE) != (source->domain == instr->owner)))
			return bad("instruction %u: source %u of rank %u in domain %u", i, s, source->rank,
			           source->domain);
		result = check_read(v, nwindows, i, source->domain, source->window_offset);
	}
	return result;
}

static bool wakes(const struct ferry_instr *producer, const struct ferry_instr *waiter)
{
	if (ferry_opcode_is_d2h(waiter->opcode))
		return producer->wakes_d2h >> waiter->owner & 1;
	if (ferry_opcode_is_work(waiter->opcode))
		return producer->wakes_domains >> waiter->owner & 1;
	return producer->wakes_h2d >> waiter->owner & 1;
}

static ferryResult_t check_edges(const struct validator *v, uint32_t i)
{
	const struct ferry_instr *instr = &v->instrs[i];
	const struct ferry_plan *plan = v->plan;
	uint64_t ranks = ferry_rankset_all(plan->nranks);
	if (instr->first_edge > plan->nedges || instr->nedges > plan->nedges - instr->first_edge)
		return bad("instruction %u: %u edges from %u of %u", i, instr->nedges, instr->first_edge, plan->nedges);
	if ((instr->wakes_d2h & ~ranks) || (instr->wakes_h2d & ~ranks) || instr->wakes_domains >> plan->ndomains)
		return bad("instruction %u: wakes ranks or domains that do not exist", i);
	for (uint32_t e = 0; e < instr->nedges; e++) {
		const struct ferry_edge *edge = &v->edges[instr->first_edge + e];
		if (edge->instr >= plan->ninstrs || edge->instr == i || edge->lag > plan->window)
			return bad("instruction %u: edge to %u of %u with lag %u", i, edge->instr, plan->ninstrs,
			           edge->lag);
		/* Two instructions have at most one edge with a lag and one without: this bounds the checks' time. */
		uint32_t *seen = &v->seen[2 * (size_t)edge->instr + (edge->lag != 0)];
		if (*seen == i + 1)
			return bad("instruction %u: two edges to %u with lags of one kind", i, edge->instr);
		*seen = i + 1;
		if (!wakes(&v->instrs[edge->instr], instr))
			return bad("instruction %u waits for %u and would not be woken by it", i, edge->instr);
	}
	return ferrySuccess;
}

/* ---- from rank to rank ---- */

/* Whether the instruction writes the bytes that the PUT forwards, slice by slice. */
static bool brings(const struct ferry_instr *instr, const struct ferry_instr *put)
{
	if (instr->length != put->length)
		return false;
	if (instr->opcode == FERRY_PUT)
		return instr->peer == put->owner && instr->user_destination == put->user_offset;
	return instr->opcode == FERRY_H2D && instr->owner == put->owner && instr->user_offset == put->user_offset;
}

static ferryResult_t check_put(const struct validator *v, uint32_t i)
{
	const struct ferry_instr *put = &v->instrs[i];
	bool imported_arena = !(put->flags & FERRY_INSTR_FORWARDS);
	for (uint32_t e = 0; e < put->nedges; e++) {
		const struct ferry_edge *edge = &v->edges[put->first_edge + e];
		if (edge->lag)
			return bad("instruction %u: a PUT, which has no window, waits for %u with lag %u", i,
			           edge->instr, edge->lag);
		imported_arena |= brings(&v->instrs[edge->instr], put);
	}
	return imported_arena
	               ? ferrySuccess
	               : bad("instruction %u: forwards %llu bytes at %llu and waits for nothing that brings them", i,
	                     (unsigned long long)put->length, (unsigned long long)put->user_offset);
}

/* A WAIT_PUT waits for one PUT and nothing else, and no other WAIT_PUT waits for that one. */
static ferryResult_t check_wait_put(const struct validator *v, uint32_t i)
{
	const struct ferry_instr *wait = &v->instrs[i];
	const struct ferry_edge *edge = &v->edges[wait->first_edge];
	if (wait->nedges != 1 || edge->lag)
		return bad("instruction %u: a WAIT_PUT with %u edges, or with a lag", i, wait->nedges);
	const struct ferry_instr *put = &v->instrs[edge->instr];
	if (put->opcode != FERRY_PUT || put->peer != wait->owner || put->owner != wait->peer ||
	    put->user_destination != wait->user_offset || put->length != wait->length || !same_part(put, wait))
		return bad("instruction %u: rank %u's WAIT_PUT of %llu bytes at %llu from rank %u is not what "
		           "instruction %u does",
		           i, wait->owner, (unsigned long long)wait->length, (unsigned long long)wait->user_offset,
		           wait->peer, edge->instr);
	if (v->put_waits[edge->instr]++)
		return bad("instruction %u: another WAIT_PUT of instruction %u", i, edge->instr);
	return ferrySuccess;
}

static ferryResult_t check_puts(const struct validator *v)
{
	ferryResult_t result = ferrySuccess;
	uint32_t n = v->plan->ninstrs;
	bool any = false;
	for (uint32_t i = 0; i < n && !result; i++) {
		any |= v->instrs[i].opcode == FERRY_PUT;
		if (v->instrs[i].opcode == FERRY_PUT)
			result = check_put(v, i);
		else if (v->instrs[i].opcode == FERRY_WAIT_PUT)
			result = check_wait_put(v, i);
	}
	for (uint32_t i = 0; i < n && !result; i++)
		if (v->instrs[i].opcode == FERRY_PUT && !v->put_waits[i])
			result = bad("instruction %u: rank %u does not wait for what this PUT brings", i,
			             v->instrs[i].peer);
	if (!result && !any && (v->plan->flags & FERRY_PLAN_PUTS))
		result = bad("it says that it has PUTs, and has none");
	return result;
}

/* ---- the whole ---- */

/* Edges of lag 0 form no cycle. Lags from 1 to W then cannot deadlock either: see rank-lib/program/versions.c. */
static ferryResult_t check_acyclic(const struct validator *v)
{
	uint32_t n = v->plan->ninstrs, head = 0, tail = 0;
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t e = 0; e < v->instrs[i].nedges; e++) {
			const struct ferry_edge *edge = &v->edges[v->instrs[i].first_edge + e];
			if (edge->lag)
				continue;
			v->missing[i]++;
			v->first[edge->instr + 2]++;
		}
	for (uint32_t i = 1; i <= n; i++)
		v->first[i + 1] += v->first[i];
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t e = 0; e < v->instrs[i].nedges; e++) {
			const struct ferry_edge *edge = &v->edges[v->instrs[i].first_edge + e];
			if (!edge->lag)
				v->next[v->first[edge->instr + 1]++] = i;
		}
	for (uint32_t i = 0; i < n; i++)
		if (!v->missing[i])
			v->order[tail++] = i;
	for (; head < tail; head++)
		for (uint32_t j = v->first[v->order[head]]; j < v->first[v->order[head] + 1]; j++)
			if (!--v->missing[v->next[j]])
				v->order[tail++] = v->next[j];
	return tail == n ? ferrySuccess : bad("%u of %u instructions wait for each other in a circle", n - tail, n);
}

/* A DIVIDE waits for nothing, and wakes all ranks: every instruction with a path waits for it. */
static ferryResult_t check_division(const struct validator *v)
{
	uint64_t ranks = ferry_rankset_all(v->plan->nranks);
	uint32_t n = v->plan->ninstrs;
	for (uint32_t i = 0; i < n; i++) {
		const struct ferry_instr *instr = &v->instrs[i];
		if ((instr->opcode == FERRY_DIVIDE) != (v->plan->network_at && i + 1 == n))
			return bad("instruction %u of %u: %s, %s a network", i, n, ferry_opcode_name(instr->opcode),
			           v->plan->network_at ? "with" : "without");
		if (instr->opcode == FERRY_DIVIDE &&
		    (instr->nedges || instr->wakes_d2h != ranks || instr->wakes_h2d != ranks))
			return bad("instruction %u: a DIVIDE that waits, or does not wake every rank", i);
	}
	return n || !v->plan->network_at ? ferrySuccess : bad("a network, and no instruction");
}

static ferryResult_t check_windows(const struct validator *v, uint32_t *nwindows)
{
	*nwindows = 0;
	for (uint32_t i = 0; i < v->plan->ninstrs; i++)
		if (ferry_opcode_writes_window(v->instrs[i].opcode))
			v->windows[(*nwindows)++] = (struct ferry_bounce_buffer){v->instrs[i].window_offset,
			                                                         v->instrs[i].window_domain, i};
	qsort(v->windows, *nwindows, sizeof *v->windows, by_offset);
	for (uint32_t i = 1; i < *nwindows; i++)
		if (v->windows[i].domain == v->windows[i - 1].domain &&
		    v->windows[i].offset - v->windows[i - 1].offset < v->window_bytes)
			return bad("the windows of instructions %u and %u overlap", v->windows[i - 1].instr,
			           v->windows[i].instr);
	return ferrySuccess;
}

static ferryResult_t check_adds(const struct ferry_plan *plan)
{
	uint32_t adds[FERRY_MAX_RANKS] = {0}, sources[FERRY_MAX_RANKS] = {0};
	for (uint32_t i = 0; i < plan->ninstrs; i++) {
		const struct ferry_instr *instr = &ferry_plan_instrs(plan)[i];
		if (instr->opcode != FERRY_ADD)
			continue;
		sources[instr->owner] += instr->nsources;
		if (++adds[instr->owner] > FERRY_MOST_ADDS || sources[instr->owner] > FERRY_MOST_ADD_SOURCES ||
		    instr->nsources > FERRY_ADD_RANKS)
			return bad("instruction %u: ADD %u of rank %u, of %u sources, of %u by then: at most %u, of "
			           "%u, of %u",
			           i, adds[instr->owner], instr->owner, instr->nsources, sources[instr->owner],
			           FERRY_MOST_ADDS, FERRY_ADD_RANKS, FERRY_MOST_ADD_SOURCES);
	}
	return ferrySuccess;
}

static ferryResult_t check_instructions(const struct validator *v)
{
	ferryResult_t result = ferrySuccess;
	uint32_t n = v->plan->ninstrs, nwindows;
	uint64_t edges = 0;
	for (uint32_t i = 0; i < n && !result; i++) {
		result = check_owner(v, i);
		if (!result)
			result = check_reach(v, i);
		if (!result)
			result = check_edges(v, i);
		edges += v->instrs[i].nedges;
	}
	if (!result && edges > v->plan->nedges)
		result = bad("instructions share edges: %llu used, %u there", (unsigned long long)edges,
		             v->plan->nedges);
	if (!result)
		result = check_windows(v, &nwindows);
	if (!result)
		index_back_edges(v);
	for (uint32_t i = 0; i < n && !result; i++)
		result = check_reads(v, nwindows, i);
	if (!result)
		result = check_puts(v);
	if (!result)
		result = check_division(v);
	if (!result)
		result = check_adds(v->plan);
	return result ? result : check_acyclic(v);
}

ferryResult_t ferry_plan_validate(const void *blob, uint64_t bytes, const struct ferry_plan_room *room)
{
	const struct ferry_plan *plan = blob;
	if (bytes < sizeof *plan || bytes > FERRY_PLAN_MAX_BYTES || (uintptr_t)blob % 8)
		return bad("%llu bytes at %p; at least %zu, at most %u", (unsigned long long)bytes, blob, sizeof *plan,
		           FERRY_PLAN_MAX_BYTES);
	ferryResult_t result = check_header(plan, bytes, room);
	if (result)
		return result;
	size_t n = plan->ninstrs, ncounters = 0;
	for (uint32_t domain = 0; domain < plan->ndomains; domain++)
		ncounters += plan->counters[domain];
	struct validator v = {.plan = plan,
	                      .instrs = ferry_plan_instrs(plan),
	                      .edges = ferry_plan_edges(plan),
	                      .sources = ferry_plan_sources(plan),
	                      .window_bytes = (uint64_t)plan->slice * plan->window};
	uint32_t *words = calloc(6 * n + 6 + 2 * (size_t)plan->nedges, sizeof *words);
	uint8_t *used = calloc(ncounters + n + 1, 1);
	v.windows = calloc(n + 1, sizeof *v.windows);
	if (words && used && v.windows) {
		v.missing = words;
		v.order = words + n;
		v.first = words + 2 * n;
		v.next = words + 3 * n + 2;
		v.seen = words + 3 * n + 4 + plan->nedges;
		v.first_back = words + 5 * n + 4 + plan->nedges;
		v.back = words + 6 * n + 6 + plan->nedges;
		v.put_waits = used + ncounters;
		for (uint32_t domain = 0, at = 0; domain < plan->ndomains; at += plan->counters[domain++])
			v.counter_used[domain] = used + at;
		result = check_instructions(&v);
	} else {
		result = ferry_fail(ferrySystemError, "no memory to validate a plan of %zu instructions", n);
	}
	free(words);
	free(used);
	free(v.windows);
	return result;
}
