/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lanes: a thread per direction that moves slices between the device and staging as soon as the plan's gates allow. A lane
 * never blocks on one transfer while another is ready: it goes round all transfers of all calls and sleeps only when a whole
 * round, made after it announced its sleep, found nothing to do.
 * What a call's run needs besides slices is in run.c; what may go wrong meanwhile is looked after in watch.c.
 */
#include "rank-lib/lane.h"

#include "ipc/cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define POLL_LEAST_US 5   /* below this, sleeping takes longer than looking again */
#define POLL_MOST_US 1000
#define POLLED_SPIN_US 1000 /* lanes of a device that is polled look that long for a router's slices, and for the next call, then sleep */

/* ---- slices ---- */

static void transfer_done(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer)
{
	if (!transfer->step)
		ferry_pair_done(lane, transfer);
	call->left[lane->direction]--;
}

static uint64_t bytes_in_slice(const struct ferry_plan *plan, const struct ferry_transfer *transfer, uint32_t slice)
{
	uint64_t left = transfer->length - (uint64_t)slice * plan->slice;
	return left < plan->slice ? left : plan->slice;
}

/*
 * What a copy engine writes and no cache holds goes to a few ways of the last-level cache, and on to memory as soon as those are
 * full; what is in the cache already is written in place and stays. Cores that reduce bring the windows there by reading them.
 * Windows that only pass data on, from copy engine to copy engine, need a core that reads: this lane, a part of each slice that
 * has arrived, another part each time the slot comes round (AllToAll of 256 MiB: docs/performance.md). Not of a window that
 * nobody reads: its slots wait for nobody, and the next slice may be on its way already.
 */
static void keep_window(const struct ferry_call *call, const struct ferry_transfer *transfer, uint32_t slice)
{
	const struct ferry_plan *plan = call->entry->plan;
	uint64_t seq = ferry_run_number(call), lap = slice / plan->window + ferry_plan_lap(plan, seq);
	ferry_keep_part(transfer->step->window + ferry_plan_slot(plan, seq, slice), bytes_in_slice(plan, transfer, slice), lap);
}

/* A slice has arrived: publish it. */
static void slice_done(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer)
{
	transfer->finished++;
	if (!transfer->step)
		ferry_pair_publish(lane, transfer);
	else if (transfer->step->instr->opcode != FERRY_COPY)
		ferry_publish(&lane->comm->shared, transfer->step->instr, transfer->step->counter, ferry_run_number(call), transfer->finished);
	if (lane->comm->device->copier->ops->direct_memory_access && transfer->step && transfer->step->only_passes_on)
		keep_window(call, transfer, transfer->finished - 1);
	if (transfer->finished == transfer->nslices)
		transfer_done(lane, call, transfer);
}

static bool reap(struct ferry_lane *lane)
{
	if (lane->head == lane->tail)
		return false;
	ferry_lane_drive(lane);
	uint64_t finished = lane->comm->device->copier->ops->finished(&lane->queue);
	ferry_lane_drive(lane);
	bool progress = false;
	while (lane->head != lane->tail && lane->outstanding[lane->head % FERRY_OUTSTANDING].ticket <= finished) {
		struct ferry_outstanding *oldest = &lane->outstanding[lane->head % FERRY_OUTSTANDING];
		lane->head++;
		slice_done(lane, oldest->call, oldest->transfer);
		progress = true;
	}
	return progress;
}

bool ferry_lane_copy(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer, void *destination,
                     const void *source, uint64_t bytes, bool crosses)
{
	if (bytes) {
		ferry_lane_drive(lane);
		ferryResult_t result = lane->comm->device->copier->ops->copy(&lane->queue, destination, source, bytes, transfer->length, crosses);
		ferry_lane_drive(lane);
		if (result) {
			ferry_comm_fail(lane->comm, result, ferry_last_message());
			return false;
		}
	}
	lane->outstanding[lane->tail++ % FERRY_OUTSTANDING] = (struct ferry_outstanding){call, transfer, lane->queue.started};
	transfer->issued++;
	reap(lane);
	return true;
}

