/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/workers.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "router/engine/parts.h"

#include <string.h>

/* A worker wakes so many helpers itself: to wake one takes a few microseconds, but to wake up tens to hundreds. */
#define WAKES_AT_ONCE 16
#define JOBS_AT_ONCE 32
#define QUANTUM 8 /* slice parts that a job which is alone gets before the worker checks for other jobs */
/* bytes that a job of weight 1 may read and write in a turn, where there are other jobs */
#define QUANTUM_BYTES (128 << 10)
#define CREDIT_MOST 8 /* turns that a job may save up */
/*
 * passes without work before a worker tries the other workers' queues, which takes their cache lines; it keeps trying
 * while it finds something
 */
#define PATIENCE 32

/* The jobs that a worker is inside of, so that it can go round them again and again without a lock. */
struct round {
	struct ferry_job *jobs[JOBS_AT_ONCE];
	uint32_t njobs;
	/* bytes that each may still have before the next one's turn; below 0: its last part was longer than that */
	int64_t credit[JOBS_AT_ONCE];
	/* places in the list: of the first of them, and of the job after the last; next 0: there is none */
	uint32_t first, next;
	uint64_t generation;
};

/*
 * Enters the jobs from place `next` on. Each worker goes round by itself: with a shared cursor, a worker would see the
 * same jobs every time while other workers, or its own last pass, take the jobs between.
 */
static void enter_jobs(struct ferry_workers *workers, struct round *round)
{
	pthread_mutex_lock(&workers->lock);
	struct ferry_job *job = workers->jobs;
	uint32_t place = 0;
	for (; job && place < round->next; place++)
		job = job->next;
	if (!job) { /* the list has become shorter, or is empty */
		job = workers->jobs;
		place = 0;
	}
	round->first = place;
	round->njobs = 0;
	round->generation = atomic_load_explicit(&workers->generation, memory_order_relaxed);
	for (; job && round->njobs < JOBS_AT_ONCE; job = job->next, place++) {
		if (job->closed)
			continue;
		job->users++;
		round->credit[round->njobs] = 0;
		round->jobs[round->njobs++] = job;
	}
	round->next = job ? place : 0;
	pthread_mutex_unlock(&workers->lock);
}

static void leave(struct ferry_workers *workers, struct ferry_job *job)
{
	if (--job->users == 0)
		pthread_cond_broadcast(&workers->changed);
}

