/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-perf: nccl-tests' measurements for Ferry, alone or against MPI or NCCL. Without a launcher it starts the ranks
 * itself, by ferryrun; it reports errors of the command line before that, and once.
 */
#include "bench/command/option.h"
#include "bench/command/sibling.h"
#include "bench/limits/command.h"
#include "bench/peers/peers.h"
#include "bench/perf/job.h"
#include "bench/perf/tune.h"
#include "bench/perf/work.h"
#include "bench/rank/buffers.h"
#include "bench/rank/gpu.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/launcher.h"
#include "ipc/layout.h"
#include "ipc/process.h"
#include "rank-lib/program/program.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>

#define DEFAULT_RANKS 4

/* A rank per GPU. On the host DEFAULT_RANKS, but no more than CPUs, as ranks would take turns; and 2 at least. */
static int default_ranks(void)
{
	struct gpu_facts gpus = {0};
	cpu_set_t cpus;
	if (!strcmp(bench_buffers_kind(), "cuda"))
		gpu_describe(&gpus);
	if (gpus.count > 0 && gpus.count <= FERRY_MAX_RANKS)
		return gpus.count;
	int count = sched_getaffinity(0, sizeof cpus, &cpus) ? DEFAULT_RANKS : CPU_COUNT(&cpus);
	return count < 2 ? 2 : count < DEFAULT_RANKS ? count : DEFAULT_RANKS;
}

/* Without a launcher: become ferryrun with the same arguments. Returns only on failure. */
static int relaunch(const struct perf_options *parsed, int nranks, int argc, char **argv)
{
	char ferryrun[4096], self[4096], ranks[16], domains[16];
	char **command = calloc((size_t)argc + 10, sizeof *command);
	int count = 0;
	if (!command)
		return 1;
	sibling_path(ferryrun, sizeof ferryrun, "ferryrun");
	sibling_path(self, sizeof self, "ferry-perf");
	snprintf(ranks, sizeof ranks, "%d", nranks);
	command[count++] = ferryrun;
	command[count++] = "-n";
	command[count++] = ranks;
	if (parsed->domains) {
		snprintf(domains, sizeof domains, "%d", parsed->domains);
		command[count++] = "--domains";
		command[count++] = domains;
	}
	if (!parsed->peer || strcmp(parsed->peer, "mpi"))
		command[count++] = "--fork";
	command[count++] = "--";
	command[count++] = self;
	memcpy(command + count, argv + 1, (size_t)argc * sizeof *argv);
	execv(ferryrun, command);
	fprintf(stderr, "ferry-perf: cannot run %s: %s\n", ferryrun, strerror(errno));
	free(command);
	return 1;
}

/* The command line as one text, for the record; "" where memory is short. */
static char *join_command(int argc, char **argv)
{
	size_t room = 1, length = 0;
	for (int i = 0; i < argc; i++)
		room += strlen(argv[i]) + 1;
	char *text = calloc(1, room);
	for (int i = 0; text && i < argc; i++)
		length += (size_t)snprintf(text + length, room - length, "%s%s", i ? " " : "", argv[i]);
	return text;
}

static FILE *aloud; /* standard error, while this rank keeps quiet; else NULL */

/*
 * Launchers name the first rank that ends with an error, and end the others. That must be rank 0, which has printed the
 * reason: the others wait.
 */
static void leave_after_rank_0(int code, void *unused)
{
	(void)unused;
	if (aloud && code)
		sleep(1);
}

/* All ranks have the same arguments: rank 0 reports their errors for all. */
static void keep_quiet(void)
{
	struct ferry_launch launch;
	FILE *nowhere;
	if (ferry_launch_read(&launch) || launch.rank <= 0 || !(nowhere = fopen("/dev/null", "we")))
		return;
	on_exit(leave_after_rank_0, NULL);
	aloud = stderr;
	stderr = nowhere;
}

static void speak_again(void)
{
	if (!aloud)
		return;
	fclose(stderr);
	stderr = aloud;
	aloud = NULL;
}

/* Why MPI cannot do the largest row; NULL if it can. */
static const char *mpi_refuses(const struct perf_options *parsed, const struct mpi_peer *mpi, int nranks)
{
	struct ferry_trial trial = perf_trial(parsed, parsed->most, false, nranks, 1);
	return perf_work_bytes(&trial) > INT_MAX ? "its counts are 32-bit: -e 2047M at most" : mpi->supports(&trial);
}

/* A program that computes something else than the check expects would be measured wrongly, or hang. */
static int refuse_another_program(const struct perf_options *parsed, const struct ferry_program *program, int nranks,
                                  uint32_t ndomains)
{
	const char *is = ferry_collective_name(program->collective), *asked = ferry_collective_name(parsed->collective);
	if (program->collective != parsed->collective)
		fprintf(stderr, "ferry-perf: --program %s: it is of %s, not of %s\n", parsed->program_file, is, asked);
	else if (program->nranks != (uint32_t)nranks || program->ndomains != ndomains)
		fprintf(stderr, "ferry-perf: --program %s: it is for %u rank%s in %u domain%s, not for %d in %u\n",
		        parsed->program_file, program->nranks, program->nranks == 1 ? "" : "s", program->ndomains,
		        program->ndomains == 1 ? "" : "s", nranks, ndomains);
	else if (ferry_collective_has_root(program->collective) && program->root != (uint32_t)parsed->root)
		fprintf(stderr, "ferry-perf: --program %s: its root is %u, not %d: --root %u\n", parsed->program_file,
		        program->root, parsed->root, program->root);
	else
		return 0;
	return OPTION_EXIT;
}

