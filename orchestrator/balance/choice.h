/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Who carries calls that one carrier has whole, NCCL or Ferry: for each size whoever was faster. Arithmetic alone, like
 * the balancer; a rank's own.
 *
 * - A size that has not been seen is whose the lines through all sizes say (rate_fit), but for a look at Ferry if they
 *   are close. Where one of the two is not known NCCL has it, then Ferry for a few calls: not for more, however far a
 *   program runs ahead of what is measured.
 * - Ferry's first call of a size is not believed: some rank then shows its buffers to its router, and all wait.
 * - The slower one has a call now and then, ever more rarely the slower it was.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_CHOICE_H
#define FERRY_ORCHESTRATOR_BALANCE_CHOICE_H

#include "orchestrator/balance/balancer.h"

#define FERRY_CHOICE_SAMPLES 5
#define FERRY_CHOICE_LINES   96

struct ferry_choice_line {
	uint8_t collective, type, size_class;
	bool in_place;
	bool ours;        /* chosen */
	uint8_t tries;    /* of Ferry, before it is known */
	uint32_t seen[2]; /* samples: NCCL's, Ferry's */
	float us[2][FERRY_CHOICE_SAMPLES];
};

struct ferry_choice_course {
	bool used;
	uint8_t collective, type;
	struct ferry_rate_fit fits[2];
};

struct ferry_choice {
	struct ferry_choice_course courses[FERRY_SHARE_COURSES];
	struct ferry_choice_line lines[FERRY_CHOICE_LINES];
	uint32_t nlines;
};

/** Whether Ferry is to have call n, and whether it is to be measured. */
bool ferry_choice_ours(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n, bool *measure);

/** A call that is measured is Ferry's, as the ranks have agreed: what this one proposed need not come to be. */
void ferry_choice_tried(struct ferry_choice *choice, const struct ferry_balancer_call *call);

/** A call that NCCL or Ferry has had took so long. */
void ferry_choice_feed(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours, double us);

/** What an earlier job has learned; and what this one has, of this collective and type. */
void ferry_choice_adopt(struct ferry_choice *choice, const struct ferry_share_course *learned, enum ferry_carrier ours);
bool ferry_choice_tell(const struct ferry_choice *choice, const struct ferry_balancer_call *call,
                       enum ferry_carrier ours, uint32_t *index, struct ferry_share_course *learned);

#endif
