/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the workers, without a router: which worker does which parts of a call's slices. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rank-lib/program/program.h"
#include "router/engine/parts.h"
#include "router/engine/workers.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>

#define LONG_US 100000000 /* an idle worker looks for work so long: beyond every patience of this suite */
#define SEQ 3 /* of every call here */

/*
 * All of the ranks' slices, in windows that hold the whole message, and the descriptors: the first claim admits the
 * call.
 */
UNSEEN static void put_call(const struct ferry_job_arenas *shared, const struct ferry_plan *plan)
{
	const struct ferry_arena *arena = &shared->arenas[0];
	const struct ferry_instr *instrs = ferry_plan_instrs(plan);
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (instrs[i].opcode == FERRY_D2H) {
			int32_t *window = (int32_t *)(arena->staging[SEQ % FERRY_PARITIES] + instrs[i].window_offset);
			for (uint64_t k = 0; k < instrs[i].length / 4; k++)
				window[k] = (int32_t)(1000000 * instrs[i].owner + k);
			ferry_publish(shared, &instrs[i], &arena->counters[SEQ % FERRY_PARITIES][instrs[i].counter],
			              SEQ, instrs[i].nslices);
		}
	for (uint32_t rank = 0; rank < shared->nranks; rank++) {
		struct ferry_descriptor *descriptor = &arena->rank_lines[rank].ring[SEQ % FERRY_PARITIES];
		struct ferry_descriptor_fields fields = {.plan_hash = plan->hash, .count = plan->count, .domains = 1,
		                                         .shape = FERRY_ALLREDUCE | ferryInt32 << 8};
		ferry_descriptor_write(descriptor, SEQ, &fields);
	}
}

/*
 * A job of two ranks without a router, and a call in it. workers: that the plan names, of copy engines; 0: any, of
 * none.
 */
static struct ferry_job *open_lone_job(uint64_t count, uint32_t slice, uint32_t workers)
{
	uint32_t window = (uint32_t)((count * 4 + slice - 1) / slice);
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 2, .staging = 8ull * window * slice, .node = -1};
	struct ferry_topology topology = {.nranks = 2, .ndomains = 1};
	struct ferry_compile_options options = {.count = count,
	                                        .type = ferryInt32,
	                                        .redop = ferrySum,
	                                        .slice = slice,
	                                        .window = window};
	struct ferry_program *program;
	struct ferry_plan *plan;
	static const uint8_t key[FERRY_KEY_BYTES];
	struct ferry_job *job;
	assert_int_equal(ferry_job_new(key, &shape, 16, &job), ferrySuccess);
	job->store = FERRY_STORE_ORDINARY;
	atomic_store(&job->ready, 1);
	options.staging[0] = job->shared.arenas[0].staging_bytes;
	assert_int_equal(ferry_program_synthesize(FERRY_ALLREDUCE, &topology, 0, &program), ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
	ferry_program_free(program);
	plan->flags |= workers ? FERRY_PLAN_DMA : 0;
	plan->workers = workers;
	plan->hash = ferry_plan_hash(plan);
	assert_int_equal(ferry_job_add_plan(job, 0, plan, plan->bytes), ferrySuccess);
	put_call(&job->shared, plan);
	free(plan);
	return job;
}

static void close_lone_job(struct ferry_job *job)
{
	ferry_job_free(job);
}

/* The only plan of a job of open_lone_job. */
static struct ferry_plan *plan_of(struct ferry_job *job)
{
	for (uint32_t i = 0; i < job->plans.nbuckets; i++)
		if (job->plans.buckets[i])
			return job->plans.buckets[i]->plan;
	fail_msg("the job has no plan");
	return NULL;
}

/*
 * A worker by itself, without a router: it does its share of every slice; the shares of workers that do not come, once
 * it may.
 */
