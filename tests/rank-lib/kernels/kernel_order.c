/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of one communicator that kernels carry, in graphs and beside them, over the double of the CUDA driver: nothing
 * but the communicator puts them in order, which is that in which the program launches calls and graphs.
 */
#include "tests/fake_cuda/replays.h"

#include "rank-lib/call/comm.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#define NRANKS 3
#define TIMES  REPEATS(200, 60)
#define TWO    2 /* graphs, or streams */

struct pair {
	struct gang gang;
	struct place places[TWO][MOST_PLACES];
	CUgraphExec graphs[TWO][MOST_PLACES];
};

static void pair_open(struct pair *pair)
{
	gang_open(&pair->gang, NRANKS, devices, 1);
	assert_true(pair->gang.comms[0]->mailboxes.ready);
	for (int which = 0; which < TWO; which++)
		places_open(pair->places[which], &pair->gang, COUNT + 1000 * (size_t)which);
}

static void pair_capture(struct pair *pair, int which)
{
	capture_round(pair->places[which], &pair->gang, 1 + which, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
	              pair->graphs[which]);
}

static void pair_replay(struct pair *pair, int which)
{
	replay(pair->places[which], &pair->gang, pair->graphs[which]);
}

static void rest(void *unused)
{
	(void)unused;
	doze(50);
}

/* Its stream comes to what follows a while later. */
static void hold_up(const struct place *place)
{
	place_enter(place);
	CU(fake_cuda_launch(place->stream, rest, NULL));
}

static void places_close_all(struct pair *pair)
{
	for (int which = 0; which < TWO; which++)
		places_close(pair->places[which], &pair->gang);
}

static void two_graphs_run_in_the_order_of_their_launches(void **state)
{
	(void)state;
	struct pair pair;
	pair_open(&pair);
	for (int which = 0; which < TWO; which++)
		pair_capture(&pair, which);
	for (int i = 0; i < TIMES; i++)
		for (int which = 0; which < TWO; which++)
			pair_replay(&pair, (which + i) % TWO);
	for (int which = 0; which < TWO; which++) {
		places_settle(pair.places[which], &pair.gang, TIMES);
		forget(&pair.gang, pair.graphs[which]);
	}
	gang_close(&pair.gang);
	places_close_all(&pair);
}

/* Plain calls of before the graph was captured too, which are under way when it is launched. */
static void a_graph_and_plain_calls_on_two_streams_run_in_order(void **state)
{
	(void)state;
	struct pair pair;
	pair_open(&pair);
	hold_up(&pair.places[0][NRANKS - 1]);
	for (int i = 0; i < 3; i++)
		places_round(pair.places[0], &pair.gang);
	pair_capture(&pair, 1);
	pair_replay(&pair, 1);
	for (int i = 0; i < TIMES; i++) {
		if (i % 3)
			pair_replay(&pair, 1);
		places_round(pair.places[i % 5 == 0], &pair.gang);
	}
	int plain = TIMES - TIMES / 5;
	places_settle(pair.places[0], &pair.gang, 3 + (uint32_t)plain);
	places_settle(pair.places[1], &pair.gang, 1 + TIMES - (TIMES + 2) / 3 + TIMES / 5);
	forget(&pair.gang, pair.graphs[1]);
	gang_close(&pair.gang);
	places_close_all(&pair);
}

/* Two captures that are open at the same time. */
static void graphs_that_are_captured_side_by_side_run_in_order(void **state)
{
	(void)state;
	struct pair pair;
	pair_open(&pair);
	for (int rank = 0; rank < NRANKS; rank++) {
		for (int which = 0; which < TWO; which++)
			begin(&pair.places[which][rank], CU_STREAM_CAPTURE_MODE_RELAXED);
		for (int i = 0; i < 4; i++)
			place_round(&pair.places[i % TWO][rank], pair.gang.comms[rank]);
		for (int which = 0; which < TWO; which++)
			pair.graphs[which][rank] = end(&pair.places[which][rank]);
	}
	for (int i = 0; i < TIMES; i++)
		for (int which = 0; which < TWO; which++)
			pair_replay(&pair, (which + i) % TWO);
	for (int which = 0; which < TWO; which++) {
		places_settle(pair.places[which], &pair.gang, 2 * TIMES);
		forget(&pair.gang, pair.graphs[which]);
	}
	gang_close(&pair.gang);
	places_close_all(&pair);
}

static void settle(const struct pair *pair, int which, uint32_t rounds)
{
	for (int rank = 0; rank < NRANKS; rank++) {
		place_enter(&pair->places[which][rank]);
		CU(cuStreamSynchronize(pair->places[which][rank].stream));
		assert_int_equal(pair->places[which][rank].round, rounds);
	}
}

