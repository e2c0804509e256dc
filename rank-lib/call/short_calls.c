/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/short_calls.h"

#include "ipc/environment.h"
#include "router/engine/order.h"
#include "router/reduce/reduce.h"

#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define RELAX_LOOKS 100   /* of a thread that waits: then it lets others have its CPU between two looks, */
#define SPIN_NS 60000     /* and after that it sleeps */
#define YIELD_NS 1500     /* a yield that takes longer has let another thread run */
#define SLEEP_YIELDS 64   /* so many in a row: see yield() */
#define LANES_US 50000    /* so long; then the lanes have the call */
#define PIECE 4096u       /* bytes summed at a time where a buffer is not aligned */

/* Who runs a call. From HELD by the thread that holds it, into it by whoever finds it FREE. */
enum runner { FREE, HELD, LANES, OVER };

struct short_call {
	struct ferry_ticket ticket; /* shared with the stream */
	struct ferry_call call;
	struct ferry_short_calls *shorts;
	_Atomic uint32_t runner;    /* enum runner; release and acquire: `call` goes with it */
	const char *send;
	char *receive;
	_Atomic uint64_t looked_at; /* when a thread that does not wait first looked; 0: none did */
};

static struct short_call *of_call(const struct ferry_call *call)
{
	return (struct short_call *)((char *)call - offsetof(struct short_call, call));
}

static struct short_call *of_ticket(struct ferry_ticket *ticket)
{
	return (struct short_call *)((char *)ticket - offsetof(struct short_call, ticket));
}

/* ---- parts ---- */

static enum ferry_collective collective_of(const struct ferry_call *call)
{
	return (enum ferry_collective)(call->shape & 0xff);
}

static ferryDataType_t type_of(const struct ferry_call *call)
{
	return (ferryDataType_t)(call->shape >> 8 & 0xff);
}

static uint64_t block_of(const struct ferry_call *call)
{
	return call->count * ferry_type_size(type_of(call));
}

static char *place_of(const struct short_call *made, uint32_t rank)
{
	const struct ferry_job_arenas *shared = made->call.member->shared;
	return shared->arenas[shared->rank_domain[rank]].staging[made->call.parity] + rank * made->shorts->place;
}

static bool puts_down(const struct ferry_call *call)
{
	bool is_root = call->member->rank == call->root;
	switch (collective_of(call)) {
	case FERRY_ALLREDUCE:
	case FERRY_ALLGATHER:
	case FERRY_REDUCESCATTER:
	case FERRY_ALLTOALL:
		return true;
	case FERRY_BROADCAST:
	case FERRY_SCATTER:
		return is_root;
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_GATHER:
		return !is_root;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		break; /* no short calls */
	}
	return false;
}

/*
 * Before the descriptor: one block for all others, or one for each, in their order. Other cores hold the lines of an
 * earlier call in this place: to take those back takes longer than to write to memory.
 */
static void put_down(struct ferry_call *call)
{
	const struct short_call *made = of_call(call);
	uint32_t self = call->member->rank, nranks = call->member->shared->nranks;
	uint64_t block = block_of(call), before = self * block;
	char *place = place_of(made, self);
	if (!block || !puts_down(call))
		return;
	if (!ferry_collective_sends_blocks(collective_of(call))) {
		ferry_copy(place, made->send, block, FERRY_STORE_STREAM);
		return;
	}
	ferry_copy(place, made->send, before, FERRY_STORE_STREAM);
	ferry_copy(place + before, made->send + before + block, (nranks - 1) * block - before, FERRY_STORE_STREAM);
}

/* The block that the rank has put down for this one; this one's own is in its send buffer. */
static const char *part_of(const struct short_call *made, uint32_t rank)
{
	const struct ferry_call *call = &made->call;
	uint32_t self = call->member->rank;
	uint64_t block = ferry_collective_sends_blocks(collective_of(call)) ? block_of(call) : 0;
	return rank == self ? made->send + self * block : place_of(made, rank) + (self - (self > rank)) * block;
}

/* The factors of an average or of a premulsum, as the routers' workers have them (router/engine/parts.c). */
static struct ferry_reduction reduction_of(const struct ferry_call *call, uint64_t scalars[FERRY_MAX_RANKS])
{
	const struct ferry_job_arenas *shared = call->member->shared;
	struct ferry_reduction reduction = {.type = type_of(call),
	                                    .op = (ferryRedOp_t)(call->shape >> 16 & 0xff),
	                                    .divisor = 1};
	uint64_t reciprocal = reduction.op == ferryAvg ? ferry_reduce_reciprocal(reduction.type, shared->nranks) : 0;
	if (reduction.op == ferryAvg && !reciprocal)
		reduction.divisor = shared->nranks;
	if (reduction.op != ferryNumOps && !reciprocal)
		return reduction;
	for (uint32_t rank = 0; rank < shared->nranks; rank++) {
		struct ferry_descriptor *theirs = &ferry_rank_line(shared, rank)->ring[call->parity];
		scalars[rank] = reciprocal ? reciprocal
		                           : atomic_load_explicit(&theirs->scalar, memory_order_relaxed);
		reduction.scaled |= 1ull << rank;
	}
	reduction.scalars = scalars;
	return reduction;
}

