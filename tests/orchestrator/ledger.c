/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the table of shares: all ranks seal what rank 0 has learned from the slowest of them; what a job has
 * learned is there for the next of the same settings; nothing that a rank has written is trusted.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/arena.h"
#include "orchestrator/balance/ledger.h"
#include "router/daemon/saved_shares.h"
#include "tests/orchestrator/fabrics.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RANKS 3
#define GB_S 1000.0
#define BYTES (64u << 20)
#define SIGNATURE 77
#define GROWTH 3 /* of two costs that are alike, measured on a machine however busy */

static const struct ferry_balancer_call call = {FERRY_ALLREDUCE, ferryFloat32, BYTES, false};
static const struct ferry_arena_shape shape = {.ndomains = 1, .nranks = RANKS, .staging = 1 << 20, .node = -1};

/* Rank 2 has a slower way to the host. */
static struct fabrics machine_of(uint32_t rank)
{
	struct fabrics machine = {.paces = {{90, 24 * GB_S}, {0, 0}, {40, 21 * GB_S}}, .noise = 0.01, .seed = rank + 1};
	if (rank == 2)
		machine.paces[FERRY_FABRIC_HOST].rate = 12 * GB_S;
	return machine;
}

struct one {
	struct ferry_ledger ledger;
	struct ferry_agreement agreement;
	struct fabrics machine;
	uint64_t calls;
	uint32_t *words;
};

static void one_open(struct one *one, const struct ferry_arena *arena, uint32_t rank, uint64_t calls)
{
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	memset(one, 0, sizeof *one);
	one->machine = machine_of(rank);
	one->calls = calls;
	one->words = calloc(calls, sizeof *one->words);
	ferry_ledger_open(&one->ledger, arena->shares, RANKS, rank, SIGNATURE, &rules);
	ferry_arena_agreement(arena, rank, &one->agreement);
	ferry_agreement_join(&one->agreement, 0);
}

static void one_call(struct one *one, uint64_t n)
{
	double us[FERRY_NUM_FABRICS];
	bool measure;
	uint32_t proposal = ferry_ledger_propose(&one->ledger, &call, n, 0, &measure);
	uint32_t word = ferry_agreement_take(&one->agreement, n, proposal);
	struct ferry_shares shares = ferry_shares_unpack(word);
	one->words[n] = word;
	fabrics_call(&one->machine, BYTES, &shares, us);
	if (measure)
		ferry_ledger_record(&one->ledger, &call, n, word, us);
}

static void free_all(struct one *ranks)
{
	for (int rank = 0; rank < RANKS; rank++)
		free(ranks[rank].words);
}

/* As rank 2's host would have it: 12 of 33, less what its start costs. */
static void check_share(uint32_t word)
{
	struct ferry_shares shares = ferry_shares_unpack(word);
	assert_in_range(shares.part[FERRY_FABRIC_HOST], 330, 390);
}

static void the_slowest_rank_decides(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	struct ferry_share_line line;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, 60);
	for (uint64_t n = 0; n < 60; n++)
		for (uint32_t i = 0; i < RANKS; i++)
			one_call(&ranks[(n + i) % RANKS], n); /* another is first each time */
	for (uint64_t n = 0; n < 60; n++)
		assert_true(ranks[0].words[n] == ranks[1].words[n] && ranks[0].words[n] == ranks[2].words[n]);
	assert_true(ferry_share_line_read(&arena.shares->lines[0], &line));
	check_share(line.word);
	assert_int_equal(line.why, FERRY_BALANCE_SETTLED);
	assert_int_equal(line.bytes, BYTES);
	assert_true(fabs(line.paces[FERRY_FABRIC_HOST].rate / (12 * GB_S) - 1) < 0.1);
	assert_true(line.samples > 20);
	for (uint64_t n = 1000; n < 1010; n++) { /* and all propose it, though they have seen nothing of the others */
		bool measure;
		if (!ferry_balancer_picks(n, line.probe_every))
			assert_int_equal(ferry_ledger_propose(&ranks[1].ledger, &call, n, 0, &measure), line.word);
	}
	free_all(ranks);
	free(ranks);
	ferry_arena_unmap(&arena);
}

