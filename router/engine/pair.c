/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/pair.h"

#include "ipc/error.h"
#include "ipc/publish.h"
#include "ipc/rankset.h"
#include "router/reduce/reduce.h"

#include <math.h>

/*
 * The square root is as in tuning.c: each slice costs its lanes the same, whatever its length, and a message takes the
 * time of one more slice than it has. The factor was found by trying (docs/lab/send-receive.md).
 */
#define COST_BYTES 400000.0
#define SLICE_LEAST (64u << 10)
#define ROUND 4096u
#define PUSH_SLICE (256u << 20) /* one copy: engines pause between copies */

/* Ends with the same length compute the same slice; other ends find the difference in the first slot. */
static uint32_t slice_of(uint32_t slot_bytes, uint64_t length)
{
	uint64_t best = length > SLICE_LEAST ? (uint64_t)sqrt(COST_BYTES * (double)length) : SLICE_LEAST;
	uint64_t longest = length;
	best = best < SLICE_LEAST ? SLICE_LEAST : best;
	best = best > slot_bytes ? slot_bytes : best;
	if (length > best) { /* slices of equal length: the last one is not a stub */
		uint64_t nslices = (length + best - 1) / best;
		longest = (length + nslices - 1) / nslices;
	}
	uint64_t slice = length ? (longest + ROUND - 1) / ROUND * ROUND : best;
	return slice < slot_bytes ? (uint32_t)slice : slot_bytes;
}

void ferry_pair_cut(struct ferry_transfer *transfer, bool puts, uint32_t slot_bytes)
{
	transfer->puts = puts;
	transfer->slice = puts ? PUSH_SLICE : slice_of(slot_bytes, transfer->length);
	transfer->nslices = 1; /* an empty message is a message too */
	if (transfer->length > transfer->slice)
		transfer->nslices = (uint32_t)((transfer->length + transfer->slice - 1) / transfer->slice);
}

/* window: NULL, or where to put the address of the slot that the slice goes through. */
static struct ferry_pair_line *line_of(const struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer,
                                       uint64_t slice, char **window)
{
	const struct ferry_member *member = lane_rank->member;
	uint32_t self = member->rank;
	uint32_t source = lane_rank->direction == FERRY_DIR_D2H ? self : transfer->peer;
	uint32_t destination = lane_rank->direction == FERRY_DIR_D2H ? transfer->peer : self;
	const struct ferry_arena *arena = &member->shared->arenas[member->shared->rank_domain[source]];
	if (window)
		*window = ferry_pair_window(arena, source, destination) +
		          slice % FERRY_PAIR_SLOTS * arena->pair_slot_bytes;
	return &arena->pair_lines[source * arena->nranks + destination];
}

/* An empty message has no bytes to push: its head alone says that it has come. */
static bool is_pushed(const struct ferry_transfer *transfer)
{
	return transfer->puts && transfer->length;
}

/* A message as one of its ends describes it. */
struct said {
	uint64_t bytes;
	uint32_t type;
	bool pushed;
};

static struct said said_here(const struct ferry_transfer *transfer)
{
	return (struct said){transfer->length, transfer->type, is_pushed(transfer)};
}

static bool is_same(struct said mine, struct said theirs)
{
	return mine.bytes == theirs.bytes && mine.type == theirs.type && mine.pushed == theirs.pushed;
}

static const char *name_of(uint32_t type)
{
	const char *name = ferry_type_name((ferryDataType_t)type);
	return name ? name : "an unknown type";
}

