/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Leavers: ranks that have left a communicator in order, while others go on with it. A rank leaves when all its calls
 * have ended; its router then takes it off its lanes, and after that sets its bit in `left` of the arena's header.
 * Whoever waits for a rank looks here: lanes (router/absence.c) and callers of ferryCommSplit. By any process that has
 * mapped the job's arenas; nothing is written.
 *
 * What the bit says. All that the rank has ever stored in the arenas comes before it: the rank, or its lanes in the
 * router, had stored it before the rank said that it leaves, and the router sets the bit with release after it has
 * heard that. So who has acquired the bit and then reads what the rank has published reads the last of it, and
 *
 * - a call n that the rank has not finished by then, finished[n mod FERRY_BANKS] < n, it never made: it will not end;
 * - a message that the rank has not sent, or not taken, by then comes, or is taken, never;
 * - all other calls end by themselves. A rank ends its part of a collective once all ranks have submitted it
 *   (router/order.c) and all its own slices have been published, and nobody needs more of it than these. A message that
 *   it has sent lies in the pair's window; one that it was sent it has taken.
 *
 * The bits only ever appear, one store each, and there is nothing else to keep in step with them: a router or a rank
 * that dies before its bit is set is a router or a rank that died, which ends the job as always; one that dies after it
 * is not missed. docs/models/leaving.pml checks when the bit may be set, and the wait of ferry_leavers_are_over.
 */
#ifndef FERRY_IPC_LEAVERS_H
#define FERRY_IPC_LEAVERS_H

#include "ipc/publish.h"

/** Bit r: rank r has left. Acquires: what is read after it is the last that rank r has published. */
uint64_t ferry_leavers(const struct ferry_job_arenas *job);

/**
 * Whether all collectives that these ranks, one at least, took part in are over on the others. Until then the job must
 * not be ended for what they did not make: those calls would end with it, in the middle. It becomes true without
 * anybody's doing, as every rank is in those calls.
 */
bool ferry_leavers_are_over(const struct ferry_job_arenas *job, uint64_t leavers);

#endif
