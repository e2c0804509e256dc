/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A fabric's pace, learned from what parts of all sizes have taken: a line through (bytes, microseconds) by least
 * squares of relative errors, which forgets. So a size that has not been seen starts from those that have. Plain
 * numbers; one thread.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_RATE_FIT_H
#define FERRY_ORCHESTRATOR_BALANCE_RATE_FIT_H

#include "orchestrator/balance/division.h"

struct ferry_rate_fit {
	struct ferry_pace pace; /* rate 0: nothing is known */
	uint32_t samples;
	float most; /* bytes of the largest part of these; no end where it was measured elsewhere */
	float weight, b, bb, t, bt; /* sums over samples, each divided by its time squared */
};

/**
 * Starts from a pace that was measured elsewhere: it weighs as much as two samples, of a small part and of a large one.
 */
void ferry_rate_fit_start(struct ferry_rate_fit *fit, const struct ferry_pace *pace);

void ferry_rate_fit_add(struct ferry_rate_fit *fit, double bytes, double us);

#endif