static void a_worker_does_its_own_parts_first_and_those_of_others_when_it_may(void **state)
{
	(void)state;
	const uint64_t count = 64 << 10;
	struct ferry_job *job = open_lone_job(count, 64 << 10, 3);
	uint32_t wanted = 0;
	const struct ferry_instr *reduce = ferry_plan_instrs(plan_of(job));
	while (reduce->opcode != FERRY_REDUCE)
		reduce++;
	const int32_t *sum = (const int32_t *)(job->shared.arenas[0].staging[SEQ % FERRY_PARITIES] +
	                                       reduce->window_offset);
	/* the second third of each of four slices */
	assert_int_equal(ferry_parts_work(job, 1, 1000, false, &wanted, NULL), 4);
	assert_int_equal(sum[0], 0);
	assert_int_equal(sum[8192], 1000000 + 2 * 8192);
	assert_int_equal(sum[16383], 0);
	assert_int_equal(wanted, 3);
	assert_int_equal(ferry_parts_work(job, 1, 1000, false, &wanted, NULL), 0);
	assert_int_equal(ferry_parts_work(job, 3, 1000, true, &wanted, NULL), 0); /* the plan has no place for it */
	assert_true(ferry_parts_any(job));
	assert_int_equal(atomic_load(&job->shared.arenas[0].header->finished[SEQ % FERRY_PARITIES]), 0);
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 8);
	assert_false(ferry_parts_any(job));
	assert_int_equal(atomic_load(&job->shared.arenas[0].header->finished[SEQ % FERRY_PARITIES]), SEQ);
	assert_int_equal(atomic_load(&job->slices), 4);
	assert_int_equal(atomic_load(&job->bytes), 3 * count * 4);

	for (uint64_t k = 0; k < count; k++)
		assert_int_equal(sum[k], 1000000 + 2 * (int32_t)k);
	close_lone_job(job);
}

/* A slot that is still in use: the counter says otherwise, into which any rank of the job can write. */
static void workers_do_not_believe_the_counters_that_they_publish(void **state)
{
	(void)state;
	struct ferry_job *job = open_lone_job(64 << 10, 64 << 10, 3);
	struct ferry_plan *plan = plan_of(job);
	const struct ferry_instr *reduce = ferry_plan_instrs(plan);
	uint32_t wanted = 0;
	plan->window = 2;
	while (reduce->opcode != FERRY_REDUCE)
		reduce++;
	assert_int_equal(ferry_parts_work(job, 1, 1000, false, &wanted, NULL), 2);
	atomic_store(&job->shared.arenas[0].counters[SEQ % FERRY_PARITIES][reduce->counter].value,
	             ferry_counter_value(SEQ, 4));
	assert_int_equal(ferry_parts_work(job, 1, 1000, false, &wanted, NULL), 0);
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 10);
	assert_int_equal(atomic_load(&job->shared.arenas[0].header->finished[SEQ % FERRY_PARITIES]), SEQ);
	close_lone_job(job);
}

/* A call whose router has ended when so many slices of its sum were published, with other bytes where those lie. */
static struct ferry_job *open_orphan(uint64_t count, uint32_t slice, uint32_t published, const int32_t **sum,
                                     struct ferry_counter **counter)
{
	struct ferry_job *job = open_lone_job(count, slice, 3);
	const struct ferry_arena *arena = &job->shared.arenas[0];
	const struct ferry_instr *reduce = ferry_plan_instrs(plan_of(job));
	while (reduce->opcode != FERRY_REDUCE)
		reduce++;
	char *window = arena->staging[SEQ % FERRY_PARITIES] + reduce->window_offset;
	memset(window, 0xee, (size_t)published * slice);
	*sum = (const int32_t *)window;
	*counter = &arena->counters[SEQ % FERRY_PARITIES][reduce->counter];
	atomic_store(&(*counter)->value, ferry_counter_value(SEQ, published));
	job->runs[SEQ % FERRY_PARITIES].resumes = true;
	return job;
}

