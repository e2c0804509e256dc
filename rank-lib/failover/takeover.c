/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/takeover.h"

#include "ipc/deadline.h"
#include "ipc/endpoint.h"
#include "ipc/environment.h"
#include "ipc/process.h"
#include "ipc/publish.h"
#include "ipc/wait.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define SECOND_NS 1000000000ull
#define END_SECONDS 10 /* that a process may take to end after its connection has closed */

static struct ferry_link *link_of(const struct ferry_takeover *takeover)
{
	return &takeover->all->rank->links[takeover->domain];
}

/* ---- giving up ---- */

/* Whether the rank waits for a call. */
static bool has_calls(const struct ferry_takeovers *all)
{
	const struct ferry_rank_line *line = ferry_rank_line(&all->rank->shared, (uint32_t)all->rank->self);
	if (all->ops)
		return all->ops->waits(all->context);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		if (atomic_load_explicit(&line->ring[parity].seq, memory_order_acquire) >
		    atomic_load_explicit(&line->finished[parity], memory_order_relaxed))
			return true;
	return false;
}

/* Counts a router's death. A router that served while the rank had no call had no chance to make progress. */
static void count_death(struct ferry_takeover *takeover, bool served)
{
	const struct ferry_rank *rank = takeover->all->rank;
	uint64_t progress = ferry_job_progress(&rank->shared);
	uint64_t loss = ferry_rank_last_loss(rank, takeover->domain, NULL);
	bool alone = progress != takeover->progress || (served && !has_calls(takeover->all));
	takeover->deaths = alone ? 1 : takeover->deaths + 1;
	takeover->progress = progress;
	takeover->lost_gpu = loss != takeover->loss_ns;
	takeover->loss_ns = loss;
}

static bool end_failed(struct ferry_takeover *takeover)
{
	ferry_link_set(link_of(takeover), FERRY_LINK_ENDED);
	if (takeover->all->ops)
		takeover->all->ops->lost(takeover->all->context, takeover->domain);
	return false;
}

static bool end(struct ferry_takeover *takeover, const char *why)
{
	char text[FERRY_MESSAGE_BYTES], loss[FERRY_RANK_LOSS];
	ferry_rank_report_loss(takeover->all->rank, takeover->domain, loss);
	snprintf(text, sizeof text, "%.*s%.240s", *loss ? 140 : FERRY_MESSAGE_BYTES - 1, why, loss);
	ferry_rank_lose_router(takeover->all->rank, text);
	return end_failed(takeover);
}

/* Whether the takeover has failed for good; `text` gets the reason. */
static bool is_over(const struct ferry_takeover *takeover, uint64_t now, char *text, size_t bytes)
{
	if (takeover->state == FERRY_ROUTER_ENDS && now - takeover->since_ns > END_SECONDS * SECOND_NS)
		snprintf(text, bytes,
		         "the router of domain %u has closed its connection to rank %d, and has not ended for %d s: "
		         "nobody may take its place",
		         takeover->domain, takeover->all->rank->self, END_SECONDS);
	else if (now - takeover->lost_ns > (uint64_t)takeover->all->patience_s * SECOND_NS)
		snprintf(text, bytes,
		         "the router of domain %u died, and no other has taken its place for %ld s "
		         "(FERRY_ATTACH_TIMEOUT)",
		         takeover->domain, takeover->all->patience_s);
	else if (takeover->deaths >= (takeover->lost_gpu ? FERRY_MOST_LOSSES : FERRY_MOST_ROUTERS))
		snprintf(text, bytes, "%u routers of domain %u in a row died without any progress", takeover->deaths,
		         takeover->domain);
	else
		return false;
	return true;
}

/* ---- handing over ---- */

static uint64_t epoch_of(const struct ferry_takeover *takeover)
{
	const struct ferry_arena *arena = &takeover->all->rank->shared.arenas[takeover->domain];
	return atomic_load_explicit(&arena->header->epoch, memory_order_acquire);
}

/* True: to be called again. */
static bool serves(struct ferry_takeover *takeover, int connection, int process)
{
	struct ferry_rank *rank = takeover->all->rank;
	bool mapped = takeover->all->ops;
	uint64_t now = ferry_now_ns();
	ferry_link_renew(link_of(takeover), connection, process);
	takeover->state = mapped ? FERRY_ROUTER_ADOPTS : FERRY_ROUTER_SERVES;
	if (mapped)
		takeover->all->ops->renewed(takeover->all->context, takeover->domain);
	ferry_log(FERRY_LOG_INFO, "rank %d: another router serves domain %u, %.1f ms after the one before died",
	          rank->self, takeover->domain, (double)(now - takeover->lost_ns) / 1e6);
	ferry_router_monitor_follow(&takeover->entry, connection);
	return mapped;
}

/*
 * Whether the new router still adopts the job. Until it has, it moves nothing: if the job fails meanwhile, only this
 * rank lets its streams go on.
 */
static bool still_adopts(struct ferry_takeover *takeover)
{
	if (epoch_of(takeover) == takeover->epoch)
		return true;
	takeover->state = FERRY_ROUTER_SERVES;
	return false;
}

/* Whether the rank leaves: a router may then go on without it, and refuse it, which is harmless. */
static bool leaves(const struct ferry_takeovers *all)
{
	return atomic_load(&all->given_up) || ferry_departed(&all->rank->shared) >> all->rank->self & 1;
}

