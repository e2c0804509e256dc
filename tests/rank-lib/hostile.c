/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks on GPUs that lie to the router that moves their data, over the double of the driver: whatever they write into
 * their ring, their words and their cells, their job ends with a message, the router lives, and another job of it
 * notices nothing. What they write into what pushes go by: hostile_puts.c.
 */
#include "tests/fake_cuda/liar.h"

#include "ipc/attach.h"
#include "ipc/error.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PART_AT sizeof(struct ferry_submission)

/* ---- what the others compare with ---- */

static void a_rank_that_does_not_lie_is_served(void **state)
{
	static const enum ferry_collective collectives[] = {FERRY_ALLREDUCE, FERRY_ALLTOALLV};
	(void)state;
	for (int which = 0; which < 3; which++) {
		struct liar liar;
		struct record record;
		liar_open(&liar, collectives[which % 2], false);
		for (uint32_t rank = 0; rank < RANKS; rank++) {
			uint32_t *memory = fake_cuda_reach(liar.memory[rank]);
			for (uint32_t i = 0; i < COUNT; i++)
				memory[i] = 1000 * (rank + 1) + i;
			if (which == 2)
				honest_messages(rank, false, &record);
			else
				honest_call(&liar, rank, &record);
			submit(&liar, rank, &record);
		}
		reach(&liar);
		must_end(&liar);
		const uint32_t *output = (const uint32_t *)fake_cuda_reach(liar.memory[0]) + COUNT;
		/* the sum; rank 1's first part behind our own, which would be our stream's to copy; rank 1's message */
		assert_int_equal(output[which == 1 ? 500 : 7], which == 0 ? 3014 : which == 1 ? 2000 : 2007);
		liar_close(&liar);
	}
	others_run_on();
}

/* ---- single lies ---- */

struct lie {
	const char *what;
	size_t at, bytes; /* of struct record, the parts behind the head included */
	uint64_t value;
	const char *flags;
};

#define HEAD(field)    offsetof(struct record, head.field), sizeof(((struct record *)0)->head.field)
#define PART(field)    offsetof(struct record, parts[1].field), sizeof(((struct record *)0)->parts[1].field)
#define MESSAGE(field) offsetof(struct record, messages[1].field), sizeof(((struct record *)0)->messages[1].field)

static void tell_lies(const struct lie *lies, size_t count, enum ferry_collective collective, bool messages)
{
	for (size_t i = 0; i < count; i++) {
		struct liar liar;
		struct record records[RANKS];
		liar_open(&liar, collective, false);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			if (messages)
				honest_messages(rank, false, &records[rank]);
			else
				honest_call(&liar, rank, &records[rank]);
		uint32_t sender = i % RANKS;
		memcpy((char *)&records[sender] + lies[i].at, &lies[i].value, lies[i].bytes);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			submit(&liar, rank, &records[rank]);
		reach(&liar);
		must_fail(&liar, lies[i].flags, lies[i].what);
		others_run_on();
		liar_close(&liar);
	}
}

