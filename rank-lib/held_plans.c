/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/held_plans.h"

#include "ipc/error.h"

#include <stdlib.h>

void ferry_held_plans_init(struct ferry_held_plans *plans)
{
	*plans = (struct ferry_held_plans){.all = NULL};
	pthread_mutex_init(&plans->lock, NULL);
}

void ferry_held_plans_end(struct ferry_held_plans *plans)
{
	free(plans->all);
	pthread_mutex_destroy(&plans->lock);
}

static bool grow(struct ferry_held_plans *plans)
{
	size_t capacity = plans->capacity ? 2 * plans->capacity : 64;
	if (plans->count < plans->capacity)
		return true;
	void *grown = realloc(plans->all, capacity * sizeof *plans->all);
	if (!grown)
		return false;
	plans->all = grown;
	plans->capacity = capacity;
	return true;
}

ferryResult_t ferry_held_plans_add(struct ferry_held_plans *plans, const struct ferry_plan *plan, uint32_t domains)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&plans->lock);
	if (grow(plans))
		plans->all[plans->count++] = (struct ferry_held_plan){plan, domains};
	else
		result = ferry_fail(ferrySystemError, "no memory for a list of %zu plans", plans->count + 1);
	pthread_mutex_unlock(&plans->lock);
	return result;
}

void ferry_held_plans_remove(struct ferry_held_plans *plans, const struct ferry_plan *plan)
{
	pthread_mutex_lock(&plans->lock);
	for (size_t i = 0; i < plans->count; i++)
		if (plans->all[i].plan == plan) {
			plans->all[i] = plans->all[--plans->count];
			break;
		}
	pthread_mutex_unlock(&plans->lock);
}

ferryResult_t ferry_held_plans_each(struct ferry_held_plans *plans, uint32_t domain,
                                    ferryResult_t (*give)(void *context, const struct ferry_plan *plan),
                                    void *context)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&plans->lock);
	for (size_t i = 0; i < plans->count && !result; i++)
		if (plans->all[i].domains >> domain & 1)
			result = give(context, plans->all[i].plan);
	pthread_mutex_unlock(&plans->lock);
	return result;
}
