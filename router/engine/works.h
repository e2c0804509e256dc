/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Works: the REDUCEs, H2Hs and the DIVIDE of one domain in a plan, with every pointer into the arenas found. Workers
 * run them, as lanes run steps. Made once per plan by the router's connection thread (router/daemon/job_plans.c) and
 * constant from then on, but for the progress of the call under way in a parity, which the workers write
 * (router/engine/parts.c).
 */
#ifndef FERRY_ROUTER_ENGINE_WORKS_H
#define FERRY_ROUTER_ENGINE_WORKS_H

#include "ipc/publish.h"
#include "router/engine/division.h"

/* bytes: keeps apart what one core writes and others poll; caches fetch lines in pairs */
#define FERRY_APART 128

/*
 * A share of the parts of each slice. Where a plan names its workers each has a queue, so that they do not meet at one
 * cache line for every part that they claim. A worker that has had nothing to do for a while takes parts from the other
 * queues (`steal` below). Where parts are long, a worker whose own queue is at a newer slice than another queue takes
 * from that one first: a slice is published when all of it is done, and a core that another thread shares, or whose
 * clock is low, may take twice as long.
 */
struct ferry_queue {
	_Alignas(FERRY_APART) _Atomic uint64_t next; /* call tag << 32 | parts claimed; workers, by compare-and-swap */
	/*
	 * call tag << 32 | slices known to be runnable: what the gates said; workers, release/acquire. A worker may
	 * store less than another has stored: they read the gates again.
	 */
	_Atomic uint64_t ready;
};

struct ferry_slot {
	/* parts finished; workers, by fetch-add; reset by the publisher */
	_Alignas(FERRY_APART / 2) _Atomic uint32_t done;
};

/* A work in one parity. */
struct ferry_work {
	const struct ferry_instr *instr;
	struct ferry_counter *counter;
	char *window;
	const char **sources;        /* nsources windows */
	struct ferry_gate *gates;    /* nedges */
	struct ferry_queue *queues;
	struct ferry_slot *slots;    /* of the window */
	uint32_t nqueues;
	uint32_t share;              /* parts of a slice in each queue: queue q has those from q * share on */
	bool oldest_first;           /* parts are long enough to check all queues before each */
	/* lock of `published` and of the counter: the worker that holds it is their one writer */
	_Alignas(FERRY_APART) _Atomic uint32_t publishing;
	/*
	 * slices; the counter itself is not trusted, as others can write to it. On a line of its own: workers that wait
	 * for a free slot poll it
	 */
	_Alignas(FERRY_APART) _Atomic uint32_t published;
};

static inline uint32_t ferry_parts_of(const struct ferry_work *work)
{
	return work->nqueues * work->share;
}

struct ferry_works {
	uint32_t nworks;
	struct ferry_work *works[FERRY_PARITIES];
	struct ferry_division *division; /* NULL: there is no DIVIDE among them */
	void *memory; /* that the arrays lie in */
};

/**
 * Finds the works of `domain`, for a router of so many workers. The plan outlives them. Error: ferrySystemError, or
 * ferryProgramError where a plan divides blocks among paths that do not exist. After an error nothing is to be freed.
 */
ferryResult_t ferry_works_find(struct ferry_works *works, const struct ferry_plan *plan,
                               const struct ferry_job_arenas *shared, uint32_t domain, uint32_t workers);
void ferry_works_free(struct ferry_works *works);

/**
 * Readies those of this parity for call `seq`, while no worker is in them. Returns how many parts there are to do.
 * resumes: they start behind what the counters say, as a router that has ended may have begun the call. What that
 * router had not published is done again, with the same bits: its sources are unchanged, as their slots wait for this
 * counter, and the slot that it writes is in no other window, so no reader has read what is half done there (ipc/plan.c
 * checks both).
 */
uint64_t ferry_works_arm(struct ferry_works *works, const struct ferry_plan *plan, uint32_t parity, uint64_t seq,
                         bool resumes);

#endif
