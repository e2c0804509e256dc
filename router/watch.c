/* SPDX-License-Identifier: Apache-2.0 */
#include "router/watch.h"

#include "ipc/error.h"
#include "ipc/rankset.h"
#include "router/audit.h"
#include "router/awaited.h"
#include "router/order.h"
#include "router/traffic.h"

/* NULL: the lane waits for streams alone. Calls behind this one may wait for it. */
static const struct ferry_call *first_begun(const struct ferry_seat *seat)
{
	const struct ferry_call *call = seat->calls;
	while (call && !ferry_call_is_in_run(call, seat->direction))
		call = call->halves[seat->direction].next;
	return call;
}

/*
 * The stream is at it, and rank 0 has not said which number it has: rank 0's streams have not reached it, or run others
 * first.
 */
static const struct ferry_call *first_unnumbered(const struct ferry_seat *seat)
{
	const struct ferry_call *call = seat->member->rank == 0 ? NULL : seat->calls;
	while (call && !(call->steps && call->name && !atomic_load_explicit(&call->seq, memory_order_acquire) &&
	                 call->ops->started(call)))
		call = call->halves[seat->direction].next;
	return call;
}

static const char *name_of(enum ferry_direction direction)
{
	return direction == FERRY_UP ? "D2H" : "H2D";
}

void ferry_watch_other(struct ferry_watch *watch, enum ferry_direction other, const _Atomic uint32_t *driving,
                       uint64_t stall_ns, uint64_t now)
{
	uint32_t count = atomic_load_explicit(driving, memory_order_relaxed);
	if (count != watch->other_driving || count % 2 == 0) {
		watch->other_driving = count;
		watch->other_since = now;
		watch->reported = false;
	}
	if (!stall_ns || watch->reported || now - watch->other_since < stall_ns)
		return;
	watch->reported = true;
	ferry_log(FERRY_LOG_WARN,
	          "%s lane: in the device's driver for %llu s, with a call under way: does a thread of this process "
	          "free or register memory, or load kernels, which waits for the call in there?",
	          name_of(other), (unsigned long long)(now - watch->other_since) / 1000000000);
}

/*
 * Where communicators share a stream, on GPUs the default one of all threads, two ranks that call with them in another
 * order wait for each other.
 */
static const char *describe_beside(struct ferry_member *member, char *text, size_t bytes)
{
	uint32_t calls = member->ops->beside(member);
	if (!calls)
		return "";
	snprintf(text, bytes,
	         "; %u call%s of other communicators of its process %s not over, either: if they share a stream, do "
	         "all ranks call in the same order?",
	         calls, calls == 1 ? "" : "s", calls == 1 ? "is" : "are");
	return text;
}

/* The router that has not finished call `before`, where all ranks have. */
static const char *name_router(const struct ferry_member *member, uint64_t before, char text[FERRY_RANKSET_TEXT])
{
	uint32_t domain = ferry_order_blocking_router(member, before);
	if (domain == FERRY_MAX_DOMAINS)
		return "the routers";
	snprintf(text, FERRY_RANKSET_TEXT, "the router of domain %u", domain);
	return text;
}

/*
 * Ranks that have not reached the call: they compute for long, or are about to make another one, or none. Where this
 * rank is one of them, those that have not finished a call before, without which it may not begin. False: neither.
 */
static bool say_missing(const struct ferry_seat *seat, const struct ferry_call *call, uint64_t missing,
                        unsigned long long seconds, char *line, size_t bytes, uint32_t *router)
{
	struct ferry_member *member = seat->member;
	char text[FERRY_RANKSET_TEXT], beside[160];
	unsigned long long seq = ferry_call_number(call), before;
	const char *name = ferry_collective_name(call->shape & 0xff);
	if (!(missing >> member->rank & 1)) {
		snprintf(line, bytes, "rank %u has waited %llu s for %s to reach call %llu (%s)%s", member->rank,
		         seconds, ferry_rankset_print(missing, text), seq, name,
		         describe_beside(member, beside, sizeof beside));
		return true;
	}
	if (!(before = ferry_order_blocked_by(member, call, &missing)))
		return false;
	if (!missing)
		*router = ferry_order_blocking_router(member, before);
	snprintf(line, bytes, "rank %u has waited %llu s for %s to finish call %llu, before call %llu (%s)",
	         member->rank, seconds,
	         missing ? ferry_rankset_print(missing, text) : name_router(member, before, text), before, seq, name);
	return true;
}

