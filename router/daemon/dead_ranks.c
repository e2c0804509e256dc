/* SPDX-License-Identifier: Apache-2.0 */
#include "router/daemon/dead_ranks.h"

#include "ipc/deadline.h"
#include "ipc/error.h"
#include "ipc/rankset.h"
#include "ipc/wait.h"

#include <stdio.h>

#define LOOK_MS 5

/* ---- a call that it was in ---- */

/* Of a variable plan: as its sender has announced it; what that says is trusted no more than the sender. */
static uint32_t slices_of(const struct ferry_plan *plan, const struct ferry_step *step)
{
	const struct ferry_counter *sender = step->producer ? step->producer : step->counter;
	if (!(plan->flags & FERRY_PLAN_VARIABLE))
		return step->instr->nslices;
	uint64_t bytes = atomic_load_explicit(&sender->length, memory_order_relaxed);
	return (uint32_t)((bytes + plan->slice - 1) / plan->slice);
}

static bool has_published(const struct ferry_plan *plan, const struct ferry_step *step, uint64_t seq)
{
	uint64_t value = atomic_load_explicit(&step->counter->value, memory_order_acquire);
	/* a variable plan's sender has announced its length with the call's first value */
	return value >> 32 == (uint32_t)seq && ferry_counter_slices(value, seq) >= slices_of(plan, step);
}

static bool has_sent_all(const struct ferry_steps *steps, uint32_t parity, uint64_t seq)
{
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_D2H]; i++) {
		const struct ferry_step *step = &steps->steps[FERRY_DIR_D2H][parity][i];
		bool empty = !(steps->plan->flags & FERRY_PLAN_VARIABLE) && !step->instr->nslices;
		if (!empty && !has_published(steps->plan, step, seq))
			return false;
	}
	return true;
}

static void publish_finished(struct ferry_job *job, uint32_t rank, uint32_t parity, uint64_t seq)
{
	atomic_store_explicit(&ferry_rank_line(&job->shared, rank)->finished[parity], seq, memory_order_release);
	ferry_wake_all(&job->shared);
}

/* Finishes the call in the rank's place: the rank reads no slots any more, so their writers need not wait. */
static void finish_for(struct ferry_job *job, uint32_t rank, const struct ferry_steps *steps, uint32_t parity,
                       uint64_t seq)
{
	for (uint32_t i = 0; i < steps->nsteps[FERRY_DIR_H2D]; i++) {
		const struct ferry_step *step = &steps->steps[FERRY_DIR_H2D][parity][i];
		if (step->instr->opcode == FERRY_H2D)
			ferry_publish(&job->shared, step->instr, step->counter, seq, slices_of(steps->plan, step));
	}
	publish_finished(job, rank, parity, seq);
}

static uint64_t submitted(const struct ferry_job *job, uint32_t rank, uint32_t parity)
{
	return atomic_load_explicit(&ferry_rank_line(&job->shared, rank)->ring[parity].seq, memory_order_acquire);
}

static bool all_submitted(const struct ferry_job *job, uint32_t parity, uint64_t seq)
{
	for (uint32_t rank = 0; rank < job->shared.nranks; rank++)
		if (submitted(job, rank, parity) != seq)
			return false;
	return true;
}

/*
 * Whether the other ranks need nothing more of the rank for call `seq`. If so, and its domain is this router's,
 * finishes the call in its place. Where others put into memory of a rank that is gone, calls do not complete.
 */
static bool finish_call(struct ferry_job *job, uint32_t rank, uint32_t parity, uint64_t seq)
{
	struct ferry_descriptor_fields fields;
	struct ferry_steps steps;
	if (job->imports[rank] || !all_submitted(job, parity, seq))
		return false;
	ferry_descriptor_read(&ferry_rank_line(&job->shared, rank)->ring[parity], &fields);
	if (fields.plan_hash == FERRY_SHORT_CALL) { /* what others need of a short call lay there before it submitted */
		if (job->shared.rank_domain[rank] == job->domain)
			publish_finished(job, rank, parity, seq);
		return true;
	}
	struct ferry_job_plan *plan = ferry_job_plans_find(&job->plans, fields.plan_hash);
	if (!plan)
		return false;
	bool relays = plan->plan->network_at;
	bool in = !(plan->plan->flags & FERRY_PLAN_PUTS) && !relays &&
	          !ferry_steps_find(&steps, plan->plan, &job->shared, rank);
	if (in) {
		in = has_sent_all(&steps, parity, seq);
		if (in && job->shared.rank_domain[rank] == job->domain)
			finish_for(job, rank, &steps, parity, seq);
		ferry_steps_free(&steps);
	}
	ferry_job_release_plan(plan);
	return in;
}

