/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How the ranks of ferryrun --nccl come to call libferry-nccl.so: by their environment, which this sets in the calling
 * process. Called by ferryrun before it starts ranks, when its routers run; nothing is kept.
 */
#ifndef FERRY_LAUNCH_PRELOAD_H
#define FERRY_LAUNCH_PRELOAD_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

/**
 * Sets LD_PRELOAD, in front of what it is, and VLLM_NCCL_SO_PATH where that is unset; `by_name`: for programs that open
 * libnccl.so.2 by name, the library of that name is preloaded too, and its folder comes into LD_LIBRARY_PATH.
 * ferrySystemError where libferry-nccl.so is not where this command's libraries are, with the places, or where the
 * loader cannot be told of it (a space or colon in its path).
 */
ferryResult_t ferry_preload_nccl(bool by_name);

#endif
