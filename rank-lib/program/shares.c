/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/shares.h"

#define LEAST_GAIN 0.02 /* a second fabric is more to go wrong, and more work for the cores */

/*
 * The host's start: its time for a message besides the bytes. A slice must have come up before it can go down, and each
 * has a fixed cost. Long messages go in slices of about SLICE bytes (tuning.c); peers push whole parts, and start at
 * once. AllGather on the two H200s of docs/lab/two-gpus.md fits 45 GB/s of the 48 measured, after 75 us; at a cost of 4
 * us for a slice the two functions say 44 and 90.
 */
#define SLICE (2u << 20)
#define WAYS  2

static double start_ns(const struct ferry_costs *costs)
{
	return WAYS * (costs->issue_ns + (double)SLICE / costs->link);
}

/* The limits' rate has no gaps between copies. */
static double host_rate(const struct ferry_costs *costs)
{
	return SLICE / (SLICE / costs->host + costs->issue_ns);
}

/*
 * With M the bytes that the busiest device moves, rates H of the host and P of the peers, and the host's start s, both
 * end together when the host has a share x of
 *
 *     s + x M / H = (1 - x) M / P,    x = H / (H + P) (1 - s P / M).
 *
 * Peers alone would take M / P: x is also the fraction of their time that is gained.
 */
uint64_t ferry_share_of_host(const struct ferry_costs *costs, uint64_t bytes, uint32_t blocks)
{
	if (!(costs->push > 0) || !(costs->host > 0) || !costs->link || !bytes || !blocks)
		return 0;
	double alone_ns = (double)bytes * blocks / costs->push;
	double host = host_rate(costs), share = host / (host + costs->push) * (1 - start_ns(costs) / alone_ns);
	if (share < LEAST_GAIN)
		return 0;
	return (uint64_t)(share * (double)bytes) / FERRY_SHARE_ROUND * FERRY_SHARE_ROUND;
}
