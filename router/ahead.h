/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Contexts on GPUs that a router makes ahead of its jobs while it stands by, so that these wait for none when it takes
 * another router's place: FERRY_SPARE_GPUS says which. By the process's one thread, before it serves.
 */
#ifndef FERRY_ROUTER_AHEAD_H
#define FERRY_ROUTER_AHEAD_H

#include "ipc/layout.h"
#include "router/gpus.h"

struct ferry_ahead {
	bool domain; /* all GPUs of the router's domain; else so many as follow: */
	uint32_t count;
	struct {
		bool by_number;
		uint32_t number; /* as the router's process sees GPUs */
		uint8_t uuid[FERRY_GPU_BYTES];
	} named[FERRY_MAX_DEVICES];
};

/** What FERRY_SPARE_GPUS says; unset: none. Error: ferryInvalidArgument, with what is wrong. */
ferryResult_t ferry_ahead_read(struct ferry_ahead *ahead);

/** Makes them, and logs what it does not get: a spare without them is one all the same. */
void ferry_ahead_make(const struct ferry_ahead *ahead, const struct ferry_layout *layout, uint32_t domain,
                      struct ferry_gpus *gpus);

#endif
