/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The times of the parts of a communicator's calls, and the shares of the next calls that follow: the balancer with its
 * measurements. A measured call has a sample until both its parts have ended; threads that make calls look at the
 * samples then. NCCL's part is timed by events in the stream, Ferry's by the router (ferry_launch_took). Calls of which
 * one library has the whole are compared, so both are timed by events: a router does not see what it costs a stream to
 * reach a stream flag and to go on. Under the shadow communicator's lock.
 *
 * Collectives whose blocks NCCL has in one piece go to one library as a whole (balance/choice.h); others are divided by
 * what rank 0 has learned (balance/ledger.h). Before both comes whether the program's own steps are shorter with
 * Ferry's calls at all: rank 0 finds that out (balance/tempo.h), and says in the table which kinds of calls are NCCL's.
 */
#ifndef FERRY_ORCHESTRATOR_METER_H
#define FERRY_ORCHESTRATOR_METER_H

#include "ferry.h"
#include "orchestrator/balance/choice.h"
#include "orchestrator/balance/ledger.h"
#include "orchestrator/balance/tempo.h"
#include "orchestrator/clock.h"

#define FERRY_METER_SAMPLES 32

struct ferry_sample {
	bool taken, timed, armed; /* there is one; its call has a clock that runs; and has been made */
	bool nccl, ferry;        /* which parts are not known yet */
	struct ferry_clock clock;
	struct ferry_balancer_call call;
	bool whole, tries; /* tries: a divided one has other shares than the settled ones of its size */
	uint64_t n;
	uint32_t word, stamp, age;
	double us[FERRY_NUM_FABRICS];
};

struct ferry_meter {
	struct ferry_balancer_rules rules;
	struct ferry_ledger ledger;      /* of calls that are divided; once the ranks have a table */
	struct ferry_choice choice;      /* of calls that one library has whole: this rank's own */
	struct ferry_tempo tempo;        /* rank 0's */
	struct ferry_clock windows[FERRY_TEMPO_WINDOWS];
	uint32_t untimed;                /* bit i: of window i the stream has no time */
	bool follows;                    /* what the tempo says */
	uint64_t floor_bytes;            /* calls of less are NCCL's */
	uint64_t divided_from;           /* bytes of sums of which both have a part */
	uint32_t stamps;
	double us_per_byte;              /* of the last call that was measured */
	uint32_t oldest, nsamples;       /* in the order of their calls, from samples[oldest] on, around */
	struct ferry_sample samples[FERRY_METER_SAMPLES];
};

/** Reads FERRY_SHARES, FERRY_SPLIT_FLOOR and FERRY_SPLIT_TEMPO. Errors: ferryInvalidArgument. */
ferryResult_t ferry_meter_init(struct ferry_meter *meter);

/**
 * To be called when the ranks have met, have this table, and know whether they push collectives without sums (peers).
 * paces: as ferry-perf limits has measured them, of the bytes that the busiest device moves; rate 0: not measured.
 * Writes into the table from which bytes on this rank numbers calls. Before it joins an agreement.
 */
void ferry_meter_open(struct ferry_meter *meter, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                      bool peers, const struct ferry_pace paces[FERRY_NUM_FABRICS]);

void ferry_meter_free(struct ferry_meter *meter);

/**
 * Returns the packed shares to propose for call n, and whether to measure it. fabric: by which Ferry would carry its
 * part. whole: one library has all of it. tries: it can be measured, so it may have other shares than the settled ones.
 */
uint32_t ferry_meter_propose(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                             enum ferry_fabric fabric, bool whole, bool tries, uint64_t n, bool *measure);

/**
 * The ranks have agreed on `word` for call n, of which one library has the whole; *measure: whether to measure it. For
 * each such call, with or without a proposal of this rank; tries: as there.
 */
void ferry_meter_agreed(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word, uint64_t n,
                        bool tries, bool *measure);

/** Whether such calls are NCCL's, because the program is not slower then, whatever their own times are. */
bool ferry_meter_gives_way(const struct ferry_meter *meter, const struct ferry_balancer_call *call, bool captured);

/** The ranks have agreed on a call, which is not captured: what is to be timed before it (ferry_meter_mark). */
struct ferry_tempo_marks ferry_meter_count(struct ferry_meter *meter, const struct ferry_balancer_call *call,
                                           uint32_t buffers, uint32_t word);

/** The stream is before that call. */
void ferry_meter_mark(struct ferry_meter *meter, struct ferry_tempo_marks marks, cudaStream_t stream);

/** A call that was to be measured cannot be. */
void ferry_meter_pass(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word, bool whole);

/**
 * Whether Ferry may be proposed soon for such calls, of which one library has the whole, as little is known of them.
 */
bool ferry_meter_learns(struct ferry_meter *meter, const struct ferry_balancer_call *call);

/** Returns a sample for a call with these shares, or NULL if there is no room. */
struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_balancer_call *call, uint32_t word,
                                       bool whole, uint64_t n);

/** The call has been made; timed: its parts will be timed. Else the sample is given back. */
void ferry_meter_arm(struct ferry_sample *sample, bool timed);

/** Returns how long the measured calls that the stream has not begun yet take at least. After ferry_meter_look. */
double ferry_meter_ahead_us(const struct ferry_meter *meter);

/**
 * Feeds the balancer with the calls that have ended, in the order in which they were made. For each call: costs next to
 * nothing without samples, and asks the driver about one unfinished call at most. Returns true if the tempo has a new
 * verdict.
 */
bool ferry_meter_look(struct ferry_meter *meter, ferryComm_t comm);

#endif
