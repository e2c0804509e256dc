/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/watchdog.h"

#include "ipc/deadline.h"
#include "ipc/wait.h"
#include "router/engine/stall.h"

#include <stdio.h>

#define DEAF_NS 500000000ull /* lanes look ten times as often */

bool ferry_watchdog_is_due(const struct ferry_watchdog *watchdog, uint64_t waited)
{
	const struct ferry_timeout *timeout = &watchdog->rank->timeout;
	return ferry_timeout_over(timeout->fails, waited) ||
	       (!watchdog->logged && ferry_timeout_over(timeout->reports, waited));
}

static bool say(struct ferry_watchdog *watchdog, uint64_t waited, const char *what, bool router)
{
	struct ferry_rank *rank = watchdog->rank;
	bool fails = ferry_timeout_over(rank->timeout.fails, waited);
	char text[FERRY_MESSAGE_BYTES];
	snprintf(text, sizeof text, "%srank %d has waited %llu s %s", fails ? "FERRY_TIMEOUT: " : "", rank->self,
	         (unsigned long long)(waited / 1000000000), what);
	if (fails && router)
		ferry_rank_lose_router(rank, text);
	else if (fails)
		ferry_rank_fail(rank, ferryRemoteError, text);
	else if (!watchdog->logged)
		ferry_log(FERRY_LOG_WARN, "%s", text);
	watchdog->logged = true;
	return fails;
}

bool ferry_watchdog_report(struct ferry_watchdog *watchdog, uint64_t waited, const char *what)
{
	return say(watchdog, waited, what, false);
}

/* The same for a wait for a router. */
static bool report_router(struct ferry_watchdog *watchdog, uint64_t waited, uint32_t domain, const char *what)
{
	char text[FERRY_MESSAGE_BYTES];
	snprintf(text, sizeof text, "for the router of domain %u %s", domain, what);
	return say(watchdog, waited, text, true);
}

/* ---- a router that is asked ---- */

struct question {
	struct ferry_watchdog wait;
	uint32_t domain;
	const char *what;
};

static bool gives_up(void *argument)
{
	struct question *question = argument;
	uint64_t waited = ferry_now_ns() - question->wait.since;
	if (ferry_rank_failed(question->wait.rank))
		return true;
	return ferry_watchdog_is_due(&question->wait, waited) &&
	       report_router(&question->wait, waited, question->domain, question->what);
}

ferryResult_t ferry_watchdog_ask(struct ferry_rank *rank, uint32_t domain, struct ferry_attach_message *message,
                                 const void *payload, const char *what)
{
	struct question question = {{.rank = rank, .since = ferry_now_ns()}, domain, what};
	struct ferry_attach_reply reply;
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_deadline deadline = ferry_deadline_for((unsigned)seconds, NULL);
	deadline.gives_up = gives_up;
	deadline.argument = &question;
	result = ferry_link_request_within(&rank->links[domain], message, payload, NULL, &reply, &deadline);
	return result && ferry_rank_failed(rank) ? ferry_rank_report_failure(rank) : result;
}

/* ---- the router that moves the rank's data ---- */

static uint64_t last_look(const struct ferry_rank *rank)
{
	struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	return atomic_load_explicit(&line->traffic[0].looked, memory_order_relaxed) +
	       atomic_load_explicit(&line->traffic[1].looked, memory_order_relaxed);
}

/* Whether the rank waits for the router to take what was submitted, or to end a call that a stream is at. */
static bool waits(const struct ferry_router_watchdog *watchdog, uint64_t taken)
{
	return taken != atomic_load_explicit(&watchdog->ring->written, memory_order_relaxed) ||
	       ferry_stream_flag_table_waits(watchdog->flags);
}

/* The first call that the rank is in; NULL: none that the other ranks know of. */
static const struct ferry_descriptor *call_of(const struct ferry_rank *rank, uint64_t *seq)
{
	const struct ferry_rank_line *line = ferry_rank_line(&rank->shared, (uint32_t)rank->self);
	const struct ferry_descriptor *found = NULL;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint64_t begun = atomic_load_explicit(&line->ring[parity].seq, memory_order_acquire);
		if (begun <= atomic_load_explicit(&line->finished[parity], memory_order_acquire) ||
		    begun % FERRY_PARITIES != parity || (found && begun > *seq))
			continue;
		found = &line->ring[parity];
		*seq = begun;
	}
	return found;
}

static bool all_are_in(const struct ferry_rank *rank, uint64_t seq)
{
	for (uint32_t other = 0; other < (uint32_t)rank->nranks; other++)
		if (atomic_load_explicit(&ferry_rank_line(&rank->shared, other)->ring[seq % FERRY_PARITIES].seq,
		                         memory_order_acquire) != seq)
			return false;
	return true;
}

static void format_slice(const struct ferry_router_watchdog *watchdog, uint64_t hash, uint64_t seq, char *text,
                         size_t bytes)
{
	const struct ferry_rank *rank = watchdog->wait.rank;
	struct ferry_stalled stalled;
	if (!all_are_in(rank, seq) || pthread_mutex_trylock(watchdog->lock))
		return;
	const struct ferry_plan *plan = ferry_plan_cache_of_hash(watchdog->plans, hash);
	if (plan && ferry_stall_find(&rank->shared, plan, seq, &stalled))
		snprintf(text, bytes, ", %s, slice %u of %u", ferry_opcode_name(stalled.instr->opcode),
		         stalled.slice + 1, stalled.nslices);
	pthread_mutex_unlock(watchdog->lock);
}

static void format_call(const struct ferry_router_watchdog *watchdog, uint64_t taken, char *text, size_t bytes)
{
	struct ferry_descriptor_fields fields;
	char slice[80] = "";
	uint64_t seq = 0;
	const struct ferry_descriptor *call = call_of(watchdog->wait.rank, &seq);
	int said = snprintf(text, bytes, "(process %d) ", watchdog->process);
	text += said;
	bytes -= (size_t)said;
	if (taken != atomic_load_explicit(&watchdog->ring->written, memory_order_relaxed)) {
		snprintf(text, bytes, "to take its calls");
		return;
	}
	if (!call) {
		snprintf(text, bytes, "to begin a call, after %llu",
		         (unsigned long long)atomic_load_explicit(&watchdog->ring->ended, memory_order_relaxed));
		return;
	}
	ferry_descriptor_read(call, &fields);
	format_slice(watchdog, fields.plan_hash, seq, slice, sizeof slice);
	snprintf(text, bytes, "to go on with call %llu (%s)%s", (unsigned long long)seq,
	         ferry_collective_name(fields.shape & 0xff), slice);
}

bool ferry_watchdog_look(struct ferry_router_watchdog *watchdog)
{
	struct ferry_rank *rank = watchdog->wait.rank;
	uint64_t taken = atomic_load_explicit(&watchdog->ring->taken, memory_order_acquire), now = ferry_now_ns();
	uint64_t looked = last_look(rank);
	char what[192];
	if (!waits(watchdog, taken) || taken != watchdog->taken || looked != watchdog->looked ||
	    !watchdog->wait.since) {
		watchdog->taken = taken;
		watchdog->looked = looked;
		watchdog->wait.since = now;
		watchdog->wait.logged = false;
		return false;
	}
	uint64_t waited = now - watchdog->wait.since;
	if (ferry_rank_failed(rank))
		return waited >= DEAF_NS;
	if (!ferry_watchdog_is_due(&watchdog->wait, waited))
		return false;
	format_call(watchdog, taken, what, sizeof what);
	return report_router(&watchdog->wait, waited, rank->domain, what);
}
