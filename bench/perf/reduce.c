/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-perf reduce: the reduction kernel against memcpy on a working set of the same size, interleaved. Both sides
 * count the bytes that they read and write.
 */
#include "bench/perf/reduce.h"

#include "bench/command/option.h"
#include "bench/command/record.h"
#include "bench/command/sample.h"
#include "ipc/collective.h"
#include "ipc/error.h"
#include "ipc/layout.h"
#include "router/reduce/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS 41
#define ROUND_BYTES (64ull << 20) /* moved per round at least, so that a round is long against the clock */

struct arguments {
	ferryDataType_t type;
	ferryRedOp_t op;
	uint32_t sources;
	uint64_t in_cache, out_of_cache; /* bytes of all sources and the result together */
	const char *json;
};

static char name[] = "ferry-perf reduce";
static const char *const stores[] = {"ordinary", "stream", "demote"};

enum option_key { KEY_IN = 256, KEY_OUT, KEY_JSON, KEY_PROGRAM };

static const struct argp_option options[] = {
	{NULL, 'd', "TYPE", 0, OPTION_TYPES " (default f32)", 0},
	{NULL, 'o', "OP", 0, "sum prod min max avg (default sum)", 0},
	{NULL, 's', "N", 0, "Sources (default 4)", 0},
	{"in-cache", KEY_IN, "BYTES", 0,
	 "Working set in cache: sources and result together (default: half a core's L2)", 0},
	{"out-of-cache", KEY_OUT, "BYTES", 0,
	 "Working set out of cache (default: four times the last-level cache, at most 512M)", 0},
	{"json", KEY_JSON, "FILE", 0,
	 "Write the rows as a JSON array (-: to standard output, the table to standard error)", 0},
	{"program", KEY_PROGRAM, "FILE", OPTION_HIDDEN, "", 0}, /* else it is short for argp's --program-name */
	{0}};

