/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The arenas of one job as one process sees them, and the two things that lanes and workers do with counters: ask how
 * far an instruction may go, and publish a slice so that everybody who waits for it wakes. And which ranks have left.
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

static inline struct ferry_ring *ferry_rank_ring(const struct ferry_job_arenas *job, uint32_t rank)
{
	return &job->arenas[job->rank_domain[rank]].rings[rank];
}

/**
 * Puts memory behind the counters of a valid plan, before this process looks at one. Errors: those of
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
 * The one rule for giving up: so many routers of a domain in a row have died without progress. Where the last of them
 * lost its context on a GPU of the job (struct ferry_loss), an eighth: other jobs, whose routers die with it, go on.
 * Where routers are killed every few milliseconds on a busy machine, dozens in a row get nothing done.
 */
#define FERRY_MOST_ROUTERS 64u
#define FERRY_MOST_LOSSES  (FERRY_MOST_ROUTERS / 8)

/**
 * Another number as soon as the job has made progress: an instruction or a message has published a slice, or a call has
 * ended. No router that takes another's place repeats any of that. Programs with more counters than Ferry's own are
 * seen by the others. The arenas are mapped.
 */
uint64_t ferry_job_progress(const struct ferry_job_arenas *job);

/** Rings whoever of these ranks' lanes and routers sleeps. The caller has published before. */
void ferry_wake(const struct ferry_job_arenas *job, uint64_t d2h_ranks, uint64_t h2d_ranks, uint32_t domains);

/** Wakes every lane, caller and router of the job: something ended. */
void ferry_wake_all(const struct ferry_job_arenas *job);

/** Stores "slices 0 .. slices-1 of call seq are there" with release and wakes the instruction's waiters. */
static inline void ferry_publish(const struct ferry_job_arenas *job, const struct ferry_instr *instr,
                                 struct ferry_counter *counter, uint64_t seq, uint32_t slices)
{
	atomic_store_explicit(&counter->value, ferry_counter_value(seq, slices), memory_order_release);
	ferry_wake(job, instr->wakes_d2h, instr->wakes_h2d, instr->wakes_domains);
}

/* ---- ranks that have departed ---- */

/*
 * A rank leaves in order, while others go on, when all its calls have ended; its router then takes it off its lanes,
 * and after that sets its bit in `left` of the arena's header. Lanes that wait for a rank (router/engine/stall.c) look
 * here, and callers of ferryCommSplit. Nothing is written here.
 *
 * What the bit says. All that the rank has ever stored in the arenas comes before it: the rank, or its lanes in the
 * router, had stored it before the rank said that it leaves, and the router sets the bit with release after it has
 * heard that. So whoever has acquired the bit and then reads what the rank has published reads the last of it, and
 *
 * - a call n that the rank has not finished by then, finished[n mod FERRY_PARITIES] < n, it never made: it will not
 *   end;
 * - a message that the rank has not sent, or not taken, by then comes, or is taken, never;
 * - all other calls end by themselves. A rank ends its part of a collective once all ranks have submitted it
 *   (router/engine/order.c) and all its own slices have been published, and nobody needs more of it than these. A
 *   message that it has sent lies in the pair's window; one that it was sent it has taken.
 *
 * The bits only ever appear, one store each, and nothing else has to be kept in step with them: a router or a rank that
 * dies before its bit is set is a router or a rank that died, which ends the job as always; one that dies after it is
 * not missed. docs/models/leaving.pml checks when the bit may be set, and the wait of ferry_departed_are_over.
 */

/** Bit r: rank r has left. Acquires: what is read after it is the last that rank r has published. */
uint64_t ferry_departed(const struct ferry_job_arenas *job);

/**
 * Whether all collectives that these ranks, one at least, took part in are over on the others. Until then the job must
 * not be ended for what they did not make: those calls would end with it, in the middle. It becomes true without
 * anybody's doing, as every rank is in those calls.
 */
bool ferry_departed_are_over(const struct ferry_job_arenas *job, uint64_t departed);

#endif
