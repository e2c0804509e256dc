/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a lane looks at now and then while calls are under way: whether the routers live, whether the device works, whether the other
 * lane comes out of the driver, and whether anything moves. It tells of what it can only tell of, and ends the communicator for the rest.
 */
#include "ipc/rankset.h"
#include "rank-lib/lane.h"

/* For how long the other lane has been in one call of the device, as far as this one has looked; 0: it is in none. */
static uint64_t other_hangs(struct ferry_lane *lane, uint64_t now)
{
	uint32_t driving = atomic_load_explicit(&lane->comm->lanes[!lane->direction].driving, memory_order_relaxed);
	if (driving != lane->other_driving || driving % 2 == 0) {
		lane->other_driving = driving;
		lane->other_since = now;
	}
	return now - lane->other_since;
}

/*
 * Whether the lane is in a run of the call: its bank and transfers then stay as they are until this lane, too, has ended its half. Where
 * it has ended its half of a captured call, the D2H lane may begin the next run meanwhile.
 */
static bool has_half(const struct ferry_lane *lane, const struct ferry_call *call)
{
	if (!call->name)
		return ferry_ticket_started(&call->ticket);
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	return seq && seq != call->ended[lane->direction];
}

/* NULL: the lane waits for streams alone. Calls behind this one may wait for it. */
static const struct ferry_call *first_begun(const struct ferry_lane *lane)
{
	const struct ferry_call *call = lane->calls;
	while (call && !has_half(lane, call))
		call = call->next[lane->direction];
	return call;
}

/* The stream is at it, and rank 0 has not said which number it has: rank 0's streams have not reached it, or run others first. */
static const struct ferry_call *first_unnumbered(const struct ferry_lane *lane)
{
	const struct ferry_call *call = lane->comm->rank == 0 ? NULL : lane->calls;
	while (call && !(call->name && !atomic_load_explicit(&call->seq, memory_order_acquire) && ferry_ticket_started(&call->ticket)))
		call = call->next[lane->direction];
	return call;
}

static const char *name_of(enum ferry_direction direction)
{
	return direction == FERRY_UP ? "D2H" : "H2D";
}

/* One line about the other lane if it does not come out of the driver. */
static void report_hang(struct ferry_lane *lane, uint64_t now)
{
	uint64_t hanging = other_hangs(lane, now);
	if (!lane->comm->stall_ns || lane->reported || hanging < lane->comm->stall_ns)
		return;
	lane->reported = true;
	ferry_log(FERRY_LOG_WARN,
	          "rank %d, %s lane: in the device's driver for %llu s, with a call under way: does a thread of this process free or register "
	          "memory, or load kernels, which waits for the call in there?",
	          lane->comm->rank, name_of(!lane->direction), (unsigned long long)hanging / 1000000000);
}

/*
 * One line about ranks that have not reached the call: they compute for long, or are about to make another one, or none. Where this
 * rank is one of them, about those that have not finished a call before, without which it may not begin.
 */
static void report_missing(const struct ferry_lane *lane, const struct ferry_call *call, uint64_t missing, uint64_t waited)
{
	struct ferryComm *comm = lane->comm;
	char text[FERRY_RANKSET_TEXT];
	unsigned long long seconds = waited / 1000000000, seq = ferry_run_number(call), before;
	const char *name = ferry_collective_name(call->shape & 0xff);
	if (!(missing >> comm->rank & 1))
		ferry_log(FERRY_LOG_WARN, "rank %d has waited %llu s for %s to reach call %llu (%s)", comm->rank, seconds,
		          ferry_rankset_print(missing, text), seq, name);
	else if ((before = ferry_run_blocked_by(comm, call, &missing)) != 0)
		ferry_log(FERRY_LOG_WARN, "rank %d has waited %llu s for %s to finish call %llu, before call %llu (%s)", comm->rank, seconds,
		          missing ? ferry_rankset_print(missing, text) : "the routers", before, seq, name);
}

/* One line about a lane that has waited long with a started call, once per wait: what it waits for. */
static void report_stall(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_call *call = first_begun(lane);
	if (!lane->comm->stall_ns || lane->reported)
		return;
	const struct ferry_call *unnumbered = call ? NULL : first_unnumbered(lane);
	/* Waiting for one's own stream is nothing to report; of ranks that have not come the D2H lane tells. */
	uint64_t missing = call && !call->point_to_point ? ferry_run_missing(lane->comm, call) : 0;
	if ((!call && !unnumbered) || ((missing || unnumbered) && lane->direction == FERRY_DOWN))
		lane->awaited_until = now;
	uint64_t since = lane->idle_since > lane->awaited_until ? lane->idle_since : lane->awaited_until;
	if (now - since < lane->comm->stall_ns)
		return;
	lane->reported = true;
	if (unnumbered) {
		ferry_log(FERRY_LOG_WARN, "rank %d has waited %llu s for rank 0 to reach a %scall (%s)", lane->comm->rank,
		          (unsigned long long)(now - since) / 1000000000, unnumbered->ticket.repeats ? "captured " : "",
		          ferry_collective_name(unnumbered->shape & 0xff));
		return;
	}
	if (missing) {
		report_missing(lane, call, missing, now - since);
		return;
	}
	char from[FERRY_RANKSET_TEXT], what[FERRY_RANKSET_TEXT + 16];
	uint64_t peers = 0;
	uint32_t issued = 0, finished = 0, slices = 0;
	for (uint32_t i = 0; i < call->ntransfers[lane->direction]; i++) {
		issued += call->transfers[lane->direction][i].issued;
		finished += call->transfers[lane->direction][i].finished;
		slices += call->transfers[lane->direction][i].nslices;
		if (call->point_to_point && call->transfers[lane->direction][i].finished < call->transfers[lane->direction][i].nslices)
			peers |= 1ull << call->transfers[lane->direction][i].peer;
	}
	if (call->point_to_point)
		snprintf(what, sizeof what, "%s %s", lane->direction == FERRY_UP ? "sends to" : "receives from",
		         ferry_rankset_print(peers, from));
	else
		snprintf(what, sizeof what, "call %llu (%s)", (unsigned long long)ferry_run_number(call), ferry_collective_name(call->shape & 0xff));
	ferry_log(FERRY_LOG_WARN, "rank %d, %s lane: no progress for %llu s in %s: %u of %u slices copied, %u copies under way",
	          lane->comm->rank, name_of(lane->direction), (unsigned long long)(now - since) / 1000000000, what, finished, slices,
	          issued - finished);
}

static bool device_works(struct ferry_lane *lane)
{
	ferry_lane_drive(lane);
	ferryResult_t result = lane->comm->device->copier->ops->queue_check(&lane->queue);
	ferry_lane_drive(lane);
	return result == ferrySuccess;
}

void ferry_lane_watch(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_copy_ops *ops = lane->comm->device->copier->ops;
	if (now - lane->checked < FERRY_LIVENESS_US * 1000ull)
		return;
	lane->checked = now;
	report_hang(lane, now);
	if (!lane->calls)
		return;
	report_stall(lane, now);
	ferry_comm_check_sockets(lane->comm);
	/* With nothing under way one lane stays out of the driver: when the other hangs in there, it can still tell. */
	if (!ops->queue_check || (lane->direction == FERRY_DOWN && lane->head == lane->tail) || device_works(lane))
		return;
	ferry_comm_fail(lane->comm, ferryUnhandledDeviceError, ferry_last_message());
	lane->head = lane->tail; /* nothing is copied any more */
}