/* Variable plans: the length of a chunk is in its producer's counter, valid once the counter has this call's tag. */
static uint32_t open_variable(const struct ferry_call *call, const struct ferry_transfer *transfer)
{
	uint32_t open = transfer->nslices, slice = call->entry->plan->slice;
	for (uint32_t i = 0; i < transfer->step->ngates; i++) {
		const struct ferry_gate *gate = &transfer->step->gates[i];
		uint64_t value = atomic_load_explicit(&gate->counter->value, memory_order_acquire);
		uint32_t slices = ferry_counter_slices(value, ferry_run_number(call));
		if (gate->lag) {
			if ((uint64_t)slices + gate->lag < open)
				open = slices + gate->lag;
			continue;
		}
		if ((uint32_t)(value >> 32) != (uint32_t)ferry_run_number(call))
			return 0;
		uint64_t length = atomic_load_explicit(&gate->counter->length, memory_order_relaxed);
		if (slices < (length + slice - 1) / slice && slices < open)
			open = slices;
	}
	return open;
}

/* Variable plans, H2D: false until the sender has told its length; a different one ends the communicator. */
static bool lengths_agree(struct ferry_lane *lane, const struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_step *step = transfer->step;
	uint64_t value = atomic_load_explicit(&step->producer->value, memory_order_acquire);
	if ((uint32_t)(value >> 32) != (uint32_t)ferry_run_number(call))
		return false;
	uint64_t length = atomic_load_explicit(&step->producer->length, memory_order_relaxed);
	transfer->current = true;
	if (length == transfer->length)
		return true;
	char text[FERRY_MESSAGE_BYTES];
	snprintf(text, sizeof text, "alltoallv: rank %u sends %llu bytes to rank %d, which expects %llu", step->producer_rank,
	         (unsigned long long)length, lane->comm->rank, (unsigned long long)transfer->length);
	ferry_comm_fail(lane->comm, ferryInvalidUsage, text);
	return false;
}

static bool issue_step(struct ferry_lane *lane, struct ferry_call *call, struct ferry_transfer *transfer)
{
	const struct ferry_plan *plan = call->entry->plan;
	const struct ferry_step *step = transfer->step;
	bool variable = plan->flags & FERRY_PLAN_VARIABLE;
	if (variable && step->instr->opcode == FERRY_H2D && !transfer->current) {
		if (!lengths_agree(lane, call, transfer))
			return false;
		if (!transfer->nslices) {
			transfer_done(lane, call, transfer);
			return true;
		}
	}
	uint32_t slice = transfer->issued;
	if (slice >= transfer->nslices)
		return false;
	if (slice >= transfer->open) {
		transfer->open = variable ? open_variable(call, transfer)
		                          : ferry_gates_open(step->gates, step->ngates, ferry_run_number(call), transfer->nslices);
		if (slice >= transfer->open)
			return false;
	}
	uint64_t start = (uint64_t)slice * plan->slice, bytes = bytes_in_slice(plan, transfer, slice);
	char *slot = step->window + ferry_plan_slot(plan, ferry_run_number(call), slice);
	if (step->instr->opcode == FERRY_COPY)
		return ferry_lane_copy(lane, call, transfer, transfer->destination + start, transfer->user + start, bytes, false);
	if (lane->direction == FERRY_UP)
		return ferry_lane_copy(lane, call, transfer, slot, transfer->user + start, bytes, true);
	return ferry_lane_copy(lane, call, transfer, transfer->user + start, slot, bytes, true);
}

/* ---- rounds ---- */

