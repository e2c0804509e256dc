/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on GPUs that lie about where others may put, over the double of the driver: whatever they write into their
 * descriptors, their posts and the rest of the arena, their job ends with a message, the router lives, and another job
 * of it, which pushes too, notices nothing.
 */
#include "tests/fake_cuda/liar.h"

#include "router/copy/copy.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PUT_TARGET_BYTES (COUNT * 4)
#define PATIENCE_MS   60000 /* lanes look every 50, and the router once a second */

static void fill_inputs(const struct liar *liar)
{
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		uint32_t *memory = fake_cuda_reach(liar->memory[rank]);
		for (uint32_t i = 0; i < 2 * COUNT; i++)
			memory[i] = i < COUNT ? 1000 * (rank + 1) + i : 0;
	}
}

/* What the other rank has put into this one's receive buffer, from that element on. */
static const uint32_t *received(const struct liar *liar, uint32_t rank, uint32_t from)
{
	return (const uint32_t *)fake_cuda_reach(liar->memory[rank]) + COUNT + from;
}

static void a_rank_that_does_not_lie_is_pushed_to(void **state)
{
	(void)state;
	for (int messages = 0; messages < 2; messages++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, FERRY_BROADCAST, true);
		fill_inputs(&liar);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			if (messages)
				honest_messages(rank, true, &record);
			else
				honest_call(&liar, rank, &record);
			submit(&liar, rank, &record);
		}
		reach(&liar);
		must_end(&liar);
		for (uint32_t i = 0; i < COUNT; i++)
			assert_int_equal(received(&liar, 1, i)[0], 1000 + i);
		assert_int_equal(received(&liar, 0, 7)[0], messages ? 2007 : 0);
		liar_close(&liar);
	}
	others_run_on();
}

/* ---- put targets ---- */

/* A field of what says where a rank's buffer is, behind the router's back. */
struct scribble {
	const char *what;
	uint64_t index, generation, offset;
	const char *flags;
};

static const struct scribble scribbles[] = {
        {"an index beyond all", FERRY_MOST_EXPORTS, 1, PUT_TARGET_BYTES, "export 1024"},
        {"an index that would be a good one", FERRY_MOST_EXPORTS + 1, 1, PUT_TARGET_BYTES, "export 1025"},
        {"an index far away", UINT32_MAX - 1, 1, PUT_TARGET_BYTES, "export 4294967294"},
        {"an address", FERRY_PUT_TARGET_DIRECT, 1, PUT_TARGET_BYTES, "whose data no router moves"},
        {"an index of nothing", 2, 1, PUT_TARGET_BYTES, "export 2 of rank 1, which has 0"},
        {"no generation", 1, 0, PUT_TARGET_BYTES, "generation 0 of export 1"},
        {"a generation to come", 1, 2, PUT_TARGET_BYTES, "generation 2 of export 1"},
        {"one byte too far", 1, 1, PUT_TARGET_BYTES + 1, "16000 bytes at 16001"},
        {"behind the end", 1, 1, 2 * PUT_TARGET_BYTES + 1, "at 32001"},
        {"an offset that overflows", 1, 1, UINT64_MAX, "at 18446744073709551615"},
        {"an offset whose end overflows", 1, 1, UINT64_MAX - PUT_TARGET_BYTES + 1,
         "16000 bytes at 1844674407370953561"},
};

#define SCRIBBLES (sizeof scribbles / sizeof *scribbles)

static struct ferry_descriptor *descriptor_of(const struct liar *liar, uint32_t rank)
{
	return &ferry_rank_line(&liar->shared, rank)->ring[1]; /* of call 1 */
}

static void await(const _Atomic uint64_t *flag, uint64_t value, const char *what)
{
	for (int waited = 0; atomic_load(flag) != value && waited < PATIENCE_MS; waited++)
		doze(1);
	if (atomic_load(flag) != value)
		fail_msg("%s: %llu", what, (unsigned long long)atomic_load(flag));
}

