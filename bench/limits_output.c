/* SPDX-License-Identifier: Apache-2.0 */
/* The limits as a table with bars, and as JSON. */
#include "bench/limits_run.h"

#include "bench/perf.h"
#include "ipc/error.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BAR 40

static const char *const stores[] = {"ordinary", "stream", "demote"};

/* ---- table ---- */

/* One line: a name, a rate, and a bar as long as its share of `full`. */
static void print_rate(const char *name, double gbps, double full)
{
	static const char bar[] = "########################################";
	int length = full > 0 ? (int)(gbps / full * BAR + 0.5) : 0;
	printf("  %-40s %8.1f  %.*s\n", name, gbps, length < BAR ? length : BAR, bar);
}

static void print_size(char text[16], uint64_t bytes)
{
	if (bytes >= 1 << 20 && bytes % (1 << 20) == 0)
		snprintf(text, 16, "%u MiB", (unsigned)(bytes >> 20));
	else
		snprintf(text, 16, "%u KiB", (unsigned)(bytes >> 10));
}

static void print_machine(const struct limits *limits)
{
	printf("# ferry-perf limits%s, %s, %.0f s; GB/s = 1e9 bytes/s, medians\n", limits->quick ? " --quick" : "", limits->date,
	       limits->seconds);
	printf("%s, %d core%s (%d CPUs), %d NUMA node%s\n", limits->cpu, limits->cores, limits->cores == 1 ? "" : "s", limits->cpus,
	       limits->numa_nodes, limits->numa_nodes == 1 ? "" : "s");
	for (uint32_t i = 0; i < limits->layout.ndomains; i++) {
		const struct ferry_domain *domain = &limits->layout.domains[i];
		char core[16], last[16];
		print_size(core, domain->core_cache_bytes);
		print_size(last, domain->cache_bytes);
		printf("domain %u: %u CPUs, L2 %s per core, last-level cache %s\n", i, domain->ncpus, core, last);
	}
	for (int i = 0; i < limits->ngpus; i++) {
		char node[32] = "node unknown";
		if (limits->gpus[i].numa_node >= 0)
			snprintf(node, sizeof node, "node %d", limits->gpus[i].numa_node);
		printf("GPU %d: %s, %s, %s\n", i, limits->gpus[i].name, limits->gpus[i].pci, node);
	}
	if (limits->ngpus)
		printf("driver: CUDA %d.%d\n", limits->driver / 1000, limits->driver % 1000 / 10);
	else if (*limits->no_gpu)
		printf("no GPU (%s): the cores alone were measured\n", limits->no_gpu);
}

static void print_gpus(const struct limits *limits)
{
	double full = 0;
	for (int i = 0; i < limits->ngpus; i++) {
		double both = limits->gpus[i].both.d2h + limits->gpus[i].both.h2d;
		full = both > full ? both : full;
	}
	printf("\nEach GPU by itself (GB/s)\n");
	for (int i = 0; i < limits->ngpus; i++) {
		const struct limits_gpu *gpu = &limits->gpus[i];
		char name[64];
		snprintf(name, sizeof name, "GPU %d D2H", i);
		print_rate(name, gpu->alone.d2h, full);
		snprintf(name, sizeof name, "GPU %d H2D", i);
		print_rate(name, gpu->alone.h2d, full);
		snprintf(name, sizeof name, "GPU %d both: %.1f + %.1f", i, gpu->both.d2h, gpu->both.h2d);
		print_rate(name, gpu->both.d2h + gpu->both.h2d, full);
	}
}

static void print_windows(const struct limits *limits)
{
	double full = 0;
	int gpus = 0;
	for (int i = 0; i < limits->nwindows; i++) {
		double both = limits->windows[i].both.d2h + limits->windows[i].both.h2d;
		full = both > full ? both : full;
	}
	for (int i = 0; i < limits->nwindows; i++) {
		const struct limits_window *window = &limits->windows[i];
		char name[96], size[16];
		print_size(size, window->bytes);
		if (window->gpus != gpus)
			printf("\n%d GPU%s at once, by window of host memory per GPU (GB/s in all)\n", window->gpus, window->gpus > 1 ? "s" : "");
		gpus = window->gpus;
		snprintf(name, sizeof name, "%s D2H", size);
		print_rate(name, window->alone.d2h, full);
		snprintf(name, sizeof name, "%s H2D", size);
		print_rate(name, window->alone.h2d, full);
		snprintf(name, sizeof name, "%s both: %.1f + %.1f", size, window->both.d2h, window->both.h2d);
		print_rate(name, window->both.d2h + window->both.h2d, full);
		if (window->gpus == 1)
			continue;
		snprintf(name, sizeof name, "%s H2D of what D2H wrote (D2H %.1f)", size, window->gather.d2h);
		print_rate(name, window->gather.h2d, full);
	}
}

