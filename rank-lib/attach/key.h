/* SPDX-License-Identifier: Apache-2.0 */
/** Keys of jobs: random for a unique id, derived for the communicators that come out of another. Pure functions. */
#ifndef FERRY_RANK_LIB_ATTACH_KEY_H
#define FERRY_RANK_LIB_ATTACH_KEY_H

#include "ipc/attach.h"

/** Fills in FERRY_KEY_BYTES random bytes. Error: ferrySystemError. */
ferryResult_t ferry_random_key(uint8_t *key);

/** Derives a key; the same arguments give the same key on every rank. */
void ferry_derive_key(uint8_t *key, const uint8_t *from, uint64_t first, uint64_t second);

#endif
