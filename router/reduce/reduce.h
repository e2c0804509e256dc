/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The reduction kernel: N sources, one pass, rank order. Called by router workers and by benchmarks; pure, thread-safe.
 *
 * Sources are combined in the order given: ((s0 op s1) op s2) ... . 16- and 8-bit floats accumulate in float32 and are
 * rounded once, to nearest even. All dispatch targets (portable C, AVX2, AVX-512, NEON) give the same bits: no
 * reassociation, and no contraction to FMA but of products with factors. Special values are treated as NCCL's kernels
 * treat them: min and max return the number where the other source is a NaN, and -0 is less than +0.
 */
#ifndef FERRY_ROUTER_REDUCE_REDUCE_H
#define FERRY_ROUTER_REDUCE_REDUCE_H

#include "ipc/ferry_types.h"
#include "router/reduce/store.h"

#include <stdbool.h>

enum ferry_target {
	FERRY_TARGET_PORTABLE,
	FERRY_TARGET_AVX2,
	FERRY_TARGET_AVX512,
	FERRY_TARGET_NEON,
	FERRY_NUM_TARGETS
};

struct ferry_reduction {
	ferryDataType_t type;
	ferryRedOp_t op;            /* ferrySum..ferryAvg; ferryNumOps for premulsum */
	enum ferry_store store;
	/*
	 * ferryAvg of integers: the sum is divided by this (the number of ranks) in this pass; 1: not in this pass. An
	 * average of floats is a premulsum with ferry_reduce_reciprocal().
	 */
	uint32_t divisor;
	/*
	 * premulsum: per source, the bits of its factor in `type` (low bytes first); NULL: all sources unscaled. The
	 * first product is rounded to `type`; each other one is added to the sum by a fused operation, as in NCCL's
	 * kernels, or rounded too for 8-bit floats.
	 */
	const uint64_t *scalars;
	uint64_t scaled;            /* premulsum: bit i set: source i is multiplied by scalars[i] first */
};

/**
 * destination[i] = sources[0][i] op sources[1][i] op ... for `elements` elements. nsources >= 1 (1 copies, scaled or
 * divided where asked). Pointers are aligned to the element; destination may equal a source exactly, but not overlap it
 * otherwise.
 */
void ferry_reduce(void *destination, const void *const *sources, uint32_t nsources, size_t elements,
                  const struct ferry_reduction *reduction);

/** As ferry_reduce, by one target, for tests. Returns ferryInvalidUsage where this CPU or build lacks it. */
ferryResult_t ferry_reduce_on(enum ferry_target target, void *destination, const void *const *sources,
                              uint32_t nsources, size_t elements, const struct ferry_reduction *reduction);

/**
 * The bits of 1 / n in a float type: the factor of each rank's input in an average, as NCCL has it, so that no sum of
 * large values overflows. 0 for integers, whose sums are divided.
 */
uint64_t ferry_reduce_reciprocal(ferryDataType_t type, uint32_t n);

/** The target that ferry_reduce uses on this CPU (FERRY_REDUCE chooses another). */
enum ferry_target ferry_reduce_target(void);
const char *ferry_reduce_target_name(enum ferry_target target);

/**
 * Checks that FERRY_REDUCE is unset or names a target of this CPU; else ferryInvalidArgument with its value and the
 * targets that there are.
 */
ferryResult_t ferry_reduce_check(void);

/** Whether this CPU has cldemote. */
bool ferry_cpu_demotes(void);

/**
 * Copies with a choice of store, for H2H, host lanes and short calls: non-temporal stores skip the read of the
 * destination.
 */
void ferry_copy(void *destination, const void *source, size_t bytes, enum ferry_store store);

#endif