static int refuse_program(const struct perf_options *parsed, int nranks)
{
	struct ferry_layout layout;
	struct ferry_program *program = NULL;
	if (!parsed->program)
		return 0;
	ferryResult_t result = ferry_layout_load(&layout);
	uint32_t ndomains = parsed->domains ? (uint32_t)parsed->domains : layout.ndomains;
	const struct ferry_program_defaults defaults = {
	        .collective = FERRY_ALLREDUCE, .nranks = (uint32_t)nranks, .ndomains = ndomains};
	if (!result)
		result = ferry_program_parse(parsed->program_file, parsed->program, strlen(parsed->program), &defaults,
		                             &program);
	if (!result && (result = ferry_program_check(program)))
		ferry_program_free(program);
	if (result) {
		fprintf(stderr, "ferry-perf: --program: %s\n", ferry_last_message());
		return 1;
	}
	int code = refuse_another_program(parsed, program, nranks, ndomains);
	ferry_program_free(program);
	return code;
}

/*
 * Refuses what so many ranks cannot do: 0, or the exit code with a message printed. Called by ranks, and by the process
 * that starts them.
 */
static int refuse_at_start(const struct perf_options *parsed, int nranks)
{
	struct peers peers = {0};
	uint64_t least = perf_work_least(parsed, nranks);
	if (parsed->root >= nranks) {
		fprintf(stderr, "ferry-perf: --root %d: the last of %d ranks is %d\n", parsed->root, nranks,
		        nranks - 1);
		return OPTION_EXIT;
	}
	if (parsed->least < least) {
		fprintf(stderr, "ferry-perf: -b %llu: %s of %s among %d rank%s takes %llu bytes at least\n",
		        (unsigned long long)parsed->least, ferry_collective_name(parsed->collective),
		        ferry_type_name(parsed->type), nranks, nranks == 1 ? "" : "s", (unsigned long long)least);
		return OPTION_EXIT;
	}
	if (!peers_find(&peers, parsed->peer))
		return 1;
	const char *refused = peers.mpi ? mpi_refuses(parsed, peers.mpi, nranks) : NULL;
	if (refused)
		fprintf(stderr, "ferry-perf: --vs mpi: %s\n", refused);
	return refused ? OPTION_EXIT : 0;
}

/*
 * Reports which devices are missing: 1, else 0. Each rank has its own; the process that starts ranks reports for them.
 */
static int refuse_devices(const struct perf_options *parsed, bool starts_ranks)
{
	bool cuda = !strcmp(bench_buffers_kind(), "cuda"), nccl = parsed->peer && !strcmp(parsed->peer, "nccl");
	const char *missing = cuda || nccl ? gpu_missing() : NULL;
	if (nccl && (missing || !cuda)) {
		fprintf(stderr, "ferry-perf: --vs nccl needs a CUDA device: %s\n",
		        missing ? missing : "--device (or FERRY_DEVICE) is not cuda");
		return 1;
	}
	if (!missing || !starts_ranks ||
	    !ferry_env("FERRY_DEVICE")) /* MPI compares in host memory, whatever there is */
		return 0;
	fprintf(stderr, "ferry-perf: --device cuda: %s\n", missing);
	return 1;
}

static int refuse_skew(struct perf_options *parsed, int nranks)
{
	static struct ferry_skew skew;
	char message[256];
	if (!parsed->skew_given)
		return 0;
	if (!ferry_skew_read(parsed->skew_given, nranks, &skew, message, sizeof message)) {
		fprintf(stderr, "ferry-perf: --skew %s\n", message);
		return OPTION_EXIT;
	}
	parsed->skew = &skew;
	return 0;
}

int main(int argc, char **argv)
{
	struct perf_options parsed;
	struct ferry_launch launch;
	if (ferry_descriptors_fill()) {
		fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
		return 1;
	}
	argp_program_version = "ferry-perf 0.1.0";
	argp_err_exit_status = OPTION_EXIT;
	if (argc > 1 && !strcmp(argv[1], "limits"))
		return limits_command(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "tune"))
		return tune_command(argc - 1, argv + 1);
	keep_quiet();
	perf_options_read(&argc, argv, &parsed);
	if (ferry_launch_read(&launch)) {
		fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
		return 1;
	}
	int nranks = launch.rank >= 0 ? launch.size : parsed.ranks ? parsed.ranks : default_ranks();
	int code = refuse_skew(&parsed, nranks);
	if (!code)
		code = refuse_at_start(&parsed, nranks);
	if (!code)
		code = refuse_program(&parsed, nranks);
	if (!code)
		speak_again();
	if (!code)
		code = refuse_devices(&parsed, launch.rank < 0);
	if (!code && launch.rank < 0)
		code = relaunch(&parsed, nranks, argc, argv);
	if (code) {
		free(parsed.program);
		return code;
	}
	argv[0] = program_invocation_short_name; /* the record is of what was asked, not of where the program lies */
	char *command = join_command(argc, argv);
	parsed.command = command;
	code = perf_job(&parsed, launch.local_rank);
	free(command);
	free(parsed.program);
	return code;
}
