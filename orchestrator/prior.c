/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/prior.h"

#include "ipc/error.h"
#include "ipc/nccl_settings.h"
#include "rank-lib/program/limits.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

/* Inserts the row in the order of sizes. */
static void add(struct ferry_prior *prior, const struct ferry_limits_collective *row)
{
	enum ferry_collective collective = ferry_collective_parse(row->collective);
	if (collective >= FERRY_NUM_COLLECTIVES || !row->bytes ||
	    prior->counts[collective] == FERRY_PRIOR_SIZES)
		return;
	struct ferry_prior_point *points = prior->points[collective];
	uint32_t at = prior->counts[collective]++;
	for (; at && points[at - 1].bytes > row->bytes; at--)
		points[at] = points[at - 1];
	points[at] = (struct ferry_prior_point){.bytes = row->bytes,
	                                        .us = {[FERRY_PRIOR_NCCL] = row->nccl_us,
	                                               [FERRY_PRIOR_NCCL_16_CHANNELS] = row->nccl_16_channels_us,
	                                               [FERRY_PRIOR_FERRY] = row->ferry_us}};
}

void ferry_prior_load(struct ferry_prior *prior, uint32_t nranks)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	struct ferry_limits limits;
	char settings[20];
	bool found;
	memset(prior, 0, sizeof *prior);
	if (ferry_limits_load(&limits, &found)) {
		if (!atomic_flag_test_and_set(&logged))
			ferry_log(FERRY_LOG_WARN, "%s; what calls take is found out as they are made",
			          ferry_last_message());
		return;
	}
	ferry_limits_print_settings(ferry_nccl_settings(), settings);
	for (int i = 0; i < limits.ncollectives; i++)
		if (limits.collectives[i].ranks == (int)nranks && !strcmp(limits.collectives[i].settings, settings))
			add(prior, &limits.collectives[i]);
}

bool ferry_prior_us(const struct ferry_prior *prior, enum ferry_collective collective, uint64_t bytes,
                    enum ferry_prior_arm arm, double *us)
{
	const struct ferry_prior_point *below = NULL;
	for (uint32_t i = 0; i < prior->counts[collective]; i++) {
		const struct ferry_prior_point *point = &prior->points[collective][i];
		if (!(point->us[arm] > 0))
			continue;
		if (point->bytes > bytes && !below)
			return false;
		if (point->bytes > bytes) {
			double part = log((double)bytes / (double)below->bytes) /
			              log((double)point->bytes / (double)below->bytes);
			*us = below->us[arm] * pow(point->us[arm] / below->us[arm], part);
			return true;
		}
		below = point;
	}
	if (below)
		*us = below->us[arm] * (double)bytes / (double)below->bytes;
	return below;
}