static uint64_t finished(const struct ferry_job *job, uint32_t rank, uint32_t parity)
{
	return atomic_load_explicit(&ferry_rank_line(&job->shared, rank)->finished[parity], memory_order_acquire);
}

static bool finish_calls(struct ferry_job *job, uint32_t rank)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		uint64_t seq = submitted(job, rank, parity);
		if (seq > finished(job, rank, parity) && !finish_call(job, rank, parity, seq))
			return false;
	}
	return true;
}

/* ---- the others ---- */

/* Where its calls are not finished yet, the router of its domain may be about to do that. */
static bool is_finished(const struct ferry_job *job, uint32_t rank)
{
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		if (submitted(job, rank, parity) > finished(job, rank, parity))
			return false;
	return true;
}

/* Whether a message of the rank's lies in a window, for another rank to take. */
static bool has_message(const struct ferry_job *job, uint32_t rank)
{
	const struct ferry_arena *arena = &job->shared.arenas[job->shared.rank_domain[rank]];
	const struct ferry_pair_line *lines = &arena->pair_lines[rank * arena->nranks];
	for (uint32_t to = 0; to < arena->nranks; to++)
		if (!(job->dead_ranks >> to & 1) && !(ferry_departed(&job->shared) >> to & 1) &&
		    atomic_load_explicit(&lines[to].d2h.value, memory_order_acquire) !=
		            atomic_load_explicit(&lines[to].h2d.value, memory_order_acquire))
			return true;
	return false;
}

static bool are_over(const struct ferry_job *job)
{
	for (uint64_t dead = job->dead_ranks; dead; dead &= dead - 1) {
		uint32_t rank = ferry_rankset_lowest(dead);
		if (!is_finished(job, rank) || has_message(job, rank))
			return false;
	}
	return ferry_departed_are_over(&job->shared, job->dead_ranks);
}

void ferry_dead_ranks_add(struct ferry_job *job, uint32_t rank, const char *text)
{
	bool ready = atomic_load_explicit(&job->ready, memory_order_acquire) && !job->adoption;
	if (!ready || ferry_job_failure_is_announced(job) || !finish_calls(job, rank)) {
		ferry_job_lose(job, text);
		return;
	}
	job->dead_ranks |= 1ull << rank;
	if (are_over(job)) {
		ferry_job_lose(job, text);
		return;
	}
	snprintf(job->death, sizeof job->death, "%s", text);
	ferry_log(FERRY_LOG_INFO, "%s: the job fails when its last calls are over", text);
	ferry_job_mark_departed(job, rank); /* ends the waiting for calls that it never made */
}

/* Whether nothing has moved for FERRY_PATIENCE_S: the job must not wait for a stopped rank before it fails. */
static bool stands_still(struct ferry_job *job)
{
	uint64_t progress = ferry_job_progress(&job->shared), now = ferry_now_ns();
	if (progress != job->death_progress || !job->death_since) {
		job->death_progress = progress;
		job->death_since = now;
	}
	return now - job->death_since > FERRY_PATIENCE_S * 1000000000ull;
}

int ferry_dead_ranks_watch(struct ferry_jobs *jobs)
{
	int wait = -1;
	for (struct ferry_job *job = jobs->workers.jobs; job; job = job->next) {
		if (!job->dead_ranks || atomic_load_explicit(&job->dead, memory_order_relaxed))
			continue;
		if (are_over(job) || stands_still(job))
			ferry_job_lose(job, job->death);
		else
			wait = LOOK_MS;
	}
	return wait;
}
