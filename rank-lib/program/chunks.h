/* SPDX-License-Identifier: Apache-2.0 */
/** How a collective's buffers are cut into chunks, and which chunk must end up where. */
#ifndef FERRY_RANK_LIB_PROGRAM_CHUNKS_H
#define FERRY_RANK_LIB_PROGRAM_CHUNKS_H

#include "rank-lib/program/program.h"

/**
 * The sizes of a collective's buffers in chunks of this program, for rank r: send buffer and receive buffer.
 * allreduce, broadcast, reduce: K and K; allgather, gather: K and N*K; reducescatter, scatter: N*K and K; alltoall:
 * N*K, N*K; alltoallv: the same, and each call cuts its blocks as it likes; sendrecv: K at rank 0, K at rank 1. A rank
 * that sends or receives nothing has 0.
 */
void ferry_collective_chunks(enum ferry_collective collective, uint32_t nranks, uint32_t nchunks, uint32_t root,
                             uint32_t rank, uint32_t *send_chunks, uint32_t *receive_chunks);

/**
 * Bytes offset and length of chunk i of K in a buffer block of `count` elements: element-aligned, 64-byte aligned where
 * it can be.
 */
void ferry_chunk_span(uint64_t count, size_t element, uint32_t nchunks, uint32_t chunk, uint64_t *offset,
                      uint64_t *length);

/**
 * Which contributions chunk i of rank r's receive buffer must hold: from which ranks, and of which of their send
 * chunks.
 */
void ferry_collective_demand(const struct ferry_program *program, uint32_t rank, uint32_t chunk, uint64_t *ranks,
                             uint32_t *send_chunk);

#endif