static void a_rank_that_tells_nothing_is_not_waited_for(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	struct ferry_share_line line;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, 200);
	for (uint64_t n = 0; n < 200; n++) {
		one_call(&ranks[0], n);
		one_call(&ranks[2], n);
	}
	assert_true(ferry_share_line_read(&arena.shares->lines[0], &line));
	check_share(line.word);
	free_all(ranks);
	free(ranks);
	ferry_arena_unmap(&arena);
}

static void the_log_has_a_line_for_each_call(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	char path[] = "/tmp/ferry-ledger-test-XXXXXX", text[400];
	int file = mkstemp(path), lines = 0;
	assert_true(file >= 0);
	close(file);
	setenv("FERRY_SHARES_LOG", path, 1);
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, 10);
	unsetenv("FERRY_SHARES_LOG");
	for (uint64_t n = 0; n < 10; n++)
		for (uint32_t rank = RANKS; rank-- > 0;)
			one_call(&ranks[rank], n);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		ferry_ledger_close(&ranks[rank].ledger);
	FILE *log = fopen(path, "r");
	assert_non_null(log);
	for (; fgets(text, sizeof text, log); lines++) {
		char begin[128];
		snprintf(begin, sizeof begin,
		         "{\"call\":%d,\"collective\":\"allreduce\",\"type\":\"f32\",\"bytes\":67108864,\"host\":",
		         lines);
		assert_memory_equal(text, begin, strlen(begin));
		assert_non_null(strstr(text, ",\"nccl_us\":"));
		assert_non_null(strstr(text, "\"why\":\""));
	}
	assert_int_equal(lines, 10);
	fclose(log);
	unlink(path);
	free_all(ranks);
	free(ranks);
	ferry_arena_unmap(&arena);
}

static void *run(void *argument)
{
	struct one *one = argument;
	for (uint64_t n = 0; n < one->calls; n++)
		one_call(one, n);
	return NULL;
}

static void threads_agree_and_learn(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	pthread_t threads[RANKS];
	enum { CALLS = 20000 };
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, CALLS);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		pthread_create(&threads[rank], NULL, run, &ranks[rank]);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		pthread_join(threads[rank], NULL);
	for (uint64_t n = 0; n < CALLS; n++)
		assert_true(ranks[0].words[n] == ranks[1].words[n] && ranks[0].words[n] == ranks[2].words[n]);
	free_all(ranks);
	free(ranks);
	ferry_arena_unmap(&arena);
}

/* A job learns, ends, and the next one of the same settings starts where it was. */
static void what_was_learned_is_there_for_the_next_job(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_saved_shares *saved = calloc(1, sizeof *saved);
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	bool measure;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 0, &arena);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, 60);
	for (uint64_t n = 0; n < 60; n++)
		for (uint32_t rank = 0; rank < RANKS; rank++)
			one_call(&ranks[rank], n);
	ferry_saved_shares_take(saved, 0, &arena);
	ferry_arena_unmap(&arena);
	free_all(ranks);

	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 0, &arena);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		ferry_ledger_open(&ranks[rank].ledger, arena.shares, RANKS, rank, SIGNATURE, &rules);
		check_share(ferry_ledger_propose(&ranks[rank].ledger, &call, 0, 0, &measure));
	}
	ferry_ledger_open(&ranks[0].ledger, arena.shares, RANKS, 0, SIGNATURE + 1, &rules); /* others start anew */
	uint32_t word = ferry_ledger_propose(&ranks[0].ledger, &call, 0, 0, &measure);
	assert_int_equal(word, FERRY_SHARES_NONE);
	ferry_arena_unmap(&arena);

	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 65533, &arena); /* nor for another user */
	assert_int_equal(arena.shares->saved_signatures[0], 0);
	ferry_arena_unmap(&arena);
	struct ferry_arena_shape larger = shape;
	larger.nranks = RANKS + 1;
	assert_int_equal(ferry_arena_create(&larger, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 0, &arena); /* nothing for another number of ranks */
	assert_int_equal(arena.shares->saved_signatures[0], 0);
	ferry_arena_unmap(&arena);
	free(ranks);
	free(saved);
}