static void fields_out_of_range_end_the_job_with_their_values(void **state)
{
	static const struct lie lies[] = {
	        {"kind 0", HEAD(kind), 0, "kind 0"},
	        {"a kind that there is not", HEAD(kind), 9, "kind 9"},
	        {"another kind's record", HEAD(kind), FERRY_SUBMIT_MESSAGES, "a group of 0"},
	        {"a number from the past", HEAD(number), UINT64_MAX, "submission 18446744073709551615 after 0"},
	        {"a number too far on", HEAD(number), 2, "submission 2 after 0"},
	        {"one word too far", HEAD(flag), FERRY_STREAM_FLAGS, "word 32768"},
	        {"a word far away", HEAD(flag), UINT32_MAX, "word 4294967295"},
	        {"a plan that there is not", HEAD(plan_hash), 1234, "00000000000004d2"},
	        {"no plan", HEAD(plan_hash), 0, "0000000000000000"},
	        {"another count", HEAD(count), COUNT + 1, "of 4001 with the plan of"},
	        {"a count that overflows", HEAD(count), UINT64_MAX, "18446744073709551615"},
	        {"another collective", HEAD(shape), FERRY_ALLGATHER | ferryUint32 << 8, "allgather"},
	        {"no collective", HEAD(shape), 0xff | ferryUint32 << 8, "no collective"},
	        {"another type", HEAD(shape), FERRY_ALLREDUCE | ferryUint8 << 8, "with the plan of"},
	        {"another root", HEAD(root), 1, "with the plan of"},
	        {"a root beyond all ranks", HEAD(root), UINT32_MAX, "with the plan of"},
	        {"a number and a name", HEAD(name), 7, "name 7"},
	        {"neither number nor name", HEAD(seq), 0, "call 0, name 0"},
	        {"a captured call with a number", HEAD(flags), FERRY_SUBMIT_CAPTURED, "captured"},
	        {"more parts than bytes", HEAD(nparts), 65, "65 parts"},
	        {"parts that overflow", HEAD(nparts), UINT32_MAX, "4294967295 parts"},
	        {"an index beyond all", HEAD(send.index), FERRY_MOST_EXPORTS, "1024"},
	        {"an index far away", HEAD(receive.index), UINT32_MAX, ""},
	        {"an index of nothing", HEAD(send.index), 2, ""},
	        {"no generation", HEAD(receive.generation), 0, ""},
	        {"a generation to come", HEAD(send.generation), 2, ""},
	        {"behind the end", HEAD(receive.offset), COUNT * 4 + 1, ""},
	        {"an offset that overflows", HEAD(send.offset), UINT64_MAX, ""},
	        {"an offset whose end overflows", HEAD(receive.offset), UINT64_MAX - COUNT, ""},
	};
	(void)state;
	tell_lies(lies, sizeof lies / sizeof *lies, FERRY_ALLREDUCE, false);
}

static void parts_out_of_range_end_the_job_with_their_values(void **state)
{
	static const struct lie lies[] = {
	        {"no parts", HEAD(nparts), 0, "with 0 parts"},
	        {"too few parts", HEAD(nparts), 1, "with 1 parts"},
	        {"a length that overflows", PART(send_length), UINT64_MAX, "18446744073709551615 bytes"},
	        {"an offset that overflows", PART(receive_offset), UINT64_MAX - 1, "18446744073709551614"},
	        {"a sum just short of it", PART(send_offset), UINT64_MAX - 2000, ""},
	        {"beyond what is mapped", PART(send_offset), 2 * COUNT * 4 - 1999, ""},
	        {"beyond what is mapped there", PART(receive_length), COUNT * 4 - 1999, ""},
	        {"petabytes", PART(receive_length), 1ull << 55, ""},
	};
	(void)state;
	tell_lies(lies, sizeof lies / sizeof *lies, FERRY_ALLTOALLV, false);
}

static void messages_out_of_range_end_the_job_with_their_values(void **state)
{
	static const struct lie lies[] = {
	        {"no messages", HEAD(nparts), 0, "a group of 0"},
	        {"captured", HEAD(flags), FERRY_SUBMIT_CAPTURED, ""},
	        {"more than bytes", HEAD(nparts), 101, "101 parts"},
	        {"a rank that there is not", MESSAGE(peer), RANKS, "with rank 2 of 2"},
	        {"a rank far away", MESSAGE(peer), UINT32_MAX, "with rank 4294967295"},
	        {"no direction", MESSAGE(direction), 2, "direction 2"},
	        {"no type", MESSAGE(type), 200, "type 200"},
	        {"too long", MESSAGE(bytes), 1ull << 56, "72057594037927936 bytes"},
	        {"longer than what is mapped", MESSAGE(bytes), COUNT * 4 + 4, ""},
	        {"an index beyond all", MESSAGE(buffer.index), FERRY_MOST_EXPORTS, ""},
	        {"an offset that overflows", MESSAGE(buffer.offset), UINT64_MAX - 4, ""},
	};
	(void)state;
	tell_lies(lies, sizeof lies / sizeof *lies, FERRY_ALLREDUCE, true);
}

/* ---- the ring, the words ---- */

static void a_ring_whose_positions_cannot_be_ends_the_job(void **state)
{
	static const uint64_t positions[] = {1, 64, FERRY_RING_BYTES + 64, UINT64_MAX, 1ull << 40};
	(void)state;
	for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
		struct liar liar;
		liar_open(&liar, FERRY_ALLREDUCE, false);
		atomic_store(&liar.shared.arenas[0].rings[1].written, positions[i]);
		ring_router(&liar, 1);
		must_fail(&liar, "submission", "positions");
		others_run_on();
		liar_close(&liar);
	}
}

static _Atomic int changing;

