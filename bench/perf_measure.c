/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One row: warm-up, a checked call, then timed ones. Before each the ranks meet in a small AllReduce of Ferry's, which sleeps
 * while it waits, so that neither side is timed beside the other's busy waiting. A call's time is that of its slowest rank.
 */
#include "bench/perf.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_ITERATIONS 1000
#define ROW_US 400000.0 /* how long a row's timed calls of one side take, about */

double perf_now_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return x < y ? -1 : x > y;
}

struct perf_timing perf_summarize(double *values, size_t count)
{
	qsort(values, count, sizeof *values, ascending);
	return (struct perf_timing){values[count / 2], values[count / 4], values[count * 3 / 4]};
}

static bool good(ferryResult_t result, const struct perf_run *run, const char *what)
{
	if (result)
		fprintf(stderr, "ferry-perf: rank %d: %s: %s: %s\n", run->rank, what, ferryGetErrorString(result), ferryGetLastError(NULL));
	return result == ferrySuccess;
}

/* Element-wise maximum over the ranks; with one element also a barrier. */
static bool maximum(struct perf_run *run, double *values, size_t count)
{
	return good(ferryAllReduce(values, values, count, ferryFloat64, ferryMax, run->comm, NULL), run, "maximum over ranks") &&
	       good(ferryStreamSynchronize(NULL), run, "maximum over ranks");
}

static ferryResult_t ring(const struct perf_call *call, ferryComm_t comm)
{
	int next = (call->rank + 1) % call->nranks, before = (call->rank + call->nranks - 1) % call->nranks;
	ferryGroupStart();
	ferrySend(call->send, call->count, call->type, next, comm, NULL);
	ferryRecv(call->receive, call->count, call->type, before, comm, NULL);
	return ferryGroupEnd();
}

static ferryResult_t start(const struct perf_run *run, const struct perf_call *call)
{
	ferryComm_t comm = run->comm;
	if (run->options->program)
		return ferryRunProgram(run->options->program, call->send, call->receive, call->count, call->type, call->op, comm, NULL);
	switch (call->collective) {
	case FERRY_ALLREDUCE:
		return ferryAllReduce(call->send, call->receive, call->count, call->type, call->op, comm, NULL);
	case FERRY_ALLGATHER:
		return ferryAllGather(call->send, call->receive, call->count, call->type, comm, NULL);
	case FERRY_REDUCESCATTER:
		return ferryReduceScatter(call->send, call->receive, call->count, call->type, call->op, comm, NULL);
	case FERRY_BROADCAST:
		return ferryBroadcast(call->send, call->receive, call->count, call->type, call->root, comm, NULL);
	case FERRY_REDUCE_TO_ROOT:
		return ferryReduce(call->send, call->receive, call->count, call->type, call->op, call->root, comm, NULL);
	case FERRY_GATHER:
		return ferryGather(call->send, call->receive, call->count, call->type, call->root, comm, NULL);
	case FERRY_SCATTER:
		return ferryScatter(call->send, call->receive, call->count, call->type, call->root, comm, NULL);
	case FERRY_ALLTOALL:
		return ferryAllToAll(call->send, call->receive, call->count, call->type, comm, NULL);
	case FERRY_ALLTOALLV:
		return ferryAllToAllv(call->send, call->sendcounts, call->senddispls, call->receive, call->recvcounts,
		                      call->recvdispls, call->type, comm, NULL);
	default:
		return ring(call, comm);
	}
}

static bool run_ferry(struct perf_run *run, const struct perf_call *call, double *us)
{
	double before = perf_now_us();
	if (!good(start(run, call), run, "call") || !good(ferryStreamSynchronize(NULL), run, "call"))
		return false;
	*us = perf_now_us() - before;
	return true;
}

static void run_peer(const struct perf_run *run, const struct perf_call *call, double *us)
{
	double before = perf_now_us();
	run->peer->run(call);
	*us = perf_now_us() - before;
}

size_t perf_room(const struct perf_options *options, int nranks)
{
	return options->most + (size_t)nranks * 4096;
}

