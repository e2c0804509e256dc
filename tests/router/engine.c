/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the router to its jobs: it reduces what the ranks publish, serves several jobs at once, trusts no rank,
 * and tells why it refuses. The ranks here are played by hand, so that they can lie.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/endpoint.h"
#include "ipc/publish.h"
#include "rank-lib/program/program.h"
#include "router/daemon/sigbus.h"
#include "router/daemon/job.h"

#include <signal.h>
#include <sys/socket.h>

#define MOST 4

/* A job of up to MOST ranks, all played by the test. */
struct job {
	uint32_t nranks;
	uint8_t key[FERRY_KEY_BYTES];
	int sockets[MOST];
	struct ferry_job_arenas shared;
	struct ferry_plan *plan;
};

static ferryResult_t attach(const struct job *job, uint32_t rank, int *connection, int *descriptor)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .rank = rank,
	                                       .nranks = job->nranks,
	                                       .ndomains = 1,
	                                       .staging = 1 << 20};
	memcpy(message.key, job->key, sizeof message.key);
	ferryResult_t result = ferry_endpoint_connect(path, connection);
	return result ? result : ferry_attach_call(*connection, &message, NULL, descriptor);
}

static void open_job(struct job *job, uint32_t nranks, uint8_t name)
{
	memset(job, 0, sizeof *job);
	job->nranks = job->shared.nranks = nranks;
	job->shared.ndomains = 1;
	memset(job->key, name, sizeof job->key);
	for (uint32_t rank = 0; rank < nranks; rank++) {
		int descriptor;
		assert_int_equal(attach(job, rank, &job->sockets[rank], &descriptor), ferrySuccess);
		if (rank)
			close(descriptor);
		else
			assert_int_equal(ferry_arena_map(descriptor, &job->shared.arenas[0]), ferrySuccess);
	}
	struct ferry_attach_message ready = {.kind = FERRY_ATTACH_READY};
	assert_int_equal(ferry_attach_call(job->sockets[0], &ready, NULL, NULL), ferrySuccess);
}

static ferryResult_t give_plan_as(struct job *job, uint32_t rank)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = job->plan->bytes};
	return ferry_attach_call(job->sockets[rank], &message, job->plan, NULL);
}

static ferryResult_t give_plan(struct job *job)
{
	return give_plan_as(job, 0);
}

static ferryResult_t drop_plan(struct job *job, uint32_t rank, uint64_t hash)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_DROP, .hash = hash};
	return ferry_attach_call(job->sockets[rank], &message, NULL, NULL);
}

static void make_plan(struct job *job, uint64_t count)
{
	struct ferry_topology topology = {.nranks = job->nranks, .ndomains = 1};
	struct ferry_program *program;
	struct ferry_compile_options options = {.count = count,
	                                        .type = ferryInt32,
	                                        .redop = ferrySum,
	                                        .slice = 256,
	                                        .window = 2};
	options.staging[0] = job->shared.arenas[0].staging_bytes;
	assert_int_equal(ferry_program_synthesize(FERRY_ALLREDUCE, &topology, 0, &program), ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &job->plan), ferrySuccess);
	ferry_program_free(program);
}

static void close_job(struct job *job)
{
	for (uint32_t rank = 0; rank < job->nranks; rank++) {
		struct ferry_attach_message leave = {.kind = FERRY_ATTACH_DETACH};
		if (job->sockets[rank] >= 0)
			ferry_attach_call(job->sockets[rank], &leave, NULL, NULL);
	}
	for (uint32_t rank = 0; rank < job->nranks; rank++)
		if (job->sockets[rank] >= 0)
			close(job->sockets[rank]);
	ferry_arena_unmap(&job->shared.arenas[0]);
	free(job->plan);
}

