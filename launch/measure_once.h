/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ferryrun --nccl measures before it starts its command: `ferry-perf tune --quick --once`, which finds out whether
 * there is anything to measure, says so, and keeps it. Called by ferryrun once, before it starts routers.
 */
#ifndef FERRY_LAUNCH_MEASURE_ONCE_H
#define FERRY_LAUNCH_MEASURE_ONCE_H

#include "launch/supervise.h"

/**
 * Measures, unless the environment says that nothing would come of it. What goes wrong with that is said in a line, and
 * no error: after 30 s it is ended. Errors: FERRY_TUNE is neither on nor off; a signal has asked this process to end
 * meanwhile (the supervisor's `asked`).
 */
ferryResult_t ferry_measure_once(struct ferry_supervisor *supervisor);

#endif
