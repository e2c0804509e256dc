/* SPDX-License-Identifier: Apache-2.0 */
/* What the cores can do: memcpy and the reduction by teams of threads, in and out of cache. And what machine this is. */
#include "bench/limits_run.h"

#include "bench/perf.h"
#include "ipc/error.h"

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

ferryResult_t limits_find_machine(struct limits *limits)
{
	ferryResult_t result = ferry_layout_load(&limits->layout);
	if (result)
		return result;
	hwloc_topology_t topology;
	if (hwloc_topology_init(&topology))
		return ferry_fail(ferrySystemError, "hwloc_topology_init: %s", strerror(errno));
	if (hwloc_topology_load(topology)) {
		hwloc_topology_destroy(topology);
		return ferry_fail(ferrySystemError, "hwloc cannot read this machine: %s", strerror(errno));
	}
	limits->cpus = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
	limits->cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
	limits->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
	hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
	const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
	snprintf(limits->cpu, sizeof limits->cpu, "%s", model ? model : "unknown CPU");
	hwloc_topology_destroy(topology);
	limits->cores = limits->cores > 0 ? limits->cores : limits->cpus;
	return ferrySuccess;
}

/* ---- a team ---- */

struct team {
	struct limits_schedule schedule;
	const struct limits_pass *pass;
	bool populate; /* only touch the memory */
};

struct member {
	const struct team *team;
	char *memory;
	uint64_t bytes; /* of memory that it works on */
	struct limits_count count;
};

static void reduce_piece(const struct limits_pass *pass, char *memory, uint64_t stride, uint64_t offset, uint64_t bytes)
{
	const void *sources[SOURCES];
	struct ferry_reduction reduction = {.type = ferryFloat32, .op = ferrySum, .store = pass->store, .divisor = 1};
	for (int i = 0; i < SOURCES; i++)
		sources[i] = memory + (uint64_t)i * stride + offset;
	ferry_reduce(memory + SOURCES * stride + offset, sources, SOURCES, bytes / sizeof(float), &reduction);
}

static void *work(void *argument)
{
	struct member *member = argument;
	const struct team *team = member->team;
	const struct limits_pass *pass = team->pass;
	if (team->populate) {
		memset(member->memory, 0, member->bytes);
		return NULL;
	}
	uint64_t parts = pass->copy ? 2 : SOURCES + 1;
	uint64_t stride = member->bytes / parts / 64 * 64, each = stride - APART;
	double end = limits_schedule_end_us(&team->schedule);
	for (uint64_t offset = 0; perf_now_us() < end; offset = offset + PIECE < each ? offset + PIECE : 0) {
		uint64_t bytes = each - offset < PIECE ? each - offset : PIECE;
		if (pass->copy)
			memcpy(member->memory + stride + offset, member->memory + offset, bytes);
		else
			reduce_piece(pass, member->memory, stride, offset, bytes);
		__asm__ volatile("" : : "r"(member->memory) : "memory"); /* every one of them is wanted */
		limits_count_add(&member->count, &team->schedule, perf_now_us(), (double)bytes);
	}
	return NULL;
}

/* Each thread in its own `room` bytes of memory, working on the first `bytes` of them. The sum of their counts. */
static ferryResult_t send_out(const struct team *team, int threads, char *memory, uint64_t room, uint64_t bytes,
                              struct limits_count *sum)
{
	static struct member members[MOST_TEAM];
	static pthread_t ids[MOST_TEAM];
	int started = 0, refused = 0;
	for (; started < threads && !refused; started += !refused) {
		members[started] = (struct member){.team = team, .memory = memory + (uint64_t)started * room, .bytes = bytes};
		refused = pthread_create(&ids[started], NULL, work, &members[started]);
	}
	for (int i = 0; i < started; i++) {
		pthread_join(ids[i], NULL);
		limits_count_join(sum, &members[i].count);
	}
	return !refused ? ferrySuccess
	                : ferry_fail(ferrySystemError, "starting thread %d of %d: %s", started, threads, strerror(refused));
}

/* ---- what is measured ---- */

struct plan {
	char *memory;
	uint64_t bytes, core_cache; /* out of cache, of all threads; a core's own */
};

static ferryResult_t measure_pass(struct limits *limits, const struct plan *plan, struct limits_pass pass)
{
	struct limits_count sum = {0};
	uint64_t room = plan->bytes / (uint64_t)pass.threads / 4096 * 4096;
	uint64_t bytes = pass.cached && plan->core_cache / 2 < room ? plan->core_cache / 2 : room;
	struct team team = {limits_schedule_now(limits), &pass, false};
	limits_progress("%d thread%s, %s cache", pass.threads, pass.threads > 1 ? "s" : "", pass.cached ? "in" : "out of");
	ferryResult_t result = send_out(&team, pass.threads, plan->memory, room, bytes, &sum);
	pass.working_set = bytes * (uint64_t)pass.threads;
	pass.gbps = limits_rate(&sum, &team.schedule);
	if (!result)
		limits->passes[limits->npasses++] = pass;
	return result;
}

static ferryResult_t measure_team(struct limits *limits, const struct plan *plan, int threads)
{
	for (int cached = 1; cached >= 0; cached--) {
		struct limits_pass pass = {.copy = true, .threads = threads, .cached = cached};
		ferryResult_t result = measure_pass(limits, plan, pass);
		pass.copy = false;
		for (int store = 0; store < FERRY_NUM_STORES && !result; store++) {
			pass.store = (enum ferry_store)store;
			result = measure_pass(limits, plan, pass);
		}
		if (result)
			return result;
	}
	return ferrySuccess;
}

/* 1, 4, 16 and half of the cores, ascending, as far as there are cores (few: all of them too). Returns how many. */
static int find_teams(const struct limits *limits, int teams[4])
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
static uint64_t out_of_cache(const struct limits *limits)
{
	uint64_t caches = 0, most = MOST_MEMORY;
	long pages = sysconf(_SC_AVPHYS_PAGES);
	for (uint32_t i = 0; i < limits->layout.ndomains; i++)
		caches += limits->layout.domains[i].cache_bytes;
	if (pages > 0 && (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 4 < most)
		most = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) / 4;
	caches = caches ? 4 * caches : 256ull << 20;
	caches = caches < most ? caches : most;
	return caches > 64ull << 20 ? caches : 64ull << 20;
}

ferryResult_t limits_measure_cpu(struct limits *limits)
{
	int teams[4], count = find_teams(limits, teams);
	struct plan plan = {.bytes = out_of_cache(limits), .core_cache = limits->layout.domains[0].core_cache_bytes};
	if (!plan.core_cache)
		plan.core_cache = 1 << 20;
	plan.memory = mmap(NULL, plan.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (plan.memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping %llu bytes to reduce: %s", (unsigned long long)plan.bytes, strerror(errno));
	/* The largest team touches it first: on several nodes each thread's part lies near where such threads run. */
	int most = teams[count - 1];
	struct team populate = {.populate = true};
	struct limits_count unused = {0};
	uint64_t room = plan.bytes / (uint64_t)most / 4096 * 4096;
	limits_progress("populating %llu MiB", (unsigned long long)plan.bytes >> 20);
	ferryResult_t result = send_out(&populate, most, plan.memory, room, room, &unused);
	for (int i = 0; i < count && !result; i++)
		result = measure_team(limits, &plan, teams[i]);
	munmap(plan.memory, plan.bytes);
	return result;
}