static void scribble_descriptor(const struct liar *liar, uint32_t rank, const struct scribble *scribble)
{
	struct ferry_descriptor *descriptor = descriptor_of(liar, rank);
	atomic_store(&descriptor->put_target_index, (uint32_t)scribble->index);
	atomic_store(&descriptor->put_target_generation, scribble->generation);
	atomic_store(&descriptor->put_target_offset, scribble->offset);
}

/* Rank 1's is changed when its router has written it, and before rank 0's lane looks. */
static void put_targets_out_of_range_end_the_job_with_their_values(void **state)
{
	(void)state;
	for (size_t i = 0; i < SCRIBBLES; i++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, FERRY_BROADCAST, true);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			honest_call(&liar, rank, &record);
			submit(&liar, rank, &record);
		}
		reach_by(&liar, 1);
		await(&descriptor_of(&liar, 1)->seq, 1, "rank 1's descriptor");
		scribble_descriptor(&liar, 1, &scribbles[i]);
		reach_by(&liar, 0);
		must_fail(&liar, scribbles[i].flags, scribbles[i].what);
		others_run_on();
		liar_close(&liar);
	}
}

static const struct ferry_instr *wait_of(const struct liar *liar, uint32_t rank)
{
	const struct ferry_instr *instr = ferry_plan_instrs(liar->plan);
	while (instr->opcode != FERRY_WAIT_PUT || instr->owner != rank)
		instr++;
	return instr;
}

/* Where rank 1 receives what rank 0 sends in an AllToAllv, and how much. */
static void target_offsets_out_of_range_end_the_job_with_their_values(void **state)
{
	static const struct {
		uint64_t call, length, target_offset;
		const char *says;
	} cases[] = {
	        {1, 1999, 0, "rank 0 sends 2000 bytes to rank 1, which expects 1999"},
	        {1, UINT64_MAX, 0, "rank 0 sends 2000 bytes to rank 1, which expects 18446744073709551615"},
	        {1, 2000, 4 * COUNT - 1999, "16001 bytes at 16000"},
	        {1, 2000, 1ull << 55, "bytes at 16000"},
	        {1, 2000, UINT64_MAX - 100, "rank 1 receives at 18446744073709551515 from rank 0, in call 1"},
	        {3, 2000, 0, "rank 1 receives at 0 from rank 0, in call 3"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, FERRY_ALLTOALLV, true);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			honest_call(&liar, rank, &record);
			submit(&liar, rank, &record);
		}
		reach_by(&liar, 1);
		await(&descriptor_of(&liar, 1)->seq, 1, "rank 1's descriptor");
		struct ferry_counter *counter = &liar.shared.arenas[0].counters[1][wait_of(&liar, 1)->counter];
		assert_int_equal(atomic_load(&counter->length), 2000);
		atomic_store(&counter->length, cases[i].length);
		atomic_store(&counter->target_offset, cases[i].target_offset);
		atomic_store(&counter->value, ferry_counter_value(cases[i].call, 0));
		reach_by(&liar, 0);
		must_fail(&liar, cases[i].says, "a target offset");
		others_run_on();
		liar_close(&liar);
	}
}

/* Its router has mapped it for its own GPU alone, and another one's lane would copy to where that knows of nothing. */
static void nothing_is_put_into_what_was_not_exported_for_that(void **state)
{
	(void)state;
	for (int messages = 0; messages < 2; messages++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, FERRY_BROADCAST, true);
		liar_export(&liar, 1, 5, false);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			if (messages)
				honest_messages(rank, true, &record);
			else
				honest_call(&liar, rank, &record);
			if (rank == 1 && messages)
				record.messages[FERRY_DIR_D2H].buffer.index = record.messages[FERRY_DIR_H2D]
				                                                      .buffer.index = 5;
			else if (rank == 1)
				record.head.receive.index = 5;
			submit(&liar, rank, &record);
		}
		reach(&liar);
		must_fail(&liar, "of export 5 of rank 1, which has 32000: nothing that another GPU could put into",
		          messages ? "a message" : "a call");
		others_run_on();
		liar_close(&liar);
	}
}

