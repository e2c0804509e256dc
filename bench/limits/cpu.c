/* SPDX-License-Identifier: Apache-2.0 */
/* What machine this is, and what its cores can do: memcpy and the reduction by teams of threads, in and out of cache.
 */
#include "bench/command/sample.h"
#include "bench/limits/measure.h"
#include "bench/limits/rate.h"
#include "bench/limits/table.h"
#include "ipc/error.h"
#include "ipc/layout.h"
#include "ipc/machine.h"
#include "ipc/process.h"
#include "router/reduce/reduce.h"

#include <errno.h>
#include <hwloc.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SOURCES     4
#define PIECE       (64ull << 10)  /* of the result per call: the clock is looked at in between */
#define APART       576            /* an odd number of lines, or the streams would meet in the same cache sets */
#define MOST_MEMORY (1ull << 30)
#define MOST_TEAM   256

/* ---- the machine ---- */

ferryResult_t limits_find_machine(struct ferry_limits *limits)
{
	struct ferry_layout layout;
	ferryResult_t result = ferry_layout_load(&layout);
	if (result)
		return result;
	limits->ndomains = (int)layout.ndomains;
	for (uint32_t i = 0; i < layout.ndomains; i++)
		limits->domains[i] =
		        (struct ferry_limits_domain){(int)layout.domains[i].ncpus, layout.domains[i].node,
		                                     layout.domains[i].core_cache_bytes, layout.domains[i].cache_bytes};
	hwloc_topology_t machine = ferry_machine_here();
	if (!machine)
		return ferrySystemError;
	limits->cpus = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU);
	limits->cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE);
	limits->numa_nodes = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
	hwloc_obj_t package = hwloc_get_obj_by_type(machine, HWLOC_OBJ_PACKAGE, 0);
	const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
	snprintf(limits->cpu, sizeof limits->cpu, "%s", model ? model : "unknown CPU");
	limits->cores = limits->cores > 0 ? limits->cores : limits->cpus;
	return ferrySuccess;
}

/* ---- a team ---- */

enum work { POPULATE, COPY, SUM };

/* What each thread of a team does, in its own `room` bytes of memory, with the first `bytes` of them. */
struct team {
	enum work work;
	enum ferry_store store; /* of SUM */
	int threads;
	char *memory;
	uint64_t room, bytes;
	struct rate_schedule schedule;
};

struct member {
	const struct team *team;
	char *memory;
	struct rate_count count;
};

static void reduce_piece(const struct team *team, char *memory, uint64_t stride, uint64_t bytes)
{
	const void *sources[SOURCES];
	struct ferry_reduction reduction = {.type = ferryFloat32, .op = ferrySum, .store = team->store, .divisor = 1};
	for (int i = 0; i < SOURCES; i++)
		sources[i] = memory + (uint64_t)i * stride;
	ferry_reduce(memory + SOURCES * stride, sources, SOURCES, bytes / sizeof(float), &reduction);
}

static void *work(void *argument)
{
	struct member *member = argument;
	const struct team *team = member->team;
	if (team->work == POPULATE)
		return memset(member->memory, 0, team->bytes);
	uint64_t parts = team->work == COPY ? 2 : SOURCES + 1;
	uint64_t stride = team->bytes / parts / 64 * 64, each = stride - APART;
	double end = rate_schedule_end_us(&team->schedule);
	for (uint64_t offset = 0; sample_now_us() < end; offset = offset + PIECE < each ? offset + PIECE : 0) {
		uint64_t bytes = each - offset < PIECE ? each - offset : PIECE;
		if (team->work == COPY)
			memcpy(member->memory + stride + offset, member->memory + offset, bytes);
		else
			reduce_piece(team, member->memory + offset, stride, bytes);
		__asm__ volatile("" : : "r"(member->memory) : "memory"); /* every one of them is wanted */
		rate_count_add(&member->count, &team->schedule, sample_now_us(), (double)bytes);
	}
	return NULL;
}

static ferryResult_t send_out(const struct team *team, struct rate_count *sum)
{
	static struct member members[MOST_TEAM];
	static pthread_t ids[MOST_TEAM];
	int started = 0, refused = 0;
	for (; started < team->threads && !refused; started += !refused) {
		members[started] = (struct member){.team = team,
		                                   .memory = team->memory + (uint64_t)started * team->room};
		refused = pthread_create(&ids[started], NULL, work, &members[started]);
	}
	for (int i = 0; i < started; i++) {
		pthread_join(ids[i], NULL);
		rate_count_join(sum, &members[i].count);
	}
	return !refused ? ferrySuccess
	                : ferry_fail(ferrySystemError, "starting thread %d of %d: %s%s", started, team->threads,
	                             strerror(refused), ferry_ulimit_threads_hint(refused));
}

