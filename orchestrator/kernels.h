/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's calls that a kernel of Ferry's carries, whole, in the program's own stream (rank-lib/kernels/kernel_launch.h).
 * Such a call takes no number and no agreement, so that it costs its caller no more than NCCL's. By the thread that
 * makes the call.
 *
 * A rank in a kernel and another one in NCCL would wait for each other for good, so ranks begin at one call:
 *
 * - Every collective of a communicator is numbered from its first on, short ones too, by each rank for itself, in the
 *   program's order: captured calls when they are captured, those of a group at its end. NCCL demands the same order of
 *   all ranks. What is numbered depends on what is the same on all ranks (collectives.c: is_eligible).
 * - Call n gets one word on all ranks (ipc/agreement.h). A rank that proposes shares before kernels have begun
 *   proposes, beside them, that kernels begin with this call (FERRY_SHARES_BEGINS). Such a word is sealed only where
 *   all ranks look n up, so none misses it: a rank that joins late, whose calls before were NCCL's, has joined with n
 *   or a lower number. No rank seals it for a lower number later: the rank that sealed n has taken every word from the
 *   last rank's first number on, so those are sealed. In laps of a rank that runs ahead by more than the ring, words
 *   are NONE on all ranks, and kernels begin behind them.
 * - A rank finds the first such word in its n-th call, whatever other ranks do meanwhile, and kernels have begun for it
 *   with that call. From then on it numbers neither calls that kernels carry nor short ones. So all ranks number the
 *   same calls before n and from n on.
 * - Which calls those are follows from collective, count, type, operation and root, from the communicator's kernels, on
 *   which its ranks agree while it is made, and from settings that every rank has seen to be the same on all before it
 *   proposes anything (ferry_meter_counts). It depends on no address: so calls in windows of NCCL's
 *   (ncclCommWindowRegister) go by kernels, too, which were measured to be faster there for AllReduce. Communicators
 *   and calls for NCCL's copy engines are not Ferry's (config.h).
 * - Messages of a pair of ranks begin in each direction by themselves, in the same way, as other ranks need not know of
 *   them: both ends number them from the first on, until the word of one says so. Messages of no bytes have no number;
 *   they are nothing from then on, and NCCL's before. A message to oneself is a kernel's where its group has both ends.
 * - Where the communicator has no kernels, short calls are NCCL's, and are numbered no more from the same call on.
 *
 * Once kernels have begun they stay. Where Ferry's communicator fails, or a rank withdraws, calls that kernels carry
 * end with the error of that failure on every rank, and kernels under way end within a second: no rank knows which call
 * another one is in, so none could go back to NCCL at one call. A rank that has withdrawn before it comes to n finds
 * the word of n as all others do, and the same errors.
 *
 * Order in streams: kernels of a group come first, in the order of their calls, several calls by one where they fit,
 * and NCCL's and the routers' calls of the group after them, on all ranks. Calls in NCCL's open group that Ferry has no
 * say in come before both.
 *
 * A group's messages are one kernel. Where the group has other calls of the communicator, or in the stream, it goes
 * beside them, in a stream of Ferry's: another rank may make the same calls one after another, so that the first of
 * them waits for what comes last here.
 */
#ifndef FERRY_ORCHESTRATOR_KERNELS_H
#define FERRY_ORCHESTRATOR_KERNELS_H

#include "orchestrator/call.h"
#include "orchestrator/shadow_comm.h"
#include "rank-lib/kernels/kernel_launch.h"

/** Whether kernels carry such a call once they have begun, of a shadow communicator that is ready. */
bool ferry_nccl_kernels_carry(const struct ferry_nccl_call *call, const struct ferry_shadow_comm *shadow_comm);

/** Whether they have begun, for such a call. */
static inline bool ferry_nccl_kernels_begun(const struct ferry_nccl_call *call,
                                            const struct ferry_shadow_comm *shadow_comm)
{
	return call->collective == FERRY_SENDRECV
	               ? ferry_shadow_comm_messages_begun(shadow_comm, call->root, call->sends)
	               : ferry_shadow_comm_kernels_begun(shadow_comm);
}

#define FERRY_NCCL_KERNELS_TURN 64u

/**
 * Puts calls of the communicator into their streams, by fewer kernels where they fit (kernel_launch.h). n: 1 to
 * FERRY_NCCL_KERNELS_TURN. Errors: those of ferry_launch, the first one.
 */
ferryResult_t ferry_nccl_kernels_launch(const struct ferry_nccl_call *const *calls, uint32_t n,
                                        const struct ferry_shadow_comm *shadow_comm);

/** Puts messages of one group and communicator into their streams, as one kernel (ferry_kernels_exchange). */
ferryResult_t ferry_nccl_kernels_exchange(const struct ferry_nccl_call *const *calls, uint32_t n,
                                          const struct ferry_shadow_comm *shadow_comm, enum ferry_kernels_step step);

#endif
