/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/compiler.h"

#include "rank-lib/program/chunks.h"

#include <stdlib.h>
#include <string.h>

void *ferry_compiler_grow(struct ferry_compiler *compiler, struct ferry_growing *list, size_t item)
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

static void chunk_span(const struct ferry_part *part, uint32_t chunk, uint64_t *offset, uint64_t *length)
{
	uint32_t nchunks = part->program->nchunks;
	ferry_chunk_span(part->count, ferry_type_size(part->compiler->options->type), nchunks, chunk % nchunks, offset,
	                 length);
}

uint64_t ferry_part_chunk_length(const struct ferry_part *part, uint32_t chunk)
{
	uint64_t offset, length;
	if (part->program->collective == FERRY_ALLTOALLV)
		return 0;
	chunk_span(part, chunk, &offset, &length);
	return length;
}

/* Whether each block belongs to one rank. A block of an alltoall belongs to two. */
static bool has_owners(enum ferry_collective collective)
{
	switch (collective) {
	case FERRY_ALLGATHER:
	case FERRY_REDUCESCATTER:
	case FERRY_GATHER:
	case FERRY_SCATTER:
		return true;
	case FERRY_ALLREDUCE:
	case FERRY_BROADCAST:
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_ALLTOALL:
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		return false;
	}
	return false;
}

/*
 * Returns the chunk's offset in a rank's send or receive buffer. A buffer of one block has the rank's own block, or, in
 * collectives without owners, the block that all ranks have.
 */
static uint64_t chunk_offset(const struct ferry_part *part, uint32_t rank, uint32_t chunk, bool receives)
{
	uint64_t offset, length, first = part->first;
	uint32_t chunks[2];
	const struct ferry_program *program = part->program;
	const struct ferry_compile_options *options = part->compiler->options;
	uint32_t block = chunk / program->nchunks;
	if (program->collective == FERRY_ALLTOALLV)
		return 0;
	chunk_span(part, chunk, &offset, &length);
	ferry_collective_chunks(program->collective, program->nranks, program->nchunks, program->root, rank, &chunks[0],
	                        &chunks[1]);
	if (options->left_out.mirrored && has_owners(program->collective) &&
	    (chunks[receives] > program->nchunks ? block : rank) % 2)
		first = options->count - part->first - part->count;
	const uint64_t apart = options->count - (receives && options->left_out.packed ? options->left_out.count : 0);
	return (block * apart + first) * ferry_type_size(options->type) + offset;
}

uint64_t ferry_part_send_offset(const struct ferry_part *part, uint32_t rank, uint32_t chunk)
{
	return chunk_offset(part, rank, chunk, false);
}

uint64_t ferry_part_receive_offset(const struct ferry_part *part, uint32_t rank, uint32_t chunk)
{
	return chunk_offset(part, rank, chunk, true);
}
