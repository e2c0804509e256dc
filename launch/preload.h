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
 * Puts the library in front of LD_PRELOAD's present value, and sets VLLM_NCCL_SO_PATH if that is unset. by_name: for
 * programs that open libnccl.so.2 by name, preloads the library of that name, too, and puts its folder in front of
 * LD_LIBRARY_PATH. Error: ferrySystemError if libferry-nccl.so is not with this command's libraries, with the places,
 * or if its path has a space, colon or semicolon, at which the loader would cut it.
 */
ferryResult_t ferry_preload_nccl(bool by_name);

#endif