/* Whether the stream has reached the call and, where rank 0 decides, the call has its number. */
static bool may_run(struct ferry_lane *lane, struct ferry_call *call)
{
	if (!call->name)
		return ferry_ticket_started(&call->ticket);
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	if (!seq)
		return lane->direction == FERRY_UP && ferry_ticket_started(&call->ticket) && ferry_run_begin(lane, call);
	return seq != call->ended[lane->direction];
}

/* One slice of each transfer that has one ready. *ended: this lane's half of the call is over. */
static bool call_round(struct ferry_lane *lane, struct ferry_call *call, bool *ended)
{
	enum ferry_direction direction = lane->direction;
	bool progress = false;
	*ended = false;
	if (!may_run(lane, call))
		return false;
	if (direction == FERRY_UP && !call->noticed) {
		call->noticed = true;
		if (lane->comm->device->copier->ops->polled && call->all_left[FERRY_DOWN])
			ferry_wake(&lane->comm->shared, 0, 1ull << lane->comm->rank, 0);
	}
	if (direction == FERRY_UP && !call->point_to_point && !call->submitted) {
		uint64_t seq = ferry_run_number(call);
		if (!ferry_run_may_begin(lane->comm, seq, call->after))
			return false;
		lane->last_seq[call->bank] = seq;
		ferry_run_submit(call);
		progress = true;
	}
	uint32_t count = call->ntransfers[direction];
	for (uint32_t i = 0; i < count && call->left[direction]; i++) {
		if (lane->tail - lane->head == FERRY_OUTSTANDING)
			break;
		struct ferry_transfer *transfer = &call->transfers[direction][(call->turn[direction] + i) % count];
		progress |= transfer->step ? issue_step(lane, call, transfer) : ferry_pair_issue(lane, call, transfer);
	}
	if (count)
		call->turn[direction] = (call->turn[direction] + 1) % count;
	if (!call->left[direction])
		*ended = direction == FERRY_DOWN || call->point_to_point || ferry_run_agreed(call);
	return progress || *ended;
}

/* True if a call is about to come: a lane that was asleep looks for it then. */
static bool hears(struct ferry_lane *lane)
{
	uint32_t announced = atomic_load_explicit(&lane->announced, memory_order_acquire);
	bool any = announced != lane->heard;
	lane->heard = announced;
	return any;
}

/* True if there was a call: it is looked for closely at first, however long the lane had nothing to do before. */
static bool take_inbox(struct ferry_lane *lane)
{
	if (!atomic_load_explicit(&lane->inbox_filled, memory_order_acquire))
		return false;
	pthread_mutex_lock(&lane->inbox_lock);
	if (lane->inbox) {
		*lane->calls_end = lane->inbox;
		lane->calls_end = lane->inbox_end;
		lane->inbox = NULL;
		lane->inbox_end = &lane->inbox;
	}
	atomic_store_explicit(&lane->inbox_filled, 0, memory_order_relaxed);
	pthread_mutex_unlock(&lane->inbox_lock);
	return true;
}

static void unlink_call(struct ferry_lane *lane, struct ferry_call **link)
{
	struct ferry_call *call = *link;
	*link = call->next[lane->direction];
	if (!*link)
		lane->calls_end = link;
}

/* The communicator has failed: ends this lane's half of the run that a captured call may be in, and any that is asked for. */
static bool fail_captured(struct ferry_lane *lane, struct ferry_call *call)
{
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	if (seq && seq != call->ended[lane->direction]) {
		call->ended[lane->direction] = seq;
		ferry_run_end_half(call);
		return true;
	}
	if (seq || lane->direction == FERRY_DOWN || !ferry_ticket_started(&call->ticket))
		return false;
	atomic_store_explicit(call->ticket.started, 0, memory_order_relaxed);
	ferry_ticket_finish(&call->ticket, lane->comm->error, lane->comm->error_message);
	return true;
}

