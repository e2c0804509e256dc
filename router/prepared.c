/* SPDX-License-Identifier: Apache-2.0 */
#include "router/prepared.h"

#include "ipc/deadline.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/brought.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 1000

/* Connection thread, in the end the reaper. */
struct ferry_prepared {
	struct ferry_prepared *next;
	uint32_t owner;
	uint8_t key[FERRY_KEY_BYTES];
	struct ferry_reserved reserved; /* what counts for its tenant */
	struct ferry_prepared **mine; /* who has asked knows it by this */
	uint64_t until_ns;            /* then it goes */
	bool context;                 /* that alone; there are no arenas */
	struct ferry_job_arenas shared;
	struct ferry_preparation *preparation;
	struct ferry_ending ending;
	_Atomic bool undone; /* nothing of it is left; the reaper, last, with release */
};

static struct ferry_prepared *find(const struct ferry_jobs *jobs, uint32_t owner, const uint8_t *key)
{
	struct ferry_prepared *found = NULL;
	for (struct ferry_prepared *prepared = jobs->prepared; prepared; prepared = prepared->next)
		if (ferry_keys_are_same(prepared->key, key) & (prepared->owner == owner) & !prepared->context)
			found = prepared;
	return found;
}

/* ---- asked for ---- */

static void count_no_more(struct ferry_jobs *jobs, const struct ferry_prepared *prepared)
{
	struct ferry_reserved **link = &jobs->reserved;
	if (prepared->context)
		return;
	while (*link != &prepared->reserved)
		link = &(*link)->next;
	*link = prepared->reserved.next;
	ferry_quota_carry_off(&jobs->quota, &prepared->reserved.staging);
}

/*
 * It counts for its tenant as the job will: none has more made ready than it may have jobs, ranks and memory. A context
 * counts for nobody: there is one for all.
 */
static ferryResult_t count(struct ferry_jobs *jobs, const struct ferry_standing *standing,
                           struct ferry_prepared *prepared)
{
	struct ferry_allowance allowance;
	struct ferry_reserved *reserved = &prepared->reserved;
	uint32_t nranks = prepared->shared.nranks;
	if (prepared->context)
		return ferrySuccess;
	ferryResult_t result = ferry_jobs_check_tenant(jobs, standing, nranks, NULL, &allowance);
	if (result)
		return result;
	*reserved = (struct ferry_reserved){standing, nranks, ferry_brought_staging(&prepared->shared), jobs->reserved};
	if ((result = ferry_quota_bring(&jobs->quota, &allowance, &reserved->staging)))
		return result;
	jobs->reserved = reserved;
	return ferrySuccess;
}

/* Its arenas are mapped. */
static ferryResult_t begin(struct ferry_jobs *jobs, const struct ferry_standing *standing, const uint8_t *gpu,
                           struct ferry_prepared *prepared)
{
	ferryResult_t result = count(jobs, standing, prepared);
	if (result)
		return result;
	prepared->preparation = ferry_preparation_new(&prepared->shared, gpu);
	result = prepared->preparation
	                 ? ferry_mapper_ask(&jobs->mapper, ferry_preparation_ask(prepared->preparation))
	                 : ferry_fail(ferrySystemError, "no memory to prepare a job");
	if (result) {
		count_no_more(jobs, prepared);
		if (prepared->preparation)
			ferry_preparation_free(prepared->preparation);
	}
	return result;
}

/* descriptors: NULL: the context alone. */
static ferryResult_t make(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                          const struct ferry_standing *standing, int *descriptors, struct ferry_prepared **mine)
{
	long seconds;
	ferryResult_t result = ferry_deadline_seconds(&seconds);
	if (result)
		return result;
	struct ferry_prepared *prepared = calloc(1, sizeof *prepared);
	if (!prepared)
		return ferry_fail(ferrySystemError, "no memory to prepare a job");
	prepared->until_ns = ferry_now_ns() + (uint64_t)seconds * 1000000000u;
	prepared->context = !descriptors;
	for (uint32_t domain = 0; domain < FERRY_MAX_DOMAINS; domain++)
		prepared->shared.arenas[domain].descriptor = -1;
	prepared->owner = standing->owner;
	prepared->mine = mine;
	memcpy(prepared->key, message->key, sizeof prepared->key);
	if (descriptors)
		result = ferry_brought_map(message, jobs->domain, descriptors, &prepared->shared);
	if (!result && (result = begin(jobs, standing, message->gpu, prepared)))
		ferry_brought_unmap(&prepared->shared);
	if (result) {
		free(prepared);
		return result;
	}
	prepared->next = jobs->prepared;
	jobs->prepared = *mine = prepared;
	return ferrySuccess;
}