static void leave_jobs(struct ferry_workers *workers, const struct round *round)
{
	pthread_mutex_lock(&workers->lock);
	for (uint32_t i = 0; i < round->njobs; i++)
		leave(workers, round->jobs[i]);
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_enter(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	while (job->closed)
		pthread_cond_wait(&workers->changed, &workers->lock);
	job->users++;
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_leave(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	leave(workers, job);
	pthread_mutex_unlock(&workers->lock);
}

/*
 * Wakes some of the sleeping helpers with a number below `wanted`. Spurious if another was quicker; never missed by a
 * sleeper.
 */
static void wake_helpers(struct ferry_workers *workers, uint32_t wanted)
{
	uint64_t below = wanted >= 64 ? ~0ull : (1ull << wanted) - 1;
	for (uint32_t woken = 0; woken < WAKES_AT_ONCE; woken++) {
		uint64_t asleep = atomic_load_explicit(&workers->asleep, memory_order_acquire) & below;
		if (!asleep)
			return;
		uint64_t first = asleep & -asleep;
		if (atomic_fetch_and_explicit(&workers->asleep, ~first, memory_order_acq_rel) & first)
			ferry_doorbell_ring(&workers->helpers[__builtin_ctzll(first)].bell);
	}
}

static int64_t quantum_of(const struct ferry_job *job)
{
	return (int64_t)QUANTUM_BYTES * atomic_load_explicit(&job->weight, memory_order_relaxed);
}

/*
 * Deficit round robin (Shreedhar and Varghese, 1995): each turn brings credit by the job's weight, parts use it up, and
 * a job that has overdrawn its credit passes until it has some again. So turns are fair by bytes, whatever the jobs'
 * parts are like, and a job with little work waits for no more than a part or so of each of the others.
 */
static uint32_t take_turn(struct round *round, uint32_t place, uint32_t worker, bool steal, uint32_t *wanted,
                          bool *owes)
{
	struct ferry_job *job = round->jobs[place];
	int64_t *credit = &round->credit[place];
	if (round->njobs == 1)
		return ferry_parts_work(job, worker, QUANTUM, steal, wanted, NULL);
	*credit += quantum_of(job);
	if (*credit <= 0) {
		*owes = true;
		return 0;
	}
	uint32_t count = ferry_parts_work(job, worker, UINT32_MAX, steal, wanted, credit);
	/* No part of it is ready any more. It saves credit for parts that its ranks are late with, up to a limit. */
	if (*credit > CREDIT_MOST * quantum_of(job))
		*credit = CREDIT_MOST * quantum_of(job);
	return count;
}

/* The jobs with credit had nothing to do: skips as many turns at once as give the first overdrawn job some credit. */
static void skip_turns(struct round *round)
{
	int64_t turns = INT64_MAX;
	for (uint32_t i = 0; i < round->njobs; i++) {
		int64_t owed = -round->credit[i] / quantum_of(round->jobs[i]);
		if (round->credit[i] < 0 && owed < turns)
			turns = owed;
	}
	for (uint32_t i = 0; i < round->njobs; i++)
		if (round->credit[i] < 0)
			round->credit[i] += turns * quantum_of(round->jobs[i]);
}

static uint32_t work_round(struct ferry_workers *workers, struct round *round, uint32_t worker, bool steal)
{
	uint32_t count = 0, wanted = 0;
	bool owes = false;
	if (atomic_load_explicit(&workers->asleep, memory_order_relaxed)) {
		/* before any part: a helper takes longer to wake up than a part takes */
		for (uint32_t i = 0; i < round->njobs; i++)
			ferry_parts_work(round->jobs[i], worker, 0, false, &wanted, NULL);
		if (wanted)
			wake_helpers(workers, wanted);
		wanted = 0;
	}
	do {
		if (owes)
			skip_turns(round);
		owes = false;
		for (uint32_t i = 0; i < round->njobs; i++)
			count += take_turn(round, i, worker, steal, &wanted, &owes);
	} while (!count && owes);
	if (wanted)
		wake_helpers(workers, wanted);
	return count;
}

/* Wakes the other jobs' threads: they may sleep because this thread worked for all jobs, and it now leaves early. */
static void hand_over(struct ferry_workers *workers, const struct ferry_job *attended)
{
	pthread_mutex_lock(&workers->lock);
	for (struct ferry_job *job = workers->jobs; job; job = job->next)
		if (job != attended)
			ferry_doorbell_ring(&job->shared.arenas[job->domain].header->router);
	pthread_mutex_unlock(&workers->lock);
}

static bool is_over(const struct ferry_job *attended)
{
	return attended && atomic_load_explicit(&attended->dead, memory_order_relaxed);
}

/* A worker is idle when it has gone round all jobs and found nothing, nor in the other workers' queues. */
static void work_until_idle(struct ferry_workers *workers, uint32_t worker, const struct ferry_job *attended,
                            struct ferry_idle *idle)
{
	struct round round = {.next = 0};
	uint64_t spin_ns = ferry_spin_ns(&workers->spin, ferry_now_ns());
	uint32_t vain = 0;
	bool found = false, steal = !spin_ns;
	ferry_idle_found(idle);
	enter_jobs(workers, &round);
	/* A later group may be empty, as its jobs are closed: the jobs before it have their turn again all the same. */
	while ((round.njobs || round.first) && !is_over(attended)) {
		found |= work_round(workers, &round, worker, steal) > 0;
		bool all = !round.next, in_vain = all && !found && steal;
		if (round.first || round.next ||
		    round.generation != atomic_load_explicit(&workers->generation, memory_order_relaxed)) {
			leave_jobs(workers, &round);
			enter_jobs(workers, &round);
		}
		uint64_t now = ferry_now_ns();
		ferry_idle_looked(idle, now);
		if (found)
			ferry_idle_found(idle);
		spin_ns = ferry_spin_ns(&workers->spin, now);
		if (all) {
			vain = found ? 0 : vain + 1;
			/*
			 * A queue's owner may be kept out, because job threads of several jobs have one number: then
			 * any worker takes from it.
			 */
			steal = !spin_ns || (found && steal) || (vain && vain % PATIENCE == 0) ||
			        atomic_load_explicit(&workers->held_out, memory_order_relaxed);
			found = false;
		}
		if (!in_vain) {
			if (vain)
				ferry_relax();
			continue;
		}
		if (!ferry_idle_looks_on(idle, now))
			break;
		ferry_relax();
	}
	if (is_over(attended))
		hand_over(workers, attended);
	leave_jobs(workers, &round);
}

/* Waits until fewer than `limit` workers are active, then works. attended: the job whose thread this is, or NULL. */
static void work_in_turn(struct ferry_workers *workers, uint32_t worker, const struct ferry_job *attended,
                         struct ferry_idle *idle)
{
	pthread_mutex_lock(&workers->lock);
	atomic_fetch_add_explicit(&workers->held_out, 1, memory_order_relaxed);
	while (workers->active >= workers->limit && !workers->stopping && !is_over(attended))
		pthread_cond_wait(&workers->changed, &workers->lock);
	atomic_fetch_sub_explicit(&workers->held_out, 1, memory_order_relaxed);
	workers->active++;
	pthread_mutex_unlock(&workers->lock);
	work_until_idle(workers, worker, attended, idle);
	pthread_mutex_lock(&workers->lock);
	workers->active--;
	pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_attend(struct ferry_workers *workers, const struct ferry_job *job, struct ferry_idle *idle)
{
	work_in_turn(workers, workers->nhelpers, job, idle);
}

void ferry_workers_release(struct ferry_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
}

static void *helper_main(void *argument)
{
	struct ferry_helper *helper = argument;
	struct ferry_workers *workers = helper->workers;
	uint64_t bit = 1ull << helper->number;
	struct ferry_idle idle;
	bool asked = false;
	ferry_priority_take(workers->priority, &asked);
	ferry_idle_open(&idle, &workers->spin);
	if (workers->pin)
		ferry_layout_pin(&workers->layout, workers->domain);
	while (1) {
		uint32_t seen = ferry_doorbell_prepare(&helper->bell);
		atomic_fetch_or_explicit(&workers->asleep, bit, memory_order_acq_rel);
		pthread_mutex_lock(&workers->lock);
		bool stopping = workers->stopping;
		pthread_mutex_unlock(&workers->lock);
		if (stopping) {
			ferry_doorbell_cancel(&helper->bell);
			ferry_idle_close(&idle);
			return NULL;
		}
		/*
		 * No condition to check again: a helper is woken by a worker that is awake and finds the work itself if
		 * need be.
		 */
		ferry_doorbell_wait(&helper->bell, seen, -1);
		atomic_fetch_and_explicit(&workers->asleep, ~bit, memory_order_acq_rel);
		ferry_priority_take(workers->priority, &asked);
		work_in_turn(workers, helper->number, NULL, &idle);
	}
}

ferryResult_t ferry_workers_start(struct ferry_workers *workers, const struct ferry_layout *layout, uint32_t domain,
                                  uint32_t limit, uint32_t spin_us, bool pin, struct ferry_priority *priority)
{
	memset(workers, 0, sizeof *workers);
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->changed, NULL);
	workers->limit = limit < 1 ? 1 : limit > FERRY_MAX_RANKS ? FERRY_MAX_RANKS : limit;
	workers->spin.limit_ns = spin_us * 1000ull;
	workers->pin = pin;
	workers->priority = priority;
	workers->layout = *layout;
	workers->domain = domain;
	while (workers->nhelpers + 1 < workers->limit) {
		struct ferry_helper *helper = &workers->helpers[workers->nhelpers];
		*helper = (struct ferry_helper){.workers = workers, .number = workers->nhelpers};
		int refused = pthread_create(&helper->thread, NULL, helper_main, helper);
		if (refused) {
			ferryResult_t result = ferry_fail(ferrySystemError, "worker thread %u of %u: %s%s",
			                                  workers->nhelpers + 2, workers->limit, strerror(refused),
			                                  ferry_ulimit_threads_hint(refused));
			ferry_workers_stop(workers);
			return result;
		}
		workers->nhelpers++;
	}
	return ferrySuccess;
}

void ferry_workers_stop(struct ferry_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	workers->stopping = true;
	pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
	for (uint32_t i = 0; i < workers->nhelpers; i++)
		ferry_doorbell_ring(&workers->helpers[i].bell);
	for (uint32_t i = 0; i < workers->nhelpers; i++)
		pthread_join(workers->helpers[i].thread, NULL);
	pthread_cond_destroy(&workers->changed);
	pthread_mutex_destroy(&workers->lock);
}

/* Makes the workers that are inside the job, or about to enter it, leave and read the list again. Under the lock. */
static void empty(struct ferry_workers *workers, struct ferry_job *job)
{
	atomic_fetch_add_explicit(&workers->generation, 1, memory_order_relaxed);
	while (job->users)
		pthread_cond_wait(&workers->changed, &workers->lock);
}

void ferry_workers_add_job(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	job->next = workers->jobs;
	workers->jobs = job;
	atomic_fetch_add_explicit(&workers->generation, 1, memory_order_relaxed);
	pthread_mutex_unlock(&workers->lock);
}

static void unlist(struct ferry_workers *workers, const struct ferry_job *job)
{
	for (struct ferry_job **link = &workers->jobs; *link; link = &(*link)->next)
		if (*link == job) {
			*link = job->next;
			break;
		}
	atomic_fetch_add_explicit(&workers->generation, 1, memory_order_relaxed);
}

void ferry_workers_unlist_job(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	unlist(workers, job);
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_remove_job(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	unlist(workers, job);
	empty(workers, job);
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_free_retired(struct ferry_workers *workers, struct ferry_job *job)
{
	if (!job->plans.retired)
		return;
	pthread_mutex_lock(&workers->lock);
	job->closed = true;
	empty(workers, job);
	ferry_job_plans_free_retired(&job->plans);
	job->closed = false;
	/*
	 * Again: a worker that came back meanwhile has passed the job by, and would not try it again as long as other
	 * jobs keep it busy.
	 */
	atomic_fetch_add_explicit(&workers->generation, 1, memory_order_relaxed);
	pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
}
