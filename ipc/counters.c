/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/counters.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x10
#endif

#define GENERATION (offsetof(struct ferry_counters, generation) / sizeof(uint64_t))
#define HEAD       offsetof(struct ferry_counters, job_rows)

_Static_assert(sizeof(struct ferry_counters) == sizeof(struct ferry_counters_page), "a page has whole words");

/* The tables: where the rows begin, bytes of a row, rows at most, and where the head has the number of rows. */
static const struct {
	size_t at, bytes;
	uint32_t most;
	size_t count_at;
} tables[] = {
#define TABLE(rows, count, most) \
	{offsetof(struct ferry_counters, rows), sizeof((struct ferry_counters *)0)->rows[0], most, \
	 offsetof(struct ferry_counters, count)}
        TABLE(job_rows, njob_rows, FERRY_COUNTERS_JOBS),
        TABLE(gpu_rows, ngpu_rows, FERRY_COUNTERS_GPUS),
        TABLE(tenant_rows, ntenant_rows, FERRY_COUNTERS_TENANTS),
        TABLE(share_rows, nshare_rows, FERRY_COUNTERS_SHARES),
        TABLE(link_rows, nlink_rows, FERRY_COUNTERS_LINKS),
};
#define TABLES (sizeof tables / sizeof *tables)

static uint32_t rows_of(const struct ferry_counters *counters, size_t table)
{
	uint32_t count;
	memcpy(&count, (const char *)counters + tables[table].count_at, sizeof count);
	return count;
}

/* ---- the router's side ---- */

/*
 * Returns a descriptor for reading. Neither it nor /proc/self/fd lets another user write, and where the kernel has the
 * seal no other process at all can map the page for writing.
 */
static int close_to_writers(int descriptor)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	char path[40];
	if (fcntl(descriptor, F_ADD_SEALS, seals | F_SEAL_FUTURE_WRITE) && /* Linux before 5.1 lacks the last one */
	    (errno != EINVAL || fcntl(descriptor, F_ADD_SEALS, seals)))
		return -1;
	snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
	return fchmod(descriptor, S_IRUSR) ? -1 : ferry_descriptor_above(open(path, O_RDONLY | O_CLOEXEC));
}

