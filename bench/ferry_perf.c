/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-perf: nccl-tests' measurements for Ferry, alone or against MPI or NCCL. */
#include "bench/limits.h"
#include "bench/perf_nccl.h"
#include "ipc/descriptors.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/launch_env.h"

#include <argp.h>
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM_WORTH_TELLING ((size_t)256 << 20) /* its pages take seconds */

/* Beside this command: PATH's ferryrun might be of another build. */
static void beside(char *path, size_t bytes, const char *name)
{
	ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
	char *slash = NULL;
	if (length > 0) {
		path[length] = '\0';
		slash = strrchr(path, '/');
	}
	if (slash)
		snprintf(slash + 1, bytes - (size_t)(slash + 1 - path), "%s", name);
	else
		snprintf(path, bytes, "%s", name);
}

static int default_ranks(void)
{
	struct perf_gpus gpus = {0};
	if (!strcmp(perf_memory_kind(), "cuda"))
		perf_cuda_describe(&gpus);
	return gpus.count > 0 && gpus.count <= FERRY_MAX_RANKS ? gpus.count : 4;
}

/* Without a launcher: become ferryrun with the same arguments. Returns only on failure. */
static int relaunch(const struct perf_options *parsed, int nranks, int argc, char **argv)
{
	char ferryrun[4096], self[4096], ranks[16], domains[16];
	char **command = calloc((size_t)argc + 10, sizeof *command);
	int count = 0;
	if (!command)
		return 1;
	beside(ferryrun, sizeof ferryrun, "ferryrun");
	beside(self, sizeof self, "ferry-perf");
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

/* Before the ranks are started, too: the module knows what MPI can do without MPI under way. */
static const struct perf_peer *load_peer(const struct perf_options *parsed)
{
	char path[4096];
	beside(path, sizeof path, "../lib/ferry-perf-mpi.so");
	void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	const struct perf_peer *peer = module ? dlsym(module, "ferry_perf_peer") : NULL;
	if (!peer)
		fprintf(stderr, "ferry-perf: --vs %s: %s (built without MPI? install libmpich-dev and build again)\n",
		        parsed->peer, dlerror());
	return peer;
}

static const struct perf_peer *open_peer(const struct perf_options *parsed, int *rank, int *nranks)
{
	const struct perf_peer *peer = load_peer(parsed);
	const char *refused = peer ? peer->open(rank, nranks) : NULL;
	if (refused)
		fprintf(stderr, "ferry-perf: %s\n", refused);
	return refused ? NULL : peer;
}

static bool measure_all(struct perf_run *run)
{
	const struct perf_options *parsed = run->options;
	struct perf_row rows[2 * 64];
	size_t count = 0;
	long long wrong = 0;
	bool in_place = parsed->collective != FERRY_ALLTOALLV && parsed->collective != FERRY_SENDRECV;
	double busbw = 0;
	perf_print_head(run);
	for (uint64_t bytes = parsed->least; bytes <= parsed->most && count + 2 <= 2 * 64; bytes *= parsed->factor) {
		struct perf_row *row = &rows[count];
		if (!perf_measure(run, bytes, false, row) || (in_place && !perf_measure(run, bytes, true, row + 1)))
			return false;
		perf_print_rows(run, row, in_place ? row + 1 : NULL);
		for (int i = 0; i <= in_place; i++) {
			wrong += row[i].wrong > 0;
			busbw += row[i].busbw;
		}
		count += 1 + in_place;
		if (run->rank == 0 && parsed->json) /* for a run that is broken off; the last writing decides */
			perf_write_json(run, rows, count, false);
	}
	perf_print_refusals(run);
	if (run->rank == 0)
		printf("# average bus bandwidth %.3f GB/s; %s\n", busbw / (double)count,
		       !parsed->check ? "results not checked"
		       : wrong        ? "WRONG RESULTS"
		                      : "all results right");
	if (run->rank == 0 && parsed->json && !perf_write_json(run, rows, count, true))
		return false;
	return perf_printed("ferry-perf") && !wrong;
}

static bool wants(const struct perf_options *parsed, const char *peer)
{
	return parsed->peer && !strcmp(parsed->peer, peer);
}

/* Why the ranks, as they are, cannot be measured; NULL if they can. */
static const char *refuse(const struct perf_run *run, int peer_rank, int peer_nranks)
{
	static char text[96];
	const struct perf_options *asked = run->options;
	if ((asked->ranks && asked->ranks != run->nranks) || (asked->domains && asked->domains != run->ndomains)) {
		snprintf(text, sizeof text, "--ranks and --domains are for where no launcher is: one has started %d ranks in %d domains",
		         run->nranks, run->ndomains);
		return text;
	}
	if (!run->peer)
		return NULL;
	if (run->memory.share)
		return "--vs mpi compares in host memory: --device host";
	if (peer_rank != run->rank || peer_nranks != run->nranks)
		return "--vs mpi: MPI does not have the ranks that Ferry has; start it with ferryrun without --fork, or "
		       "with mpiexec";
	return NULL;
}

static bool make_reduction(struct perf_run *run)
{
	struct ferry_trial trial = {.type = run->options->type};
	uint64_t scalar = ferry_trial_scalar(&trial, run->rank);
	run->op = run->options->op;
	if (run->op < ferryNumOps ||
	    !ferryRedOpCreatePreMulSum(&run->op, &scalar, trial.type, ferryScalarHostImmediate, run->comm))
		return true;
	fprintf(stderr, "ferry-perf: %s\n", ferryGetLastError(NULL));
	return false;
}

static bool make_buffers(struct perf_run *run)
{
	run->room = (perf_room(run->options, run->nranks) + 4095) / 4096 * 4096;
	if (run->rank == 0 && run->room >= ROOM_WORTH_TELLING)
		fprintf(stderr, "ferry-perf: preparing two buffers of %zu MiB per rank\n", run->room >> 20);
	run->send = run->memory.take(&run->memory, run->room);
	run->receive = run->send ? run->memory.take(&run->memory, run->room) : NULL;
	double without = !run->receive;
	if (!perf_over_ranks(run, &without, 1, ferrySum))
		return false;
	if (without > 0 && !run->rank)
		fprintf(stderr, "ferry-perf: no memory for two buffers of %zu MiB on %.0f of %d ranks: lower -e (%llu)\n", run->room >> 20, without,
		        run->nranks, (unsigned long long)run->options->most);
	return !(without > 0);
}

static bool make_comms(struct perf_run *run)
{
	ferryConfig_t measured = FERRY_CONFIG_INITIALIZER, control = FERRY_CONFIG_INITIALIZER;
	int domain;
	measured.device = run->memory.kind;
	control.device = "host";
	if (ferryCommInitEnv(&run->comm, &measured) || ferryCommInitEnv(&run->control, &control)) {
		fprintf(stderr, "ferry-perf: %s\n", ferryGetLastError(NULL));
		return false;
	}
	ferryCommCount(run->comm, &run->nranks);
	ferryCommUserRank(run->comm, &run->rank);
	ferryCommDomain(run->comm, &domain, &run->ndomains);
	perf_routers_find(&run->routers);
	return true;
}

/* No rank leaves with its exit code before rank 0 has said why: launchers end the others when one fails. */
static void meet(const struct perf_run *run)
{
	int32_t here = 1; /* not what other meetings are of: ranks that still measure learn that this one does not */
	if (ferryAllReduce(&here, &here, 1, ferryInt32, ferrySum, run->control, NULL) == ferrySuccess)
		ferryStreamSynchronize(NULL);
}

/*
 * More ranks and routers than CPUs: what is timed then is the scheduler, too. The CPUs are those of all ranks, as launchers
 * may bind each to its own; routers count where none is bound, since they have the same CPUs then. A machine of more CPUs
 * than fit the set has enough.
 */
static bool tell_of_crowd(struct perf_run *run)
{
	static double ranks_on[CPU_SETSIZE];
	char and_routers[32] = "";
	cpu_set_t mine;
	int count = 0, routers = perf_routers_embedded() ? 0 : run->ndomains;
	bool known = !sched_getaffinity(0, sizeof mine, &mine), bound = false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		ranks_on[cpu] = !known || CPU_ISSET(cpu, &mine);
	if (!perf_over_ranks(run, ranks_on, CPU_SETSIZE, ferrySum))
		return false;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		count += ranks_on[cpu] > 0;
		bound |= ranks_on[cpu] > 0 && ranks_on[cpu] < run->nranks;
	}
	if (run->rank || run->nranks + (bound ? 0 : routers) <= count)
		return true;
	if (routers)
		snprintf(and_routers, sizeof and_routers, " and %d router%s", routers, routers == 1 ? "" : "s");
	fprintf(stderr, "ferry-perf: %d rank%s%s on %d CPU%s: they take turns, so the times are the scheduler's as well\n",
	        run->nranks, run->nranks == 1 ? "" : "s", and_routers, count, count == 1 ? "" : "s");
	return true;
}