static void a_successor_sums_what_is_not_published_and_nothing_else(void **state)
{
	(void)state;
	const uint64_t count = 64 << 10, slice = 16 << 10; /* elements */
	const int32_t *sum;
	struct ferry_counter *counter;
	struct ferry_job *job = open_orphan(count, (uint32_t)slice * 4, 3, &sum, &counter);
	uint32_t wanted = 0;
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 3); /* a slice of three parts */
	for (uint64_t k = 0; k < count; k++)
		assert_int_equal(sum[k], k < 3 * slice ? (int32_t)0xeeeeeeee : 1000000 + 2 * (int32_t)k);
	assert_int_equal(atomic_load(&counter->value), ferry_counter_value(SEQ, 4));
	assert_int_equal(atomic_load(&job->slices), 1);
	assert_int_equal(atomic_load(&job->shared.arenas[0].header->finished[SEQ % FERRY_PARITIES]), SEQ);
	close_lone_job(job);
}

static void a_successor_ends_a_call_of_which_all_is_published(void **state)
{
	(void)state;
	const int32_t *sum;
	struct ferry_counter *counter;
	struct ferry_job *job = open_orphan(64 << 10, 64 << 10, 4, &sum, &counter);
	uint32_t wanted = 0;
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 0);
	assert_int_equal(atomic_load(&job->shared.arenas[0].header->finished[SEQ % FERRY_PARITIES]), SEQ);
	assert_int_equal(atomic_load(&counter->value), ferry_counter_value(SEQ, 4));
	assert_false(ferry_parts_any(job));
	close_lone_job(job);
}

/*
 * Nobody waits for a slice whose parts are left with others while it does newer ones: of long parts the oldest come
 * first.
 */
static void long_parts_of_an_older_slice_go_before_newer_ones_of_its_own(void **state)
{
	(void)state;
	struct ferry_job *job = open_lone_job(512 << 10, 512 << 10, 3);
	uint32_t wanted = 0;
	/* its share of the first of four slices */
	assert_int_equal(ferry_parts_work(job, 1, 2, false, &wanted, NULL), 2);
	assert_int_equal(atomic_load(&job->slices), 0);
	assert_int_equal(ferry_parts_work(job, 1, 4, false, &wanted, NULL), 4); /* the others' */
	assert_int_equal(atomic_load(&job->slices), 1);
	/* its own of the last one ends what it may do unasked */
	assert_int_equal(ferry_parts_work(job, 1, 1000, false, &wanted, NULL), 14);
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 4);
	assert_int_equal(atomic_load(&job->slices), 4);
	assert_true(atomic_load(&job->working_ns) > 0 && atomic_load(&job->working_ns) <= atomic_load(&job->calls_ns));
	close_lone_job(job);
}

static void wait_until_finished(struct ferry_arena *arena)
{
	struct ferry_doorbell *bell = &arena->rank_lines[0].d2h;
	while (1) {
		uint32_t seen = ferry_doorbell_prepare(bell);
		if (atomic_load_explicit(&arena->header->finished[SEQ % FERRY_PARITIES], memory_order_acquire) == SEQ)
			break;
		ferry_doorbell_wait(bell, seen, -1);
	}
	ferry_doorbell_cancel(bell);
}

/* To wake up takes longer than a part does: the workers wanted are known before the first part is begun. */
static void who_will_be_wanted_is_told_before_any_part(void **state)
{
	(void)state;
	struct ferry_job *job = open_lone_job(64 << 10, 64 << 10, 3);
	uint32_t wanted = 0;
	assert_int_equal(ferry_parts_work(job, 1, 0, false, &wanted, NULL), 0);
	assert_int_equal(wanted, 3);
	assert_int_equal(atomic_load(&job->working_ns), 0);
	assert_int_equal(ferry_parts_work(job, 1, 1000, true, &wanted, NULL), 12);
	close_lone_job(job);
}

