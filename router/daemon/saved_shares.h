/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Saved shares: what jobs have learned about shares (ipc/shares.h), for the next job of as many ranks and the same
 * owner. They are copied into its arena when that is made, and taken from it when the job ends, number by number, each
 * checked. A router forgets them when it ends. By the connection thread.
 */
#ifndef FERRY_ROUTER_DAEMON_SAVED_SHARES_H
#define FERRY_ROUTER_DAEMON_SAVED_SHARES_H

#include "ipc/arena.h"

#define FERRY_SAVED_SHARES 16 /* settings; of the owner that has most the one that was used least lately goes */

struct ferry_saved_shares {
	struct ferry_saved_setting {
		uint64_t signature;  /* 0: none */
		uint64_t used;       /* when: the more, the later */
		uint32_t owner, nranks; /* owner: as in struct ferry_standing */
		uint32_t nlines;
		struct ferry_share_line lines[FERRY_SHARE_LINES];
	} settings[FERRY_SAVED_SHARES];
	uint64_t clock;
};

/** Copies them into the arena of a new job, if it has a table. No rank has the arena yet. */
void ferry_saved_shares_give(const struct ferry_saved_shares *saved, uint32_t owner, const struct ferry_arena *arena);

/** Copies them from the arena of a job that ends; its ranks may still write. */
void ferry_saved_shares_take(struct ferry_saved_shares *saved, uint32_t owner, const struct ferry_arena *arena);

#endif
