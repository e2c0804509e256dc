/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Awaited: who a collective that does not get on waits for, as the arenas' counters tell. An instruction that has all
 * that it waits for is run at once by whoever is well; so of a call in which nothing has moved for long, who has such
 * an instruction is the one that all others wait for, however many are between. By lanes (router/watch.c), and by the
 * keeper of a rank whose own router does not look any more; nothing is written.
 */
#ifndef FERRY_ROUTER_AWAITED_H
#define FERRY_ROUTER_AWAITED_H

#include "ipc/publish.h"

#define FERRY_AWAITED_TEXT 160

struct ferry_awaited {
	const struct ferry_instr *instr; /* of the plan */
	uint32_t slice, nslices;         /* the one that is missing, from 0 */
	bool router;                     /* the one of domain `who`; else rank `who` */
	uint32_t who;
};

/**
 * Of call `seq` of the plan, which all ranks have submitted: of all instructions that could go on the one that is least
 * far. False: all that is told in counters is done. Of alltoallv, whose lengths come with the call, only what has
 * begun is seen.
 */
bool ferry_awaited_find(const struct ferry_job_arenas *shared, const struct ferry_plan *plan, uint64_t seq,
                        struct ferry_awaited *awaited);

/** "the router of domain 1 to run REDUCE, slice 3 of 8", or the like. */
const char *ferry_awaited_print(const struct ferry_job_arenas *shared, const struct ferry_awaited *awaited,
                                char text[FERRY_AWAITED_TEXT]);

#endif
