/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/arena.h"

#include "ipc/error.h"
#include "ipc/process.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096u
#define COUNTERS_BYTES ((uint64_t)FERRY_MOST_COUNTERS * sizeof(struct ferry_counter)) /* of a parity: whole pages */
/*
 * The windows of two ranks that send to each other are then 24 MiB, as in tuning.c. With 4 MiB there are runs in which
 * 32 MiB do not stay in the last-level cache, whatever its size (docs/lab/send-receive.md).
 */
#define PAIR_SLOT_MOST (3u << 20)
#define PAIR_SLOT_LEAST 512u
#define PAIR_SLOT_ALONE (256u << 10) /* of a rank that has little staging and sends to itself, at least */
#define MOST_NODES 1024 /* NUMA nodes */
#define LONG_BITS (8 * (int)sizeof(long))

static uint64_t up_to(uint64_t value, uint64_t multiple)
{
	return (value + multiple - 1) / multiple * multiple;
}

/*
 * All to all among n ranks is the longest plan that Ferry writes itself: n(n-1) D2H, as many H2D, n COPY. Users'
 * programs may have more: for their plans memory is added (ferry_arena_back_counters).
 */
static uint32_t counters_for(uint32_t nranks)
{
	uint32_t alltoall = 2 * nranks * nranks + nranks;
	return alltoall < 512 ? 512 : alltoall;
}

/*
 * The pairs' windows are half as large as the staging, in equal parts: few ranks get long slices, 64 ranks short ones.
 * As the header's staging gives the size, it bounds all windows of an arena that another process made, too.
 */
static uint32_t pair_slot_bytes_for(uint64_t staging, uint32_t nranks)
{
	uint64_t pairs = (uint64_t)nranks * nranks;
	uint64_t slot = staging / 2 / (pairs * FERRY_PAIR_SLOTS) / 64 * 64;
	uint32_t least = nranks == 1 ? PAIR_SLOT_ALONE : PAIR_SLOT_LEAST;
	return slot < least ? least : slot > PAIR_SLOT_MOST ? PAIR_SLOT_MOST : (uint32_t)slot;
}

static uint64_t agreement_pair_bytes(uint32_t nranks)
{
	return ferry_agreement_bytes(2, ferry_agreement_pair_cells(nranks));
}

static uint64_t agreements_bytes(uint32_t nranks)
{
	return ferry_agreement_bytes(nranks, FERRY_AGREEMENT_CALLS) +
	       (uint64_t)nranks * nranks * agreement_pair_bytes(nranks);
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
	header->parities = FERRY_PARITIES;
	header->counters = counters_for(shape->nranks);
	header->staging = shape->staging / FERRY_PARITIES / PAGE * PAGE;
	header->pair_slot_bytes = pair_slot_bytes_for(FERRY_PARITIES * header->staging, shape->nranks);
	header->rank_lines_at = up_to(sizeof *header, PAGE);
	header->export_cells_at = up_to(header->rank_lines_at + shape->nranks * sizeof(struct ferry_rank_line), PAGE);
	header->rings_at = up_to(header->export_cells_at + (uint64_t)shape->nranks * FERRY_MOST_EXPORTS *
	                                                           sizeof(struct ferry_export_cell),
	                         PAGE);
	header->pair_lines_at = up_to(header->rings_at + (uint64_t)shape->nranks * sizeof(struct ferry_ring), PAGE);
	header->agreements_at = up_to(header->pair_lines_at + pairs * sizeof(struct ferry_pair_line), PAGE);
	header->shares_at = up_to(header->agreements_at + (shape->domain ? 0 : agreements_bytes(shape->nranks)), PAGE);
	header->staging_at =
	        up_to(header->shares_at + (shape->domain ? 0 : ferry_share_table_bytes(shape->nranks)), PAGE);
	header->pair_windows_at = header->staging_at + FERRY_PARITIES * header->staging;
	header->counters_at =
	        up_to(header->pair_windows_at + pairs * FERRY_PAIR_SLOTS * header->pair_slot_bytes, PAGE);
	header->outboxes_at = header->counters_at + FERRY_PARITIES * COUNTERS_BYTES;
	bool outboxes = shape->gpus && shape->nranks > 1 && shape->nranks <= FERRY_OUTBOX_RANKS;
	header->outbox_bytes = outboxes ? FERRY_OUTBOX_BYTES : 0;
	header->bytes = header->outboxes_at + shape->nranks * header->outbox_bytes;
}

