/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/table.h"

#include "bench/command/record.h"

#include <stdio.h>
#include <unistd.h>

/*
 * Alone, Ferry has nccl-tests' columns: the halves of a row, out of place and in place, side by side. Beside another
 * library each half has a line, which names the place, so that a line fits 100 columns; type and operation, which all
 * rows share, are in the head then.
 */
#define HALF_WIDTH 36

static bool side_by_side(const struct perf_run *run)
{
	return !run->peers.name;
}

static bool progress_shown;
static double progress_at;

void perf_progress(const struct perf_run *run, uint64_t bytes, const char *what, uint32_t done, uint32_t all)
{
	bool terminal = isatty(STDERR_FILENO);
	double now = sample_now_us(), pause = terminal ? 2e5 : 1e7;
	if (run->rank.rank || (progress_at && now - progress_at < pause))
		return;
	if (!progress_at) { /* the first row has just begun: no progress line is needed yet */
		progress_at = now;
		return;
	}
	progress_at = now;
	progress_shown = terminal;
	fprintf(stderr, terminal ? "\r%12llu bytes: %u of %u %s " : "ferry-perf: %llu bytes: %u of %u %s\n",
	        (unsigned long long)bytes, done, all, what);
	fflush(stderr);
}

static void clear_progress(void)
{
	if (progress_shown)
		fprintf(stderr, "\r%56s\r", "");
	progress_shown = false;
}

static void print_columns(const struct perf_run *run, bool units)
{
	printf("%s", units ? "      (us)  (%) (GB/s) (GB/s)       " : "      time   +-  algbw  busbw #wrong");
	if (run->peers.mpi)
		printf("%s", units ? "      (us)       " : "       mpi  ratio");
	if (run->peers.nccl)
		printf("%s%18s", units ? "      (us) (GB/s)       " : "      nccl  algbw  ratio",
		       units ? "" : " its setting      ");
}

static void print_legend(const struct perf_run *run)
{
	const struct peers *peers = &run->peers;
	int version = peers->version;
	if (run->options->pause_us)
		printf("# a sample is one call, after %u ms in which the callers compute\n",
		       run->options->pause_us / 1000);
	else
		printf("# a sample is as many calls one after another as take about %d ms, after others that are not "
		       "timed\n",
		       run->rank.buffers.cuda ? 4 : 10);
	if (peers->mpi)
		printf("# mpi: the same work on the same buffers, in turns with Ferry; ratio = its time / Ferry's\n");
	if (peers->nccl)
		printf("# NCCL %d.%d.%d, the best of %u setting%s: the same work on the same buffers, in turns with "
		       "Ferry;\n# ratio = its time / Ferry's\n",
		       version / 10000, version / 100 % 100, version % 100, peers->count,
		       peers->count == 1 ? "" : "s");
}

/* What stands before a half. */
static void print_lead(const struct perf_run *run, const struct perf_row *row)
{
	const struct perf_options *options = run->options;
	if (side_by_side(run))
		printf("%13llu %12llu %7s %9s ", (unsigned long long)row->bytes, (unsigned long long)row->count,
		       ferry_type_name(options->type), perf_op_name(options));
	else
		printf("%12llu %3s", (unsigned long long)row->bytes, row->in_place ? "in" : "out");
}

static void print_lead_names(const struct perf_run *run, bool units)
{
	if (side_by_side(run))
		printf("#%12s %12s %7s %9s ", units ? "(B)" : "size", units ? "(elements)" : "count",
		       units ? "" : "type", units ? "" : "redop");
	else
		printf("#%11s %3s", units ? "(B)" : "size", "");
}

void perf_print_head(const struct perf_run *run)
{
	const struct perf_options *options = run->options;
	const struct bench_rank *rank = &run->rank;
	if (rank->rank)
		return;
	printf("# ferry-perf %s: %d rank%s, %d domain%s", ferry_collective_name(options->collective), rank->nranks,
	       rank->nranks == 1 ? "" : "s", rank->ndomains, rank->ndomains == 1 ? "" : "s");
	if (!side_by_side(run))
		printf("; %s, %s; out of place and in place", ferry_type_name(options->type), perf_op_name(options));
	printf("\n# times are medians over samples of the slowest rank, +- half the quartile range\n");
	print_legend(run);
	bool two_halves = side_by_side(run) && ferry_trial_can_be_in_place(options->collective);
	if (side_by_side(run))
		printf("#%12s %12s %7s %9s %*s%s%*s\n", "", "", "", "", HALF_WIDTH, "out of place",
		       two_halves ? "  " : "", two_halves ? HALF_WIDTH : 0, two_halves ? "in place" : "");
	for (int units = 0; units <= 1; units++) {
		print_lead_names(run, units);
		for (int i = 0; i <= two_halves; i++) {
			printf("%s", i ? "  " : "");
			print_columns(run, units);
		}
		printf("\n");
	}
	record_flush();
}

static void print_nccl(const struct perf_run *run, const struct perf_row *row)
{
	double us = perf_best_us(row);
	if (row->best < 0)
		printf(" %9s %6s %6s %-17s", "-", "-", "-", "refused");
	else
		printf(" %9.1f %6.2f %6.2f %-17s", us, (double)row->bytes / us / 1e3, us / row->us.median,
		       run->peers.settings[row->best].brief);
}

static void print_half(const struct perf_run *run, const struct perf_row *row)
{
	char wrong[24] = "N/A";
	double spread = (row->us.high - row->us.low) / 2 / row->us.median * 100;
	if (row->wrong >= 0)
		snprintf(wrong, sizeof wrong, "%lld", row->wrong);
	printf(" %9.1f %4.0f %6.2f %6.2f %6s", row->us.median, spread, row->algbw, row->busbw, wrong);
	if (run->peers.mpi)
		printf(" %9.1f %6.2f", perf_best_us(row), perf_best_us(row) / row->us.median);
	if (run->peers.nccl)
		print_nccl(run, row);
}

void perf_print_refusals(const struct perf_run *run)
{
	for (unsigned i = 0; !run->rank.rank && i < run->peers.count; i++)
		if (!peers_runs(&run->peers, i))
			printf("# NCCL with %s: unsupported: %s\n", run->peers.settings[i].name,
			       run->peers.settings[i].refused);
}

void perf_print_rows(const struct perf_run *run, const struct perf_row *out_of_place, const struct perf_row *in_place)
{
	if (run->rank.rank)
		return;
	clear_progress();
	print_lead(run, out_of_place);
	print_half(run, out_of_place);
	if (in_place) {
		printf(side_by_side(run) ? "  " : "\n");
		if (!side_by_side(run))
			print_lead(run, in_place);
		print_half(run, in_place);
	}
	printf("\n");
	record_flush();
}
