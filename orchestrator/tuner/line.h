/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A line: a kind of calls with its arms, and what the tuner believes of each; and all lines of a communicator. Written
 * by the tuner (tuner.h), read by what it believes (belief.h).
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_LINE_H
#define FERRY_ORCHESTRATOR_TUNER_LINE_H

#include "ipc/collective.h"
#include "ipc/shares.h"
#include "orchestrator/prior.h"
#include "orchestrator/tuner/arm.h"

struct ferry_belief {
	double us;   /* 0: nothing is known */
	double hope; /* the least that a try may show: perhaps just the arm in use became slow, or nothing is known */
	double than; /* the arm replaces the arm in use if its time is at most this part of that one's time */
};

#define FERRY_TUNER_LINES (FERRY_SHARE_LINES - FERRY_SHARE_KERNELS)
#define FERRY_TUNER_ARMS  24 /* Ferry's, NCCL's own, and those of NCCL's tunings that are tried */

struct ferry_tuner_call {
	enum ferry_collective collective;
	ferryDataType_t type;
	uint64_t bytes; /* of the largest buffer of a rank */
	bool in_place;
	enum ferry_fabric fabric; /* by which Ferry carries it */
};

struct ferry_tuner_line {
	struct ferry_tuner_call like;
	uint8_t size_class, turn;
	struct ferry_arm arms[FERRY_TUNER_ARMS];
	struct ferry_belief beliefs[FERRY_TUNER_ARMS]; /* of the arms, as of the last look at them */
	int narms, best, trial; /* trial -1: none */
	bool ways;              /* the ways of NCCL's tunings are arms */
	uint32_t last;          /* the last call's word */
	uint32_t tried, waited; /* of the trial, or the last one: calls with it; looks since the last one */
	int awaited;            /* the arm of a trial that has ended, while its times are not known; -1: none */
	uint32_t unread;        /* calls of that trial whose times are not known yet */
	uint32_t asked;         /* calls of the best arm that were chosen to be measured, since it became the best */
	uint32_t calls, rested; /* since the line was made; since the last trial */
	int away;               /* an arm that was left because it had become slow; -1: none */
	uint32_t away_tries;
	double away_us;         /* the best arm's time when `away` was last tried; 0: it has not been */
	double credit_us;       /* time that tries may still cost; negative: tries have cost more than was expected */
	uint32_t learned;       /* the tuner's, when the line's arms were compared last */
	bool news;              /* something has changed since the last search for a trial */
	bool paused;            /* the last call came behind a pause of the stream */
	float overlap;          /* the part of its last calls that overlapped calls of other streams */
	bool overlaps;          /* that part is so large that the calls' times say little */
	bool by_limits;         /* as of the last look: only what was measured before the job counts (belief.h) */
};

struct ferry_tuner {
	const struct ferry_prior *prior;
	uint32_t nranks;
	double host_rate;
	bool tuned;      /* NCCL takes tunings on all ranks */
	bool nccl_alone; /* Ferry has no arms */
	struct ferry_tuner_line lines[FERRY_TUNER_LINES];
	uint32_t nlines, found;
	uint32_t learned; /* counts the first samples of arms, by which other sizes are judged */
	uint32_t ntrials; /* trials under way, or ended with times that are not known yet */
	uint32_t looked;  /* counts the lines checked in turn for trials that have no calls */
};

#endif
