/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Jobs on host devices, a process each, that call until they are stopped: large calls, one after the other, or small
 * ones, many in flight, whose latency rank 0 keeps. By ferry-fairness, from one thread.
 */
#ifndef FERRY_BENCH_CROWD_H
#define FERRY_BENCH_CROWD_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <sys/types.h>

#define CROWD_MOST   16   /* ranks */
#define CROWD_FLIGHT 1024 /* calls */
#define CROWD_GROUP  61000

enum crowd_kind { CROWD_LARGE, CROWD_SMALL };

struct crowd_options {
	int ranks, flight;
	uint64_t bytes, few; /* of a large call, and of a small one */
	ferryDataType_t type;
};

/* Microseconds from the making of a call to its end on rank 0. */
struct crowd_times {
	uint64_t calls;
	double p50, p99, most;
};

/** Before the others: memory that the jobs share with this process. */
void crowd_open(void);

/** group: of the job's process; 0: as this one's. Exits where it cannot. */
pid_t crowd_start(const struct crowd_options *options, enum crowd_kind kind, int group);

/** Until so many jobs, of those begun since crowd_forget, have made their first call; exits if one dies before. */
void crowd_await(uint64_t jobs);
void crowd_forget(void);

/** Ends them; exits if one has failed. */
void crowd_stop(const pid_t *jobs, int count);

/** Times of the calls from here on, and what they were. */
void crowd_reset_times(void);
struct crowd_times crowd_times(void);

#endif
