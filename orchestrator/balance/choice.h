/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Which library has a call that cannot be divided, NCCL or Ferry: for each size the faster one. Arithmetic alone, like
 * the balancer; each rank has its own.
 *
 * - Times of the size itself take precedence over times of an earlier job, then comes interpolation between the sizes
 *   around it; a line through all sizes promises too much at its ends. For Ferry the first guess is the rate that
 *   ferry-perf limits has measured, or a little more than the best that NCCL has reached, as the same links carry both.
 *   Each of these is doubted more than the one before it; limits hardly, once they have come true for a size or
 *   collective that Ferry carries by the same links.
 * - Ferry gets a call at once if it is faster, even allowing for the doubt. If it may be slower it is tried for credit
 *   only: a hundredth of the time that calls of that size have taken so far, and tries count as soon as they are made.
 *   So the cost of trying is bounded however far a program runs ahead of its results, and of doubtful calls no more
 *   than two are under way.
 * - Ferry's first call of a size is ignored if it disappoints: some rank may have been late with a plan.
 * - The slower library gets a call now and then, for credit, ever more rarely the slower it was.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_CHOICE_H
#define FERRY_ORCHESTRATOR_BALANCE_CHOICE_H

#include "orchestrator/balance/balancer.h"
#include "orchestrator/balance/burst.h"

#define FERRY_CHOICE_SAMPLES 9

/* What a call is expected to take, and how far off that may be, relative. us 0: nothing is known. */
struct ferry_choice_belief {
	double us, doubt;
};

struct ferry_choice_outlook {
	struct ferry_choice_belief of[2]; /* NCCL's, Ferry's */
	bool settled;                     /* both are known */
	bool clear;                       /* Ferry is faster, even allowing for the doubt */
	double cost;                      /* of a try of Ferry's, allowing for the doubt */
};

struct ferry_choice_line {
	uint8_t collective, type, size_class;
	bool in_place;
	bool ours;         /* true: Ferry has it, when both are known */
	bool due;          /* the other one is to be tried, and has not been: proposed until all ranks are ready */
	bool warm;         /* Ferry had the last call: its lanes are awake */
	bool again;        /* that was the first one of a try */
	uint32_t asked[2]; /* calls that were to be measured: NCCL's, Ferry's */
	uint32_t seen[2];  /* samples */
	uint32_t pending;  /* calls that Ferry had while it was doubted, whose times are not known yet */
	uint64_t bytes;    /* of the last call */
	double credit_us;  /* what trying the slower library may cost */
	float known[2];    /* what an earlier job took for the class's size; 0: nothing */
	float us[2][FERRY_CHOICE_SAMPLES]; /* the same of this one */
	struct ferry_burst burst;
	uint64_t looked;   /* `learned` as of the outlook; 0: there is none */
	struct ferry_choice_outlook outlook;
};

struct ferry_choice {
	/* constant */
	bool peers; /* collectives without sums are pushed from device to device */
	uint32_t nranks;
	/* of the bytes that the busiest device moves; rate 0: not measured */
	struct ferry_pace paces[FERRY_NUM_FABRICS];

	struct ferry_choice_line lines[FERRY_SHARE_LINES];
	uint32_t nlines;
	uint32_t found; /* the line that was looked for last */
	uint64_t learned; /* counts what may change an outlook; from 1 on */
};

/** paces: as ferry-perf limits has measured them, of the bytes that the busiest device moves. */
void ferry_choice_init(struct ferry_choice *choice, bool peers, uint32_t nranks,
                       const struct ferry_pace paces[FERRY_NUM_FABRICS]);

/** The fabric by which Ferry carries these calls, or its part of them. */
enum ferry_fabric ferry_choice_fabric(const struct ferry_choice *choice, enum ferry_collective collective);

/** Whether to propose Ferry for call n. measurable: its time will be known; else nothing is tried with it. */
bool ferry_choice_ours(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n,
                       bool measurable);

/** Whether Ferry may be proposed for calls of this size soon: it has not been seen enough, and may be faster. */
bool ferry_choice_learns(struct ferry_choice *choice, const struct ferry_balancer_call *call);

/**
 * The ranks have agreed on the library for call n. Returns true if it is to be measured. For every call; it counts from
 * now on.
 */
bool ferry_choice_agreed(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint64_t n, bool ours,
                         bool measurable);

/** A call that was to be measured is not. */
void ferry_choice_unmeasured(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours);

/** A call that NCCL or Ferry has had took so long. */
void ferry_choice_feed(struct ferry_choice *choice, const struct ferry_balancer_call *call, bool ours, double us);

/** Takes what an earlier job has learned of a size. */
void ferry_choice_adopt(struct ferry_choice *choice, const struct ferry_share_line *learned);

/**
 * Fills in what this job has learned of a call's size, for other jobs and for people; *index: its line. Returns false
 * if there is no line.
 */
bool ferry_choice_record(struct ferry_choice *choice, const struct ferry_balancer_call *call, uint32_t *index,
                         struct ferry_share_line *line);

#endif