static void disagree(struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer, struct said theirs)
{
	static const char *const ways[] = {" through the host", " by a push"};
	char text[FERRY_MESSAGE_BYTES];
	struct said mine = said_here(transfer);
	bool d2h = lane_rank->direction == FERRY_DIR_D2H;
	/* If the messages differ, the ways may differ for that reason alone. */
	bool settings = mine.bytes == theirs.bytes && mine.type == theirs.type && mine.pushed != theirs.pushed;
	struct said sent = d2h ? mine : theirs, received = d2h ? theirs : mine;
	snprintf(text, sizeof text,
	         "message %llu from rank %u to rank %u: sent %llu bytes of %s%s, received as %llu bytes of %s%s%s",
	         (unsigned long long)transfer->message, d2h ? lane_rank->member->rank : transfer->peer,
	         d2h ? transfer->peer : lane_rank->member->rank, (unsigned long long)sent.bytes, name_of(sent.type),
	         settings ? ways[sent.pushed] : "", (unsigned long long)received.bytes, name_of(received.type),
	         settings ? ways[received.pushed] : "",
	         settings ? ": FERRY_FABRICS, FERRY_SHARES or FERRY_HOST_LINK differ on the two ranks" : "");
	lane_rank->member->ops->fail(lane_rank->member, ferryInvalidUsage, text);
}

static bool message_agrees(struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer,
                           const struct ferry_pair_slot *slot)
{
	struct said theirs = {atomic_load_explicit(&slot->bytes, memory_order_relaxed),
	                      atomic_load_explicit(&slot->type, memory_order_relaxed),
	                      atomic_load_explicit(&slot->pushed, memory_order_relaxed)};
	uint64_t message = atomic_load_explicit(&slot->message, memory_order_relaxed);
	if (is_same(said_here(transfer), theirs) && message == transfer->message)
		return true;
	disagree(lane_rank, transfer, theirs);
	return false;
}

/* Receiver, when it is the message's turn. */
static void post(struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer)
{
	struct ferry_pair_post *there = &line_of(lane_rank, transfer, 0, NULL)->post;
	atomic_store_explicit(&there->bytes, transfer->length, memory_order_relaxed);
	atomic_store_explicit(&there->type, transfer->type, memory_order_relaxed);
	atomic_store_explicit(&there->index, transfer->put_target.index, memory_order_relaxed);
	atomic_store_explicit(&there->generation, transfer->put_target.generation, memory_order_relaxed);
	atomic_store_explicit(&there->offset, transfer->put_target.offset, memory_order_relaxed);
	atomic_store_explicit(&there->message, transfer->message, memory_order_release);
	ferry_wake_end(lane_rank->member->shared, transfer->peer, false);
}

/* Sender: true once the receiver has posted its buffer; transfer->destination then is the address of that. */
static bool find_put_target(struct ferry_lane_rank *lane_rank, struct ferry_transfer *transfer)
{
	const struct ferry_pair_post *there = &line_of(lane_rank, transfer, 0, NULL)->post;
	if (transfer->destination)
		return true;
	if (atomic_load_explicit(&there->message, memory_order_acquire) != transfer->message)
		return false;
	struct said theirs = {atomic_load_explicit(&there->bytes, memory_order_relaxed),
	                      atomic_load_explicit(&there->type, memory_order_relaxed), true};
	struct ferry_buffer_name name = {
	        .index = atomic_load_explicit(&there->index, memory_order_relaxed),
	        .generation = atomic_load_explicit(&there->generation, memory_order_relaxed),
	        .offset = atomic_load_explicit(&there->offset, memory_order_relaxed)};
	struct ferry_put_target put_target = {0};
	if (!is_same(said_here(transfer), theirs)) {
		disagree(lane_rank, transfer, theirs);
		return false;
	}
	ferryResult_t result = lane_rank->member->ops->hold_target(lane_rank->member, transfer->peer, &name,
	                                                           theirs.bytes, &put_target);
	if (result) {
		lane_rank->member->ops->fail(lane_rank->member, result, ferry_last_message());
		return false;
	}
	transfer->destination = put_target.address;
	transfer->process = put_target.process;
	transfer->hold = put_target.hold;
	return true;
}

static bool push(struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank, struct ferry_call *call,
                 struct ferry_transfer *transfer, uint64_t start, uint64_t bytes)
{
	const struct ferry_put_target to = {.address = transfer->destination + start,
	                                    .process = transfer->process,
	                                    .from = lane_rank->member->rank,
	                                    .to = transfer->peer};
	return ferry_pushes_start(pushes, lane_rank, call, transfer, to, transfer->user + start, bytes, 1);
}

