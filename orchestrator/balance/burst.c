/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/balance/burst.h"

#define SLOW  1.4  /* times as slow as usual, */
#define AGAIN 1.2  /* and so many times the usual time, or less, ends the burst */
#define QUICK 0.93 /* NCCL's, of what they took in the burst */
#define ROW   2    /* samples that are alike */
#define SOON  4.0  /* times what a try costs, or a call takes, until the first one: it may have been chance */
#define EVERY 20.0 /* the same until the second; twice as many until the third, and so on */
#define TRIES 30

bool ferry_burst_begins(struct ferry_burst *burst, const double usual_us[2], double us)
{
	burst->slow = us > SLOW * usual_us[1] ? burst->slow + 1 : 0;
	if (burst->slow < ROW)
		return false;
	*burst = (struct ferry_burst){.on = true, .usual_us = {(float)usual_us[0], (float)usual_us[1]}};
	return true;
}

bool ferry_burst_ends(struct ferry_burst *burst, double us)
{
	if (us > AGAIN * (double)burst->usual_us[1])
		return false;
	burst->on = false;
	return true;
}

bool ferry_burst_nccl(struct ferry_burst *burst, double us)
{
	bool first = !(burst->nccl_us > 0);
	if (first)
		burst->nccl_us = (float)us;
	burst->quick = us < QUICK * (double)burst->nccl_us ? burst->quick + 1 : 0;
	return first;
}

void ferry_burst_call(struct ferry_burst *burst, double us)
{
	burst->since_us += us;
}

bool ferry_burst_tries(const struct ferry_burst *burst, double cost_us)
{
	double least = cost_us > (double)burst->nccl_us ? cost_us : (double)burst->nccl_us;
	return burst->quick >= ROW || burst->since_us > (burst->tries ? EVERY * burst->tries : SOON) * least;
}

void ferry_burst_tried(struct ferry_burst *burst)
{
	burst->quick = 0;
	burst->since_us = 0;
	burst->on = ++burst->tries < TRIES;
}
