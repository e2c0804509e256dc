/* SPDX-License-Identifier: Apache-2.0 */
#include "launch/screen.h"

#include "ipc/error.h"
#include "ipc/rankset.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BYTES_TEXT 16
#define WAITS      26 /* characters of the last column of jobs */
#define LINKS      11 /* characters of the last column of GPUs */
#define LINKS_TEXT 32
#define PART_TEXT  48

/* ---- a table ---- */

/* Prints at most four digits, and the unit, a power of 1024. */
static const char *print_bytes(uint64_t bytes, char text[BYTES_TEXT])
{
	static const char units[] = "BKMGTPE";
	double value = (double)bytes;
	int unit = 0;
	for (; value >= 1000; unit++)
		value /= 1024;
	snprintf(text, BYTES_TEXT, unit && value < 100 ? "%.1f%c" : "%.0f%c", value, units[unit]);
	return text;
}

static void print_silent(const struct ferry_router_report *router, FILE *out)
{
	char pid[16] = "?";
	if (router->pid)
		snprintf(pid, sizeof pid, "%d", (int)router->pid);
	fprintf(out, "%-14s %7s %6u %7s %5s %8s %5s %6s %8s\n", router->socket.place, pid, router->domain, "?", "?",
	        "?", "?", "?", "silent");
}

static void print_routers(const struct ferry_rows *rows, size_t count, FILE *out)
{
	char staging[BYTES_TEXT], busy[16];
	if (!count)
		return;
	fprintf(out, "%-14s %7s %6s %7s %5s %8s %5s %6s %8s\n", "ROUTER", "PID", "DOMAIN", "WORKERS", "BUSY", "STAGING",
	        "JOBS", "RANKS", "GB/S");
	for (size_t i = 0; i < count; i++) {
		const struct ferry_router_row *row = &rows->routers[i];
		const struct ferry_router_report *router = row->report;
		const struct ferry_counters *counters = router->counters;
		if (router->silent) {
			print_silent(router, out);
			continue;
		}
		if (!counters) {
			fprintf(out, "%-14s %.65s\n", router->socket.place, router->trouble);
			continue;
		}
		snprintf(busy, sizeof busy, counters->draining ? "drain" : "%.0f%%", 100 * row->busy);
		fprintf(out, "%-14s %7d %6u %7u %5s %8s %5u %6u %8.2f\n", router->socket.place, (int)router->pid,
		        router->domain, counters->workers, busy, print_bytes(counters->staging, staging),
		        counters->jobs,
		        counters->ranks, row->gbps);
	}
}

/* Prints what a job waits for, or the ranks that it waits for, in WAITS characters. */
static void print_waits(const struct ferry_job_row *row, char text[WAITS + 1])
{
	char ranks[FERRY_RANKSET_TEXT], all[FERRY_RANKSET_TEXT + 64];
	uint64_t absent = ferry_rankset_all(row->nranks) & ~row->attached;
	if (row->state == FERRY_JOB_FAILED)
		snprintf(all, sizeof all, "nobody: it has failed");
	else if (absent)
		snprintf(all, sizeof all, "%s to attach", ferry_rankset_print(absent, ranks));
	else if (row->blockers)
		snprintf(all, sizeof all, "%s, %.*f s", ferry_rankset_print(row->blockers, ranks), row->waited_s < 10,
		         row->waited_s);
	else
		snprintf(all, sizeof all, "-");
	bool fits = strlen(all) <= WAITS;
	snprintf(text, WAITS + 1, fits ? "%s" : "%.23s...", all);
}

static void print_jobs(const struct ferry_rows *rows, size_t count, FILE *out)
{
	char attached[16], moved[BYTES_TEXT], waits[WAITS + 1];
	if (!count)
		return;
	fprintf(out, "\n%-6s %-14s %5s %9s %7s %7s %s\n", "JOB", "ROUTER", "RANKS", "CALLS", "MOVED", "GB/S",
	        "WAITS FOR");
	for (size_t i = 0; i < count; i++) {
		const struct ferry_job_row *row = &rows->jobs[i];
		print_waits(row, waits);
		snprintf(attached, sizeof attached, "%d/%u", __builtin_popcountll(row->attached & ~row->left),
		         row->nranks);
		fprintf(out, "%06x %-14s %5s %9llu %7s %7.2f %s\n", row->name, row->place, attached,
		        (unsigned long long)row->calls, print_bytes(row->d2h + row->h2d, moved), row->gbps, waits);
	}
}