/* Fields first, then `message`: a receiver may read the head before the slice is published. */
static void fill_head(struct ferry_pair_slot *slot, const struct ferry_transfer *transfer, bool inlined)
{
	atomic_store_explicit(&slot->inlined, inlined, memory_order_relaxed);
	atomic_store_explicit(&slot->bytes, transfer->length, memory_order_relaxed);
	atomic_store_explicit(&slot->type, transfer->type, memory_order_relaxed);
	atomic_store_explicit(&slot->pushed, is_pushed(transfer), memory_order_relaxed);
	atomic_store_explicit(&slot->message, transfer->message, memory_order_release);
}

/*
 * Shows the head before the first push: a receiver that expects no push, as it expects fewer bytes or has other
 * settings, posts nothing, waits for a slice, and finds the difference in the head.
 */
static void notify(struct ferry_lane_rank *lane_rank, struct ferry_pair_slot *slot, struct ferry_transfer *transfer)
{
	if (transfer->published)
		return;
	fill_head(slot, transfer, false);
	transfer->published = true;
	ferry_wake_end(lane_rank->member->shared, transfer->peer, true);
}

/* No slice has come. If this end expects no push, and the head says that the sender is about to push, the job fails. */
static void look_for_push(struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer,
                          const struct ferry_pair_slot *slot)
{
	if (!transfer->puts && !transfer->issued &&
	    atomic_load_explicit(&slot->message, memory_order_acquire) == transfer->message)
		message_agrees(lane_rank, transfer, slot);
}

bool ferry_pair_waits(const struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer)
{
	if (transfer->finished == transfer->nslices)
		return false;
	if (lane_rank->direction == FERRY_DIR_D2H)
		return true;
	const struct ferry_pair_line *line = line_of(lane_rank, transfer, 0, NULL);
	return transfer->current &&
	       transfer->base + transfer->nslices > atomic_load_explicit(&line->d2h.value, memory_order_acquire);
}

void ferry_pair_format_wait(const struct ferry_lane_rank *lane_rank, const struct ferry_transfer *transfer, char *text,
                            size_t bytes)
{
	const struct ferry_pair_line *line = line_of(lane_rank, transfer, 0, NULL);
	const struct ferry_pair_turn *turn = &line->ends[!lane_rank->direction].turns[transfer->message % 2];
	unsigned long long message = transfer->message;
	uint64_t sent = atomic_load_explicit(&line->d2h.value, memory_order_relaxed) - transfer->base;
	bool begun = atomic_load_explicit(&turn->message, memory_order_relaxed) == transfer->message;
	if (lane_rank->direction == FERRY_DIR_D2H && !begun)
		snprintf(text, bytes, "rank %u to receive message %llu", transfer->peer, message);
	else if (lane_rank->direction == FERRY_DIR_D2H)
		snprintf(text, bytes, "rank %u to take slice %u of %u of message %llu", transfer->peer,
		         transfer->issued + 1, transfer->nslices, message);
	else if (!begun)
		snprintf(text, bytes, "message %llu, which rank %u has not sent", message, transfer->peer);
	else
		snprintf(text, bytes, "message %llu of rank %u, of which %llu of %u slices have come", message,
		         transfer->peer, (unsigned long long)sent, transfer->nslices);
}

static void take_turn(struct ferry_lane_rank *lane_rank, const struct ferry_call *call,
                      const struct ferry_transfer *transfer)
{
	struct ferry_pair_line *line = line_of(lane_rank, transfer, 0, NULL);
	struct ferry_pair_turn *turn = &line->ends[lane_rank->direction].turns[transfer->message % 2];
	bool named = call->name && call->ops->run;
	if (atomic_load_explicit(&turn->message, memory_order_relaxed) == transfer->message &&
	    atomic_load_explicit(&turn->base, memory_order_relaxed) == transfer->base)
		return; /* a router before this one has said so */
	atomic_store_explicit(&turn->message, 0, memory_order_relaxed);
	atomic_store_explicit(&turn->base, transfer->base, memory_order_release);
	atomic_store_explicit(&turn->first, named ? transfer->first : 0, memory_order_release);
	atomic_store_explicit(&turn->call, named ? call->ops->run(call) : 0, memory_order_release);
	atomic_store_explicit(&turn->message, transfer->message, memory_order_release);
}

