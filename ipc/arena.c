/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/arena.h"

#include "ipc/descriptors.h"
#include "ipc/error.h"

#include <errno.h>
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096u
#define COUNTERS_BYTES ((uint64_t)FERRY_MOST_COUNTERS * sizeof(struct ferry_counter)) /* of a bank: whole pages */
#define PAIR_SLOT_MOST (4u << 20)
#define PAIR_SLOT_LEAST 512u

static uint64_t up_to(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/*
 * All to all among n ranks is the longest plan that Ferry writes itself: n(n-1) D2H, as many H2D, n COPY. Users'
 * programs may have more: their plans back what is missing.
 */
static uint32_t counters_for(uint32_t nranks)
{
	uint32_t alltoall = 2 * nranks * nranks + nranks;
	return alltoall < 512 ? 512 : alltoall;
}

/* Half of the staging again, split evenly over the pairs: few ranks get long slices, 64 ranks short ones. */
static uint32_t pair_slot_bytes_for(const struct ferry_arena_shape *shape)
{
	uint64_t pairs = (uint64_t)shape->nranks * shape->nranks;
	uint64_t slot = shape->staging / 2 / (pairs * FERRY_PAIR_SLOTS) / 64 * 64;
	return slot < PAIR_SLOT_LEAST ? PAIR_SLOT_LEAST : slot > PAIR_SLOT_MOST ? PAIR_SLOT_MOST : (uint32_t)slot;
}

/* What comes behind the pairs' windows, by how long those are. */
static void place_counters(struct ferry_arena_header *header)
{
	uint64_t pairs = (uint64_t)header->nranks * header->nranks;
	header->counters_at =
	        up_to(header->pair_windows_at + pairs * FERRY_PAIR_SLOTS * header->pair_slot_bytes, PAGE);
	header->bytes = header->counters_at + FERRY_BANKS * COUNTERS_BYTES;
}

static void header_for(const struct ferry_arena_shape *shape, struct ferry_arena_header *header)
{
	uint64_t pairs = (uint64_t)shape->nranks * shape->nranks;
	memset(header, 0, sizeof *header);
	header->magic = FERRY_ARENA_MAGIC;
	header->abi = FERRY_ARENA_ABI;
	header->domain = shape->domain;
	header->ndomains = shape->ndomains;
	header->nranks = shape->nranks;
	header->banks = FERRY_BANKS;
	header->counters = counters_for(shape->nranks);
	header->staging = shape->staging / FERRY_BANKS / PAGE * PAGE;
	header->pair_slot_bytes = pair_slot_bytes_for(shape);
	header->rank_lines_at = up_to(sizeof *header, PAGE);
	header->export_cells_at = up_to(header->rank_lines_at + shape->nranks * sizeof(struct ferry_rank_line), PAGE);
	header->rings_at = up_to(header->export_cells_at + (uint64_t)shape->nranks * FERRY_MOST_EXPORTS *
	                                                           sizeof(struct ferry_export_cell),
	                         PAGE);
	header->pair_lines_at = up_to(header->rings_at + (uint64_t)shape->nranks * sizeof(struct ferry_ring), PAGE);
	header->staging_at = up_to(header->pair_lines_at + pairs * sizeof(struct ferry_pair_line), PAGE);
	header->pair_windows_at = header->staging_at + FERRY_BANKS * header->staging;
	place_counters(header);
}

uint64_t ferry_arena_bytes(const struct ferry_arena_shape *shape)
{
	struct ferry_arena_header header;
	header_for(shape, &header);
	return header.bytes;
}

static void view(struct ferry_arena *arena, void *base, const struct ferry_arena_header *header)
{
	char *bytes = base;
	arena->header = base;
	arena->rank_lines = (struct ferry_rank_line *)(bytes + header->rank_lines_at);
	arena->rings = (struct ferry_ring *)(bytes + header->rings_at);
	arena->export_cells = (struct ferry_export_cell *)(bytes + header->export_cells_at);
	arena->pair_lines = (struct ferry_pair_line *)(bytes + header->pair_lines_at);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		arena->counters[bank] =
		        (struct ferry_counter *)(bytes + header->counters_at + bank * COUNTERS_BYTES);
		arena->staging[bank] = bytes + header->staging_at + bank * header->staging;
	}
	arena->pair_windows = bytes + header->pair_windows_at;
	arena->bytes = header->bytes;
	arena->copied_bytes = header->counters_at;
	arena->staging_bytes = header->staging;
	arena->ncounters = header->counters;
	arena->nranks = header->nranks;
	arena->ndomains = header->ndomains;
	arena->domain = header->domain;
	arena->pair_slot_bytes = header->pair_slot_bytes;
}

