/* SPDX-License-Identifier: Apache-2.0 */
/** How a collective's buffers are cut into chunks, and which chunk must end up where. */
#ifndef FERRY_RANK_LIB_PROGRAM_CHUNKS_H
#define FERRY_RANK_LIB_PROGRAM_CHUNKS_H

#include "rank-lib/program/program.h"

/**
 * Returns the sizes of a rank's send buffer and receive buffer in chunks, with N ranks and K chunks to a block.
 * allreduce, broadcast, reduce: K and K; allgather, gather: K and N*K; reducescatter, scatter: N*K and K; alltoall,
 * alltoallv: N*K and N*K; sendrecv: K at rank 0, K at rank 1. 0 where the rank sends or receives nothing.
 */
void ferry_collective_chunks(enum ferry_collective collective, uint32_t nranks, uint32_t nchunks, uint32_t root,
                             uint32_t rank, uint32_t *send_chunks, uint32_t *receive_chunks);

/**
 * Returns the offset and length, in bytes, of a chunk of a block of `count` elements: whole elements, cut at multiples
 * of 64 bytes.
 */
void ferry_chunk_span(uint64_t count, size_t element, uint32_t nchunks, uint32_t chunk, uint64_t *offset,
                      uint64_t *length);

/**
 * Returns what a chunk of a rank's receive buffer must hold: the contributions of *ranks, of chunk *send_chunk of their
 * send buffers.
 */
void ferry_collective_demand(const struct ferry_program *program, uint32_t rank, uint32_t chunk, uint64_t *ranks,
                             uint32_t *send_chunk);

#endif