/* ---- posts ---- */

static struct ferry_pair_post *post_of(const struct liar *liar, uint32_t from, uint32_t to)
{
	return &liar->shared.arenas[0].pair_lines[from * RANKS + to].post;
}

/* Rank 1 receives from rank 0, and has posted where. */
static void post_a_message(struct liar *liar)
{
	struct record record;
	liar_open(liar, FERRY_BROADCAST, true);
	honest_messages(1, true, &record);
	submit(liar, 1, &record);
	reach_by(liar, 1);
	await(&post_of(liar, 0, 1)->message, 1, "rank 1's post");
}

static void send_the_message(struct liar *liar, const char *flags, const char *what)
{
	struct record record;
	honest_messages(0, true, &record);
	submit(liar, 0, &record);
	reach_by(liar, 0);
	must_fail(liar, flags, what);
	others_run_on();
	liar_close(liar);
}

static void posts_out_of_range_end_the_job_with_their_values(void **state)
{
	struct liar liar;
	(void)state;
	for (size_t i = 0; i < SCRIBBLES; i++) {
		post_a_message(&liar);
		struct ferry_pair_post *post = post_of(&liar, 0, 1);
		atomic_store(&post->index, (uint32_t)scribbles[i].index);
		atomic_store(&post->generation, scribbles[i].generation);
		atomic_store(&post->offset, scribbles[i].offset);
		send_the_message(&liar, scribbles[i].flags, scribbles[i].what);
	}
	post_a_message(&liar);
	atomic_store(&post_of(&liar, 0, 1)->bytes, UINT64_MAX);
	send_the_message(&liar, "received as 18446744073709551615 bytes", "a length");
	post_a_message(&liar);
	atomic_store(&post_of(&liar, 0, 1)->type, 4711);
	send_the_message(&liar, "an unknown type", "a type");
}

/* Rank 1's buffer would stay as it was, or rank 0 wait for a post that never comes. */
static void who_says_otherwise_whether_a_message_is_pushed_ends_the_job(void **state)
{
	(void)state;
	for (uint32_t pusher = 0; pusher < RANKS; pusher++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, FERRY_BROADCAST, true);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			honest_messages(rank, true, &record);
			record.messages[rank ? FERRY_DIR_H2D : FERRY_DIR_D2H].puts = rank == pusher;
			submit(&liar, rank, &record);
		}
		reach(&liar);
		must_fail(&liar,
		          pusher ? "sent 16000 bytes of u32 through the host, received as 16000 bytes of u32 by a push"
		                 : "sent 16000 bytes of u32 by a push, received as 16000 bytes of u32 through the host",
		          "whether it is pushed");
		others_run_on();
		liar_close(&liar);
	}
}

/* A head has room for more than yes and no. */
static void a_head_that_says_what_nobody_writes_there_is_one_of_a_push(void **state)
{
	struct liar liar;
	struct record record;
	(void)state;
	liar_open(&liar, FERRY_BROADCAST, true);
	honest_messages(1, false, &record);
	submit(&liar, 1, &record);
	struct ferry_pair_line *line = &liar.shared.arenas[0].pair_lines[RANKS * 0 + 1];
	atomic_store(&line->slots[0].bytes, record.messages[FERRY_DIR_H2D].bytes);
	atomic_store(&line->slots[0].type, (uint32_t)record.messages[FERRY_DIR_H2D].type);
	atomic_store(&line->slots[0].pushed, UINT32_MAX);
	atomic_store(&line->slots[0].message, 1);
	reach_by(&liar, 1);
	must_fail(&liar, "by a push, received as 16000 bytes of u32 through the host", "a way that there is not");
	others_run_on();
	liar_close(&liar);
}

