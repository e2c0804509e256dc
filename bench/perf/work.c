/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/work.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ---- */

size_t perf_room(const struct perf_options *options, int nranks)
{
	return options->most + (size_t)nranks * 4096;
}

/* The smallest block of a rank, in elements. nccl-tests keeps those of most divided collectives aligned to 16 bytes. */
static size_t grain(const struct perf_options *options)
{
	bool rooted = options->collective == FERRY_GATHER || options->collective == FERRY_SCATTER;
	return ferry_collective_has_blocks(options->collective) && !rooted ? 16 / ferry_type_size(options->type) : 1;
}

/* Elements as the API counts them. */
static size_t count_of(const struct perf_options *options, uint64_t bytes, size_t nranks)
{
	size_t whole = bytes / ferry_type_size(options->type);
	return (ferry_collective_has_blocks(options->collective) ? whole / nranks : whole) & ~(grain(options) - 1);
}

uint64_t perf_work_least(const struct perf_options *options, int nranks)
{
	size_t blocks = ferry_collective_has_blocks(options->collective) ? (size_t)nranks : 1;
	return grain(options) * ferry_type_size(options->type) * blocks;
}

uint64_t perf_work_bytes(const struct ferry_trial *trial)
{
	size_t element = ferry_type_size(trial->type), sent = 0, n = (size_t)trial->nranks;
	struct ferry_trial_counts counts;
	if (trial->collective != FERRY_ALLTOALLV || trial->skew)
		return trial->count * element * (ferry_collective_has_blocks(trial->collective) ? n : 1);
	for (int rank = 0; rank < trial->nranks; rank++) {
		ferry_trial_counts(trial, rank, &counts);
		for (size_t peer = 0; peer < n; peer++)
			sent += counts.sendcounts[peer];
	}
	return sent * element / n;
}

double perf_bus_factor(enum ferry_collective collective, int nranks)
{
	double n = nranks;
	if (collective == FERRY_ALLREDUCE)
		return 2 * (n - 1) / n;
	return ferry_collective_has_blocks(collective) ? (n - 1) / n : 1;
}

struct ferry_trial perf_trial(const struct perf_options *options, uint64_t bytes, bool in_place, int nranks,
                              int ndomains)
{
	return (struct ferry_trial){.collective = options->collective, .type = options->type, .op = options->op,
		.count = count_of(options, bytes, (size_t)nranks), .root = options->root, .nranks = nranks,
		.skew = options->skew, .ndomains = (unsigned)ndomains, .in_place = in_place, .seed = bytes};
}

void perf_work_describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct ferry_trial_call *work)
{
	const struct bench_rank *rank = &run->rank;
	work->trial = perf_trial(run->options, bytes, in_place, rank->nranks, rank->ndomains);
	work->rank = rank->rank;
	work->send = rank->buffers.send;
	work->receive = rank->buffers.receive;
	ferry_trial_place(&work->trial, rank->rank, &work->send, &work->receive);
	ferry_trial_counts(&work->trial, rank->rank, &work->counts);
}

/* ---- the call ---- */

static bool failed(const struct perf_run *run, ferryResult_t result)
{
	const char *file = run->options->program_file;
	fprintf(stderr, "ferry-perf: rank %d: %s: %s: %s\n", run->rank.rank, file ? file : "call",
	        ferryGetErrorString(result), ferryGetLastError(run->rank.comm));
	return false;
}