static void a_call_that_a_rank_announces_is_expected_once(void **state)
{
	(void)state;
	struct ferry_job *job = open_lone_job(64 << 10, 64 << 10, 3);
	struct ferry_rank_line *lines = job->shared.arenas[0].rank_lines;
	assert_false(ferry_job_expects(job));
	atomic_store(&lines[0].announced, SEQ);
	assert_true(ferry_job_expects(job));
	assert_false(ferry_job_expects(job));
	atomic_store(&lines[1].announced, SEQ); /* the same call */
	assert_false(ferry_job_expects(job));
	atomic_store(&lines[0].announced, SEQ + 1);
	atomic_store(&job->dead, 1);
	assert_false(ferry_job_expects(job));
	close_lone_job(job);
}

struct job_thread {
	struct ferry_workers *workers;
	struct ferry_job *job;
	pthread_t thread;
};

static void *attend(void *argument)
{
	const struct job_thread *job_thread = argument;
	struct ferry_idle idle;
	ferry_idle_open(&idle, &job_thread->workers->spin);
	ferry_workers_attend(job_thread->workers, job_thread->job, &idle);
	ferry_idle_close(&idle);
	return NULL;
}

static void attend_both(struct job_thread job_threads[2], struct ferry_workers *workers, struct ferry_job *first,
                        struct ferry_job *second)
{
	job_threads[0] = (struct job_thread){.workers = workers, .job = first};
	job_threads[1] = (struct job_thread){.workers = workers, .job = second};
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&job_threads[i].thread, NULL, attend, &job_threads[i]), 0);
}

/*
 * Slices of the long call that were done when the short one, of another job, was over. One worker at a time, two that
 * would.
 */
static uint64_t done_of_the_long_call(const struct ferry_layout *none)
{
	static struct ferry_workers workers;
	struct ferry_job *brief = open_lone_job(64 << 10, 64 << 10, 2), *lengthy = open_lone_job(4 << 20, 16 << 10, 0);
	struct ferry_arena *arena = &brief->shared.arenas[0];
	struct job_thread job_threads[2];
	assert_int_equal(ferry_workers_start(&workers, none, 0, 1, 300, false, NULL), ferrySuccess);
	ferry_workers_add_job(&workers, brief);
	ferry_workers_add_job(&workers, lengthy);
	attend_both(job_threads, &workers, lengthy, brief);
	wait_until_finished(arena);
	uint64_t done = atomic_load(&lengthy->slices);
	for (int i = 0; i < 2; i++)
		pthread_join(job_threads[i].thread, NULL);
	assert_int_equal(atomic_load(&lengthy->slices), 1024);
	ferry_workers_remove_job(&workers, brief);
	ferry_workers_remove_job(&workers, lengthy);
	ferry_workers_stop(&workers);
	close_lone_job(brief);
	close_lone_job(lengthy);
	return done;
}

/*
 * A queue whose worker is not let in is not left until all other jobs have nothing to do. The test may be late: it
 * tries again.
 */
static void parts_of_a_worker_without_a_place_are_done_beside_a_busy_job(void **state)
{
	(void)state;
	static const struct ferry_layout none;
	uint64_t done = 1024;
	for (int attempt = 0; attempt < 200 && done == 1024; attempt++)
		done = done_of_the_long_call(&none);
	assert_in_range(done, 0, 1023);
}

struct watch {
	struct ferry_job *watched, *attended;
	uint64_t enough; /* slices of the watched job's, after which the attended one is dead */
};

static void *watch_slices(void *argument)
{
	const struct watch *watch = argument;
	while (atomic_load(&watch->watched->slices) < watch->enough)
		ferry_relax();
	atomic_store(&watch->attended->dead, 1);
	return NULL;
}

/*
 * What the first job has of the bytes done, in percent, while both have more than enough: one worker attends a third
 * job, without calls, and stops after the turn in which that is dead. slice: the second one's. -1: too late, as a call
 * was over.
 */