/* ---- submissions of what is pushed ---- */

static void messages_to_be_pushed_that_cannot_be_end_the_job(void **state)
{
	static const struct {
		const char *what;
		size_t at;
		uint64_t value, bytes;
		const char *flags;
	} lies[] = {
	        {"neither pushed nor not", offsetof(struct ferry_call_decoder_message, puts), 2, 1,
	         "a message of 16000 bytes"},
	        {"longer than what is mapped", offsetof(struct ferry_call_decoder_message, bytes), PUT_TARGET_BYTES + 4,
	         8, ""},
	        {"petabytes", offsetof(struct ferry_call_decoder_message, bytes), 1ull << 55, 8, ""},
	        {"beyond all", offsetof(struct ferry_call_decoder_message, bytes), UINT64_MAX, 8,
	         "18446744073709551615"},
	        {"from nowhere", offsetof(struct ferry_call_decoder_message, buffer.offset), UINT64_MAX, 8, ""},
	        {"from a rank that there is not", offsetof(struct ferry_call_decoder_message, peer), RANKS, 4,
	         "rank 2 of 2"},
	};
	(void)state;
	for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
		struct liar liar;
		struct record records[RANKS];
		liar_open(&liar, FERRY_BROADCAST, true);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			honest_messages(rank, true, &records[rank]);
		memcpy((char *)&records[i % RANKS].messages[FERRY_DIR_H2D] + lies[i].at, &lies[i].value, lies[i].bytes);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			submit(&liar, rank, &records[rank]);
		reach(&liar);
		must_fail(&liar, lies[i].flags, lies[i].what);
		others_run_on();
		liar_close(&liar);
	}
}

/* ---- the ring of submissions ---- */

static void ends_with(struct liar *liar, const char *flags)
{
	const struct ferry_failure *failure = &liar->shared.arenas[0].header->failure;
	if (!fails_within(liar, PATIENCE_MS) || !strstr(failure->message, flags))
		fail_msg("\"%s\"; expected \"%s\"", failure->message, flags);
	others_run_on();
	liar_close(liar);
}

/* Message 1 is submitted as message 2, whose turn would never come. */
static void a_submission_that_another_rank_changes_ends_the_job(void **state)
{
	static struct ferry_ring aside; /* so that the router takes it changed, and nothing else */
	struct liar liar;
	struct record record;
	(void)state;
	liar_open(&liar, FERRY_BROADCAST, true);
	struct ferry_ring *ring = &liar.shared.arenas[0].rings[1];
	memset(&aside, 0, sizeof aside);
	honest_messages(1, true, &record);
	record.head.number = 1;
	assert_true(ferry_ring_write(&aside, &record.head, record.bytes, record.more));
	record.messages[FERRY_DIR_H2D].message++;
	memcpy(aside.records + sizeof record.head, record.bytes, record.more);
	memcpy(ring->records, aside.records, record.head.bytes);
	atomic_store(&ring->written, record.head.bytes);
	ring_router(&liar, 1);
	ends_with(&liar, "submission 1, of 320 bytes and kind 3: it is not what was written");
}

/* ---- that the job has failed ---- */

static void calls_do_not_wait_for_those_that_ended_when_the_job_had_failed(void **state)
{
	struct liar liar;
	struct record record;
	(void)state;
	liar_open(&liar, FERRY_ALLREDUCE, false);
	_Atomic uint32_t *failed = &liar.shared.arenas[0].header->failed;
	honest_call(&liar, 0, &record);
	submit(&liar, 0, &record);
	reach_by(&liar, 0);
	await(&descriptor_of(&liar, 0)->seq, 1, "rank 0's descriptor");
	atomic_store(failed, 1);
	ring_router(&liar, 0);
	for (int waited = 0; atomic_load(&liar.flags[0].flag) && waited < PATIENCE_MS; waited++)
		doze(1);
	assert_int_equal(atomic_load(&liar.flags[0].flag), 0);
	atomic_store(failed, 0);
	honest_call(&liar, 1, &record);
	submit(&liar, 1, &record);
	reach_by(&liar, 1);
	for (int waited = 0; !(is_over(&liar) && atomic_load(failed)) && waited < PATIENCE_MS; waited++)
		doze(1);
	assert_true(is_over(&liar));
	assert_int_equal(atomic_load(failed), 1);
	others_run_on();
	liar_close(&liar);
}

