/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ferryrun --nccl measures before it starts its command: `ferry-perf tune --quick --once`, which finds out whether
 * there is anything to measure, says so, and keeps the figures. Called by ferryrun once, before it starts routers.
 */
#ifndef FERRY_LAUNCH_MEASURE_ONCE_H
#define FERRY_LAUNCH_MEASURE_ONCE_H

#include "launch/supervise.h"

/**
 * Measures, unless the environment makes the figures useless. A failed measurement is no error, but prints a line;
 * after 30 s it is ended. Errors: ferryInvalidArgument if FERRY_TUNE is neither on nor off; ferrySystemError if a
 * signal has asked this process to end meanwhile (supervisor->asked).
 */
ferryResult_t ferry_measure_once(struct ferry_supervisor *supervisor);

#endif