/* A captured call stays in the lane's list from run to run, until its last graph is gone. *keep: it stays. */
static bool captured_round(struct ferry_lane *lane, struct ferry_call *call, bool failed, bool *keep)
{
	bool ended = false, progress = failed ? fail_captured(lane, call) : call_round(lane, call, &ended);
	if (ended) {
		call->ended[lane->direction] = ferry_run_number(call);
		ferry_run_end_half(call);
	}
	*keep = !atomic_load_explicit(&call->ticket.forgotten, memory_order_acquire);
	return progress;
}

static bool lane_round(struct ferry_lane *lane)
{
	bool progress = hears(lane);
	progress |= take_inbox(lane);
	if (!lane->calls)
		return progress;
	bool failed = ferry_comm_failed(lane->comm);
	progress |= reap(lane);
	if (failed && lane->head != lane->tail)
		return progress; /* the device may still write to the buffers of what is outstanding */
	struct ferry_call **link = &lane->calls;
	while (*link) {
		struct ferry_call *call = *link;
		bool ended = failed, keep = true;
		if (call->ticket.repeats) {
			progress |= captured_round(lane, call, failed, &keep);
			if (keep) {
				link = &call->next[lane->direction];
			} else {
				unlink_call(lane, link);
				ferry_ticket_drop(&call->ticket);
			}
			continue;
		}
		if (!failed)
			progress |= call_round(lane, call, &ended);
		if (!ended) {
			link = &call->next[lane->direction];
			continue;
		}
		unlink_call(lane, link);
		ferry_run_end_half(call);
		progress = true;
	}
	return progress;
}

static bool stopping(struct ferry_lane *lane)
{
	pthread_mutex_lock(&lane->inbox_lock);
	bool stop = atomic_load_explicit(&lane->stopping, memory_order_relaxed) && !lane->inbox;
	pthread_mutex_unlock(&lane->inbox_lock);
	for (const struct ferry_call *call = lane->calls; stop && call; call = call->next[lane->direction])
		stop = call->ticket.repeats && !atomic_load_explicit(&call->seq, memory_order_acquire);
	return stop;
}

/* Captured calls whose graphs outlive the communicator. */
static void drop_captured(struct ferry_lane *lane)
{
	while (lane->calls) {
		struct ferry_call *call = lane->calls;
		unlink_call(lane, &lane->calls);
		ferry_ticket_drop(&call->ticket);
	}
}

static bool look_once(struct ferry_lane *lane)
{
	bool found = lane_round(lane);
	if (lane->comm->spin.limit_ns)
		ferry_spin_looked(&lane->comm->spin, &lane->looker, ferry_now_ns());
	return found;
}

/*
 * For a GPU also behind the last call: the next one often comes soon, and to be woken takes longer than a short one itself. Ranks of host
 * devices usually outnumber the cores, and who looks keeps another from working.
 */
static bool look(struct ferry_lane *lane)
{
	struct ferry_spin *spin = &lane->comm->spin;
	if (!spin->limit_ns || lane->idle_since || (!lane->calls && !lane->comm->device->copier->ops->polled))
		return false;
	uint64_t now = ferry_now_ns(), begun = now;
	while (now - begun < ferry_spin_ns(spin, now) && !atomic_load_explicit(&lane->stopping, memory_order_relaxed)) {
		if (look_once(lane))
			return true;
		ferry_relax();
		now = ferry_now_ns();
	}
	return false;
}

bool ferry_lane_awaits_start(const struct ferry_lane *lane)
{
	for (const struct ferry_call *call = lane->calls; call; call = call->next[lane->direction])
		if (call->name ? !ferry_run_number(call) : !ferry_ticket_started(&call->ticket))
			return true;
	return false;
}

/*
 * How long to sleep at most; 0: not at all. A GPU rings no bell. While it copies for this lane, the lane looks again at once. A
 * call that it has not reached is looked for after a 64th of the time already spent waiting, and after POLL_MOST_US at most: that
 * finds it late by less than 2% and costs an idle process next to nothing.
 */