/* Writes over the heads of what another thread submits: a race on purpose, which ThreadSanitizer need not tell. */
__attribute__((no_sanitize("thread"))) static void *change_heads(void *argument)
{
	struct liar *liar = argument;
	struct ferry_ring *ring = &liar->shared.arenas[0].rings[0];
	uint32_t state = 1;
	while (atomic_load(&changing)) {
		state = state * 1664525u + 1013904223u;
		volatile char *at = ring->records + (state >> 8) % 2048;
		char before = *at;
		*at = (char)state;
		*at = before;
	}
	return NULL;
}

static bool has_released(const struct liar *liar, uint32_t rank)
{
	return atomic_load(&liar->shared.arenas[0].header->released) >> rank & 1;
}

/* The others' calls and its own go on until then, and what it submits later is not even looked at. */
static void nothing_is_moved_for_a_rank_that_was_answered_when_it_left(void **state)
{
	struct ferry_attach_message leave = {.kind = FERRY_ATTACH_DETACH};
	struct liar liar;
	struct record record;
	(void)state;
	liar_open(&liar, FERRY_ALLREDUCE, false);
	honest_call(&liar, 0, &record);
	submit(&liar, 0, &record);
	atomic_store(&liar.flags[0].flag, 1);
	assert_false(has_released(&liar, 0) || has_released(&liar, 1));
	assert_int_equal(ferry_attach_call(liar.sockets[0], &leave, NULL, NULL), ferrySuccess);
	assert_true(has_released(&liar, 0));
	uint64_t taken = atomic_load(&liar.shared.arenas[0].rings[0].taken);
	submit(&liar, 0, &record);
	close(liar.sockets[1]); /* without a word: the job fails, and with it what still had a lane */
	for (int waited = 0; waited < 60000 && !has_released(&liar, 1); waited++)
		doze(1);
	assert_true(has_released(&liar, 1)); /* though the job has a rank left */
	liar.sockets[1] = -1;
	assert_int_equal(atomic_load(&liar.shared.arenas[0].rings[0].taken), taken);
	assert_int_equal(atomic_load(&liar.flags[0].flag), 1);
	others_run_on();
	liar_close(&liar);
}

static void heads_that_change_while_they_are_taken_harm_nobody(void **state)
{
	(void)state;
	for (int round = 0; round < 30; round++) {
		struct liar liar;
		struct record record;
		pthread_t thread;
		liar_open(&liar, round % 2 ? FERRY_ALLTOALLV : FERRY_ALLREDUCE, false);
		atomic_store(&changing, 1);
		assert_int_equal(pthread_create(&thread, NULL, change_heads, &liar), 0);
		for (uint64_t seq = 1; seq <= 8 && !has_failed(&liar); seq++) {
			for (uint32_t rank = 0; rank < RANKS; rank++) {
				honest_call(&liar, rank, &record);
				record.head.seq = seq;
				record.head.turn = (uint32_t)seq - 1;
				submit(&liar, rank, &record);
			}
			reach(&liar);
			for (int waited = 0; !is_over(&liar) && !has_failed(&liar) && waited < 100; waited++)
				doze(1);
		}
		atomic_store(&changing, 0);
		pthread_join(thread, NULL);
		others_run_on();
		liar_close(&liar);
	}
}

static void words_that_are_short_or_may_shrink_are_refused(void **state)
{
	static const struct {
		size_t bytes;
		int agreements;
	} bad[] = {{WORDS_BYTES, 0},
	           {WORDS_BYTES - 4096, F_SEAL_SHRINK},
	           {0, F_SEAL_SHRINK},
	           {2 * WORDS_BYTES, F_SEAL_SHRINK},
	           {WORDS_BYTES, F_SEAL_GROW}};
	(void)state;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct liar liar;
		memset(&liar, 0, sizeof liar);
		liar.shared.nranks = RANKS;
		liar.shared.ndomains = 1;
		int flags = liar_make_flags(bad[i].bytes, bad[i].agreements);
		for (uint32_t rank = 0; rank < RANKS; rank++)
			liar_attach(&liar, rank, flags, 100000 + (uint32_t)i);
		ferryResult_t result = liar_make_ready(&liar, 0);
		assert_int_equal(result, ferryRefused);
		assert_non_null(strstr(ferry_last_message(), "words"));
		for (int rank = 0; rank < RANKS; rank++)
			close(liar.sockets[rank]);
		ferry_arena_unmap(&liar.shared.arenas[0]);
		close(flags);
		others_run_on();
	}
}

/* ---- many lies at once ---- */

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