static error_t parse(int key, char *value, struct argp_state *state)
{
	struct arguments *arguments = state->input;
	switch (key) {
	case 'd':
		arguments->type = option_type(value, "-d", state);
		return 0;
	case 'o':
		arguments->op = ferry_redop_parse(value);
		if (arguments->op >= ferryNumOps)
			argp_error(state, "-o: \"%s\" is none of sum, prod, min, max, avg", value);
		return 0;
	case 's':
		arguments->sources = (uint32_t)option_number(value, 1, FERRY_MAX_RANKS, "-s", state);
		return 0;
	case KEY_IN:
		arguments->in_cache = option_bytes(value, "--in-cache", state);
		return 0;
	case KEY_OUT:
		arguments->out_of_cache = option_bytes(value, "--out-of-cache", state);
		return 0;
	case KEY_JSON:
		arguments->json = option_record(value, "--json", state);
		return 0;
	case KEY_PROGRAM:
		argp_error(state, "--program %s: reduce runs no program: ferry-perf COLLECTIVE --program FILE", value);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

struct working_set {
	char *memory, *copy_from, *copy_to;
	const void *sources[FERRY_MAX_RANKS];
	char *result;
	size_t each, half;
};

static bool make_set(struct working_set *set, const struct arguments *arguments, uint64_t bytes)
{
	/* An odd number of lines apart, or the streams would meet in the same cache sets. */
	set->each = bytes / (arguments->sources + 1) / 64 * 64;
	set->half = bytes / 2 / 64 * 64;
	size_t stride = set->each + 576, room = stride * (arguments->sources + 1) + 2 * set->half + 16384;
	if (!set->each || !(set->memory = aligned_alloc(4096, (room + 4095) / 4096 * 4096)))
		return false;
	memset(set->memory, 0, room);
	for (uint32_t i = 0; i < arguments->sources; i++)
		set->sources[i] = set->memory + i * stride;
	set->result = set->memory + arguments->sources * stride;
	set->copy_from = set->memory + (arguments->sources + 1) * stride / 4096 * 4096 + 4096;
	set->copy_to = set->copy_from + set->half + 576;
	return true;
}

struct result {
	const char *where;
	uint64_t bytes;
	enum ferry_store store;
	double kernel, copy; /* GB/s */
};

static bool measure(const struct arguments *arguments, struct result *result)
{
	struct working_set set;
	double kernel_us[ROUNDS], copy_us[ROUNDS];
	struct ferry_reduction reduction = {.type = arguments->type, .op = arguments->op, .store = result->store,
	                                    .divisor = arguments->op == ferryAvg ? arguments->sources : 1};
	if (!make_set(&set, arguments, result->bytes)) {
		fprintf(stderr, "ferry-perf reduce: a working set of %llu bytes: too small or no memory\n",
		        (unsigned long long)result->bytes);
		return false;
	}
	uint64_t repeats = ROUND_BYTES / result->bytes + 1;
	for (int round = -1; round < ROUNDS; round++) {
		double start = sample_now_us();
		for (uint64_t i = 0; i < repeats; i++)
			ferry_reduce(set.result, set.sources, arguments->sources,
			             set.each / ferry_type_size(arguments->type), &reduction);
		double middle = sample_now_us();
		for (uint64_t i = 0; i < repeats; i++) {
			memcpy(set.copy_to, set.copy_from, set.half);
			__asm__ volatile("" : : "r"(set.copy_to) : "memory"); /* every one of them is wanted */
		}
		if (round >= 0) { /* the first round warms up */
			kernel_us[round] = middle - start;
			copy_us[round] = sample_now_us() - middle;
		}
	}
	double each = (double)repeats * (double)set.each, half = (double)repeats * (double)set.half;
	result->kernel = each * (arguments->sources + 1) / sample_summarize(kernel_us, ROUNDS).median / 1e3;
	result->copy = 2 * half / sample_summarize(copy_us, ROUNDS).median / 1e3;
	free(set.memory);
	return true;
}

static cJSON *record_of(const struct arguments *arguments, const struct result *results, int count)
{
	cJSON *array = cJSON_CreateArray();
	for (int i = 0; i < count; i++) {
		cJSON *object = cJSON_CreateObject();
		cJSON_AddStringToObject(object, "working_set", results[i].where);
		cJSON_AddNumberToObject(object, "bytes", (double)results[i].bytes);
		cJSON_AddStringToObject(object, "type", ferry_type_name(arguments->type));
		cJSON_AddStringToObject(object, "op", ferry_redop_name(arguments->op));
		cJSON_AddNumberToObject(object, "sources", arguments->sources);
		cJSON_AddStringToObject(object, "store", stores[results[i].store]);
		cJSON_AddNumberToObject(object, "gbps", results[i].kernel);
		cJSON_AddNumberToObject(object, "memcpy_gbps", results[i].copy);
		cJSON_AddNumberToObject(object, "ratio", results[i].kernel / results[i].copy);
		cJSON_AddItemToArray(array, object);
	}
	return array;
}

static bool measure_all(const struct arguments *arguments)
{
	struct result results[6];
	printf("# %s: %u sources of %s, %s, %s kernels; medians of %d rounds\n", name, arguments->sources,
	       ferry_type_name(arguments->type), ferry_redop_name(arguments->op),
	       ferry_reduce_target_name(ferry_reduce_target()), ROUNDS);
	printf("# %-13s %12s %10s %14s %14s %6s\n", "working set", "bytes", "store", "kernel GB/s", "memcpy GB/s",
	       "ratio");
	for (int i = 0; i < 6; i++) {
		struct result *result = &results[i];
		*result = (struct result){
		        .where = "in cache", .bytes = arguments->in_cache, .store = (enum ferry_store)(i % 3)};
		if (i >= 3) {
			result->where = "out of cache";
			result->bytes = arguments->out_of_cache;
		}
		if (!measure(arguments, result))
			return false;
		printf("  %-13s %12llu %10s %14.1f %14.1f %6.2f\n", result->where, (unsigned long long)result->bytes,
		       stores[result->store], result->kernel, result->copy, result->kernel / result->copy);
		record_flush();
		if (arguments->json &&
		    !record_write(name, arguments->json, record_of(arguments, results, i + 1), i == 5))
			return false;
	}
	return record_printed(name);
}

int perf_reduce_command(int argc, char **argv)
{
	static const struct argp argp = {.options = options,
	                                 .parser = parse,
	                                 .doc = "Times the reduction kernel against memcpy on a working set of the "
	                                        "same size, in one thread. GB/s count the bytes read and written."};
	struct arguments arguments = {.type = ferryFloat32, .op = ferrySum, .sources = 4};
	struct ferry_layout layout;
	uint64_t core = 1 << 20, last = 32 << 20;
	argv[0] = name;
	argp_parse(&argp, argc, argv, 0, NULL, &arguments);
	if (!record_print_beside(name, arguments.json))
		return 1;
	if (ferry_reduce_check()) {
		fprintf(stderr, "%s: %s\n", name, ferry_last_message());
		return 1;
	}
	if (!ferry_layout_load(&layout)) {
		core = layout.domains[0].core_cache_bytes ? layout.domains[0].core_cache_bytes : core;
		last = layout.domains[0].cache_bytes ? layout.domains[0].cache_bytes : last;
	}
	if (!arguments.in_cache)
		arguments.in_cache = core / 2;
	if (!arguments.out_of_cache)
		arguments.out_of_cache = 4 * last < 512u << 20 ? 4 * last : 512u << 20;
	return measure_all(&arguments) ? 0 : 1;
}