/* Counts as nccl-tests derives them from a size, and the buffers: the size is that of the larger one. */
static void describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct perf_call *call, size_t *counts)
{
	const struct perf_options *options = run->options;
	size_t element = ferry_type_size(options->type), n = (size_t)run->nranks, rank = (size_t)run->rank;
	size_t whole = bytes / element;
	bool divided = options->collective != FERRY_ALLREDUCE && options->collective != FERRY_BROADCAST &&
	               options->collective != FERRY_REDUCE_TO_ROOT && options->collective != FERRY_SENDRECV;
	*call = (struct perf_call){.collective = options->collective,
	                           .send = run->send,
	                           .receive = run->receive,
	                           .count = divided ? whole / n : whole,
	                           .type = options->type,
	                           .op = options->op,
	                           .root = options->root,
	                           .rank = run->rank,
	                           .nranks = run->nranks};
	size_t block = call->count * element, sent = 0, received = 0;
	bool gathers = options->collective == FERRY_ALLGATHER || options->collective == FERRY_GATHER;
	bool scatters = options->collective == FERRY_REDUCESCATTER || options->collective == FERRY_SCATTER;
	bool rooted = options->collective == FERRY_GATHER || options->collective == FERRY_SCATTER;
	bool mine = !rooted || run->rank == options->root;
	if (in_place && gathers)
		call->send = run->receive + (mine ? rank * block : 0);
	else if (in_place && scatters)
		call->receive = run->send + (mine ? rank * block : 0);
	else if (in_place)
		call->send = run->receive;
	for (size_t peer = 0; peer < n; peer++) {
		counts[peer] = counts[2 * n + peer] = call->count * (1 + (rank + peer) % 3) / 3;
		counts[n + peer] = sent;
		counts[3 * n + peer] = received;
		sent += counts[peer];
		received += counts[2 * n + peer];
	}
	call->sendcounts = counts;
	call->senddispls = counts + n;
	call->recvcounts = counts + 2 * n;
	call->recvdispls = counts + 3 * n;
}

static bool check(struct perf_run *run, const struct perf_call *call, long long *wrong)
{
	double us, sum;
	memset(run->receive, 0x5a, run->room);
	perf_fill(call, (char *)call->send);
	if (!run_ferry(run, call, &us))
		return false;
	*wrong = perf_count_wrong(call, call->receive);
	sum = (double)*wrong;
	if (!good(ferryAllReduce(&sum, &sum, 1, ferryFloat64, ferrySum, run->comm, NULL), run, "count of wrong elements") ||
	    !good(ferryStreamSynchronize(NULL), run, "count of wrong elements"))
		return false;
	*wrong = (long long)sum;
	return true;
}

/* Enough calls for a good median, few enough for a row to take about half a second. The same on every rank. */
static bool choose_iterations(struct perf_run *run, const struct perf_call *call, uint32_t *iterations)
{
	double us = 0, slowest = 1;
	for (uint32_t i = 0; i < run->options->warmups; i++) {
		if (!maximum(run, &us, 1) || !run_ferry(run, call, &us))
			return false;
		slowest = us;
		if (run->peer)
			run_peer(run, call, &us);
		slowest = us > slowest ? us : slowest;
	}
	if (!maximum(run, &slowest, 1))
		return false;
	double fit = ROW_US / slowest;
	*iterations = run->options->iterations ? run->options->iterations : fit < 5 ? 5 : fit > 200 ? 200 : (uint32_t)fit;
	return true;
}

bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row)
{
	static double ferry_us[MOST_ITERATIONS], peer_us[MOST_ITERATIONS];
	size_t counts[4 * FERRY_MAX_RANKS];
	struct perf_call call;
	uint32_t iterations;
	double meet = 0;
	describe(run, bytes, in_place, &call, counts);
	*row = (struct perf_row){.bytes = bytes, .count = call.count, .in_place = in_place, .wrong = -1};
	if (run->options->check && !check(run, &call, &row->wrong))
		return false;
	if (!choose_iterations(run, &call, &iterations))
		return false;
	for (uint32_t i = 0; i < iterations; i++) {
		if (!maximum(run, &meet, 1) || !run_ferry(run, &call, &ferry_us[i]))
			return false;
		if (run->peer) {
			if (!maximum(run, &meet, 1))
				return false;
			run_peer(run, &call, &peer_us[i]);
		}
		perf_progress(run, bytes, i + 1, iterations);
	}
	if (!maximum(run, ferry_us, iterations) || (run->peer && !maximum(run, peer_us, iterations)))
		return false;
	row->time = perf_summarize(ferry_us, iterations);
	if (run->peer)
		row->peer_time = perf_summarize(peer_us, iterations);
	double n = run->nranks, factor = (n - 1) / n;
	if (call.collective == FERRY_ALLREDUCE)
		factor *= 2;
	else if (call.collective == FERRY_BROADCAST || call.collective == FERRY_REDUCE_TO_ROOT || call.collective == FERRY_SENDRECV)
		factor = 1;
	row->algbw = (double)bytes / row->time.median_us / 1e3;
	row->busbw = row->algbw * factor;
	return true;
}
