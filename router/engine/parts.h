/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of slices: workers claim, run and publish them, for the calls that a job has admitted. Any worker, inside
 * the job. A worker touches a part only after it has claimed it. The worker that finishes the last part of a slice
 * publishes the slice, and the last worker to leave publishing ends the call (docs/models/publish.pml).
 */
#ifndef FERRY_ROUTER_ENGINE_PARTS_H
#define FERRY_ROUTER_ENGINE_PARTS_H

#include "router/daemon/job.h"

/**
 * Admits calls and runs up to `most` slice parts (0: none), the last of which makes *credit 0 or less (NULL: no limit);
 * returns how many. *credit: bytes read and written; each part's bytes are subtracted. *wanted: how many workers should
 * be awake. It is only ever raised: to all that the plan takes, while ready parts are unclaimed, and while a call of
 * copy engines is under way, whose slices come too fast to wake a worker for each. `worker` is the caller's number: a
 * plan that takes few workers always takes the first ones, so that only their private caches fill with what copy
 * engines use. steal: also from the other workers' queues, if its own have nothing; a worker that has not tried those
 * has not seen all that is ready.
 */
uint32_t ferry_parts_work(struct ferry_job *job, uint32_t worker, uint32_t most, bool steal, uint32_t *wanted,
                          int64_t *credit);

/** True if a call could be admitted or a slice run now. */
bool ferry_parts_any(struct ferry_job *job);

#endif