/* ---- what is measured ---- */

static ferryResult_t measure_pass(struct ferry_limits *limits, struct team *team, uint64_t bytes, bool cached)
{
	static const char *const stores[] = {"ordinary", "stream", "demote"};
	struct rate_count sum = {0};
	bool copies = team->work == COPY;
	team->bytes = bytes;
	team->schedule = rate_schedule_now(limits->quick);
	limits_progress("%d thread%s, %s cache", team->threads, team->threads > 1 ? "s" : "", cached ? "in" : "out of");
	ferryResult_t result = send_out(team, &sum);
	if (result)
		return result;
	struct ferry_limits_pass *pass = &limits->passes[limits->npasses++];
	*pass = (struct ferry_limits_pass){.threads = team->threads, .cached = cached,
	                                   .working_set = bytes * (uint64_t)team->threads};
	snprintf(pass->work, sizeof pass->work, "%s", copies ? "memcpy" : "sum of 4 f32 sources");
	snprintf(pass->store, sizeof pass->store, "%s", copies ? "" : stores[team->store]);
	pass->gbps = rate_gbps(&sum, &team->schedule);
	return ferrySuccess;
}

/* core_cache: a core's own. */
static ferryResult_t measure_team(struct ferry_limits *limits, struct team *team, uint64_t core_cache)
{
	for (int cached = 1; cached >= 0; cached--) {
		uint64_t bytes = cached && core_cache / 2 < team->room ? core_cache / 2 : team->room;
		team->work = COPY;
		ferryResult_t result = measure_pass(limits, team, bytes, cached);
		team->work = SUM;
		for (int store = 0; store < FERRY_NUM_STORES && !result; store++) {
			team->store = (enum ferry_store)store;
			result = measure_pass(limits, team, bytes, cached);
		}
		if (result)
			return result;
	}
	return ferrySuccess;
}

/* 1, 4, 16 and half of the cores, ascending, as far as there are cores (few: all of them too). Returns how many. */
static int find_teams(const struct ferry_limits *limits, int teams[4])
{
	const int wanted[] = {1, 4, 16};
	int half = limits->cores / 2 < MOST_TEAM ? limits->cores / 2 : MOST_TEAM, count = 0;
	for (int i = 0; i < 3; i++) {
		if (half > (i ? wanted[i - 1] : 0) && half < wanted[i])
			teams[count++] = half;
		if (wanted[i] <= limits->cores)
			teams[count++] = wanted[i];
	}
	if (half > 16)
		teams[count++] = half;
	if (limits->cores > 1 && limits->cores < 4)
		teams[count++] = limits->cores;
	return count;
}

/* Four times the last-level caches, as far as there is memory; at least 64 MiB. */
static uint64_t out_of_cache(const struct ferry_limits *limits)
{
	uint64_t caches = 0, most = MOST_MEMORY;
	long pages = sysconf(_SC_AVPHYS_PAGES);
	for (int i = 0; i < limits->ndomains; i++)
		caches += limits->domains[i].llc_bytes;
	if (pages > 0 && (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 4 < most)
		most = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
	caches = caches ? 4 * caches : 256ull << 20;
	caches = caches < most ? caches : most;
	return caches > 64ull << 20 ? caches : 64ull << 20;
}

ferryResult_t limits_measure_cpu(struct ferry_limits *limits)
{
	int teams[4], count = find_teams(limits, teams);
	uint64_t bytes = out_of_cache(limits), l2 = limits->domains[0].l2_bytes, core_cache = l2 ? l2 : 1 << 20;
	char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ferryResult_t result = ferrySuccess;
	if (memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping %llu bytes to reduce: %s", (unsigned long long)bytes,
		                  strerror(errno));
	limits_progress("populating %llu MiB", (unsigned long long)bytes >> 20);
	/* The largest team touches it first: on several nodes each thread's part lies near where such threads run. */
	for (int i = -1; i < count && !result; i++) {
		struct team team = {.work = POPULATE, .threads = teams[i < 0 ? count - 1 : i], .memory = memory};
		struct rate_count unused = {0};
		team.room = team.bytes = bytes / (uint64_t)team.threads / 4096 * 4096;
		result = i < 0 ? send_out(&team, &unused) : measure_team(limits, &team, core_cache);
	}
	munmap(memory, bytes);
	return result;
}
