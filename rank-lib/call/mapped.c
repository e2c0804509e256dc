/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/mapped.h"

#include "ipc/error.h"

#include <stdio.h>
#include <string.h>

#define NO_SUBMISSION 0

/* ---- open ---- */

ferryResult_t ferry_mapped_prepare(struct ferry_mapped *mapped, bool *wanted)
{
	struct ferry_device *device = mapped->device;
	*wanted = device->ops->pieces;
	if (!*wanted)
		return ferrySuccess;
	ferryResult_t result = device->ops->pieces->identify(device, mapped->gpu);
	return result ? result : ferry_stream_flags_open(device, &mapped->flags_descriptor);
}

ferryResult_t ferry_mapped_refuse(const struct ferry_mapped *mapped, const char *why)
{
	return ferry_fail(ferryInvalidUsage,
	                  "the router of domain %u cannot map memory of rank %d's GPU: %.200s (it has to see the same "
	                  "GPUs as the rank, and to share its name spaces where they are in containers)",
	                  mapped->rank->domain, mapped->rank->self, why);
}

static void fail_lost(struct ferry_mapped *mapped, uint32_t domain)
{
	char text[FERRY_MESSAGE_BYTES], loss[FERRY_RANK_LOSS];
	snprintf(text, sizeof text, "the router of domain %u died%.300s", domain,
	         ferry_rank_report_loss(mapped->rank, domain, loss));
	ferry_rank_lose_router(mapped->rank, text);
}

/*
 * If it is the router of the rank's domain, the communicator fails once that router copies nothing any more
 * (have_released). Until then streams and callers wait.
 */
static void on_router_lost(struct ferry_monitor_entry *entry)
{
	struct ferry_watched *watched = (struct ferry_watched *)entry;
	struct ferry_copy_quiesce *copy_quiesce = &watched->mapped->copy_quiesces[watched->domain];
	/* if the communicator has failed already, the first error stays the reason */
	if (watched->domain != watched->mapped->rank->domain && !ferry_rank_failed(watched->mapped->rank))
		fail_lost(watched->mapped, watched->domain);
	if (!copy_quiesce->copies)
		return;
	ferry_copy_quiesce_lose(copy_quiesce);
	ferry_router_monitor_look(entry);
}

/* Whether the router copies nothing any more. Also true when that took too long, which fails the communicator. */
static bool is_over(struct ferry_mapped *mapped, struct ferry_copy_quiesce *copy_quiesce)
{
	char text[200];
	if (!ferry_copy_quiesce_may_copy(copy_quiesce))
		return true;
	if (!ferry_copy_quiesce_is_overdue(copy_quiesce, text, sizeof text))
		return false;
	ferry_log(FERRY_LOG_WARN, "rank %d: %s", mapped->rank->self, text);
	ferry_rank_lose_router(mapped->rank, text);
	return true;
}

/*
 * For a router of another domain: the rank's own router waits for this before it lets streams go on
 * (router/engine/put_targets.h).
 */
static bool report_end(struct ferry_monitor_entry *entry)
{
	struct ferry_watched *watched = (struct ferry_watched *)entry;
	struct ferry_rank *rank = watched->mapped->rank;
	if (!is_over(watched->mapped, &watched->mapped->copy_quiesces[watched->domain]))
		return true;
	atomic_fetch_or_explicit(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->ended, 1u << watched->domain,
	                         memory_order_release);
	ferry_wake(&rank->shared, 0, 1ull << rank->self, 0);
	return false;
}

/* The router of the rank's domain first: the job then fails, and routers of other domains stop. */
static bool have_released(struct ferry_mapped *mapped)
{
	uint32_t own = mapped->rank->domain;
	bool over = is_over(mapped, &mapped->copy_quiesces[own]);
	if (over && !ferry_rank_failed(mapped->rank))
		fail_lost(mapped, own);
	for (uint32_t domain = 0; over && domain < mapped->rank->ndomains; domain++) {
		struct ferry_copy_quiesce *copy_quiesce = &mapped->copy_quiesces[domain];
		if (domain == own || !copy_quiesce->copies)
			continue;
		ferry_copy_quiesce_lose(copy_quiesce);
		over = is_over(mapped, copy_quiesce);
	}
	return over;
}

/* No router releases this rank's streams any more: releases those that are at a call. Called again for later ones. */
static bool release_streams(struct ferry_monitor_entry *entry)
{
	struct ferry_mapped *mapped = ((struct ferry_watched *)entry)->mapped;
	if (!mapped->released && !(mapped->released = have_released(mapped)))
		return true;
	ferry_stream_flag_table_release(mapped->flags);
	return true;
}

