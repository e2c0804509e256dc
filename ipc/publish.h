/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The arenas of one job as one process sees them, and the two things that lanes and workers do with counters: ask how
 * far an instruction may go, and publish a slice and wake all threads that wait for it. And which ranks have left.
 */
#ifndef FERRY_IPC_PUBLISH_H
#define FERRY_IPC_PUBLISH_H

#include "ipc/arena.h"
#include "ipc/plan.h"

/* Private to the process; constant once the job is ready. */
struct ferry_job_arenas {
	uint32_t nranks, ndomains;
	uint8_t rank_domain[FERRY_MAX_RANKS];
	struct ferry_arena arenas[FERRY_MAX_DOMAINS];
};

static inline struct ferry_rank_line *ferry_rank_line(const struct ferry_job_arenas *job, uint32_t rank)
{
	return &job->arenas[job->rank_domain[rank]].rank_lines[rank];
}

/** Bytes that windows of programs take at most in memory of the GPUs of this domain's ranks. */
static inline uint64_t ferry_windows_need(const struct ferry_job_arenas *job, uint32_t domain)
{
	uint64_t bytes = 0;
	for (uint32_t rank = 0; rank < job->nranks; rank++)
		bytes += job->rank_domain[rank] == domain ? FERRY_PARITIES * FERRY_RANK_WINDOWS : 0;
	return bytes;
}

static inline struct ferry_ring *ferry_rank_ring(const struct ferry_job_arenas *job, uint32_t rank)
{
	return &job->arenas[job->rank_domain[rank]].rings[rank];
}

/**
 * Allocates memory for the counters of a valid plan, before this process reads one. Errors: those of
 * ferry_arena_back_counters.
 */
ferryResult_t ferry_job_arenas_back(const struct ferry_job_arenas *job, const struct ferry_plan *plan);

/* An edge with its counter found. */
struct ferry_gate {
	struct ferry_counter *counter;
	uint32_t lag;
	uint32_t nslices; /* of the instruction waited for */
};

/** How many of `nslices` slices the gates allow by now, for call `seq`. Acquires what the counters published. */
static inline uint32_t ferry_gates_open(const struct ferry_gate *gates, uint32_t ngates, uint64_t seq, uint32_t nslices)
{
	uint32_t open = nslices;
	for (uint32_t i = 0; i < ngates; i++) {
		if (!gates[i].nslices)
			continue;
		uint64_t value = atomic_load_explicit(&gates[i].counter->value, memory_order_acquire);
		uint64_t reach = (uint64_t)ferry_counter_slices(value, seq) + gates[i].lag;
		if (reach < gates[i].nslices && reach < open)
			open = (uint32_t)reach;
	}
	return open;
}

/*
 * A job is given up when so many routers of a domain in a row have died without progress: dozens in a row may get
 * nothing done on a busy machine where routers are killed every few milliseconds. If the last one lost its context on a
 * GPU of the job (struct ferry_loss), an eighth is enough, so that the other jobs of these routers go on.
 */
#define FERRY_MOST_ROUTERS 64u
#define FERRY_MOST_LOSSES  (FERRY_MOST_ROUTERS / 8)

/**
 * Returns a number that changes when the job makes progress: an instruction or a message has published a slice, or a
 * call has ended. A router that takes another's place repeats none of that. Of programs with more counters than Ferry's
 * own, the counters beyond are not read, only the ends of calls. The arenas must be mapped.
 */
uint64_t ferry_job_progress(const struct ferry_job_arenas *job);

/** Wakes those of these ranks' lanes and of these domains' routers that sleep. The caller has published before. */
void ferry_wake(const struct ferry_job_arenas *job, uint64_t d2h_ranks, uint64_t h2d_ranks, uint32_t domains);

/**
 * Wakes the ranks of a short call (ipc/descriptor.h): the D2H lane of a rank whose lanes have calls under way, and if
 * `callers` the threads that wait in calls. The caller has published before, and a full fence lies between.
 */
void ferry_wake_callers(const struct ferry_job_arenas *job, bool callers);

/** Wakes the rank's end of a message: its lane and its callers. The caller has published before. */
void ferry_wake_end(const struct ferry_job_arenas *job, uint32_t rank, bool receiver);

/** Wakes every lane, caller and router of the job, as when it ends. */
void ferry_wake_all(const struct ferry_job_arenas *job);

/** Publishes slices 0 to slices - 1 of call seq (release), and wakes the instruction's waiters. */
static inline void ferry_publish(const struct ferry_job_arenas *job, const struct ferry_instr *instr,
                                 struct ferry_counter *counter, uint64_t seq, uint32_t slices)
{
	atomic_store_explicit(&counter->value, ferry_counter_value(seq, slices), memory_order_release);
	ferry_wake(job, instr->wakes_d2h, instr->wakes_h2d, instr->wakes_domains);
}

/* ---- ranks that have departed ---- */

/*
 * A rank leaves in order, while other ranks go on, when all its calls have ended. Its router then takes it off its
 * lanes, and after that sets its bit in `left` of the arena's header. Lanes that wait for a rank
 * (router/engine/stall.c), and callers of ferryCommSplit, read the bits here. Nothing is written here.
 *
 * What the bit means: all that the rank has ever stored in the arenas comes before it. The rank, or its lanes in the
 * router, stored that before the rank told the router that it leaves, and the router sets the bit with release
 * afterwards. So a thread that has acquired the bit and then reads what the rank has published reads the last of it,
 * and
 *
 * - the rank never made a call n that it has not finished by then, finished[n mod FERRY_PARITIES] < n: that call will
 *   not end;
 * - a message that the rank has not sent, or not taken, by then will never be sent, or taken;
 * - all other calls end by themselves. A rank ends its part of a collective once all ranks have submitted it
 *   (router/engine/order.c), or once what it sends lies in the staging, if it only sends in a short call, and all its
 *   own slices have been published, and the other ranks need nothing more of it. A message that it has sent lies in
 *   the pair's window; it has taken each message that was sent to it.
 *
 * The bits only ever appear, one store each, and nothing else has to be kept in step with them. If a router or a rank
 * dies before its bit is set, the job ends as for every death; if it dies afterwards, it is not missed.
 * docs/models/leaving.pml checks when the bit may be set, and the wait of ferry_departed_are_over.
 */

/**
 * Returns the ranks that have left; bit r: rank r. Acquires: what the caller then reads is the last that rank r has
 * published.
 */
uint64_t ferry_departed(const struct ferry_job_arenas *job);

/**
 * Returns whether all collectives that all of these ranks (at least one) took part in are over on the other ranks.
 * Until then the job must not be ended because of calls that the departed ranks did not make: the collectives under way
 * would end with it. It becomes true by itself, as every rank is in those calls.
 */
bool ferry_departed_are_over(const struct ferry_job_arenas *job, uint64_t departed);

#endif
