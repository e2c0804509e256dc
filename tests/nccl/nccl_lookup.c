/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promise of the table of communicators: a thread that looks one up, without a lock, gets the whole one that it asked
 * for, or nothing, whatever others make and end. The table is compiled here with a pause where its readers can be
 * overtaken.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* What others do, in the thread that looks up, where it can be overtaken. Once. */
static _Thread_local void (*overtake)(void);

static void pause_here(void)
{
	void (*now)(void) = overtake;
	overtake = NULL;
	if (now)
		now();
	else
		sched_yield();
}

#undef atomic_compare_exchange_weak_explicit
#define atomic_compare_exchange_weak_explicit(object, expected, desired, success, failure)                             \
	(pause_here(), atomic_compare_exchange_strong_explicit(object, expected, desired, success, failure))
#include "orchestrator/communicators.c"

#include "tests/nccl/heard.h"

/* Two handles of one chain. */
#define FIRST ((ncclComm_t)0x10000)

static ncclComm_t second(void)
{
	uintptr_t handle = (uintptr_t)FIRST + 16;
	while (chain_of((ncclComm_t)handle) != chain_of(FIRST))
		handle += 16;
	return (ncclComm_t)handle;
}

static void make(ncclComm_t handle, uint64_t word)
{
	ferry_nccl_comm_add(handle, &(struct ferry_nccl_pending_comm){.key = {{word, ~word}}});
}

static void end_first(void)
{
	ferry_nccl_comm_remove(FIRST);
}

static void make_second_in_its_place(void)
{
	ferry_nccl_comm_remove(FIRST);
	make(second(), 2);
}

static void make_first_again(void)
{
	ferry_nccl_comm_remove(FIRST);
	make(FIRST, 3);
}

static void who_is_overtaken_gets_what_was_asked_for_or_nothing(void **state)
{
	(void)state;
	static const struct {
		void (*overtake)(void);
		uint64_t word; /* 0: nothing */
	} cases[] = {{end_first, 0}, {make_second_in_its_place, 0}, {make_first_again, 3}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		make(FIRST, 1);
		struct ferry_nccl_comm *entry = find(FIRST);
		overtake = cases[i].overtake;
		struct ferry_nccl_comm *comm = ferry_nccl_comm_take(FIRST);
		assert_null(overtake);
		assert_int_equal(comm ? comm->key.words[0] : 0, cases[i].word);
		ferry_nccl_comm_release(comm);
		ferry_nccl_comm_remove(FIRST);
		ferry_nccl_comm_remove(second());
		assert_int_equal(atomic_load(&entry->users), 0);
		assert_true(atomic_load(&entry->vacant));
	}
}

#define THREADS 3
#define HANDLES 4 /* of a thread */
#define ROUNDS  6000

static _Atomic int stop;
static _Atomic(uintptr_t) shown[THREADS];

