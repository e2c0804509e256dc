/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a lane looks for in the arena while its rank does not get on: numbers that nobody who keeps to the rules
 * can have written there. A rank may write anywhere in its job's arena. A counter of its own that holds something else
 * than what was stored, a counter of a call that cannot have begun, or of more slices than there are: each of them may
 * have others wait for ever, so it ends the job, with the numbers. Whoever looks compares with memory of its own, and
 * every word that others write is read once.
 *
 * What is too low by others' doing cannot be told from what is late: its own writer tells. What is too high within
 * bounds, or data, gives wrong results to that job.
 */
#ifndef FERRY_ROUTER_AUDIT_H
#define FERRY_ROUTER_AUDIT_H

#include "router/member.h"

/**
 * A seat, with calls or without, by its lane's thread: fails the member's job at what it finds. Without: what it said
 * last others may wait for still.
 */
void ferry_audit_seat(struct ferry_seat *seat);

/**
 * Whether a counter can hold that, of `nslices` slices (UINT32_MAX: not known), as long as call `seq` of its bank is
 * not over: it has that call's tag, or that of one before in the bank.
 */
static inline bool ferry_audit_counter(uint64_t value, uint64_t seq, uint32_t nslices)
{
	int32_t ahead = (int32_t)((uint32_t)(value >> 32) - (uint32_t)seq);
	return !value || (ahead <= 0 && ahead % FERRY_BANKS == 0 && (ahead || (uint32_t)value <= nslices));
}

/**
 * The same of what an instruction's gate number i waits for in call `seq`, whose value it gives; and who has finished
 * the call has published all of it.
 */
bool ferry_audit_gate(const struct ferry_job_arenas *shared, const struct ferry_plan *plan,
                      const struct ferry_instr *instr, const struct ferry_gate *gates, uint32_t i, uint64_t seq,
                      uint64_t *value);

#endif
