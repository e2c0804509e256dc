/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank leaves a communicator and the others go on: the calls that it made complete, whichever rank is late, and a
 * call that it never made ends with its name. On GPUs; with FERRY_TEST_HOST on host devices.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT (96 << 10)  /* elements */
#define MORE_THAN_FIT 6   /* messages: a pair's window has four slots */
#define STREAMS 2
#define SOON_MS 9000     /* far beyond what a wake-up takes, below what anybody gives up after */

static const int devices[] = {0, 1, 2};
static bool on_host;

struct lane_rank {
	ferryComm_t comm;
	int device;
	void *input, *output;           /* as calls take them */
	uint32_t *inputs, *outputs;     /* as the test does */
	ferryStream_t streams[STREAMS];
};

struct table {
	struct gang gang;
	struct lane_rank lane_ranks[3];
};

static void enter(const struct lane_rank *lane_rank)
{
	struct place place = {.device = lane_rank->device};
	if (!on_host)
		place_enter(&place);
}

static void *memory_new(uint32_t **reached)
{
	if (on_host)
		return *reached = calloc(COUNT, sizeof(uint32_t));
	CUdeviceptr memory;
	CU(cuMemAlloc(&memory, COUNT * sizeof(uint32_t)));
	*reached = fake_cuda_reach(memory);
	memset(*reached, 0, COUNT * sizeof(uint32_t));
	return pointer_of(memory);
}

static void memory_free(void *memory)
{
	if (on_host)
		free(memory);
	else
		CU(cuMemFree((CUdeviceptr)(uintptr_t)memory));
}

static void lane_rank_open(struct lane_rank *lane_rank, ferryComm_t comm, int rank)
{
	*lane_rank = (struct lane_rank){.comm = comm, .device = devices[rank]};
	enter(lane_rank);
	assert_non_null(lane_rank->input = memory_new(&lane_rank->inputs));
	assert_non_null(lane_rank->output = memory_new(&lane_rank->outputs));
	for (int i = 0; i < STREAMS; i++)
		if (on_host)
			OK(ferryStreamCreate(&lane_rank->streams[i], rank));
		else
			CU(cuStreamCreate((CUstream *)&lane_rank->streams[i], CU_STREAM_NON_BLOCKING));
	for (uint32_t i = 0; i < COUNT; i++)
		lane_rank->inputs[i] = i + (uint32_t)rank;
}

static void lane_rank_close(struct lane_rank *lane_rank)
{
	enter(lane_rank);
	for (int i = 0; i < STREAMS; i++)
		if (on_host)
			ferryStreamDestroy(lane_rank->streams[i]); /* with the error of what was cut off */
		else
			CU(cuStreamDestroy((CUstream)lane_rank->streams[i]));
	memory_free(lane_rank->input);
	memory_free(lane_rank->output);
}

static void table_open(struct table *table, int nranks, int domains)
{
	gang_open(&table->gang, nranks, devices, domains);
	for (int rank = 0; rank < nranks; rank++)
		lane_rank_open(&table->lane_ranks[rank], table->gang.comms[rank], rank);
}

static void leave(struct table *table, int rank)
{
	enter(&table->lane_ranks[rank]);
	OK(ferryCommDestroy(table->lane_ranks[rank].comm));
	table->lane_ranks[rank].comm = NULL;
}

/* Those that are still there end theirs, which have failed or not. */
static void table_close(struct table *table)
{
	for (int rank = 0; rank < table->gang.nranks; rank++)
		if (table->lane_ranks[rank].comm) {
			enter(&table->lane_ranks[rank]);
			ferryCommDestroy(table->lane_ranks[rank].comm);
		}
	for (int rank = 0; rank < table->gang.nranks; rank++)
		lane_rank_close(&table->lane_ranks[rank]);
	domains_close();
}

/* ---- calls ---- */