static int64_t sleep_us(struct ferry_lane *lane, uint64_t now)
{
	const struct ferry_copy_ops *ops = lane->comm->device->copier->ops;
	/* The other lane may still have calls where this one has none, and hang in the driver. */
	bool busy = lane->calls || (ops->polled && atomic_load_explicit(&lane->comm->inflight, memory_order_relaxed));
	int64_t most = busy ? FERRY_LIVENESS_US : -1;
	if (lane->head != lane->tail) {
		int64_t copy = ops->wait_us(&lane->queue);
		most = copy < most ? copy : most;
	}
	if (!ops->polled || most <= 0 || !ferry_lane_awaits_start(lane))
		return most;
	int64_t step = (int64_t)((now - lane->idle_since) / 1000 / 64);
	return step < POLL_LEAST_US ? 0 : step < POLL_MOST_US ? step : POLL_MOST_US;
}

static void *lane_main(void *argument)
{
	struct ferry_lane *lane = argument;
	ferry_looker_open(&lane->looker, &lane->comm->spin);
	if (lane->comm->device->copier->ops->polled)
		prctl(PR_SET_TIMERSLACK, 1000ul); /* nanoseconds: short sleeps are short */
	while (1) {
		if (look_once(lane) || look(lane)) {
			lane->idle_since = 0;
			lane->reported = false;
			continue;
		}
		uint64_t now = ferry_now_ns();
		if (!lane->idle_since)
			lane->idle_since = now;
		ferry_lane_watch(lane, now);
		if (sleep_us(lane, now) == 0) {
			ferry_relax();
			continue;
		}
		uint32_t ticket = ferry_doorbell_prepare(lane->bell);
		if (lane_round(lane)) {
			ferry_doorbell_cancel(lane->bell);
			lane->idle_since = 0;
			lane->reported = false;
			continue;
		}
		if (stopping(lane)) {
			ferry_doorbell_cancel(lane->bell);
			drop_captured(lane);
			ferry_looker_close(&lane->looker);
			return NULL;
		}
		int64_t timeout = sleep_us(lane, now); /* again: the round may have found a new call, for which nobody rings */
		if (timeout == 0) {
			ferry_doorbell_cancel(lane->bell);
			continue;
		}
		ferry_doorbell_wait(lane->bell, ticket, timeout);
	}
}

/* ---- start, stop, submit ---- */

static ferryResult_t lane_start(struct ferryComm *comm, enum ferry_direction direction)
{
	struct ferry_lane *lane = &comm->lanes[direction];
	struct ferry_rank_line *line = ferry_rank_line(&comm->shared, (uint32_t)comm->rank);
	lane->comm = comm;
	lane->direction = direction;
	lane->bell = direction == FERRY_UP ? &line->d2h : &line->h2d;
	lane->inbox_end = &lane->inbox;
	lane->calls_end = &lane->calls;
	for (int peer = 0; peer < comm->nranks; peer++)
		lane->message[peer] = 1;
	ferryResult_t result = comm->device->copier->ops->queue_open(comm->device->copier, direction, &lane->queue);
	if (result)
		return result;
	pthread_mutex_init(&lane->inbox_lock, NULL);
	int refused = pthread_create(&lane->thread, NULL, lane_main, lane);
	if (refused) {
		comm->device->copier->ops->queue_close(&lane->queue);
		pthread_mutex_destroy(&lane->inbox_lock);
		return ferry_fail(ferrySystemError, "a lane thread: %s", strerror(refused));
	}
	lane->running = true;
	return ferrySuccess;
}

ferryResult_t ferry_lanes_start(struct ferryComm *comm)
{
	long spin_us;
	ferryResult_t result = ferry_env_integer("FERRY_SPIN_US", 0, 1000000, comm->device->copier->ops->polled ? POLLED_SPIN_US : 0, &spin_us);
	comm->spin.limit_ns = result ? 0 : (uint64_t)spin_us * 1000;
	for (enum ferry_direction direction = FERRY_UP; !result && direction <= FERRY_DOWN; direction++)
		result = lane_start(comm, direction);
	if (result)
		ferry_lanes_stop(comm);
	return result;
}

