/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Calls that one kernel in the user's stream carries (kernel_call.h): which those are, and their launch. A call takes
 * no number, plan or submission, and no thread but the caller's. Called by launch.c, and by the orchestrator, which
 * decides between Ferry's calls and NCCL's.
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

/** Fills in the reduction of a call that reduces. factor: of premulsum; otherwise unused. */
void ferry_kernels_fill_operation(const struct ferry_request *request, const struct ferry_redop *factor,
                                  struct ferry_kernel_call *call);

/**
 * Puts calls of one communicator that kernels carry into their streams, plain or capturing. Several are a group's:
 * consecutive calls share a kernel where they fit, whatever their streams. It runs in the first call's stream, which
 * waits for the others' streams before, and they for it behind. Under the communicator's lock, in a visit of its
 * device. Errors: a stream is another device's, its capture was invalidated, or only some streams of a group capture;
 * the driver's, which fail the rank, as the other ranks wait for it.
 */
ferryResult_t ferry_kernels_launch(const struct ferry_request *requests, uint32_t nrequests);

/** Whether a kernel carries messages of so many bytes: the same at both ends. Pure; any thread. */
bool ferry_kernels_carry_message(const struct ferryComm *comm, uint64_t bytes);

enum ferry_kernels_step { FERRY_KERNELS_WHOLE, FERRY_KERNELS_BEGIN, FERRY_KERNELS_END };

/**
 * Puts the messages (FERRY_SENDRECV) of a group of one communicator, all that kernels carry, into the first one's
 * stream, as one kernel that moves all side by side; it waits for none of the communicator's other kernels. A rank's
 * messages to itself and from itself are as many, of the same bytes in pairs. In two steps, with the same requests,
 * where the group has other calls, which may have to go on before the messages can: BEGIN puts the kernel into a stream
 * beside the program's, END has these wait for that. Locks and errors as above, and ferryInvalidUsage for more than
 * FERRY_MESSAGES_TABLE.
 */
ferryResult_t ferry_kernels_exchange(const struct ferry_request *requests, uint32_t nrequests,
                                     enum ferry_kernels_step step);

#endif
