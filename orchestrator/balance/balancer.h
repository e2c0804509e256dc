/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The balancer: which part of each call every fabric has, learned from the times that the parts took. Arithmetic alone:
 * no clock, no threads, no memory but its own. It gets the times of calls after they have ended, in any order and late,
 * with the shares that they had; its shares for the next call are a proposal (ipc/agreement.h).
 *
 * It begins as HyLink's Algorithm 1: nothing changes while the parts end together, and the part that ends last gets
 * less. But it steps straight to the shares with which they would end together, as it knows each fabric's pace. It also
 * considers every set of fabrics, as two may be slower together than one alone (NCCL and pushes share links, NCCL and
 * the host PCIe):
 *
 * - At first paces are what has been measured elsewhere (rules.paces), then what calls have shown (belief.h). A line
 *   through all sizes of a collective and type (rate_fit) predicts a size that has not been seen, if the parts seen
 *   were not far smaller; measurements of the size itself (trace) take precedence. A set that has not been tried is
 *   predicted as the mean of what is known of other sets.
 * - A size begins with NCCL alone, unless other sizes promise much. Sets with NCCL that may be better are tried by two
 *   calls, one at a time, however far a program runs ahead, or both at once if calls are long. A try has the shares
 *   that the set would have, or, if nothing is known of a fabric, a small part of it. So NCCL alone and NCCL beside
 *   others have been measured at the same size before one is preferred. Short calls are not used to try a fabric of
 *   which nothing is known.
 * - Decisions go by the median of five samples. While a size is not settled every call is measured. One slow sample, as
 *   of a call in which buffers are mapped, changes nothing. A settled size measures so seldom that it costs a
 *   thousandth. A step is made for a gain of 1.5%, to another set of fabrics for 4%; dividing a call costs 4 us.
 * - Shares go in steps, and shares whose plan the routers have are kept if others gain no more than a step.
 * - Parts that vary from call to call are made shorter than would end together on average, so that they seldom end
 *   last.
 * - Bursts: one sample out of the band is noise, two on the same side are a change, and so is one that fits what the
 *   fabric was before its last change: so the end and the return of a burst are seen at once. A change of a fabric
 *   holds for all sets that it is in, also untried ones; other sizes, and other fabrics of the same call, then change
 *   with their first sample. Samples of a burst stay out of the line through all sizes. Drift stays in the band, and
 *   the median follows.
 * - Other sets are tried again: soon after a change, else by one call in 64, then, when all have been tried, by half as
 *   many, down to one in 16384; and never so many that they cost more than a two-hundredth, or half of that if they
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
	struct ferry_pace paces[FERRY_NUM_FABRICS]; /* of each alone, as measured elsewhere; rate 0: not measured */
};

struct ferry_balancer_line {
	uint8_t collective, type, size_class, why;
	uint32_t word;        /* the shares, packed */
	uint32_t probe;       /* shares of one call in `probe_every` instead; 0 in either: none */
	uint32_t probe_every;
	uint32_t interval;    /* one call in so many is measured */
	uint32_t samples;     /* since the line was made */
	uint8_t settling;     /* samples until it is settled */
	uint8_t backoff;      /* probes in a row that have not helped */
	uint8_t probe_set;    /* which set is tried */
	uint8_t trial;        /* which set is tried now, as it has not been tried enough; 0: none */
	uint8_t tries[FERRY_FABRIC_SETS]; /* calls of each set whose times are known */
	bool due;             /* this rank's: a probe is to be made, and has not been yet */
	uint32_t had;         /* this rank's: shares of the last calls that Ferry had a part of */
	uint32_t tried;       /* this rank's: 1 + the samples that were known at its last try */
	uint8_t eager;        /* something has changed: that set is tried soon */
	uint64_t bytes;       /* of the last call */
	struct ferry_belief belief;
};

#define FERRY_BALANCER_TRY 1u /* probe_every while a set has been tried too seldom: as soon as no try is under way */
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

/** Starts from what an earlier job, or another rank, has learned of a collective and type. */
void ferry_balancer_adopt(struct ferry_balancer *balancer, const struct ferry_share_course *learned);

/** Fills in what this line's collective and type have taught, for other ranks and jobs. */
void ferry_balancer_record(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                           struct ferry_share_course *learned);

/** Calls of a class differ by a factor of 1.4 at most. */
uint8_t ferry_balancer_size_class(uint64_t bytes);

/** The place where a search for lines of such calls notes its result. */
uint8_t ferry_balancer_place(const struct ferry_balancer_call *call, uint8_t size_class);

/** Returns the packed shares of call n. trying: calls of its size that try something and have not ended. */
uint32_t ferry_balancer_propose(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n,
                                uint32_t trying);

/**
 * Whether this rank proposes a line's `probe` for call n; one in `every` has it. Once due it is proposed until it is
 * made (ferry_balancer_probed), as a call may be unfit for other reasons, such as buffers that are not mapped.
 */
bool ferry_balancer_probes(struct ferry_balancer_line *line, uint32_t every, uint64_t n, uint32_t trying);

void ferry_balancer_probed(struct ferry_balancer_line *line);

/** Whether call n is to be measured. */
bool ferry_balancer_measures(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint64_t n);

/** A call with these shares has ended: us[c] is the time of fabric c's part from the call's start; 0: unknown. */
void ferry_balancer_feed(struct ferry_balancer *balancer, const struct ferry_balancer_call *call, uint32_t word,
                         const double us[FERRY_NUM_FABRICS]);

/** The line of that call; made if there is none and there is room, else NULL. */
struct ferry_balancer_line *ferry_balancer_line(struct ferry_balancer *balancer,
                                                const struct ferry_balancer_call *call);

/** What a line believes of all fabrics in all sets. */
void ferry_balancer_paces(const struct ferry_balancer *balancer, const struct ferry_balancer_line *line,
                          struct ferry_paces *paces);

/** Whether call n is one in `every`: the same on all ranks that ask. */
bool ferry_balancer_picks(uint64_t n, uint32_t every);

#endif
