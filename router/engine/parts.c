/* SPDX-License-Identifier: Apache-2.0 */
#include "router/engine/parts.h"

#include "router/reduce/reduce.h"

/*
 * How many slices of the work may run, remembered so that the gates are read once per advance. `slots` has a cell per
 * slot, so slice k also waits until slice k - window is published; a result without readers has no gate that says so.
 */
static uint32_t runnable(struct ferry_work *work, struct ferry_queue *queue, uint64_t seq, uint32_t wanted,
                         uint32_t window)
{
	if (wanted > window && atomic_load_explicit(&work->published, memory_order_acquire) < wanted - window)
		return 0;
	uint32_t ready = ferry_counter_slices(atomic_load_explicit(&queue->ready, memory_order_acquire), seq);
	if (ready >= wanted)
		return ready;
	uint32_t open = ferry_gates_open(work->gates, work->instr->nedges, seq, work->instr->nslices);
	if (open > ready) /* release: a worker that reads this does not read the gates that were acquired for it */
		atomic_store_explicit(&queue->ready, ferry_counter_value(seq, open), memory_order_release);
	return open;
}

/* Whether the queue's next part may run. */
static bool is_runnable(struct ferry_work *work, uint32_t from, uint64_t seq, uint32_t window)
{
	struct ferry_queue *queue = &work->queues[from];
	uint64_t next = atomic_load_explicit(&queue->next, memory_order_acquire);
	uint32_t slice = (uint32_t)next / work->share;
	return (uint32_t)(next >> 32) == (uint32_t)seq && slice < work->instr->nslices &&
	       runnable(work, queue, seq, slice + 1, window) > slice;
}

/* Claims one part of one slice. The tag in `next` makes a claim for a call that has ended fail. */
static bool claim(struct ferry_work *work, uint32_t from, uint64_t seq, uint32_t window, uint32_t *slice,
                  uint32_t *part, bool *more)
{
	struct ferry_queue *queue = &work->queues[from];
	uint64_t next = atomic_load_explicit(&queue->next, memory_order_acquire);
	while (1) {
		if ((uint32_t)(next >> 32) != (uint32_t)seq)
			return false;
		*slice = (uint32_t)next / work->share;
		*part = from * work->share + (uint32_t)next % work->share;
		if (*slice >= work->instr->nslices)
			return false;
		uint32_t ready = runnable(work, queue, seq, *slice + 1, window);
		if (ready <= *slice)
			return false;
		if (atomic_compare_exchange_weak_explicit(&queue->next, &next, next + 1, memory_order_acq_rel,
		                                          memory_order_acquire)) {
			*more = ready > *slice + 1 || (uint32_t)next % work->share + 1 < work->share;
			return true;
		}
	}
}

/* The queue that is at the oldest slice: the worker's own, unless another is a slice behind it. */
static uint32_t oldest(const struct ferry_work *work, uint32_t own, uint64_t seq)
{
	uint32_t found = own,
	         least = (uint32_t)atomic_load_explicit(&work->queues[own].next, memory_order_relaxed) / work->share;
	for (uint32_t i = 1; i < work->nqueues; i++) {
		uint32_t q = (own + i) % work->nqueues;
		uint64_t next = atomic_load_explicit(&work->queues[q].next, memory_order_relaxed);
		if ((uint32_t)(next >> 32) == (uint32_t)seq && (uint32_t)next / work->share < least) {
			least = (uint32_t)next / work->share;
			found = q;
		}
	}
	return found;
}

/*
 * Claims from the worker's own queue, or an older slice from another's; else, if it may, from the next queue that has a
 * part.
 */
static bool claim_any(struct ferry_work *work, uint32_t worker, bool steal, uint64_t seq, uint32_t window,
                      uint32_t *slice, uint32_t *part, bool *more)
{
	uint32_t own = worker % work->nqueues;
	if (work->oldest_first && is_runnable(work, own, seq, window)) {
		uint32_t first = oldest(work, own, seq);
		if (first != own && claim(work, first, seq, window, slice, part, more))
			return true;
	}
	if (claim(work, own, seq, window, slice, part, more))
		return true;
	for (uint32_t i = 1; steal && i < work->nqueues; i++)
		if (claim(work, (own + i) % work->nqueues, seq, window, slice, part, more))
			return true;
	return false;
}

/* Settles what goes over which path. -1: lengths differ, and the job has failed. */
static int64_t divide(struct ferry_job *job, const struct ferry_job_plan *entry, uint64_t seq)
{
	char text[FERRY_MESSAGE_BYTES];
	if (ferry_division_run(entry->works.division, &job->shared, seq, text))
		return 0;
	ferry_job_fail(job, ferryInvalidUsage, text);
	return -1;
}

