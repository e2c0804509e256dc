/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Carriers that are not there: what parts of a call take on a machine of given paces, with noise, bursts, drift, single
 * outliers, and fabrics that are slower together. For tests of the balancer, which then know the best shares.
 */
#ifndef FERRY_TESTS_FABRICS_H
#define FERRY_TESTS_FABRICS_H

#include "orchestrator/balance/division.h"

#include <stdbool.h>

struct fabrics {
	struct ferry_pace paces[FERRY_NUM_FABRICS];
	double noise;                      /* standard deviation, relative */
	double outliers;                   /* of all calls; one such takes three times as long */
	double burst_s;                    /* bursts: so long on, so long off; 0: none */
	double burst[FERRY_NUM_FABRICS];   /* how many times slower each is then */
	double drift;                      /* the host gets so much slower in a second */
	double gaps;                       /* NCCL takes so many times as long for a part of blocks; 0: as long */
	double together[FERRY_NUM_FABRICS][FERRY_NUM_FABRICS]; /* [c][d]: c's time grows by so much while d works */
	double now_us;
	unsigned seed;
};

bool fabrics_in_burst(const struct fabrics *fabrics);

/* What the parts take now without noise; returns the longest. */
double fabrics_us(const struct fabrics *fabrics, double bytes, const struct ferry_shares *shares,
                  double us[FERRY_NUM_FABRICS]);

/* A call: the same with noise, and time goes on. */
double fabrics_call(struct fabrics *fabrics, double bytes, const struct ferry_shares *shares,
                    double us[FERRY_NUM_FABRICS]);

/* The least that any shares take now, by trying them; with bursts as now, or never if calm. */
double fabrics_best(const struct fabrics *fabrics, double bytes, uint32_t usable, double floor_bytes,
                    struct ferry_shares *shares);

#endif
