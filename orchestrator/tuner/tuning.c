/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/tuning.h"

#define LL_MOST (4ull << 20) /* bytes: longer calls are bound by links, of which LL takes half for its flags */

static const struct {
	int algorithm, protocol;
} ways[FERRY_TUNING_WAYS] = {{-1, -1},
                             {FERRY_NCCL_RING, FERRY_NCCL_SIMPLE},
                             {FERRY_NCCL_RING, FERRY_NCCL_LL128},
                             {FERRY_NCCL_RING, FERRY_NCCL_LL},
                             {FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE},
                             {FERRY_NCCL_TREE, FERRY_NCCL_LL128},
                             {FERRY_NCCL_TREE, FERRY_NCCL_LL}};

/* By step: first NCCL's own, and what is tried beside that; and the others in the order of their channels. */
static const int channels[FERRY_TUNING_STEPS] = {0, 16, 8, 32, 24, 12, 4, 2};
static const uint32_t ladder[FERRY_TUNING_STEPS - 1] = {7, 6, 2, 5, 1, 4, 3};

_Static_assert(FERRY_TUNINGS <= 64, "six bits of a call's word");

struct ferry_tuning ferry_tuning_read(uint32_t number)
{
	uint32_t way = number < FERRY_TUNINGS ? number / FERRY_TUNING_STEPS : 0;
	return (struct ferry_tuning){ways[way].algorithm, ways[way].protocol,
	                             number < FERRY_TUNINGS ? channels[number % FERRY_TUNING_STEPS] : 0};
}

uint32_t ferry_tuning_by(uint32_t number, uint32_t way)
{
	return way * FERRY_TUNING_STEPS + number % FERRY_TUNING_STEPS;
}

uint32_t ferry_tuning_beside(uint32_t number, uint32_t beside[FERRY_TUNING_BESIDE])
{
	uint32_t step = number % FERRY_TUNING_STEPS, way = number - step, count = 0, at = 0;
	if (!step) {
		for (; count < FERRY_TUNING_BESIDE; count++)
			beside[count] = way + 1 + count;
		return count;
	}
	while (ladder[at] != step)
		at++;
	if (at + 1 < FERRY_TUNING_STEPS - 1)
		beside[count++] = way + ladder[at + 1];
	if (at)
		beside[count++] = way + ladder[at - 1];
	return count;
}

bool ferry_tuning_is_sensible(uint32_t way, enum ferry_collective collective, uint64_t bytes)
{
	return !(ways[way].algorithm == FERRY_NCCL_TREE && collective != FERRY_ALLREDUCE) &&
	       !(ways[way].protocol == FERRY_NCCL_LL && bytes > LL_MOST);
}