/* Returns how many bytes it has read and written; below 0: the job has failed. */
static int64_t run_part(struct ferry_job *job, const struct ferry_job_plan *entry, const struct ferry_run *run,
                     uint64_t seq, struct ferry_work *work, uint32_t slice, uint32_t part)
{
	const struct ferry_plan *plan = entry->plan;
	const struct ferry_instr *instr = work->instr;
	uint64_t start = (uint64_t)slice * plan->slice, slot = ferry_plan_slot(plan, seq, slice);
	uint64_t length = instr->length - start < plan->slice ? instr->length - start : plan->slice;
	uint64_t piece = (length / ferry_parts_of(work) + 63) / 64 * 64, from = piece * part;
	if (from >= length)
		return 0;
	if (instr->opcode == FERRY_DIVIDE)
		return divide(job, entry, seq);
	uint64_t bytes = part + 1 == ferry_parts_of(work) || length - from < piece ? length - from : piece;
	char *destination = work->window + slot + from;
	enum ferry_store store = plan->flags & FERRY_PLAN_DMA ? job->store : FERRY_STORE_ORDINARY;
	if (instr->opcode == FERRY_H2H) {
		ferry_copy(destination, work->sources[0] + slot + from, bytes, store);
		return 2 * (int64_t)bytes;
	}
	const struct ferry_source *sources = ferry_plan_sources(plan) + instr->first_source;
	const void *inputs[FERRY_MAX_RANKS + FERRY_MAX_DOMAINS];
	uint64_t scalars[FERRY_MAX_RANKS + FERRY_MAX_DOMAINS];
	uint64_t reciprocal = plan->redop == ferryAvg ? ferry_reduce_reciprocal(plan->type, plan->nranks) : 0;
	bool premultiplied = plan->redop == ferryNumOps || reciprocal;
	struct ferry_reduction reduction = {.type = plan->type, .op = plan->redop, .store = store, .divisor = 1};
	if (plan->redop == ferryAvg && !reciprocal && (instr->flags & FERRY_INSTR_FINAL))
		reduction.divisor = plan->nranks;
	for (uint32_t i = 0; i < instr->nsources; i++) {
		inputs[i] = work->sources[i] + slot + from;
		if (premultiplied && sources[i].rank != FERRY_PARTIAL) {
			scalars[i] = reciprocal ? reciprocal : run->scalars[sources[i].rank];
			reduction.scaled |= 1ull << i;
		}
	}
	reduction.scalars = premultiplied ? scalars : NULL;
	ferry_reduce(destination, inputs, instr->nsources, bytes / ferry_type_size(plan->type), &reduction);
	return (int64_t)(bytes * (instr->nsources + 1));
}

/* For ferry-stat: bytes read and written. */
static void count_slices(struct ferry_job *job, const struct ferry_plan *plan, const struct ferry_instr *instr,
                         uint32_t from, uint32_t to)
{
	uint64_t begin = (uint64_t)from * plan->slice, end = (uint64_t)to * plan->slice;
	end = end < instr->length ? end : instr->length;
	atomic_fetch_add_explicit(&job->slices, to - from, memory_order_relaxed);
	atomic_fetch_add_explicit(&job->bytes, (end - begin) * (instr->nsources + 1), memory_order_relaxed);
}

/* For ferry-stat: how long the call took here, and how long all its workers together have worked on its parts. */
static void count_call(struct ferry_job *job, const struct ferry_run *run)
{
	atomic_fetch_add_explicit(&job->calls_ns, ferry_now_ns() - run->began_ns, memory_order_relaxed);
	atomic_fetch_add_explicit(&job->working_ns, atomic_load_explicit(&run->working_ns, memory_order_relaxed),
	                          memory_order_relaxed);
}

/* Advances the counter over every slice whose parts are all done, in order. One thread at a time holds `publishing`. */
static void publish(struct ferry_job *job, uint64_t seq, const struct ferry_job_plan *entry, struct ferry_work *work)
{
	uint32_t window = entry->plan->window, nslices = work->instr->nslices;
	bool again;
	do {
		if (atomic_exchange(&work->publishing, 1))
			return; /* the holder reads `done` once more after it releases the lock */
		uint32_t before = atomic_load_explicit(&work->published, memory_order_relaxed), published = before;
		while (published < nslices &&
		       atomic_load(&work->slots[published % window].done) == ferry_parts_of(work)) {
			atomic_store(&work->slots[published % window].done, 0);
			published++;
		}
		if (published != before) {
			atomic_store_explicit(&work->published, published, memory_order_release);
			ferry_publish(&job->shared, work->instr, work->counter, seq, published);
			count_slices(job, entry->plan, work->instr, before, published);
		}
		atomic_store(&work->publishing, 0);
		again = published < nslices &&
		        atomic_load(&work->slots[published % window].done) == ferry_parts_of(work);
	} while (again);
}

