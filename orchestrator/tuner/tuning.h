/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A tuning: how NCCL runs a call. It is a way, which is an algorithm and a protocol or NCCL's own choice of both, and a
 * number of channels, as 8 * way + step; 0 is NCCL's own choice of all. All ranks of a call have the same, as six bits
 * of its word (ipc/shares.h). Constant; what calls may have one at all is said here and nowhere else.
 */
#ifndef FERRY_ORCHESTRATOR_TUNER_TUNING_H
#define FERRY_ORCHESTRATOR_TUNER_TUNING_H

#include "ipc/collective.h"

/** NCCL's numbers, the same in all its versions. */
enum ferry_nccl_algorithm { FERRY_NCCL_TREE, FERRY_NCCL_RING };
enum ferry_nccl_protocol { FERRY_NCCL_LL, FERRY_NCCL_LL128, FERRY_NCCL_SIMPLE };

#define FERRY_TUNING_WAYS  7
#define FERRY_TUNING_STEPS 8
#define FERRY_TUNINGS      (FERRY_TUNING_WAYS * FERRY_TUNING_STEPS)
#define FERRY_TUNING_16_CHANNELS 1u

struct ferry_tuning {
	int algorithm, protocol; /* -1: NCCL's own choice */
	int channels;            /* 0: NCCL's own choice; more than the communicator has are all that it has */
};

/** Returns the tuning of that number; NCCL's own choice for numbers from FERRY_TUNINGS on. */
struct ferry_tuning ferry_tuning_read(uint32_t number);

/**
 * Writes the tuning into NCCL's answer. costs: NCCL's table, algorithms by protocols; if the tuning names an algorithm,
 * its entry becomes 0, as NCCL takes the cheapest one. *number: gets the channels, for rings and trees alone: the other
 * algorithms have numbers of their own, and some do not clamp. Returns false, and changes nothing, if the table has no
 * possible entry.
 */
bool ferry_tuning_choose(struct ferry_tuning tuning, float *costs, int algorithms, int protocols, int *number);

/** Returns the tuning with the same channels by that way. */
uint32_t ferry_tuning_by(uint32_t number, uint32_t way);

#define FERRY_TUNING_BESIDE 3

/**
 * Returns a tuning of the same way with the next larger or the next smaller number of channels, by i below
 * FERRY_TUNING_BESIDE; for NCCL's own number of channels 16, 8 and 32. Where there is no other one it is `number`.
 */
uint32_t ferry_tuning_beside(uint32_t number, uint32_t i);

/**
 * Whether the tuning names an algorithm. The first use of an algorithm connects GPUs, and the replay of a graph may be
 * the first use, so captured calls have no such tuning.
 */
static inline bool ferry_tuning_connects(uint32_t number)
{
	return number >= FERRY_TUNING_STEPS;
}

/** Whether NCCL asks its tuner for such calls. It does not for messages, nor for what it makes of them. */
static inline bool ferry_tuning_is_asked_for(enum ferry_collective collective)
{
	return collective <= FERRY_REDUCE_TO_ROOT;
}

/**
 * Whether such calls may have a tuning other than NCCL's own choice. Broadcasts may not: since 2.29 broadcasts of
 * several roots in a group run as one kernel, for which NCCL takes a tuner's number of channels even if it has fewer.
 */
static inline bool ferry_tuning_is_free(enum ferry_collective collective)
{
	return ferry_tuning_is_asked_for(collective) && collective != FERRY_BROADCAST;
}

/** Whether such calls may be faster by that way: trees sum for all, and LL carries a flag for each word. */
bool ferry_tuning_is_sensible(uint32_t way, enum ferry_collective collective, uint64_t bytes);

#endif