static ferryResult_t reduce(const struct lane_rank *lane_rank, int stream)
{
	enter(lane_rank);
	return ferryAllReduce(lane_rank->input, lane_rank->output, COUNT, ferryUint32, ferrySum, lane_rank->comm,
	                      lane_rank->streams[stream]);
}

/* Another rank's call may have ended the communicator already. */
static void reduce_in_vain(const struct lane_rank *lane_rank, int stream)
{
	ferryResult_t result = reduce(lane_rank, stream);
	if (result && (result != ferryRemoteError || !strstr(ferryGetLastError(NULL), "has left the communicator")))
		fail_msg("%s: %s", ferryGetErrorString(result), ferryGetLastError(NULL));
}

static bool is_idle(const struct lane_rank *lane_rank, int stream)
{
	enter(lane_rank);
	return on_host ? ferryStreamQuery(lane_rank->streams[stream]) != ferryInProgress
	               : cuStreamQuery((CUstream)lane_rank->streams[stream]) != CUDA_ERROR_NOT_READY;
}

static void settle(const struct lane_rank *lane_rank, int stream)
{
	for (int waited = 0; !is_idle(lane_rank, stream); waited++) {
		if (waited > SOON_MS)
			fail_msg("stream %d of device %d has not come to its end in %d ms", stream, lane_rank->device,
			         SOON_MS);
		doze(1);
	}
}

static void succeeded(const struct lane_rank *lane_rank, int stream)
{
	ferryResult_t error;
	settle(lane_rank, stream);
	if (on_host)
		OK(ferryStreamQuery(lane_rank->streams[stream]));
	OK(ferryCommGetAsyncError(lane_rank->comm, &error));
	if (error)
		fail_msg("%s", ferryGetLastError(lane_rank->comm));
}

/* The rank's stream goes on, and its communicator tells which rank has left. */
static void logged(const struct lane_rank *lane_rank, int stream, int departed_rank)
{
	ferryResult_t error;
	char words[64];
	snprintf(words, sizeof words, "rank %d has left the communicator", departed_rank);
	settle(lane_rank, stream);
	OK(ferryCommGetAsyncError(lane_rank->comm, &error));
	if (error != ferryRemoteError || !strstr(ferryGetLastError(lane_rank->comm), words))
		fail_msg("%s: \"%s\"; expected \"%s\"", ferryGetErrorString(error), ferryGetLastError(lane_rank->comm),
		         words);
}

static void sums_are_right(const struct table *table, int rank)
{
	uint32_t ranks = (uint32_t)table->gang.nranks;
	for (uint32_t i = 0; i < COUNT; i++)
		if (table->lane_ranks[rank].outputs[i] != ranks * i + ranks * (ranks - 1) / 2)
			fail_msg("rank %d: element %u is %u", rank, i, table->lane_ranks[rank].outputs[i]);
}

static void round_of_all(struct table *table)
{
	for (int rank = 0; rank < table->gang.nranks; rank++)
		OK(reduce(&table->lane_ranks[rank], 0));
}

/* ---- calls that were never made ---- */

static void calls_without(int nranks, int domains, int departed_rank, bool before)
{
	struct table table;
	table_open(&table, nranks, domains);
	round_of_all(&table);
	for (int rank = 0; rank < nranks; rank++)
		succeeded(&table.lane_ranks[rank], 0);
	if (!before)
		leave(&table, departed_rank);
	for (int rank = 0; rank < nranks; rank++)
		if (rank != departed_rank)
			reduce_in_vain(&table.lane_ranks[rank], 0);
	if (before) {
		doze(20);
		leave(&table, departed_rank);
	}
	for (int rank = 0; rank < nranks; rank++)
		if (rank != departed_rank)
			logged(&table.lane_ranks[rank], 0, departed_rank);
	table_close(&table);
}

static void a_collective_ends_where_a_rank_has_left(void **state)
{
	(void)state;
	for (int domains = 1; domains <= 2; domains++)
		for (int departed_rank = 0; departed_rank < 3; departed_rank++)
			calls_without(3, domains, departed_rank, false);
}