static void submit(struct job *job, uint32_t rank, uint64_t seq, uint64_t hash, uint64_t count)
{
	struct ferry_descriptor *descriptor = &job->shared.arenas[0].rank_lines[rank].ring[seq % FERRY_PARITIES];
	struct ferry_descriptor_fields fields = {.plan_hash = hash, .count = count, .domains = 1,
	                                         .shape = FERRY_ALLREDUCE | ferryInt32 << 8};
	ferry_descriptor_write(descriptor, seq, &fields);
	ferry_doorbell_ring(&job->shared.arenas[0].header->router);
}

/* Waits, with the doorbell of a lane, until the counter has so many slices or the job has failed. */
static bool wait_slices(struct job *job, const struct ferry_instr *instr, uint64_t seq, uint32_t slices)
{
	struct ferry_arena *arena = &job->shared.arenas[0];
	struct ferry_counter *counter = &arena->counters[seq % FERRY_PARITIES][instr->counter];
	struct ferry_doorbell *bell = &arena->rank_lines[0].h2d;
	while (1) {
		uint32_t seen = ferry_doorbell_prepare(bell);
		bool there = ferry_counter_slices(atomic_load_explicit(&counter->value, memory_order_acquire), seq) >=
		             slices;
		if (there || atomic_load(&arena->header->failed)) {
			ferry_doorbell_cancel(bell);
			return there;
		}
		ferry_doorbell_wait(bell, seen, -1);
	}
}

/* Plays all lanes of one AllReduce, slice by slice, from `first` on: rank r's element i is 1000 * r + i. */
static void play_slices(struct job *job, uint64_t seq, uint64_t count, uint32_t first, uint32_t nslices)
{
	struct ferry_arena *arena = &job->shared.arenas[0];
	const struct ferry_plan *plan = job->plan;
	const struct ferry_instr *instrs = ferry_plan_instrs(plan), *reduce = NULL;
	uint32_t parity = seq % FERRY_PARITIES, per_slice = plan->slice / 4;
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (instrs[i].opcode == FERRY_REDUCE)
			reduce = &instrs[i];
	assert_non_null(reduce);
	assert_int_equal(reduce->nsources, job->nranks);
	for (uint32_t slice = first; slice - first < nslices && slice < reduce->nslices; slice++) {
		for (uint32_t i = 0; i < plan->ninstrs; i++) {
			if (instrs[i].opcode != FERRY_D2H)
				continue;
			int32_t *slot = (int32_t *)(arena->staging[parity] + instrs[i].window_offset +
			                            slice % plan->window * plan->slice);
			for (uint32_t k = 0; k < per_slice; k++)
				slot[k] = (int32_t)(1000 * instrs[i].owner + slice * per_slice + k);
			ferry_publish(&job->shared, &instrs[i], &arena->counters[parity][instrs[i].counter], seq,
			              slice + 1);
		}
		assert_true(wait_slices(job, reduce, seq, slice + 1));
		const int32_t *sum = (const int32_t *)(arena->staging[parity] + reduce->window_offset +
		                                       slice % plan->window * plan->slice);
		for (uint32_t k = 0; k < per_slice && slice * per_slice + k < count; k++) {
			int32_t wanted = 0;
			for (uint32_t rank = 0; rank < job->nranks; rank++)
				wanted += (int32_t)(1000 * rank + slice * per_slice + k);
			assert_int_equal(sum[k], wanted);
		}
		for (uint32_t i = 0; i < plan->ninstrs; i++)
			if (instrs[i].opcode == FERRY_H2D)
				ferry_publish(&job->shared, &instrs[i], &arena->counters[parity][instrs[i].counter],
				              seq, slice + 1);
	}
}

static void play_call(struct job *job, uint64_t seq, uint64_t count)
{
	play_slices(job, seq, count, 0, UINT32_MAX);
}

