/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The balancer: what part of each call every fabric has, learned from what the parts took. Arithmetic alone: no clock,
 * no threads, no memory but its own. It is told of calls after they have ended, in any order and late, with the shares
 * that they had; what it says of the next is a proposal (ipc/agreement.h).
 *
 * It begins as HyLink's Algorithm 1: nothing changes while the parts end together, and the part that ends last gets
 * less. But it steps to where they would end together, as it knows each fabric's pace, and looks at every set of
 * fabrics, as two may be slower together than one alone (NCCL and pushes share links, NCCL and the host PCIe):
 *
 * - At first paces are what has been measured elsewhere (rules.paces), then what calls have shown (belief.h). A line
 *   through all sizes of a collective and type (rate_fit) says it for a size that has not been seen, if parts were not
 *   far smaller; what a size itself has seen (trace) goes before. Of a set that has not been tried one expects the mean
 *   of what is known of other sets.
 * - A size begins as NCCL's alone, but where other sizes promise much. Sets with NCCL that may be better are tried by
 *   two calls, one at a time, however far a program runs ahead, or both at once where calls are long: at the shares
 *   that they would have, or, where nothing is known of a fabric, by a small part. So NCCL alone and NCCL beside
 *   others have been measured at the same size before one is preferred. Short calls are not used to try a fabric of
 *   which nothing is known.
 * - All goes by the median of five samples. While a size is not settled every call is measured, and one slow sample, as
 *   of a call in which buffers are shown, is not believed. One that is settled measures as seldom as costs a
 *   thousandth. A step is made for a gain of 1.5%, to another set of fabrics for 4%; and 4 us are what dividing a call
 *   costs.
 * - Shares go in steps, and those of which the routers have the plan are kept where others gain no more than a step.
 * - Parts that vary from call to call are made shorter than would end together on average: so they are last seldom.
 * - Bursts: one sample out of the band is noise, two on the same side are a change, and so is one that fits what the
 *   fabric was before its last change: a burst is left, and met again, at once. A change of a fabric holds for all
 *   sets that it is in, also those that were not tried; other sizes, and other fabrics of the same call, are then
 *   believed at their first sample. What was learned in a burst stays out of the line through all sizes. Drift stays in
 *   the band, and the median follows.
 * - Other sets are tried again: soon after a change, else by one call in 64, then, when all have been, by half as many,
 *   down to one in 16384; and never so many that they cost more than a two-hundredth, or half of that where they
 *   only leave a fabric out; and not in the first 64 samples.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_BALANCER_H
#define FERRY_ORCHESTRATOR_BALANCE_BALANCER_H

#include "ipc/collective.h"
#include "orchestrator/balance/belief.h"

struct ferry_balancer_rules {
	uint32_t usable;      /* bit c: there is fabric c */
	double floor_bytes;   /* no part is smaller */
	double least_bytes;   /* nor any call that is split */
	double measure_us;    /* what measuring a call costs */
	bool pinned;
	struct ferry_shares pins;
	struct ferry_pace paces[FERRY_NUM_FABRICS]; /* of each alone, as measured elsewhere; rate 0: it has not been */
};

struct ferry_balancer_line {
	uint8_t collective, type, size_class, why;
	uint32_t word;        /* the shares, packed */
	uint32_t probe;       /* what one call in `probe_every` has in their place; 0 of these: none */
	uint32_t probe_every;
	uint32_t interval;    /* one call in so many is measured */
	uint32_t samples;     /* since the line was made */
	uint8_t settling;     /* samples until it is settled */
	uint8_t backoff;      /* probes in a row that have not helped */
	uint8_t probe_set;    /* which set is tried */
	uint8_t trial;        /* which set is tried now, as it has not been tried enough; 0: none */
	uint8_t tries[FERRY_FABRIC_SETS]; /* calls of each set that have told what they took */
	bool due;             /* this rank's: a probe is to be made, and has not been */
	uint32_t had;         /* this rank's: what calls of which Ferry had a part had last */
	uint32_t tried;       /* this rank's: 1 + the samples that were known at its last try */
	uint8_t eager;        /* something has changed: that set is tried soon */
	uint64_t bytes;       /* of the last call */
	struct ferry_belief belief;
};

#define FERRY_BALANCER_TRY 1u /* probe_every while a set has not been tried enough: as soon as none is under way */
#define FERRY_BALANCER_PLACES 256 /* few sizes share one */

struct ferry_balancer {
	struct ferry_balancer_rules rules;
	struct ferry_course courses[FERRY_SHARE_COURSES];
	struct ferry_balancer_line lines[FERRY_SHARE_LINES];
	uint32_t nlines;
	uint8_t places[FERRY_BALANCER_PLACES]; /* where lines are, by ferry_balancer_place: a guess */
};

struct ferry_balancer_call {
	enum ferry_collective collective;
	ferryDataType_t type;
	uint64_t bytes;
	bool in_place; /* a rank's own affair: for the choice alone (choice.h) */
};

struct ferry_balancer_rules ferry_balancer_default_rules(void);

void ferry_balancer_init(struct ferry_balancer *balancer, const struct ferry_balancer_rules *rules);

/** What an earlier job, or another rank, has learned of a collective and type: starts from that. */
void ferry_balancer_adopt(struct ferry_balancer *balancer, const struct ferry_share_course *learned);

/** The same of this line's collective and type, for others. */
void ferry_balancer_record(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                           struct ferry_share_course *learned);

/** Calls of a class differ by a factor of 1.4 at most. */
uint8_t ferry_balancer_size_class(uint64_t bytes);

/** Where one who looks for lines of such calls notes what he has found. */
uint8_t ferry_balancer_place(const struct ferry_balancer_call *call, uint8_t size_class);

/** The shares of call n, packed. trying: calls of its size that try something and have not ended. */
uint32_t ferry_balancer_propose(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n,
                                uint32_t trying);

/**
 * Whether this rank proposes a line's `probe` for call n, where one in `every` has it. Once that is due it is proposed
 * until it is made (ferry_balancer_probed): other reasons, as buffers that have not been shown, may be against a call.
 */
bool ferry_balancer_probes(struct ferry_balancer_line *line, uint32_t every, uint64_t n, uint32_t trying);

void ferry_balancer_probed(struct ferry_balancer_line *line);

/** Whether call n is to be measured. */
bool ferry_balancer_measures(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n);

/** A call has ended that had these shares: us[c] is what fabric c's part took from the call's start; 0: unknown. */
void ferry_balancer_feed(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint32_t word,
                         const double us[FERRY_NUM_FABRICS]);

/** The line of that call; made if there is none and there is room, else NULL. */
struct ferry_balancer_line *ferry_balancer_line(struct ferry_balancer *balancer,
                                                const struct ferry_balancer_call *call);

/** What a line believes of all fabrics in all sets. */
void ferry_balancer_paces(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                          struct ferry_paces *paces);

/** What one call in `every` has: the same on all ranks that ask for call n. */
bool ferry_balancer_picks(uint64_t n, uint32_t every);

#endif