static void a_collective_under_way_ends_when_a_rank_leaves(void **state)
{
	(void)state;
	for (int domains = 1; domains <= 2; domains++)
		for (int departed_rank = 0; departed_rank < 3; departed_rank++)
			calls_without(3, domains, departed_rank, true);
}

static void send_one(const struct lane_rank *lane_rank)
{
	enter(lane_rank);
	OK(ferrySend(lane_rank->input, 1, ferryUint32, 1, lane_rank->comm, lane_rank->streams[0]));
}

/* One that would fit into the window is no different from one that waits for room in it: nobody will take it out. */
static void a_send_ends_where_its_receiver_has_left(void **state)
{
	(void)state;
	for (int before = 0; before < 2; before++) {
		struct table table;
		table_open(&table, 2, 2);
		for (int i = 0; before && i < MORE_THAN_FIT; i++)
			send_one(&table.lane_ranks[0]);
		doze(20 * before);
		leave(&table, 1);
		if (!before)
			send_one(&table.lane_ranks[0]);
		logged(&table.lane_ranks[0], 0, 1);
		table_close(&table);
	}
}

static void a_receive_ends_where_its_sender_has_left(void **state)
{
	(void)state;
	for (int before = 0; before < 2; before++) {
		struct table table;
		struct lane_rank *lane_rank = &table.lane_ranks[1];
		table_open(&table, 2, 1);
		if (!before)
			leave(&table, 0);
		enter(lane_rank);
		OK(ferryRecv(lane_rank->output, 1, ferryUint32, 0, lane_rank->comm, lane_rank->streams[0]));
		if (before) {
			doze(20);
			leave(&table, 0);
		}
		logged(lane_rank, 0, 0);
		table_close(&table);
	}
}

/* The second of two messages: the first one was sent. */
static void a_message_that_was_sent_arrives_and_the_next_one_ends(void **state)
{
	struct table table;
	(void)state;
	table_open(&table, 2, 1);
	enter(&table.lane_ranks[1]);
	OK(ferrySend(table.lane_ranks[1].input, 1, ferryUint32, 0, table.lane_ranks[1].comm,
	             table.lane_ranks[1].streams[0]));
	settle(&table.lane_ranks[1], 0);
	leave(&table, 1);
	struct lane_rank *lane_rank = &table.lane_ranks[0];
	enter(lane_rank);
	OK(ferryRecv(lane_rank->output, 1, ferryUint32, 1, lane_rank->comm, lane_rank->streams[0]));
	succeeded(lane_rank, 0);
	assert_int_equal(lane_rank->outputs[0], 1);
	OK(ferryRecv(lane_rank->output, 1, ferryUint32, 1, lane_rank->comm, lane_rank->streams[0]));
	logged(lane_rank, 0, 1);
	table_close(&table);
}

struct splitter {
	struct lane_rank *lane_rank;
	ferryResult_t result;
	char message[256];
	pthread_t thread;
};

static void *split(void *argument)
{
	struct splitter *splitter = argument;
	ferryComm_t made;
	enter(splitter->lane_rank);
	splitter->result = ferryCommSplit(splitter->lane_rank->comm, 0, 0, &made, NULL);
	snprintf(splitter->message, sizeof splitter->message, "%s", ferryGetLastError(NULL));
	return NULL;
}

static void a_split_ends_where_a_rank_has_left(void **state)
{
	(void)state;
	for (int before = 0; before < 2; before++) {
		struct table table;
		table_open(&table, 2, 2);
		struct splitter splitter = {.lane_rank = &table.lane_ranks[0]};
		if (!before)
			leave(&table, 1);
		assert_int_equal(pthread_create(&splitter.thread, NULL, split, &splitter), 0);
		if (before) {
			doze(20);
			leave(&table, 1);
		}
		assert_int_equal(pthread_join(splitter.thread, NULL), 0);
		if (splitter.result != ferryRemoteError ||
		    !strstr(splitter.message, "rank 1 has left the communicator"))
			fail_msg("%s: \"%s\"", ferryGetErrorString(splitter.result), splitter.message);
		table_close(&table);
	}
}