/* Its kernels give up, and its event is there as long as it is. */
static void a_graph_outlives_its_communicator(void **state)
{
	(void)state;
	struct pair pair, next;
	pair_open(&pair);
	for (int which = 0; which < TWO; which++)
		pair_capture(&pair, which);
	hold_up(&pair.places[0][NRANKS - 1]);
	pair_replay(&pair, 0); /* the communicator's end waits for it */
	forget(&pair.gang, pair.graphs[1]);
	gang_close(&pair.gang);
	settle(&pair, 0, 1);
	for (int rank = 0; rank < NRANKS; rank++)
		assert_int_equal(pair.places[0][rank].wrong, 0);
	pair_open(&next);
	pair_capture(&next, 0);
	for (int i = 0; i < 20; i++) {
		pair_replay(&pair, 0);
		pair_replay(&next, 0);
	}
	places_settle(next.places[0], &next.gang, 20);
	settle(&pair, 0, 21);
	forget(&pair.gang, pair.graphs[0]);
	forget(&next.gang, next.graphs[0]);
	gang_close(&next.gang);
	places_close_all(&pair);
	places_close_all(&next);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

/* ---- ranks that leave ---- */

#define LEAVES  5000
#define MOST_NS 5000000000u /* beside other programs each one may take time slices */

struct leaver {
	struct ferry_mailbox_cell *cell;
	_Atomic uint32_t call; /* its last one; the rank leaves then; UINT32_MAX: no more */
};

static void *leave_again(void *argument)
{
	struct leaver *leaver = argument;
	for (uint32_t call, last = 0; (call = atomic_load(&leaver->call)) != UINT32_MAX; last = call) {
		if (call == last) {
			sched_yield();
			continue;
		}
		atomic_store_explicit(&leaver->cell->last, call, memory_order_relaxed);
		atomic_store_explicit(&leaver->cell->stage, FERRY_MAILBOX_LEFT, memory_order_release);
	}
	return NULL;
}

/* A kernel says that it waits for rank 1 in that call, as it did a moment ago. */
static void look_as_it_leaves(struct ferry_mailboxes *mailboxes, struct ferry_mailbox_cell *cell, uint32_t call)
{
	_Atomic uint64_t *waits = mailboxes->box->aborted->waits;
	atomic_store(&waits[0], 1);
	for (uint64_t look = 1; atomic_load(&cell->stage) != FERRY_MAILBOX_LEFT; look++) {
		atomic_store(&waits[1], look << 32 | call);
		mailboxes->entry.watch(&mailboxes->entry);
	}
}

/* Rank 1 leaves behind the call in which rank 0 has waited for it, just as rank 0's router monitor looks. */
static void a_rank_that_leaves_behind_a_call_is_not_missed_in_it(void **state)
{
	(void)state;
	struct gang gang;
	pthread_t thread;
	gang_open(&gang, NRANKS, devices, 1);
	struct ferry_rank *rank = &gang.comms[0]->rank;
	struct ferry_mailboxes *mailboxes = &gang.comms[0]->mailboxes;
	struct leaver leaver = {.cell = &ferry_rank_line(&rank->shared, 1)->mailbox};
	assert_true(mailboxes->ready);
	ferry_router_monitor_remove(&mailboxes->entry); /* this thread looks */
	assert_int_equal(pthread_create(&thread, NULL, leave_again, &leaver), 0);
	uint64_t until = ferry_now_ns() + MOST_NS;
	for (uint32_t call = 1; call <= LEAVES && !ferry_rank_failed(rank) && ferry_now_ns() < until; call++) {
		atomic_store(&leaver.cell->last, 0);
		atomic_store(&leaver.cell->stage, FERRY_MAILBOX_MAPPED);
		atomic_store(&leaver.call, call);
		look_as_it_leaves(mailboxes, leaver.cell, call);
	}
	atomic_store(&leaver.call, UINT32_MAX);
	pthread_join(thread, NULL);
	if (ferry_rank_failed(rank))
		fail_msg("%s", rank->error_message);
	atomic_store(&leaver.cell->last, 0);
	atomic_store(&leaver.cell->stage, FERRY_MAILBOX_MAPPED);
	for (int i = 0; i < 2; i++)
		atomic_store(&mailboxes->box->aborted->waits[i], 0);
	assert_int_equal(ferry_router_monitor_add(&mailboxes->entry), ferrySuccess);
	gang_close(&gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(two_graphs_run_in_the_order_of_their_launches),
	        TEST(a_graph_and_plain_calls_on_two_streams_run_in_order),
	        TEST(graphs_that_are_captured_side_by_side_run_in_order),
	        TEST(a_graph_outlives_its_communicator),
	        TEST(a_rank_that_leaves_behind_a_call_is_not_missed_in_it),
	};
	setenv("FERRY_KERNELS", "on", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
