/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the seals: all parties find one word per call, whichever is first; a split is sealed only where all look;
 * nobody waits, however far one runs ahead; a party that dies leaves a valid ring. Threads and processes, and rings so
 * small that every call wraps around.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/arena.h"
#include "ipc/shares.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALLS 50000
#define MOST 8 /* threads */
#define YIELDS 1000

/* A ring of its own, in memory that children share. */
static void *ring_new(uint32_t nparties, uint32_t ncells)
{
	void *memory = mmap(NULL, ferry_agreement_bytes(nparties, ncells), PROT_READ | PROT_WRITE,
	                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory, MAP_FAILED);
	return memory;
}

static void ring_free(void *memory, uint32_t nparties, uint32_t ncells)
{
	munmap(memory, ferry_agreement_bytes(nparties, ncells));
}

static void open_all(struct ferry_agreement *agreements, void *memory, uint32_t nparties, uint32_t ncells)
{
	for (uint32_t i = 0; i < nparties; i++)
		ferry_agreement_open(&agreements[i], memory, nparties, ncells, i);
}

/* ---- in one thread ---- */

static void the_first_seals_and_all_read_it(void **state)
{
	(void)state;
	struct ferry_agreement agreements[3];
	void *ring = ring_new(3, 8);
	open_all(agreements, ring, 3, 8);
	for (int i = 0; i < 3; i++)
		ferry_agreement_join(&agreements[i], 0);
	for (uint64_t n = 0; n < 100; n++)
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(ferry_agreement_take(&agreements[(n + i) % 3], n, 1000 + (n + i) % 3),
			                 1000 + n % 3);
	ring_free(ring, 3, 8);
}

static void calls_before_all_have_joined_are_nccls(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	uint64_t first;
	void *ring = ring_new(2, 8);
	open_all(agreements, ring, 2, 8);
	assert_int_equal(ferry_agreement_take(&agreements[0], 0, 7), FERRY_AGREEMENT_NONE);
	ferry_agreement_join(&agreements[0], 1);
	assert_int_equal(ferry_agreement_take(&agreements[0], 0, 7), FERRY_AGREEMENT_NONE); /* not looked up */
	assert_int_equal(ferry_agreement_take(&agreements[0], 1, 7), FERRY_AGREEMENT_NONE); /* sealed so */
	assert_false(ferry_agreement_joined(&agreements[0], &first));
	ferry_agreement_join(&agreements[1], 1);
	assert_int_equal(ferry_agreement_take(&agreements[1], 1, 8), FERRY_AGREEMENT_NONE); /* found so */
	assert_true(ferry_agreement_joined(&agreements[0], &first));
	assert_int_equal(first, 1);
	assert_int_equal(ferry_agreement_take(&agreements[1], 2, 8), 8);
	assert_int_equal(ferry_agreement_take(&agreements[0], 2, 7), 8);
	ring_free(ring, 2, 8);
}

static void who_joins_with_a_later_call_keeps_the_earlier_ones_nccls(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	void *ring = ring_new(2, 8);
	open_all(agreements, ring, 2, 8);
	ferry_agreement_join(&agreements[0], 0);
	ferry_agreement_join(&agreements[1], 5);
	for (uint64_t n = 0; n < 5; n++)
		assert_int_equal(ferry_agreement_take(&agreements[0], n, 7), FERRY_AGREEMENT_NONE);
	assert_int_equal(ferry_agreement_take(&agreements[0], 5, 7), 7);
	assert_int_equal(ferry_agreement_take(&agreements[1], 5, 8), 7);
	ring_free(ring, 2, 8);
}

static void who_runs_ahead_of_the_ring_gets_nccl_and_so_do_the_others(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	uint32_t words[64];
	void *ring = ring_new(2, 4);
	open_all(agreements, ring, 2, 4);
	ferry_agreement_join(&agreements[0], 0);
	ferry_agreement_join(&agreements[1], 0);
	for (uint64_t n = 0; n < 64; n++) {
		words[n] = ferry_agreement_take(&agreements[0], n, 7);
		assert_int_equal(words[n], n < 4 ? 7 : FERRY_AGREEMENT_NONE);
	}
	for (uint64_t n = 0; n < 64; n++)
		assert_int_equal(ferry_agreement_take(&agreements[1], n, 8), words[n]);
	assert_int_equal(ferry_agreement_take(&agreements[1], 64, 8), 8); /* together again */
	assert_int_equal(ferry_agreement_take(&agreements[0], 64, 7), 8);
	ring_free(ring, 2, 4);
}

