/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/job.h"

#include "bench/command/record.h"
#include "bench/peers/peers.h"
#include "bench/perf/load.h"
#include "bench/perf/measure.h"
#include "bench/perf/rows.h"
#include "bench/perf/table.h"
#include "bench/perf/work.h"
#include "ipc/environment.h"

#include <sched.h>
#include <stdio.h>

#define ROOM_WORTH_TELLING ((size_t)256 << 20) /* its pages take seconds */
#define MOST_ROWS          128

/* The largest size is measured even where the steps do not hit it. 0: there is no next one. */
static uint64_t next_size(const struct perf_options *options, uint64_t bytes)
{
	if (bytes == options->most)
		return 0;
	return bytes > options->most / options->factor ? options->most : bytes * options->factor;
}

static bool measure_all(struct perf_run *run)
{
	const struct perf_options *parsed = run->options;
	struct perf_row rows[MOST_ROWS];
	size_t count = 0;
	long long wrong = 0;
	bool in_place = ferry_trial_can_be_in_place(parsed->collective), first = run->rank.rank == 0;
	double busbw = 0;
	perf_print_head(run);
	for (uint64_t bytes = parsed->least; bytes && count + 2 <= MOST_ROWS; bytes = next_size(parsed, bytes)) {
		struct perf_row *row = &rows[count];
		if (!perf_measure(run, bytes, false, row) || (in_place && !perf_measure(run, bytes, true, row + 1)))
			return false;
		perf_print_rows(run, row, in_place ? row + 1 : NULL);
		for (int i = 0; i <= in_place; i++) {
			wrong += row[i].wrong > 0;
			busbw += row[i].busbw;
		}
		count += 1 + in_place;
		if (first && parsed->json) /* for a run that is broken off; the last writing decides */
			perf_write_rows(run, rows, count, false);
	}
	perf_print_refusals(run);
	if (first && parsed->skew)
		perf_print_load(run);
	if (first)
		printf("# average bus bandwidth %.3f GB/s; %s\n", busbw / (double)count,
		       !parsed->check ? "results not checked"
		       : wrong        ? "WRONG RESULTS"
		                      : "all results right");
	if (first && parsed->json && !perf_write_rows(run, rows, count, true))
		return false;
	return record_printed("ferry-perf") && !wrong;
}

/* Why the ranks, as they are, cannot be measured; NULL if they can. */
static const char *refuse(const struct perf_run *run)
{
	static char text[96];
	const struct perf_options *asked = run->options;
	const struct bench_rank *rank = &run->rank;
	if ((asked->ranks && asked->ranks != rank->nranks) || (asked->domains && asked->domains != rank->ndomains)) {
		snprintf(text, sizeof text,
		         "--ranks and --domains are for where no launcher is: one has started %d ranks in %d domains",
		         rank->nranks, rank->ndomains);
		return text;
	}
	if (run->peers.mpi && rank->buffers.cuda)
		return "--vs mpi compares in host memory: --device host";
	if (run->peers.mpi && (run->peers.rank != rank->rank || run->peers.nranks != rank->nranks))
		return "--vs mpi: MPI does not have the ranks that Ferry has; start it with ferryrun without --fork, "
		       "or with mpiexec";
	return NULL;
}

static bool make_reduction(struct perf_run *run)
{
	struct ferry_trial trial = {.type = run->options->type};
	uint64_t scalar = ferry_trial_scalar(&trial, run->rank.rank);
	run->op = run->options->op;
	if (run->op < ferryNumOps ||
	    !ferryRedOpCreatePreMulSum(&run->op, &scalar, trial.type, ferryScalarHostImmediate, run->rank.comm))
		return true;
	fprintf(stderr, "ferry-perf: %s\n", ferryGetLastError(NULL));
	return false;
}

static bool take_buffers(struct perf_run *run)
{
	struct bench_rank *rank = &run->rank;
	size_t room = perf_room(run->options, rank->nranks);
	if (!rank->rank && room >= ROOM_WORTH_TELLING)
		fprintf(stderr, "ferry-perf: preparing two buffers of %zu MiB per rank\n", room >> 20);
	double without = !bench_buffers_take(&rank->buffers, room);
	if (!bench_rank_over(rank, &without, 1, ferrySum))
		return false;
	if (without > 0 && !rank->rank)
		fprintf(stderr,
		        "ferry-perf: no memory for two buffers of %zu MiB on %.0f of %d ranks: lower -e (%llu)\n",
		        room >> 20, without, rank->nranks, (unsigned long long)run->options->most);
	return !(without > 0);
}

/*
 * Warns if there are more ranks and routers than CPUs: then the scheduler is timed, too. The CPUs are those of all
 * ranks, as launchers may bind each to its own. Routers count if no rank is bound, since they have the same CPUs then.
 * A machine with more CPUs than fit the set has enough.
 */
static bool warn_of_crowding(struct perf_run *run)
{
	static double ranks_on[CPU_SETSIZE];
	struct bench_rank *rank = &run->rank;
	cpu_set_t mine;
	int count = 0, routers = rank->ndomains;
	bool known = !sched_getaffinity(0, sizeof mine, &mine), bound = false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		ranks_on[cpu] = !known || CPU_ISSET(cpu, &mine);
	if (!bench_rank_over(rank, ranks_on, CPU_SETSIZE, ferrySum))
		return false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		count += ranks_on[cpu] > 0;
		bound |= ranks_on[cpu] > 0 && ranks_on[cpu] < rank->nranks;
	}
	if (rank->rank || rank->nranks + (bound ? 0 : routers) <= count)
		return true;
	fprintf(stderr,
	        "ferry-perf: %d rank%s and %d router%s on %d CPU%s: they take turns, so the times are the scheduler's "
	        "as well\n",
	        rank->nranks, rank->nranks == 1 ? "" : "s", routers, routers == 1 ? "" : "s", count,
	        count == 1 ? "" : "s");
	return true;
}

static bool measure(struct perf_run *run)
{
	enum nccl_sweep sweep = run->options->sweep ? NCCL_SWEEP_HYLINK : NCCL_SWEEP_NONE;
	const char *refused = refuse(run);
	if (refused && !run->rank.rank)
		fprintf(stderr, "ferry-perf: %s\n", refused);
	return !refused && warn_of_crowding(run) && make_reduction(run) && take_buffers(run) &&
	       peers_open(&run->peers, &run->rank, run->options->collective, sweep) && measure_all(run);
}

int perf_job(const struct perf_options *options, int local_rank)
{
	struct perf_run run = {.options = options};
	struct bench_rank *rank = &run.rank;
	if (!record_print_beside("ferry-perf", options->json) || !peers_find(&run.peers, options->peer) ||
	    !peers_start(&run.peers))
		return 1;
	/* MPI gets host memory: few are built for more. */
	const char *kind = run.peers.mpi && !ferry_env("FERRY_DEVICE") ? "host" : bench_buffers_kind();
	if (!bench_buffers_open(&rank->buffers, kind, local_rank))
		return 1;
	bool fine = bench_rank_join(rank) && measure(&run);
	fine = bench_rank_leave(rank) && fine;
	peers_close(&run.peers);
	bench_buffers_close(&rank->buffers);
	return fine ? 0 : 1;
}
