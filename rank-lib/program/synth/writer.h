/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Writes programs for synthesizers: statements in any order, each into the section of a rank, host chunks numbered per
 * domain in order of use. Callers check for lack of memory only at ferry_writer_end.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_SYNTH_WRITER_H
#define FERRY_RANK_LIB_PROGRAM_SYNTH_WRITER_H

#include "rank-lib/program/program.h"

struct ferry_writer {
	struct ferry_program *program;
	uint32_t capacity;
	bool failed;                  /* out of memory */
	struct ferry_statement spare; /* what ferry_writer_add returns then; never read */
	uint16_t next_chunk[FERRY_MAX_DOMAINS + FERRY_MAX_RANKS]; /* of domains, then of ranks' memory */
};

/** Begins a program without statements. Errors: ferryInvalidArgument for a senseless topology or root; no memory. */
ferryResult_t ferry_writer_begin(struct ferry_writer *writer, enum ferry_collective collective,
                                 const struct ferry_topology *topology, uint32_t root);

/**
 * Returns the program, which the caller frees, its sections in order of ranks and its statements numbered as lines.
 * Error: ferrySystemError if memory has run out.
 */
ferryResult_t ferry_writer_end(struct ferry_writer *writer, struct ferry_program **program);

/** Adds a statement of the rank, to be filled in before the next one is added. Never NULL. */
struct ferry_statement *ferry_writer_add(struct ferry_writer *writer, uint8_t opcode, uint32_t rank);

void ferry_writer_depend(struct ferry_writer *writer, struct ferry_statement *statement, struct ferry_place place,
                         uint32_t version);

/** Returns a fresh host chunk of a domain, or a fresh chunk of a rank's memory. */
struct ferry_place ferry_writer_place(struct ferry_writer *writer, uint32_t domain);
struct ferry_place ferry_writer_memory(struct ferry_writer *writer, uint32_t rank);

/** Adds a D2H of a chunk of the rank's send buffer to a fresh host chunk, of its own domain or of that domain. */
struct ferry_place ferry_writer_d2h(struct ferry_writer *writer, uint32_t rank, uint32_t chunk);
struct ferry_place ferry_writer_d2h_to(struct ferry_writer *writer, uint32_t rank, uint32_t chunk, uint32_t domain);

/** Adds an H2D of a version of a host chunk into a chunk of the rank's receive buffer. */
void ferry_writer_h2d(struct ferry_writer *writer, struct ferry_place place, uint32_t version, uint32_t rank,
                      uint32_t chunk);

#endif
