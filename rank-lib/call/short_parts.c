/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/short_parts.h"

#include "router/reduce/reduce.h"

#include <string.h>

#define PIECE 4096u /* bytes summed at a time where a buffer is not aligned */

static enum ferry_collective collective_of(const struct ferry_call *call)
{
	return (enum ferry_collective)(call->shape & 0xff);
}

static ferryDataType_t type_of(const struct ferry_call *call)
{
	return (ferryDataType_t)(call->shape >> 8 & 0xff);
}

static uint64_t block_of(const struct ferry_call *call)
{
	return call->count * ferry_type_size(type_of(call));
}

static char *place_of(const struct ferry_call *call, const struct ferry_short_parts *parts, uint32_t rank)
{
	const struct ferry_job_arenas *shared = call->member->shared;
	return shared->arenas[shared->rank_domain[rank]].staging[call->parity] + rank * parts->place;
}

bool ferry_short_parts_only_sends(const struct ferry_call *call)
{
	bool is_root = call->member->rank == call->root;
	switch (collective_of(call)) {
	case FERRY_BROADCAST:
	case FERRY_SCATTER:
		return is_root;
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_GATHER:
		return !is_root;
	case FERRY_ALLREDUCE:
	case FERRY_ALLGATHER:
	case FERRY_REDUCESCATTER:
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		break;
	}
	return false;
}

static bool puts_down(const struct ferry_call *call)
{
	return !ferry_collective_has_root(collective_of(call)) || ferry_short_parts_only_sends(call);
}

/*
 * Called before the descriptor is written: puts one block for all other ranks, or one for each, in rank order. Streams
 * past the cache: other cores hold lines of an earlier call here, and taking lines back is slower than writing to
 * memory.
 */
void ferry_short_parts_put_down(const struct ferry_call *call, const struct ferry_short_parts *parts)
{
	uint32_t self = call->member->rank, nranks = call->member->shared->nranks;
	uint64_t block = block_of(call), before = self * block;
	char *place = place_of(call, parts, self);
	if (!block || !puts_down(call))
		return;
	if (!ferry_collective_sends_blocks(collective_of(call))) {
		ferry_copy(place, parts->send, block, FERRY_STORE_STREAM);
		return;
	}
	ferry_copy(place, parts->send, before, FERRY_STORE_STREAM);
	ferry_copy(place + before, parts->send + before + block, (nranks - 1) * block - before, FERRY_STORE_STREAM);
}

/* The block that the rank has put down for this one; this one's own is in its send buffer. */
static const char *part_of(const struct ferry_call *call, const struct ferry_short_parts *parts, uint32_t rank)
{
	uint32_t self = call->member->rank;
	uint64_t block = ferry_collective_sends_blocks(collective_of(call)) ? block_of(call) : 0;
	return rank == self ? parts->send + self * block : place_of(call, parts, rank) + (self - (self > rank)) * block;
}

/* The factors of an average or of a premulsum, as the routers' workers have them (router/engine/parts.c). */
static struct ferry_reduction reduction_of(const struct ferry_call *call, uint64_t scalars[FERRY_MAX_RANKS])
{
	const struct ferry_job_arenas *shared = call->member->shared;
	struct ferry_reduction reduction = {.type = type_of(call),
	                                    .op = (ferryRedOp_t)(call->shape >> 16 & 0xff),
	                                    .divisor = 1};
	uint64_t reciprocal = reduction.op == ferryAvg ? ferry_reduce_reciprocal(reduction.type, shared->nranks) : 0;
	if (reduction.op == ferryAvg && !reciprocal)
		reduction.divisor = shared->nranks;
	if (reduction.op != ferryNumOps && !reciprocal)
		return reduction;
	for (uint32_t rank = 0; rank < shared->nranks; rank++) {
		struct ferry_descriptor *theirs = &ferry_rank_line(shared, rank)->ring[call->parity];
		scalars[rank] = reciprocal ? reciprocal
		                           : atomic_load_explicit(&theirs->scalar, memory_order_relaxed);
		reduction.scaled |= 1ull << rank;
	}
	reduction.scalars = scalars;
	return reduction;
}

/* The sum of all ranks' parts. The user's buffers may lie anywhere; ferry_reduce asks for elements. */
static void sum(const struct ferry_call *call, const struct ferry_short_parts *parts)
{
	uint64_t scalars[FERRY_MAX_RANKS], bytes = block_of(call), element = ferry_type_size(type_of(call));
	uint32_t self = call->member->rank, nranks = call->member->shared->nranks;
	const void *sources[FERRY_MAX_RANKS];
	struct ferry_reduction reduction = reduction_of(call, scalars);
	bool aligned = !(((uintptr_t)parts->send | (uintptr_t)parts->receive) % element);
	_Alignas(64) char own[PIECE];
	for (uint64_t done = 0, piece; done < bytes; done += piece) {
		piece = aligned || bytes - done < PIECE ? bytes - done : PIECE;
		for (uint32_t rank = 0; rank < nranks; rank++)
			sources[rank] = part_of(call, parts, rank) + done;
		if (!aligned)
			sources[self] = memcpy(own, sources[self], piece);
		ferry_reduce(aligned ? parts->receive + done : own, sources, nranks, piece / element, &reduction);
		if (!aligned)
			memcpy(parts->receive + done, own, piece);
	}
}

static void copy(char *to, const char *from, uint64_t bytes)
{
	if (to != from)
		ferry_copy(to, from, bytes, FERRY_STORE_ORDINARY);
}

/* All ranks' parts, one behind the other. */
static void collect(const struct ferry_call *call, const struct ferry_short_parts *parts)
{
	uint64_t block = block_of(call);
	for (uint32_t rank = 0; rank < call->member->shared->nranks; rank++)
		copy(parts->receive + rank * block, part_of(call, parts, rank), block);
}

void ferry_short_parts_conclude(const struct ferry_call *call, const struct ferry_short_parts *parts)
{
	bool is_root = call->member->rank == call->root;
	if (!block_of(call))
		return;
	switch (collective_of(call)) {
	case FERRY_REDUCE_TO_ROOT:
		if (!is_root)
			break;
		/* fall through */
	case FERRY_ALLREDUCE:
	case FERRY_REDUCESCATTER:
		sum(call, parts);
		break;
	case FERRY_GATHER:
		if (!is_root)
			break;
		/* fall through */
	case FERRY_ALLGATHER:
	case FERRY_ALLTOALL:
		collect(call, parts);
		break;
	case FERRY_BROADCAST:
	case FERRY_SCATTER:
		copy(parts->receive, part_of(call, parts, call->root), block_of(call));
		break;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		break;
	}
}