static size_t count_taken_over(const struct ferry_rows *rows)
{
	size_t count = 0;
	for (size_t i = 0; i < rows->njobs; i++)
		count += rows->jobs[i].takeovers > 0;
	return count;
}

/* Prints a line for each job one of whose routers has died. */
static void print_takeovers(const struct ferry_rows *rows, size_t count, FILE *out)
{
	if (count)
		fprintf(out, "\n");
	for (size_t i = 0; i < rows->njobs && count; i++) {
		const struct ferry_job_row *row = &rows->jobs[i];
		if (!row->takeovers)
			continue;
		fprintf(out, "%06x router replaced %llu time%s, the last in %.1f ms, %.0f s ago\n", row->name,
		        (unsigned long long)row->takeovers, row->takeovers == 1 ? "" : "s", row->takeover_ms,
		        row->takeover_ago_s);
		count--;
	}
}

/* Returns the link to another GPU of the router; NULL: there is none, or the router has not known that GPU yet. */
static const struct ferry_gpu_link *link_to(const struct ferry_gpu_row *row, const struct ferry_gpu_row *other)
{
	for (uint64_t i = 0; row->router == other->router && i < row->counters->nlinks; i++)
		if (!memcmp(row->counters->links[i].to, other->counters->uuid, FERRY_GPU_BYTES))
			return &row->counters->links[i];
	return NULL;
}

/* Prints the rank of the link to each GPU of the router, in the order of the rows. */
static void print_links(const struct ferry_rows *rows, const struct ferry_gpu_row *row, char text[LINKS_TEXT])
{
	unsigned count = 0, reached = 0;
	for (size_t i = 0; i < rows->ngpus; i++) {
		const struct ferry_gpu_row *other = &rows->gpus[i];
		const struct ferry_gpu_link *link = link_to(row, other);
		if (row->router != other->router)
			continue;
		char rank = !link ? '.' : link->rank > 9 ? '+' : (char)('0' + link->rank);
		if (count < LINKS)
			text[count] = row == other ? '-' : rank;
		reached += link != NULL;
		count++;
	}
	if (count <= LINKS)
		text[count] = '\0';
	else
		snprintf(text, LINKS_TEXT, "%u of %u", reached, count - 1);
}

static void print_gpus(const struct ferry_rows *rows, size_t count, FILE *out)
{
	char context[BYTES_TEXT], links[LINKS_TEXT], uuid[FERRY_GPU_TEXT];
	if (!count)
		return;
	fprintf(out, "\n%-40s %-10s %7s %8s %s\n", "GPU", "ROUTER", "PID", "CONTEXT", "LINKS");
	for (size_t i = 0; i < count; i++) {
		const struct ferry_gpu_row *row = &rows->gpus[i];
		print_links(rows, row, links);
		fprintf(out, "%-40s %-10s %7d %8s %s\n", ferry_gpu_uuid_print(row->counters->uuid, uuid),
		        row->router->socket.place,
		        (int)row->router->pid, row->context ? print_bytes(row->context, context) : "?", links);
	}
}

/* Prints a number, or bytes, and its limit; "-": no limit. */
static const char *print_part(uint64_t used, uint64_t limit, bool bytes, char text[PART_TEXT])
{
	char first[PART_TEXT / 2], second[PART_TEXT / 2] = "-";
	if (bytes) {
		print_bytes(used, first);
		if (limit != UINT64_MAX)
			print_bytes(limit, second);
	} else {
		snprintf(first, sizeof first, "%llu", (unsigned long long)used);
		if (limit != UINT64_MAX)
			snprintf(second, sizeof second, "%llu", (unsigned long long)limit);
	}
	snprintf(text, PART_TEXT, "%s/%s", first, second);
	return text;
}