static void a_ring_far_ahead_of_the_slowest_is_nccls_for_good(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	uint64_t end = 4ull * (FERRY_AGREEMENT_LAPS + 10), n;
	void *ring = ring_new(2, 4);
	open_all(agreements, ring, 2, 4);
	ferry_agreement_join(&agreements[0], 0);
	ferry_agreement_join(&agreements[1], 0);
	for (n = 0; n < end; n++)
		assert_int_equal(ferry_agreement_take(&agreements[0], n, 7), n < 4 ? 7 : FERRY_AGREEMENT_NONE);
	for (n = 0; n < end; n++)
		assert_int_equal(ferry_agreement_take(&agreements[1], n, 8), n < 4 ? 7 : FERRY_AGREEMENT_NONE);
	for (; n < end + 100; n++)
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(ferry_agreement_take(&agreements[(n + i) % 2], n, 9), FERRY_AGREEMENT_NONE);
	ring_free(ring, 2, 4);
}

static void nobody_joins_and_nobody_waits(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	void *ring = ring_new(2, 4);
	open_all(agreements, ring, 2, 4);
	ferry_agreement_join(&agreements[0], 3);
	for (uint64_t n = 0; n < 4ull * (FERRY_AGREEMENT_LAPS + 10); n++)
		assert_int_equal(ferry_agreement_take(&agreements[0], n, 7), FERRY_AGREEMENT_NONE);
	ring_free(ring, 2, 4);
}

static void what_was_sealed_holds_when_one_withdraws_and_nothing_more_is(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	void *ring = ring_new(2, 8);
	open_all(agreements, ring, 2, 8);
	ferry_agreement_join(&agreements[0], 0);
	ferry_agreement_join(&agreements[1], 0);
	assert_int_equal(ferry_agreement_take(&agreements[0], 0, 7), 7);
	assert_int_equal(ferry_agreement_take(&agreements[0], 1, 7), 7);
	ferry_agreement_withdraw(&agreements[1]);
	assert_true(ferry_agreement_withdrawn(&agreements[0]));
	assert_int_equal(ferry_agreement_take(&agreements[1], 0, 8), 7);
	assert_int_equal(ferry_agreement_take(&agreements[1], 1, 8), 7);
	assert_int_equal(ferry_agreement_take(&agreements[1], 2, 8), FERRY_AGREEMENT_NONE);
	assert_int_equal(ferry_agreement_take(&agreements[0], 2, 7), FERRY_AGREEMENT_NONE);
	assert_int_equal(ferry_agreement_take(&agreements[0], 3, 7), FERRY_AGREEMENT_NONE);
	ring_free(ring, 2, 8);
}

static void the_largest_numbers_are_nccls(void **state)
{
	(void)state;
	struct ferry_agreement agreements[2];
	void *ring = ring_new(2, 4);
	uint64_t most = ((1ull << 28) - 1) * 4; /* the first whose lap has no room */
	open_all(agreements, ring, 2, 4);
	ferry_agreement_join(&agreements[0], most - 8);
	ferry_agreement_join(&agreements[1], most - 8);
	for (uint64_t n = most - 8; n < most + 8; n++)
		for (uint32_t i = 0; i < 2; i++)
			assert_int_equal(ferry_agreement_take(&agreements[i], n, 7),
			                 n < most ? 7 : FERRY_AGREEMENT_NONE);
	ring_free(ring, 2, 4);
}

/* A cell keeps all 22 bits of a word, and no more. */
static void words_come_back_whole(void **state)
{
	(void)state;
	struct ferry_agreement agreement;
	void *ring = ring_new(1, 4);
	ferry_agreement_open(&agreement, ring, 1, 4, 0);
	ferry_agreement_join(&agreement, 0);
	assert_int_equal(ferry_agreement_take(&agreement, 0, (1u << FERRY_AGREEMENT_BITS) - 1),
	                 (1u << FERRY_AGREEMENT_BITS) - 1);
	assert_int_equal(ferry_agreement_take(&agreement, 1, ~0u), (1u << FERRY_AGREEMENT_BITS) - 1);
	assert_int_equal(ferry_agreement_take(&agreement, 4, 5), 5);
	ring_free(ring, 1, 4);
}

/* ---- in the arena ---- */