bool perf_work_run(struct perf_run *run, const struct ferry_trial_call *work, uint32_t calls, double *us)
{
	const struct ferry_trial *trial = &work->trial;
	const char *program = run->options->program, *send = work->send;
	char *receive = work->receive;
	struct bench_buffers *buffers = &run->rank.buffers;
	ferryComm_t comm = run->rank.comm;
	ferryStream_t stream = buffers->stream;
	double before = sample_now_us();
	ferryResult_t error = ferrySuccess, result = ferrySuccess;
	bool waited = true;
	for (uint32_t i = 0; i < calls && waited; i++) {
		result = program ? ferryRunProgram(program, send, receive, trial->count, trial->type, run->op, comm,
		                                   stream)
		                 : ferry_trial_start(trial, work->rank, send, receive, run->op, comm, stream);
		if (result)
			return failed(run, result);
		if (!buffers->cuda || i + 1 == calls)
			waited = bench_buffers_wait(buffers);
	}
	*us = (sample_now_us() - before) / calls;
	/* A CUDA stream knows nothing of a call that failed in it: the communicator does. */
	if ((result = ferryCommGetAsyncError(comm, &error)) || (result = error))
		return failed(run, result);
	return waited;
}

/* ---- the check ---- */

/* Host memory that holds what the two buffers hold: on a host device they themselves. */
struct mirror {
	char *send, *receive;
};

static bool open_mirror(const struct bench_rank *rank, struct mirror *mirror)
{
	*mirror = (struct mirror){rank->buffers.send, rank->buffers.receive};
	if (!rank->buffers.cuda)
		return true;
	*mirror = (struct mirror){malloc(rank->buffers.room), malloc(rank->buffers.room)};
	if (mirror->send && mirror->receive)
		return true;
	fprintf(stderr, "ferry-perf: rank %d: no host memory to check buffers of %zu bytes; -c 0 does without\n",
	        rank->rank, rank->buffers.room);
	return false;
}

/* The place in host memory of a pointer into the buffers. */
static char *mirrored(const struct bench_buffers *buffers, const struct mirror *mirror, const char *pointer)
{
	uintptr_t at = (uintptr_t)pointer, send = (uintptr_t)buffers->send, receive = (uintptr_t)buffers->receive;
	if (!pointer)
		return NULL;
	return at >= send && at - send < buffers->room ? mirror->send + (at - send) : mirror->receive + (at - receive);
}

static bool check_mirrored(struct perf_run *run, struct ferry_trial_call *work, const struct mirror *mirror,
                           double *wrong)
{
	struct ferry_trial *trial = &work->trial;
	struct bench_buffers *buffers = &run->rank.buffers;
	int rank = work->rank;
	size_t size = ferry_type_size(trial->type), room = ferry_trial_room(trial, rank) * size;
	size_t sends = ferry_trial_sends(trial, rank) * size;
	double us;
	memset(mirror->receive, 0x5a, room);
	if (!ferry_trial_open(trial)) {
		fprintf(stderr, "ferry-perf: no memory to check %zu elements\n", trial->count);
		return false;
	}
	ferry_trial_fill(trial, rank, mirrored(buffers, mirror, work->send));
	if (work->send && !trial->in_place && !bench_buffers_copy(buffers, buffers->send, mirror->send, sends))
		return false;
	if (!bench_buffers_copy(buffers, buffers->receive, mirror->receive, room) ||
	    !perf_work_run(run, work, 1, &us) || !bench_buffers_copy(buffers, mirror->receive, buffers->receive, room))
		return false;
	if (work->receive)
		*wrong = (double)ferry_trial_wrong(trial, rank, mirrored(buffers, mirror, work->receive), 0x5a);
	/* Timed calls in place feed on their own results; zeros stay zeros, others would run into infinities or
	 * subnormals. */
	return !trial->in_place || !ferry_collective_reduces(trial->collective) ||
	       bench_buffers_zero(buffers, buffers->receive, room);
}

bool perf_work_check(struct perf_run *run, struct ferry_trial_call *work, long long *wrong)
{
	struct mirror mirror;
	double total = 0;
	bool fine = open_mirror(&run->rank, &mirror) && check_mirrored(run, work, &mirror, &total);
	ferry_trial_close(&work->trial);
	if (run->rank.buffers.cuda) {
		free(mirror.send);
		free(mirror.receive);
	}
	fine = fine && bench_rank_over(&run->rank, &total, 1, ferrySum);
	*wrong = (long long)total;
	return fine;
}
