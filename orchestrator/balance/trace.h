/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What has been seen of one carrier at one size (struct ferry_balancer_trace): its last samples, robust against single
 * ones, quick to see that it has changed. Relative to a pace, as calls of a size class are not all alike.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_TRACE_H
#define FERRY_ORCHESTRATOR_BALANCE_TRACE_H

#include "orchestrator/balance/division.h"

#include <stdbool.h>

#define FERRY_TRACE_SAMPLES 5

struct ferry_trace {
	float bytes[FERRY_TRACE_SAMPLES], us[FERRY_TRACE_SAMPLES]; /* the last ones, newest first */
	float noise;    /* mean deviation of samples in the band, relative */
	float other_bytes, other_us; /* what a part took before the last change; 0 us: there was none */
	int8_t strikes; /* the last sample was out of the band: -1 below, 1 above */
	bool away;      /* it has changed, and not back */
	uint8_t count;
};

/** A sample. settled: one out of the band is not believed, unless it fits what was before. True: it has changed. */
bool ferry_trace_add(struct ferry_trace *trace, const struct ferry_pace *pace, double bytes, double us, bool settled);

/** The last sample is what the carrier is like: no outlier, nor of a burst. */
bool ferry_trace_typical(const struct ferry_trace *trace);

/** The carrier is so many times slower than when these were taken. */
void ferry_trace_scale(struct ferry_trace *trace, double times);

/** Time over what the pace says, the median of the samples; 1 where there are none. */
double ferry_trace_factor(const struct ferry_trace *trace, const struct ferry_pace *pace);

#endif
