/* SPDX-License-Identifier: Apache-2.0 */
#include "router/workers.h"

#include "ipc/error.h"

#include <string.h>

#define WAKES_AT_ONCE 3 /* each of them wakes others in turn: all are up after a few wake-ups' time, and nobody spends long waking */
#define QUANTUM 8 /* slice parts that a job gets before the next job's turn */

static struct ferry_job *enter_next_job(struct ferry_workers *workers, uint32_t *njobs)
{
	struct ferry_job *job = NULL;
	pthread_mutex_lock(&workers->lock);
	if (workers->jobs) {
		job = workers->cursor && workers->cursor->next ? workers->cursor->next : workers->jobs;
		workers->cursor = job;
		job->users++;
	}
	*njobs = 0;
	for (struct ferry_job *each = workers->jobs; each; each = each->next)
		++*njobs;
	pthread_mutex_unlock(&workers->lock);
	return job;
}

void ferry_workers_enter(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	job->users++;
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_leave(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	if (--job->users == 0)
		pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
}

static void work_until_idle(struct ferry_workers *workers)
{
	uint32_t idle = 0, njobs;
	uint64_t idle_since = 0;
	while (1) {
		struct ferry_job *job = enter_next_job(workers, &njobs);
		if (!job)
			return;
		uint32_t wanted = 0, awake = atomic_load_explicit(&workers->active, memory_order_relaxed);
		uint32_t count = ferry_job_work(job, QUANTUM, &wanted);
		ferry_workers_leave(workers, job);
		if (wanted > awake && atomic_load_explicit(&workers->bell.sleepers, memory_order_relaxed))
			ferry_doorbell_wake(&workers->bell, (int)(wanted - awake < WAKES_AT_ONCE ? wanted - awake : WAKES_AT_ONCE));
		if (count) {
			idle = 0;
			idle_since = 0;
			continue;
		}
		if (++idle < njobs)
			continue;
		uint64_t now = ferry_now_ns();
		if (!idle_since)
			idle_since = now;
		if (now - idle_since >= workers->spin_us * 1000ull)
			return;
		ferry_relax();
	}
}

void ferry_workers_run(struct ferry_workers *workers)
{
	pthread_mutex_lock(&workers->lock);
	while (workers->active >= workers->limit && !workers->stopping)
		pthread_cond_wait(&workers->changed, &workers->lock);
	workers->active++;
	pthread_mutex_unlock(&workers->lock);
	work_until_idle(workers);
	pthread_mutex_lock(&workers->lock);
	workers->active--;
	pthread_cond_broadcast(&workers->changed);
	pthread_mutex_unlock(&workers->lock);
}

static void *helper_main(void *argument)
{
	struct ferry_workers *workers = argument;
	if (workers->pin)
		ferry_layout_pin(&workers->layout, workers->domain);
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(&workers->bell);
		pthread_mutex_lock(&workers->lock);
		bool stopping = workers->stopping;
		pthread_mutex_unlock(&workers->lock);
		if (stopping) {
			ferry_doorbell_cancel(&workers->bell);
			return NULL;
		}
		/* No condition to check again: a helper is woken by a worker that is awake and finds the work itself if need be. */
		ferry_doorbell_wait(&workers->bell, ticket, -1);
		ferry_workers_run(workers);
	}
}

ferryResult_t ferry_workers_start(struct ferry_workers *workers, const struct ferry_layout *layout, uint32_t domain,
                                  uint32_t limit, uint32_t spin_us, bool pin)
{
	memset(workers, 0, sizeof *workers);
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->changed, NULL);
	workers->limit = limit < 1 ? 1 : limit > FERRY_MAX_RANKS ? FERRY_MAX_RANKS : limit;
	workers->spin_us = spin_us;
	workers->pin = pin;
	workers->layout = *layout;
	workers->domain = domain;
	while (workers->nhelpers + 1 < workers->limit) {
		int refused = pthread_create(&workers->helpers[workers->nhelpers], NULL, helper_main, workers);
		if (refused) {
			ferryResult_t result = ferry_fail(ferrySystemError, "worker thread %u of %u: %s", workers->nhelpers + 2,
			                                  workers->limit, strerror(refused));
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
	ferry_doorbell_ring(&workers->bell);
	for (uint32_t i = 0; i < workers->nhelpers; i++)
		pthread_join(workers->helpers[i], NULL);
	pthread_cond_destroy(&workers->changed);
	pthread_mutex_destroy(&workers->lock);
}

void ferry_workers_add_job(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	job->next = workers->jobs;
	workers->jobs = job;
	pthread_mutex_unlock(&workers->lock);
}

void ferry_workers_remove_job(struct ferry_workers *workers, struct ferry_job *job)
{
	pthread_mutex_lock(&workers->lock);
	for (struct ferry_job **link = &workers->jobs; *link; link = &(*link)->next)
		if (*link == job) {
			*link = job->next;
			break;
		}
	if (workers->cursor == job)
		workers->cursor = NULL;
	while (job->users)
		pthread_cond_wait(&workers->changed, &workers->lock);
	pthread_mutex_unlock(&workers->lock);
}

bool ferry_workers_outside(const struct ferry_job *job)
{
	return job->users == 0;
}