/* The sum of all ranks' parts. The user's buffers may lie anywhere; ferry_reduce asks for elements. */
static void sum(const struct short_call *made)
{
	const struct ferry_call *call = &made->call;
	uint64_t scalars[FERRY_MAX_RANKS], bytes = block_of(call), element = ferry_type_size(type_of(call));
	uint32_t self = call->member->rank, nranks = call->member->shared->nranks;
	const void *sources[FERRY_MAX_RANKS];
	struct ferry_reduction reduction = reduction_of(call, scalars);
	bool aligned = !(((uintptr_t)made->send | (uintptr_t)made->receive) % element);
	_Alignas(64) char own[PIECE];
	for (uint64_t done = 0, piece; done < bytes; done += piece) {
		piece = aligned || bytes - done < PIECE ? bytes - done : PIECE;
		for (uint32_t rank = 0; rank < nranks; rank++)
			sources[rank] = part_of(made, rank) + done;
		if (!aligned)
			sources[self] = memcpy(own, sources[self], piece);
		ferry_reduce(aligned ? made->receive + done : own, sources, nranks, piece / element, &reduction);
		if (!aligned)
			memcpy(made->receive + done, own, piece);
	}
}

static void copy(char *to, const char *from, uint64_t bytes)
{
	if (to != from)
		memcpy(to, from, bytes);
}

/* All ranks' parts, one behind the other. */
static void collect(const struct short_call *made)
{
	uint64_t block = block_of(&made->call);
	for (uint32_t rank = 0; rank < made->call.member->shared->nranks; rank++)
		copy(made->receive + rank * block, part_of(made, rank), block);
}

/* All ranks have put down their parts: what the call is for. */
static void conclude(struct ferry_call *call)
{
	const struct short_call *made = of_call(call);
	bool is_root = call->member->rank == call->root;
	if (!block_of(call))
		return;
	switch (collective_of(call)) {
	case FERRY_REDUCE_TO_ROOT:
		if (!is_root)
			break;
		/* fall through */
	case FERRY_ALLREDUCE:
	case FERRY_REDUCESCATTER:
		sum(made);
		break;
	case FERRY_GATHER:
		if (!is_root)
			break;
		/* fall through */
	case FERRY_ALLGATHER:
	case FERRY_ALLTOALL:
		collect(made);
		break;
	case FERRY_BROADCAST:
	case FERRY_SCATTER:
		copy(made->receive, part_of(made, call->root), block_of(call));
		break;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		break;
	}
}

/* ---- running ---- */

static bool started(const struct ferry_call *call)
{
	return ferry_ticket_started(&of_call(call)->ticket);
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	struct short_call *made = of_call(call);
	if (atomic_load_explicit(&made->runner, memory_order_relaxed) == LANES)
		ferry_direct_count_lanes(made->shorts->direct, -1);
	ferry_ticket_finish(&made->ticket, result, message);
}

static bool never_forgotten(const struct ferry_call *call)
{
	(void)call;
	return false;
}

static void drop(struct ferry_call *call)
{
	ferry_ticket_drop(&of_call(call)->ticket);
}

static const struct ferry_call_ops short_ops = {.started = started,
                                                .beginning = put_down,
                                                .ending = conclude,
                                                .finish = finish,
                                                .finish_early = true,
                                                .forgotten = never_forgotten,
                                                .release = drop};

static void release(struct ferry_ticket *ticket)
{
	struct short_call *made = of_ticket(ticket);
	struct ferry_holders *holders = made->shorts->direct->holders;
	free(atomic_exchange_explicit(&made->shorts->spare, made, memory_order_acq_rel));
	ferry_holders_drop(holders);
}

static bool hold(struct short_call *made)
{
	uint32_t nobody = FREE;
	return atomic_compare_exchange_strong_explicit(&made->runner, &nobody, HELD, memory_order_acquire,
	                                               memory_order_relaxed);
}

static struct ferry_doorbell *d2h_bell(const struct short_call *made)
{
	return &ferry_member_line(made->call.member)->d2h;
}