ferryResult_t ferry_counters_create(struct ferry_counters_page **page, int *descriptor)
{
	void *bytes = MAP_FAILED;
	*descriptor = -1;
	int own = ferry_descriptor_above(memfd_create("ferry-counters", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (own >= 0 && !ftruncate(own, sizeof **page))
		bytes = mmap(NULL, sizeof **page, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
	if (bytes != MAP_FAILED)
		*descriptor = close_to_writers(own);
	int error = errno;
	if (own >= 0)
		close(own);
	if (*descriptor < 0 && bytes != MAP_FAILED)
		munmap(bytes, sizeof **page);
	if (*descriptor < 0)
		return ferry_fail(ferrySystemError, "a sealed page of %zu bytes for counters: %s%s", sizeof **page,
		                  strerror(error), ferry_descriptors_hint(error));
	*page = bytes;
	return ferrySuccess;
}

static void store(struct ferry_counters_page *page, const struct ferry_counters *counters, size_t at, size_t bytes)
{
	for (size_t i = at / sizeof(uint64_t); i < (at + bytes) / sizeof(uint64_t); i++) {
		uint64_t word;
		memcpy(&word, (const char *)counters + i * sizeof word, sizeof word);
		if (i != 0 && i != GENERATION)
			atomic_store_explicit(&page->words[i], word, memory_order_release);
	}
}

void ferry_counters_write(struct ferry_counters_page *page, const struct ferry_counters *counters)
{
	const struct {
		uint32_t magic, version;
	} head = {FERRY_COUNTERS_MAGIC, FERRY_COUNTERS_VERSION};
	uint64_t first, generation = atomic_load_explicit(&page->words[GENERATION], memory_order_relaxed);
	memcpy(&first, &head, sizeof first);
	/* The words are stored with release, so a reader that loads a new one finds this odd number, too. */
	atomic_store_explicit(&page->words[GENERATION], generation + 1, memory_order_relaxed);
	atomic_store_explicit(&page->words[0], first, memory_order_release);
	store(page, counters, 0, HEAD);
	for (size_t i = 0; i < TABLES; i++)
		store(page, counters, tables[i].at, rows_of(counters, i) * tables[i].bytes);
	atomic_store_explicit(&page->words[GENERATION], generation + 2, memory_order_release);
}

void ferry_counters_unmap(const struct ferry_counters_page *page)
{
	munmap((void *)(uintptr_t)page, sizeof *page);
}

/* ---- the reader's side ---- */

ferryResult_t ferry_counters_map(int descriptor, const struct ferry_counters_page **page)
{
	struct stat status;
	int seals = fcntl(descriptor, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SHRINK) || fstat(descriptor, &status) ||
	    (uint64_t)status.st_size != sizeof **page) /* if it could shrink, reading might end this process: SIGBUS */
		return ferry_fail(ferryRefused, "the router's counters are no sealed memory of %zu bytes",
		                  sizeof **page);
	void *bytes = mmap(NULL, sizeof **page, PROT_READ, MAP_SHARED, descriptor, 0);
	if (bytes == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping a router's counters: %s", strerror(errno));
	*page = bytes;
	return ferrySuccess;
}

uint64_t ferry_counters_generation(const struct ferry_counters_page *page)
{
	return atomic_load_explicit(&page->words[GENERATION], memory_order_acquire);
}

static void load(const struct ferry_counters_page *page, struct ferry_counters *counters, size_t at, size_t bytes)
{
	for (size_t i = at / sizeof(uint64_t); i < (at + bytes) / sizeof(uint64_t); i++) {
		uint64_t word = atomic_load_explicit(&page->words[i], memory_order_acquire);
		memcpy((char *)counters + i * sizeof word, &word, sizeof word);
	}
}

static ferryResult_t check_head(const struct ferry_counters *head)
{
	if (head->magic != FERRY_COUNTERS_MAGIC || head->version != FERRY_COUNTERS_VERSION)
		return ferry_fail(ferryRefused, "counters of magic %08x and version %u; this command reads %08x and %u",
		                  head->magic, head->version, FERRY_COUNTERS_MAGIC, FERRY_COUNTERS_VERSION);
	for (size_t i = 0; i < TABLES; i++)
		if (rows_of(head, i) > tables[i].most)
			return ferry_fail(ferryRefused, "counters with %u rows in table %zu, which has room for %u",
			                  rows_of(head, i), i, tables[i].most);
	return ferrySuccess;
}

/* As the writer is not trusted: terminates texts within their fields, and clamps counts. */
static void make_sane(struct ferry_counters *counters)
{
	counters->nice[sizeof counters->nice - 1] = '\0';
	for (uint32_t i = 0; i < counters->njob_rows; i++) {
		struct ferry_job_counters *job = &counters->job_rows[i];
		job->tenant[sizeof job->tenant - 1] = '\0';
		job->nranks = job->nranks > FERRY_MAX_RANKS ? FERRY_MAX_RANKS : job->nranks;
	}
	for (uint32_t i = 0; i < counters->ngpu_rows; i++)
		if (counters->gpu_rows[i].nlinks > FERRY_MAX_RANKS)
			counters->gpu_rows[i].nlinks = FERRY_MAX_RANKS;
	for (uint32_t i = 0; i < counters->ntenant_rows; i++)
		counters->tenant_rows[i].name[sizeof counters->tenant_rows[i].name - 1] = '\0';
}

ferryResult_t ferry_counters_read(const struct ferry_counters_page *page, struct ferry_counters *counters)
{
	uint64_t generation = ferry_counters_generation(page);
	if (generation % 2 || !generation)
		return ferryInProgress;
	load(page, counters, 0, HEAD);
	ferryResult_t result = check_head(counters);
	for (size_t i = 0; i < TABLES && !result; i++)
		load(page, counters, tables[i].at, rows_of(counters, i) * tables[i].bytes);
	if (ferry_counters_generation(page) != generation)
		return ferryInProgress;
	if (!result)
		make_sane(counters);
	return result;
}

/* ---- for people ---- */

void ferry_counters_print(const struct ferry_counters *counters, char *text, size_t bytes)
{
	char tenants[40] = "";
	if (counters->config)
		snprintf(tenants, sizeof tenants, " tenants=%u config=%s", counters->tenants,
		         counters->config_bad ? "bad" : "read");
	snprintf(text, bytes,
	         "domain=%u pid=%u state=%s workers=%u nice=%s jobs=%u failed=%u ranks=%u gpus=%u staging=%" PRIu64
	         " staging_limit=%" PRIu64 " memory=%" PRIu64 " slices=%" PRIu64 " bytes=%" PRIu64
	         " calls_ms=%.3f working_ms=%.3f%s",
	         counters->domain, counters->pid, counters->draining ? "draining" : "serving", counters->workers,
	         counters->nice, counters->jobs, counters->failed, counters->ranks, counters->gpus, counters->staging,
	         counters->staging_limit, counters->memory, counters->slices, counters->bytes,
	         (double)counters->calls_ns / 1e6, (double)counters->working_ns / 1e6, tenants);
}

const char *ferry_job_state_name(uint32_t state)
{
	static const char *const names[] = {"attaching", "adopting", "ready", "failed"};
	return state < sizeof names / sizeof *names ? names[state] : "?";
}