static void print_tenants(const struct ferry_rows *rows, size_t count, FILE *out)
{
	char jobs[PART_TEXT], ranks[PART_TEXT], plans[PART_TEXT], staging[PART_TEXT], windows[PART_TEXT];
	if (!count)
		return;
	fprintf(out, "\n%-14s %-10s %6s %6s %9s %9s %9s %11s %11s\n", "TENANT", "ROUTER", "DOMAIN", "WEIGHT", "JOBS",
	        "RANKS", "PLANS", "STAGING", "WINDOWS");
	for (size_t i = 0; i < count; i++) {
		const struct ferry_tenant_row *row = &rows->tenants[i];
		const struct ferry_tenant_counters *tenant = row->counters;
		fprintf(out, "%-14.14s %-10s %6u %6llu %9s %9s %9s %11s %11s%s\n", tenant->name,
		        row->router->socket.place, row->router->domain, (unsigned long long)tenant->weight,
		        print_part(tenant->jobs, tenant->jobs_limit, false, jobs),
		        print_part(tenant->ranks, tenant->ranks_limit, false, ranks),
		        print_part(tenant->plans, tenant->plans_limit, false, plans),
		        print_part(tenant->staging, tenant->staging_limit, true, staging),
		        print_part(tenant->windows, tenant->windows_limit, true, windows),
		        row->router->counters->config_bad ? " !" : "");
	}
}

void ferry_screen_print_none(const struct ferry_sockets *sockets, FILE *out)
{
	if (sockets->missing)
		fprintf(out, "no router answers: there is no directory %s, nor one of a ferryrun\n",
		        sockets->directory);
	else
		fprintf(out, "no router answers in %s, nor in the directory of a ferryrun\n", sockets->directory);
}

enum table { ROUTERS, JOBS, TAKEOVERS, GPUS, TENANTS, TABLES };

/* Finds how many rows of each table fit on the screen: equally many of each, or all of a table that has fewer. */
static void fit(const size_t all[TABLES], size_t lines, size_t shown[TABLES])
{
	static const size_t heads[TABLES] = {3, 2, 1, 2, 2}; /* the first with the screen's own */
	size_t taken = 1;                              /* the cursor's */
	for (int table = 0; table < TABLES; table++)
		taken += (shown[table] = all[table]) ? heads[table] + all[table] : 0;
	if (!lines || taken <= lines)
		return;
	taken = 2; /* and the line that says how many are left out */
	for (int table = 0; table < TABLES; table++) {
		shown[table] = all[table] && taken + heads[table] < lines;
		taken += shown[table] ? heads[table] + 1 : 0;
	}
	for (bool more = true; more && taken < lines;) {
		more = false;
		for (int table = 0; table < TABLES && taken < lines; table++)
			if (shown[table] && shown[table] < all[table]) {
				shown[table]++;
				taken++;
				more = true;
			}
	}
}

static void print_left_out(const size_t all[TABLES], const size_t shown[TABLES], FILE *out)
{
	static const char *const nouns[TABLES] = {"router", "job", "takeover", "GPU", "tenant"};
	const char *between = "left out: ";
	for (int table = 0; table < TABLES; table++) {
		size_t left = all[table] - shown[table];
		if (!left)
			continue;
		fprintf(out, "%s%zu %s%s", between, left, nouns[table], left == 1 ? "" : "s");
		between = ", ";
	}
	if (*between == ',')
		fprintf(out, " (--once has all)\n");
}

void ferry_screen_print(const struct ferry_rows *rows, const struct ferry_sockets *sockets, size_t lines, FILE *out)
{
	const size_t all[TABLES] = {rows->nrouters, rows->njobs, count_taken_over(rows), rows->ngpus, rows->ntenants};
	size_t shown[TABLES];
	char now[16] = "";
	time_t seconds = time(NULL);
	struct tm broken;
	if (!rows->nrouters) {
		ferry_screen_print_none(sockets, out);
		return;
	}
	if (localtime_r(&seconds, &broken))
		strftime(now, sizeof now, "%H:%M:%S", &broken);
	fprintf(out, "%s  %zu router%s, %zu job%s; busy and GB/s: means over %.1f s\n\n", now, rows->nrouters,
	        rows->nrouters == 1 ? "" : "s", rows->njobs, rows->njobs == 1 ? "" : "s", rows->interval_s);
	fit(all, lines, shown);
	print_routers(rows, shown[ROUTERS], out);
	print_jobs(rows, shown[JOBS], out);
	print_takeovers(rows, shown[TAKEOVERS], out);
	print_gpus(rows, shown[GPUS], out);
	print_tenants(rows, shown[TENANTS], out);
	print_left_out(all, shown, out);
	for (size_t i = 0; i < rows->nrouters && !lines; i++) {
		const struct ferry_counters *counters = rows->routers[i].report->counters;
		if (counters && counters->left_out)
			fprintf(out, "%s, domain %u: %u rows more than its router has room to tell of\n",
			        rows->routers[i].report->socket.place, counters->domain, counters->left_out);
	}
}