/* True once it is the message's turn, and its receiver has not left. */
static bool is_current(struct ferry_lane_rank *lane_rank, const struct ferry_call *call,
                       struct ferry_transfer *transfer)
{
	if (transfer->current)
		return true;
	if (lane_rank->message[transfer->peer] != transfer->message)
		return false;
	/* To a rank that has left nothing is sent: it would seem to have arrived (router/engine/stall.h). */
	if (lane_rank->direction == FERRY_DIR_D2H && ferry_departed(lane_rank->member->shared) >> transfer->peer & 1)
		return false;
	transfer->current = true;
	transfer->base = lane_rank->slices[transfer->peer];
	take_turn(lane_rank, call, transfer);
	if (transfer->puts && lane_rank->direction == FERRY_DIR_H2D)
		post(lane_rank, transfer);
	return true;
}

/* The next slice to move, and the slot that it goes through. */
struct next {
	struct ferry_pair_slot *slot;
	char *window;
	uint64_t start, bytes;
};

static void set_blocker(struct ferry_lane_rank *lane_rank, uint32_t peer, bool blocks)
{
	uint64_t others = atomic_load_explicit(&lane_rank->blockers, memory_order_relaxed) & ~(1ull << peer);
	atomic_store_explicit(&lane_rank->blockers, others | (uint64_t)blocks << peer, memory_order_relaxed);
}

static bool has_free_slot(struct ferry_lane_rank *lane_rank, uint32_t peer, const struct ferry_pair_line *line,
                          uint64_t slice)
{
	uint64_t *until = &lane_rank->free_until[peer];
	if (slice < *until)
		return true;
	*until = atomic_load_explicit(&line->h2d.value, memory_order_acquire) + FERRY_PAIR_SLOTS;
	return slice < *until;
}

/* False: the slot is not free, or the slice has not come, or the ends disagree. */
static bool find_next(struct ferry_lane_rank *lane_rank, struct ferry_transfer *transfer, struct next *next)
{
	uint64_t slice = transfer->base + transfer->issued;
	struct ferry_pair_line *line = line_of(lane_rank, transfer, slice, &next->window);
	next->slot = &line->slots[slice % FERRY_PAIR_SLOTS];
	next->start = (uint64_t)transfer->issued * transfer->slice;
	next->bytes = transfer->length - next->start;
	if (next->bytes > transfer->slice)
		next->bytes = transfer->slice;
	set_blocker(lane_rank, transfer->peer, true);
	if (lane_rank->direction == FERRY_DIR_D2H) {
		if (!has_free_slot(lane_rank, transfer->peer, line, slice))
			return false;
	} else if (atomic_load_explicit(&next->slot->there, memory_order_acquire) != slice + 1 &&
	           slice >= atomic_load_explicit(&line->d2h.value, memory_order_acquire)) {
		look_for_push(lane_rank, transfer, next->slot);
		return false;
	} else if (!transfer->issued && !message_agrees(lane_rank, transfer, next->slot)) {
		return false;
	}
	if (lane_rank->direction == FERRY_DIR_H2D && transfer->length <= FERRY_PAIR_DATA &&
	    atomic_load_explicit(&next->slot->inlined, memory_order_relaxed))
		next->window = next->slot->data;
	set_blocker(lane_rank, transfer->peer, false);
	return true;
}