static int part_of_the_first(const struct ferry_layout *none, const uint32_t weights[2], uint32_t slice)
{
	static struct ferry_workers workers;
	struct ferry_job *jobs[] = {open_lone_job(4 << 20, 16 << 10, 0), open_lone_job(4 << 20, slice, 0),
	                            open_lone_job(64 << 10, 64 << 10, 0)};
	/* late enough for the slice that the second one is at, which does not count yet, to be little of all */
	struct watch watch = {jobs[0], jobs[2], weights[0] < weights[1] ? 256 : 700};
	struct job_thread job_thread = {.workers = &workers, .job = jobs[2]};
	for (uint32_t rank = 0; rank < 2; rank++)
		atomic_store(&jobs[2]->shared.arenas[0].rank_lines[rank].ring[SEQ % FERRY_PARITIES].seq, 0);
	assert_int_equal(ferry_workers_start(&workers, none, 0, 1, 0, false, NULL), ferrySuccess);
	for (int i = 2; i >= 0; i--)
		ferry_workers_add_job(&workers, jobs[i]);
	for (int i = 0; i < 2; i++)
		atomic_store(&jobs[i]->weight, weights[i]);
	pthread_t watcher;
	assert_int_equal(pthread_create(&watcher, NULL, watch_slices, &watch), 0);
	attend(&job_thread);
	pthread_join(watcher, NULL);
	uint64_t first = atomic_load(&jobs[0]->bytes), second = atomic_load(&jobs[1]->bytes), all = 3 * (16u << 20);
	for (int i = 0; i < 3; i++) {
		ferry_workers_remove_job(&workers, jobs[i]);
		close_lone_job(jobs[i]);
	}
	ferry_workers_stop(&workers);
	return first == all || second == all ? -1 : (int)(100 * first / (first + second));
}

static void jobs_with_work_have_turns_by_their_weights(void **state)
{
	static const struct ferry_layout none;
	static const struct {
		uint32_t weights[2], slice;
		int percent;
	} cases[] = {{{1, 1}, 16 << 10, 50},
	             {{3, 1}, 16 << 10, 75},
	             {{1, 3}, 16 << 10, 25},
	             {{2, 6}, 16 << 10, 25},
	             {{1, 1}, 512 << 10, 50}, /* whose parts are longer */
	             {{3, 1}, 512 << 10, 75}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		int percent = -1;
		for (int attempt = 0; attempt < 100 && percent < 0; attempt++)
			percent = part_of_the_first(&none, cases[i].weights, cases[i].slice);
		if (percent < cases[i].percent - 3 || percent > cases[i].percent + 3)
			fail_msg("weights %u and %u, slices of %u bytes: %d%% are the first one's",
			         cases[i].weights[0], cases[i].weights[1], cases[i].slice, percent);
	}
}

/*
 * Two job threads for one place, which its holder keeps for LONG_US beyond the last part: neither is waited for so
 * long.
 */
static void who_ends_a_job_does_not_wait_until_its_job_thread_is_idle(void **state)
{
	(void)state;
	static struct ferry_workers workers;
	static const struct ferry_layout none;
	struct ferry_job *jobs[2] = {open_lone_job(64 << 10, 64 << 10, 2), open_lone_job(64 << 10, 64 << 10, 2)};
	struct job_thread job_threads[2];
	assert_int_equal(ferry_workers_start(&workers, &none, 0, 1, LONG_US, false, NULL), ferrySuccess);
	for (int i = 0; i < 2; i++)
		ferry_workers_add_job(&workers, jobs[i]);
	attend_both(job_threads, &workers, jobs[0], jobs[1]);
	for (int i = 0; i < 2; i++) /* by the thread that came first */
		wait_until_finished(&jobs[i]->shared.arenas[0]);
	uint64_t start = ferry_now_ns();
	for (int i = 1; i >= 0; i--) { /* one of them waits for the place, the other has it */
		atomic_store(&jobs[i]->dead, 1);
		ferry_workers_release(&workers);
		pthread_join(job_threads[i].thread, NULL);
	}
	assert_in_range(ferry_now_ns() - start, 0, 50000000000);
	for (int i = 0; i < 2; i++) {
		ferry_workers_remove_job(&workers, jobs[i]);
		close_lone_job(jobs[i]);
	}
	ferry_workers_stop(&workers);
}

