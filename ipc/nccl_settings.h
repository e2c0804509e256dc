/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The settings of the environment that make NCCL's and Ferry's calls take another time, as one number: what was
 * measured or learned under one number is of no use under another. Figures are kept and found under this number. NCCL's
 * variables and FERRY_FABRICS are part of it, in any order; the number of ranks is not.
 */
#ifndef FERRY_IPC_NCCL_SETTINGS_H
#define FERRY_IPC_NCCL_SETTINGS_H

#include <stdint.h>

/** The environment's settings as they are now; never 0. */
uint64_t ferry_nccl_settings(void);

#endif