uint64_t ferry_arena_window_bytes(const struct ferry_arena_shape *shape)
{
	struct ferry_arena_header header;
	header_for(shape, &header);
	return header.counters_at - header.staging_at + shape->nranks * header.outbox_bytes;
}

static void view(struct ferry_arena *arena, void *base, const struct ferry_arena_header *header)
{
	char *bytes = base;
	arena->header = base;
	arena->rank_lines = (struct ferry_rank_line *)(bytes + header->rank_lines_at);
	arena->rings = (struct ferry_ring *)(bytes + header->rings_at);
	arena->export_cells = (struct ferry_export_cell *)(bytes + header->export_cells_at);
	arena->pair_lines = (struct ferry_pair_line *)(bytes + header->pair_lines_at);
	arena->agreements = bytes + header->agreements_at;
	arena->shares = (struct ferry_share_table *)(bytes + header->shares_at);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		arena->counters[parity] = (struct ferry_counter *)(bytes + header->counters_at +
		                                                   parity * COUNTERS_BYTES);
		arena->staging[parity] = bytes + header->staging_at + parity * header->staging;
	}
	arena->pair_windows = bytes + header->pair_windows_at;
	arena->outboxes_at = header->outboxes_at;
	arena->outbox_bytes = header->outbox_bytes;
	arena->bytes = header->bytes;
	arena->staging_bytes = header->staging;
	arena->ncounters = header->counters;
	arena->nranks = header->nranks;
	arena->ndomains = header->ndomains;
	arena->domain = header->domain;
	arena->pair_slot_bytes = header->pair_slot_bytes;
}

static ferryResult_t bind_to_node(void *base, uint64_t bytes, int node)
{
	unsigned long nodes[MOST_NODES / LONG_BITS] = {0};
	if (node < 0 || node >= MOST_NODES)
		return ferrySuccess;
	nodes[node / LONG_BITS] = 1ul << node % LONG_BITS;
	long refused = syscall(SYS_mbind, base, bytes, MPOL_BIND, nodes, MOST_NODES + 1, 0); /* Linux subtracts 1 */
	/*
	 * A container may forbid mbind, and a described machine (hwloc's HWLOC_XMLFILE) may have nodes that this one
	 * lacks: memory then lies where it is first touched, mostly by the domain's ranks.
	 */
	if (refused && errno != EPERM && errno != ENOSYS && errno != EINVAL)
		return ferry_fail(ferrySystemError, "mbind of %llu bytes to NUMA node %d: %s",
		                  (unsigned long long)bytes, node, strerror(errno));
	return ferrySuccess;
}

static ferryResult_t back_counters(int descriptor, char *base, uint64_t counters_at, uint32_t counters)
{
	uint64_t bytes = up_to((uint64_t)counters * sizeof(struct ferry_counter), PAGE);
	ferryResult_t result = ferrySuccess;
	for (uint32_t parity = 0; parity < FERRY_PARITIES && !result; parity++) {
		uint64_t at = counters_at + parity * COUNTERS_BYTES;
		result = ferry_shared_allocate(descriptor, base + at, at, bytes, NULL);
	}
	return result ? ferry_fail_context(result, "%u counters", counters) : ferrySuccess;
}

ferryResult_t ferry_arena_back_counters(const struct ferry_arena *arena, uint32_t counters)
{
	if (counters <= arena->ncounters)
		return ferrySuccess;
	if (counters > FERRY_MOST_COUNTERS)
		return ferry_fail(ferryProgramError, "%u instructions in domain %u; at most %u", counters,
		                  arena->domain, FERRY_MOST_COUNTERS);
	if (!ferry_shared_may_lack(arena->descriptor))
		return ferrySuccess;
	char *base = (char *)arena->header;
	return back_counters(arena->descriptor, base, (uint64_t)((char *)arena->counters[0] - base), counters);
}

static ferryResult_t check_shape(const struct ferry_arena_shape *shape)
{
	if (shape->nranks < 1 || shape->nranks > FERRY_MAX_RANKS || shape->ndomains < 1 ||
	    shape->ndomains > FERRY_MAX_DOMAINS || shape->domain >= shape->ndomains)
		return ferry_fail(ferryInvalidArgument, "arena of %u ranks (1 to %d), domain %u of %u (at most %d)",
		                  shape->nranks, FERRY_MAX_RANKS, shape->domain, shape->ndomains, FERRY_MAX_DOMAINS);
	if (shape->staging < FERRY_STAGING_LEAST || shape->staging > FERRY_STAGING_MOST)
		return ferry_fail(ferryInvalidArgument, "staging of %llu bytes: at least %u, at most 1 TiB",
		                  (unsigned long long)shape->staging, FERRY_STAGING_LEAST);
	return ferrySuccess;
}

