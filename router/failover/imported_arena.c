/* SPDX-License-Identifier: Apache-2.0 */
#include "router/failover/imported_arena.h"

#include "ipc/error.h"
#include "ipc/quarantine.h"
#include "router/daemon/sigbus.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/*
 * Checks the descriptor before any page of it is read: a page of another kind of file may have to come from another
 * process, which could make this router wait, or be gone. Accepts sealed memory, or POSIX shared memory where this
 * router makes that kind (router/daemon/sigbus.h).
 */
static ferryResult_t check_memory(int descriptor, uint32_t domain)
{
	enum ferry_shared_kind kind;
	struct statfs system;
	ferryResult_t result = ferry_shared_kind_read(&kind);
	if (result)
		return result;
	bool memory = !fstatfs(descriptor, &system) && system.f_type == TMPFS_MAGIC;
	if (memory && (kind == FERRY_SHARED_POSIX || ferry_shared_sealed(descriptor)))
		return ferrySuccess;
	return ferry_fail(ferryRefused, "the arena of domain %u is not sealed, or no shared memory", domain);
}

static ferryResult_t check(const struct ferry_arena *arena, uint32_t domain, const struct ferry_job_arenas *shared)
{
	uint32_t attached = atomic_load_explicit(&arena->header->attached, memory_order_acquire);
	if (arena->domain != domain || arena->nranks != shared->nranks || arena->ndomains != shared->ndomains)
		return ferry_fail(ferryRefused,
		                  "an arena of %u ranks, domain %u of %u, was handed over as that of %u ranks, domain "
		                  "%u of %u",
		                  arena->nranks, arena->domain, arena->ndomains, shared->nranks, domain,
		                  shared->ndomains);
	if (attached < shared->nranks)
		return ferry_fail(ferryRefused, "%u of %u ranks had attached to the arena of domain %u", attached,
		                  shared->nranks, domain);
	return ferrySuccess;
}

/* In quarantine: the last reference to a rank's memory may take as long to close as the rank likes. */
static void unmap(struct ferry_arena *arena)
{
	int descriptor = arena->header ? arena->descriptor : -1;
	ferry_sigbus_remove(arena);
	if (arena->header)
		arena->descriptor = -1;
	ferry_arena_unmap(arena);
	ferry_quarantine_close(&descriptor, 1);
}

static ferryResult_t map(int descriptor, uint32_t domain, struct ferry_job_arenas *shared)
{
	struct ferry_arena *arena = &shared->arenas[domain];
	ferryResult_t result = check_memory(descriptor, domain);
	if (result) {
		ferry_quarantine_close(&descriptor, 1);
		return result;
	}
	int copy = fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	result = ferry_arena_map(descriptor, arena);
	ferry_quarantine_close(&copy, result ? 1 : 0);
	if (!result && copy >= 0)
		close(copy); /* not the last reference */
	if (result)
		return result;
	ferry_sigbus_add(arena);
	if ((result = check(arena, domain, shared)))
		unmap(arena);
	return result;
}

void ferry_imported_arena_unmap(struct ferry_job_arenas *shared)
{
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		unmap(&shared->arenas[domain]);
}

ferryResult_t ferry_imported_arena_map_others(int *descriptors, uint32_t own, struct ferry_job_arenas *shared)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		shared->arenas[domain].descriptor = -1;
	for (uint32_t domain = 0; domain < shared->ndomains && !result; domain++) {
		int descriptor = descriptors[domain];
		if (domain == own)
			continue;
		descriptors[domain] = -1; /* it is closed with the arena, or where that is none */
		result = map(descriptor, domain, shared);
	}
	if (result)
		ferry_imported_arena_unmap(shared);
	return result;
}

ferryResult_t ferry_imported_arena_map(const struct ferry_attach_message *message, uint32_t own, int *descriptors,
                                       struct ferry_job_arenas *shared)
{
	if (own >= message->ndomains)
		return ferry_fail(ferryRefused, "a job of %u domains has none for the router of domain %u",
		                  message->ndomains, own);
	*shared = (struct ferry_job_arenas){.nranks = message->nranks, .ndomains = message->ndomains};
	ferryResult_t result = ferry_imported_arena_map_others(descriptors, FERRY_MAX_DOMAINS, shared);
	if (result)
		return result;
	for (uint32_t rank = 0; rank < message->nranks && !result; rank++) {
		const uint8_t *logged = &shared->arenas[own].header->rank_domain[rank];
		shared->rank_domain[rank] = __atomic_load_n(logged, __ATOMIC_RELAXED); /* once */
		if (shared->rank_domain[rank] >= message->ndomains)
			result = ferry_fail(ferryRefused, "rank %u is in domain %u of %u", rank,
			                    shared->rank_domain[rank], message->ndomains);
	}
	if (result)
		ferry_imported_arena_unmap(shared);
	return result;
}

struct ferry_staging ferry_imported_arena_staging(const struct ferry_job_arenas *shared)
{
	struct ferry_staging staging = {{0}};
	for (uint32_t domain = 0; domain < shared->ndomains; domain++)
		staging.of[domain] = FERRY_PARITIES * shared->arenas[domain].staging_bytes;
	return staging;
}

static bool is_same_file(int one, int other)
{
	struct stat first, second;
	return !fstat(one, &first) && !fstat(other, &second) && first.st_dev == second.st_dev &&
	       first.st_ino == second.st_ino;
}

bool ferry_imported_arena_are_same(const struct ferry_job_arenas *shared, const int *descriptors)
{
	bool same = true;
	for (uint32_t domain = 0; domain < shared->ndomains && same; domain++)
		same = is_same_file(shared->arenas[domain].descriptor, descriptors[domain]);
	return same;
}