static ferryResult_t open_unlinked(int *descriptor)
{
	for (int attempt = 0; attempt < 16; attempt++) {
		uint64_t random;
		char name[40];
		if (getrandom(&random, sizeof random, 0) != sizeof random)
			return ferry_fail(ferrySystemError, "getrandom: %s", strerror(errno));
		snprintf(name, sizeof name, "/ferry-%016llx", (unsigned long long)random);
		*descriptor = shm_open(name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
		if (*descriptor >= 0) {
			shm_unlink(name);
			*descriptor = ferry_descriptor_above(*descriptor);
			return *descriptor >= 0 ? ferrySuccess
			                        : ferry_fail(ferrySystemError, "a descriptor for shared memory: %s%s",
			                                     strerror(errno), ferry_descriptors_hint(errno));
		}
		if (errno != EEXIST)
			return ferry_fail(ferrySystemError, "making shared memory /dev/shm%s: %s%s", name,
			                  strerror(errno),
			                  errno == ENOENT || errno == EACCES || errno == EROFS
			                          ? " (is /dev/shm there, and this user allowed to write to it?)"
			                          : ferry_descriptors_hint(errno));
	}
	return ferry_fail(ferrySystemError, "shm_open: 16 random names were all taken");
}

static ferryResult_t bind_to_node(void *base, uint64_t bytes, int node)
{
	if (node < 0 || numa_available() < 0)
		return ferrySuccess;
	struct bitmask *mask = numa_allocate_nodemask();
	numa_bitmask_setbit(mask, (unsigned)node);
	long refused = mbind(base, bytes, MPOL_BIND, mask->maskp, mask->size + 1, 0);
	numa_bitmask_free(mask);
	/*
	 * A container may forbid mbind: the memory then lies where the router first touches it, which is its own
	 * domain.
	 */
	if (refused && errno != EPERM && errno != ENOSYS)
		return ferry_fail(ferrySystemError, "mbind of %llu bytes to NUMA node %d: %s",
		                  (unsigned long long)bytes, node, strerror(errno));
	return ferrySuccess;
}

static ferryResult_t back_counters(int descriptor, uint64_t counters_at, uint32_t counters)
{
	uint64_t bytes = up_to((uint64_t)counters * sizeof(struct ferry_counter), PAGE);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++) {
		int refused = posix_fallocate(descriptor, (off_t)(counters_at + bank * COUNTERS_BYTES), (off_t)bytes);
		if (refused)
			return ferry_fail(ferrySystemError,
			                  "no room in shared memory for %u counters of a program (%llu bytes): %s",
			                  counters, (unsigned long long)(FERRY_BANKS * bytes), strerror(refused));
	}
	return ferrySuccess;
}

ferryResult_t ferry_arena_back_counters(const struct ferry_arena *arena, uint32_t counters)
{
	if (counters <= arena->ncounters)
		return ferrySuccess;
	if (counters > FERRY_MOST_COUNTERS)
		return ferry_fail(ferryProgramError, "%u instructions in domain %u; at most %u", counters,
		                  arena->domain, FERRY_MOST_COUNTERS);
	return back_counters(arena->descriptor, arena->copied_bytes, counters);
}

static ferryResult_t lock_staging(const struct ferry_arena *arena)
{
	struct rlimit limit = {0, 0};
	uint64_t bytes = FERRY_BANKS * arena->staging_bytes;
	if (!bytes || !mlock(arena->staging[0], bytes))
		return ferrySuccess;
	int error = errno;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	return ferry_fail(
	        ferrySystemError,
	        "mlock of %llu bytes of staging: %s (memlock limit %llu bytes; raise ulimit -l or lower FERRY_STAGING)",
	        (unsigned long long)bytes, strerror(error), (unsigned long long)limit.rlim_cur);
}

ferryResult_t ferry_arena_create(const struct ferry_arena_shape *shape, struct ferry_arena *arena)
{
	if (shape->nranks < 1 || shape->nranks > FERRY_MAX_RANKS || shape->ndomains < 1 ||
	    shape->ndomains > FERRY_MAX_DOMAINS || shape->domain >= shape->ndomains)
		return ferry_fail(ferryInvalidArgument, "arena of %u ranks (1 to %d), domain %u of %u (at most %d)",
		                  shape->nranks, FERRY_MAX_RANKS, shape->domain, shape->ndomains, FERRY_MAX_DOMAINS);
	if (shape->staging < FERRY_STAGING_LEAST || shape->staging > FERRY_STAGING_MOST)
		return ferry_fail(ferryInvalidArgument, "staging of %llu bytes: at least %u, at most 1 TiB",
		                  (unsigned long long)shape->staging, FERRY_STAGING_LEAST);

	struct ferry_arena_header header;
	header_for(shape, &header);
	memset(arena, 0, sizeof *arena);
	ferryResult_t result = open_unlinked(&arena->descriptor);
	if (result)
		return result;
	void *base = MAP_FAILED;
	if (ftruncate(arena->descriptor, (off_t)header.bytes)) {
		result = ferry_fail(ferrySystemError, "an arena of %llu bytes: %s", (unsigned long long)header.bytes,
		                    strerror(errno));
		goto failed;
	}
	base = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->descriptor, 0);
	if (base == MAP_FAILED) {
		result = ferry_fail(ferrySystemError, "mmap of %llu bytes: %s", (unsigned long long)header.bytes,
		                    strerror(errno));
		goto failed;
	}
	if ((result = bind_to_node(base, header.bytes, shape->node)))
		goto failed;
	/* Allocating now turns "no space in /dev/shm" into an error here instead of a SIGBUS in somebody's copy. */
	int refused = posix_fallocate(arena->descriptor, 0, (off_t)header.counters_at);
	if (refused) {
		result = ferry_fail(ferrySystemError,
		                    "no room in /dev/shm for an arena of %llu bytes (staging %llu): %s; enlarge it or "
		                    "lower FERRY_STAGING",
		                    (unsigned long long)header.counters_at, (unsigned long long)shape->staging,
		                    strerror(refused));
		goto failed;
	}
	if ((result = back_counters(arena->descriptor, header.counters_at, header.counters)))
		goto failed;
	memcpy(base, &header, sizeof header);
	view(arena, base, &header);
	if (shape->lock && (result = lock_staging(arena)))
		goto failed;
	/* before Linux 5.14: first use does it */
	madvise(arena->staging[0], FERRY_BANKS * arena->staging_bytes, MADV_POPULATE_WRITE);
	return ferrySuccess;