/* What precedes the staging, and the counters of Ferry's own plans, get memory here: it is little, and soon written. */
static ferryResult_t fill_in(const struct ferry_arena_shape *shape, const struct ferry_arena_header *header,
                             void *base, int descriptor)
{
	ferryResult_t result = bind_to_node(base, header->bytes, shape->node);
	bool lacks = ferry_shared_may_lack(descriptor);
	if (!result && lacks)
		result = ferry_shared_allocate(descriptor, base, 0, header->staging_at, NULL);
	if (!result && lacks)
		result = back_counters(descriptor, base, header->counters_at, header->counters);
	if (result)
		return ferry_fail_context(result, "an arena of %llu bytes", (unsigned long long)header->bytes);
	memcpy(base, header, sizeof *header);
	return ferrySuccess;
}

ferryResult_t ferry_arena_create(const struct ferry_arena_shape *shape, struct ferry_arena *arena)
{
	struct ferry_arena_header header;
	memset(arena, 0, sizeof *arena);
	arena->descriptor = -1;
	ferryResult_t result = check_shape(shape);
	if (result)
		return result;
	header_for(shape, &header);
	if ((result = ferry_ulimit_check_file("an arena", header.bytes)))
		return result;
	if ((result = ferry_shared_make(shape->kind, header.bytes, &arena->descriptor)))
		return ferry_fail_context(result, "an arena of %llu bytes", (unsigned long long)header.bytes);
	void *base = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, arena->descriptor, 0);
	if (base == MAP_FAILED)
		result = ferry_fail(ferrySystemError, "mmap of %llu bytes: %s%s", (unsigned long long)header.bytes,
		                    strerror(errno), ferry_ulimit_memory_hint(errno));
	else if ((result = fill_in(shape, &header, base, arena->descriptor)))
		munmap(base, header.bytes);
	if (result) {
		close(arena->descriptor);
		arena->descriptor = -1;
		return result;
	}
	view(arena, base, &header);
	arena->sealed = ferry_shared_sealed(arena->descriptor);
	return ferrySuccess;
}

ferryResult_t ferry_arena_allocate(const struct ferry_arena *arena, const _Atomic uint32_t *given_up)
{
	uint64_t bytes, windows_at = (uint64_t)(arena->staging[0] - (char *)arena->header);
	ferryResult_t result = ferrySuccess;
	ferry_arena_windows(arena, &bytes);
	/* Allocating now turns "no room" into an error here instead of a SIGBUS during a copy. */
	if (ferry_shared_may_lack(arena->descriptor))
		result = ferry_shared_allocate(arena->descriptor, arena->staging[0], windows_at, bytes, given_up);
	if (result)
		return ferry_fail_context(result, "an arena of %llu bytes (staging %llu; FERRY_STAGING sets it)",
		                          (unsigned long long)arena->bytes,
		                          (unsigned long long)(FERRY_PARITIES * arena->staging_bytes));
	return ferrySuccess;
}

