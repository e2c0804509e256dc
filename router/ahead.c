/* SPDX-License-Identifier: Apache-2.0 */
#include "router/ahead.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_one(struct ferry_ahead *ahead, const char *text)
{
	char *end;
	uint32_t at = ahead->count++;
	ahead->named[at].by_number = *text >= '0' && *text <= '9';
	if (!ahead->named[at].by_number)
		return ferry_gpu_uuid_parse(text, ahead->named[at].uuid);
	unsigned long number = strtoul(text, &end, 10);
	ahead->named[at].number = (uint32_t)number;
	return !*end && number < FERRY_MAX_DEVICES;
}

ferryResult_t ferry_ahead_read(struct ferry_ahead *ahead)
{
	const char *text = ferry_env("FERRY_SPARE_GPUS");
	char one[FERRY_GPU_TEXT + 1];
	*ahead = (struct ferry_ahead){.domain = text && !strcmp(text, "all")};
	if (!text || ahead->domain)
		return ferrySuccess;
	for (const char *at = text; *at;) {
		size_t length = strcspn(at, ",");
		snprintf(one, sizeof one, "%.*s", length < sizeof one ? (int)length : (int)sizeof one - 1, at);
		if (ahead->count == FERRY_MAX_DEVICES || !read_one(ahead, one))
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_SPARE_GPUS=%s: all, or UUIDs (GPU-...) and numbers below %d, "
			                  "separated by commas; not \"%s\"",
			                  text, FERRY_MAX_DEVICES, one);
		at += length + (at[length] == ',');
	}
	return ferrySuccess;
}

static void make_one(struct ferry_gpus *gpus, const uint8_t *uuid)
{
	struct ferry_gpu *gpu;
	char text[FERRY_GPU_TEXT];
	if (ferry_gpus_hold(gpus, uuid, &gpu))
		ferry_log(FERRY_LOG_WARN, "no context ahead on %s: %s", ferry_gpu_uuid_print(uuid, text),
		          ferry_last_message());
	else
		ferry_gpu_drop(gpu); /* nobody gives it up while this router stands by */
}

static void make_by_number(struct ferry_gpus *gpus, uint32_t number)
{
	uint8_t uuid[FERRY_GPU_BYTES];
	if (ferry_gpus_find(number, uuid))
		ferry_log(FERRY_LOG_WARN, "no context ahead on GPU %u: %s", number, ferry_last_message());
	else
		make_one(gpus, uuid);
}

void ferry_ahead_make(const struct ferry_ahead *ahead, const struct ferry_layout *layout, uint32_t domain,
                      struct ferry_gpus *gpus)
{
	uint32_t there = 0;
	if (ahead->domain && ferry_gpus_see(&there))
		ferry_log(FERRY_LOG_WARN, "no contexts ahead: %s", ferry_last_message());
	for (uint32_t number = 0; number < there; number++)
		if (ferry_layout_device_domain(layout, number, there) == domain)
			make_by_number(gpus, number);
	for (uint32_t i = 0; i < ahead->count; i++)
		if (ahead->named[i].by_number)
			make_by_number(gpus, ahead->named[i].number);
		else
			make_one(gpus, ahead->named[i].uuid);
}