/* ---- many lies at once ---- */

static _Atomic int changing;
static uint64_t seed; /* of the round */
static _Atomic uint64_t writes;

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static uint64_t some_value(uint64_t *random)
{
	static const uint64_t values[] = {0, 1, 2, 3, PUT_TARGET_BYTES, FERRY_MOST_EXPORTS, UINT32_MAX, UINT64_MAX};
	return next_random(random) % 4 ? values[next_random(random) % (sizeof values / sizeof *values)]
	                               : next_random(random);
}

/* What says where to put, over and over: a race on purpose. */
static void *change_put_targets(void *argument)
{
	struct liar *liar = argument;
	uint64_t random = ++seed * 88172645463325252ull;
	while (atomic_load(&changing)) {
		uint32_t rank = next_random(&random) % RANKS;
		struct ferry_descriptor *descriptor = &ferry_rank_line(&liar->shared, rank)
		                                               ->ring[next_random(&random) % FERRY_PARITIES];
		struct ferry_pair_post *post = post_of(liar, 1 - rank, rank);
		uint64_t parity = next_random(&random) % FERRY_PARITIES;
		struct ferry_counter *counter = &liar->shared.arenas[0].counters[parity][next_random(&random) % 4];
		_Atomic uint64_t *flags[] = {&descriptor->put_target_generation, &descriptor->put_target_offset,
		                             &post->generation, &post->offset, &post->bytes, &counter->length,
		                             &counter->target_offset};
		_Atomic uint64_t *flag = flags[next_random(&random) % 7];
		uint64_t before = atomic_load(flag);
		atomic_store(flag, some_value(&random));
		if (next_random(&random) % 8)
			atomic_store(flag, before);
		atomic_store(next_random(&random) % 2 ? &descriptor->put_target_index : &post->index,
		             next_random(&random) % 16 ? 1 : (uint32_t)some_value(&random));
	}
	return NULL;
}

/* Anywhere in the arena but in windows: lines, cells, rings, posts and counters, and the header. */
static void *change_anything(void *argument)
{
	struct liar *liar = argument;
	const struct ferry_arena *arena = &liar->shared.arenas[0];
	uint64_t random = ++seed * 88172645463325252ull;
	_Atomic uint64_t *flags = (_Atomic uint64_t *)(void *)arena->header;
	size_t lines = (size_t)(arena->staging[0] - (char *)arena->header) / sizeof *flags;
	while (atomic_load(&changing)) {
		_Atomic uint64_t *flag = &flags[next_random(&random) % lines];
		if (next_random(&random) % 8 == 0)
			flag = (_Atomic uint64_t *)(void *)&arena
			               ->counters[next_random(&random) % FERRY_PARITIES][next_random(&random) % 16];
		atomic_store(flag, some_value(&random));
		atomic_fetch_add_explicit(&writes, 1, memory_order_relaxed);
		if (next_random(&random) % 64 == 0)
			doze(1);
	}
	return NULL;
}

/*
 * As ranks' streams do: each comes to its next call when the one before is over, and not sooner, however late that is.
 * Whether all the calls made are over.
 */
static bool streams_go_on(struct liar *liar, uint32_t made)
{
	bool over = true;
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		if (!atomic_load(&liar->flags[rank].flag) && atomic_load(&liar->flags[rank].done) < made)
			reach_by(liar, rank);
		over &= !atomic_load(&liar->flags[rank].flag);
	}
	return over;
}

