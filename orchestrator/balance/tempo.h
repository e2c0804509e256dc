/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The program's tempo: whether its steps are shorter when Ferry has a part of its calls, or with NCCL alone. Faster
 * calls gain nothing if they are hidden behind products, and routers and Ferry's part of a call take CPU time that the
 * program may need. The times of calls do not show that; the time from step to step does. Arithmetic alone, like the
 * balancer; one, rank 0's, for each communicator. Online trials as AutoCCL's (NSDI 2025), of the whole program instead
 * of its calls.
 *
 * - It follows the calls of the program, and finds the distance at which they repeat, with their buffers or at least by
 *   kind (collective, type, size): that is a step. Within a step each call has its own role, one is hidden and another
 *   is not, so parts of steps show nothing. Time is that of the stream, between two places before calls, so that it is
 *   right for a program that runs ahead, too.
 * - Survey: how much of the stream's time calls take, and Ferry's among them. If all of them together take most of it,
 *   nothing hides them: their own times are the program's, and nothing is tried.
 * - Examination: windows of whole steps, with Ferry (under the usual division of calls) and with NCCL alone, in the
 *   order F N N F F N N F, so that each pair of neighbours has both and drift of the machine cancels. After a change
 *   one step is left out. The median of the pairs' ratios counts, compared with their own spread.
 * - Ferry keeps its calls if steps are shorter with them by more than the spread. Else NCCL gets them, also if no
 *   difference can be seen: then processors, memory and links are free for the program.
 * - The verdict is about these kinds of calls. When other kinds come all is examined again, else after twenty times as
 *   many calls, then twice as many, and so on; and so late that an examination costs a two-hundredth at most. Between
 *   examinations nothing is timed.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_TEMPO_H
#define FERRY_ORCHESTRATOR_BALANCE_TEMPO_H

#include "ipc/ferry_types.h"
#include "orchestrator/balance/balancer.h"

#define FERRY_TEMPO_KINDS   64  /* bits of a word */
#define FERRY_TEMPO_WINDOWS 8   /* that are timed, and whose times are not known yet */
#define FERRY_TEMPO_HISTORY 512 /* calls */
#define FERRY_TEMPO_PAIRS   32  /* of an examination, at most */

enum ferry_tempo_state { FERRY_TEMPO_SURVEY, FERRY_TEMPO_EXAM, FERRY_TEMPO_REST };

/* What is to be timed before a call: the window that ends there, and the one that begins; -1: none. */
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
		int32_t which; /* of the examination; -1: its time is not needed any more */
		uint32_t steps;
		bool sound; /* it was what it was to be */
	} windows[FERRY_TEMPO_WINDOWS];
	uint32_t oldest, nwindows; /* that have ended; the one after them may be open */
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
		bool leads;                   /* after a change, before the window */
		bool ends;                    /* no more windows are begun */
		uint32_t made, ours, strange; /* calls since the last border: all, Ferry's, other than a step before */
		uint32_t late;                /* steps for which it has waited for Ferry */
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
 * The ranks have agreed on the program's next call; ours: Ferry has a part. buffers: a number that is the same for the
 * same buffers. Returns what is to be timed before the call.
 */
struct ferry_tempo_marks ferry_tempo_call(struct ferry_tempo *tempo, uint8_t kind, uint32_t buffers, bool ours);

/** A call of that kind has been measured. */
void ferry_tempo_measured(struct ferry_tempo *tempo, uint8_t kind, bool ours, double us);

/** Returns the window whose time is needed next; -1: none. */
int ferry_tempo_awaits(const struct ferry_tempo *tempo);

/** Takes the time of that window; 0: it could not be timed. Returns true if there is a new verdict. */
bool ferry_tempo_took(struct ferry_tempo *tempo, double us);

#endif