/* Rank 0, which numbers calls from the first captured one on, is one of those that leave. */
static void a_replay_ends_where_a_rank_has_left(void **state)
{
	(void)state;
	if (on_host)
		skip();
	for (int departed_rank = 0; departed_rank < 2; departed_rank++) {
		struct table table;
		CUgraphExec graphs[2];
		table_open(&table, 2, 1);
		for (int rank = 0; rank < 2; rank++) {
			CUgraph graph;
			CUstream stream = (CUstream)table.lane_ranks[rank].streams[0];
			enter(&table.lane_ranks[rank]);
			CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
			OK(reduce(&table.lane_ranks[rank], 0));
			CU(cuStreamEndCapture(stream, &graph));
			CU(cuGraphInstantiateWithFlags(&graphs[rank], graph, 0));
			CU(cuGraphDestroy(graph));
			CU(cuGraphLaunch(graphs[rank], stream));
		}
		for (int rank = 0; rank < 2; rank++)
			succeeded(&table.lane_ranks[rank], 0);
		enter(&table.lane_ranks[departed_rank]);
		CU(cuGraphExecDestroy(graphs[departed_rank]));
		leave(&table, departed_rank);
		struct lane_rank *other = &table.lane_ranks[!departed_rank];
		enter(other);
		CU(cuGraphLaunch(graphs[!departed_rank], (CUstream)other->streams[0]));
		logged(other, 0, departed_rank);
		CU(cuGraphExecDestroy(graphs[!departed_rank]));
		table_close(&table);
	}
}

/* ---- calls that were made ---- */

static void who_leaves_behind_its_last_call_holds_nobody_up(void **state)
{
	(void)state;
	for (int round = 0; round < 6; round++) {
		struct table table;
		int departed_rank = round % 3;
		table_open(&table, 3, 1 + round % 2);
		round_of_all(&table);
		leave(&table, departed_rank);
		for (int rank = 0; rank < 3; rank++)
			if (rank != departed_rank) {
				succeeded(&table.lane_ranks[rank], 0);
				sums_are_right(&table, rank);
			}
		table_close(&table);
	}
}

/*
 * The root is done with a broadcast when its part is in the window, and leaves; the others still take it out, slowly,
 * and one of them has made a call without the root already.
 */
static void a_call_that_a_rank_made_before_it_left_completes_beside_one_that_it_did_not_make(void **state)
{
	struct table table;
	(void)state;
	if (!on_host)
		skip(); /* their links have no speed */
	setenv("FERRY_HOST_LINK", "d2h=10,h2d=0.001", 1); /* 393216 bytes: 400 ms */
	setenv("FERRY_SLICE", "65536", 1);
	setenv("FERRY_WINDOW", "6", 1); /* all of it */
	table_open(&table, 3, 1);
	for (int rank = 0; rank < 3; rank++)
		OK(ferryBroadcast(table.lane_ranks[rank].input, table.lane_ranks[rank].output, COUNT, ferryUint32, 1,
		                  table.lane_ranks[rank].comm, table.lane_ranks[rank].streams[0]));
	leave(&table, 1);
	assert_false(is_idle(&table.lane_ranks[2], 0));
	OK(reduce(&table.lane_ranks[0], 1));
	for (int rank = 0; rank < 3; rank += 2) {
		settle(&table.lane_ranks[rank], 0);
		OK(ferryStreamQuery(table.lane_ranks[rank].streams[0]));
		for (uint32_t i = 0; i < COUNT; i++)
			assert_int_equal(table.lane_ranks[rank].outputs[i], i + 1);
	}
	logged(&table.lane_ranks[0], 1, 1);
	table_close(&table);
	unsetenv("FERRY_HOST_LINK");
	unsetenv("FERRY_SLICE");
	unsetenv("FERRY_WINDOW");
}

