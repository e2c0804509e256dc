/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/options.h"

#include "bench/command/option.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_key {
	KEY_DEVICE = 256, KEY_PROGRAM, KEY_VS, KEY_JSON, KEY_ROOT, KEY_RANKS, KEY_DOMAINS, KEY_SWEEP,
	KEY_PAUSE, KEY_SKEW
};

static const struct argp_option options[] = {
        {NULL, 'b', "BYTES", 0, "Smallest size (default 1K)", 0},
        {NULL, 'e', "BYTES", 0, "Largest size, measured too where the steps do not hit it (default 64M)", 0},
        {NULL, 'f', "FACTOR", 0, "From one size to the next, 2 to 1024 (default 4)", 0},
        {NULL, 'd', "TYPE", 0, OPTION_TYPES " (default f32)", 0},
        {NULL, 'o', "OP", 0, "sum prod min max avg premulsum (default sum)", 0},
        {NULL, 'n', "ITERS", 0,
         "Samples per row, 1 to 1000 (default: a quarter of a second's worth, 7 to 200; on GPUs 20 to 50)", 0},
        {NULL, 'w', "WARM", 0, "Calls before, not timed, 1 to 1000 (default 3)", 0},
        {NULL, 'c', "0|1", OPTION_ARG_OPTIONAL, "Check the results (default 1)", 0},
        {"root", KEY_ROOT, "R", 0, "Root of broadcast, reduce, gather, scatter (default 0)", 0},
        {"device", KEY_DEVICE, "host|cuda", 0,
         "Kind of device (default: FERRY_DEVICE, else cuda where there is one, else host)", 0},
        {"program", KEY_PROGRAM, "FILE", 0, "Run this program instead of the built-in one", 0},
        {"vs", KEY_VS, "mpi|nccl", 0, "The same work by MPI or NCCL too, interleaved, with the ratio", 0},
        {"nccl-sweep", KEY_SWEEP, "none|hylink", 0,
         "Settings of NCCL to compare with: its defaults alone, or also each of NCCL_PROTO, NCCL_ALGO and "
         "NCCL_P2P_DISABLE, and through the host NCCL_SHM_USE_CUDA_MEMCPY=1 and NCCL_MIN_NCHANNELS=16 (default "
         "hylink); one that the environment sets stays as it is",
         0},
        {"pause", KEY_PAUSE, "MS", 0,
         "Time single calls, after so many milliseconds without any (default 0: back to back)", 0},
        {"skew", KEY_SKEW, "hot:PART|own:PART|pair|zipf:EXPONENT|FILE", 0,
         "Of alltoallv: who sends how much to whom; sizes are what the busiest rank sends or receives then", 0},
        {"json", KEY_JSON, "FILE", 0,
         "Write the machine's facts and the rows as JSON (-: to standard output, the table to standard error)", 0},
        {"ranks", KEY_RANKS, "N", 0,
         "Ranks to start where no launcher has (default: one per GPU, else one per CPU, 2 to 4)", 0},
        {"domains", KEY_DOMAINS, "D", 0, "Domains to split the machine into where no launcher has", 0},
        {0}};

static char *read_file(const char *name)
{
	char *text = NULL;
	size_t room = 0;
	FILE *file = fopen(name, "r");
	if (!file)
		return NULL;
	errno = ENODATA; /* an empty file */
	if (getdelim(&text, &room, '\0', file) < 0) {
		free(text);
		text = NULL;
	}
	fclose(file);
	return text;
}

/* One of two values. */
static bool either(const char *value, const char *one, const char *other, const char *name, struct argp_state *state)
{
	if (strcmp(value, one) && strcmp(value, other))
		argp_error(state, "%s \"%s\": %s or %s", name, value, one, other);
	return !strcmp(value, one);
}

static void take_collective(struct perf_options *out, const char *name, struct argp_state *state)
{
	if (out->collective != FERRY_NUM_COLLECTIVES)
		argp_error(state, "one collective: \"%s\" is one too many", name);
	out->collective = ferry_collective_parse(name);
	if (out->collective == FERRY_NUM_COLLECTIVES)
		argp_error(state, "\"%s\" is none of " FERRY_COLLECTIVE_NAMES
		           " (or, in the first place: limits, the machine, or tune, NCCL and Ferry on it)", name);
}

/* Refuses options that do not apply to this collective, or not together. */
static void check_together(const struct perf_options *out, struct argp_state *state)
{
	if (out->collective == FERRY_NUM_COLLECTIVES)
		argp_error(state, "which collective? ferry-perf allreduce");
	const char *name = ferry_collective_name(out->collective);
	if (out->op_given && !ferry_collective_reduces(out->collective))
		argp_error(state, "-o %s: %s reduces nothing", out->op_given, name);
	if (out->root_given && !ferry_collective_has_root(out->collective))
		argp_error(state, "--root %s: %s has no root", out->root_given, name);
	if (out->skew_given && out->collective != FERRY_ALLTOALLV)
		argp_error(state, "--skew %s: %s has the same lengths for all", out->skew_given, name);
	if (out->least > out->most)
		argp_error(state, "-b %llu is over -e %llu", (unsigned long long)out->least,
		           (unsigned long long)out->most);
	if (out->sweep_given && (!out->peer || strcmp(out->peer, "nccl")))
		argp_error(state, "--nccl-sweep is of --vs nccl");
}

