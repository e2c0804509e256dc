/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A kernel over ferry_device.cuh, as C: a round in which each rank puts what it has to say to every rank, by put and
 * signal and in packets, and looks at what came. What is said depends on the round, which is counted in device memory,
 * so it may be captured and replayed.
 */
#ifndef FERRY_TESTS_CHANNEL_ROUND_H
#define FERRY_TESTS_CHANNEL_ROUND_H

#include "ferry.h"

#include <stdbool.h>

#define CHANNEL_ROUND_BYTES (1u << 19) /* of each rank's memory that it uses at most */

struct channel_round {
	ferryChannels_t channels; /* as ferryCommChannels gives them */
	uint32_t rounds;          /* that were right; the kernel's, as the next two */
	uint32_t flag;            /* of the last one */
	bool wrong, given_up;
};

/** The channels with the addresses at which the process finds the memory of CUDA's. */
ferryChannels_t channels_reached(const ferryChannels_t *channels);

/** The kernel. argument: a struct channel_round. */
void channel_round(void *argument);

#endif
