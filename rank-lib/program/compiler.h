/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A plan in the making, which compile.c gives to instructions.c and to edges.c: what all parts of the call share, and
 * what each part has: a program, and the elements of every block that it moves. Used by one thread.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_COMPILER_H
#define FERRY_RANK_LIB_PROGRAM_COMPILER_H

#include "rank-lib/program/tuning.h"
#include "rank-lib/program/versions.h"

struct ferry_growing {
	void *items;
	uint32_t count, capacity;
};

struct ferry_compiler {
	const struct ferry_compile_options *options;
	bool failed;         /* out of memory; checked once, at the end of each stage */
	struct ferry_growing instrs, edges, sources;
	struct ferry_growing origins; /* of instructions, for messages */
	uint32_t *last_edge; /* per instruction and kind of lag: 1 + the last instruction with an edge to it */
	struct ferry_plan head;
	struct ferry_tuning tuning;
};

struct ferry_part {
	struct ferry_compiler *compiler;
	const struct ferry_program *program;
	uint64_t first, count; /* elements of every block; 0 for alltoallv */
	struct ferry_versions versions;
	bool *absorbed, *waited;  /* per value: part of another's REDUCE; a statement waits for it without reading it */
	bool *raw;                /* per value: one rank's input, unchanged since its D2H */
	uint32_t *root;           /* per value: the value that it ends up in; itself if not absorbed */
	/* per statement: its instruction, or the one that it is part of; a PUT's WAIT_PUT is the next one */
	uint32_t *instr_of;
	uint64_t *window_offset;  /* per value, in ferry_part_home */
	uint32_t *stack;          /* per value: scratch */
	/* lists of the statements that read a send chunk: the first by (rank, send chunk), the next by statement */
	uint32_t *sender_first, *sender_next;
	uint32_t *put_before; /* per statement: 1 + the PUT into the same rank that it waits for; 0: none */
};

/** Appends a zeroed item of `item` bytes and returns it; NULL without memory: compiler->failed is set. */
void *ferry_compiler_grow(struct ferry_compiler *compiler, struct ferry_growing *list, size_t item);

static inline struct ferry_instr *ferry_compiler_instr(const struct ferry_compiler *compiler, uint32_t index)
{
	return (struct ferry_instr *)compiler->instrs.items + index;
}

static inline struct ferry_instr_origin *ferry_compiler_origin(const struct ferry_compiler *compiler, uint32_t index)
{
	return (struct ferry_instr_origin *)compiler->origins.items + index;
}

/** The domain of the place's windows, or FERRY_MAX_DOMAINS + r: they lie in device memory of rank r. */
static inline uint32_t ferry_part_home(const struct ferry_part *part, struct ferry_place place)
{
	return ferry_place_is_memory(place) && part->compiler->options->memory
	               ? place.domain
	               : ferry_place_domain(part->program, place);
}

/** Bytes of a chunk of the part, and where it lies in a rank's send or receive buffer; 0 for alltoallv. */
uint64_t ferry_part_chunk_length(const struct ferry_part *part, uint32_t chunk);
uint64_t ferry_part_send_offset(const struct ferry_part *part, uint32_t rank, uint32_t chunk);
uint64_t ferry_part_receive_offset(const struct ferry_part *part, uint32_t rank, uint32_t chunk);

#endif