failed:
	if (base != MAP_FAILED)
		munmap(base, header.bytes);
	close(arena->descriptor);
	arena->descriptor = -1;
	return result;
}

ferryResult_t ferry_arena_map(int descriptor, struct ferry_arena *arena)
{
	struct stat status;
	struct ferry_arena_header header, expected;
	void *base = MAP_FAILED;
	ferryResult_t result;
	memset(arena, 0, sizeof *arena);
	arena->descriptor = descriptor;
	if (fstat(descriptor, &status) || (uint64_t)status.st_size < sizeof header) {
		result = ferry_fail(ferryInternalError, "an arena of %lld bytes is shorter than its header (%zu)",
		                    (long long)status.st_size, sizeof header);
		goto failed;
	}
	base = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (base == MAP_FAILED) {
		result = ferry_fail(ferrySystemError, "mmap of %lld bytes: %s", (long long)status.st_size,
		                    strerror(errno));
		goto failed;
	}
	memcpy(&header, base, sizeof header);
	if (header.magic != FERRY_ARENA_MAGIC || header.abi != FERRY_ARENA_ABI) {
		result = ferry_fail(ferryRefused, "arena of magic %08x and ABI %u, this library has %08x and %u",
		                    header.magic, header.abi, FERRY_ARENA_MAGIC, FERRY_ARENA_ABI);
		goto failed;
	}
	struct ferry_arena_shape shape =
	        {header.domain, header.ndomains, header.nranks, FERRY_BANKS * header.staging, -1, false};
	if (header.nranks < 1 || header.nranks > FERRY_MAX_RANKS || header.staging > FERRY_STAGING_MOST ||
	    header.staging % PAGE || header.pair_slot_bytes % 64 || header.pair_slot_bytes > PAIR_SLOT_MOST ||
	    (header_for(&shape, &expected), expected.pair_slot_bytes = header.pair_slot_bytes,
	     place_counters(&expected), false) ||
	    header.bytes != (uint64_t)status.st_size || header.banks != FERRY_BANKS ||
	    header.ndomains > FERRY_MAX_DOMAINS || header.domain >= header.ndomains ||
	    expected.counters != header.counters || expected.staging_at != header.staging_at ||
	    expected.counters_at != header.counters_at || expected.pair_lines_at != header.pair_lines_at ||
	    expected.rank_lines_at != header.rank_lines_at || expected.export_cells_at != header.export_cells_at ||
	    expected.rings_at != header.rings_at || expected.pair_windows_at != header.pair_windows_at ||
	    header.pair_slot_bytes < PAIR_SLOT_LEAST || expected.bytes != header.bytes) {
		result = ferry_fail(
		        ferryInternalError,
		        "arena header is inconsistent: %llu bytes, %u ranks, %u counters, staging %llu at %llu",
		        (unsigned long long)header.bytes, header.nranks, header.counters,
		        (unsigned long long)header.staging, (unsigned long long)header.staging_at);
		goto failed;
	}
	view(arena, base, &header);
	return ferrySuccess;
failed:
	if (base != MAP_FAILED)
		munmap(base, (size_t)status.st_size);
	close(descriptor);
	arena->descriptor = -1;
	return result;
}

void ferry_arena_unmap(struct ferry_arena *arena)
{
	if (!arena->header)
		return;
	munmap(arena->header, arena->bytes);
	if (arena->descriptor >= 0)
		close(arena->descriptor);
	memset(arena, 0, sizeof *arena);
	arena->descriptor = -1;
}

void ferry_failure_set(struct ferry_failure *failure, ferryResult_t code, const char *message)
{
	if (atomic_load_explicit(&failure->state, memory_order_relaxed))
		return;
	failure->code = (uint32_t)code;
	snprintf(failure->message, sizeof failure->message, "%s", message);
	atomic_store_explicit(&failure->state, 1, memory_order_release);
}
