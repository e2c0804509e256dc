/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a lane that several jobs share: its copy engine is theirs by their weights, and nobody is starved. The
 * engine is modelled: it copies nothing, and its time is how often the lane looks, whatever else keeps the machine
 * busy.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rank-lib/program/program.h"
#include "router/engine/lanes.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MOST     3
#define BYTES    (1ull << 30) /* that a job has to copy, in slices of 64 KiB */
#define LOOKS    4            /* that the engine takes for one */
#define ENOUGH   3000         /* copies, of all */

/* ---- the engine ---- */

static struct {
	struct ferry_copier base;
	_Atomic bool runs;          /* once all jobs have something under way */
	_Atomic uint32_t owners;    /* bit j: job j has */
	_Atomic uint64_t finished;  /* by the lane's thread */
	uint64_t looks;             /* the same: since the last one finished */
	uint8_t owner[ENOUGH];      /* by copy, of the first ones */
} engine;

static ferryResult_t queue_open(struct ferry_copier *copier, enum ferry_direction direction,
                                struct ferry_copy_queue *queue)
{
	*queue = (struct ferry_copy_queue){.copier = copier, .direction = direction};
	return ferrySuccess;
}

static void queue_close(struct ferry_copy_queue *queue)
{
	(void)queue;
}

/* Each job's destination has its number above the bytes. */
static ferryResult_t copy(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes,
                          uint64_t whole, bool crosses)
{
	uint64_t number = queue->started++;
	(void)source, (void)bytes, (void)whole, (void)crosses;
	uint8_t owner = (uint8_t)((uintptr_t)destination / (2 * BYTES) - 1);
	if (number < ENOUGH)
		engine.owner[number] = owner;
	atomic_fetch_or(&engine.owners, 1u << owner);
	return ferrySuccess;
}

static uint64_t finished(struct ferry_copy_queue *queue)
{
	uint64_t done = atomic_load(&engine.finished);
	if (atomic_load(&engine.runs) && done < queue->started && ++engine.looks % LOOKS == 0)
		atomic_store(&engine.finished, ++done);
	return done;
}

static int64_t wait_us(struct ferry_copy_queue *queue)
{
	(void)queue;
	return 0;
}

static const struct ferry_copy_ops engine_ops = {.kind = "modelled", .polled = true, .queue_open = queue_open,
                                                 .queue_close = queue_close, .copy = copy, .finished = finished,
                                                 .wait_us = wait_us};

/* ---- jobs of one rank ---- */

struct lone {
	struct ferry_member member;
	struct ferry_job_arenas shared;
	struct ferry_plan *plan;
	struct ferry_steps steps;
	struct ferry_call call;
	_Atomic uint32_t weight;
	_Atomic bool failed;
};

static struct lone *lone_of(const struct ferry_member *member)
{
	return (struct lone *)(uintptr_t)member;
}

static void member_fail(struct ferry_member *member, ferryResult_t code, const char *message)
{
	(void)code;
	print_message("%s\n", message);
	atomic_store(&lone_of(member)->failed, true);
}

static bool failed(struct ferry_member *member)
{
	return atomic_load(&lone_of(member)->failed);
}

static ferryResult_t error(struct ferry_member *member, const char **message)
{
	(void)member;
	*message = "over";
	return ferryRemoteError;
}

static void nothing(struct ferry_member *member)
{
	(void)member;
}

static uint32_t none_beside(struct ferry_member *member)
{
	(void)member;
	return 0;
}

static void ended(struct ferry_member *member, const struct ferry_call *call)
{
	(void)member, (void)call;
}

static const struct ferry_member_ops member_ops = {.fail = member_fail,
                                                   .failed = failed,
                                                   .error = error,
                                                   .check = nothing,
                                                   .beside = none_beside,
                                                   .begun = nothing,
                                                   .ended = ended};

static bool started(const struct ferry_call *call)
{
	(void)call;
	return true;
}

static void finish(struct ferry_call *call, ferryResult_t result, const char *message)
{
	(void)call, (void)result, (void)message;
}

static bool forgotten(const struct ferry_call *call)
{
	(void)call;
	return false;
}

static void release(struct ferry_call *call)
{
	(void)call;
}

static const struct ferry_call_ops call_ops = {.started = started, .finish = finish, .forgotten = forgotten,
                                               .release = release};

