/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What `ferry-perf limits` measured of this machine, and what the planner takes from it. Read by communicators and by
 * ferry-perf; written by ferry-perf alone, into FERRY_LIMITS, else $XDG_CACHE_HOME/ferry/limits.json, else
 * ~/.cache/ferry/limits.json.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_LIMITS_H
#define FERRY_RANK_LIB_PROGRAM_LIMITS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

struct cJSON;

/** What moving a slice by a copy engine costs. */
struct ferry_costs {
	uint32_t issue_ns; /* what each slice costs besides its bytes: to enqueue the copy, its fixed part, to hand it on */
	uint32_t link;     /* bytes per ns (GB/s) of one copy; at least 1 */
	bool measured;     /* on this machine; else those of the machine that docs/performance.md tells of */
};

/** The file's name. Error: ferryInvalidArgument if the environment has no place for one, or one too long. */
ferryResult_t ferry_limits_path(char *path, size_t bytes);

/**
 * The file as JSON, the caller's to cJSON_Delete; *limits = NULL and ferrySuccess if there is none.
 * Error: ferryInvalidArgument with its name if it is not what `ferry-perf limits` writes, or FERRY_LIMITS names one that cannot be
 * read.
 */
ferryResult_t ferry_limits_load(struct cJSON **limits);

/** The costs to plan with. All ranks of a job must read the same. Errors: those of ferry_limits_load. */
ferryResult_t ferry_costs_read(struct ferry_costs *costs);

#endif
