/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What calls are believed to take: each fabric's pace in each set of fabrics, as two may be slower together than one
 * alone. A course holds what all sizes of a collective and type have shown, a belief what one size has; the latter
 * takes precedence. Plain numbers; one thread, the balancer's.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_BELIEF_H
#define FERRY_ORCHESTRATOR_BALANCE_BELIEF_H

#include "ipc/shares.h"
#include "orchestrator/balance/rate_fit.h"
#include "orchestrator/balance/trace.h"

struct ferry_course {
	uint8_t used, collective, type;
	struct ferry_rate_fit fits[FERRY_NUM_FABRICS][FERRY_SHARE_BESIDE]; /* by ferry_belief_slot */
};

struct ferry_belief {
	float slower[FERRY_NUM_FABRICS]; /* factor of slowness against before all its changes: for sets that were not
	                                    tried */
	struct ferry_trace traces[FERRY_NUM_FABRICS][FERRY_SHARE_BESIDE];
};

/** Starts from what an earlier job, or another rank, has learned. */
void ferry_course_adopt(struct ferry_course *course, const struct ferry_share_course *learned);

/** Fills in what this course has learned, for other ranks and jobs. */
void ferry_course_record(const struct ferry_course *course, struct ferry_share_course *learned);

/** Whether it predicts the time of a part of so many bytes: parts that were far smaller do not give the rate. */
bool ferry_course_knows(const struct ferry_course *course, int fabric, double bytes);

/** The slot in which a fabric's pace beside the others of a set is kept; 0 for the fabric alone. */
int ferry_belief_slot(int fabric, uint32_t set);

/** Paces of a set; one that has not been tried is predicted between those that have. */
void ferry_belief_paces(const struct ferry_course *course, const struct ferry_belief *belief,
                        struct ferry_paces *paces);

/**
 * Learns from a part of a call, beside the others of that slot. settled: as ferry_trace_add. Returns 0, or, if the
 * fabric has changed in all sets, the factor by which it is slower.
 */
double ferry_belief_learn(struct ferry_course *course, struct ferry_belief *belief, int fabric, int slot, double bytes,
                          double us, bool settled);

#endif
