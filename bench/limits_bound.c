/* SPDX-License-Identifier: Apache-2.0 */
/* From the measured limits to the rate that a collective over host memory cannot exceed; limits.h derives it. */
#include "bench/limits.h"

#include "ipc/error.h"
#include "rank-lib/program/limits.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

static cJSON *loaded;
static bool looked;

/* A file that cannot be understood is said once. */
static cJSON *load(void)
{
	cJSON *limits;
	if (ferry_limits_load(&limits))
		ferry_log(FERRY_LOG_WARN, "%s; no limits are shown", ferry_last_message());
	return limits;
}

void perf_limits_forget(void)
{
	cJSON_Delete(loaded);
	loaded = NULL;
	looked = false;
}

/* 0 where the file has no such number. */
static double number(const cJSON *object, const char *name)
{
	const cJSON *item = cJSON_GetObjectItem(object, name);
	return cJSON_IsNumber(item) && item->valuedouble > 0 ? item->valuedouble : 0;
}

static double larger(double a, double b)
{
	return a > b ? a : b;
}

/* ---- rates ---- */

struct rates {
	double d2h, h2d, both; /* GB/s */
};

/* The least number of GPUs measured together that is at least n; 0 if none is. */
static int measured_gpus(int n)
{
	int least = 0;
	const cJSON *row;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(loaded, "windows"))
	{
		int gpus = (int)number(row, "gpus");
		if (gpus >= n && (!least || gpus < least))
			least = gpus;
	}
	return least;
}

/* The best of each over the windows. */
static struct rates together(int gpus)
{
	struct rates best = {0};
	const cJSON *row;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(loaded, "windows"))
	{
		const cJSON *both = cJSON_GetObjectItem(row, "both"), *gather = cJSON_GetObjectItem(row, "gather");
		if ((int)number(row, "gpus") != gpus)
			continue;
		best.d2h = larger(best.d2h, number(row, "d2h"));
		best.h2d = larger(best.h2d, larger(number(row, "h2d"), number(gather, "h2d")));
		best.both = larger(best.both, number(both, "d2h") + number(both, "h2d"));
		best.both = larger(best.both, number(gather, "d2h") + number(gather, "h2d"));
	}
	return best;
}

/* Of the first n GPUs the fastest, or the slowest, at each. */
static struct rates one_of(int n, bool fastest)
{
	struct rates found = {0};
	const cJSON *row;
	int i = 0;
	cJSON_ArrayForEach(row, cJSON_GetObjectItem(loaded, "gpus"))
	{
		const cJSON *both = cJSON_GetObjectItem(row, "both");
		struct rates gpu = {number(row, "d2h"), number(row, "h2d"), number(both, "d2h") + number(both, "h2d")};
		if (i++ >= n)
			break;
		if (i == 1 || (gpu.d2h > found.d2h) == fastest)
			found.d2h = gpu.d2h;
		if (i == 1 || (gpu.h2d > found.h2d) == fastest)
			found.h2d = gpu.h2d;
		if (i == 1 || (gpu.both > found.both) == fastest)
			found.both = gpu.both;
	}
	return found;
}

/* ---- the bound ---- */

/* Bytes through all links, and the busiest GPU's; in units of S. */
struct volume {
	double up, down;
	double link_up, link_down;
	bool split; /* link_up and link_down are not the same GPU's */
};

static bool volume_of(enum ferry_collective collective, double n, struct volume *volume)
{
	double others = (n - 1) / n;
	switch (collective) {
	case FERRY_ALLREDUCE:
	case FERRY_SENDRECV:
		*volume = (struct volume){n, n, 1, 1, false};
		return true;
	case FERRY_ALLGATHER:
		*volume = (struct volume){1, n - 1, 1 / n, others, false};
		return true;
	case FERRY_REDUCESCATTER:
		*volume = (struct volume){n, 1, 1, 1 / n, false};
		return true;
	case FERRY_BROADCAST:
		*volume = (struct volume){1, n - 1, 1, 1, true};
		return true;
	case FERRY_REDUCE_TO_ROOT:
		*volume = (struct volume){n, 1, 1, 1, false};
		return true;
	case FERRY_GATHER:
		*volume = (struct volume){others, others, 1 / n, others, true};
		return true;
	case FERRY_SCATTER:
		*volume = (struct volume){others, others, others, 1 / n, true};
		return true;
	case FERRY_ALLTOALL:
		*volume = (struct volume){n - 1, n - 1, others, others, false};
		return true;
	case FERRY_ALLTOALLV: /* depends on how uneven it is */
	case FERRY_NUM_COLLECTIVES:
		break;
	}
	return false;
}

/* Nanoseconds that so many bytes take at rates of a group, or of one link; a rate that was not measured bounds nothing. */
static double flow_ns(double up, double down, bool at_once, const struct rates *rates)
{
	double ns = rates->d2h > 0 ? up / rates->d2h : 0;
	ns = larger(ns, rates->h2d > 0 ? down / rates->h2d : 0);
	return at_once && rates->both > 0 ? larger(ns, (up + down) / rates->both) : ns;
}

double perf_limit_algbw(enum ferry_collective collective, int nranks, uint64_t bytes)
{
	struct volume volume;
	if (!looked)
		loaded = load();
	looked = true;
	int gpus = loaded && nranks > 1 ? measured_gpus(nranks) : 0;
	if (!gpus || !bytes || !volume_of(collective, nranks, &volume))
		return 0;
	struct rates all = together(gpus), link = one_of(nranks, ferry_collective_has_root(collective));
	const cJSON *copy = cJSON_GetObjectItem(loaded, "copy"), *flags = cJSON_GetObjectItem(loaded, "flags");
	double size = (double)bytes;
	double flow = larger(flow_ns(volume.up * size, volume.down * size, true, &all),
	                     flow_ns(volume.link_up * size, volume.link_down * size, !volume.split, &link));
	double fixed_us = number(flags, "round_trip_us") + number(copy, "d2h_overhead_us") + number(copy, "h2d_overhead_us");
	return flow > 0 ? size / (flow + fixed_us * 1e3) : 0;
}