static void every_pair_of_an_arena_has_seals_of_its_own(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 5, .staging = 1 << 20, .node = -1};
	struct ferry_agreement agreement, ends[2];
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	for (uint32_t self = 0; self < 5; self++) {
		ferry_arena_agreement(&arena, self, &agreement);
		ferry_agreement_join(&agreement, 0);
	}
	assert_int_equal(ferry_agreement_take(&agreement, FERRY_AGREEMENT_CALLS - 1, 99), 99);
	for (uint32_t from = 0; from < 5; from++)
		for (uint32_t to = 0; to < 5; to++) {
			ferry_arena_agreement_pair(&arena, from, to, 0, &ends[0]);
			ferry_arena_agreement_pair(&arena, from, to, 1, &ends[1]);
			assert_true((char *)(ends[0].cells + ends[0].ncells) <= (char *)arena.shares);
			assert_int_equal(ferry_agreement_take(&ends[0], 0, 1), FERRY_AGREEMENT_NONE);
			ferry_agreement_join(&ends[0], 0);
			ferry_agreement_join(&ends[1], 0);
			assert_int_equal(ferry_agreement_take(&ends[0], 255, from * 5 + to + 1), from * 5 + to + 1);
			assert_int_equal(ferry_agreement_take(&ends[1], 255, 77), from * 5 + to + 1);
		}
	ferry_arena_unmap(&arena);
	shape.domain = 1, shape.ndomains = 2;
	assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
	assert_ptr_equal(arena.agreements, arena.staging[0]); /* none elsewhere */
	assert_ptr_equal(arena.shares, arena.staging[0]);
	ferry_arena_unmap(&arena);
}

/* The first domain's arena has the seals, the second's has none: so much longer is the first. */
static uint64_t seal_bytes(uint32_t nranks)
{
	uint64_t bytes[2];
	for (uint32_t domain = 0; domain < 2; domain++) {
		struct ferry_arena_shape shape = {
		        .domain = domain, .ndomains = 2, .nranks = nranks, .staging = 1 << 24, .node = -1};
		struct ferry_arena arena;
		assert_int_equal(ferry_arena_create(&shape, &arena), ferrySuccess);
		bytes[domain] = arena.bytes;
		ferry_arena_unmap(&arena);
	}
	return bytes[0] - bytes[1];
}

static void seals_of_64_ranks_take_little(void **state)
{
	(void)state;
	assert_true(seal_bytes(64) < 3 << 20);
	assert_true(seal_bytes(8) < 288 << 10);
	assert_int_equal(ferry_agreement_pair_cells(64), 32);
	assert_int_equal(ferry_agreement_pair_cells(8), 256);
}

/* ---- many at once ---- */

struct runner {
	struct ferry_agreement agreement;
	uint64_t from, to, join;
	uint32_t *words;
	uint64_t leash;
	int yields; /* that are left: beside busy processes each may cost a time slice */
	unsigned seed;
	pthread_barrier_t *together; /* before call `meet`, when all have joined; NULL: nobody waits */
	uint64_t meet;
};

/* Lets others run while this one is far ahead, for a while: they may be dead. */
static void stay_near(struct runner *runner, uint64_t n)
{
	for (int patience = 0; patience < 50 && runner->yields; patience++) {
		uint64_t least = UINT64_MAX;
		for (uint32_t i = 0; i < runner->agreement.nparties; i++) {
			uint64_t passed = atomic_load(&runner->agreement.parties[i].passed);
			least = passed < least ? passed : least;
		}
		if (n <= least + runner->leash)
			return;
		runner->yields--;
		sched_yield();
	}
}

/* Which party is ahead changes, and by how much. A proposal says which party has made it. */
static void *run(void *argument)
{
	struct runner *runner = argument;
	uint32_t own = runner->agreement.self + 1;
	for (uint64_t n = runner->from; n < runner->to; n++) {
		if (n == runner->join)
			ferry_agreement_join(&runner->agreement, n);
		if (runner->together && n == runner->meet)
			pthread_barrier_wait(runner->together);
		runner->words[n] = ferry_agreement_take(&runner->agreement, n, own << 16 | (uint32_t)(n & 0xffff));
		if (rand_r(&runner->seed) % 8 == 0)
			stay_near(runner, n);
	}
	return NULL;
}

/* All words of one call are the same, and whole: of that number, sealed by somebody. Returns how many are splits. */
static long check_words(const struct runner *runners, uint32_t nparties, uint64_t to)
{
	long splits = 0;
	for (uint64_t n = 0; n < to; n++) {
		uint32_t word = runners[0].words[n];
		for (uint32_t i = 1; i < nparties; i++)
			if (runners[i].words[n] != word)
				fail_msg("call %llu: rank 0 has %x, rank %u has %x", (unsigned long long)n, word, i,
				         runners[i].words[n]);
		if (word == FERRY_AGREEMENT_NONE)
			continue;
		assert_int_equal(word & 0xffff, n & 0xffff);
		assert_in_range(word >> 16, 1, MOST);
		splits++;
	}
	return splits;
}

