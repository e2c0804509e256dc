/* SPDX-License-Identifier: Apache-2.0 */
/** Keys of jobs: random for a unique id, derived for the communicators that come out of another. Pure functions. */
#ifndef FERRY_RANK_LIB_BOOTSTRAP_H
#define FERRY_RANK_LIB_BOOTSTRAP_H

#include "rank-lib/comm.h"

ferryResult_t ferry_random_key(uint8_t *key);
void ferry_derive_key(uint8_t *key, const uint8_t *from, uint64_t first, uint64_t second);

#endif
