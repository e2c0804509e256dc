/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the kernels, compiled as C, with a thread for each rank and boxes in ordinary memory: every collective,
 * type and operation has the bits of router/reduce, in both layouts of the boxes, call behind call without any other
 * synchronization, alone or several by one kernel, also where flags wrap; and a call that is given up ends.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/collective.h"
#include "rank-lib/kernels/choice.h"
#include "tests/fake_cuda/kernels_emulated.h"
#include "router/reduce/reduce.h"
#include "tests/sanitized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES 40000u
#define BOX_BYTES  (320u << 10)
#define CALLS      REPEATS(250u, 160u)
#define GROUP      4 /* calls of one, at most */

static const char *const type_names[ferryNumTypes] = {"i8",  "u8",  "i32", "u32",  "i64",    "u64",
                                                      "f16", "f32", "f64", "bf16", "f8e4m3", "f8e5m2"};

/* What all ranks know of a call. */
struct plan {
	enum ferry_collective collective;
	ferryDataType_t type;
	int op; /* ferryNumOps: premulsum */
	uint32_t root, kernel, blocks, threads, chunk, two_phases;
	uint64_t count, shift; /* elements; shift: of the buffers, in elements */
	bool in_place;
};

struct job {
	uint32_t nranks;
	bool shared;
	uint32_t calls; /* where the states begin */
	bool stale;           /* the boxes hold flags of calls to come, as they do 2^32 flags later */
	uint64_t seed;
	char *boxes[FERRY_KERNEL_RANKS];
	_Alignas(8) uint32_t abort[16]; /* and what follows it */
};

struct player {
	struct job *job;
	uint32_t rank;
	const char *wrong;
	char text[200];
};