/* By the thread that holds it. The lanes may release it at once. */
static void give_to_lanes(struct short_call *made)
{
	ferry_direct_count_lanes(made->shorts->direct, 1);
	atomic_store_explicit(&made->runner, LANES, memory_order_release);
	ferry_full_fence(); /* ranks that submit from now on ring the lane; and as in on_start */
	ferry_lanes_submit(made->call.member, &made->call);
	if (ferry_ticket_started(&made->ticket))
		ferry_doorbell_ring(d2h_bell(made));
}

static void on_start(struct ferry_ticket *ticket)
{
	struct short_call *made = of_ticket(ticket);
	ferry_full_fence(); /* `started` before `runner`; give_to_lanes does it the other way round */
	if (atomic_load_explicit(&made->runner, memory_order_relaxed) == LANES)
		ferry_doorbell_ring(d2h_bell(made));
}

/* By the thread that holds it, and lets it go: as far as the call gets now. */
static void advance(struct short_call *made)
{
	struct ferry_call *call = &made->call;
	struct ferry_order *order = &call->member->order;
	atomic_fetch_add_explicit(&order->callers_came, 1, memory_order_acq_rel);
	if (call->stage != FERRY_CALL_SUBMITTED && ferry_order_start(call->member, call))
		call->stage = FERRY_CALL_SUBMITTED;
	bool begun = call->stage == FERRY_CALL_SUBMITTED, over = begun && ferry_order_agreed(call->member, call);
	if (over)
		ferry_order_end_half(call->member, call);
	atomic_fetch_add_explicit(&order->callers_went, 1, memory_order_acq_rel);
	if (!begun || (!over && ferry_rank_failed(made->shorts->direct->rank)))
		give_to_lanes(made);
	else
		atomic_store_explicit(&made->runner, over ? OVER : FREE, memory_order_release);
	if (over)
		ferry_ticket_drop(&made->ticket); /* in place of the lanes */
}

/* Whether a thread that holds it has something to do. */
static bool may_advance(const struct short_call *made)
{
	return !ferry_order_missing(made->call.member, &made->call) ||
	       ferry_rank_failed(made->shorts->direct->rank);
}

/* True: no thread but the lanes' has to do anything for it. */
static bool look(struct short_call *made)
{
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	if (runner == FREE && may_advance(made) && hold(made)) {
		advance(made);
		runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	}
	return runner == LANES || runner == OVER;
}

/* Nobody has come for a while. True as for look. */
static bool sleep_at_bell(struct short_call *made)
{
	struct ferry_doorbell *bell = &ferry_member_line(made->call.member)->app;
	uint32_t seen = ferry_doorbell_prepare(bell);
	if (look(made)) {
		ferry_doorbell_cancel(bell);
		return true;
	}
	uint64_t before = ferry_now_ns();
	ferry_doorbell_wait(bell, seen, LANES_US);
	if (look(made))
		return true;
	if (ferry_now_ns() - before < LANES_US * 1000ull || !hold(made))
		return false;
	give_to_lanes(made);
	return true;
}

/*
 * Lets other threads have the CPU. Where one took it, this one need not look in vain the next time before it does so.
 * Two ranks may be on one CPU for long while another has nothing to do, as a CPU that always has a ready thread wakes
 * none elsewhere: now and then the thread sleeps instead, and whoever wakes it up finds it a CPU.
 */
static uint64_t yield(struct ferry_short_calls *shorts, uint64_t now)
{
	uint32_t taken = atomic_load_explicit(&shorts->yields_taken, memory_order_relaxed);
	sched_yield();
	uint64_t then = ferry_now_ns();
	atomic_store_explicit(&shorts->yields_taken, then - now < YIELD_NS ? 0 : taken + 1, memory_order_relaxed);
	return then;
}

static void wait_for(struct short_call *made)
{
	struct ferry_short_calls *shorts = made->shorts;
	uint32_t taken = atomic_load_explicit(&shorts->yields_taken, memory_order_relaxed);
	uint32_t relaxes = taken ? 1 : RELAX_LOOKS;
	uint64_t since = 0, now = 0;
	bool sleeps = taken % SLEEP_YIELDS == SLEEP_YIELDS - 1;
	for (uint32_t looks = 0; !look(made); looks++) {
		if (looks < relaxes) {
			ferry_relax();
			continue;
		}
		now = since ? now : ferry_now_ns();
		since = since ? since : now;
		if (!sleeps && now - since < SPIN_NS)
			now = yield(shorts, now);
		else if (sleep_at_bell(made))
			break;
	}
	if (sleeps && since)
		atomic_store_explicit(&shorts->yields_taken, taken + 1, memory_order_relaxed);
}