/* Of messages: whom they are to or from that are not over. */
static uint64_t unfinished_peers(const struct ferry_half *half)
{
	uint64_t peers = 0;
	for (uint32_t i = 0; i < half->ntransfers; i++)
		if (half->transfers[i].finished < half->transfers[i].nslices)
			peers |= 1ull << half->transfers[i].peer;
	return peers;
}

/*
 * 0: nobody, or for slices of a call that all have reached. Of ranks that have not come the D2H lane tells, which alone
 * reads the order of calls.
 */
static uint64_t awaited(const struct ferry_seat *seat)
{
	const struct ferry_member *member = seat->member;
	const struct ferry_call *call = first_begun(seat);
	if (call && !call->steps)
		return unfinished_peers(&call->halves[seat->direction]);
	if (seat->direction == FERRY_DOWN)
		return 0;
	if (!call)
		return first_unnumbered(seat) ? 1 : 0; /* rank 0 */
	uint64_t missing = ferry_order_missing(member, call);
	if (missing >> member->rank & 1 && !ferry_order_blocked_by(member, call, &missing))
		return 0;
	return missing & ~(1ull << member->rank);
}

/* What the lane has copied of the call. */
struct copied {
	uint32_t issued, finished, slices;
};

static struct copied count_copied(const struct ferry_half *half)
{
	struct copied copied = {0};
	for (uint32_t i = 0; i < half->ntransfers; i++) {
		copied.issued += half->transfers[i].issued;
		copied.finished += half->transfers[i].finished;
		copied.slices += half->transfers[i].nslices;
	}
	return copied;
}

/* All ranks are in the call: whoever could go on and does not, which this lane is where it has copies under way. */
static void say_stall(const struct ferry_seat *seat, const struct ferry_call *call, unsigned long long seconds,
                      char *line, size_t bytes, uint32_t *router)
{
	char from[FERRY_RANKSET_TEXT], what[FERRY_RANKSET_TEXT + 32], who[FERRY_AWAITED_TEXT];
	const struct ferry_member *member = seat->member;
	const struct ferry_half *half = &call->halves[seat->direction];
	struct copied copied = count_copied(half);
	struct ferry_awaited awaited;
	uint64_t seq = ferry_call_number(call);
	if (!call->steps)
		snprintf(what, sizeof what, "%s %s", seat->direction == FERRY_UP ? "sends to" : "receives from",
		         ferry_rankset_print(unfinished_peers(half), from));
	else
		snprintf(what, sizeof what, "call %llu (%s)", (unsigned long long)seq,
		         ferry_collective_name(call->shape & 0xff));
	if (call->steps && copied.issued == copied.finished &&
	    ferry_awaited_find(member->shared, call->steps->plan, seq, &awaited)) {
		snprintf(line, bytes, "rank %u has waited %llu s in %s for %s", member->rank, seconds, what,
		         ferry_awaited_print(member->shared, &awaited, who));
		if (awaited.router)
			*router = awaited.who;
	} else {
		snprintf(line, bytes,
		         "rank %u, %s lane: no progress for %llu s in %s: %u of %u slices copied, %u copies under way",
		         member->rank, name_of(seat->direction), seconds, what, copied.finished, copied.slices,
		         copied.issued - copied.finished);
	}
}