static void the_settings_used_last_are_kept(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_saved_shares *saved = calloc(1, sizeof *saved);
	for (uint64_t signature = 1; signature <= FERRY_SAVED_SHARES + 4; signature++) {
		struct ferry_share_course course = {.paces = {{{1, (double)signature}}}};
		assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
		arena.shares->signature = signature;
		ferry_share_course_write(&arena.shares->courses[3], &course);
		ferry_saved_shares_take(saved, 0, &arena);
		ferry_arena_unmap(&arena);
	}
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 0, &arena);
	for (uint64_t i = 0; i < FERRY_SHARE_SAVED; i++) {
		struct ferry_share_course course;
		assert_int_equal(arena.shares->saved_signatures[i], FERRY_SAVED_SHARES + 4 - i);
		assert_true(ferry_share_course_read(&arena.shares->saved[i][0], &course));
		assert_true(course.paces[0][0].rate == (double)(FERRY_SAVED_SHARES + 4 - i));
	}
	ferry_arena_unmap(&arena);
	free(saved);
}

static void keep_one(struct ferry_saved_shares *saved, uint32_t owner, uint64_t signature)
{
	struct ferry_arena arena;
	struct ferry_share_course course = {.paces = {{{1, (double)signature}}}};
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	arena.shares->signature = signature;
	ferry_share_course_write(&arena.shares->courses[3], &course);
	ferry_saved_shares_take(saved, owner, &arena);
	ferry_arena_unmap(&arena);
}

/* An owner with many settings does not displace the settings of others. */
static void owners_keep_theirs_whatever_others_have(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_saved_shares *saved = calloc(1, sizeof *saved);
	keep_one(saved, 1, 71);
	keep_one(saved, 1, 72);
	for (uint64_t signature = 1; signature <= 3 * FERRY_SAVED_SHARES; signature++)
		keep_one(saved, 2, signature);
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 1, &arena);
	assert_int_equal(arena.shares->saved_signatures[0], 72);
	assert_int_equal(arena.shares->saved_signatures[1], 71);
	ferry_arena_unmap(&arena);
	for (uint32_t owner = 3; owner < 3 + FERRY_SAVED_SHARES - 2; owner++) /* and new ones get a place */
		keep_one(saved, owner, 80);
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	ferry_saved_shares_give(saved, 2, &arena);
	assert_int_equal(arena.shares->saved_signatures[0], 3 * FERRY_SAVED_SHARES);
	ferry_arena_unmap(&arena);
	free(saved);
}

/* Whatever lies in the table, what comes out of it is in its bounds, and nobody falls over it. */
static void nothing_that_a_rank_has_written_is_trusted(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_saved_shares *saved = calloc(1, sizeof *saved);
	struct ferry_ledger *ledger = calloc(1, sizeof *ledger);
	struct ferry_balancer_rules rules = ferry_balancer_default_rules();
	unsigned seed = 11;
	long courses = 0;
	for (int round = 0; round < 200; round++) {
		assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
		_Atomic uint64_t *words = (_Atomic uint64_t *)arena.shares;
		for (uint64_t i = 0; i < ferry_share_table_bytes(RANKS) / 8; i++) {
			uint64_t word = (uint64_t)rand_r(&seed) << 33 ^ (uint64_t)rand_r(&seed) << 11 ^
			                (uint64_t)rand_r(&seed);
			words[i] = rand_r(&seed) % 2 ? word : (word & 0x0000ffff00000303u) | 1ull << 63;
		}
		ferry_saved_shares_take(saved, 0, &arena);
		for (uint32_t self = 0; self < RANKS; self++) {
			ferry_ledger_open(ledger, arena.shares, RANKS, self, arena.shares->saved_signatures[0], &rules);
			for (uint64_t n = 0; n < 20; n++) {
				struct ferry_balancer_call any = {(enum ferry_collective)(n % 4), ferryInt8,
				                                  (uint64_t)BYTES << n % 5, false};
				const double us[] = {1000, 0, 1000};
				bool measure;
				uint32_t word = ferry_ledger_propose(ledger, &any, n, 0, &measure);
				struct ferry_shares shares = ferry_shares_unpack(word);
				assert_int_equal(shares.part[0] + shares.part[1] + shares.part[2],
				                 FERRY_SHARES_WHOLE);
				ferry_ledger_record(ledger, &any, n, word, us);
			}
		}
		ferry_arena_unmap(&arena);
	}
	for (int i = 0; i < FERRY_SAVED_SHARES; i++)
		for (uint32_t j = 0; j < saved->settings[i].ncourses; j++) {
			const struct ferry_share_course *course = &saved->settings[i].courses[j];
			assert_true(course->collective < FERRY_NUM_COLLECTIVES && course->type < ferryNumTypes);
			for (int k = 0; k < FERRY_NUM_FABRICS * FERRY_SHARE_BESIDE; k++) {
				const struct ferry_pace *pace = &course->paces[k / 4][k % 4];
				assert_true(pace->start_us >= 0 && pace->start_us <= 1e9 && pace->rate >= 0 &&
				            pace->rate <= 1e8);
			}
			courses++;
		}
	assert_true(courses > 0);
	free(saved);
	free(ledger);
}

