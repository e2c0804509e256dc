/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf_work.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- shapes ---- */

size_t perf_room(const struct perf_options *options, int nranks)
{
	return options->most + (size_t)nranks * 4096;
}

static bool divided(enum ferry_collective collective)
{
	return collective != FERRY_ALLREDUCE && collective != FERRY_BROADCAST && collective != FERRY_REDUCE_TO_ROOT &&
	       collective != FERRY_SENDRECV;
}

/* The smallest block of a rank, in elements. nccl-tests keeps those of most divided collectives aligned to 16 bytes. */
static size_t grain(const struct perf_options *options)
{
	bool rooted = options->collective == FERRY_GATHER || options->collective == FERRY_SCATTER;
	return divided(options->collective) && !rooted ? 16 / ferry_type_size(options->type) : 1;
}

/* Elements as the API counts them. */
static size_t count_of(const struct perf_options *options, uint64_t bytes, size_t nranks)
{
	size_t whole = bytes / ferry_type_size(options->type);
	return (divided(options->collective) ? whole / nranks : whole) & ~(grain(options) - 1);
}

uint64_t perf_work_least(const struct perf_options *options, int nranks)
{
	return grain(options) * ferry_type_size(options->type) * (divided(options->collective) ? (size_t)nranks : 1);
}

uint64_t perf_work_bytes(const struct ferry_trial *trial)
{
	size_t element = ferry_type_size(trial->type), sent = 0, n = (size_t)trial->nranks;
	struct ferry_trial_counts counts;
	if (trial->collective != FERRY_ALLTOALLV)
		return trial->count * element * (divided(trial->collective) ? n : 1);
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
	return divided(collective) ? (n - 1) / n : 1;
}

void perf_work_describe(const struct perf_run *run, uint64_t bytes, bool in_place, struct perf_work *work)
{
	const struct perf_options *options = run->options;
	work->trial = (struct ferry_trial){.collective = options->collective,
	                                   .type = options->type,
	                                   .op = options->op,
	                                   .count = count_of(options, bytes, (size_t)run->nranks),
	                                   .root = options->root,
	                                   .nranks = run->nranks,
	                                   .ndomains = (unsigned)run->ndomains,
	                                   .in_place = in_place,
	                                   .seed = bytes};
	work->send = run->send;
	work->receive = run->receive;
	ferry_trial_place(&work->trial, run->rank, &work->send, &work->receive);
	ferry_trial_counts(&work->trial, run->rank, &work->counts);
	work->call = (struct perf_call){.collective = options->collective,
	                                .send = work->send,
	                                .receive = work->receive,
	                                .count = work->trial.count,
	                                .sendcounts = work->counts.sendcounts,
	                                .senddispls = work->counts.senddispls,
	                                .recvcounts = work->counts.recvcounts,
	                                .recvdispls = work->counts.recvdispls,
	                                .type = options->type,
	                                .op = options->op,
	                                .root = options->root,
	                                .rank = run->rank,
	                                .nranks = run->nranks};
}

const char *perf_peer_refuses(const struct perf_run *run)
{
	struct perf_work work;
	perf_work_describe(run, run->options->most, false, &work);
	if (perf_work_bytes(&work.trial) > INT_MAX)
		return "its counts are 32-bit: -e 2047M at most";
	return run->peer->supports(&work.call);
}

/* ---- the call ---- */

static bool failed(const struct perf_run *run, ferryResult_t result)
{
	const char *file = run->options->program_file;
	fprintf(stderr, "ferry-perf: rank %d: %s: %s: %s\n", run->rank, file ? file : "call", ferryGetErrorString(result),
	        ferryGetLastError(run->comm));
	return false;
}

static ferryResult_t start(const struct perf_run *run, const struct perf_work *work)
{
	const struct ferry_trial *trial = &work->trial;
	if (run->options->program)
		return ferryRunProgram(run->options->program, work->send, work->receive, trial->count, trial->type, run->op,
		                       run->comm, run->memory.stream);
	return ferry_trial_start(trial, run->rank, work->send, work->receive, run->op, run->comm, run->memory.stream);
}