/* A thread that only looks. A call that it looks at again and again is the lanes' at last, as in sleep_at_bell. */
static void poll(struct short_call *made)
{
	uint64_t now = ferry_now_ns(), before = 0;
	if (look(made) || atomic_compare_exchange_strong_explicit(&made->looked_at, &before, now, memory_order_relaxed,
	                                                          memory_order_relaxed))
		return;
	if (now - before > LANES_US * 1000ull && hold(made))
		give_to_lanes(made);
}

static void help(struct ferry_ticket *ticket, bool waits)
{
	if (waits)
		wait_for(of_ticket(ticket));
	else
		poll(of_ticket(ticket));
}

/* ---- making ---- */

void ferry_short_calls_settle(struct ferry_short_calls *shorts)
{
	struct short_call *made = shorts->left;
	if (!made)
		return;
	shorts->left = NULL;
	while (!look(made)) {
		if (hold(made)) {
			give_to_lanes(made);
			break;
		}
		sched_yield(); /* another thread holds it, for as long as it sums */
	}
	ferry_ticket_drop(&made->ticket);
}

static struct short_call *call_new(struct ferry_short_calls *shorts, const struct ferry_collective_call *asked)
{
	const struct ferry_request *request = asked->request;
	struct ferry_direct *direct = shorts->direct;
	struct short_call *made = atomic_exchange_explicit(&shorts->spare, NULL, memory_order_acq_rel);
	if (!made && !(made = aligned_alloc(_Alignof(struct short_call), sizeof *made)))
		return NULL;
	memset(made, 0, sizeof *made);
	struct ferry_call *call = &made->call;
	made->shorts = shorts;
	made->send = request->send;
	made->receive = request->receive;
	made->ticket.on_start = on_start;
	made->ticket.help = help;
	made->ticket.release = release;
	/* who runs it, and this thread, or `left` */
	atomic_store_explicit(&made->ticket.holders, 2, memory_order_relaxed);
	atomic_store_explicit(&made->runner, HELD, memory_order_relaxed);
	call->ops = &short_ops;
	call->member = &direct->member;
	call->steps = &shorts->steps;
	call->count = request->count;
	call->root = ferry_collective_has_root(request->collective) ? (uint32_t)request->root : 0;
	call->shape = asked->shape;
	call->scalar = asked->factor.scalar;
	call->device_scalar = asked->factor.device_scalar;
	call->parity = asked->number.seq % FERRY_PARITIES;
	atomic_store_explicit(&call->lanes, 1, memory_order_relaxed);
	atomic_store_explicit(&call->seq, asked->number.seq, memory_order_relaxed);
	return made;
}

ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_collective_call *asked)
{
	struct ferry_direct *direct = shorts->direct;
	struct short_call *made = call_new(shorts, asked);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a call");
	ferry_direct_count(direct);
	ferryResult_t result =
	        direct->device->ops->enqueue_ticket(direct->device, asked->request->stream, &made->ticket);
	if (result) /* as in direct.c: the other ranks may wait for it */
		ferry_rank_fail(direct->rank, result, ferry_last_message());
	if (ferry_ticket_started(&made->ticket))
		advance(made);
	else
		give_to_lanes(made);
	uint32_t runner = atomic_load_explicit(&made->runner, memory_order_acquire);
	if (runner == LANES || runner == OVER)
		ferry_ticket_drop(&made->ticket);
	else
		shorts->left = made;
	return result;
}

void ferry_short_calls_free(struct ferry_short_calls *shorts)
{
	free(atomic_load_explicit(&shorts->spare, memory_order_acquire));
}

ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts)
{
	const struct ferry_job_arenas *shared = &shorts->direct->rank->shared;
	ferryResult_t result = ferry_env_bytes("FERRY_SHORT", 0, 1ull << 30, 1ull << 20, &shorts->most);
	shorts->place = UINT64_MAX;
	for (uint32_t domain = 0; domain < shared->ndomains; domain++) {
		uint64_t place = shared->arenas[domain].staging_bytes / shared->nranks / 128 * 128;
		shorts->place = place < shorts->place ? place : shorts->place;
	}
	shorts->most = shorts->most < shorts->place ? shorts->most : shorts->place;
	shorts->plan.hash = FERRY_SHORT_CALL;
	shorts->steps.plan = &shorts->plan;
	return result;
}

bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request)
{
	uint32_t nranks = shorts->direct->member.shared->nranks;
	uint64_t most = shorts->most / ferry_type_size(request->type);
	if (request->collective == FERRY_ALLTOALLV || request->program || request->left_out.count)
		return false;
	if (ferry_collective_sends_blocks(request->collective) && nranks > 2)
		most /= nranks - 1;
	return shorts->most && request->count <= most;
}
