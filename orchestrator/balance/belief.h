/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What calls are believed to take: each fabric's pace in each set of fabrics, as two may be slower together than one
 * alone. A course has what all sizes of a collective and type have told, a belief what one of them has; the latter goes
 * before. Plain numbers; one thread, the balancer's.
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
	float slower[FERRY_NUM_FABRICS]; /* so many times than before all its changes: for sets that were not tried */
	struct ferry_trace traces[FERRY_NUM_FABRICS][FERRY_SHARE_BESIDE];
};

/** What an earlier job, or another rank, has learned: starts from that. */
void ferry_course_adopt(struct ferry_course *course, const struct ferry_share_course *learned);

/** The same of this one, for others. */
void ferry_course_record(const struct ferry_course *course, struct ferry_share_course *learned);

/** Whether it says what a part of so many bytes takes: parts that were far smaller say nothing of the rate. */
bool ferry_course_knows(const struct ferry_course *course, int fabric, double bytes);

/** Where a fabric keeps what it is beside the others of a set, which it is not in itself: 0 alone. */
int ferry_belief_slot(int fabric, uint32_t set);

/** Of a set that has not been tried one expects what lies between those that have. */
void ferry_belief_paces(const struct ferry_course *course, const struct ferry_belief *belief,
                        struct ferry_paces *paces);

/**
 * A part of a call, beside the others of that slot. settled: as ferry_trace_add. 0, or the fabric has changed, in all
 * sets: how many times as slow it is.
 */
double ferry_belief_learn(struct ferry_course *course, struct ferry_belief *belief, int fabric, int slot, double bytes,
                          double us, bool settled);

#endif