static void threads_agree(uint32_t nparties, uint32_t ncells, bool late)
{
	struct runner runners[MOST] = {0};
	pthread_t threads[MOST];
	void *ring = ring_new(nparties, ncells);
	/* else one may have made all its calls before the last one begins, and sealed them as NCCL's */
	pthread_barrier_t together;
	pthread_barrier_init(&together, NULL, nparties);
	for (uint32_t i = 0; i < nparties; i++) {
		ferry_agreement_open(&runners[i].agreement, ring, nparties, ncells, i);
		runners[i].to = CALLS;
		runners[i].together = &together;
		runners[i].meet = late ? (nparties - 1) * 7 : 0;
		runners[i].join = late ? i * 7 : 0;
		runners[i].seed = i + 1;
		runners[i].leash = ncells * 3 / 2;
		runners[i].yields = YIELDS;
		runners[i].words = calloc(CALLS, sizeof *runners[i].words);
		pthread_create(&threads[i], NULL, run, &runners[i]);
	}
	for (uint32_t i = 0; i < nparties; i++)
		pthread_join(threads[i], NULL);
	long splits = check_words(runners, nparties, CALLS);
	print_message("%u threads, %u cells: %ld of %d calls are splits\n", nparties, ncells, splits, CALLS);
	assert_true(splits > 0);
	for (uint32_t i = 0; i < nparties; i++)
		free(runners[i].words);
	pthread_barrier_destroy(&together);
	ring_free(ring, nparties, ncells);
}

static void threads_agree_on_every_call(void **state)
{
	(void)state;
	threads_agree(2, 1, false);
	threads_agree(2, 4, true);
	threads_agree(3, 16, true);
	threads_agree(4, 4096, true);
	threads_agree(8, 64, true);
}

/*
 * Processes, of which one is killed in the middle; the others come to the end, and agree on what all of them have made,
 * and with the dead one as far as it came.
 */
static void who_is_killed_leaves_the_others_going(void **state)
{
	(void)state;
	enum { PARTIES = 3, CELLS = 8 };
	struct runner runners[PARTIES] = {0};
	pid_t children[PARTIES];
	void *ring = ring_new(PARTIES, CELLS);
	size_t bytes = CALLS * sizeof(uint32_t);
	for (uint32_t i = 0; i < PARTIES; i++) {
		ferry_agreement_open(&runners[i].agreement, ring, PARTIES, CELLS, i);
		runners[i].to = CALLS;
		runners[i].seed = i + 1;
		runners[i].leash = CELLS;
		runners[i].yields = YIELDS;
		runners[i].words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		memset(runners[i].words, 0xff, bytes);
		if ((children[i] = fork()) == 0) {
			run(&runners[i]);
			_exit(0);
		}
	}
	_Atomic uint64_t *passed = &runners[2].agreement.parties[2].passed;
	while (atomic_load(passed) < CALLS / 8)
		sched_yield();
	kill(children[2], SIGKILL);
	for (uint32_t i = 0; i < PARTIES; i++)
		assert_int_equal(waitpid(children[i], NULL, 0), children[i]);
	check_words(runners, 2, CALLS);
	for (uint64_t n = 0; n < atomic_load(passed) - 1; n++)
		assert_int_equal(runners[2].words[n], runners[0].words[n]);
	for (uint32_t i = 0; i < PARTIES; i++)
		munmap(runners[i].words, bytes);
	ring_free(ring, PARTIES, CELLS);
}

/* ---- shares as words ---- */