/* Handles that fall into few chains of the table, so that entries go from one to the other. */
static uintptr_t handle_of(size_t thread, uint64_t i)
{
	static uintptr_t handles[THREADS * HANDLES];
	static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
	pthread_mutex_lock(&once);
	uintptr_t handle = 0x10000;
	for (size_t n = 0; !handles[0] && n < THREADS * HANDLES; handle += 16)
		if ((handle >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> 56 < 2)
			handles[n++] = handle;
	handle = handles[thread * HANDLES + i % HANDLES];
	pthread_mutex_unlock(&once);
	return handle;
}

/* The key of a communicator says what its handle is. */
static bool whole(struct ferry_nccl_comm *comm, uintptr_t handle)
{
	struct ferry_nccl_key key = comm->key;
	sched_yield();
	return key.words[0] >> 32 == handle && key.words[0] == ~key.words[1] && !memcmp(&key, &comm->key, sizeof key);
}

/* Looks up what others make and end all the time: what it gets is whole, and what it asked for, or nothing. */
static void *look_up(void *context)
{
	(void)context;
	for (uint64_t i = 0; !atomic_load(&stop); i++) {
		uintptr_t handle = atomic_load(&shown[i % THREADS]);
		struct ferry_nccl_comm *comm = ferry_nccl_comm_take((ncclComm_t)handle);
		if (comm && !whole(comm, handle)) {
			fprintf(stderr, "looked up %#jx: the key says %#jx\n", (uintmax_t)handle,
			        (uintmax_t)comm->key.words[0]);
			abort();
		}
		ferry_nccl_comm_release(comm);
	}
	return NULL;
}

/* Handles of its own, used again and again. */
static void *make_and_end(void *context)
{
	size_t thread = (size_t)context;
	for (uint64_t i = 0; i < ROUNDS; i++) {
		uintptr_t handle = handle_of(thread, i);
		uint64_t word = (uint64_t)handle << 32 | i;
		struct ferry_nccl_pending_comm pending_comm = {.key = {{word, ~word}}, .has_key = true};
		ferry_nccl_comm_add((ncclComm_t)handle, &pending_comm);
		atomic_store(&shown[thread], handle);
		if (i % 7 == 0)
			sched_yield();
		if (i % 3)
			ferry_nccl_comm_remove((ncclComm_t)handle); /* else its next one takes its place */
	}
	return NULL;
}

static void looking_up_takes_no_lock_and_finds_what_is_whole(void **state)
{
	(void)state;
	pthread_t makers[THREADS], lookers[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&lookers[i], NULL, look_up, NULL);
	for (size_t i = 0; i < THREADS; i++)
		pthread_create(&makers[i], NULL, make_and_end, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(makers[i], NULL);
	atomic_store(&stop, 1);
	for (int i = 0; i < 4; i++)
		pthread_join(lookers[i], NULL);
	for (size_t i = 0; i < THREADS * HANDLES; i++)
		ferry_nccl_comm_remove((ncclComm_t)handle_of(i / HANDLES, i % HANDLES));
}

/* ---- what it says of them ---- */

static int count; /* ranks of the next one */

static ncclResult_t tell_count(ncclComm_t handle, int *logged)
{
	(void)handle;
	*logged = count;
	return ncclSuccess;
}

static ncclResult_t tell_zero(ncclComm_t handle, int *logged)
{
	(void)handle;
	*logged = 0;
	return ncclSuccess;
}

static void must_say(const struct ferry_nccl_pending_comm *pending_comm, int nranks, const char *words)
{
	count = nranks;
	listen_to_all();
	ferry_nccl_comm_add(FIRST, pending_comm);
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(FIRST);
	for (int again = 0; again < 2; again++)
		assert_true(ferry_nccl_comm_learn(comm));
	ferry_nccl_comm_release(comm);
	ferry_nccl_comm_remove(FIRST);
	must_have_said(words, 1);
}

static void rank_0_says_why_a_communicator_is_nccls_alone(void **state)
{
	static const struct ferry_nccl nccl = {
	        .functions = {.CommCount = tell_count, .CommUserRank = tell_zero, .CommCuDevice = tell_zero}};
	struct ferry_nccl_pending_comm named = {.key = {{1, 1}}, .has_key = true}, nameless = {.has_key = false};
	struct ferry_nccl_pending_comm copying = {.key = {{1, 1}}, .has_key = true, .copies = true};
	(void)state;
	atomic_store(&ferry_nccl_found, &nccl);
	ferry_log_set_level(FERRY_LOG_INFO);
	must_say(&named, FERRY_MAX_RANKS, "info: watching NCCL's communicator 0000000000000001 of 64 ranks");
	must_say(&named, FERRY_MAX_RANKS + 1, "of 65 ranks, rank 0 on device 0, stays NCCL's alone: Ferry's have 64 ");
	must_say(&nameless, 2, "of 2 ranks, rank 0 on device 0, stays NCCL's alone: its ranks share no name");
	must_say(&copying, 2, "of 2 ranks, rank 0 on device 0, stays NCCL's alone: its calls are for NCCL's ");
	atomic_store(&ferry_nccl_found, NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(rank_0_says_why_a_communicator_is_nccls_alone),
	        cmocka_unit_test(who_is_overtaken_gets_what_was_asked_for_or_nothing),
	        cmocka_unit_test(looking_up_takes_no_lock_and_finds_what_is_whole),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