/* ---- JSON ---- */

static cJSON *set_of(uint64_t ranks)
{
	cJSON *array = cJSON_CreateArray();
	for (int rank = 0; rank < FERRY_MAX_RANKS; rank++)
		if (ranks >> rank & 1)
			cJSON_AddItemToArray(array, cJSON_CreateNumber(rank));
	return array;
}

static void add_routers(cJSON *list, const struct ferry_rows *rows)
{
	for (size_t i = 0; i < rows->nrouters; i++) {
		const struct ferry_router_report *router = rows->routers[i].report;
		cJSON *object = cJSON_CreateObject();
		cJSON_AddItemToArray(list, object);
		cJSON_AddStringToObject(object, "socket", router->socket.path);
		cJSON_AddStringToObject(object, "place", router->socket.place);
		if (router->pid)
			cJSON_AddNumberToObject(object, "pid", router->pid);
		cJSON_AddNumberToObject(object, "domain", router->domain);
		if (!router->counters) {
			cJSON_AddStringToObject(object, "state", router->silent ? "silent" : "failed");
			cJSON_AddStringToObject(object, "trouble", router->trouble);
			continue;
		}
		const struct ferry_counters *counters = router->counters;
		cJSON_AddStringToObject(object, "state", counters->draining ? "draining" : "serving");
		cJSON_AddNumberToObject(object, "workers", counters->workers);
		cJSON_AddNumberToObject(object, "busy", rows->routers[i].busy);
		cJSON_AddNumberToObject(object, "staging", (double)counters->staging);
		cJSON_AddNumberToObject(object, "staging_limit", (double)counters->staging_limit);
		if (counters->config_bad)
			cJSON_AddTrueToObject(object, "config_bad");
		cJSON_AddNumberToObject(object, "jobs", counters->jobs);
		cJSON_AddNumberToObject(object, "failed", counters->failed);
		cJSON_AddNumberToObject(object, "ranks", counters->ranks);
		cJSON_AddNumberToObject(object, "gbps", rows->routers[i].gbps);
		if (counters->left_out)
			cJSON_AddNumberToObject(object, "left_out", counters->left_out);
	}
}

static void add_jobs(cJSON *list, const struct ferry_rows *rows)
{
	for (size_t i = 0; i < rows->njobs; i++) {
		const struct ferry_job_row *row = &rows->jobs[i];
		cJSON *object = cJSON_CreateObject();
		char name[16];
		snprintf(name, sizeof name, "%06x", row->name);
		cJSON_AddItemToArray(list, object);
		cJSON_AddStringToObject(object, "job", name);
		cJSON_AddStringToObject(object, "place", row->place);
		cJSON_AddStringToObject(object, "state", ferry_job_state_name(row->state));
		if (*row->tenant)
			cJSON_AddStringToObject(object, "tenant", row->tenant);
		cJSON_AddNumberToObject(object, "ranks", row->nranks);
		cJSON_AddItemToObject(object, "attached", set_of(row->attached));
		cJSON_AddItemToObject(object, "left", set_of(row->left));
		cJSON_AddNumberToObject(object, "staging", (double)row->staging);
		cJSON_AddNumberToObject(object, "on_gpus", (double)row->on_gpus);
		cJSON_AddNumberToObject(object, "calls", (double)row->calls);
		cJSON_AddNumberToObject(object, "bytes_up", (double)row->d2h);
		cJSON_AddNumberToObject(object, "bytes_down", (double)row->h2d);
		cJSON_AddNumberToObject(object, "gbps", row->gbps);
		cJSON_AddItemToObject(object, "waiting", set_of(row->waiting));
		cJSON_AddItemToObject(object, "waits_for", set_of(row->blockers));
		cJSON_AddNumberToObject(object, "waited_s", row->waited_s);
		if (row->kernels)
			cJSON_AddNumberToObject(object, "kernel_calls", (double)row->kernel_calls);
		if (!row->takeovers)
			continue;
		cJSON_AddNumberToObject(object, "takeovers", (double)row->takeovers);
		cJSON_AddNumberToObject(object, "takeover_ms", row->takeover_ms);
		cJSON_AddNumberToObject(object, "takeover_ago_s", row->takeover_ago_s);
	}
}