static bool ends_within(struct liar *liar, uint32_t made, int milliseconds)
{
	for (int waited = 0; waited < milliseconds; waited++) {
		if (has_failed(liar) || streams_go_on(liar, made))
			return true;
		doze(1);
	}
	return false;
}

/* How many of the jobs fail. */
static int call_beside(void *(*change)(void *), int most)
{
	static const enum ferry_collective kinds[] = {FERRY_BROADCAST, FERRY_ALLTOALL, FERRY_ALLTOALLV};
	int failed = 0;
	for (int round = 0; round < most; round++) {
		struct liar liar;
		struct record record;
		pthread_t thread;
		liar_open(&liar, kinds[round % 3], true);
		atomic_store(&changing, 1);
		assert_int_equal(pthread_create(&thread, NULL, change, &liar), 0);
		uint32_t made = 0;
		for (uint64_t number = 0; made < 8 && !has_failed(&liar); made++) {
			uint64_t seq = made + 1;
			number += seq % 2;
			for (uint32_t rank = 0; rank < RANKS; rank++) {
				if (seq % 2) {
					honest_call(&liar, rank, &record);
					record.head.seq = number;
				} else {
					honest_messages(rank, true, &record);
					record.head.seq = 0;
					record.messages[0].message = record.messages[1].message = seq / 2;
				}
				record.head.turn = made;
				submit(&liar, rank, &record);
			}
			ends_within(&liar, made + 1, 20);
		}
		atomic_store(&changing, 0);
		pthread_join(thread, NULL);
		ends_within(&liar, made, 20); /* or waits until somebody ends it */
		failed += has_failed(&liar);
		if (round % 5 == 4)
			others_run_on();
		liar_close(&liar);
	}
	others_run_on();
	return failed;
}

static void put_targets_that_change_while_they_are_read_harm_nobody(void **state)
{
	(void)state;
	/* on a busy machine a job may be over before the liar has its turn: such a job shows nothing */
	for (int failed = 0; failed < 50;)
		failed += call_beside(change_put_targets, 50);
}

static void anything_anywhere_in_the_arena_harms_nobody_else(void **state)
{
	const char *asked = getenv("FERRY_HOSTILE_WRITES"), *from = getenv("FERRY_HOSTILE_SEED");
	uint64_t wanted = asked ? strtoull(asked, NULL, 10) : 0;
	(void)state;
	seed = from ? strtoull(from, NULL, 10) * 1000003 : seed;
	for (int failed = 0; failed < 20 || atomic_load(&writes) < wanted;) /* as above */
		failed += call_beside(change_anything, 50);
	print_message("%llu words\n", (unsigned long long)atomic_load(&writes));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, others_start, others_stop)

/* argv[1]: one test alone. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_rank_that_does_not_lie_is_pushed_to),
	        TEST(put_targets_out_of_range_end_the_job_with_their_values),
	        TEST(target_offsets_out_of_range_end_the_job_with_their_values),
	        TEST(nothing_is_put_into_what_was_not_exported_for_that),
	        TEST(posts_out_of_range_end_the_job_with_their_values),
	        TEST(who_says_otherwise_whether_a_message_is_pushed_ends_the_job),
	        TEST(a_head_that_says_what_nobody_writes_there_is_one_of_a_push),
	        TEST(messages_to_be_pushed_that_cannot_be_end_the_job),
	        TEST(a_submission_that_another_rank_changes_ends_the_job),
	        TEST(calls_do_not_wait_for_those_that_ended_when_the_job_had_failed),
	        TEST(put_targets_that_change_while_they_are_read_harm_nobody),
	        TEST(anything_anywhere_in_the_arena_harms_nobody_else),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setenv("FERRY_LOG", "error", 1); /* a line for each job that fails otherwise */
	setenv("FERRY_TEST_PUSHES", "1", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