static const struct number_option numbers[] = {
        {'f', "-f", 2, 1024, 1, offsetof(struct perf_options, factor)},
        {'n', "-n", 1, 1000, 1, offsetof(struct perf_options, iterations)},
        {'w', "-w", 1, 1000, 1, offsetof(struct perf_options, warmups)},
        {KEY_ROOT, "--root", 0, FERRY_MAX_RANKS - 1, 1, offsetof(struct perf_options, root)},
        {KEY_PAUSE, "--pause", 0, 10000, 1000, offsetof(struct perf_options, pause_us)},
        {KEY_RANKS, "--ranks", 1, FERRY_MAX_RANKS, 1, offsetof(struct perf_options, ranks)},
        {KEY_DOMAINS, "--domains", 1, FERRY_MAX_DOMAINS, 1, offsetof(struct perf_options, domains)},
        {0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct perf_options *out = state->input;
	if (key == KEY_ROOT)
		out->root_given = value;
	switch (key) {
	case 'b':
		out->least = option_bytes(value, "-b", state);
		return 0;
	case 'e':
		out->most = option_bytes(value, "-e", state);
		return 0;
	case 'd':
		out->type = option_type(value, "-d", state);
		return 0;
	case 'o':
		out->op = ferry_redop_parse(value);
		if (out->op > ferryNumOps)
			argp_error(state, "-o: \"%s\" is none of sum, prod, min, max, avg, premulsum", value);
		out->op_given = value;
		return 0;
	case 'c':
		if (value && strcmp(value, "0") && strcmp(value, "1"))
			argp_error(state, "-c: \"%s\" is neither 0 nor 1", value);
		out->check = !value || *value == '1';
		return 0;
	case KEY_PROGRAM:
		if (!(out->program = read_file(value)))
			argp_error(state, "--program %s: %s", value, strerror(errno));
		out->program_file = value;
		return 0;
	case KEY_DEVICE:
		either(value, "host", "cuda", "--device", state);
		setenv("FERRY_DEVICE", value, 1);
		return 0;
	case KEY_VS:
		either(value, "mpi", "nccl", "--vs", state);
		out->peer = value;
		return 0;
	case KEY_SWEEP:
		out->sweep = !either(value, "none", "hylink", "--nccl-sweep", state);
		out->sweep_given = true;
		return 0;
	case KEY_SKEW:
		out->skew_given = value;
		return 0;
	case KEY_JSON:
		out->json = option_record(value, "--json", state);
		return 0;
	case ARGP_KEY_ARG:
		take_collective(out, value, state);
		return 0;
	case ARGP_KEY_END:
		check_together(out, state);
		return 0;
	default:
		return option_take_number(numbers, key, value, state) ? 0 : ARGP_ERR_UNKNOWN;
	}
}

/*
 * nccl-tests takes `-c 0`; to argp an optional value is part of the same argument. No collective begins with a digit.
 */
static void join_check_option(int *argc, char **argv)
{
	static char joined[16];
	for (int i = 1; i + 1 < *argc; i++)
		if (!strcmp(argv[i], "-c") && isdigit((unsigned char)*argv[i + 1])) {
			snprintf(joined, sizeof joined, "-c%s", argv[i + 1]);
			argv[i] = joined;
			memmove(argv + i + 1, argv + i + 2, (size_t)(*argc - i - 1) * sizeof *argv);
			--*argc;
		}
}

void perf_options_read(int *argc, char **argv, struct perf_options *parsed)
{
	static const struct argp argp = {
	        .options = options,
	        .parser = parse,
	        .args_doc = "COLLECTIVE",
	        .doc = "Times a collective over sizes, with nccl-tests' columns. COLLECTIVE: " FERRY_COLLECTIVE_NAMES
	               ". `ferry-perf limits` measures what the machine can do at most, "
	               "`ferry-perf tune` what NCCL and Ferry do.\v"
	               "Examples:\n"
	               "  ferry-perf allreduce\n"
	               "  ferryrun -n 4 --domains 2 -- ferry-perf allgather -b 64K -e 16M\n"
	               "  ferryrun -n 2 -- ferry-perf allreduce -b 4M -e 32M -f 8 --vs mpi --json out.json\n"
	               "  ferry-perf allgather -b 1M -e 1G --vs nccl\n"
	               "  ferry-perf limits --help\n"
	               "  ferry-perf tune --help\n"
	               "Exit code: 0, 1 if a call failed or a result was wrong, 64 for bad usage."};
	*parsed = (struct perf_options){.collective = FERRY_NUM_COLLECTIVES,
	                                .least = 1024,
	                                .most = 64 << 20,
	                                .factor = 4,
	                                .type = ferryFloat32,
	                                .op = ferrySum,
	                                .warmups = 3,
	                                .check = true,
	                                .sweep = true};
	join_check_option(argc, argv);
	argp_parse(&argp, *argc, argv, 0, NULL, parsed);
}
