/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How the ranks of ferryrun --nccl load libferry-nccl.so: by their environment, which this sets in the calling process.
 * Called by ferryrun before it starts ranks, when its routers run; nothing is kept.
 */
#ifndef FERRY_LAUNCH_PRELOAD_H
#define FERRY_LAUNCH_PRELOAD_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

/**
 * Sets LD_PRELOAD, in front of its present value, and VLLM_NCCL_SO_PATH if that is unset. `by_name`: for programs that
 * open libnccl.so.2 by name, preloads the library of that name, too, and adds its folder to LD_LIBRARY_PATH. Errors:
 * ferrySystemError if libferry-nccl.so is not beside this command's libraries, with the places, or if its path has a
 * space or colon, which the loader does not take.
 */
ferryResult_t ferry_preload_nccl(bool by_name);

#endif