static void wait_finished(struct job *job, uint64_t seq)
{
	struct ferry_arena *arena = &job->shared.arenas[0];
	struct ferry_doorbell *bell = &arena->rank_lines[0].d2h;
	while (1) {
		uint32_t seen = ferry_doorbell_prepare(bell);
		if (atomic_load_explicit(&arena->header->finished[seq % FERRY_PARITIES], memory_order_acquire) >= seq)
			break;
		ferry_doorbell_wait(bell, seen, -1);
	}
	ferry_doorbell_cancel(bell);
}

static void run_calls_from(struct job *job, uint64_t count, uint64_t first, uint64_t calls)
{
	for (uint64_t seq = first; seq < first + calls; seq++) {
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			submit(job, rank, seq, job->plan->hash, count);
		play_call(job, seq, count);
		wait_finished(job, seq);
		for (uint32_t rank = 0; rank < job->nranks; rank++)
			atomic_store(&ferry_rank_line(&job->shared, rank)->finished[seq % FERRY_PARITIES], seq);
	}
}

static void run_calls(struct job *job, uint64_t count, uint64_t calls)
{
	run_calls_from(job, count, 1, calls);
}

static void the_router_sums_every_slice_of_call_after_call(void **state)
{
	(void)state;
	struct job job;
	open_job(&job, 3, 1);
	make_plan(&job, 1000);
	assert_int_equal(give_plan(&job), ferrySuccess);
	run_calls(&job, 1000, 50);
	close_job(&job);
}

static void two_jobs_run_at_once_and_one_failing_leaves_the_other_alone(void **state)
{
	(void)state;
	struct job first, second;
	open_job(&first, 2, 1);
	open_job(&second, 4, 2);
	make_plan(&first, 500);
	make_plan(&second, 700);
	assert_int_equal(give_plan(&first), ferrySuccess);
	assert_int_equal(give_plan(&second), ferrySuccess);
	run_calls(&first, 500, 3);
	shutdown(first.sockets[1], SHUT_RDWR); /* dies without leaving */
	while (!atomic_load(&first.shared.arenas[0].header->failed))
		ferry_futex_wait(&first.shared.arenas[0].header->failed, 0, 1000, true);
	assert_non_null(strstr(first.shared.arenas[0].header->failure.message, "rank 1 of 2"));
	run_calls(&second, 700, 5);
	assert_int_equal(atomic_load(&second.shared.arenas[0].header->failed), 0);
	close_job(&first);
	close_job(&second);
}

/* As a rank that would keep the others from hearing of it. */
static void a_failure_that_is_wiped_out_is_said_again(void **state)
{
	(void)state;
	struct job job;
	open_job(&job, 2, 1);
	struct ferry_arena_header *header = job.shared.arenas[0].header;
	shutdown(job.sockets[1], SHUT_RDWR); /* dies without leaving */
	while (!atomic_load(&header->failed))
		ferry_futex_wait(&header->failed, 0, 1000, true);
	atomic_store(&header->failure.state, 0);
	memset(header->failure.message, 0, sizeof header->failure.message);
	atomic_store(&header->failed, 0);
	for (int waited = 0; !atomic_load(&header->failed) && waited < 60000; waited++)
		ferry_futex_wait(&header->failed, 0, 1000, true);
	assert_int_equal(atomic_load(&header->failed), 1);
	assert_int_equal(atomic_load(&header->failure.state), 1);
	assert_non_null(strstr(header->failure.message, "rank 1 of 2"));
	close_job(&job);
}

/* A plan that the router's last workers must leave to its first. */
static void leave_to_the_first_worker(struct ferry_plan *plan)
{
	plan->flags |= FERRY_PLAN_DMA;
	plan->workers = 1;
	plan->hash = ferry_plan_hash(plan);
}

#define CROWD 128

/*
 * More than a worker looks at in one go, and multiples of it: a call in any of them is run while all the others rest.
 */