ferryResult_t ferry_arena_map(int descriptor, struct ferry_arena *arena)
{
	struct stat status;
	struct ferry_arena_header header, expected;
	ferryResult_t result;
	memset(arena, 0, sizeof *arena);
	arena->descriptor = descriptor;
	/* By pread: the file's owner may cut it short at any moment, and a mapped page would then raise SIGBUS. */
	if (fstat(descriptor, &status)) {
		result = ferry_fail(ferrySystemError, "fstat of an arena: %s", strerror(errno));
		goto failed;
	}
	if (pread(descriptor, &header, sizeof header, 0) != sizeof header) {
		result = ferry_fail(ferryInternalError, "an arena of %lld bytes is shorter than its header (%zu)",
		                    (long long)status.st_size, sizeof header);
		goto failed;
	}
	if (header.magic != FERRY_ARENA_MAGIC || header.abi != FERRY_ARENA_ABI) {
		result = ferry_fail(ferryRefused, "arena of magic %08x and ABI %u, this library has %08x and %u",
		                    header.magic, header.abi, FERRY_ARENA_MAGIC, FERRY_ARENA_ABI);
		goto failed;
	}
	struct ferry_arena_shape shape = {.domain = header.domain,
	                                  .ndomains = header.ndomains,
	                                  .nranks = header.nranks,
	                                  .staging = FERRY_PARITIES * header.staging,
	                                  .node = -1,
	                                  .gpus = header.outbox_bytes};
	if (header.nranks < 1 || header.nranks > FERRY_MAX_RANKS || header.staging > FERRY_STAGING_MOST ||
	    !header.staging || header.staging % PAGE || (header_for(&shape, &expected), false) ||
	    header.bytes != (uint64_t)status.st_size || header.parities != FERRY_PARITIES ||
	    header.ndomains > FERRY_MAX_DOMAINS || header.domain >= header.ndomains ||
	    expected.counters != header.counters || expected.staging_at != header.staging_at ||
	    expected.counters_at != header.counters_at || expected.pair_lines_at != header.pair_lines_at ||
	    expected.rank_lines_at != header.rank_lines_at || expected.export_cells_at != header.export_cells_at ||
	    expected.rings_at != header.rings_at || expected.agreements_at != header.agreements_at ||
	    expected.shares_at != header.shares_at || expected.pair_windows_at != header.pair_windows_at ||
	    expected.pair_slot_bytes != header.pair_slot_bytes || expected.outboxes_at != header.outboxes_at ||
	    expected.outbox_bytes != header.outbox_bytes || expected.bytes != header.bytes) {
		result = ferry_fail(
		        ferryInternalError,
		        "arena header is inconsistent: %llu bytes, %u ranks, %u counters, staging %llu at %llu",
		        (unsigned long long)header.bytes, header.nranks, header.counters,
		        (unsigned long long)header.staging, (unsigned long long)header.staging_at);
		goto failed;
	}
	void *base = mmap(NULL, header.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
	if (base == MAP_FAILED) {
		result = ferry_fail(ferrySystemError, "mmap of %lld bytes: %s%s", (long long)status.st_size,
		                    strerror(errno), ferry_ulimit_memory_hint(errno));
		goto failed;
	}
	view(arena, base, &header);
	arena->sealed = ferry_shared_sealed(descriptor);
	return ferrySuccess;
failed:
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

void ferry_arena_agreement(const struct ferry_arena *arena, uint32_t self, struct ferry_agreement *agreement)
{
	ferry_agreement_open(agreement, arena->agreements, arena->nranks, FERRY_AGREEMENT_CALLS, self);
}

void ferry_arena_agreement_pair(const struct ferry_arena *arena, uint32_t source, uint32_t destination, uint32_t self,
                                struct ferry_agreement *agreement)
{
	uint64_t pair = (uint64_t)source * arena->nranks + destination;
	char *memory = arena->agreements + ferry_agreement_bytes(arena->nranks, FERRY_AGREEMENT_CALLS) +
	               pair * agreement_pair_bytes(arena->nranks);
	ferry_agreement_open(agreement, memory, 2, ferry_agreement_pair_cells(arena->nranks), self);
}

void ferry_failure_set(struct ferry_failure *failure, ferryResult_t code, const char *message)
{
	if (atomic_load_explicit(&failure->state, memory_order_relaxed))
		return;
	failure->code = (uint32_t)code;
	snprintf(failure->message, sizeof failure->message, "%s", message);
	atomic_store_explicit(&failure->state, 1, memory_order_release);
}

/*
 * Reads each byte once, as another process may be writing there, and lets no byte through that a terminal or a reader
 * of logs may act on. Returns the length.
 */
static uint32_t read_text(const volatile char *there, char *text, uint32_t bytes)
{
	uint32_t i = 0;
	for (char letter; i < bytes - 1 && (letter = there[i]); i++)
		text[i] = letter < ' ' || letter > '~' ? '?' : letter; /* also where char is signed */
	text[i] = '\0';
	return i;
}

bool ferry_failure_read(const struct ferry_failure *failure, uint32_t *code, char message[FERRY_MESSAGE_BYTES])
{
	if (!atomic_load_explicit(&failure->state, memory_order_acquire))
		return false;
	*code = *(const volatile uint32_t *)&failure->code;
	if (!read_text(failure->message, message, FERRY_MESSAGE_BYTES))
		snprintf(message, FERRY_MESSAGE_BYTES, "no reason given");
	return true;
}

void ferry_loss_set(struct ferry_loss *loss, uint64_t now, const char *message)
{
	snprintf(loss->message, sizeof loss->message, "%s", message);
	atomic_store_explicit(&loss->at_ns, now, memory_order_release);
}

uint64_t ferry_loss_read(const struct ferry_loss *loss, char message[FERRY_LOSS_BYTES])
{
	uint64_t at = atomic_load_explicit(&loss->at_ns, memory_order_acquire);
	if (at)
		read_text(loss->message, message, FERRY_LOSS_BYTES);
	return at;
}
