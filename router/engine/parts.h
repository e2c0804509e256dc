/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of slices: what workers claim, run and publish, of the calls that a job has admitted. Any worker, inside
 * the job. Nobody has a part before he has claimed it; who has finished the last part of a slice publishes it, and who
 * comes out of publishing last ends the call (docs/models/publish.pml).
 */
#ifndef FERRY_ROUTER_ENGINE_PARTS_H
#define FERRY_ROUTER_ENGINE_PARTS_H

#include "router/daemon/job.h"

/**
 * Admits calls and runs up to `most` slice parts (0: none), the last of which makes *credit 0 or less (NULL: no
 * matter); returns how many. *credit: bytes read and written; what the parts have is taken from it. *wanted: how many
 * workers should be awake: all that the plan takes while parts are ready that nobody has, and while a call of copy
 * engines is under way, whose slices come too fast for waking somebody for each. Only ever raised. `worker` is the
 * caller's number: a plan that takes few workers always takes the first ones, because only their private caches should
 * fill with what copy engines use. steal: from the others' queues too, if its own have nothing; who has not looked
 * there has not seen all that is ready.
 */
uint32_t ferry_parts_work(struct ferry_job *job, uint32_t worker, uint32_t most, bool steal, uint32_t *wanted,
                          int64_t *credit);

/** True if a call could be admitted or a slice run now. */
bool ferry_parts_any(struct ferry_job *job);

#endif