void ferry_lanes_stop(struct ferryComm *comm)
{
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		struct ferry_lane *lane = &comm->lanes[direction];
		if (!lane->running)
			continue;
		pthread_mutex_lock(&lane->inbox_lock);
		atomic_store_explicit(&lane->stopping, true, memory_order_relaxed);
		pthread_mutex_unlock(&lane->inbox_lock);
		ferry_doorbell_ring(lane->bell);
		pthread_join(lane->thread, NULL);
		comm->device->copier->ops->queue_close(&lane->queue);
		pthread_mutex_destroy(&lane->inbox_lock);
		lane->running = false;
	}
}

void ferry_lanes_announce(struct ferryComm *comm, const struct ferry_call *call)
{
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		struct ferry_lane *lane = &comm->lanes[direction];
		if (direction == FERRY_DOWN && !call->all_left[direction])
			continue;
		atomic_fetch_add_explicit(&lane->announced, 1, memory_order_release);
		ferry_doorbell_ring(lane->bell);
	}
	if (call->point_to_point || !call->entry->domains)
		return;
	atomic_store_explicit(&ferry_rank_line(&comm->shared, (uint32_t)comm->rank)->announced, comm->seq, memory_order_release);
	ferry_wake(&comm->shared, 0, 0, call->entry->domains);
}

void ferry_lanes_submit(struct ferryComm *comm, struct ferry_call *call)
{
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++) {
		struct ferry_lane *lane = &comm->lanes[direction];
		if (direction == FERRY_DOWN && !call->all_left[direction])
			continue;
		pthread_mutex_lock(&lane->inbox_lock);
		call->next[direction] = NULL;
		*lane->inbox_end = call;
		lane->inbox_end = &call->next[direction];
		atomic_store_explicit(&lane->inbox_filled, 1, memory_order_release);
		pthread_mutex_unlock(&lane->inbox_lock);
		/*
		 * A device that is polled rings nobody; and waking a thread takes longer than many a call, so it starts now. Who ends
		 * the job rings once: either finds the call in the inbox, or is seen here to have done so.
		 */
		ferry_full_fence();
		if (comm->device->copier->ops->polled || ferry_comm_failed(comm))
			ferry_doorbell_ring(lane->bell);
	}
}

void ferry_call_forgotten(struct ferry_ticket *ticket)
{
	struct ferryComm *comm = ((struct ferry_call *)ticket)->comm;
	for (enum ferry_direction direction = FERRY_UP; direction <= FERRY_DOWN; direction++)
		ferry_doorbell_ring(comm->lanes[direction].bell);
}

/* The H2D lane is woken by what it waits for; at the start of a call only if that is there already. */
static bool down_ready(const struct ferry_call *call)
{
	for (uint32_t i = 0; i < call->ntransfers[FERRY_DOWN]; i++) {
		const struct ferry_transfer *transfer = &call->transfers[FERRY_DOWN][i];
		if (!transfer->step || transfer->step->instr->opcode == FERRY_COPY ||
		    (call->entry->plan->flags & FERRY_PLAN_VARIABLE) ||
		    ferry_gates_open(transfer->step->gates, transfer->step->ngates, ferry_run_number(call), transfer->nslices))
			return true;
	}
	return false;
}

void ferry_call_started(struct ferry_ticket *ticket)
{
	struct ferry_call *call = (struct ferry_call *)ticket;
	struct ferryComm *comm = call->comm;
	ferry_full_fence(); /* `started` before the counters: a slice published later wakes the lane by itself */
	ferry_doorbell_ring(comm->lanes[FERRY_UP].bell);
	if (call->ntransfers[FERRY_DOWN] && down_ready(call))
		ferry_doorbell_ring(comm->lanes[FERRY_DOWN].bell);
}