static struct ferry_export_cell *cells_of(const struct ferry_rank *rank, uint32_t domain)
{
	return rank->shared.arenas[domain].export_cells + (size_t)rank->self * FERRY_MOST_EXPORTS;
}

/* If the watchdog gives the router up, copies may still be under way: the streams go on when these are over. */
static void watch_own(struct ferry_monitor_entry *entry)
{
	struct ferry_mapped *mapped = ((struct ferry_watched *)entry)->mapped;
	if (!pthread_mutex_trylock(mapped->lock)) { /* a thread that holds it may wait for a router */
		ferry_journal_sweep(mapped->journal, !ferry_rank_failed(mapped->rank));
		pthread_mutex_unlock(mapped->lock);
	}
	if (!ferry_rank_failed(mapped->rank) && ferry_journal_check(mapped->journal))
		ferry_rank_fail(mapped->rank, ferryInternalError, ferry_last_message());
	if (!ferry_watchdog_look(&mapped->watchdog))
		return;
	ferry_copy_quiesce_lose(&mapped->copy_quiesces[mapped->rank->domain]);
	ferry_router_monitor_look(entry);
}

static ferryResult_t watch_routers(struct ferry_mapped *mapped)
{
	mapped->watchdog = (struct ferry_router_watchdog){.wait = {.rank = mapped->rank},
	                                                  .ring = mapped->submissions.ring,
	                                                  .flags = mapped->flags,
	                                                  .plans = mapped->plans,
	                                                  .lock = mapped->lock,
	                                                  .process = mapped->copy_quiesces[mapped->rank->domain].pid};
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++) {
		struct ferry_watched *watched = &mapped->watched[domain];
		bool own = domain == mapped->rank->domain;
		int descriptor = mapped->handed_over ? -1 : mapped->rank->links[domain].socket;
		*watched = (struct ferry_watched){.entry = {.descriptor = descriptor,
		                                           .closed = on_router_lost,
		                                           .look = own ? release_streams : report_end,
		                                           .watch = own ? watch_own : NULL},
		                                  .mapped = mapped,
		                                  .domain = domain};
		ferryResult_t result = ferry_router_monitor_add(&watched->entry);
		if (result)
			return result;
		watched->added = true;
	}
	return ferrySuccess;
}

/*
 * Finds the routers that copy for this rank, and adds those of other domains to which put targets are exported. Returns
 * a mask of those other domains.
 */
static uint32_t find_copying_routers(struct ferry_mapped *mapped)
{
	struct ferry_rank *rank = mapped->rank;
	uint32_t others = 0;
	for (uint32_t domain = 0; domain < rank->ndomains; domain++) {
		ferry_copy_quiesce_open(&mapped->copy_quiesces[domain], rank, domain);
		if (domain == rank->domain || !mapped->copy_quiesces[domain].copies)
			continue;
		ferry_exports_add_host(mapped->exports, &rank->links[domain], cells_of(rank, domain));
		others |= 1u << domain;
	}
	return others;
}

ferryResult_t ferry_mapped_open(struct ferry_mapped *mapped)
{
	struct ferry_rank *rank = mapped->rank;
	ferryResult_t result = ferry_exports_open(mapped->device, &rank->links[rank->domain], &rank->failed,
	                                          cells_of(rank, rank->domain), mapped->holders,
	                                          &mapped->exports);
	if (result)
		return result;
	mapped->captures.exports = mapped->exports;
	mapped->bounces.bytes = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->bounced;
	mapped->submissions.ring = ferry_rank_ring(&rank->shared, (uint32_t)rank->self);
	ferry_journal_open(mapped->journal, mapped->submissions.ring, 1u << rank->domain, find_copying_routers(mapped),
	                   cells_of(rank, rank->domain), ferry_stream_flag_answer);
	ferry_exports_journal(mapped->exports, mapped->journal);
	return watch_routers(mapped);
}

static ferryResult_t export_sample(struct ferry_mapped *mapped)
{
	struct ferry_buffer_name name;
	struct ferry_piece sample;
	ferryResult_t result = mapped->device->ops->pieces->sample(mapped->device, &sample);
	if (!result)
		result = ferry_exports_name(mapped->exports, (const void *)(uintptr_t)sample.start, sample.bytes,
		                            NO_SUBMISSION, false, false, &name);
	return result ? result : ferry_exports_forget(mapped->exports, &name);
}

