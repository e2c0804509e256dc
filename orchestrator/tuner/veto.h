/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The program's steps, which have a veto: faster calls gain nothing if they are hidden behind products, and routers
 * take CPU time and links that the program may need. Calls' own times do not show that; the time from step to step
 * does. Rank 0's, one for each communicator. Online trials as AutoCCL's (NSDI 2025), of the whole program.
 *
 * - Where measured calls take three quarters of the time from one's start to the next one's, they are the program's
 *   time themselves, and nothing is compared.
 * - Otherwise calls are followed until they repeat, with their buffers or at least by kind, and most of Ferry's among
 *   them: that is a step. One call of Ferry's in it is enough. Its time is the stream's, between two places before
 *   calls, so that it is right for a program that runs ahead, too.
 * - Windows of whole steps are compared, as tuned and with NCCL as it is, in the order F N N F F N N F: each pair of
 *   neighbours has both, and drift of the machine cancels. After a change one step is left out. The median of the
 *   pairs' ratios counts, against their own spread.
 * - Ferry keeps its part if steps are shorter with it. Otherwise `hold`: NCCL has all calls as it is, without tunings,
 *   also where no difference can be seen, because processors, memory and links are free for the program then.
 * - While windows are compared, and while a verdict is valid, arms are frozen: calls that share links with each other
 *   take longer for reasons that are not their arm's (FSDP's AllGather beside a ReduceScatter).
 * - When calls of other kinds come, or calls come to follow one another, the verdict is void. Otherwise it is compared
 *   again after twenty times as many calls, then twice as many, and so late that it costs a two-hundredth at most.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_VETO_H
#define FERRY_ORCHESTRATOR_TUNER_VETO_H

#include <stdbool.h>
#include <stdint.h>

#define FERRY_VETO_KINDS   64  /* bits of a word */
#define FERRY_VETO_WINDOWS 8   /* that are timed, and whose times are not known yet */
#define FERRY_VETO_HISTORY 512 /* calls */
#define FERRY_VETO_PAIRS   32  /* of a comparison, at most */

enum ferry_veto_hold {
	FERRY_VETO_TUNED,     /* calls go as they are tuned */
	FERRY_VETO_COMPARING, /* NCCL has all but captured calls for a while */
	FERRY_VETO_HELD       /* NCCL has all */
};

/* What is to be timed before a call: the window that ends there, and the one that begins; -1: none. */
struct ferry_veto_marks {
	int8_t ends, begins;
};

struct ferry_veto_verdict {
	bool holds;
	uint32_t period; /* calls of a step */
	uint32_t pairs;
	double us[2];          /* of a step: with NCCL alone, as tuned; means */
	double longer, spread; /* how much longer a step is as tuned, relative; the spread of that */
};

struct ferry_veto {
	bool compares, held, valid; /* valid: there is a verdict, not void; held: by that verdict */
	uint64_t examined; /* kinds that the verdict is about: bits */
	struct ferry_veto_verdict verdict;
	uint32_t verdicts, backoff, given_up; /* given_up: comparisons in a row */
	uint64_t rest, rested; /* calls until the next comparison */
	uint32_t strangers;

	uint32_t history[FERRY_VETO_HISTORY]; /* names; call n at n mod its length */
	uint64_t calls;
	double busy_us, span_us; /* means: of measured calls; from one's start to the next one's */
	uint32_t gaps;

	uint32_t window_steps[FERRY_VETO_WINDOWS]; /* of window n at n mod their number; 0: it had other calls */

	struct ferry_veto_exam {
		uint32_t period;              /* calls */
		uint32_t alike;               /* bits of a name in which calls repeat so */
		uint32_t steps;               /* of a window */
		bool begins_tuned;
		double part;                  /* of the calls that Ferry has a part of */
		uint32_t which, known;        /* windows that have ended; windows whose times are known */
		bool open;                    /* the one after them has begun */
		uint32_t left;                /* calls until the next border */
		bool leads;                   /* after a change, before the window */
		uint32_t made, ferrys, strange; /* calls since the last border: all, Ferry's, not as a step before */
		uint32_t late, calls;           /* steps for which it has waited for Ferry; calls in all */
		double step_us[2 * FERRY_VETO_PAIRS]; /* 0: not known */
	} exam;
};

void ferry_veto_init(struct ferry_veto *veto);

enum ferry_veto_hold ferry_veto_hold(const struct ferry_veto *veto);

/** Whether calls' own times change nothing now: no arm is tried or exchanged. */
bool ferry_veto_freezes(const struct ferry_veto *veto);

/**
 * The program's next call has been sealed. kind: below FERRY_VETO_KINDS; buffers: the same number for the same
 * buffers; free: no arm is tried or about to be. Returns what is to be timed before the call.
 */
struct ferry_veto_marks ferry_veto_call(struct ferry_veto *veto, uint8_t kind, uint32_t buffers, bool ferrys,
                                          bool free);

/** A measured call took busy_us, and the next one began span_us after it had begun. */
void ferry_veto_gap(struct ferry_veto *veto, double busy_us, double span_us);

/** Returns the window whose time is needed next; -1: none. */
int ferry_veto_awaits(const struct ferry_veto *veto);

/** Takes the time of that window; 0: it could not be timed. Returns true if there is a new verdict. */
bool ferry_veto_took(struct ferry_veto *veto, double us);

#endif
