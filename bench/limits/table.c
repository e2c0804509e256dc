/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits/table.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#define BAR 40

void limits_progress(const char *format, ...)
{
	char text[128];
	va_list values;
	if (!isatty(STDERR_FILENO))
		return;
	va_start(values, format);
	vsnprintf(text, sizeof text, format, values);
	va_end(values);
	fprintf(stderr, *text ? "\r# %-76.76s" : "\r%78s\r", text);
	fflush(stderr);
}

/* One line: a name, a rate, and a bar as long as its share of `full`. */
__attribute__((format(printf, 3, 4))) static void print_rate(double gbps, double full, const char *format, ...)
{
	static const char bar[] = "########################################";
	int length = full > 0 ? (int)(gbps / full * BAR + 0.5) : 0;
	char name[96];
	va_list values;
	va_start(values, format);
	vsnprintf(name, sizeof name, format, values);
	va_end(values);
	printf("  %-40s %8.1f  %.*s\n", name, gbps, length < BAR ? length : BAR, bar);
}

struct size {
	char text[24];
};

static struct size size_of(uint64_t bytes)
{
	struct size size;
	bool whole = bytes >= 1 << 20 && bytes % (1 << 20) == 0;
	snprintf(size.text, sizeof size.text, "%u %s", (unsigned)(bytes >> (whole ? 20 : 10)), whole ? "MiB" : "KiB");
	return size;
}

static void print_machine(const struct ferry_limits *limits)
{
	printf("# %s, %s, %.0f s; GB/s = 1e9 bytes/s, medians\n", limits->command, limits->date, limits->seconds);
	printf("%s, %d core%s (%d CPUs), %d NUMA node%s\n", limits->cpu, limits->cores, limits->cores == 1 ? "" : "s",
	       limits->cpus, limits->numa_nodes, limits->numa_nodes == 1 ? "" : "s");
	for (int i = 0; i < limits->ngpus; i++) {
		char node[32] = "node unknown";
		if (limits->gpus[i].numa_node >= 0)
			snprintf(node, sizeof node, "node %d", limits->gpus[i].numa_node);
		printf("GPU %d: %s, %s, %s\n", i, limits->gpus[i].name, limits->gpus[i].pci, node);
	}
	if (limits->ngpus)
		printf("driver: CUDA %d.%d\n", limits->cuda_driver / 1000, limits->cuda_driver % 1000 / 10);
	else if (*limits->no_gpu)
		printf("no GPU (%s): nothing was measured\n", limits->no_gpu);
}

static double sum(const struct ferry_limits_rates *rates)
{
	return rates->d2h + rates->h2d;
}

static void print_ways(const struct ferry_limits_rates *alone, const struct ferry_limits_rates *both, double full,
                       const char *name)
{
	print_rate(alone->d2h, full, "%s D2H", name);
	print_rate(alone->h2d, full, "%s H2D", name);
	print_rate(sum(both), full, "%s both: %.1f + %.1f", name, both->d2h, both->h2d);
}

static void print_gpus(const struct ferry_limits *limits)
{
	double full = 0;
	for (int i = 0; i < limits->ngpus; i++)
		full = sum(&limits->gpus[i].both) > full ? sum(&limits->gpus[i].both) : full;
	printf("\nEach GPU by itself (GB/s)\n");
	for (int i = 0; i < limits->ngpus; i++) {
		char name[16];
		snprintf(name, sizeof name, "GPU %d", i);
		print_ways(&limits->gpus[i].alone, &limits->gpus[i].both, full, name);
	}
}

static void print_windows(const struct ferry_limits *limits)
{
	double full = 0;
	int gpus = 0;
	for (int i = 0; i < limits->nwindows; i++)
		full = sum(&limits->windows[i].both) > full ? sum(&limits->windows[i].both) : full;
	for (int i = 0; i < limits->nwindows; i++) {
		const struct ferry_limits_window *window = &limits->windows[i];
		struct size size = size_of(window->bytes);
		if (window->gpus != gpus)
			printf("\n%d GPU%s at once, by window of host memory per GPU (GB/s in all)\n", window->gpus,
			       window->gpus > 1 ? "s" : "");
		gpus = window->gpus;
		print_ways(&window->alone, &window->both, full, size.text);
	}
}

static void print_costs(const struct ferry_limits *limits)
{
	const struct ferry_limits_copy *copy = &limits->copy;
	printf("\nFixed costs of GPU 0 (us)\n");
	printf("  %-40s %8.2f  then %.1f GB/s\n", "a D2H copy", copy->d2h_overhead_us, copy->d2h);
	printf("  %-40s %8.2f  then %.1f GB/s\n", "an H2D copy", copy->h2d_overhead_us, copy->h2d);
	printf("  %-40s %8.2f\n", "enqueueing a copy", copy->enqueue_us);
}

static const struct ferry_limits_link *link_of(const struct ferry_limits *limits, int from, int to)
{
	for (int i = 0; i < limits->nlinks; i++)
		if (limits->links[i].from == from && limits->links[i].to == to)
			return &limits->links[i];
	return NULL;
}

/* One figure of each pair, a row for each GPU that pushes; the figure is so far into a link. */
static void print_pairs(const struct ferry_limits *limits, const char *title, size_t figure)
{
	printf("%s\n  %-8s", title, "from, to");
	for (int to = 0; to < limits->ngpus; to++)
		printf(" %7d", to);
	for (int from = 0; from < limits->ngpus; from++) {
		printf("\n  %-8d", from);
		for (int to = 0; to < limits->ngpus; to++) {
			const struct ferry_limits_link *link = link_of(limits, from, to);
			if (link)
				printf(" %7.1f", *(const double *)((const char *)link + figure));
			else
				printf(" %7s", "-");
		}
	}
	printf("\n");
}

static void print_links(const struct ferry_limits *limits)
{
	double full = 0;
	printf("\nCopies from GPU to GPU, into the other's memory (GB/s)\n");
	if (!limits->nlinks) {
		printf("  not measured: %s\n", limits->no_links);
		return;
	}
	print_pairs(limits, "  one way alone", offsetof(struct ferry_limits_link, alone));
	print_pairs(limits, "  one way, while the other is at work", offsetof(struct ferry_limits_link, both));
	print_pairs(limits, "  fixed cost of a copy (us)", offsetof(struct ferry_limits_link, overhead_us));
	printf("  all at once, into all others that it reaches\n");
	for (int i = 0; i < limits->ngpus; i++)
		full = limits->gpus[i].push > full ? limits->gpus[i].push : full;
	for (int i = 0; i < limits->ngpus; i++)
		print_rate(limits->gpus[i].push, full, "from GPU %d", i);
}

void limits_print(const struct ferry_limits *limits)
{
	print_machine(limits);
	if (limits->ngpus)
		print_gpus(limits);
	if (limits->nwindows)
		print_windows(limits);
	if (limits->copy.d2h > 0)
		print_costs(limits);
	if (limits->nlinks || *limits->no_links)
		print_links(limits);
}