/* One value of some field, which is little off, a bound, or anything. */
static void change_field(struct record *record, uint64_t *random)
{
	static const uint64_t values[] = {0,          1,          2,          63,
	                                  64,         1023,       1024,       FERRY_STREAM_FLAGS,
	                                  UINT32_MAX, 1ull << 32, 1ull << 55, UINT64_MAX};
	size_t size = 1u << next_random(random) % 4;
	size_t at = next_random(random) % ((PART_AT + 2 * sizeof record->messages[0]) / size) * size;
	uint64_t value = values[next_random(random) % (sizeof values / sizeof *values)];
	if (next_random(random) % 4 == 0) {
		memcpy(&value, (char *)record + at, size);
		value += next_random(random) % 5 - 2;
	}
	if (next_random(random) % 8 == 0)
		value = next_random(random);
	memcpy((char *)record + at, &value, size);
}

/* Returns how many records. */
static uint64_t submit_anything(struct liar *liar, uint64_t *random)
{
	struct record record;
	uint64_t seqs[RANKS] = {0};
	for (uint32_t i = 0; i < 12; i++) {
		uint32_t rank = next_random(random) % RANKS;
		if (next_random(random) % 3 == 0)
			honest_messages(rank, false, &record);
		else
			honest_call(liar, rank, &record);
		if (record.head.kind == FERRY_SUBMIT_COLLECTIVE) {
			record.head.seq = ++seqs[rank];
			if (next_random(random) % 4 == 0) {
				record.head.flags = FERRY_SUBMIT_CAPTURED;
				record.head.name = seqs[rank];
				record.head.seq = 0;
			}
		}
		record.head.flag = (uint32_t)(next_random(random) % 3);
		record.head.turn = (uint32_t)(next_random(random) % 3);
		record.head.number = ++liar->written[rank];
		for (uint64_t changes = next_random(random) % 3; changes; changes--)
			change_field(&record, random);
		if (next_random(random) % 16)
			record.head.number = liar->written[rank];
		submit(liar, rank, &record);
	}
	return 12;
}

/* FERRY_HOSTILE_WRITES: records and words, at least; FERRY_HOSTILE_SEED (tests/hostility) */
static void anything_at_all_harms_nobody_else(void **state)
{
	const char *asked = getenv("FERRY_HOSTILE_WRITES"), *seed = getenv("FERRY_HOSTILE_SEED");
	uint64_t random = 88172645463325252ull + (seed ? strtoull(seed, NULL, 10) : 0) * 2654435761u, writes = 0;
	uint64_t wanted = asked ? strtoull(asked, NULL, 10) : 0;
	int failed = 0, round = 0;
	(void)state;
	for (; round < 150 || writes < wanted; round++) {
		struct liar liar;
		liar_open(&liar, round % 2 ? FERRY_ALLTOALLV : FERRY_ALLREDUCE, false);
		for (int step = 0; step < 6 && !has_failed(&liar); step++) {
			writes += submit_anything(&liar, &random);
			for (uint32_t flag = 0; flag < 3; flag++) {
				writes++;
				atomic_store(&liar.flags[flag].flag, next_random(&random) % 2);
				atomic_store(&liar.flags[flag].forgotten, next_random(&random) % 8 == 0);
			}
			reach(&liar);
			fails_within(&liar, 3);
		}
		failed += has_failed(&liar);
		liar_close(&liar);
		if (round % 10 == 9)
			others_run_on();
	}
	assert_true(failed > round / 2); /* else it lies too little */
	others_run_on();
	print_message("%llu submissions and words in %d jobs, of which %d ended with a message\n",
	              (unsigned long long)writes, round, failed);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, others_start, others_stop)

/* argv[1]: one test alone. */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_rank_that_does_not_lie_is_served),
	        TEST(fields_out_of_range_end_the_job_with_their_values),
	        TEST(parts_out_of_range_end_the_job_with_their_values),
	        TEST(messages_out_of_range_end_the_job_with_their_values),
	        TEST(a_ring_whose_positions_cannot_be_ends_the_job),
	        TEST(nothing_is_moved_for_a_rank_that_was_answered_when_it_left),
	        TEST(heads_that_change_while_they_are_taken_harm_nobody),
	        TEST(words_that_are_short_or_may_shrink_are_refused),
	        TEST(anything_at_all_harms_nobody_else),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setenv("FERRY_LOG", "error", 1); /* a line for each job that fails otherwise */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
