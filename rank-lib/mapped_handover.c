/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/mapped_handover.h"

#include <string.h>

bool ferry_mapped_may_be_handed_over(const struct ferry_mapped *mapped)
{
	bool may = true;
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		may &= mapped->rank->links[domain].process >= 0;
	return may;
}

static const uint8_t *gpu_of(void *context, int *words)
{
	const struct ferry_mapped *mapped = context;
	*words = mapped->words_descriptor;
	return mapped->gpu;
}

static bool is_pinned(const struct ferry_rank *rank, uint32_t index)
{
	const struct ferry_export_cell *cells = rank->shared.arenas[rank->domain].export_cells +
	                                        (size_t)rank->self * FERRY_MOST_EXPORTS;
	return atomic_load_explicit(&cells[index].used, memory_order_relaxed) == FERRY_EXPORT_PINNED;
}

/*
 * What is pinned may have been freed, which nobody finds out who does not name it: no other router maps it. Only a
 * graph that is replayed would miss it (router/submitted.c).
 */
static ferryResult_t give_export(void *context, const struct ferry_exported *exported, const int *descriptors)
{
	struct ferry_handover *handover = context;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_EXPORT,
	                                       .descriptors = exported->npieces,
	                                       .payload = ferry_exported_size(exported)};
	ferryResult_t result = ferry_handover_ask(handover, &message, exported, descriptors);
	bool mapped = !result || result == ferryRemoteError || result == ferrySystemError;
	if (mapped || !is_pinned(handover->rank, exported->index))
		return result;
	ferry_log(FERRY_LOG_INFO, "rank %d: captured calls lose a buffer with their router: %s", handover->rank->self,
	          ferry_last_message());
	ferry_forget_message();
	return ferrySuccess;
}

/* A router of another domain that puts into this rank's memory has that, and nothing else. */
static ferryResult_t give_landing(void *context, const struct ferry_exported *exported, const int *descriptors)
{
	return exported->landing ? give_export(context, exported, descriptors) : ferrySuccess;
}

static ferryResult_t give_submissions(void *context, const void *records, size_t bytes)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RESUBMIT, .payload = bytes};
	return ferry_handover_ask(context, &message, records, NULL);
}

static ferryResult_t give(void *context, struct ferry_handover *handover, struct ferry_attach_message *last)
{
	struct ferry_mapped *mapped = context;
	const struct ferry_rank *rank = mapped->rank;
	const struct ferry_export_cell *cells = rank->shared.arenas[rank->domain].export_cells +
	                                        (size_t)rank->self * FERRY_MOST_EXPORTS;
	struct ferry_submissions *submissions = &mapped->submissions;
	struct ferry_kept_taken taken = {0};
	if (handover->domain != rank->domain)
		return mapped->movers[handover->domain].copies
		               ? ferry_held_exports_each(&mapped->held, cells, give_landing, handover)
		               : ferrySuccess;
	ferryResult_t result = ferry_held_exports_each(&mapped->held, cells, give_export, handover);
	if (!result)
		result = ferry_kept_submissions_give(&submissions->kept, submissions->ring, give_submissions, handover,
		                                     &taken);
	last->hash = taken.number;
	last->staging = taken.calls;
	return result;
}

static bool waits(void *context)
{
	const struct ferry_mapped *mapped = context;
	return ferry_word_table_waits(mapped->words);
}

static void renewed(void *context, uint32_t domain)
{
	struct ferry_mapped *mapped = context;
	ferry_mover_close(&mapped->movers[domain]);
	ferry_mover_open(&mapped->movers[domain], mapped->rank, domain);
}

static void lost(void *context, uint32_t domain)
{
	struct ferry_mapped *mapped = context;
	mapped->watched[domain].kept.closed(&mapped->watched[domain].kept);
}

const struct ferry_handover_ops ferry_mapped_handover = {
        .gpu = gpu_of, .give = give, .waits = waits, .renewed = renewed, .lost = lost};