static void each_of_many_jobs_is_served_while_the_others_rest(void **state)
{
	static struct job jobs[CROWD];
	static const uint32_t crowds[] = {33, 64, CROWD};
	(void)state;
	uint32_t open = 0;
	for (size_t i = 0; i < sizeof crowds / sizeof *crowds; i++) {
		for (; open < crowds[i]; open++) {
			open_job(&jobs[open], 1, (uint8_t)(open + 1));
			make_plan(&jobs[open], 100);
			if (open % 2)
				leave_to_the_first_worker(jobs[open].plan);
			assert_int_equal(give_plan(&jobs[open]), ferrySuccess);
		}
		for (uint32_t j = 0; j < open; j++)
			run_calls_from(&jobs[j], 100, 1 + 2 * i, 2);
	}
	for (uint32_t j = 0; j < open; j++)
		close_job(&jobs[j]);
}

/* Whose arenas have no seals. */
static int start_posix_router(void **state)
{
	setenv("FERRY_SHM", "posix", 1);
	int failed = start_router(state);
	unsetenv("FERRY_SHM");
	return failed;
}

static void a_rank_that_cuts_its_arena_short_harms_its_own_job_alone(void **state)
{
	(void)state;
	struct job cut, good;
#if defined(__SANITIZE_THREAD__)
	skip(); /* the page is replaced under threads that use it, which is the point */
#endif
	assert_int_equal(ferry_sigbus_install(), ferrySuccess);
	open_job(&cut, 2, 1);
	open_job(&good, 2, 2);
	make_plan(&good, 700);
	assert_int_equal(give_plan(&good), ferrySuccess);
	assert_int_equal(ftruncate(cut.shared.arenas[0].descriptor, 0), 0);
	shutdown(cut.sockets[1], SHUT_RDWR); /* makes the router write to the arena: the job has failed */
	char text[512];
	do
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	while (!strstr(text, "failed=1"));
	run_calls(&good, 700, 5);
	close_job(&good);
	for (int rank = 0; rank < 2; rank++)
		close(cut.sockets[rank]);
	ferry_arena_unmap(&cut.shared.arenas[0]);
	/* The router looks at the arena as long as it has the job; cmocka has the signal again behind the test. */
	stop_router(state);
	signal(SIGBUS, SIG_DFL);
	start_posix_router(state);
}

static void ranks_that_disagree_fail_their_job_by_name(void **state)
{
	(void)state;
	struct job job;
	open_job(&job, 3, 1);
	make_plan(&job, 100);
	assert_int_equal(give_plan(&job), ferrySuccess);
	submit(&job, 0, 1, job.plan->hash, 100);
	submit(&job, 1, 1, job.plan->hash, 100);
	submit(&job, 2, 1, job.plan->hash, 99);
	const struct ferry_instr *any = ferry_plan_instrs(job.plan);
	assert_false(wait_slices(&job, any, 1, 1));
	const struct ferry_failure *failure = &job.shared.arenas[0].header->failure;
	assert_int_equal(failure->code, ferryInvalidUsage);
	assert_non_null(strstr(failure->message, "rank 2"));
	assert_non_null(strstr(failure->message, "99"));
	assert_non_null(strstr(failure->message, "100"));
	close_job(&job);
}

static void a_descriptor_that_names_no_known_plan_fails_its_job_alone(void **state)
{
	(void)state;
	for (int bit = 0; bit < 64; bit++) {
		struct job job;
		open_job(&job, 1, 1);
		make_plan(&job, 100);
		assert_int_equal(give_plan(&job), ferrySuccess);
		submit(&job, 0, 1, job.plan->hash ^ 1ull << bit, 100);
		assert_false(wait_slices(&job, ferry_plan_instrs(job.plan), 1, 1));
		assert_int_equal(job.shared.arenas[0].header->failure.code, ferryInternalError);
		close_job(&job);
	}
}

