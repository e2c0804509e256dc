/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Calls that one kernel in the user's stream carries (kernel_call.h): which those are, and their launch. A call takes
 * no number, plan or submission, and no thread but the caller's. By launch.c, and by who decides between Ferry's calls
 * and NCCL's.
 */
#ifndef FERRY_RANK_LIB_KERNELS_KERNEL_LAUNCH_H
#define FERRY_RANK_LIB_KERNELS_KERNEL_LAUNCH_H

#include "rank-lib/call/request.h"
#include "rank-lib/kernels/choice.h"

/** Whether the communicator has kernels: the same on all its ranks, and constant once it is made. Any thread. */
bool ferry_kernels_ready(const struct ferryComm *comm);

/**
 * Whether a kernel carries the call: the same on all ranks for requests that are alike but for their buffers and
 * streams. The request is valid, in so far as NCCL checks one. Never of Send, Recv, AllToAllv, users' programs, calls
 * in parts (left_out) or in two steps (open). Pure; any thread.
 */
bool ferry_kernels_carry(const struct ferryComm *comm, const struct ferry_request *request);

/**
 * Puts calls of one communicator that kernels carry into their streams, plain or capturing. Several are a group's:
 * calls in a row go by one kernel where they fit, in the stream of the first one, which waits for the others' and they
 * for it; which do depends on no stream. Under the communicator's lock, in a visit of its device. Errors: a stream is
 * another device's, or its capture was invalidated; the driver's, which fail the rank, as the other ranks wait for it.
 */
ferryResult_t ferry_kernels_launch(const struct ferry_request *requests, uint32_t nrequests);

#endif
