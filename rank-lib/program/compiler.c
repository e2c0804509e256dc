/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/compiler.h"

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

uint64_t ferry_part_chunk_offset(const struct ferry_part *part, uint32_t chunk)
{
	uint64_t offset, length;
	size_t element = ferry_type_size(part->compiler->options->type);
	if (part->program->collective == FERRY_ALLTOALLV)
		return 0;
	chunk_span(part, chunk, &offset, &length);
	return (chunk / part->program->nchunks * part->compiler->options->count + part->first) * element + offset;
}
