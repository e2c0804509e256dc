/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-perf limits: the command line, and the order of things. */
#include "bench/limits/command.h"

#include "bench/command/option.h"
#include "bench/command/record.h"
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/progress.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"
#include "rank-lib/program/limits.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct arguments {
	const char *json; /* NULL: the default file, whose folders are made */
	bool quick;
	int devices;
};

enum option_key { KEY_JSON = 256, KEY_QUICK, KEY_DEVICES, KEY_PROGRAM };

static const struct argp_option options[] = {
	{"json", KEY_JSON, "FILE", 0,
	 "Where to write the figures (default: FERRY_LIMITS, else ~/.cache/ferry/limits.json)", 0},
	{"quick", KEY_QUICK, NULL, 0, "Shorter measurements, fewer windows, and more noise", 0},
	{"devices", KEY_DEVICES, "N", 0, "Measure the first N GPUs (default: all)", 0},
	{"program", KEY_PROGRAM, "FILE", OPTION_HIDDEN, "", 0}, /* else it is short for argp's --program-name */
	{0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case KEY_JSON:
		arguments->json = value;
		return 0;
	case KEY_QUICK:
		arguments->quick = true;
		return 0;
	case KEY_DEVICES:
		arguments->devices = (int)option_number(value, 1, FERRY_LIMITS_GPUS, "--devices", state);
		return 0;
	case KEY_PROGRAM:
		argp_error(state, "--program %s: limits runs no program: ferry-perf COLLECTIVE --program FILE", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

ferryResult_t limits_make_folders(const char *path)
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

static ferryResult_t measure(struct ferry_limits *limits, int devices)
{
	time_t now = time(NULL);
	struct tm parts;
	double before = sample_now_us();
	if (gmtime_r(&now, &parts))
		strftime(limits->date, sizeof limits->date, "%Y-%m-%dT%H:%M:%SZ", &parts);
	ferryResult_t result = limits_find_machine(limits);
	if (!result)
		result = limits_measure_gpus(limits, devices);
	limits->seconds = (sample_now_us() - before) / 1e6;
	limits_progress("%s", "");
	return result;
}

/* What ferry-perf tune has written into the default file stays there; a file of something else is replaced. */
static void keep_collectives(struct ferry_limits *limits)
{
	static struct ferry_limits before;
	bool found;
	if (ferry_limits_load(&before, &found) || !found)
		return;
	limits->ncollectives = before.ncollectives;
	memcpy(limits->collectives, before.collectives, sizeof limits->collectives);
}

static int failed(void)
{
	fflush(stdout);
	fprintf(stderr, "ferry-perf limits: %s\n", ferry_last_message());
	return 1;
}

int limits_command(int argc, char **argv)
{
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .doc = "Measures what this machine's GPUs can do at most: copies to and from "
	                                        "host memory, alone and together, in and out of cache; from GPU to "
	                                        "GPU, one way, both ways and all at once; what a copy costs besides "
	                                        "its bytes. Writes a JSON file, by which communicators plan "
	                                        "(--json -: to standard output). Takes about ten seconds, more "
	                                        "with many GPUs; run it on a quiet machine."};
	static struct ferry_limits limits;
	static char name[] = "ferry-perf limits";
	struct arguments arguments = {0};
	char path[512];
	argv[0] = name;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	snprintf(limits.command, sizeof limits.command, "%s%s", name, arguments.quick ? " --quick" : "");
	snprintf(limits.units, sizeof limits.units, "GB/s = 1e9 bytes/s; names that end in _us are microseconds");
	limits.quick = arguments.quick;
	ferryResult_t result = ferrySuccess;
	if (!arguments.json && !(result = ferry_limits_path(path, sizeof path)))
		result = limits_make_folders(path);
	const char *json = arguments.json ? arguments.json : path;
	if (!result && !record_can_write(json))
		result = ferry_fail(ferrySystemError, "writing %s: %s", json, strerror(errno));
	if (result)
		return failed();
	if (!record_print_beside(name, json))
		return 1;
	result = measure(&limits, arguments.devices);
	if (!arguments.json)
		keep_collectives(&limits);
	if (result)
		return failed();
	if (*limits.no_gpu && !arguments.json) {
		printf("no GPU (%s): nothing was measured, so %s stays as it was\n", limits.no_gpu, path);
		return record_printed(name) ? 0 : 1;
	}
	if (*limits.no_gpu)
		printf("no GPU (%s): nothing was measured\n", limits.no_gpu);
	else if (*limits.no_links)
		printf("copies from GPU to GPU: not measured: %s\n", limits.no_links);
	if (limits.astray)
		printf("(IOMMU, ACS? By this file Ferry copies nothing from GPU to GPU; NCCL_P2P_DISABLE=1 keeps NCCL "
		       "from it)\n");
	if (!record_write(name, json, ferry_limits_json(&limits), true))
		return 1;
	printf("written to %s\n", strcmp(json, "-") ? json : "standard output");
	int code = record_printed(name) ? 0 : 1;
	if (limits.astray)
		_exit(code); /* the driver would wait for a copy that does not end */
	return code;
}
