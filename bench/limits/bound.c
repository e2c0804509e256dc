/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits/bound.h"

#include "ipc/error.h"
#include "rank-lib/program/limits.h"

#include <math.h>

static struct ferry_limits limits;
static bool looked, known;

void bound_forget(void)
{
	looked = false;
}

/* A file that cannot be understood is said once. */
static void look(void)
{
	looked = true;
	if (ferry_limits_load(&limits, &known))
		ferry_log(FERRY_LOG_WARN, "%s; no limits are shown", ferry_last_message());
}

/* ---- rates ---- */

struct rates {
	double d2h, h2d, both; /* GB/s */
};

static double sum(const struct ferry_limits_rates *rates)
{
	return rates->d2h + rates->h2d;
}

/* The least number of GPUs measured together that is at least n; 0 if none is. */
static int measured_gpus(int n)
{
	int least = 0;
	for (int i = 0; i < limits.nwindows; i++) {
		int gpus = limits.windows[i].gpus;
		if (gpus >= n && (!least || gpus < least))
			least = gpus;
	}
	return least;
}

/* The best of each over the windows. */
static struct rates together(int gpus)
{
	struct rates best = {0};
	for (int i = 0; i < limits.nwindows; i++) {
		const struct ferry_limits_window *window = &limits.windows[i];
		if (window->gpus != gpus)
			continue;
		best.d2h = fmax(best.d2h, window->alone.d2h);
		best.h2d = fmax(best.h2d, fmax(window->alone.h2d, window->gather.h2d));
		best.both = fmax(best.both, fmax(sum(&window->both), sum(&window->gather)));
	}
	return best;
}

/* Of the first n GPUs the fastest, or the slowest, at each. */
static struct rates one_of(int n, bool fastest)
{
	struct rates found = {0};
	double (*pick)(double, double) = fastest ? fmax : fmin;
	for (int i = 0; i < n && i < limits.ngpus; i++) {
		const struct ferry_limits_gpu *gpu = &limits.gpus[i];
		struct rates rates = {gpu->alone.d2h, gpu->alone.h2d, sum(&gpu->both)};
		found.d2h = i ? pick(found.d2h, rates.d2h) : rates.d2h;
		found.h2d = i ? pick(found.h2d, rates.h2d) : rates.h2d;
		found.both = i ? pick(found.both, rates.both) : rates.both;
	}
	return found;
}

/* ---- the bound ---- */

/* Bytes through all links, and the busiest GPU's; in units of S. */
struct volume {
	double d2h, h2d;
	double link_d2h, link_h2d;
	bool split; /* link_d2h and link_h2d are not the same GPU's */
};

static bool volume_of(enum ferry_collective collective, double n, struct volume *volume)
{
	const double others = (n - 1) / n;
	const struct volume volumes[] = {
		[FERRY_ALLREDUCE] = {n, n, 1, 1, false},
		[FERRY_ALLGATHER] = {1, n - 1, 1 / n, others, false},
		[FERRY_REDUCESCATTER] = {n, 1, 1, 1 / n, false},
		[FERRY_BROADCAST] = {1, n - 1, 1, 1, true},
		[FERRY_REDUCE_TO_ROOT] = {n, 1, 1, 1, false},
		[FERRY_GATHER] = {others, others, 1 / n, others, true},
		[FERRY_SCATTER] = {others, others, others, 1 / n, true},
		[FERRY_ALLTOALL] = {n - 1, n - 1, others, others, false},
		[FERRY_SENDRECV] = {n, n, 1, 1, false},
	};
	_Static_assert(sizeof volumes / sizeof *volumes == FERRY_NUM_COLLECTIVES, "each collective has its volume");
	*volume = volumes[collective];
	return volume->d2h > 0; /* alltoallv: depends on how uneven it is */
}

/* Nanoseconds that so many bytes take at rates of a group, or of one link; a rate that was not measured bounds nothing.
 */
static double flow_ns(double d2h, double h2d, bool at_once, const struct rates *rates)
{
	double ns = fmax(rates->d2h > 0 ? d2h / rates->d2h : 0, rates->h2d > 0 ? h2d / rates->h2d : 0);
	return at_once && rates->both > 0 ? fmax(ns, (d2h + h2d) / rates->both) : ns;
}

double bound_algbw(enum ferry_collective collective, int nranks, uint64_t bytes)
{
	struct volume volume;
	if (!looked)
		look();
	int gpus = known && nranks > 1 ? measured_gpus(nranks) : 0;
	if (!gpus || !bytes || !volume_of(collective, nranks, &volume))
		return 0;
	struct rates all = together(gpus), link = one_of(nranks, ferry_collective_has_root(collective));
	double size = (double)bytes;
	double flow = fmax(flow_ns(volume.d2h * size, volume.h2d * size, true, &all),
	                   flow_ns(volume.link_d2h * size, volume.link_h2d * size, !volume.split, &link));
	double fixed_us = limits.flags.round_trip_us + limits.copy.d2h_overhead_us + limits.copy.h2d_overhead_us;
	return flow > 0 ? size / (flow + fixed_us * 1e3) : 0;
}