ferryResult_t ferry_mapped_try(struct ferry_mapped *mapped)
{
	char why[FERRY_MESSAGE_BYTES];
	pthread_mutex_lock(mapped->lock); /* the router monitor sweeps the journal already */
	ferryResult_t result = export_sample(mapped);
	pthread_mutex_unlock(mapped->lock);
	if (!result)
		return ferrySuccess;
	if (ferry_rank_failed(mapped->rank))
		return ferry_rank_report_failure(mapped->rank);
	if (result == ferryRemoteError) /* the router has died, and not refused */
		return result;
	snprintf(why, sizeof why, "%s", ferry_last_message());
	return ferry_mapped_refuse(mapped, why);
}

static void unwatch_routers(struct ferry_mapped *mapped)
{
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++) {
		if (mapped->watched[domain].added)
			ferry_router_monitor_remove(&mapped->watched[domain].entry);
		mapped->watched[domain].added = false;
	}
}

/* ---- another router ---- */

bool ferry_mapped_may_be_handed_over(const struct ferry_mapped *mapped)
{
	bool may = true;
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		may &= mapped->rank->links[domain].process >= 0;
	return may;
}

static const uint8_t *gpu_of(void *context, int *flags)
{
	const struct ferry_mapped *mapped = context;
	*flags = mapped->flags_descriptor;
	return mapped->gpu;
}

static bool waits(void *context)
{
	const struct ferry_mapped *mapped = context;
	return ferry_stream_flag_table_waits(mapped->flags);
}

static void renewed(void *context, uint32_t domain)
{
	struct ferry_mapped *mapped = context;
	ferry_copy_quiesce_close(&mapped->copy_quiesces[domain]);
	ferry_copy_quiesce_open(&mapped->copy_quiesces[domain], mapped->rank, domain);
}

static void lost(void *context, uint32_t domain)
{
	struct ferry_mapped *mapped = context;
	mapped->watched[domain].entry.closed(&mapped->watched[domain].entry);
}

const struct ferry_handover_ops ferry_mapped_handover = {
        .gpu = gpu_of, .waits = waits, .renewed = renewed, .lost = lost};

/* ---- calls ---- */

/* The lanes and workers that the call will need take about as long to wake up as the call to get into the stream. */
static void wake_router(const struct ferry_mapped *mapped, uint32_t domains)
{
	const struct ferry_rank *rank = mapped->rank;
	if (domains)
		atomic_store_explicit(&ferry_rank_line(&rank->shared, (uint32_t)rank->self)->announced,
		                      mapped->numbers->made, memory_order_release);
	ferry_wake(&rank->shared, 1ull << rank->self, 0, domains);
}

ferryResult_t ferry_mapped_enqueue(struct ferry_mapped *mapped, uint32_t domains, const struct ferry_request *request,
                                   struct ferry_stream_call *in_stream)
{
	wake_router(mapped, domains);
	in_stream->open = request->open;
	ferryResult_t result = mapped->device->ops->enqueue_flag(mapped->device, request->stream, in_stream);
	if (!result && request->open)
		ferry_open_call_keep(request->open, mapped->device, mapped->rank, mapped->flags, request->stream,
		                     in_stream);
	if (result)
		ferry_rank_fail(mapped->rank, result, ferry_last_message());
	return result;
}

/* ---- close ---- */

void ferry_mapped_close(struct ferry_mapped *mapped)
{
	unwatch_routers(mapped);
	ferry_captures_free(&mapped->captures);
	/* after a failure streams may hang behind these buffers' copies, and freeing would wait for the streams */
	if (!ferry_rank_failed(mapped->rank))
		ferry_bounce_buffers_free(&mapped->bounces, mapped->device);
}

void ferry_mapped_end(struct ferry_mapped *mapped)
{
	bool quiet = true;
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		ferry_copy_quiesce_lose(&mapped->copy_quiesces[domain]); /* the time limits of all waits begin now */
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		ferry_copy_quiesce_wait(&mapped->copy_quiesces[domain]);
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		quiet &= !ferry_copy_quiesce_may_copy(&mapped->copy_quiesces[domain]);
	ferry_bounce_buffers_abandon(&mapped->bounces, quiet ? mapped->device : NULL);
	if (ferry_copy_quiesce_has_flags(&mapped->copy_quiesces[mapped->rank->domain]))
		ferry_stream_flag_table_lose(mapped->flags);
	for (uint32_t domain = 0; domain < mapped->rank->ndomains; domain++)
		ferry_copy_quiesce_close(&mapped->copy_quiesces[domain]);
}
