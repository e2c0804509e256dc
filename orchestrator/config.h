/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The fields of NCCL's configurations that Ferry reads: of a communicator (ncclConfig_t) and of a call
 * (ncclCollConfig_t, since 2.31). NCCL only ever appends fields; a field beyond a configuration's own size is missing.
 */
#ifndef FERRY_ORCHESTRATOR_CONFIG_H
#define FERRY_ORCHESTRATOR_CONFIG_H

#include "orchestrator/nccl_types.h"

#include <stdbool.h>

/** Whether a communicator of this configuration is to move data by copy engines alone (CTA policy zero). */
bool ferry_nccl_config_copies(const ncclConfig_t *config);

/** Whether it sets a CTA policy other than the default. */
bool ferry_nccl_config_has_policy(const ncclConfig_t *config);

/**
 * Whether that version of NCCL (22809: 2.28.9) lets this value of NCCL_CTA_POLICY override all configurations: then
 * *copies is the resulting policy. NULL: the variable is not set.
 */
bool ferry_nccl_policy_read(const char *value, int version, bool *copies);

/**
 * The policy that NCCL gives to a communicator whose configuration says `copies`. The variable is read once, as NCCL
 * does, and not before NCCL has begun a communicator: NCCL puts the settings of its files (nccl.conf) into the
 * environment then.
 */
bool ferry_nccl_policy_copies(bool copies);

/**
 * Whether a call can be made later with this configuration, which is NULL or the caller's to free: it names no
 * algorithm, event or vendor's option, and asks for no copy engines. NCCL requires it to be the same on all ranks, so
 * all ranks agree.
 */
bool ferry_nccl_config_is_plain(const ncclCollConfig_t *config);

/** A copy by its own size, to be freed; NULL without memory, or where the size is none. */
ncclCollConfig_t *ferry_nccl_config_copy(const ncclCollConfig_t *config);

#endif
