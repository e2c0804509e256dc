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

/* channels: by step, NCCL's own choice and its neighbours first. ladder: steps in the order of their channels. */
static const int channels[FERRY_TUNING_STEPS] = {0, 16, 8, 32, 24, 12, 4, 2};
static const uint32_t ladder[FERRY_TUNING_STEPS - 1] = {7, 6, 2, 5, 1, 4, 3};

_Static_assert(FERRY_TUNINGS <= 64, "six bits of a call's word");

struct ferry_tuning ferry_tuning_read(uint32_t number)
{
	uint32_t way = number < FERRY_TUNINGS ? number / FERRY_TUNING_STEPS : 0;
	return (struct ferry_tuning){ways[way].algorithm, ways[way].protocol,
	                             number < FERRY_TUNINGS ? channels[number % FERRY_TUNING_STEPS] : 0};
}

/* The cheapest combination of this algorithm and protocol (-1: any) in NCCL's table, -1 if there is none. */
static int cheapest(const float *costs, int algorithms, int protocols, int algorithm, int protocol)
{
	int best = -1;
	for (int i = 0; i < algorithms * protocols; i++) {
		if ((algorithm >= 0 && algorithm != i / protocols) || (protocol >= 0 && protocol != i % protocols))
			continue;
		if (costs[i] >= 0 && (best < 0 || costs[i] < costs[best])) /* negative: impossible */
			best = i;
	}
	return best;
}

bool ferry_tuning_choose(struct ferry_tuning tuning, float *costs, int algorithms, int protocols, int *number)
{
	int chosen = costs && protocols > 0
	                     ? cheapest(costs, algorithms, protocols, tuning.algorithm, tuning.protocol)
	                     : -1;
	if (chosen < 0)
		return false;
	if (tuning.algorithm >= 0 || tuning.protocol >= 0)
		costs[chosen] = 0;
	if (tuning.channels && chosen / protocols <= FERRY_NCCL_RING)
		*number = tuning.channels;
	return true;
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
