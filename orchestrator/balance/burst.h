/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A burst: for a while others copy over the links that Ferry's calls take, which are far slower then, and later as they
 * were. Of calls of one size that one fabric has whole (choice.h). Plain numbers.
 *
 * It begins with two samples of Ferry's in a row that are slow. What was known before is kept. While NCCL has the calls
 * Ferry is tried again soon, as it may have been chance; when NCCL's become faster, as they would at its end if they
 * suffered too; else when they have taken many times what a try costs, ever more rarely. It ends with a sample that is
 * as those were before.
 */
#ifndef FERRY_ORCHESTRATOR_BALANCE_BURST_H
#define FERRY_ORCHESTRATOR_BALANCE_BURST_H

#include <stdbool.h>
#include <stdint.h>

struct ferry_burst {
	bool on;
	uint8_t slow;      /* samples of Ferry's in a row */
	uint8_t quick;     /* samples of NCCL's in a row that are faster than its first ones in the burst */
	uint8_t tries;
	float usual_us[2]; /* before it: NCCL's, Ferry's */
	float nccl_us;     /* the first in it; 0: there is none yet */
	double since_us;   /* what NCCL's have taken since it began, or since the last try */
};

/** A sample of Ferry's where these are usual: NCCL's, Ferry's. True: a burst begins. */
bool ferry_burst_begins(struct ferry_burst *burst, const double usual_us[2], double us);

/** A sample of Ferry's in a burst. True: it has ended. */
bool ferry_burst_ends(struct ferry_burst *burst, double us);

/** One of NCCL's in it. True: the first one. */
bool ferry_burst_nccl(struct ferry_burst *burst, double us);

/** NCCL has another call in it, of so long. */
void ferry_burst_call(struct ferry_burst *burst, double us);

/** Whether Ferry is to be tried, which costs so much more than NCCL. */
bool ferry_burst_tries(const struct ferry_burst *burst, double cost_us);

/** It has been. After many tries it is no burst, but what Ferry takes. */
void ferry_burst_tried(struct ferry_burst *burst);

#endif
