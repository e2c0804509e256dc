/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A burst: for a while other programs copy over the links that Ferry's calls take, which are far slower then, and later
 * recover. For calls of one size of which one fabric has the whole (choice.h). Plain numbers.
 *
 * It begins with two slow samples of Ferry's in a row. What was known before is kept. While NCCL has the calls Ferry is
 * tried again: soon, as the samples may have been chance; when NCCL's calls become faster, as they would at the end of
 * a burst that slowed them, too; else when they have taken many times what a try costs, ever more rarely. The burst
 * ends with a sample like those before it.
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

/** Takes a sample of Ferry's; usual_us: NCCL's, Ferry's. Returns true if a burst begins. */
bool ferry_burst_begins(struct ferry_burst *burst, const double usual_us[2], double us);

/** Takes a sample of Ferry's in a burst. Returns true if the burst has ended. */
bool ferry_burst_ends(struct ferry_burst *burst, double us);

/** Takes a sample of NCCL's in a burst. Returns true for the first one. */
bool ferry_burst_nccl(struct ferry_burst *burst, double us);

/** NCCL has another call in the burst, which takes so long. */
void ferry_burst_call(struct ferry_burst *burst, double us);

/** Whether Ferry is to be tried, which costs so much more than NCCL. */
bool ferry_burst_tries(const struct ferry_burst *burst, double cost_us);

/** Ferry has been tried. After many tries it is no burst: Ferry's calls simply take so long. */
void ferry_burst_tried(struct ferry_burst *burst);

#endif