/* Once per wait; and where it is too long to go on, on all ranks. router: who it is; FERRY_MAX_DOMAINS: none. */
static void tell(struct ferry_seat *seat, const struct ferry_timeout *timeout, uint64_t waited, const char *line,
                 uint32_t router)
{
	const struct ferry_member_ops *ops = seat->member->ops;
	char text[FERRY_MESSAGE_BYTES];
	if (ferry_timeout_over(timeout->fails, waited)) {
		snprintf(text, sizeof text, "FERRY_TIMEOUT: %s", line);
		ops->fail(seat->member, ferryRemoteError, text);
	} else if (ferry_timeout_over(timeout->replaces, waited) && router < FERRY_MAX_DOMAINS && ops->replace &&
	           ops->replace(seat->member, router, line)) {
		seat->awaited_until = ferry_now_ns(); /* the next one has as long */
		return;
	} else if (!seat->reported) {
		ferry_log(FERRY_LOG_WARN, "%s", line);
	}
	seat->reported = true;
}

/* True once for each: a lane that slept has not seen it begin, and has not waited for anybody in it before. */
static bool is_new(struct ferry_seat *seat, const struct ferry_call *call)
{
	uint64_t number = ferry_call_number(call);
	if (seat->watched == call && seat->watched_number == number)
		return false;
	seat->watched = call;
	seat->watched_number = number;
	return true;
}

/* A lane that has waited long with a started call: what it waits for. */
static void report_stall(struct ferry_seat *seat, uint64_t now)
{
	struct ferry_member *member = seat->member;
	struct ferry_timeout timeout = member->ops->timeout ? member->ops->timeout(member) : (struct ferry_timeout){0};
	const struct ferry_call *call = first_begun(seat);
	char line[FERRY_MESSAGE_BYTES - 16];
	if (member->ops->failed(member))
		return;
	const struct ferry_call *unnumbered = call ? NULL : first_unnumbered(seat);
	/* Waiting for one's own stream is nothing to report; of ranks that have not come the D2H lane tells. */
	uint64_t missing = call && call->steps ? ferry_order_missing(member, call) : 0;
	if ((!call && !unnumbered) || ((missing || unnumbered) && seat->direction == FERRY_DOWN) ||
	    (call && is_new(seat, call)))
		seat->awaited_until = now;
	uint64_t since = seat->idle_since > seat->awaited_until ? seat->idle_since : seat->awaited_until;
	uint64_t waited = now > since && seat->idle_since ? now - since : 0;
	unsigned long long seconds = waited / 1000000000;
	if (!(ferry_timeout_over(timeout.reports, waited) && !seat->reported) &&
	    !ferry_timeout_over(timeout.fails, waited) && !ferry_timeout_over(timeout.replaces, waited))
		return;
	uint32_t router = FERRY_MAX_DOMAINS;
	if (unnumbered)
		snprintf(line, sizeof line, "rank %u has waited %llu s for rank 0 to reach a %scall (%s)",
		         member->rank, seconds, unnumbered->captured ? "captured " : "",
		         ferry_collective_name(unnumbered->shape & 0xff));
	else if (!missing)
		say_stall(seat, call, seconds, line, sizeof line, &router);
	else if (!say_missing(seat, call, missing, seconds, line, sizeof line, &router)) {
		seat->reported = true;
		return;
	}
	tell(seat, &timeout, waited, line, router);
}

static void watch_calls(struct ferry_seat *seat, uint64_t now)
{
	if (seat->idle_since && now - seat->idle_since >= FERRY_WATCH_US * 1000ull)
		ferry_traffic_awaits(seat, awaited(seat), seat->idle_since);
	atomic_store_explicit(&ferry_traffic_of(seat)->looked, now, memory_order_relaxed);
	report_stall(seat, now);
	seat->member->ops->check(seat->member);
}

void ferry_watch_seat(struct ferry_seat *seat, uint64_t now)
{
	if (seat->calls)
		watch_calls(seat, now);
	ferry_audit_seat(seat);
}