static uint32_t work_run(struct ferry_job *job, uint32_t parity, uint64_t seq, uint32_t worker, uint32_t most,
                         bool steal, uint32_t *wanted, int64_t *credit)
{
	struct ferry_run *run = &job->runs[parity];
	struct ferry_job_plan *entry = atomic_load_explicit(&run->plan, memory_order_relaxed);
	uint32_t count = 0;
	uint64_t began = 0;
	int64_t spent = 0, may = credit ? *credit : INT64_MAX;
	bool progress = true;
	while (progress && count < most && spent < may) {
		progress = false;
		for (uint32_t i = 0; i < entry->works.nworks && count < most && spent < may; i++) {
			struct ferry_work *work = &entry->works.works[parity][i];
			uint32_t slice, part;
			bool others = false;
			if (!claim_any(work, worker, steal, seq, entry->plan->window, &slice, &part, &others))
				continue;
			if (others)
				*wanted = UINT32_MAX;
			if (!began)
				began = ferry_now_ns();
			int64_t bytes = run_part(job, entry, run, seq, work, slice, part);
			if (bytes < 0)
				return count; /* the job has failed: this part must not count as done */
			spent += bytes;
			if (atomic_fetch_add(&work->slots[slice % entry->plan->window].done, 1) + 1 ==
			    ferry_parts_of(work))
				publish(job, seq, entry, work);
			count++;
			progress = true;
		}
	}
	if (!count)
		return 0;
	if (credit)
		*credit -= spent;
	atomic_fetch_add_explicit(&run->working_ns, ferry_now_ns() - began, memory_order_relaxed);
	/* Lowered only when this worker is out of `publish`, where it could else meet the parity's next call. */
	if (atomic_fetch_sub(&run->left, count) == count) {
		count_call(job, run);
		ferry_job_end_call(job, parity, seq, entry);
	}
	return count;
}

static uint32_t work_parity(struct ferry_job *job, uint32_t parity, uint32_t worker, uint32_t most, bool steal,
                            uint32_t *wanted, int64_t *credit)
{
	struct ferry_run *run = &job->runs[parity];
	uint64_t seq = atomic_load_explicit(&run->seq, memory_order_acquire);
	if (!seq)
		return 0;
	const struct ferry_plan *plan = atomic_load_explicit(&run->plan, memory_order_relaxed)->plan;
	uint32_t share = plan->workers ? plan->workers : UINT32_MAX, more = 0;
	if (plan->flags & FERRY_PLAN_DMA && plan->workers > *wanted)
		*wanted = plan->workers;
	uint32_t count = worker < share ? work_run(job, parity, seq, worker, most, steal, &more, credit) : 0;
	if (more > share) /* the other workers would poll for parts that they must not run */
		more = share;
	if (more > *wanted)
		*wanted = more;
	return count;
}

uint32_t ferry_parts_work(struct ferry_job *job, uint32_t worker, uint32_t most, bool steal, uint32_t *wanted,
                          int64_t *credit)
{
	uint32_t count = 0;
	if (atomic_load_explicit(&job->dead, memory_order_relaxed))
		return 0;
	ferry_job_admit(job);
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++)
		count += work_parity(job, parity, worker, most, steal, wanted, credit);
	return count;
}

static bool has_part(struct ferry_work *work, uint64_t seq, uint32_t window)
{
	for (uint32_t q = 0; q < work->nqueues; q++)
		if (is_runnable(work, q, seq, window))
			return true;
	return false;
}

bool ferry_parts_any(struct ferry_job *job)
{
	if (atomic_load_explicit(&job->dead, memory_order_relaxed) ||
	    !atomic_load_explicit(&job->ready, memory_order_acquire))
		return false;
	if (ferry_job_may_admit(job))
		return true;
	for (uint32_t parity = 0; parity < FERRY_PARITIES; parity++) {
		struct ferry_run *run = &job->runs[parity];
		uint64_t seq = atomic_load_explicit(&run->seq, memory_order_acquire);
		struct ferry_job_plan *entry = seq ? atomic_load_explicit(&run->plan, memory_order_relaxed) : NULL;
		for (uint32_t i = 0; entry && i < entry->works.nworks; i++)
			if (has_part(&entry->works.works[parity][i], seq, entry->plan->window))
				return true;
	}
	return false;
}