/* Whether one of that owner's is being undone. Those that have been are freed. */
static bool is_undoing(struct ferry_jobs *jobs, uint32_t owner)
{
	bool found = false;
	for (struct ferry_prepared **link = &jobs->undoing; *link;) {
		struct ferry_prepared *each = *link;
		if (!atomic_load_explicit(&each->undone, memory_order_acquire)) {
			found |= each->owner == owner;
			link = &each->next;
			continue;
		}
		*link = each->next;
		free(each);
	}
	return found;
}

ferryResult_t ferry_prepare(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                            const struct ferry_standing *standing, int *descriptors, struct ferry_prepared **mine)
{
	const struct ferry_job *job = ferry_jobs_find(jobs, standing->owner, message->key);
	if (message->domain != jobs->domain)
		return ferry_fail(ferryInvalidArgument, "PREPARE of domain %u in domain %u", message->domain,
		                  jobs->domain);
	if (atomic_load(&jobs->draining))
		return ferry_fail(ferryRefused, "the router of domain %u is shutting down and takes no new job",
		                  jobs->domain);
	if (job && !job->adoption)
		return ferry_fail(ferryRefused, "PREPARE of a job that this router serves");
	/* Else who asks and goes, again and again, would keep the reaper from ranks that wait for it to leave. */
	if (is_undoing(jobs, standing->owner))
		return ferry_fail(ferryRefused, "PREPARE while another of this user's is undone");
	ferryResult_t result = ferry_reaper_start(&jobs->reaper);
	bool known = job || find(jobs, standing->owner, message->key);
	return result ? result : make(jobs, message, standing, known ? NULL : descriptors, mine);
}

/* ---- dropped, or taken ---- */

static void forget(struct ferry_jobs *jobs, struct ferry_prepared *prepared)
{
	struct ferry_prepared **link = &jobs->prepared;
	while (*link != prepared)
		link = &(*link)->next;
	*link = prepared->next;
	*prepared->mine = NULL;
	count_no_more(jobs, prepared);
}

/* By the reaper. */
static void end_unused(struct ferry_ending *ending)
{
	struct ferry_prepared *prepared =
	        (struct ferry_prepared *)((char *)ending - offsetof(struct ferry_prepared, ending));
	struct ferry_jobs *jobs = ending->context;
	struct ferry_registration made = {0};
	ferry_preparation_settle(&prepared->preparation, &made);
	ferry_registration_end(&made, &prepared->shared);
	ferry_brought_unmap(&prepared->shared);
	ferry_mapper_look(&jobs->mapper);
	atomic_store_explicit(&prepared->undone, true, memory_order_release);
}

void ferry_prepared_drop(struct ferry_jobs *jobs, struct ferry_prepared **mine)
{
	struct ferry_prepared *prepared = *mine;
	if (!prepared)
		return;
	forget(jobs, prepared);
	prepared->ending = (struct ferry_ending){.end = end_unused, .context = jobs};
	prepared->next = jobs->undoing;
	jobs->undoing = prepared;
	ferry_reaper_give(&jobs->reaper, &prepared->ending);
}

void ferry_prepared_end(struct ferry_jobs *jobs)
{
	is_undoing(jobs, 0);
}

int ferry_prepared_watch(struct ferry_jobs *jobs)
{
	uint64_t now = jobs->prepared ? ferry_now_ns() : 0;
	for (struct ferry_prepared *prepared = jobs->prepared, *next; prepared; prepared = next) {
		next = prepared->next;
		if (now > prepared->until_ns)
			ferry_prepared_drop(jobs, prepared->mine);
	}
	return jobs->prepared ? LOOK_MS : -1;
}

static struct ferry_prepared *find_for(const struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                       uint32_t owner, const int *descriptors)
{
	struct ferry_prepared *prepared = find(jobs, owner, message->key);
	bool same = prepared && prepared->shared.nranks == message->nranks &&
	            prepared->shared.ndomains == message->ndomains &&
	            ferry_brought_are_same(&prepared->shared, descriptors);
	return same ? prepared : NULL;
}

const struct ferry_reserved *ferry_prepared_counts(const struct ferry_jobs *jobs,
                                                   const struct ferry_attach_message *message, uint32_t owner,
                                                   const int *descriptors)
{
	const struct ferry_prepared *prepared = find_for(jobs, message, owner, descriptors);
	return prepared ? &prepared->reserved : NULL;
}

struct ferry_preparation *ferry_prepared_take(struct ferry_jobs *jobs, const struct ferry_attach_message *message,
                                              uint32_t owner, const int *descriptors,
                                              struct ferry_job_arenas *shared)
{
	struct ferry_prepared *prepared = find_for(jobs, message, owner, descriptors);
	if (!prepared)
		return NULL;
	struct ferry_preparation *taken = prepared->preparation;
	forget(jobs, prepared);
	*shared = prepared->shared;
	free(prepared);
	return taken;
}
