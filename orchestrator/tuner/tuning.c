/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/tuner/tuning.h"

#define LL_MOST (4ull << 20) /* bytes: longer calls are bound by links, of which LL takes half for its flags */

static const struct {
	int algorithm, protocol;
} ways[FERRY_TUNING_WAYS] = {
        {-1, -1}, /* NCCL's own choice */
        {FERRY_NCCL_RING, FERRY_NCCL_SIMPLE}, {FERRY_NCCL_RING, FERRY_NCCL_LL128}, {FERRY_NCCL_RING, FERRY_NCCL_LL},
        {FERRY_NCCL_TREE, FERRY_NCCL_SIMPLE}, {FERRY_NCCL_TREE, FERRY_NCCL_LL128}, {FERRY_NCCL_TREE, FERRY_NCCL_LL}};

/* By step: its channels, and the steps beside it on the ladder, or itself; NCCL's own choice may be anywhere on it. */
static const int channels[FERRY_TUNING_STEPS] = {0, 16, 8, 32, 24, 12, 4, 2};
static const uint8_t ladder[FERRY_TUNING_STEPS][FERRY_TUNING_BESIDE] = {
        {1, 2, 3}, {4, 5, 1}, {5, 6, 2}, {4, 3, 3}, {3, 1, 4}, {1, 2, 5}, {2, 7, 6}, {6, 7, 7}};

_Static_assert(FERRY_TUNINGS <= 64, "six bits of a call's word");

struct ferry_tuning ferry_tuning_read(uint32_t number)
{
	uint32_t way = number < FERRY_TUNINGS ? number / FERRY_TUNING_STEPS : 0;
	return (struct ferry_tuning){ways[way].algorithm, ways[way].protocol,
	                             number < FERRY_TUNINGS ? channels[number % FERRY_TUNING_STEPS] : 0};
}

bool ferry_tuning_choose(struct ferry_tuning tuning, float *costs, int algorithms, int protocols, int *number)
{
	int chosen = -1;
	for (int i = 0; costs && i < algorithms * protocols; i++) {
		bool named = (tuning.algorithm < 0 || tuning.algorithm == i / protocols) &&
		             (tuning.protocol < 0 || tuning.protocol == i % protocols);
		if (named && costs[i] >= 0 && (chosen < 0 || costs[i] < costs[chosen])) /* negative: impossible */
			chosen = i;
	}
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

uint32_t ferry_tuning_beside(uint32_t number, uint32_t i)
{
	uint32_t step = number % FERRY_TUNING_STEPS;
	return number - step + ladder[step][i];
}

bool ferry_tuning_is_sensible(uint32_t way, enum ferry_collective collective, uint64_t bytes)
{
	return !(ways[way].algorithm == FERRY_NCCL_TREE && collective != FERRY_ALLREDUCE) &&
	       !(ways[way].protocol == FERRY_NCCL_LL && bytes > LL_MOST);
}