static void who_stays_may_still_send_and_receive(void **state)
{
	struct table table;
	(void)state;
	table_open(&table, 3, 2);
	leave(&table, 0);
	struct lane_rank *one = &table.lane_ranks[1], *other = &table.lane_ranks[2];
	enter(one);
	OK(ferrySend(one->input, COUNT, ferryUint32, 2, one->comm, one->streams[0]));
	enter(other);
	OK(ferryRecv(other->output, COUNT, ferryUint32, 1, other->comm, other->streams[0]));
	succeeded(one, 0);
	succeeded(other, 0);
	for (uint32_t i = 0; i < COUNT; i++)
		assert_int_equal(other->outputs[i], i + 1);
	table_close(&table);
}

static void send_all(const struct lane_rank *from, int to)
{
	enter(from);
	OK(ferrySend(from->input, COUNT, ferryUint32, to, from->comm, from->streams[0]));
}

static void receive_all(const struct lane_rank *to, int from)
{
	enter(to);
	OK(ferryRecv(to->output, COUNT, ferryUint32, from, to->comm, to->streams[0]));
}

/*
 * Rank 2 leaves, and the router dies; late: when that has died. Ranks 0 and 2 have pushed before, 1 has not called. The
 * next router serves when this returns, as it has moved what rank 0 sends itself.
 */
static void leave_and_lose_the_router(struct table *table, bool late)
{
	send_all(&table->lane_ranks[0], 2);
	receive_all(&table->lane_ranks[2], 0);
	succeeded(&table->lane_ranks[0], 0);
	succeeded(&table->lane_ranks[2], 0);
	if (!late)
		leave(table, 2);
	routers_kill(0);
	if (late)
		leave(table, 2);
	routers_open(domains_asked_for());
	OK(ferryGroupStart());
	send_all(&table->lane_ranks[0], 0);
	receive_all(&table->lane_ranks[0], 0);
	OK(ferryGroupEnd());
	succeeded(&table->lane_ranks[0], 0);
}

/*
 * With the next router ranks that have pushed and one that calls for the first time go the same way, though a rank has
 * left meanwhile; and nobody waits for that one when the job ends.
 */
static void who_stays_goes_on_pushing_when_the_router_dies(void **state)
{
	(void)state;
	if (!getenv("FERRY_TEST_PUSHES"))
		skip();
	for (int late = 0; late < 2; late++) {
		struct table table;
		struct lane_rank *one = &table.lane_ranks[1], *other = &table.lane_ranks[0];
		table_open(&table, 3, 1);
		leave_and_lose_the_router(&table, late);
		send_all(one, 0);
		receive_all(other, 1);
		succeeded(one, 0);
		succeeded(other, 0);
		for (uint32_t i = 0; i < COUNT; i++)
			assert_int_equal(other->outputs[i], i + 1);
		receive_all(other, 1);
		enter(one);
		OK(ferryCommAbort(one->comm));
		one->comm = NULL;
		settle(other, 0);
		table_close(&table);
	}
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_collective_ends_where_a_rank_has_left),
	        TEST(a_collective_under_way_ends_when_a_rank_leaves),
	        TEST(a_send_ends_where_its_receiver_has_left),
	        TEST(a_receive_ends_where_its_sender_has_left),
	        TEST(a_message_that_was_sent_arrives_and_the_next_one_ends),
	        TEST(a_split_ends_where_a_rank_has_left),
	        TEST(a_replay_ends_where_a_rank_has_left),
	        TEST(who_leaves_behind_its_last_call_holds_nobody_up),
	        TEST(a_call_that_a_rank_made_before_it_left_completes_beside_one_that_it_did_not_make),
	        TEST(who_stays_may_still_send_and_receive),
	        TEST(who_stays_goes_on_pushing_when_the_router_dies),
	};
	setenv("FERRY_STAGING", "4M", 1);
	fake_is_the_driver();
	on_host = getenv("FERRY_TEST_HOST");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
