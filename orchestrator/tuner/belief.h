/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A belief: what an arm is expected to take, by its own samples, by an earlier job, by calls of other sizes, or by what
 * was measured of the machine, whichever there is first. Of the tuner, which looks at all arms of a line at once.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_BELIEF_H
#define FERRY_ORCHESTRATOR_TUNER_BELIEF_H

#include "orchestrator/tuner/arm.h"

struct ferry_tuner;
struct ferry_tuner_line;

struct ferry_belief {
	double us;   /* 0: nothing is known */
	double hope; /* if the arm in use has become slow, and this one has not */
	double than; /* it is taken in place of the arm in use if it takes so much of that one's time, or less */
};

struct ferry_belief ferry_believe(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                                  const struct ferry_arm *arm);

/** By calls of other sizes alone; 0: not known. */
double ferry_belief_guess(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                          const struct ferry_arm *arm);

/** No call by the host is faster than its busiest link: such an arm takes so long at least; 0: not known. */
double ferry_belief_bound(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                          const struct ferry_arm *arm);

#endif
