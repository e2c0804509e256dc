/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank's side of the table of shares (ipc/shares.h): which shares it proposes for a call, which calls it measures,
 * and the times that it reports to rank 0. Rank 0 has the balancer: it takes the slowest rank's time of each part, and
 * writes the resulting shares into the table, for all. By the threads that make calls, one at a time.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_LEDGER_H
#define FERRY_ORCHESTRATOR_BALANCE_LEDGER_H

#include "orchestrator/balance/balancer.h"

#include <stdio.h>

#define FERRY_LEDGER_PENDING 32 /* measured calls whose times not all ranks have reported: as far as programs run
                                   ahead */

struct ferry_ledger {
	struct ferry_share_table *table;
	uint32_t self, nranks;
	uint8_t places[FERRY_BALANCER_PLACES]; /* where lines of the table are: a guess */
	struct ferry_balancer balancer; /* of ranks but 0: for sizes that the table has not got */
	uint32_t adopted;               /* bit i: the balancer has course i from there */
	/* rank 0's: what it has measured itself, oldest first */
	struct ferry_ledger_pending {
		struct ferry_balancer_call call;
		uint64_t n;
		uint32_t word;
	} pending[FERRY_LEDGER_PENDING];
	uint32_t npending;
	FILE *log; /* FERRY_SHARES_LOG; NULL: none */
};

/**
 * Opens the table of the arena of domain 0. `signature`: the settings by which paces differ from job to job (which
 * GPUs, which of NCCL's variables are set), as a number that is not 0: what an earlier job of the same signature has
 * learned is adopted.
 */
void ferry_ledger_open(struct ferry_ledger *ledger, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                       uint64_t signature, const struct ferry_balancer_rules *rules);

void ferry_ledger_close(struct ferry_ledger *ledger);

/**
 * Returns the packed shares to propose for call n, and whether to measure it: the same on all ranks but for a moment.
 * trying: calls of this size that try something (ferry_ledger_tries) and have not ended, as far as this rank knows.
 */
uint32_t ferry_ledger_propose(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n,
                              uint32_t trying, bool *measure);

/**
 * Returns shares that the call may have soon instead of `word`: if `word` is NCCL alone, those that are tried next;
 * else what the size had before, until the routers have the plan of `word`. FERRY_SHARES_NONE: nothing.
 */
uint32_t ferry_ledger_other(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word);

/** The ranks have agreed on a call's shares. For each call that is divided. */
void ferry_ledger_agreed(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word);

/** Whether a call of these shares only tries them. */
bool ferry_ledger_tries(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint32_t word);

/** Writes a line to the log, if there is one, about call n. why: the reason of its shares. */
void ferry_ledger_log(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n, uint32_t word,
                      const double us[FERRY_NUM_FABRICS], const char *why);

/** Call n has ended, with these shares; us[c]: what fabric c's part took from the call's start, 0: not known. */
void ferry_ledger_record(struct ferry_ledger *ledger, const struct ferry_balancer_call *call, uint64_t n, uint32_t word,
                         const double us[FERRY_NUM_FABRICS]);

/** Rank 0: takes the times that other ranks have reported since. */
void ferry_ledger_feed(struct ferry_ledger *ledger);

#endif