bool perf_work_run(struct perf_run *run, const struct perf_work *work, uint32_t calls, double *us)
{
	double before = perf_now_us();
	ferryResult_t error = ferrySuccess, result;
	for (uint32_t i = 0; i < calls; i++)
		if ((result = start(run, work)))
			return failed(run, result);
	bool waited = run->memory.synchronize(&run->memory);
	*us = (perf_now_us() - before) / calls;
	/* A CUDA stream knows nothing of a call that failed in it: the communicator does. */
	if ((result = ferryCommGetAsyncError(run->comm, &error)) || (result = error))
		return failed(run, result);
	return waited;
}

/* ---- the check ---- */

/* Host memory that holds what the two buffers hold: on a host device they themselves. */
struct mirror {
	char *send, *receive;
};

static bool open_mirror(const struct perf_run *run, struct mirror *mirror)
{
	*mirror = (struct mirror){run->send, run->receive};
	if (strcmp(run->memory.kind, "cuda"))
		return true;
	mirror->send = malloc(run->room);
	mirror->receive = malloc(run->room);
	if (mirror->send && mirror->receive)
		return true;
	fprintf(stderr, "ferry-perf: rank %d: no host memory to check buffers of %zu bytes; -c 0 does without\n", run->rank,
	        run->room);
	return false;
}

static void close_mirror(const struct perf_run *run, struct mirror *mirror)
{
	if (mirror->send != run->send)
		free(mirror->send);
	if (mirror->receive != run->receive)
		free(mirror->receive);
}

/* The place in host memory of a pointer into the buffers. */
static char *mirrored(const struct perf_run *run, const struct mirror *mirror, char *pointer)
{
	uintptr_t at = (uintptr_t)pointer, send = (uintptr_t)run->send, receive = (uintptr_t)run->receive;
	if (!pointer)
		return NULL;
	return at >= send && at - send < run->room ? mirror->send + (at - send) : mirror->receive + (at - receive);
}

static bool check_mirrored(struct perf_run *run, struct perf_work *work, const struct mirror *mirror, double *wrong)
{
	struct ferry_trial *trial = &work->trial;
	struct perf_memory *memory = &run->memory;
	size_t size = ferry_type_size(trial->type), room = ferry_trial_room(trial, run->rank) * size;
	size_t sends = ferry_trial_sends(trial, run->rank) * size;
	double us;
	memset(mirror->receive, 0x5a, room);
	if (!ferry_trial_open(trial)) {
		fprintf(stderr, "ferry-perf: no memory to check %zu elements\n", trial->count);
		return false;
	}
	ferry_trial_fill(trial, run->rank, mirrored(run, mirror, work->send));
	if (work->send && !trial->in_place && !memory->upload(memory, run->send, mirror->send, sends))
		return false;
	if (!memory->upload(memory, run->receive, mirror->receive, room) || !perf_work_run(run, work, 1, &us) ||
	    !memory->download(memory, mirror->receive, run->receive, room))
		return false;
	if (work->receive)
		*wrong = (double)ferry_trial_wrong(trial, run->rank, mirrored(run, mirror, work->receive), 0x5a);
	/* Timed calls in place feed on their own results; zeros stay zeros, where others would run into infinities or
	 * subnormals. */
	return !trial->in_place || !ferry_collective_reduces(trial->collective) || memory->zero(memory, run->receive, room);
}

bool perf_work_check(struct perf_run *run, struct perf_work *work, long long *wrong)
{
	struct mirror mirror;
	double total = 0;
	bool fine = open_mirror(run, &mirror) && check_mirrored(run, work, &mirror, &total);
	ferry_trial_close(&work->trial);
	close_mirror(run, &mirror);
	fine = fine && perf_over_ranks(run, &total, 1, ferrySum);
	*wrong = (long long)total;
	return fine;
}
