/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The program's tempo: whether its steps are shorter with what Ferry has of its calls, or with NCCL alone. Calls that
 * become faster gain nothing where they are hidden behind products, and routers and Ferry's part of a call take time of
 * processors that the program may need. What calls take says nothing of that; what the program takes from step to step
 * does. Arithmetic alone, like the balancer; one, rank 0's, for each communicator. Online trials as AutoCCL's (NSDI
 * 2025), of the whole program instead of its calls.
 *
 * - It follows the calls of the program, and at which distance they repeat, with their buffers or at least by kind
 *   (collective, type, size): that is a step. Of a step each call has its own role, one is hidden and another is not;
 *   so parts of steps tell nothing. Time is that of the stream, between two places before calls: so of a program that
 *   runs ahead, too.
 * - Survey: how much of the stream's time calls take, and Ferry's among them. Where all of them together take most of
 *   it there is nothing that hides them: their own times are the program's, and nothing is tried.
 * - Examination: windows of whole steps, with Ferry (as whoever divides calls has it) and with NCCL alone, in the order
 *   F N N F F N N F, so that each pair of neighbours has both and drift of the machine falls out. Behind a change one
 *   step is left out. The median of the pairs' ratios counts, held against their own spread.
 * - Ferry keeps its calls where steps are shorter with them by more than the spread. Else it gives way, also where
 *   nothing can be told apart: then processors, memory and links are free for the program.
 * - What was examined are these kinds of calls. When others come all is examined again, else after twenty times as many
 *   calls, then twice as many, and so on; and so late that what an examination has cost is a two-hundredth at most.
 *   Between examinations nothing is timed.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_TEMPO_H
#define FERRY_ORCHESTRATOR_BALANCE_TEMPO_H

#include "ipc/ferry_types.h"
#include "orchestrator/balance/balancer.h"

#define FERRY_TEMPO_KINDS   64  /* bits of a word */
#define FERRY_TEMPO_WINDOWS 8   /* that are timed, and of which nothing is known yet */
#define FERRY_TEMPO_HISTORY 512 /* calls */
#define FERRY_TEMPO_PAIRS   32  /* of an examination, at most */

enum ferry_tempo_state { FERRY_TEMPO_SURVEY, FERRY_TEMPO_EXAM, FERRY_TEMPO_REST };

/* What is to be timed before a call: which window ends there, which begins; -1: none. */
struct ferry_tempo_marks {
	int8_t ends, begins;
};

struct ferry_tempo_verdict {
	bool gives_way;
	uint32_t period; /* calls of a step */
	uint32_t pairs;
	double us[2];          /* of a step: NCCL's alone, Ferry's; medians */
	double longer, spread; /* so much longer is one with Ferry's, relative, give or take */
};

struct ferry_tempo {
	enum ferry_tempo_state state;
	uint64_t quiet;    /* kinds that are NCCL's now: bits */
	uint64_t settled;  /* the same, but for what is only tried */
	uint64_t examined; /* kinds that the verdict is about */
	struct ferry_tempo_verdict verdict;
	uint32_t verdicts;

	/* the calls */
	uint32_t history[FERRY_TEMPO_HISTORY]; /* names; call n at n mod its length */
	uint64_t calls;
	float us[2][FERRY_TEMPO_KINDS]; /* NCCL's, Ferry's; 0: not known */

	/* windows that are timed, in their order */
	struct ferry_tempo_window {
		int32_t which; /* of the examination; -1: nobody wants to know any more */
		uint32_t steps;
		bool sound; /* it was what it was to be */
	} windows[FERRY_TEMPO_WINDOWS];
	uint32_t oldest, nwindows; /* that have ended; the one behind them may be open */
	bool open;

	struct {
		uint32_t length, made;
		bool waits; /* for its time */
		uint16_t counts[2][FERRY_TEMPO_KINDS];
	} survey;

	struct {
		uint32_t period;              /* calls */
		uint32_t alike;               /* bits of a name in which calls repeat so; 0: they do not */
		uint32_t steps;               /* of a window */
		bool begins_with;             /* Ferry's, in the first one */
		double part;                  /* of the calls that Ferry has a part of */
		double call_us;               /* from call to call */
		uint32_t which, left;         /* window; calls until the next border */
		bool leads;                   /* behind a change, before the window */
		bool ends;                    /* no more windows are begun */
		uint32_t made, ours, strange; /* calls since the last border: all, Ferry's, other than a step before */
		uint32_t late;                /* steps for which Ferry has been waited for */
		uint32_t calls;
		double step_us[2 * FERRY_TEMPO_PAIRS]; /* 0: not known */
		uint32_t known;
	} exam;

	struct {
		uint64_t length, made;
		uint32_t strangers;
		uint32_t backoff;
	} rest;
};

void ferry_tempo_init(struct ferry_tempo *tempo);

uint8_t ferry_tempo_kind(const struct ferry_balancer_call *call);

/**
 * The ranks have agreed on the program's next call; ours: Ferry has a part. buffers: a number that is the same where
 * the buffers are. What is to be timed before it.
 */
struct ferry_tempo_marks ferry_tempo_call(struct ferry_tempo *tempo, uint8_t kind, uint32_t buffers, bool ours);

/** A call of that kind has been measured. */
void ferry_tempo_measured(struct ferry_tempo *tempo, uint8_t kind, bool ours, double us);

/** The window whose time is to be told next; -1: none. */
int ferry_tempo_awaits(const struct ferry_tempo *tempo);

/** What that window has taken; 0: it could not be timed. True: there is a new verdict. */
bool ferry_tempo_took(struct ferry_tempo *tempo, double us);

#endif