/* ---- what it costs ---- */

static struct ferry_balancer_call call_of(int which)
{
	static const enum ferry_collective of[] = {FERRY_ALLREDUCE, FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT};
	return (struct ferry_balancer_call){of[which % 3], ferryFloat32, (uint64_t)exp2(20 + which / 6.0), false};
}

static double cpu_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Nanoseconds of a call that is proposed, the least of several rounds; *measured: of all. */
static double cost_of(struct ferry_ledger *ledger, const struct ferry_balancer_call *settled, double *measured)
{
	enum { CALLS = 20000, ROUNDS = 10 };
	double least = INFINITY;
	int count = 0;
	for (int round = 0; round < ROUNDS; round++) {
		double begun = cpu_ns();
		for (uint64_t n = 0; n < CALLS; n++) {
			bool measure;
			ferry_ledger_propose(ledger, settled, 1000000 + n, 1, &measure);
			count += measure;
		}
		least = fmin(least, (cpu_ns() - begun) / CALLS);
	}
	*measured = (double)count / (CALLS * ROUNDS);
	return least;
}

/* A call costs no more for the sizes that others have, and which it is of those: nothing is looked through. */
static void a_settled_call_costs_next_to_nothing(void **state)
{
	(void)state;
	enum { SIZES = 60 };
	struct ferry_arena arena;
	struct one *ranks = calloc(RANKS, sizeof *ranks);
	uint64_t n = 0;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t rank = 0; rank < RANKS; rank++)
		one_open(&ranks[rank], &arena, rank, 1);
	for (int which = 0; which < SIZES; which++)
		for (int i = 0; i < 40; i++, n++)
			for (int rank = RANKS - 1; rank >= 0; rank--) {
				double us[FERRY_NUM_FABRICS];
				bool measure;
				struct ferry_balancer_call other = call_of(which);
				uint32_t word = ferry_ledger_propose(&ranks[0].ledger, &other, n, 0, &measure);
				struct ferry_shares shares = ferry_shares_unpack(word);
				fabrics_call(&ranks[rank].machine, (double)other.bytes, &shares, us);
				ferry_ledger_record(&ranks[rank].ledger, &other, n, word, us);
			}
	for (int rank = 0; rank < 2; rank++) {
		double first = INFINITY;
		for (int which = 0; which < SIZES; which += SIZES - 1) {
			struct ferry_balancer_call settled = call_of(which);
			double measured, ns = cost_of(&ranks[rank].ledger, &settled, &measured);
			print_message("rank %d, size %2d of %d: %.0f ns a call, %.3f of them measured\n", rank, which,
			              SIZES, ns, measured);
			assert_true(ns < GROWTH * first);
			first = ns;
		}
	}
	free_all(ranks);
	free(ranks);
	ferry_arena_unmap(&arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_slowest_rank_decides),
	        cmocka_unit_test(a_rank_that_tells_nothing_is_not_waited_for),
	        cmocka_unit_test(the_log_has_a_line_for_each_call),
	        cmocka_unit_test(threads_agree_and_learn),
	        cmocka_unit_test(what_was_learned_is_there_for_the_next_job),
	        cmocka_unit_test(the_settings_used_last_are_kept),
	        cmocka_unit_test(owners_keep_theirs_whatever_others_have),
	        cmocka_unit_test(nothing_that_a_rank_has_written_is_trusted),
	        cmocka_unit_test(a_settled_call_costs_next_to_nothing),
	};
	return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
