/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The last samples of one fabric at one size (struct ferry_balancer_trace), robust against single outliers, quick to
 * see a change. Relative to a pace, as calls of a size class are not all alike.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_TRACE_H
#define FERRY_ORCHESTRATOR_BALANCE_TRACE_H

#include "orchestrator/balance/division.h"

#include <stdbool.h>

#define FERRY_TRACE_SAMPLES 5

struct ferry_trace {
	float bytes[FERRY_TRACE_SAMPLES], us[FERRY_TRACE_SAMPLES]; /* the last ones, newest first */
	float noise;    /* mean deviation of samples, relative; one that is far off counts as FAR (trace.c) */
	float other_bytes, other_us; /* what a part took before the last change; 0 us: there was none */
	float strike_bytes, strike_us; /* the last sample out of the band, */
	int8_t strikes; /* if it was the last of all: -1 below, 1 above */
	bool away;      /* it has changed, and not back */
	uint8_t count;
	uint8_t seen;   /* samples, believed or not; no more than 255 */
};

/**
 * Adds a sample. settled: one sample out of the band changes nothing, unless it fits what was before. Not settled: a
 * faster one counts if few are known, a slower one only if the next is slow, too, because calls in which buffers are
 * mapped by the router take many times as long. known: the pace has been measured, and the first sample is compared
 * with it. Returns true if the fabric has changed.
 */
bool ferry_trace_add(struct ferry_trace *trace, const struct ferry_pace *pace, double bytes, double us, bool settled,
                     bool known);

/** Whether the last sample is typical of the fabric: no outlier, nor of a burst. */
bool ferry_trace_typical(const struct ferry_trace *trace);

/** The fabric has changed elsewhere: one sample suffices for a change here. */
void ferry_trace_warn(struct ferry_trace *trace, bool slower);

/** The fabric is so many times slower than when these were taken. */
void ferry_trace_scale(struct ferry_trace *trace, double times);

/** Mean deviation of samples, or what is likely before there are some. */
double ferry_trace_noise(const struct ferry_trace *trace);

/** Time over what the pace says, the median of the samples; 1 where there are none. */
double ferry_trace_factor(const struct ferry_trace *trace, const struct ferry_pace *pace);

#endif