static void a_corrupted_plan_is_refused_and_the_job_lives_on(void **state)
{
	(void)state;
	struct job job;
	open_job(&job, 3, 1);
	make_plan(&job, 1000);
	unsigned char *bytes = (unsigned char *)job.plan;
	for (uint64_t at = 0; at < job.plan->bytes; at += 13) {
		uint64_t length = job.plan->bytes;
		bytes[at] ^= 0x41;
		struct ferry_attach_message message = {.kind = FERRY_ATTACH_PLAN, .payload = length};
		bytes[at] ^= 0x41;
		unsigned char *copy = malloc(length);
		memcpy(copy, bytes, length);
		copy[at] ^= 0x41;
		assert_int_equal(ferry_attach_call(job.sockets[0], &message, copy, NULL), ferryProgramError);
		free(copy);
	}
	assert_int_equal(give_plan(&job), ferrySuccess);
	run_calls(&job, 1000, 2);
	close_job(&job);
}

static void a_plan_for_other_ranks_is_refused(void **state)
{
	(void)state;
	struct job job, other;
	open_job(&job, 2, 1);
	open_job(&other, 3, 2);
	make_plan(&other, 100);
	job.plan = other.plan;
	assert_int_equal(give_plan(&job), ferryProgramError);
	assert_non_null(strstr(ferry_last_message(), "3 ranks"));
	job.plan = NULL;
	close_job(&job);
	close_job(&other);
}

/* ---- what a job keeps ---- */

static void a_call_finds_no_plan(struct job *job, uint64_t seq)
{
	for (uint32_t rank = 0; rank < job->nranks; rank++)
		submit(job, rank, seq, job->plan->hash, job->plan->count);
	assert_false(wait_slices(job, ferry_plan_instrs(job->plan), seq, 1));
	assert_int_equal(job->shared.arenas[0].header->failure.code, ferryInternalError);
	assert_non_null(strstr(job->shared.arenas[0].header->failure.message, "which this router does not have"));
}

static void a_plan_stays_for_as_long_as_a_rank_holds_it(void **state)
{
	(void)state;
	struct job job;
	char hash[24];
	open_job(&job, 3, 1);
	make_plan(&job, 300);
	snprintf(hash, sizeof hash, "%016llx", (unsigned long long)job.plan->hash);
	assert_int_equal(drop_plan(&job, 0, job.plan->hash), ferryInvalidUsage);
	assert_int_equal(give_plan_as(&job, 0), ferrySuccess);
	assert_int_equal(give_plan_as(&job, 0), ferrySuccess); /* holds it once */
	assert_int_equal(give_plan_as(&job, 2), ferrySuccess);
	assert_int_equal(drop_plan(&job, 1, job.plan->hash), ferryInvalidUsage);
	assert_non_null(strstr(ferry_last_message(), "rank 1"));
	assert_non_null(strstr(ferry_last_message(), hash));
	assert_int_equal(drop_plan(&job, 0, job.plan->hash), ferrySuccess);
	assert_int_equal(drop_plan(&job, 0, job.plan->hash), ferryInvalidUsage);
	run_calls(&job, 300, 3);
	assert_int_equal(drop_plan(&job, 2, job.plan->hash), ferrySuccess);
	assert_int_equal(give_plan_as(&job, 1), ferrySuccess); /* as if it had never been there */
	run_calls_from(&job, 300, 4, 3);
	assert_int_equal(drop_plan(&job, 1, job.plan->hash), ferrySuccess);
	a_call_finds_no_plan(&job, 7);
	close_job(&job);
}

static void a_plan_too_many_is_refused_with_the_numbers_until_one_is_dropped(void **state)
{
	(void)state;
	struct job job;
	static uint64_t hashes[FERRY_MAX_PLANS];
	struct ferry_plan *first = NULL;
	open_job(&job, 1, 1);
	for (uint32_t i = 0; i < FERRY_MAX_PLANS; i++) {
		make_plan(&job, i + 1);
		assert_int_equal(give_plan(&job), ferrySuccess);
		hashes[i] = job.plan->hash;
		if (i)
			free(job.plan);
		else
			first = job.plan;
	}
	make_plan(&job, FERRY_MAX_PLANS + 1);
	assert_int_equal(give_plan(&job), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "has 4096 plans"));
	assert_int_equal(drop_plan(&job, 0, hashes[FERRY_MAX_PLANS / 2]), ferrySuccess);
	assert_int_equal(give_plan(&job), ferrySuccess);
	run_calls(&job, FERRY_MAX_PLANS + 1, 1);
	free(job.plan);
	job.plan = first;
	assert_int_equal(give_plan(&job), ferrySuccess); /* is there already */
	run_calls_from(&job, 1, 2, 1);
	close_job(&job);
}