static void shares_are_words_and_ranges(void **state)
{
	(void)state;
	for (uint32_t host = 0; host <= FERRY_SHARES_WHOLE; host += 5)
		for (uint32_t peer = 0; host + peer <= FERRY_SHARES_WHOLE; peer += 7) {
			struct ferry_shares in = {.part = {(uint8_t)host, (uint8_t)peer,
			                                   (uint8_t)(FERRY_SHARES_WHOLE - host - peer)},
			                          .tuning = (host + peer) % FERRY_SHARES_TUNINGS}, out;
			assert_int_equal(ferry_shares_divide(ferry_shares_pack(&in)), host + peer > 0);
			assert_int_equal(ferry_shares_tuning(ferry_shares_pack(&in)), in.tuning);
			uint64_t next = 0, at, length;
			assert_true(ferry_shares_pack(&in) < 1u << FERRY_AGREEMENT_BITS);
			out = ferry_shares_unpack(ferry_shares_pack(&in));
			assert_memory_equal(&in, &out, sizeof in);
			uint32_t word = ferry_shares_pack(&in), begins = word ^ FERRY_SHARES_BEGINS;
			assert_false(ferry_shares_begin(&word));
			assert_true(begins < 1u << FERRY_AGREEMENT_BITS && ferry_shares_begin(&begins));
			assert_int_equal(begins, word);
			for (int fabric = 0; fabric < FERRY_NUM_FABRICS; fabric++) {
				ferry_shares_range(&in, (enum ferry_fabric)fabric, 1000003, 64, &at, &length);
				assert_int_equal(at, next);
				assert_true(in.part[fabric] || !length);
				assert_true((at + length) % 64 == 0 || at + length == 1000003);
				next = at + length;
			}
			assert_int_equal(next, 1000003);
		}
	struct ferry_shares none = ferry_shares_unpack(~0u);
	assert_int_equal(none.part[FERRY_FABRIC_NCCL], FERRY_SHARES_WHOLE);
	assert_int_equal(ferry_shares_pack(&none), FERRY_AGREEMENT_NONE);
}

static void shares_are_read_with_either_sign(void **state)
{
	(void)state;
	double shares[FERRY_NUM_FABRICS];
	uint32_t named;
	static const char *const bad[] = {"", "host", "host:", "gpu:0.1", "host:1.5", "host=nan", "host:0.1,host:0.2",
	                                  "host:0.1,", "host:0.1 ", "host0.1"};
	assert_int_equal(ferry_shares_read("nccl:0.75,host=0.25", shares, &named), ferrySuccess);
	assert_int_equal(named, 1u << FERRY_FABRIC_NCCL | 1u << FERRY_FABRIC_HOST);
	assert_true(shares[FERRY_FABRIC_NCCL] == 0.75 && shares[FERRY_FABRIC_HOST] == 0.25);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(ferry_shares_read(bad[i], shares, &named), ferryInvalidArgument);
}

static void shares_are_pinned_for_nccl(void **state)
{
	(void)state;
	static const struct {
		const char *text;
		int host, peer;
	} good[] = {{"nccl:0.9,host:0.1", 13, 0}, {"host:0.25", 32, 0},          {"peer=0.5", 0, 64},
	            {"nccl:1", 0, 0},             {"host=0.1,peer=0.9", 13, 115}, {"nccl=0,host=1", 128, 0},
	            {"nccl:0.5,host:0.2,peer:0.3", 26, 38}};
	static const char *const bad[] = {"nccl:0.9", "nccl:0.9,host:0.2", "host:0.2,peer:0.2", "host:0.7,peer:0.7"};
	struct ferry_shares pins;
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		assert_int_equal(ferry_shares_pin(good[i].text, &pins), ferrySuccess);
		assert_int_equal(pins.part[FERRY_FABRIC_HOST], good[i].host);
		assert_int_equal(pins.part[FERRY_FABRIC_PEER], good[i].peer);
		assert_int_equal(pins.part[FERRY_FABRIC_NCCL], (int)FERRY_SHARES_WHOLE - good[i].host - good[i].peer);
	}
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(ferry_shares_pin(bad[i], &pins), ferryInvalidArgument);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(the_first_seals_and_all_read_it),
	        cmocka_unit_test(calls_before_all_have_joined_are_nccls),
	        cmocka_unit_test(who_joins_with_a_later_call_keeps_the_earlier_ones_nccls),
	        cmocka_unit_test(who_runs_ahead_of_the_ring_gets_nccl_and_so_do_the_others),
	        cmocka_unit_test(a_ring_far_ahead_of_the_slowest_is_nccls_for_good),
	        cmocka_unit_test(nobody_joins_and_nobody_waits),
	        cmocka_unit_test(what_was_sealed_holds_when_one_withdraws_and_nothing_more_is),
	        cmocka_unit_test(the_largest_numbers_are_nccls),
	        cmocka_unit_test(words_come_back_whole),
	        cmocka_unit_test(every_pair_of_an_arena_has_seals_of_its_own),
	        cmocka_unit_test(seals_of_64_ranks_take_little),
	        cmocka_unit_test(threads_agree_on_every_call),
	        cmocka_unit_test(who_is_killed_leaves_the_others_going),
	        cmocka_unit_test(shares_are_words_and_ranges),
	        cmocka_unit_test(shares_are_read_with_either_sign),
	        cmocka_unit_test(shares_are_pinned_for_nccl),
	};
	return cmocka_run_group_tests_name("seal", tests, NULL, NULL);
}