static void add_links(cJSON *list, const struct ferry_rows *rows, const struct ferry_gpu_row *row)
{
	char uuid[FERRY_GPU_TEXT];
	for (size_t i = 0; i < rows->ngpus; i++) {
		const struct ferry_gpu_link *link = link_to(row, &rows->gpus[i]);
		if (!link)
			continue;
		cJSON *object = cJSON_CreateObject();
		cJSON_AddItemToArray(list, object);
		cJSON_AddStringToObject(object, "gpu", ferry_gpu_uuid_print(rows->gpus[i].counters->uuid, uuid));
		cJSON_AddNumberToObject(object, "rank", link->rank);
		cJSON_AddBoolToObject(object, "atomics", link->atomics);
	}
}

static void add_gpus(cJSON *list, const struct ferry_rows *rows)
{
	char uuid[FERRY_GPU_TEXT];
	for (size_t i = 0; i < rows->ngpus; i++) {
		const struct ferry_gpu_row *row = &rows->gpus[i];
		cJSON *object = cJSON_CreateObject();
		cJSON_AddItemToArray(list, object);
		cJSON_AddStringToObject(object, "gpu", ferry_gpu_uuid_print(row->counters->uuid, uuid));
		cJSON_AddNumberToObject(object, "pid", row->router->pid);
		if (row->context)
			cJSON_AddNumberToObject(object, "context", (double)row->context);
		add_links(cJSON_AddArrayToObject(object, "links"), rows, row);
	}
}

static void add_limit(cJSON *object, const char *name, uint64_t limit)
{
	if (limit != UINT64_MAX)
		cJSON_AddNumberToObject(object, name, (double)limit);
}

static void add_tenants(cJSON *list, const struct ferry_rows *rows)
{
	for (size_t i = 0; i < rows->ntenants; i++) {
		const struct ferry_tenant_counters *tenant = rows->tenants[i].counters;
		cJSON *object = cJSON_CreateObject();
		cJSON_AddItemToArray(list, object);
		cJSON_AddStringToObject(object, "tenant", tenant->name);
		cJSON_AddStringToObject(object, "place", rows->tenants[i].router->socket.place);
		cJSON_AddNumberToObject(object, "domain", rows->tenants[i].router->domain);
		cJSON_AddNumberToObject(object, "weight", (double)tenant->weight);
		cJSON_AddNumberToObject(object, "jobs", (double)tenant->jobs);
		cJSON_AddNumberToObject(object, "ranks", (double)tenant->ranks);
		cJSON_AddNumberToObject(object, "plans", (double)tenant->plans);
		cJSON_AddNumberToObject(object, "staging", (double)tenant->staging);
		cJSON_AddNumberToObject(object, "windows", (double)tenant->windows);
		add_limit(object, "jobs_limit", tenant->jobs_limit);
		add_limit(object, "ranks_limit", tenant->ranks_limit);
		add_limit(object, "plans_limit", tenant->plans_limit);
		add_limit(object, "staging_limit", tenant->staging_limit);
		add_limit(object, "job_staging_limit", tenant->job_staging_limit);
		add_limit(object, "windows_limit", tenant->windows_limit);
	}
}

ferryResult_t ferry_screen_print_json(const struct ferry_rows *rows, FILE *out)
{
	cJSON *top = cJSON_CreateObject();
	cJSON_AddNumberToObject(top, "time", (double)time(NULL));
	cJSON_AddNumberToObject(top, "interval_s", rows->interval_s);
	add_routers(cJSON_AddArrayToObject(top, "routers"), rows);
	add_jobs(cJSON_AddArrayToObject(top, "jobs"), rows);
	add_gpus(cJSON_AddArrayToObject(top, "gpus"), rows);
	if (rows->ntenants)
		add_tenants(cJSON_AddArrayToObject(top, "tenants"), rows);
	char *text = cJSON_PrintUnformatted(top);
	cJSON_Delete(top);
	if (!text)
		return ferry_fail(ferrySystemError, "no memory for %zu jobs as JSON", rows->njobs);
	fprintf(out, "%s\n", text);
	free(text);
	return ferrySuccess;
}
