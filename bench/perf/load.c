/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf/load.h"

#include "bench/perf/work.h"
#include "ipc/environment.h"
#include "ipc/error.h"
#include "router/engine/balance.h"

#include <stdio.h>
#include <stdlib.h>

#define BAR 24
#define MOST_LINES 24
static const char full_bar[] = "########################";

/* ---- the machine ---- */

static bool find_links(int nranks, struct ferry_links *links, struct ferry_path_limits *limits)
{
	struct ferry_host_links machine;
	if (ferry_host_links_load(&machine))
		return false;
	*limits = (struct ferry_path_limits){.up = (float)machine.d2h, .down = (float)machine.h2d};
	if (machine.peers)
		return !ferry_host_links_place("FERRY_HOST_LINK", &machine, (uint32_t)nranks, links);
	return !ferry_host_links_parse("links", "links=mesh:1", &machine) &&
	       !ferry_host_links_place("links", &machine, (uint32_t)nranks, links);
}

static void fill(const struct perf_run *run, uint64_t *bytes)
{
	const struct ferry_trial trial =
	        perf_trial(run->options, run->options->most, false, run->rank.nranks, run->rank.ndomains);
	size_t size = ferry_type_size(trial.type), n = (size_t)trial.nranks;
	for (size_t rank = 0; rank < n; rank++) {
		struct ferry_trial_counts counts;
		ferry_trial_counts(&trial, (int)rank, &counts);
		for (size_t peer = 0; peer < n; peer++)
			bytes[rank * n + peer] = peer == rank ? 0 : counts.sendcounts[peer] * size;
	}
}

/* ---- the picture ---- */

static void print_name(const struct ferry_resource *resource)
{
	static const char *const names[] = {"", "sends", "receives", "shared", "passes on", "to the host",
	                                    "from the host"};
	char text[32];
	if (resource->kind == FERRY_RESOURCE_LINK)
		snprintf(text, sizeof text, "%u to %u", resource->from, resource->to);
	else
		snprintf(text, sizeof text, "%u %s", resource->from, names[resource->kind]);
	printf("# %-16s", text);
}

static void print_bar(double busy_us, double longest_us)
{
	double part = busy_us / longest_us;
	printf("  %4.0f%% %-*.*s", 100 * part, BAR, (int)(part * BAR + 0.5), full_bar);
}

struct line {
	uint32_t resource;
	double before_us, after_us;
};

static int by_load(const void *left, const void *right)
{
	const struct line *a = left, *b = right;
	double x = a->before_us > a->after_us ? a->before_us : a->after_us;
	double y = b->before_us > b->after_us ? b->before_us : b->after_us;
	return x != y ? (x < y ? 1 : -1) : (int)a->resource - (int)b->resource;
}

static double direct_us(const struct ferry_paths *paths, const uint64_t *bytes, uint32_t resource)
{
	double load = 0;
	for (uint32_t i = paths->first_user[resource]; i < paths->first_user[resource + 1]; i++) {
		uint32_t pair = paths->pair[paths->users[i]];
		load += paths->users[i] == paths->first[pair] ? (double)bytes[pair] : 0;
	}
	return load / ((double)paths->resources[resource].speed * 1e3);
}

static void print(const struct perf_run *run, const struct ferry_balancer *balance, const uint64_t *bytes,
                  struct line *lines)
{
	const struct ferry_paths *paths = balance->paths;
	uint32_t count = 0;
	for (uint32_t r = 0; r < paths->nresources; r++) {
		lines[count] = (struct line){r, direct_us(paths, bytes, r), ferry_balance_busy_us(balance, r)};
		count += lines[count].before_us > 0 || lines[count].after_us > 0;
	}
	qsort(lines, count, sizeof *lines, by_load);
	printf("# %s, %llu bytes at the busiest rank%s:\n", run->options->skew_given,
	       (unsigned long long)run->options->most,
	       ferry_env("FERRY_HOST_LINK") ? "" : ", if each link had 1 GB/s");
	printf("# at least %.0f us by direct paths, %.0f us as planned among all paths (%.2f times as fast)\n",
	       balance->direct_us, balance->us, balance->direct_us / balance->us);
	printf("# busy            %-*s  %s\n", BAR + 7, "  by direct paths", "  as planned");
	for (uint32_t i = 0; i < count && i < MOST_LINES; i++) {
		print_name(&paths->resources[lines[i].resource]);
		print_bar(lines[i].before_us, balance->direct_us);
		print_bar(lines[i].after_us, balance->direct_us);
		printf("\n");
	}
	if (count > MOST_LINES)
		printf("# and %u less busy ones\n", count - MOST_LINES);
}

void perf_print_load(const struct perf_run *run)
{
	int n = run->rank.nranks;
	struct ferry_links links;
	struct ferry_path_limits limits;
	struct ferry_paths paths = {0};
	struct ferry_balancer balance = {0};
	uint64_t *bytes = calloc((size_t)n * (size_t)n, sizeof *bytes);
	struct line *lines = NULL;
	if (bytes && find_links(n, &links, &limits) && ferry_paths_make(&links, (uint32_t)n, &limits, &paths) &&
	    ferry_balance_open(&balance, &paths) && (lines = calloc(paths.nresources + 1, sizeof *lines))) {
		fill(run, bytes);
		ferry_balance_plan(&balance, bytes);
		print(run, &balance, bytes, lines);
	}
	free(lines);
	free(bytes);
	ferry_balance_close(&balance);
	ferry_paths_free(&paths);
}
