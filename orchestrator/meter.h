/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The meter: what a communicator's calls take, and the shares that are proposed for the next ones. A measured call has
 * a sample from its launch until its stream has passed it: two events, before the call and behind all its parts, so
 * that NCCL's calls and Ferry's are measured alike, and waiting is in the measure. Threads that make calls look at the
 * samples; rank 0 feeds them to the tuner (tuner/tuner.h) and publishes what comes of it in the table of shares; all
 * ranks propose what the table says. Under the shadow communicator's lock.
 */
#ifndef FERRY_ORCHESTRATOR_METER_H
#define FERRY_ORCHESTRATOR_METER_H

#include "ferry.h"
#include "orchestrator/clock.h"
#include "orchestrator/tuner/veto.h"
#include "orchestrator/tuner/tuner.h"

#include <stdio.h>

#define FERRY_METER_SAMPLES 32
#define FERRY_METER_PINNED  (UINT64_C(1) << 62) /* beside bytes: FERRY_SHARES is set, */
#define FERRY_METER_ALONE   (UINT64_C(1) << 61) /* and FERRY_NCCL=tune */

struct ferry_sample {
	bool taken, armed; /* there is one; its call has been made, and its clock runs */
	struct ferry_clock clock;
	struct ferry_tuner_line *line;
	uint64_t n, bytes;
	uint32_t word, age;
	double made_us; /* by the caller's clock */
	double us; /* what its call took, less what counts to others beside it; 0: not known */
};

struct ferry_meter {
	bool pinned, nccl_alone; /* by FERRY_SHARES; FERRY_NCCL=tune */
	struct ferry_shares pins;
	struct ferry_share_table *table; /* once the ranks have one */
	uint32_t self;
	uint64_t signature; /* of the job's settings */
	bool peers;            /* collectives without sums are pushed from device to device, */
	bool adds;             /* and those with sums (gpu_sums.h) */
	uint64_t floor_bytes;  /* calls of less are short: a kernel's, or NCCL's */
	struct ferry_prior prior;
	struct ferry_tuner tuner; /* rank 0's; of other ranks: for kinds of which rank 0 has published nothing yet */
	struct ferry_meter_trial {
		uint8_t turn, used;
	} trials[FERRY_SHARE_LINES]; /* by the table's lines: calls that this rank has seen of the trial */
	uint8_t found;               /* the line that was looked for last */
	bool follows;                /* the program's steps have a veto */
	struct ferry_veto veto;    /* rank 0's */
	struct ferry_clock windows[FERRY_VETO_WINDOWS];
	uint32_t untimed;        /* bit i: window i could not be timed */
	uint32_t window_age;     /* how often the oldest window was looked at */
	double busy_until_us;    /* until then the rank's stream is surely busy, by what such calls take */
	double again_us;           /* until then the driver is not asked about windows and samples again */
	uint32_t oldest, nsamples; /* in the order of their calls, from samples[oldest] on, around */
	float callers_us[FERRY_TUNER_LINES][2]; /* the last gap that was the caller's: of Ferry's calls; of NCCL's */
	struct ferry_sample samples[FERRY_METER_SAMPLES];
	FILE *log; /* FERRY_SHARES_LOG; NULL: none */
	struct ferry_share_line carried[FERRY_SHARE_KERNELS]; /* rank 0's; of the threads that make calls */
};

/* What a rank proposes for a call. */
struct ferry_meter_proposal {
	uint32_t word;
	uint32_t nccl; /* in place of `word`, where Ferry cannot have the call yet, or would be slow at it */
	bool soon;     /* such calls may be Ferry's soon: what they need is to be preregistered */
};

/** Reads FERRY_NCCL, FERRY_SHARES, FERRY_SPLIT_FLOOR and FERRY_SPLIT_VETO. Errors: ferryInvalidArgument. */
ferryResult_t ferry_meter_init(struct ferry_meter *meter);

/**
 * To be called when the ranks have met, have this table, and know whether they push collectives without sums (peers).
 * tuned: NCCL takes tunings for this communicator. host_rate: bytes per microsecond of a GPU's link to the host, one
 * way. adds: GPUs add up what they push. Loads the prior. Writes into the table which calls this rank numbers
 * (ferry_meter_counts), so it comes before the rank joins an agreement.
 */
void ferry_meter_open(struct ferry_meter *meter, struct ferry_share_table *table, uint32_t nranks, uint32_t self,
                      bool peers, bool adds, bool tuned, double host_rate);

/**
 * All ranks number the same calls. tuned: NCCL takes tunings on all of them. Adopts what an earlier job with the same
 * settings has learned, of which tunings are a part. Before the first proposal.
 */
void ferry_meter_adopt(struct ferry_meter *meter, bool tuned);

/** Rank 0: makes the clocks by which calls are measured, ahead of the calls, in the context that is current. */
void ferry_meter_prepare(struct ferry_meter *meter);

void ferry_meter_free(struct ferry_meter *meter);

/**
 * What decides which calls this rank numbers, as one number. A rank proposes nothing until it has seen the same number
 * from all ranks (ferry_share_publish_floor).
 */
uint64_t ferry_meter_counts(const struct ferry_meter *meter);

/** The fabric by which Ferry carries these calls, or its part of them; FERRY_FABRIC_NCCL: it has none that gains. */
enum ferry_fabric ferry_meter_fabric(const struct ferry_meter *meter, enum ferry_collective collective,
                                     bool in_place);

/** tries: the call may have a trial. */
struct ferry_meter_proposal ferry_meter_propose(struct ferry_meter *meter, const struct ferry_tuner_call *call,
                                                bool captured, bool tries);

/**
 * The ranks have sealed `word` for a call: to be called for each call. tries: as in ferry_meter_propose. Returns true
 * if the call is to be measured; then the caller must call ferry_meter_begin or ferry_meter_pass for it.
 */
bool ferry_meter_sealed(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word, bool tries);

/** For each call that comes to a stream now: returns what is to be timed before it (ferry_meter_mark). */
struct ferry_veto_marks ferry_meter_count(struct ferry_meter *meter, const struct ferry_tuner_call *call,
                                           uint32_t buffers, uint32_t word);

/** Puts these marks into the stream, right before their call. */
void ferry_meter_mark(struct ferry_meter *meter, struct ferry_veto_marks marks, cudaStream_t stream);

/** A kernel carries the call: rank 0 says so in the table. Without the lock, by the thread that makes the call. */
void ferry_meter_carry(struct ferry_meter *meter, const struct ferry_tuner_call *call);

/** A call that was to be measured cannot be. */
void ferry_meter_pass(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word);

/** Returns a sample for call n, or NULL if there is no room. */
struct ferry_sample *ferry_meter_begin(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word,
                                       uint64_t n);

/** The call has been made; timed: its clock runs. Else the sample is given back. */
void ferry_meter_arm(struct ferry_sample *sample, bool timed);

/**
 * The call is put into a stream now, behind all that were made before. Every rank calls this; of a group's messages for
 * the first one alone.
 */
void ferry_meter_made(struct ferry_meter *meter, const struct ferry_tuner_call *call, uint32_t word);

/** Returns for how long this rank's stream is surely busy with the calls that it was given; 0: it may be idle. */
double ferry_meter_ahead_us(const struct ferry_meter *meter);

/**
 * Feeds the tuner with the calls that have ended, in the order in which they were made. For each call: costs next to
 * nothing without samples, and asks the driver about one unfinished call at most, of two streams about two, and not
 * again within 0.1 ms.
 * Returns true if the steps have a new verdict.
 */
bool ferry_meter_look(struct ferry_meter *meter);

#endif
