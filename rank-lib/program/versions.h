/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A program in single-assignment form: every version of every host chunk is one value, written once. The checker
 * executes it symbolically, the compiler gives each value a window. Built from a parsed program, which must outlive it;
 * read-only then.
 *
 * Chunks of receive buffers have one version, as they are written once: the statement that writes one stands for it.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_VERSIONS_H
#define FERRY_RANK_LIB_PROGRAM_VERSIONS_H

#include "rank-lib/program/program.h"

#define FERRY_NO_VALUE UINT32_MAX

/* host@domain[chunk] at one version. */
struct ferry_value {
	struct ferry_place place;
	uint32_t version; /* from 1 */
	uint32_t writer;  /* statement */
	uint32_t base;    /* the value that a REDUCE accumulates on; FERRY_NO_VALUE: none, it starts with its source */
	uint32_t source;  /* the value read by its writer; FERRY_NO_VALUE for D2H */
	uint64_t ranks;   /* contents: the ranks whose contributions it has ... */
	uint32_t chunk;   /* ... of which chunk of their send buffers */
	uint32_t first_reader, nreaders; /* statements that read it or accumulate on it */
};

/* The values that a statement reads and writes. */
struct ferry_use {
	uint32_t reads;              /* FERRY_NO_VALUE: D2H, PUT from a buffer */
	uint32_t writes;             /* FERRY_NO_VALUE: H2D, PUT */
	uint32_t forwards;           /* PUT that forwards: the statement that writes the receive chunk that it reads */
	uint32_t first_wait, nwaits; /* in `waits`: values that it waits for without reading them */
	uint64_t ranks;              /* contents of what it moves or makes, as in a value */
	uint32_t chunk;
};

struct ferry_versions {
	uint32_t nvalues;
	struct ferry_value *values;
	struct ferry_use *uses; /* one per statement */
	/* [rank * nranks * nchunks + receive chunk]: the H2D or PUT that writes it, or FERRY_NO_STATEMENT */
	uint32_t *received;
	uint32_t *waits, *readers;
	uint32_t *order; /* the statements, producers before consumers */
};

/**
 * Builds the form of a program whose numbers are in range; ferry_versions_free frees it. Errors: ferryProgramError
 * "name:line: reason" for a version that never exists, a read that names no version, writers of a chunk without an
 * order, a receive chunk written twice, a cycle, a contribution added twice or to another chunk.
 */
ferryResult_t ferry_versions_build(const struct ferry_program *program, struct ferry_versions *versions);
void ferry_versions_free(struct ferry_versions *versions);

/** Writes "host[3]" or "host@1[3]", as in a section of `domain`, or "mem@2[3]". Returns text. */
const char *ferry_place_text(struct ferry_place place, uint32_t domain, char text[32]);

/**
 * Writes "host[3]", or "host[3]:2" for version 2 of a chunk that has more, as in a section of `domain`. Returns text.
 */
const char *ferry_value_text(const struct ferry_versions *versions, uint32_t value, uint32_t domain, char text[48]);

/** The H2D or PUT that writes this chunk of the rank's receive buffer, or FERRY_NO_STATEMENT. */
static inline uint32_t ferry_receive_writer(const struct ferry_program *program, const struct ferry_versions *versions,
                                            uint32_t rank, uint32_t chunk)
{
	return versions->received[((size_t)rank * program->nranks * program->nchunks) + chunk];
}

/** Output that is a rank's own input and that nothing writes. */
struct ferry_own_copy {
	uint32_t rank, send_chunk, receive_chunk;
	uint32_t next; /* the receive chunk to look at next */
};

/** Moves *copy, which begins as zeros, to the next copy by rank and chunk. False: there is no more. */
bool ferry_own_copy_next(const struct ferry_program *program, const struct ferry_versions *versions,
                         struct ferry_own_copy *copy);

#endif
