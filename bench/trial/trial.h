/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A trial: one collective call as all its ranks make it, with inputs that every rank can compute for every other, and
 * the answer that each must get. Used by ferry-perf to check results, and by the test suites over the public API.
 *
 * Inputs are pseudo-random with a period that is a prime, so a slice that lands in the wrong place shows, and
 * references cost little at any size. Integers use all their bits and wrap; floats have all of theirs too, in ranges
 * where nothing overflows.
 *
 * Judging: data that is only moved, integers, min and max must match to the bit. A float reduction may differ from a
 * reference in extended precision by the rounding that Ferry allows itself: with u the type's unit roundoff, a that of
 * the accumulator (float32 for 16- and 8-bit types), n ranks and p roundings to the type (1 in one domain, else domains
 * + 1; of sums that are added up in parts, n), by
 * ((1 + u)^p * (1 + a)^(n + 1) - 1) * (sum, or product, of magnitudes), plus p times half the least subnormal.
 * In one domain the result must in addition equal the sum in rank order to the bit (`exact`).
 */
#ifndef FERRY_BENCH_TRIAL_H
#define FERRY_BENCH_TRIAL_H

#include "bench/trial/skew.h"
#include "ferry.h"
#include "ipc/collective.h"

#include <stdbool.h>

struct ferry_trial {
	enum ferry_collective collective;
	ferryDataType_t type;
	ferryRedOp_t op; /* ferryNumOps: premulsum, with ferry_trial_scalar */
	/* as the API counts; alltoallv: the largest block; with `skew` a rank's part of what the busiest one has */
	size_t count;
	const struct ferry_skew *skew; /* alltoallv; NULL: lengths that differ by thirds */
	int root, nranks;
	unsigned ndomains; /* for the bound */
	bool exact;        /* float results must be the rank-order ones, bit by bit */
	bool partly;       /* sums are added up in parts, on trees: each rank rounds what it has */
	bool in_place;
	uint64_t seed;
	/* made by ferry_trial_open */
	size_t period;
	char *inputs[FERRY_MAX_RANKS];     /* two periods of each rank's input; made when needed */
	union ferry_trial_answer *answers; /* one period of the reduction */
};

/** Elements that a rank reads and writes, gaps of alltoallv included; 0 where the call ignores the buffer. */
size_t ferry_trial_sends(const struct ferry_trial *trial, int rank);
size_t ferry_trial_receives(const struct ferry_trial *trial, int rank);
/** Elements of a buffer that has room for either, and so for the call in place. */
size_t ferry_trial_room(const struct ferry_trial *trial, int rank);

/** Whether the collective can be called in place. */
bool ferry_trial_can_be_in_place(enum ferry_collective collective);

/**
 * The buffers to call with: in place both lie in `receive`. Pointers that the call ignores become NULL.
 * Out of place `send` and `receive` are kept.
 */
void ferry_trial_place(const struct ferry_trial *trial, int rank, char **send, char **receive);

/** Makes the references; false if there is no memory. Close it in any case. */
bool ferry_trial_open(struct ferry_trial *trial);
void ferry_trial_close(struct ferry_trial *trial);

/** Writes the rank's input; send as ferry_trial_place gave it (NULL: nothing to do). */
void ferry_trial_fill(struct ferry_trial *trial, int rank, char *send);

/** Counts elements of the rank's result that are wrong, and bytes of alltoallv's gaps that are not `untouched` any
 * more. */
size_t ferry_trial_wrong(struct ferry_trial *trial, int rank, const char *receive, unsigned char untouched);

/** The factor of premulsum that the rank gives, as an element. */
uint64_t ferry_trial_scalar(const struct ferry_trial *trial, int rank);

/** alltoallv: the four arrays of a rank. */
struct ferry_trial_counts {
	size_t sendcounts[FERRY_MAX_RANKS], senddispls[FERRY_MAX_RANKS];
	size_t recvcounts[FERRY_MAX_RANKS], recvdispls[FERRY_MAX_RANKS];
};
void ferry_trial_counts(const struct ferry_trial *trial, int rank, struct ferry_trial_counts *counts);

/** A trial's call as one rank makes it, for other libraries too. */
struct ferry_trial_call {
	struct ferry_trial trial;
	int rank;
	char *send, *receive; /* as ferry_trial_place gave them */
	struct ferry_trial_counts counts;
};

/** Makes the call. op: trial->op, or the reduction created for premulsum. */
ferryResult_t ferry_trial_start(const struct ferry_trial *trial, int rank, const char *send, char *receive,
                                ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream);

#endif
