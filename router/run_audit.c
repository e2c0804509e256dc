/* SPDX-License-Identifier: Apache-2.0 */
#include "router/run_audit.h"

#include "router/audit.h"

#include <stdio.h>

static bool say(char *text, uint64_t seq, const char *what, uint64_t value, uint32_t least, uint32_t most)
{
	snprintf(text, FERRY_MESSAGE_BYTES,
	         "call %llu: a counter that the router %s says %u slices of call %u, where there are %u to %u of "
	         "call %u",
	         (unsigned long long)seq, what, (uint32_t)value, (uint32_t)(value >> 32), least, most, (uint32_t)seq);
	return false;
}

/* Workers publish meanwhile: what they have told, then the counter, then what they were about to tell. */
static bool work_is_sane(const struct ferry_job *job, const struct ferry_plan *plan, const struct ferry_work *work,
                         uint64_t seq, char *text)
{
	uint32_t told = atomic_load_explicit(&work->told, memory_order_acquire);
	uint64_t value = atomic_load_explicit(&work->counter->value, memory_order_acquire);
	uint32_t published = atomic_load_explicit(&work->published, memory_order_acquire);
	if (!ferry_audit_counter(value, seq, published) || ferry_counter_slices(value, seq) < told)
		return say(text, seq, "has published", value, told, published);
	for (uint32_t i = 0; i < work->instr->nedges; i++)
		if (work->gates[i].nslices &&
		    !ferry_audit_gate(&job->shared, plan, work->instr, work->gates, i, seq, &value))
			return say(text, seq, "waits for", value, 0, work->gates[i].nslices);
	return true;
}

/* The call may end meanwhile, and the next one begin: what was found is of the call only if it runs still. */
static bool run_is_sane(const struct ferry_job *job, uint32_t bank, char *text)
{
	const struct ferry_run *run = &job->runs[bank];
	uint64_t seq = atomic_load_explicit(&run->seq, memory_order_acquire);
	const struct ferry_job_plan *entry = seq ? atomic_load_explicit(&run->plan, memory_order_relaxed) : NULL;
	for (uint32_t i = 0; entry && i < entry->works.nworks; i++)
		if (!work_is_sane(job, entry->plan, &entry->works.works[bank][i], seq, text))
			return atomic_load_explicit(&run->seq, memory_order_acquire) != seq;
	return true;
}

static bool end_is_there(const struct ferry_job *job, uint32_t bank, char *text)
{
	uint64_t ended = atomic_load_explicit(&job->runs[bank].ended, memory_order_acquire);
	uint64_t said = atomic_load_explicit(&job->shared.arenas[job->domain].header->finished[bank],
	                                     memory_order_acquire);
	if (said >= ended)
		return true;
	snprintf(text, FERRY_MESSAGE_BYTES,
	         "the arena says that the router of domain %u has finished call %llu, where it has finished %llu",
	         job->domain, (unsigned long long)said, (unsigned long long)ended);
	return false;
}

void ferry_run_audit(struct ferry_job *job)
{
	char text[FERRY_MESSAGE_BYTES];
	if (!atomic_load_explicit(&job->ready, memory_order_acquire) ||
	    atomic_load_explicit(&job->dead, memory_order_acquire))
		return;
	ferry_job_tell_again(job);
	for (uint32_t bank = 0; bank < FERRY_BANKS; bank++)
		if (!run_is_sane(job, bank, text) || !end_is_there(job, bank, text)) {
			ferry_job_fail(job, ferryInternalError, text);
			return;
		}
}
