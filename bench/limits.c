/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-perf limits: the command line, the order of things, and the clock that measurements share. */
#include "bench/limits.h"

#include "bench/limits_run.h"
#include "bench/perf.h"
#include "ipc/error.h"
#include "rank-lib/program/limits.h"

#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct arguments {
	char path[512];
	bool named; /* the user named the file: its folder is to exist */
	bool quick;
	int devices;
};

enum option_key { KEY_JSON = 256, KEY_QUICK, KEY_DEVICES };

static const struct argp_option options[] = {
	{"json", KEY_JSON, "FILE", 0, "Where to write the figures (default: FERRY_LIMITS, else ~/.cache/ferry/limits.json)", 0},
	{"quick", KEY_QUICK, NULL, 0, "Shorter measurements, fewer windows: about 10 seconds, and more noise", 0},
	{"devices", KEY_DEVICES, "N", 0, "Measure the first N GPUs (default: all)", 0},
	{0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	long devices;
	char *end;
	switch (key) {
	case KEY_JSON:
		if (strlen(value) >= sizeof arguments->path)
			argp_error(state, "--json: a name of %zu bytes is too long", strlen(value));
		snprintf(arguments->path, sizeof arguments->path, "%s", value);
		arguments->named = true;
		return 0;
	case KEY_QUICK:
		arguments->quick = true;
		return 0;
	case KEY_DEVICES:
		devices = strtol(value, &end, 10);
		if (*end || devices < 1 || devices > LIMITS_MAX_GPUS)
			argp_error(state, "--devices: \"%s\" is not a number from 1 to %d", value, LIMITS_MAX_GPUS);
		arguments->devices = (int)devices;
		return 0;
	case ARGP_KEY_ARG:
		argp_error(state, "unexpected argument \"%s\"", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

/* ---- the clock ---- */

struct limits_schedule limits_schedule_now(const struct limits *limits)
{
	double warm_us = limits->quick ? 8e3 : 20e3;
	return (struct limits_schedule){perf_now_us() + warm_us, limits->quick ? 10e3 : 25e3, limits->quick ? 3 : 7};
}

double limits_schedule_end_us(const struct limits_schedule *schedule)
{
	return schedule->begin_us + schedule->each_us * schedule->intervals;
}

void limits_count_add(struct limits_count *count, const struct limits_schedule *schedule, double now_us, double bytes)
{
	double since = now_us - schedule->begin_us;
	if (since >= 0 && since < schedule->each_us * schedule->intervals)
		count->bytes[(int)(since / schedule->each_us)] += bytes;
}

void limits_count_join(struct limits_count *sum, const struct limits_count *count)
{
	for (int i = 0; i < LIMITS_MAX_INTERVALS; i++)
		sum->bytes[i] += count->bytes[i];
}

double limits_median(double *values, int count)
{
	return perf_summarize(values, (size_t)count).median_us;
}

double limits_rate(const struct limits_count *count, const struct limits_schedule *schedule)
{
	double rates[LIMITS_MAX_INTERVALS];
	for (int i = 0; i < schedule->intervals; i++)
		rates[i] = count->bytes[i] / schedule->each_us / 1e3;
	return limits_median(rates, schedule->intervals);
}

/* ---- the command ---- */

static void clear_progress(void)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r%78s\r", "");
}

void limits_progress(const char *format, ...)
{
	char text[128];
	va_list arguments;
	if (!isatty(STDERR_FILENO))
		return;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\r# %-76.76s", text);
	fflush(stderr);
}

/* The folders of the default file; nobody else makes them. */
static ferryResult_t make_folders(const char *path)
{
	char folder[512];
	snprintf(folder, sizeof folder, "%s", path);
	for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(folder, 0777) && errno != EEXIST)
			return ferry_fail(ferrySystemError, "making the folder %s: %s", folder, strerror(errno));
		*slash = '/';
	}
	return ferrySuccess;
}

/* What was measured before a failure stays in `limits`, to be shown. */
static ferryResult_t measure(struct limits *limits, int devices)
{
	time_t now = time(NULL);
	struct tm parts;
	double before = perf_now_us();
	if (gmtime_r(&now, &parts))
		strftime(limits->date, sizeof limits->date, "%Y-%m-%dT%H:%M:%SZ", &parts);
	ferryResult_t result = limits_find_machine(limits);
#ifdef FERRY_NO_CUDA
	snprintf(limits->no_gpu, sizeof limits->no_gpu, "this ferry-perf was built without cuda.h");
	if (devices)
		return ferry_fail(ferryInvalidUsage, "--devices %d: %s", devices, limits->no_gpu);
#else
	if (!result)
		result = limits_measure_gpus(limits, devices);
#endif
	if (!result)
		result = limits_measure_cpu(limits);
	limits->seconds = (perf_now_us() - before) / 1e6;
	clear_progress();
	return result;
}

int ferry_bench_limits(int argc, char **argv)
{
	static const struct argp argp = {options, parse, NULL,
	                                 "Measures what this machine can do at most: copies between GPUs and host memory, alone and "
	                                 "together, in and out of cache; their fixed costs; flags between host and GPU; reductions "
	                                 "by cores. Prints a table and writes a JSON file, which ferry-perf reads to show each row's "
	                                 "limit. Takes about half a minute; run it on a quiet machine.\v"
	                                 "Without a GPU it measures the cores alone.", NULL, NULL, NULL};
	struct arguments arguments = {0};
	static struct limits limits;
	static char name[] = "ferry-perf limits";
	argv[0] = name;
	argp_err_exit_status = PERF_EXIT_USAGE;
	if (argp_parse(&argp, argc, argv, 0, NULL, &arguments))
		return PERF_EXIT_USAGE;
	limits = (struct limits){.quick = arguments.quick};
	ferryResult_t result = ferry_reduce_check();
	if (!result && !arguments.named)
		result = ferry_limits_path(arguments.path, sizeof arguments.path);
	if (!result && !arguments.named)
		result = make_folders(arguments.path);
	if (!result && !(perf_can_write(arguments.path) && perf_print_beside(arguments.path)))
		result = ferry_fail(ferrySystemError, "writing %s: %s", arguments.path, strerror(errno));
	if (!result) {
		result = measure(&limits, arguments.devices);
		limits_print(&limits);
	}
	if (!result)
		result = limits_write(&limits, arguments.path);
	if (result) {
		fflush(stdout);
		fprintf(stderr, "ferry-perf limits: %s\n", ferry_last_message());
		return 1;
	}
	printf("\nwritten to %s\n", strcmp(arguments.path, "-") ? arguments.path : "standard output");
	return perf_printed(name) ? 0 : 1;
}