/* What ferry_plan_hash has come to before the word at `offset`. */
static uint64_t hash_until(const struct ferry_plan *plan, size_t offset)
{
	uint64_t hash = 0x9e3779b97f4a7c15ull ^ plan->bytes, word;
	for (size_t at = 0; at < offset; at += 8) {
		memcpy(&word, (const char *)plan + at, 8);
		hash = (hash ^ (at == offsetof(struct ferry_plan, hash) ? 0 : word)) * 0xff51afd7ed558ccdull;
		hash ^= hash >> 32;
	}
	return hash;
}

/* Two plans of one hash can be made on purpose: but for COPYs nobody reads user_destination. */
static void another_plan_of_a_hash_that_is_there_is_refused(void **state)
{
	(void)state;
	struct job job, other;
	open_job(&job, 2, 1);
	other = job;
	make_plan(&job, 300);
	make_plan(&other, 300);
	struct ferry_instr *instrs = (struct ferry_instr *)((char *)other.plan + other.plan->instrs_at);
	size_t second = (size_t)((char *)&instrs[1].user_destination - (char *)other.plan);
	assert_true(second % 8 == 0 && instrs[0].opcode == FERRY_D2H && instrs[1].opcode == FERRY_D2H);
	do { /* it may not be large */
		instrs[0].user_destination++;
		instrs[1].user_destination = hash_until(job.plan, second) ^ hash_until(other.plan, second);
	} while (instrs[1].user_destination > 1ull << 56);
	assert_true(ferry_plan_hash(other.plan) == job.plan->hash);
	assert_int_equal(give_plan(&job), ferrySuccess);
	assert_int_equal(give_plan_as(&other, 1), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "another plan"));
	assert_int_equal(drop_plan(&job, 1, job.plan->hash), ferryInvalidUsage); /* that gave it no hold on the first */
	run_calls(&job, 300, 2);
	free(other.plan);
	close_job(&job);
}

static void a_plan_dropped_while_its_call_runs_stays_until_that_is_over(void **state)
{
	(void)state;
	struct job job, other;
	open_job(&job, 2, 1);
	other = job;
	make_plan(&job, 1000);
	make_plan(&other, 500);
	assert_int_equal(give_plan(&job), ferrySuccess);
	for (uint32_t rank = 0; rank < 2; rank++)
		submit(&job, rank, 1, job.plan->hash, 1000);
	play_slices(&job, 1, 1000, 0, 3);
	assert_int_equal(drop_plan(&job, 0, job.plan->hash), ferrySuccess);
	for (int i = 0; i < 20; i++) { /* what is freed now is used by others */
		assert_int_equal(give_plan(&other), ferrySuccess);
		assert_int_equal(drop_plan(&job, 0, other.plan->hash), ferrySuccess);
	}
	play_slices(&job, 1, 1000, 3, 3);
	assert_int_equal(give_plan(&job), ferrySuccess); /* another copy: the first one is out of the table */
	for (uint32_t rank = 0; rank < 2; rank++)
		submit(&job, rank, 2, job.plan->hash, 1000);
	play_slices(&job, 2, 1000, 0, 5);
	assert_int_equal(drop_plan(&job, 0, job.plan->hash), ferrySuccess);
	play_slices(&job, 1, 1000, 6, UINT32_MAX);
	wait_finished(&job, 1);
	play_slices(&job, 2, 1000, 5, UINT32_MAX);
	wait_finished(&job, 2);
	a_call_finds_no_plan(&job, 3);
	free(other.plan);
	close_job(&job);
}