static void print_costs(const struct limits *limits)
{
	printf("\nCopies of GPU 0 by size (GB/s)\n  %8s %8s %12s %12s\n", "size", "streams", "D2H", "H2D");
	for (int i = 0; i < limits->nsizes; i++) {
		const struct limits_size *size = &limits->sizes[i];
		char text[16];
		print_size(text, size->bytes);
		printf("  %8s %8d %12.1f %12.1f\n", text, size->streams, (double)size->bytes / size->d2h_us / 1e3,
		       (double)size->bytes / size->h2d_us / 1e3);
	}
	printf("\nFixed costs (us)\n");
	printf("  %-40s %8.2f  then %.1f GB/s\n", "a D2H copy", limits->copy.d2h_overhead_us, limits->copy.d2h_gbps);
	printf("  %-40s %8.2f  then %.1f GB/s\n", "an H2D copy", limits->copy.h2d_overhead_us, limits->copy.h2d_gbps);
	printf("  %-40s %8.2f\n", "flag to the GPU, flag back", limits->flags.round_trip_us);
	printf("  %-40s %8.2f\n", "enqueueing a copy", limits->copy.enqueue_us);
	printf("  %-40s %8.2f\n", "enqueueing a memory operation", limits->flags.enqueue_us);
}

static void print_passes(const struct limits *limits)
{
	for (int cached = 1; cached >= 0 && limits->npasses; cached--) {
		double full = 0;
		for (int i = 0; i < limits->npasses; i++)
			if (limits->passes[i].cached == cached && limits->passes[i].gbps > full)
				full = limits->passes[i].gbps;
		printf("\nCores, %s cache (GB/s of result; the sum reads 4 f32 sources, by %s)\n", cached ? "in" : "out of",
		       ferry_reduce_target_name(ferry_reduce_target()));
		for (int i = 0; i < limits->npasses; i++) {
			const struct limits_pass *pass = &limits->passes[i];
			char name[64];
			if (pass->cached != cached)
				continue;
			snprintf(name, sizeof name, "%3d thread%s %s%s", pass->threads, pass->threads > 1 ? "s" : "",
			         pass->copy ? "memcpy" : "sum, store ", pass->copy ? "" : stores[pass->store]);
			print_rate(name, pass->gbps, full);
		}
	}
}

void limits_print(const struct limits *limits)
{
	print_machine(limits);
	if (limits->ngpus)
		print_gpus(limits);
	if (limits->nwindows)
		print_windows(limits);
	if (limits->nsizes)
		print_costs(limits);
	print_passes(limits);
}

/* ---- JSON ---- */

static cJSON *add_row(cJSON *array)
{
	cJSON *row = cJSON_CreateObject();
	cJSON_AddItemToArray(array, row);
	return row;
}

/* Rates as measured, to a hundredth of a GB/s or microsecond: more digits would be noise. */
static void add(cJSON *object, const char *name, double value)
{
	cJSON_AddNumberToObject(object, name, (double)(long long)(value * 100 + 0.5) / 100);
}

static void add_rates(cJSON *object, const char *name, const struct limits_rates *rates)
{
	cJSON *pair = name ? cJSON_AddObjectToObject(object, name) : object;
	add(pair, "d2h", rates->d2h);
	add(pair, "h2d", rates->h2d);
}

static void add_about(cJSON *root, const struct limits *limits)
{
	cJSON *about = cJSON_AddObjectToObject(root, "about");
	cJSON_AddStringToObject(about, "command", limits->quick ? "ferry-perf limits --quick" : "ferry-perf limits");
	cJSON_AddStringToObject(about, "date", limits->date);
	cJSON_AddStringToObject(about, "units", "GB/s = 1e9 bytes/s; names that end in _us are microseconds");
	cJSON_AddBoolToObject(about, "quick", limits->quick);
	add(about, "seconds", limits->seconds);
	cJSON_AddStringToObject(about, "cpu", limits->cpu);
	cJSON_AddNumberToObject(about, "cores", limits->cores);
	cJSON_AddNumberToObject(about, "cpus", limits->cpus);
	cJSON_AddNumberToObject(about, "numa_nodes", limits->numa_nodes);
	if (limits->ngpus)
		cJSON_AddNumberToObject(about, "cuda_driver", limits->driver);
	else
		cJSON_AddStringToObject(about, "no_gpu", limits->no_gpu);
	cJSON *domains = cJSON_AddArrayToObject(root, "domains");
	for (uint32_t i = 0; i < limits->layout.ndomains; i++) {
		const struct ferry_domain *domain = &limits->layout.domains[i];
		cJSON *row = add_row(domains);
		cJSON_AddNumberToObject(row, "cpus", domain->ncpus);
		cJSON_AddNumberToObject(row, "numa_node", domain->node);
		cJSON_AddNumberToObject(row, "l2_bytes", (double)domain->core_cache_bytes);
		cJSON_AddNumberToObject(row, "llc_bytes", (double)domain->cache_bytes);
	}
}