/* One of its plans was freed while somebody worked for another: he does not wait until that one has nothing left. */
static void a_job_is_seen_again_after_a_plan_of_it_was_freed(void **state)
{
	(void)state;
	static struct ferry_workers workers;
	static const struct ferry_layout none;
	for (int trial = 0; trial < 50; trial++) {
		struct ferry_job *busy = open_lone_job(64 << 10, 64 << 10, 2),
		                 *other = open_lone_job(64 << 10, 64 << 10, 2);
		struct ferry_arena *arenas[] = {&busy->shared.arenas[0], &other->shared.arenas[0]};
		struct ferry_plan *plan = plan_of(other), *copy = malloc(plan->bytes);
		assert_non_null(copy);
		memcpy(copy, plan, plan->bytes);
		struct job_thread job_threads[] = {{.workers = &workers, .job = busy},
		                                   {.workers = &workers, .job = other}};
		for (uint32_t rank = 0; rank < 2; rank++) /* it comes later */
			atomic_store(&arenas[1]->rank_lines[rank].ring[SEQ % FERRY_PARITIES].seq, 0);
		assert_int_equal(ferry_workers_start(&workers, &none, 0, 1, LONG_US, false, NULL), ferrySuccess);
		ferry_workers_add_job(&workers, busy);
		ferry_workers_add_job(&workers, other);
		assert_int_equal(pthread_create(&job_threads[0].thread, NULL, attend, &job_threads[0]), 0);
		wait_until_finished(arenas[0]);
		assert_int_equal(ferry_job_plans_drop(&other->plans, 0, copy->hash, false), ferrySuccess);
		ferry_workers_free_retired(&workers, other);
		assert_int_equal(ferry_job_add_plan(other, 0, copy, copy->bytes), ferrySuccess);
		put_call(&other->shared, copy);
		free(copy);
		uint64_t start = ferry_now_ns();
		assert_int_equal(pthread_create(&job_threads[1].thread, NULL, attend, &job_threads[1]), 0);
		/* by the first one's job thread, which holds the only place for LONG_US */
		wait_until_finished(arenas[1]);
		assert_in_range(ferry_now_ns() - start, 0, 50000000000);
		atomic_store(&busy->dead, 1);
		atomic_store(&other->dead, 1);
		ferry_workers_release(&workers);
		for (int i = 0; i < 2; i++)
			pthread_join(job_threads[i].thread, NULL);
		ferry_workers_remove_job(&workers, busy);
		ferry_workers_remove_job(&workers, other);
		ferry_workers_stop(&workers);
		close_lone_job(busy);
		close_lone_job(other);
	}
}

/* The plans of the 33rd of the jobs that a worker goes round in groups are being freed. */
static void a_worker_stays_for_the_jobs_before_one_that_is_closed(void **state)
{
	(void)state;
	static struct ferry_workers workers;
	static const struct ferry_layout none;
	struct ferry_job *jobs[33];
	struct ferry_idle idle;
	assert_int_equal(ferry_workers_start(&workers, &none, 0, 1, 0, false, NULL), ferrySuccess);
	for (uint32_t i = 0; i < 33; i++) { /* the first one comes to be the last of the list */
		jobs[i] = open_lone_job(i == 1 ? 4 << 20 : 1 << 10, 16 << 10, 0);
		ferry_workers_add_job(&workers, jobs[i]);
	}
	jobs[0]->closed = true;
	ferry_idle_open(&idle, &workers.spin);
	ferry_workers_attend(&workers, jobs[2], &idle);
	ferry_idle_close(&idle);
	assert_int_equal(atomic_load(&jobs[1]->slices), 1024);
	assert_int_equal(atomic_load(&jobs[0]->slices), 0);
	for (uint32_t i = 0; i < 33; i++) {
		ferry_workers_remove_job(&workers, jobs[i]);
		close_lone_job(jobs[i]);
	}
	ferry_workers_stop(&workers);
}

