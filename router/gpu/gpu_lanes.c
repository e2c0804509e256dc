/* SPDX-License-Identifier: Apache-2.0 */
#include "router/gpu/gpu_lanes.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

#define SPIN_US 1000 /* lanes of a GPU spin so long for slices and for the next call, then sleep */

struct ferry_gpu_lane_pair {
	struct ferry_lanes lanes; /* first */
	struct ferry_gpu *gpu;    /* held */
	uint32_t users;
	struct ferry_gpu_lane_pair *next;
};

ferryResult_t ferry_gpu_lanes_init(struct ferry_gpu_lanes *table, struct ferry_priority *priority)
{
	long spin_us;
	memset(table, 0, sizeof *table);
	ferryResult_t result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000, SPIN_US, &spin_us);
	if (result)
		return result;
	table->spin_ns = (uint64_t)spin_us * 1000;
	table->priority = priority;
	pthread_mutex_init(&table->lock, NULL);
	return ferrySuccess;
}

/* Under the lock. */
static ferryResult_t pair_open(struct ferry_gpu_lanes *table, struct ferry_gpu *gpu,
                               struct ferry_gpu_lane_pair **opened)
{
	struct ferry_lanes_options options = {.copier = ferry_gpu_copier(gpu),
	                                      .spin_ns = table->spin_ns,
	                                      .priority = table->priority};
	struct ferry_gpu_lane_pair *pair = aligned_alloc(_Alignof(struct ferry_gpu_lane_pair), sizeof *pair);
	if (!pair)
		return ferry_fail(ferrySystemError, "no memory for a GPU's lanes");
	memset(pair, 0, sizeof *pair);
	ferry_priority_need(table->priority);
	ferryResult_t result = ferry_lanes_open(&pair->lanes, &options);
	if (result) {
		free(pair);
		return result;
	}
	pair->gpu = gpu;
	ferry_gpu_hold(gpu);
	*opened = pair;
	return ferrySuccess;
}

ferryResult_t ferry_gpu_lanes_use(struct ferry_gpu_lanes *table, struct ferry_gpu *gpu, struct ferry_lanes **lanes)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&table->lock);
	struct ferry_gpu_lane_pair *pair = table->pairs;
	while (pair && pair->gpu != gpu)
		pair = pair->next;
	if (!pair && !(result = pair_open(table, gpu, &pair))) {
		pair->next = table->pairs;
		table->pairs = pair;
	}
	if (!result) {
		pair->users++;
		*lanes = &pair->lanes;
	}
	pthread_mutex_unlock(&table->lock);
	return result;
}

void ferry_gpu_lanes_leave(struct ferry_gpu_lanes *table, struct ferry_lanes *lanes)
{
	struct ferry_gpu_lane_pair *pair = (struct ferry_gpu_lane_pair *)lanes;
	pthread_mutex_lock(&table->lock);
	if (--pair->users == 0) {
		struct ferry_gpu_lane_pair **link = &table->pairs;
		while (*link != pair)
			link = &(*link)->next;
		*link = pair->next;
		ferry_lanes_close(&pair->lanes);
		ferry_gpu_drop(pair->gpu);
		free(pair);
	}
	pthread_mutex_unlock(&table->lock);
}
