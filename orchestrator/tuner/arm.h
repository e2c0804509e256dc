/* SPDX-License-Identifier: Apache-2.0 */
/**
 * An arm: one way in which calls of a kind may be carried, and what such calls took. Its time is the median of its last
 * samples. It forgets: where two samples in a row are far from that, only they count. When calls come back to the arm
 * after going another way, its first new sample makes the old ones count as one time learned before (learned_us). Plain
 * numbers.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_ARM_H
#define FERRY_ORCHESTRATOR_TUNER_ARM_H

#include "ipc/shares.h"

#define FERRY_ARM_SAMPLES 7

struct ferry_arm {
	uint32_t word;    /* of shares (ipc/shares.h) */
	uint32_t seen;    /* samples that count */
	uint32_t tries, next; /* next: the line's calls from which on it may be tried again */
	uint32_t pending; /* measured calls whose times are not known yet */
	int8_t far;       /* samples in a row that were far above the ones before; below: negative */
	bool slowed;      /* it has become slow since calls went this way */
	bool left;        /* calls have gone another way since the last sample */
	float learned_us; /* by an earlier job, or before the calls went another way; 0: not known */
	float before_us;  /* by what was measured before the job; 0: not known */
	float us[FERRY_ARM_SAMPLES]; /* newest first */
};

/** Whether Ferry has such calls. */
static inline bool ferry_arm_is_ferrys(const struct ferry_arm *arm)
{
	return ferry_shares_divide(arm->word);
}

/** The median of its samples, of one or two together with what was known before; 0: there are none. */
double ferry_arm_us(const struct ferry_arm *arm);

/** Takes a sample. */
void ferry_arm_add(struct ferry_arm *arm, double us);

#endif