/* Each job thread and helper would look for LONG_US. */
static void nobody_looks_for_work_while_cpus_are_short(void **state)
{
	(void)state;
	static struct ferry_workers workers;
	static const struct ferry_layout none;
	struct ferry_job *job = open_lone_job(64 << 10, 64 << 10, 2);
	uint64_t start = ferry_now_ns();
	assert_int_equal(ferry_workers_start(&workers, &none, 0, 2, LONG_US, false, NULL), ferrySuccess);
	atomic_store(&workers.spin.rest_until, start + 600000000000);
	ferry_workers_add_job(&workers, job);
	struct ferry_idle idle;
	ferry_idle_open(&idle, &workers.spin);
	ferry_workers_attend(&workers, job, &idle);
	ferry_idle_close(&idle);
	wait_until_finished(&job->shared.arenas[0]);
	ferry_workers_remove_job(&workers, job); /* waits for the helper */
	ferry_workers_stop(&workers);
	assert_in_range(ferry_now_ns() - start, 0, 50000000000);
	close_lone_job(job);
}

/* Of an AllToAllv of three ranks, that reach each other by peer memory. */
static void a_division_is_one_part_however_many_workers_there_are(void **state)
{
	static const uint8_t key[FERRY_KEY_BYTES];
	static struct ferry_network network;
	const struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 3, .staging = 64u << 20, .node = -1};
	const struct ferry_topology topology = {.nranks = 3, .ndomains = 1};
	struct ferry_compile_options options = {.type = ferryUint8, .redop = ferrySum, .network = &network};
	struct ferry_program *program;
	struct ferry_plan *plan;
	struct ferry_works works;
	struct ferry_job *job;
	(void)state;
	assert_int_equal(ferry_job_new(key, &shape, 16, &job), ferrySuccess);
	options.staging[0] = job->shared.arenas[0].staging_bytes;
	for (uint32_t pair = 0; pair < 9; pair++)
		network.links.speed[pair / 3][pair % 3] = pair / 3 != pair % 3;
	assert_int_equal(ferry_program_synthesize_paths(&topology, &network, options.staging, 0, &program),
	                 ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &plan), ferrySuccess);
	ferry_program_free(program);
	for (uint32_t workers = 1; workers <= 16; workers *= 4) {
		assert_int_equal(ferry_works_find(&works, plan, &job->shared, 0, workers), ferrySuccess);
		assert_non_null(works.division);
		assert_int_equal(ferry_works_arm(&works, plan, SEQ % FERRY_PARITIES, SEQ, false), 1);
		ferry_works_free(&works);
	}
	free(plan);
	close_lone_job(job);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_worker_does_its_own_parts_first_and_those_of_others_when_it_may),
	        cmocka_unit_test(workers_do_not_believe_the_counters_that_they_publish),
	        cmocka_unit_test(a_successor_sums_what_is_not_published_and_nothing_else),
	        cmocka_unit_test(a_successor_ends_a_call_of_which_all_is_published),
	        cmocka_unit_test(long_parts_of_an_older_slice_go_before_newer_ones_of_its_own),
	        cmocka_unit_test(who_will_be_wanted_is_told_before_any_part),
	        cmocka_unit_test(a_call_that_a_rank_announces_is_expected_once),
	        cmocka_unit_test(parts_of_a_worker_without_a_place_are_done_beside_a_busy_job),
	        cmocka_unit_test(jobs_with_work_have_turns_by_their_weights),
	        cmocka_unit_test(who_ends_a_job_does_not_wait_until_its_job_thread_is_idle),
	        cmocka_unit_test(a_job_is_seen_again_after_a_plan_of_it_was_freed),
	        cmocka_unit_test(a_worker_stays_for_the_jobs_before_one_that_is_closed),
	        cmocka_unit_test(nobody_looks_for_work_while_cpus_are_short),
	        cmocka_unit_test(a_division_is_one_part_however_many_workers_there_are),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
