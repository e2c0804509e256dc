/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Whether NCCL is to load this library as its tuner plugin, which it does where NCCL_TUNER_PLUGIN names it. The
 * variable is set when the library is loaded, as later other threads may read the environment, and taken back before
 * the first communicator is made, if NCCL would have found a tuner of the user's without it. What the user has set
 * stays. NCCL before 2.21 finds no interface that it knows in the library, and goes on without.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_OFFER_H
#define FERRY_ORCHESTRATOR_TUNER_OFFER_H

#include "orchestrator/nccl_types.h"

/**
 * Takes it back for good reason, once in the process: before NCCL creates its first communicator, which has this
 * configuration or NULL. NCCL loads no other plugin later.
 */
void ferry_nccl_tuner_settle(const ncclConfig_t *config);

#endif