static void attaching_wrongly_is_refused_with_the_values(void **state)
{
	(void)state;
	struct job job, wrong;
	int connection, descriptor;
	open_job(&job, 2, 1);
	wrong = job;
	assert_int_equal(attach(&wrong, 1, &connection, &descriptor), ferryRefused); /* that rank is there already */
	assert_non_null(strstr(ferry_last_message(), "rank 1"));
	close(connection);
	wrong.nranks = 3;
	assert_int_equal(attach(&wrong, 2, &connection, &descriptor), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "2 ranks"));
	close(connection);
	close_job(&job);
}

static void draining_refuses_new_jobs_and_waits_for_the_old(void **state)
{
	(void)state;
	struct job job, late = {.nranks = 1, .key = {9}};
	int connection, descriptor;
	open_job(&job, 2, 1);
	make_plan(&job, 100);
	assert_int_equal(give_plan(&job), ferrySuccess);
	ferry_router_drain(router);
	assert_int_equal(attach(&late, 0, &connection, &descriptor), ferryRefused);
	assert_non_null(strstr(ferry_last_message(), "shutting down"));
	close(connection);
	run_calls(&job, 100, 2);
	close_job(&job);
	ferry_router_wait(router); /* returns, or ctest's timeout tells */
}

static void a_rank_that_comes_after_its_job_failed_hears_why(void **state)
{
	(void)state;
	struct job job = {.nranks = 2, .key = {5}};
	int first, second, descriptor;
	assert_int_equal(attach(&job, 0, &first, &descriptor), ferrySuccess);
	close(descriptor);
	assert_int_equal(attach(&job, 1, &second, &descriptor), ferrySuccess);
	assert_int_equal(ferry_arena_map(descriptor, &job.shared.arenas[0]), ferrySuccess);
	close(second); /* dies */
	while (!atomic_load(&job.shared.arenas[0].header->failed))
		ferry_futex_wait(&job.shared.arenas[0].header->attached,
		                 atomic_load(&job.shared.arenas[0].header->attached), 10000, true);
	struct ferry_attach_message ready = {.kind = FERRY_ATTACH_READY};
	assert_int_equal(ferry_attach_call(first, &ready, NULL, NULL), ferryRemoteError);
	assert_non_null(strstr(ferry_last_message(), "rank 1 of 2 died"));
	close(first);
	ferry_arena_unmap(&job.shared.arenas[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_router_sums_every_slice_of_call_after_call),
		TEST(two_jobs_run_at_once_and_one_failing_leaves_the_other_alone),
		TEST(a_failure_that_is_wiped_out_is_said_again),
		TEST(each_of_many_jobs_is_served_while_the_others_rest),
		cmocka_unit_test_setup_teardown(a_rank_that_cuts_its_arena_short_harms_its_own_job_alone,
		                                start_posix_router, stop_router),
		TEST(ranks_that_disagree_fail_their_job_by_name),
		TEST(a_descriptor_that_names_no_known_plan_fails_its_job_alone),
		TEST(a_corrupted_plan_is_refused_and_the_job_lives_on),
		TEST(a_plan_for_other_ranks_is_refused),
		TEST(a_plan_stays_for_as_long_as_a_rank_holds_it),
		TEST(a_plan_too_many_is_refused_with_the_numbers_until_one_is_dropped),
		TEST(another_plan_of_a_hash_that_is_there_is_refused),
		TEST(a_plan_dropped_while_its_call_runs_stays_until_that_is_over),
		TEST(attaching_wrongly_is_refused_with_the_values),
		TEST(draining_refuses_new_jobs_and_waits_for_the_old),
		TEST(a_rank_that_comes_after_its_job_failed_hears_why),
	};
	ferry_log_set_level(FERRY_LOG_ERROR);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
