/* SPDX-License-Identifier: Apache-2.0 */
/**
 * ADDs of programs on GPUs: sums of windows in a rank's device memory, which one kernel in the rank's stream makes for
 * a call. It is beside the call: it waits for slices that the rank's router opens as their sources are there, and ends
 * with the last one (ipc/arena.h, struct ferry_add_cells).
 */
#ifndef FERRY_RANK_LIB_CALL_ADDS_H
#define FERRY_RANK_LIB_CALL_ADDS_H

#include "rank-lib/call/request.h"
#include "rank-lib/device/device.h"

/** Gets the rank ready for ADDs before the call is numbered: all that may fail. Errors: ferrySystemError. */
ferryResult_t ferry_adds_prepare(const struct ferry_request *request);

/**
 * Fills in the kernel of call `seq`. memory: the rank's; adds: the kernel's argument, the caller's, until the call is
 * in the stream. Leaves kernel->function NULL if the rank has no ADDs.
 */
void ferry_adds_kernel(const struct ferry_request *request, const struct ferry_plan *plan, uint64_t seq, char *memory,
                       struct ferry_kernel_adds *adds, struct ferry_beside_kernel *kernel);

#endif
