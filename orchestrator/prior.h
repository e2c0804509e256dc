/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a call is expected to take before a program has made one: what `ferry-perf tune` has measured on this machine,
 * under this environment's settings, with so many ranks. Loaded once per communicator, by the thread that makes it;
 * constant from then on, so that any thread may ask. All ranks have the same if they read the same file.
 */
#ifndef FERRY_ORCHESTRATOR_PRIOR_H
#define FERRY_ORCHESTRATOR_PRIOR_H

#include "ipc/collective.h"

#define FERRY_PRIOR_SIZES 8 /* of a collective; the rest of the file's is left out */

/** Who carries the call. */
enum ferry_prior_arm {
	FERRY_PRIOR_NCCL,             /* as the environment has it */
	FERRY_PRIOR_NCCL_16_CHANNELS, /* the same with NCCL_MIN_NCHANNELS=16 */
	FERRY_PRIOR_FERRY,            /* by pushes where they carry the collective, else by the host */
	FERRY_PRIOR_ARMS
};

struct ferry_prior_point {
	uint64_t bytes;
	double us[FERRY_PRIOR_ARMS]; /* 0: not measured */
};

struct ferry_prior {
	uint32_t counts[FERRY_NUM_COLLECTIVES]; /* all 0: nothing is known */
	struct ferry_prior_point points[FERRY_NUM_COLLECTIVES][FERRY_PRIOR_SIZES]; /* by size */
};

/**
 * Fills it in from the limits file; nothing is known where the file is missing, has no such rows, or cannot be read,
 * which is logged once per process.
 */
void ferry_prior_load(struct ferry_prior *prior, uint32_t nranks);

/**
 * What one of many calls in a row takes, in microseconds. bytes: of a rank's larger buffer. Between two measured sizes
 * along a power law; above the largest at its rate. False: not known, as below the smallest size.
 */
bool ferry_prior_us(const struct ferry_prior *prior, enum ferry_collective collective, uint64_t bytes,
                    enum ferry_prior_arm arm, double *us);

#endif
