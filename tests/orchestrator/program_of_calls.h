/* SPDX-License-Identifier: Apache-2.0 */
/** A program whose calls the balancer divides among fabrics (carriers.h), and machines as two H200s are. */
#ifndef FERRY_TESTS_PROGRAM_OF_CALLS_H
#define FERRY_TESTS_PROGRAM_OF_CALLS_H

#include "orchestrator/balance/balancer.h"
#include "tests/orchestrator/fabrics.h"

#include <stdio.h>

#define MIB ((double)(1 << 20))
#define GB_S 1000.0 /* bytes per microsecond */
#define HOST FERRY_FABRIC_HOST
#define PEER FERRY_FABRIC_PEER
#define NCCL FERRY_FABRIC_NCCL
#define ALL ((1u << HOST) | (1u << PEER) | (1u << NCCL))
#define TWO ((1u << HOST) | (1u << NCCL))
#define LATE 2 /* calls that are made before one's times are known */

/* As two H200s are: without peer access, AllReduce over NVLink, AllGather over NVLink with pushes. */
static const struct fabrics pcie = {.paces = {{90, 24 * GB_S}, {0, 0}, {40, 21 * GB_S}},
                                    .together = {[HOST][NCCL] = 0.15, [NCCL][HOST] = 0.25}};
static const struct fabrics nvlink = {.paces = {{120, 28 * GB_S}, {0, 0}, {25, 310 * GB_S}},
                                      .together = {[NCCL][HOST] = 0.01}};
static const struct fabrics pushes = {.paces = {{75, 45 * GB_S}, {20, 380 * GB_S}, {25, 330 * GB_S}},
                                      .together = {[NCCL][PEER] = 0.9, [PEER][NCCL] = 0.7}};

/* A program that makes calls of one size, and is told late what they took. */
struct program {
	struct fabrics fabrics;
	struct ferry_balancer balancer;
	struct ferry_balancer_call call;
	uint64_t n;
	uint32_t trying;
	double fed[LATE][FERRY_NUM_FABRICS];
	uint32_t words[LATE];
	double busy_us;
	FILE *log; /* FERRY_TEST_LOG, for ferry-plot --shares */
	const char *name;
};

void program_start(struct program *program, const struct fabrics *fabrics, uint32_t usable, double bytes);

/** The balancer knows paces that are `wrong` times too fast. */
void program_know(struct program *program, double host_wrong, double nccl_wrong);

/** A call; what it took. late: so many calls are made before its times are told, LATE at most. */
double program_call(struct program *program, uint64_t late);

/** What the balancer's shares take now, over the best. */
double program_excess(const struct program *program, struct ferry_shares *shares);

#endif
