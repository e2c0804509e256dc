/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A belief: what an arm is expected to take, by its own samples, by an earlier job, by calls of other sizes, or by what
 * was measured of the machine, whichever there is first. Of the tuner, which looks at all arms of a line at once.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_BELIEF_H
#define FERRY_ORCHESTRATOR_TUNER_BELIEF_H

#include "orchestrator/tuner/line.h"

/**
 * Whether the kind goes by what was measured before the job alone: its calls overlap others, in other streams, so that
 * what they take depends on what those take, and ferry-perf limits knows Ferry's time and NCCL's. False if an arm takes
 * several times as long as ferry-perf limits says: then the machine is not as it was.
 */
bool ferry_belief_by_limits(const struct ferry_tuner_line *line);

/** Returns what the arm is expected to take. line->by_limits must be what ferry_belief_by_limits says. */
struct ferry_belief ferry_believe(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                                  const struct ferry_arm *arm);

/** What the arm took when the machine was measured, before the job; 0: not known. */
double ferry_belief_before(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                           const struct ferry_arm *arm);

/** The least that an arm by the host takes, as no call beats its busiest link; 0: not known, or not by the host. */
double ferry_belief_bound(const struct ferry_tuner *tuner, const struct ferry_tuner_line *line,
                          const struct ferry_arm *arm);

#endif