static void add_gpus(cJSON *root, const struct limits *limits)
{
	cJSON *gpus = cJSON_AddArrayToObject(root, "gpus");
	for (int i = 0; i < limits->ngpus; i++) {
		cJSON *row = add_row(gpus);
		cJSON_AddStringToObject(row, "name", limits->gpus[i].name);
		cJSON_AddStringToObject(row, "pci", limits->gpus[i].pci);
		cJSON_AddNumberToObject(row, "numa_node", limits->gpus[i].numa_node);
		add_rates(row, NULL, &limits->gpus[i].alone);
		add_rates(row, "both", &limits->gpus[i].both);
	}
	cJSON *windows = cJSON_AddArrayToObject(root, "windows");
	for (int i = 0; i < limits->nwindows; i++) {
		const struct limits_window *window = &limits->windows[i];
		cJSON *row = add_row(windows);
		cJSON_AddNumberToObject(row, "gpus", window->gpus);
		cJSON_AddNumberToObject(row, "bytes", (double)window->bytes);
		cJSON_AddNumberToObject(row, "copy_bytes", (double)window->copy_bytes);
		add_rates(row, NULL, &window->alone);
		add_rates(row, "both", &window->both);
		if (window->gpus > 1)
			add_rates(row, "gather", &window->gather);
	}
}

static void add_costs(cJSON *root, const struct limits *limits)
{
	cJSON *sizes = cJSON_AddArrayToObject(root, "sizes");
	for (int i = 0; i < limits->nsizes; i++) {
		cJSON *row = add_row(sizes);
		cJSON_AddNumberToObject(row, "bytes", (double)limits->sizes[i].bytes);
		cJSON_AddNumberToObject(row, "streams", limits->sizes[i].streams);
		add(row, "d2h_us", limits->sizes[i].d2h_us);
		add(row, "h2d_us", limits->sizes[i].h2d_us);
	}
	if (!limits->nsizes)
		return;
	cJSON *copy = cJSON_AddObjectToObject(root, "copy");
	add(copy, "d2h_overhead_us", limits->copy.d2h_overhead_us);
	add(copy, "h2d_overhead_us", limits->copy.h2d_overhead_us);
	add(copy, "d2h", limits->copy.d2h_gbps);
	add(copy, "h2d", limits->copy.h2d_gbps);
	add(copy, "enqueue_us", limits->copy.enqueue_us);
	cJSON *flags = cJSON_AddObjectToObject(root, "flags");
	add(flags, "round_trip_us", limits->flags.round_trip_us);
	add(flags, "enqueue_us", limits->flags.enqueue_us);
}

static void add_passes(cJSON *root, const struct limits *limits)
{
	cJSON *passes = cJSON_AddArrayToObject(root, "passes");
	for (int i = 0; i < limits->npasses; i++) {
		const struct limits_pass *pass = &limits->passes[i];
		cJSON *row = add_row(passes);
		cJSON_AddStringToObject(row, "work", pass->copy ? "memcpy" : "sum of 4 f32 sources");
		if (!pass->copy)
			cJSON_AddStringToObject(row, "store", stores[pass->store]);
		cJSON_AddNumberToObject(row, "threads", pass->threads);
		cJSON_AddBoolToObject(row, "cached", pass->cached);
		cJSON_AddNumberToObject(row, "working_set", (double)pass->working_set);
		add(row, "gbps", pass->gbps);
	}
}

ferryResult_t limits_write(const struct limits *limits, const char *path)
{
	cJSON *root = cJSON_CreateObject();
	add_about(root, limits);
	add_gpus(root, limits);
	add_costs(root, limits);
	add_passes(root, limits);
	char *text = cJSON_Print(root);
	bool written = text && perf_write_file(path, text, true);
	int error = errno;
	free(text);
	cJSON_Delete(root);
	return written ? ferrySuccess : ferry_fail(ferrySystemError, "writing %s: %s", path, strerror(error));
}