static struct lone *lone_open(uint32_t number, uint32_t weight)
{
	struct lone *lone = aligned_alloc(128, sizeof *lone);
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 1, .staging = 1 << 20, .node = -1};
	struct ferry_topology topology = {.nranks = 1, .ndomains = 1};
	struct ferry_compile_options options = {.count = BYTES, .type = ferryUint8, .slice = 64 << 10, .window = 4};
	struct ferry_program *program;
	memset(lone, 0, sizeof *lone);
	lone->shared.nranks = lone->shared.ndomains = 1;
	assert_int_equal(ferry_arena_create(&shape, &lone->shared.arenas[0]), ferrySuccess);
	options.staging[0] = lone->shared.arenas[0].staging_bytes;
	assert_int_equal(ferry_program_synthesize(FERRY_ALLGATHER, &topology, 0, &program), ferrySuccess);
	assert_int_equal(ferry_program_compile(program, &options, &lone->plan), ferrySuccess);
	ferry_program_free(program);
	assert_int_equal(ferry_steps_find(&lone->steps, lone->plan, &lone->shared, 0), ferrySuccess);
	lone->member.ops = &member_ops;
	lone->member.shared = &lone->shared;
	lone->member.weight = &lone->weight;
	atomic_store(&lone->member.order.fixed, UINT64_MAX);
	atomic_store(&lone->weight, weight);
	lone->call.ops = &call_ops;
	lone->call.member = &lone->member;
	lone->call.steps = &lone->steps;
	assert_true(ferry_call_prepare(&lone->call, lone->steps.nsteps[FERRY_DIR_D2H],
	                               lone->steps.nsteps[FERRY_DIR_H2D], 2));
	struct ferry_call_buffers buffers = {.send = (char *)1,
	                                     .receive = (char *)(uintptr_t)((number + 1) * 2 * BYTES)};
	ferry_call_fill(&lone->call, &buffers);
	ferry_call_arm(&lone->call, 1);
	atomic_store(&lone->call.seq, 1);
	atomic_store(&lone->call.lanes, 1 + ferry_call_descends(&lone->call));
	return lone;
}

static void lone_close(struct lone *lone)
{
	ferry_call_unprepare(&lone->call);
	ferry_steps_free(&lone->steps);
	free(lone->plan);
	ferry_arena_unmap(&lone->shared.arenas[0]);
	free(lone);
}

/* What each has of the engine, in hundredths of a percent, while all have more than enough to copy. */
static void share(const uint32_t *weights, uint32_t count, uint32_t *parts)
{
	static struct ferry_lanes lanes;
	struct lone *lones[MOST];
	struct ferry_lanes_options options = {.copier = &engine.base};
	uint64_t copies[MOST] = {0};
	memset(&engine, 0, sizeof engine);
	engine.base.ops = &engine_ops;
	assert_int_equal(ferry_lanes_open(&lanes, &options), ferrySuccess);
	for (uint32_t i = 0; i < count; i++) {
		lones[i] = lone_open(i, weights[i]);
		ferry_lanes_lane_rank(&lones[i]->member);
		ferry_lanes_join(&lanes, &lones[i]->member);
	}
	for (uint32_t i = 0; i < count; i++)
		ferry_lanes_submit(&lones[i]->member, &lones[i]->call);
	while (atomic_load(&engine.owners) != (1u << count) - 1)
		sched_yield();
	atomic_store(&engine.runs, true);
	while (atomic_load(&engine.finished) < ENOUGH)
		sched_yield();
	for (uint64_t i = ENOUGH / 10; i < ENOUGH; i++) /* the first ones came before the others were there */
		copies[engine.owner[i]]++;
	for (uint32_t i = 0; i < count; i++)
		atomic_store(&lones[i]->failed, true);
	for (uint32_t i = 0; i < count; i++) {
		ferry_lanes_leave(&lones[i]->member);
		lone_close(lones[i]);
		parts[i] = (uint32_t)(10000 * copies[i] / (ENOUGH - ENOUGH / 10));
	}
	ferry_lanes_close(&lanes);
}

static void jobs_have_the_copies_of_a_lane_by_their_weights(void **state)
{
	static const struct {
		uint32_t weights[MOST], count, expected[MOST];
	} cases[] = {{{1, 1}, 2, {5000, 5000}},
	             {{3, 1}, 2, {7500, 2500}},
	             {{1, 3}, 2, {2500, 7500}},
	             {{2, 1, 1}, 3, {5000, 2500, 2500}},
	             {{6, 2}, 2, {7500, 2500}}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint32_t parts[MOST];
		share(cases[i].weights, cases[i].count, parts);
		for (uint32_t j = 0; j < cases[i].count; j++) {
			uint32_t expected = cases[i].expected[j];
			print_message("weight %u: %.2f%%\n", cases[i].weights[j], parts[j] / 100.0);
			assert_in_range(parts[j], expected - 300, expected + 300);
		}
	}
}

static void nobody_is_starved_however_little_it_weighs(void **state)
{
	static const uint32_t weights[] = {1000, 1};
	uint32_t parts[MOST];
	(void)state;
	share(weights, 2, parts);
	print_message("weights 1000 and 1: %.2f%% and %.2f%%\n", parts[0] / 100.0, parts[1] / 100.0);
	assert_in_range(parts[1], 100, 1500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(jobs_have_the_copies_of_a_lane_by_their_weights),
	        cmocka_unit_test(nobody_is_starved_however_little_it_weighs),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