/* A router listens. True: to be called again. */
static bool go_over(struct ferry_takeover *takeover, int connection)
{
	struct ferry_handover handover = {.rank = takeover->all->rank,
	                                  .journal = takeover->all->journal,
	                                  .ops = takeover->all->ops,
	                                  .context = takeover->all->context,
	                                  .domain = takeover->domain,
	                                  .connection = connection,
	                                  .lost_ns = takeover->lost_ns,
	                                  .given_up = &takeover->all->given_up};
	char text[FERRY_MESSAGE_BYTES];
	takeover->epoch = epoch_of(takeover);
	ferryResult_t result = ferry_hand_over(&handover);
	int process = handover.process;
	if (!result)
		return serves(takeover, connection, process);
	snprintf(text, sizeof text, "the router of domain %u died, and the one in its place: %.200s", takeover->domain,
	         ferry_last_message());
	bool ended = result == ferryRemoteError && ferry_endpoint_closed(connection);
	close(connection);
	if (!ended) {
		if (process >= 0)
			close(process);
		return leaves(takeover->all) ? false : end(takeover, text);
	}
	takeover->since_ns = ferry_now_ns();
	if (process >= 0) {
		count_death(takeover, false); /* else the router has not answered, and may still listen */
		ferry_link_replace_process(link_of(takeover), process);
		takeover->state = FERRY_ROUTER_ENDS;
	}
	return true;
}

/* ---- a step ---- */

static bool look_for_one(struct ferry_takeover *takeover)
{
	int connection;
	ferryResult_t result = ferry_routers_look(takeover->all->routers, takeover->domain, !takeover->logged,
	                                          &connection);
	if (!result)
		return go_over(takeover, connection);
	if (result == ferryRefused)
		return end(takeover, ferry_last_message());
	if (result != ferryInProgress && !takeover->logged) /* another rank may start one */
		ferry_log(FERRY_LOG_WARN, "rank %d: the router of domain %u died: %s", takeover->all->rank->self,
		          takeover->domain, ferry_last_message());
	takeover->logged |= result != ferryInProgress;
	return true;
}

static void see_end(struct ferry_takeover *takeover)
{
	if (takeover->state != FERRY_ROUTER_ENDS || !ferry_process_has_ended(link_of(takeover)->process))
		return;
	takeover->state = FERRY_ROUTER_SOUGHT;
	takeover->since_ns = ferry_now_ns();
}

/* The router monitor calls it until it returns false. */
static bool step(struct ferry_monitor_entry *entry)
{
	struct ferry_takeover *takeover = (struct ferry_takeover *)entry;
	char text[FERRY_MESSAGE_BYTES];
	if (ferry_rank_failed(takeover->all->rank))
		return end_failed(takeover);
	if (takeover->state == FERRY_ROUTER_ADOPTS)
		return still_adopts(takeover);
	/* before it is looked how long that has lasted: this process may have stood still itself */
	see_end(takeover);
	if (is_over(takeover, ferry_now_ns(), text, sizeof text))
		return end(takeover, text);
	switch (takeover->state) {
	case FERRY_ROUTER_SERVES:
	case FERRY_ROUTER_ADOPTS:
		return false;
	case FERRY_ROUTER_ENDS:
		return true;
	case FERRY_ROUTER_SOUGHT:
		return look_for_one(takeover);
	}
	return false;
}

static void on_router_lost(struct ferry_monitor_entry *entry)
{
	struct ferry_takeover *takeover = (struct ferry_takeover *)entry;
	uint64_t now = ferry_now_ns();
	takeover->state = FERRY_ROUTER_ENDS;
	takeover->lost_ns = takeover->since_ns = now;
	takeover->logged = false;
	count_death(takeover, true);
	ferry_router_monitor_look(entry);
}

/* ---- open, close ---- */

static ferryResult_t watch(struct ferry_takeovers *takeovers, uint32_t domain)
{
	struct ferry_takeover *takeover = &takeovers->domains[domain];
	struct ferry_link *link = &takeovers->rank->links[domain];
	if (link->process < 0)
		return ferrySuccess;
	*takeover = (struct ferry_takeover){
	        .entry = {.descriptor = link->socket, .closed = on_router_lost, .look = step},
	        .all = takeovers,
	        .domain = domain};
	ferry_link_set(link, FERRY_LINK_WATCHED);
	ferryResult_t result = ferry_router_monitor_add(&takeover->entry);
	takeover->added = !result;
	return result;
}

ferryResult_t ferry_takeovers_open(struct ferry_takeovers *takeovers)
{
	ferryResult_t result = ferry_deadline_seconds(&takeovers->patience_s);
	if (result || !takeovers->routers->takeover)
		return result;
	for (uint32_t domain = 0; domain < takeovers->rank->ndomains && !result; domain++)
		result = watch(takeovers, domain);
	return result;
}

void ferry_takeovers_close(struct ferry_takeovers *takeovers)
{
	atomic_store(&takeovers->given_up, 1);
	for (uint32_t domain = 0; domain < takeovers->rank->ndomains; domain++) {
		if (!takeovers->domains[domain].all) /* no router takes its place: it has never been watched */
			continue;
		if (takeovers->domains[domain].added)
			ferry_router_monitor_remove(&takeovers->domains[domain].entry);
		takeovers->domains[domain].added = false;
		ferry_link_set(&takeovers->rank->links[domain], FERRY_LINK_ENDED);
	}
}
