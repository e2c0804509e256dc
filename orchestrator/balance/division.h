/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Dividing a call among fabrics so that all parts end together. Arithmetic alone: no state, no clock. By the balancer,
 * which knows how fast each is.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_DIVISION_H
#define FERRY_ORCHESTRATOR_BALANCE_DIVISION_H

#include "ipc/shares.h"

double ferry_pace_us(const struct ferry_pace *pace, double bytes);

#define FERRY_FABRIC_SETS (1 << FERRY_NUM_FABRICS)

/* How fast each is while exactly those work that have a bit in the index: some are slower together. */
struct ferry_paces {
	struct ferry_pace in[FERRY_FABRIC_SETS][FERRY_NUM_FABRICS];
};

/** Bit c: fabric c has a part. */
uint32_t ferry_division_set(const struct ferry_shares *shares);

/** Returns the time of a call divided so: the longest of its parts. */
double ferry_division_us(const struct ferry_paces *paces, double bytes, const struct ferry_shares *shares);

struct ferry_division_rules {
	uint32_t usable;    /* bit c: fabric c may have a part */
	uint32_t kept;      /* bit c: it has one now, and keeps it as long as that costs nothing */
	double floor_bytes; /* no part is smaller */
	double least_gain;  /* what a fabric that is not kept has to bring, of the time: 0.02 */
};

/**
 * Finds the best division, and returns its time. NCCL needs no gain to have a part. If nothing else is usable, NCCL has
 * all.
 */
double ferry_divide(const struct ferry_paces *paces, double bytes, const struct ferry_division_rules *rules,
                    struct ferry_shares *shares);

/** The best division among exactly this set; infinite, and *shares as they were, where there is none. */
double ferry_divide_among(const struct ferry_paces *paces, double bytes, uint32_t set,
                          const struct ferry_division_rules *rules, struct ferry_shares *shares);

#endif
