/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tables of kernels, one per target: reduce.c picks a target, handles edges, and calls the kernels of its table.
 * Read-only.
 */
#ifndef FERRY_ROUTER_REDUCE_TARGETS_H
#define FERRY_ROUTER_REDUCE_TARGETS_H

#include "ipc/ferry_types.h"
#include "router/reduce/cache.h"
#include "router/reduce/store.h"

#include <stdbool.h>

/**
 * Bytes [begin, end) of the destination, a multiple of two vectors' worth of elements. factors: one per source, of the
 * accumulator's type, or NULL. FERRY_STORE_STREAM only with the destination's `begin` aligned to the vector.
 */
typedef void ferry_reduce_pass(char *to, const char *const *from, uint32_t count, size_t begin, size_t end, int op,
                               bool plain, enum ferry_store store, const void *factors, double divisor);

struct ferry_reduce_kernels {
	uint32_t vector; /* bytes */
	ferry_reduce_pass *passes[ferryNumTypes];
	/* `to` aligned to the vector where it streams, bytes a multiple of four vectors */
	void (*copy)(char *to, const char *from, size_t bytes, bool streams);
};

extern const struct ferry_reduce_kernels ferry_kernels_portable, ferry_kernels_avx2, ferry_kernels_avx512,
        ferry_kernels_neon;

#endif