static bool measure(struct perf_run *run, int peer_rank, int peer_nranks)
{
	const char *refused = refuse(run, peer_rank, peer_nranks);
	if (refused && !run->rank)
		fprintf(stderr, "ferry-perf: %s\n", refused);
	if (refused || !tell_of_crowd(run) || !make_reduction(run) || !make_buffers(run))
		return false;
	if (wants(run->options, "nccl") && !perf_nccl_open(run))
		return false;
	return measure_all(run);
}

/* Ends what make_comms made. */
static bool close_comms(struct perf_run *run, bool fine)
{
	bool abort_others = run->failed_alone;
	if (run->control && !abort_others)
		meet(run);
	if (run->control && (abort_others ? ferryCommAbort(run->control) : ferryCommDestroy(run->control)))
		fine = false;
	if (run->comm && (abort_others ? ferryCommAbort(run->comm) : ferryCommDestroy(run->comm)))
		fine = false;
	return fine;
}

static int run_ranks(const struct perf_options *parsed, int local_rank)
{
	struct perf_run run = {.options = parsed};
	int peer_rank = 0, peer_nranks = 0;
	if (!perf_print_beside(parsed->json)) {
		fprintf(stderr, "ferry-perf: --json -: %s\n", strerror(errno));
		return 1;
	}
	if (wants(parsed, "mpi") && !(run.peer = open_peer(parsed, &peer_rank, &peer_nranks)))
		return 1;
	/* MPI gets host memory: few are built for more. */
	if (!perf_memory_open(&run.memory, run.peer && !ferry_env("FERRY_DEVICE") ? "host" : perf_memory_kind(), local_rank))
		return 1;
	bool fine = make_comms(&run) && measure(&run, peer_rank, peer_nranks);
	fine = close_comms(&run, fine);
	perf_nccl_close(&run);
	if (run.peer)
		run.peer->close();
	run.memory.give_back(run.send);
	run.memory.give_back(run.receive);
	run.memory.close(&run.memory);
	return fine ? 0 : 1;
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

/* ---- the start ---- */

static FILE *aloud; /* standard error, while this rank keeps quiet; else NULL */

/* Who leaves first is the rank that launchers name, and end the others for: it is to be the one that has said why. */
static void leave_after_rank_0(int code, void *unused)
{
	(void)unused;
	if (aloud && code)
		sleep(1);
}

/* All ranks have the same arguments: what is wrong with them, rank 0 says for all. */
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

/* Refuses what so many ranks cannot be asked for: 0, or the exit code with a message printed. Ranks come here, and who starts them. */
static int refuse_at_start(const struct perf_options *parsed, int nranks)
{
	const char *name = ferry_collective_name(parsed->collective);
	struct perf_run run = {.options = parsed, .nranks = nranks, .ndomains = 1};
	uint64_t least = perf_work_least(parsed, nranks);
	if (parsed->root >= nranks) {
		fprintf(stderr, "ferry-perf: --root %d: the last of %d ranks is %d\n", parsed->root, nranks, nranks - 1);
		return PERF_EXIT_USAGE;
	}
	if (parsed->least < least) {
		fprintf(stderr, "ferry-perf: -b %llu: %s of %s among %d rank%s takes %llu bytes at least\n", (unsigned long long)parsed->least,
		        name, ferry_type_name(parsed->type), nranks, nranks == 1 ? "" : "s", (unsigned long long)least);
		return PERF_EXIT_USAGE;
	}
	if (!wants(parsed, "mpi"))
		return 0;
	if (!(run.peer = load_peer(parsed)))
		return 1;
	const char *refused = perf_peer_refuses(&run);
	if (refused)
		fprintf(stderr, "ferry-perf: --vs mpi: %s\n", refused);
	return refused ? PERF_EXIT_USAGE : 0;
}

/* Says which devices are missing: 1, else 0. Each rank has its own; who starts ranks says for them what it finds. */
static int refuse_devices(const struct perf_options *parsed, bool starts_ranks)
{
	bool cuda = !strcmp(perf_memory_kind(), "cuda"), nccl = wants(parsed, "nccl");
	const char *missing = cuda || nccl ? perf_cuda_missing() : NULL;
	if (nccl && (missing || !cuda)) {
		fprintf(stderr, "ferry-perf: --vs nccl needs a CUDA device: %s\n", missing ? missing : "--device (or FERRY_DEVICE) is not cuda");
		return 1;
	}
	if (!missing || !starts_ranks || !ferry_env("FERRY_DEVICE")) /* MPI compares in host memory, whatever there is */
		return 0;
	fprintf(stderr, "ferry-perf: --device cuda: %s\n", missing);
	return 1;
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
	argp_err_exit_status = PERF_EXIT_USAGE;
	if (argc > 1 && !strcmp(argv[1], "reduce"))
		return ferry_bench_reduce(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "limits"))
		return ferry_bench_limits(argc - 1, argv + 1);
	keep_quiet();
	perf_options_read(&argc, argv, &parsed);
	if (ferry_launch_read(&launch)) {
		fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
		return 1;
	}
	int nranks = launch.rank >= 0 ? launch.size : parsed.ranks ? parsed.ranks : default_ranks();
	int code = refuse_at_start(&parsed, nranks);
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
	code = run_ranks(&parsed, launch.local_rank);
	free(command);
	free(parsed.program);
	return code;
}
