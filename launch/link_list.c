/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/link_list.h"

#include <stdlib.h>
#include <string.h>

#define BAR 24
static const char full_bar[] = "########################";

static int compare_numbers(const void *one, const void *other)
{
	uint64_t a = ((const struct ferry_link_counters *)one)->number;
	uint64_t b = ((const struct ferry_link_counters *)other)->number;
	return a < b ? -1 : a > b;
}

/*
 * Returns the link's bytes in the report before; the bytes of now if the router was not in it, so that its rate is 0.
 */
static uint64_t bytes_before(const struct ferry_report *before, const struct ferry_router_report *router,
                             const struct ferry_link_counters *row)
{
	for (size_t i = 0; i < before->nrouters; i++) {
		const struct ferry_counters *counters = before->routers[i].counters;
		if (!counters || before->routers[i].pid != router->pid)
			continue;
		const struct ferry_link_counters *found = bsearch(row, counters->link_rows, counters->nlink_rows,
		                                                  sizeof *row, compare_numbers);
		return !found ? 0 : found->bytes < row->bytes ? found->bytes : row->bytes;
	}
	return row->bytes;
}

static double gbps_of(const struct ferry_report *before, const struct ferry_report *now, size_t router,
                      const struct ferry_link_counters *row)
{
	double ns = (double)(now->taken_ns - before->taken_ns);
	return ns > 0 ? (double)(row->bytes - bytes_before(before, &now->routers[router], row)) / ns : 0;
}

static void print_row(const struct ferry_link_counters *row, double gbps, double most, FILE *out)
{
	double part = most > 0 ? gbps / most : 0;
	fprintf(out, "%06x %4u %4u %12.1f %9.3f  %.*s\n", (unsigned)row->job, (unsigned)(row->number >> 8 & 0xff),
	        (unsigned)(row->number & 0xff), (double)row->bytes / (1 << 20), gbps, (int)(part * BAR + 0.5),
	        full_bar);
}

static void print_json(const struct ferry_link_counters *row, double gbps, FILE *out)
{
	fprintf(out, "{\"job\":\"%06x\",\"from\":%u,\"to\":%u,\"bytes\":%llu,\"gbps\":%.6f}\n",
	        (unsigned)row->job, (unsigned)(row->number >> 8 & 0xff), (unsigned)(row->number & 0xff),
	        (unsigned long long)row->bytes, gbps);
}

static double most_gbps(const struct ferry_report *before, const struct ferry_report *now)
{
	double most = 0;
	for (size_t i = 0; i < now->nrouters; i++) {
		const struct ferry_counters *counters = now->routers[i].counters;
		for (uint32_t j = 0; counters && j < counters->nlink_rows; j++) {
			double gbps = gbps_of(before, now, i, &counters->link_rows[j]);
			most = gbps > most ? gbps : most;
		}
	}
	return most;
}

void ferry_link_list_print(const struct ferry_report *before, const struct ferry_report *now, bool json, FILE *out)
{
	double most = most_gbps(before, now);
	size_t count = 0;
	for (size_t i = 0; i < now->nrouters; i++) {
		const struct ferry_counters *counters = now->routers[i].counters;
		for (uint32_t j = 0; counters && j < counters->nlink_rows; j++) {
			const struct ferry_link_counters *row = &counters->link_rows[j];
			double gbps = gbps_of(before, now, i, row);
			if (!json && !count++)
				fprintf(out, "%-6s %4s %4s %12s %9s  %s\n", "JOB", "FROM", "TO", "MOVED MiB", "GB/S",
				        "LOAD");
			if (json)
				print_json(row, gbps, out);
			else
				print_row(row, gbps, most, out);
		}
	}
	if (!count && !json)
		fprintf(out, "No job of this user's pushes from rank to rank.\n");
}