UNSEEN static uint64_t next(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static struct plan plan_of(const struct job *job, uint32_t call)
{
	static const enum ferry_collective collectives[] = {FERRY_ALLREDUCE, FERRY_ALLGATHER,      FERRY_REDUCESCATTER,
	                                                    FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT, FERRY_ALLTOALL,
	                                                    FERRY_GATHER,    FERRY_SCATTER};
	uint64_t state = job->seed * 1000003 + call;
	struct plan plan = {.collective = collectives[next(&state) % 8], .type = next(&state) % ferryNumTypes};
	uint64_t size = ferry_type_size(plan.type), most = MOST_BYTES / size;
	plan.op = (int)(next(&state) % (ferryNumOps + 1));
	plan.root = (uint32_t)(next(&state) % job->nranks);
	plan.count = next(&state) % 3 ? 1 + next(&state) % 40 : 1 + next(&state) % most;
	plan.shift = next(&state) % 3;
	plan.in_place = next(&state) % 2;
	plan.kernel = next(&state) % 2;
	if (plan.kernel == 1 && !job->shared)
		plan.kernel = 2;
	plan.blocks = 1 + next(&state) % 4;
	plan.threads = 64u << next(&state) % 3;
	plan.two_phases = plan.collective == FERRY_ALLREDUCE && next(&state) % 2;
	if (plan.kernel == 2) /* so few that each lane has many lines */
		plan.threads /= 8;
	if (plan.kernel == 2 && plan.two_phases) /* so many that a lane sends, sums and keeps lines in turn */
		plan.count = 1 + next(&state) % most;
	plan.chunk = 16u << next(&state) % 7;
	while (plan.kernel == 1 && plan.count * size / plan.chunk >= FERRY_KERNEL_FLAGS / FERRY_KERNEL_RANKS)
		plan.chunk *= 2;
	/* a block without a word of its own would hear from nobody */
	uint64_t words = (plan.count * size + 7) / 8;
	if (plan.kernel == 0 && plan.blocks > (words + plan.threads - 1) / plan.threads)
		plan.blocks = (uint32_t)((words + plan.threads - 1) / plan.threads);
	return plan;
}

/* Rank r's input of `blocks` blocks: small values, so that no sum is a NaN in one type only. */
UNSEEN static void fill(char *to, const struct job *job, const struct plan *plan, uint32_t call, uint32_t rank,
                        uint64_t bytes)
{
	uint64_t state = job->seed + call * 64ull + rank + 17;
	(void)plan;
	for (uint64_t i = 0; i < bytes; i++)
		to[i] = (char)next(&state);
}

static uint64_t factor_of(const struct job *job, ferryDataType_t type, uint32_t rank)
{
	(void)job;
	return ferry_reduce_reciprocal(type, rank + 2) ? ferry_reduce_reciprocal(type, rank + 2) : rank + 2;
}

static bool sends_blocks(enum ferry_collective c)
{
	return c == FERRY_REDUCESCATTER || c == FERRY_ALLTOALL || c == FERRY_SCATTER;
}

static bool receives_blocks(enum ferry_collective c)
{
	return c == FERRY_ALLGATHER || c == FERRY_ALLTOALL || c == FERRY_GATHER;
}

static void expect(const struct job *job, const struct plan *plan, char *const *inputs, uint32_t rank, char *result)
{
	uint64_t size = ferry_type_size(plan->type), bytes = plan->count * size, factors[FERRY_KERNEL_RANKS];
	const void *sources[FERRY_KERNEL_RANKS];
	for (uint32_t r = 0; r < job->nranks; r++)
		sources[r] = inputs[r] + (sends_blocks(plan->collective) ? rank * bytes : 0);
	if (plan->collective == FERRY_BROADCAST || plan->collective == FERRY_SCATTER) {
		memcpy(result, sources[plan->root], bytes);
	} else if (receives_blocks(plan->collective)) {
		for (uint32_t r = 0; r < job->nranks; r++)
			memcpy(result + r * bytes, sources[r], bytes);
	} else {
		struct ferry_reduction reduction = {.type = plan->type, .op = (ferryRedOp_t)plan->op, .divisor = 1};
		uint64_t reciprocal = ferry_reduce_reciprocal(plan->type, job->nranks);
		for (uint32_t r = 0; r < job->nranks; r++)
			factors[r] = plan->op == ferryAvg ? reciprocal : factor_of(job, plan->type, r);
		if (plan->op == ferryNumOps || (plan->op == ferryAvg && reciprocal)) {
			reduction.op = ferryNumOps;
			reduction.scalars = factors;
			reduction.scaled = ~0ull;
		} else if (plan->op == ferryAvg) {
			reduction.op = ferrySum;
			reduction.divisor = job->nranks;
		}
		ferry_reduce(result, sources, job->nranks, plan->count, &reduction);
	}
}

static bool receives(const struct job *job, const struct plan *plan, uint32_t rank)
{
	(void)job;
	return (plan->collective != FERRY_REDUCE_TO_ROOT && plan->collective != FERRY_GATHER) || rank == plan->root;
}

static void set_boxes(const struct job *job, uint32_t rank, struct ferry_kernel_call *call)
{
	const uint64_t region = FERRY_BOX_REGION(BOX_BYTES, job->shared);
	call->box_bytes = BOX_BYTES;
	call->out_shared = job->shared;
	for (uint32_t r = 0; r < job->nranks; r++) {
		call->out[r] = job->shared ? job->boxes[rank] : job->boxes[r] + rank * region;
		call->in[r] = job->shared ? job->boxes[r] : job->boxes[rank] + r * region;
	}
}

static void set_call(const struct job *job, const struct plan *plan, uint32_t rank, struct ferry_kernel_call *call)
{
	uint64_t bytes = plan->count * ferry_type_size(plan->type);
	uint32_t all = (1u << job->nranks) - 1, root = 1u << plan->root;
	bool reduces = ferry_collective_reduces(plan->collective);
	uint64_t reciprocal = ferry_reduce_reciprocal(plan->type, job->nranks);
	bool from_root = plan->collective == FERRY_BROADCAST || plan->collective == FERRY_SCATTER;
	bool to_root = plan->collective == FERRY_REDUCE_TO_ROOT || plan->collective == FERRY_GATHER;
	call->bytes = bytes;
	call->send_stride = sends_blocks(plan->collective) ? bytes : 0;
	call->receive_stride = receives_blocks(plan->collective) ? bytes : 0;
	call->rank = rank;
	call->nranks = job->nranks;
	call->abort = (uint32_t *)(uintptr_t)job->abort;
	call->senders = from_root ? root : all;
	call->receivers = to_root ? root : all;
	call->reduces = reduces;
	call->op = plan->op == ferryAvg ? ferrySum : (uint32_t)plan->op;
	call->divisor = plan->op == ferryAvg && !reciprocal ? job->nranks : 1;
	call->scaled = !reduces ? 0 : plan->op == ferryNumOps ? 1 : plan->op == ferryAvg && reciprocal ? 2 : 0;
	call->factor = plan->op == ferryAvg ? reciprocal : factor_of(job, plan->type, rank);
	call->chunk = plan->chunk;
	call->two_phases = plan->two_phases;
	set_boxes(job, rank, call);
}

static void compare(struct player *player, uint32_t n, const struct plan *plan, const char *got, const char *wanted,
                    uint64_t bytes)
{
	if (!memcmp(got, wanted, bytes) || player->wrong)
		return;
	uint64_t at = 0;
	while (got[at] == wanted[at])
		at++;
	snprintf(player->text, sizeof player->text,
	         "call %u rank %u of %u: %s %s op %d count %llu kernel %u blocks %u threads %u chunk %u shared %d in "
	         "place %d: byte %llu is %02x, not %02x",
	         n, player->rank, player->job->nranks, ferry_collective_name(plan->collective), type_names[plan->type],
	         plan->op, (unsigned long long)plan->count, plan->kernel, plan->blocks, plan->threads, plan->chunk,
	         player->job->shared, plan->in_place, (unsigned long long)at, got[at] & 0xff, wanted[at] & 0xff);
	player->wrong = player->text;
}

/* A call and its buffers: send, receive, what is wanted, and every rank's input. */
struct turn {
	struct plan plan;
	char *buffers[3 + FERRY_KERNEL_RANKS];
	char *receive;
};

static void set_turn(const struct player *player, struct turn *turn, uint32_t n, struct ferry_kernel_call *call)
{
	const struct job *job = player->job;
	const struct plan *plan = &turn->plan;
	uint64_t size = ferry_type_size(plan->type), bytes = plan->count * size, all = bytes * job->nranks;
	char *send = turn->buffers[0] + plan->shift * size, *receive = turn->buffers[1] + plan->shift * size;
	uint64_t sent = sends_blocks(plan->collective) ? all : bytes;
	for (uint32_t r = 0; r < job->nranks; r++)
		fill(turn->buffers[3 + r], job, plan, n, r, sent);
	if (plan->in_place && plan->collective == FERRY_ALLGATHER)
		send = receive + player->rank * bytes;
	else if (plan->in_place && plan->collective == FERRY_GATHER && player->rank == plan->root)
		send = receive + player->rank * bytes;
	else if (plan->in_place && (plan->collective == FERRY_REDUCESCATTER ||
	                            (plan->collective == FERRY_SCATTER && player->rank == plan->root)))
		receive = send + player->rank * bytes;
	else if (plan->in_place && plan->collective != FERRY_GATHER && plan->collective != FERRY_SCATTER)
		receive = send;
	memcpy(send, turn->buffers[3 + player->rank], sent);
	*call = (struct ferry_kernel_call){.send = send, .receive = receive};
	set_call(job, plan, player->rank, call);
	turn->receive = receive;
}

static void judge(struct player *player, const struct turn *turn, uint32_t n)
{
	const struct plan *plan = &turn->plan;
	uint64_t bytes = plan->count * ferry_type_size(plan->type);
	if (!receives(player->job, plan, player->rank))
		return;
	expect(player->job, plan, turn->buffers + 3, player->rank, turn->buffers[2]);
	compare(player, n, plan, turn->receive, turn->buffers[2],
	        receives_blocks(plan->collective) ? bytes * player->job->nranks : bytes);
}

static void play(struct player *player, struct ferry_kernel_state *state, uint32_t n, struct turn *turn)
{
	static const char *const kernels[] = {"ll", "bulk", "ll128"};
	struct ferry_kernel_call call;
	char name[40];
	turn->plan = plan_of(player->job, n);
	set_turn(player, turn, n, &call);
	call.state = state;
	snprintf(name, sizeof name, "ferry_%s_%s", kernels[turn->plan.kernel],
	         call.reduces ? type_names[turn->plan.type] : "u8");
	if (!ferry_kernel_emulate(name, &call, turn->plan.blocks, turn->plan.threads))
		player->wrong = "there is no such kernel";
	judge(player, turn, n);
}

/* Several calls by LL, as kernel_launch.c puts them into one kernel. */
static void play_group(struct player *player, struct ferry_kernel_state *state, uint32_t n, struct turn *turns)
{
	struct ferry_kernel_group group = {.count = 0};
	uint64_t random = player->job->seed + n, place = 0;
	uint32_t wanted = 2 + (uint32_t)(next(&random) % (GROUP - 1)), blocks = 0;
	ferryDataType_t type = ferryUint8;
	bool sums = false;
	char name[40];
	while (group.count < wanted) {
		struct turn *turn = &turns[group.count];
		struct ferry_kernel_call *call = &group.calls[group.count];
		turn->plan = plan_of(player->job, n * 1000 + group.count);
		struct plan *plan = &turn->plan;
		plan->kernel = 0;
		plan->threads = 64;
		plan->blocks = plan->count % 2 ? 1 : plan->blocks;
		if (ferry_collective_reduces(plan->collective)) {
			plan->count = sums ? plan->count * ferry_type_size(plan->type) / ferry_type_size(type) + 1
			                   : plan->count;
			plan->type = type = sums ? type : plan->type;
			sums = true;
		}
		plan->blocks = plan->count * ferry_type_size(plan->type) <= 8 * 64 ? 1 : plan->blocks;
		set_turn(player, turn, n * 1000 + group.count++, call);
		call->state = state;
		call->place = (uint32_t)place;
		call->first = blocks;
		call->blocks = plan->blocks;
		place += 16 * ((call->bytes + 7) / 8) * (player->job->shared && call->send_stride ? call->nranks : 1);
		blocks += plan->blocks;
	}
	snprintf(name, sizeof name, "ferry_ll_group_%s", type_names[type]);
	if (place > FERRY_BOX_LL_BYTES || !ferry_kernel_emulate(name, &group, blocks, 64))
		player->wrong = "there is no such kernel, or no room for it";
	for (uint32_t i = 0; i < group.count; i++)
		judge(player, &turns[i], n * 1000 + i);
}

static void *run(void *argument)
{
	struct player *player = argument;
	struct turn turns[GROUP];
	struct ferry_kernel_state state = {.counts = player->job->calls};
	for (uint32_t i = 0; i < GROUP; i++)
		for (uint32_t b = 0; b < 3 + FERRY_KERNEL_RANKS; b++)
			turns[i].buffers[b] = malloc(MOST_BYTES * FERRY_KERNEL_RANKS + 64);
	for (uint32_t n = 0; n < CALLS; n++)
		(n % 4 ? play : play_group)(player, &state, n, turns);
	if (state.counts != ((uint64_t)CALLS << 32 | (uint32_t)(player->job->calls + CALLS)) || state.arrived)
		player->wrong = "the state has not counted all calls";
	for (uint32_t i = 0; i < GROUP; i++)
		for (uint32_t b = 0; b < 3 + FERRY_KERNEL_RANKS; b++)
			free(turns[i].buffers[b]);
	return NULL;
}

/* Each word of a box is the flag of a call behind the sweep. */
static void make_stale(struct job *job, uint32_t rank)
{
	for (uint32_t region = 0; region < (job->shared ? 1 : job->nranks); region++) {
		char *box = job->boxes[rank] + region * FERRY_BOX_REGION(BOX_BYTES, job->shared);
		uint32_t *words = (uint32_t *)(void *)box;
		for (uint64_t i = 0; i < 2 * FERRY_BOX_HALF(BOX_BYTES) / 4; i++)
			words[i] = job->calls + 110 + (uint32_t)(i % 140);
	}
}

static void check(uint32_t nranks, bool shared, uint32_t calls, bool stale, uint64_t seed)
{
	struct job job = {.nranks = nranks, .shared = shared, .calls = calls, .stale = stale, .seed = seed};
	struct player players[FERRY_KERNEL_RANKS];
	pthread_t threads[FERRY_KERNEL_RANKS];
	for (uint32_t r = 0; r < nranks; r++) {
		job.boxes[r] = calloc(shared ? 1 : nranks, FERRY_BOX_REGION(BOX_BYTES, shared));
		assert_non_null(job.boxes[r]);
		if (stale)
			make_stale(&job, r);
	}
	for (uint32_t r = 0; r < nranks; r++) {
		players[r] = (struct player){.job = &job, .rank = r};
		assert_int_equal(pthread_create(&threads[r], NULL, run, &players[r]), 0);
	}
	for (uint32_t r = 0; r < nranks; r++)
		pthread_join(threads[r], NULL);
	for (uint32_t r = 0; r < nranks; r++) {
		if (players[r].wrong)
			fail_msg("%s", players[r].wrong);
		free(job.boxes[r]);
	}
}

static void every_call_has_the_bits_of_the_host_by_inboxes(void **unused)
{
	(void)unused;
	for (uint32_t nranks = 2; nranks <= 4; nranks++)
		check(nranks, false, 0, false, 100 + nranks);
}

static void every_call_has_the_bits_of_the_host_by_outboxes(void **unused)
{
	(void)unused;
	for (uint32_t nranks = 2; nranks <= 4; nranks++)
		check(nranks, true, 0, false, 200 + nranks);
}

static void flags_may_wrap(void **unused)
{
	(void)unused;
	for (int shared = 0; shared < 2; shared++) {
		check(3, shared, -100u, true, 300 + (uint64_t)shared);
		check(3, shared, FERRY_KERNEL_SWEEP - 100, true, 310 + (uint64_t)shared);
	}
}

/* The other rank never comes. */
static void what_stands_behind_a_call_that_is_given_up_ends_by_itself(void **unused)
{
	static const char *const kernels[] = {"ferry_ll_f32", "ferry_ll128_f32"};
	struct job job = {.nranks = 2, .abort = {1}};
	const struct plan plan = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32, .count = 64};
	struct ferry_kernel_state state = {0};
	float values[64] = {0};
	(void)unused;
	for (uint32_t r = 0; r < job.nranks; r++)
		job.boxes[r] = calloc(job.nranks, FERRY_BOX_REGION(BOX_BYTES, false));
	for (uint32_t n = 0; n < 4; n++) {
		struct ferry_kernel_call call = {.send = (char *)values, .receive = (char *)values, .state = &state};
		set_call(&job, &plan, 0, &call);
		assert_true(ferry_kernel_emulate(kernels[n % 2], &call, 1, 64));
		assert_int_equal(state.given_up, 1);
		const uint32_t *waits = &job.abort[FERRY_KERNEL_WAITS / sizeof(uint32_t)];
		assert_int_equal(waits[0], 1); /* for rank 1, */
		assert_int_equal(waits[2], 1); /* in the first call, */
		assert_true(waits[3]);         /* after so many polls */
		assert_int_equal((uint32_t)state.counts, n + 1);
		job.abort[0] = 0;
	}
	for (uint32_t r = 0; r < job.nranks; r++)
		free(job.boxes[r]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_call_has_the_bits_of_the_host_by_inboxes),
	        cmocka_unit_test(every_call_has_the_bits_of_the_host_by_outboxes),
	        cmocka_unit_test(flags_may_wrap),
	        cmocka_unit_test(what_stands_behind_a_call_that_is_given_up_ends_by_itself),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
