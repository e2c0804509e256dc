/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/program/shares.h"

#define LEAST_GAIN 0.02 /* below this a second fabric is not worth the cores' work and the added risk */

/*
 * The host's start is its time for a message besides the bytes: a slice must have come up before it can go down, and
 * each slice has a fixed cost. Long messages go in slices of about SLICE bytes (tuning.c); peers push whole parts, and
 * start at once. An AllGather on the two H200s of docs/lab/two-gpus.md fits 45 GB/s (48 is the host's measured rate)
 * after 75 us; with 4 us per slice the two functions give 44 GB/s and 90 us.
 */
#define SLICE (2u << 20)
#define WAYS  2

static double start_ns(const struct ferry_costs *costs)
{
	return WAYS * (costs->issue_ns + (double)SLICE / costs->link);
}

/* The rate with the fixed cost of each slice; the measured rate has no gaps between copies. */
static double host_rate(const struct ferry_costs *costs)
{
	return SLICE / (SLICE / costs->host + costs->issue_ns);
}

/*
 * Let M be the bytes that the busiest device moves, H and P the rates of host and peers, s the host's start. Both end
 * together if the host has the share x:
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