bool ferry_pair_issue(struct ferry_copies *copies, struct ferry_pushes *pushes, struct ferry_lane_rank *lane_rank,
                      struct ferry_call *call, struct ferry_transfer *transfer)
{
	struct next next;
	if (transfer->issued == transfer->nslices || !is_current(lane_rank, call, transfer) ||
	    !find_next(lane_rank, transfer, &next))
		return false;
	bool pushed = is_pushed(transfer);
	char *user = transfer->user + next.start;
	if (lane_rank->direction == FERRY_DIR_H2D) /* Pushed data is there: the receive only takes its turn. */
		return !ferry_copies_full(copies) && ferry_copies_start(copies, lane_rank, call, transfer, user,
		                                                        next.window, pushed ? 0 : next.bytes, true);
	if (pushed) {
		notify(lane_rank, next.slot, transfer);
		if (!find_put_target(lane_rank, transfer))
			return false;
		fill_head(next.slot, transfer, false);
		return push(pushes, lane_rank, call, transfer, next.start, next.bytes);
	}
	fill_head(next.slot, transfer, false);
	return !ferry_copies_full(copies) &&
	       ferry_copies_start(copies, lane_rank, call, transfer, next.window, user, next.bytes, true);
}

static void copy(char *to, const char *from, uint64_t bytes, enum ferry_store store)
{
	if (bytes) /* else there may be no buffer */
		ferry_copy(to, from, bytes, store);
}

bool ferry_pair_move(struct ferry_lane_rank *lane_rank, struct ferry_call *call, struct ferry_transfer *transfer)
{
	struct next next;
	uint32_t before = transfer->issued;
	while (transfer->issued < transfer->nslices && is_current(lane_rank, call, transfer) &&
	       find_next(lane_rank, transfer, &next)) {
		char *user = transfer->user + next.start;
		if (lane_rank->direction == FERRY_DIR_D2H) {
			bool inlined = transfer->length <= FERRY_PAIR_DATA;
			fill_head(next.slot, transfer, inlined);
			copy(inlined ? next.slot->data : next.window, user, next.bytes, FERRY_STORE_STREAM);
		} else {
			copy(user, next.window, next.bytes, FERRY_STORE_ORDINARY);
		}
		transfer->finished = ++transfer->issued;
		ferry_pair_publish(lane_rank, transfer);
		if (transfer->finished < transfer->nslices)
			continue;
		ferry_pair_done(lane_rank, call, transfer);
		call->halves[lane_rank->direction].left--;
	}
	return transfer->issued != before;
}

void ferry_pair_wake_left(const struct ferry_lane_rank *lane_rank)
{
	uint64_t ranks = atomic_load_explicit(&lane_rank->blockers, memory_order_relaxed);
	for (; ranks; ranks &= ranks - 1) {
		struct ferry_rank_line *line = ferry_rank_line(lane_rank->member->shared, ferry_rankset_lowest(ranks));
		if (atomic_load_explicit(&line->left_messages, memory_order_relaxed))
			ferry_doorbell_ring(&line->d2h);
	}
}

void ferry_pair_publish(struct ferry_lane_rank *lane_rank, struct ferry_transfer *transfer)
{
	struct ferry_pair_line *line = line_of(lane_rank, transfer, 0, NULL);
	bool d2h = lane_rank->direction == FERRY_DIR_D2H;
	uint64_t there = transfer->base + transfer->finished;
	atomic_store_explicit(d2h ? &line->d2h.value : &line->h2d.value, there, memory_order_release);
	if (d2h)
		atomic_store_explicit(&line->slots[(there - 1) % FERRY_PAIR_SLOTS].there, there, memory_order_release);
	ferry_wake_end(lane_rank->member->shared, transfer->peer, d2h);
}

void ferry_pair_done(struct ferry_lane_rank *lane_rank, const struct ferry_call *call, struct ferry_transfer *transfer)
{
	/* Released now, not when the call ends: other messages of the call may wait for ranks that come much later. */
	if (transfer->hold)
		lane_rank->member->ops->released(lane_rank->member, transfer->hold);
	transfer->hold = NULL;
	if (call->name && transfer->last && call->ops->passed)
		call->ops->passed(call, lane_rank->direction, transfer->peer);
	lane_rank->message[transfer->peer]++;
	lane_rank->slices[transfer->peer] += transfer->nslices;
}
