/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the API beyond a single collective: stream order, events, groups, point to point, uneven all to all,
 * programs, created reductions, several communicators, splitting, ending, and calls from many threads.
 */
#include "tests/api_ranks.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define N 4
#define COUNT 20000

static void stream_order_holds_before_and_after_a_call(void **state)
{
	(void)state;
	struct ranks ranks;
	static int32_t source[N][COUNT], input[N][COUNT], output[N][COUNT], copy[N][COUNT];
	ferryStream_t streams[N];
	open_ranks(&ranks, N, 2);
	for (int rank = 0; rank < N; rank++)
		OK(ferryStreamCreate(&streams[rank], rank));
	for (int round = 1; round <= 20; round++) {
		for (int rank = 0; rank < N; rank++) {
			for (int i = 0; i < COUNT; i++)
				source[rank][i] = round * (i + rank);
			OK(ferryMemcpyAsync(input[rank], source[rank], sizeof source[rank], streams[rank]));
			OK(ferryAllReduce(input[rank], output[rank], COUNT, ferryInt32, ferrySum, ranks.comms[rank],
			                  streams[rank]));
			OK(ferryMemcpyAsync(copy[rank], output[rank], sizeof output[rank], streams[rank]));
		}
		for (int rank = 0; rank < N; rank++)
			OK(ferryStreamSynchronize(streams[rank]));
		for (int rank = 0; rank < N; rank++)
			for (int i = 0; i < COUNT; i += 97)
				assert_int_equal(copy[rank][i], round * (N * i + 6));
	}
	for (int rank = 0; rank < N; rank++)
		OK(ferryStreamDestroy(streams[rank]));
	close_ranks(&ranks);
}

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	int open;
};

static void wait_at_gate(void *argument)
{
	struct gate *gate = argument;
	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->opened, &gate->lock);
	pthread_mutex_unlock(&gate->lock);
}

static void a_call_starts_when_its_stream_reaches_it_and_events_tell(void **state)
{
	(void)state;
	struct ranks ranks;
	struct gate gate = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
	int32_t input[2] = {1, 2}, output[2] = {0, 0};
	ferryStream_t streams[2], other;
	ferryEvent_t before, after;
	double microseconds;
	open_ranks(&ranks, 2, 1);
	OK(ferryEventCreate(&before));
	OK(ferryEventCreate(&after));
	OK(ferryStreamCreate(&other, 0));
	for (int rank = 0; rank < 2; rank++)
		OK(ferryStreamCreate(&streams[rank], rank));
	OK(ferryLaunchHostFunc(streams[0], wait_at_gate, &gate));
	OK(ferryEventRecord(before, streams[0]));
	for (int rank = 0; rank < 2; rank++)
		OK(ferryAllReduce(&input[rank], &output[rank], 1, ferryInt32, ferrySum, ranks.comms[rank],
		                  streams[rank]));
	OK(ferryEventRecord(after, streams[0]));
	OK(ferryStreamWaitEvent(other, after));
	assert_int_equal(ferryStreamQuery(streams[1]), ferryInProgress); /* rank 0 has not come */
	assert_int_equal(ferryEventQuery(after), ferryInProgress);
	assert_int_equal(ferryEventElapsedTime(&microseconds, before, after), ferryInProgress);
	assert_int_equal(output[0], 0);
	pthread_mutex_lock(&gate.lock);
	gate.open = 1;
	pthread_cond_broadcast(&gate.opened);
	pthread_mutex_unlock(&gate.lock);
	OK(ferryStreamSynchronize(other));
	OK(ferryEventSynchronize(after));
	assert_int_equal(output[0], 3);
	OK(ferryStreamSynchronize(streams[1]));
	assert_int_equal(output[1], 3);
	OK(ferryEventElapsedTime(&microseconds, before, after));
	assert_true(microseconds >= 0);
	OK(ferryEventDestroy(before));
	OK(ferryEventDestroy(after));
	OK(ferryStreamDestroy(other));
	for (int rank = 0; rank < 2; rank++)
		OK(ferryStreamDestroy(streams[rank]));
	close_ranks(&ranks);
}

static void many_calls_in_flight_finish_in_order(void **state)
{
	(void)state;
	struct ranks ranks;
	static int64_t values[N][100];
	open_ranks(&ranks, N, 2);
	for (int rank = 0; rank < N; rank++)
		for (int i = 0; i < 100; i++)
			values[rank][i] = 1;
	for (int round = 0; round < 25; round++) /* each multiplies by N: any lost or reordered call shows */
		for (int rank = 0; rank < N; rank++)
			OK(ferryAllReduce(values[rank], values[rank], 100, ferryInt64, ferrySum, ranks.comms[rank],
			                  NULL));
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < N; rank++)
		for (int i = 0; i < 100; i++)
			assert_true(values[rank][i] == 1ll << 50);
	close_ranks(&ranks);
}

static void two_communicators_run_on_two_streams_at_once(void **state)
{
	(void)state;
	struct ranks first, second;
	static float a[2][COUNT], b[2][COUNT], x[2][COUNT], y[2][COUNT];
	ferryStream_t streams[2][2];
	open_ranks(&first, 2, 1);
	open_ranks(&second, 2, 1);
	for (int rank = 0; rank < 2; rank++)
		for (int which = 0; which < 2; which++)
			OK(ferryStreamCreate(&streams[rank][which], rank));
	for (int rank = 0; rank < 2; rank++)
		for (int i = 0; i < COUNT; i++) {
			a[rank][i] = (float)(i % 100 + rank);
			b[rank][i] = (float)(i % 50 - rank);
		}
	for (int round = 0; round < 20; round++) {
		/* Rank 1 issues them the other way round: only streams of their own make this legal. */
		OK(ferryAllReduce(a[0], x[0], COUNT, ferryFloat, ferrySum, first.comms[0], streams[0][0]));
		OK(ferryAllReduce(b[0], y[0], COUNT, ferryFloat, ferryMax, second.comms[0], streams[0][1]));
		OK(ferryAllReduce(b[1], y[1], COUNT, ferryFloat, ferryMax, second.comms[1], streams[1][1]));
		OK(ferryAllReduce(a[1], x[1], COUNT, ferryFloat, ferrySum, first.comms[1], streams[1][0]));
		for (int rank = 0; rank < 2; rank++)
			for (int which = 0; which < 2; which++)
				OK(ferryStreamSynchronize(streams[rank][which]));
		for (int rank = 0; rank < 2; rank++)
			for (int i = 0; i < COUNT; i += 31) {
				assert_true(x[rank][i] == (float)(2 * (i % 100) + 1));
				assert_true(y[rank][i] == (float)(i % 50));
			}
	}
	for (int rank = 0; rank < 2; rank++)
		for (int which = 0; which < 2; which++)
			OK(ferryStreamDestroy(streams[rank][which]));
	close_ranks(&first);
	close_ranks(&second);
}

static void grouped_sends_and_receives_progress_together(void **state)
{
	(void)state;
	struct ranks ranks;
	static int32_t out[N][N][3000], in[N][N][3000];
	open_ranks(&ranks, N, 2);
	for (int round = 0; round < 10; round++) {
		for (int rank = 0; rank < N; rank++)
			for (int peer = 0; peer < N; peer++)
				for (int i = 0; i < 3000; i++)
					out[rank][peer][i] = round + 100 * rank + 10 * peer + i;
		memset(in, 0, sizeof in);
		for (int rank = 0; rank < N; rank++) {
			OK(ferryGroupStart());
			for (int peer = 0; peer < N; peer++) {
				/* itself too, and an empty message to everybody before the real one */
				OK(ferrySend(NULL, 0, ferryInt8, peer, ranks.comms[rank], NULL));
				OK(ferryRecv(NULL, 0, ferryInt8, peer, ranks.comms[rank], NULL));
				OK(ferrySend(out[rank][peer], 3000, ferryInt32, peer, ranks.comms[rank], NULL));
				OK(ferryRecv(in[rank][peer], 3000, ferryInt32, peer, ranks.comms[rank], NULL));
			}
			OK(ferryGroupEnd());
		}
		OK(ferryStreamSynchronize(NULL));
		for (int rank = 0; rank < N; rank++)
			for (int peer = 0; peer < N; peer++)
				assert_memory_equal(in[rank][peer], out[peer][rank], sizeof in[rank][peer]);
	}
	close_ranks(&ranks);
}

static void a_long_message_passes_through_a_shorter_window(void **state)
{
	(void)state;
	struct ranks ranks;
	size_t bytes = (8 << 20) + 5;
	char *out = malloc(bytes), *in = calloc(1, bytes);
	open_ranks(&ranks, 2, 2);
	for (size_t i = 0; i < bytes; i++)
		out[i] = (char)(i * 7 >> 3);
	OK(ferrySend(out, bytes, ferryInt8, 1, ranks.comms[0], NULL));
	OK(ferryRecv(in, bytes, ferryInt8, 0, ranks.comms[1], NULL));
	OK(ferryStreamSynchronize(NULL));
	assert_memory_equal(in, out, bytes);
	free(in);
	free(out);
	close_ranks(&ranks);
}

/* One after the other through one window, each cut in its own way; and both ways at once. */
static void messages_of_all_lengths_follow_each_other(void **state)
{
	(void)state;
	static const size_t lengths[] =
	        {1,  65535,  65536,        65537, 0, 131072, 399999, 1 << 20, 3, (1 << 20) + 1, (5 << 20) + 4097,
	         64, 200000, (2 << 20) - 1};
	enum { MESSAGES = sizeof lengths / sizeof *lengths };
	struct ranks ranks;
	char *out[2][MESSAGES], *in[2][MESSAGES];
	open_ranks(&ranks, 2, 2);
	for (int rank = 0; rank < 2; rank++)
		for (int m = 0; m < MESSAGES; m++) {
			out[rank][m] = malloc(lengths[m] + 1);
			in[rank][m] = calloc(1, lengths[m] + 1);
			for (size_t i = 0; i < lengths[m]; i++)
				out[rank][m][i] = (char)((i * 7 >> 3) + (size_t)m + 1);
		}
	for (int rank = 0; rank < 2; rank++) {
		OK(ferryGroupStart());
		for (int m = 0; m < MESSAGES; m++) {
			OK(ferrySend(out[rank][m], lengths[m], ferryInt8, 1 - rank, ranks.comms[rank], NULL));
			OK(ferryRecv(in[rank][m], lengths[m], ferryInt8, 1 - rank, ranks.comms[rank], NULL));
		}
		OK(ferryGroupEnd());
	}
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < 2; rank++)
		for (int m = 0; m < MESSAGES; m++) {
			assert_memory_equal(in[rank][m], out[1 - rank][m], lengths[m]);
			assert_int_equal(in[rank][m][lengths[m]], 0);
			free(out[1 - rank][m]);
			free(in[rank][m]);
		}
	close_ranks(&ranks);
}

static size_t uneven(int from, int to)
{
	return (from + to) % 3 == 0 ? 0 : (size_t)(from * 1000 + to * 37 + 1);
}

static void uneven_all_to_all_delivers_every_part(void **state)
{
	(void)state;
	struct ranks ranks;
	enum { RANKS = 5, ROOM = RANKS * 5000 };
	static uint16_t out[RANKS][ROOM], in[RANKS][ROOM];
	size_t counts[RANKS][4][RANKS];
	open_ranks(&ranks, RANKS, 3);
	for (int rank = 0; rank < RANKS; rank++) {
		size_t sent = 0, received = 3;
		for (int peer = 0; peer < RANKS; peer++) {
			counts[rank][0][peer] = uneven(rank, peer);
			counts[rank][1][peer] = sent;
			counts[rank][2][peer] = uneven(peer, rank);
			counts[rank][3][peer] = received;
			for (size_t i = 0; i < uneven(rank, peer); i++)
				out[rank][sent + i] = (uint16_t)(rank * 10000 + peer * 1000 + (int)i);
			sent += uneven(rank, peer);
			received += uneven(peer, rank) + 1;
		}
	}
	for (int round = 0; round < 5; round++) {
		memset(in, 0xee, sizeof in);
		for (int rank = 0; rank < RANKS; rank++)
			OK(ferryAllToAllv(out[rank], counts[rank][0], counts[rank][1], in[rank], counts[rank][2],
			                  counts[rank][3], ferryBfloat16, ranks.comms[rank], NULL));
		OK(ferryStreamSynchronize(NULL));
		for (int rank = 0; rank < RANKS; rank++)
			for (int peer = 0; peer < RANKS; peer++) {
				const uint16_t *part = in[rank] + counts[rank][3][peer];
				for (size_t i = 0; i < uneven(peer, rank); i++)
					assert_int_equal(part[i], (uint16_t)(peer * 10000 + rank * 1000 + (int)i));
				assert_int_equal(part[uneven(peer, rank)], 0xeeee);
			}
	}
	close_ranks(&ranks);
}

static const char figure_3[] = "# Rank 0\n"
			       "D2H gpu[0] -> host[0]\n"
			       "D2H gpu[1] -> host[1]\n"
			       "REDUCE host[0] -> host[2] deps: host[2]>=1\n"
			       "H2D host[2] -> gpu[0] deps: host[2]>=2\n"
			       "H2D host[1] -> gpu[1] deps: host[1]>=2\n"
			       "\n"
			       "# Rank 1\n"
			       "D2H gpu[0] -> host[2]\n"
			       "D2H gpu[1] -> host[3]\n"
			       "REDUCE host[3] -> host[1] deps: host[1]>=1\n"
			       "H2D host[1] -> gpu[1] deps: host[1]>=2\n"
			       "H2D host[2] -> gpu[0] deps: host[2]>=2\n";

static void figure_3_of_hylink_runs_as_printed(void **state)
{
	(void)state;
	struct ranks ranks;
	static float in[2][COUNT + 1], out[2][COUNT + 1];
	open_ranks(&ranks, 2, 1);
	for (int rank = 0; rank < 2; rank++)
		for (int i = 0; i <= COUNT; i++)
			in[rank][i] = (float)(i + rank);
	for (int round = 0; round < 3; round++) {
		memset(out, 0, sizeof out);
		for (int rank = 0; rank < 2; rank++)
			OK(ferryRunProgram(figure_3, in[rank], out[rank], COUNT + 1, ferryFloat, ferrySum,
			                   ranks.comms[rank], NULL));
		OK(ferryStreamSynchronize(NULL));
		for (int i = 0; i <= COUNT; i++)
			assert_true(out[0][i] == (float)(2 * i + 1) && out[1][i] == out[0][i]);
	}
	close_ranks(&ranks);
}

static void premultiplied_sums_scale_each_rank_by_its_own_factor(void **state)
{
	(void)state;
	struct ranks ranks;
	ferryRedOp_t ops[N];
	static float in[N][1000], out[N][1000];
	float factors[N] = {1, 2, 0.5f, -1};
	for (int residence = 0; residence < 2; residence++) {
		open_ranks(&ranks, N, 2);
		for (int rank = 0; rank < N; rank++) {
			for (int i = 0; i < 1000; i++)
				in[rank][i] = (float)(i % 64);
			OK(ferryRedOpCreatePreMulSum(&ops[rank], &factors[rank], ferryFloat,
			                             (ferryScalarResidence_t)residence, ranks.comms[rank]));
			OK(ferryAllReduce(in[rank], out[rank], 1000, ferryFloat, ops[rank], ranks.comms[rank], NULL));
			OK(ferryRedOpDestroy(ops[rank], ranks.comms[rank]));
		}
		OK(ferryStreamSynchronize(NULL));
		for (int rank = 0; rank < N; rank++)
			for (int i = 0; i < 1000; i++)
				assert_true(out[rank][i] == 2.5f * (float)(i % 64));
		close_ranks(&ranks);
	}
}

static void a_group_keeps_the_factor_of_an_operation_destroyed_in_it(void **state)
{
	(void)state;
	struct ranks ranks;
	static float in[2] = {1, 1}, first[2], second[2];
	float two = 2, three = 3;
	open_ranks(&ranks, 2, 1);
	OK(ferryGroupStart());
	for (int rank = 0; rank < 2; rank++) {
		ferryRedOp_t op;
		OK(ferryRedOpCreatePreMulSum(&op, &two, ferryFloat, ferryScalarHostImmediate, ranks.comms[rank]));
		OK(ferryAllReduce(&in[rank], &first[rank], 1, ferryFloat, op, ranks.comms[rank], NULL));
		OK(ferryRedOpDestroy(op, ranks.comms[rank]));
		OK(ferryRedOpCreatePreMulSum(&op, &three, ferryFloat, ferryScalarHostImmediate, ranks.comms[rank]));
		OK(ferryAllReduce(&in[rank], &second[rank], 1, ferryFloat, op, ranks.comms[rank], NULL));
		OK(ferryRedOpDestroy(op, ranks.comms[rank]));
	}
	OK(ferryGroupEnd());
	OK(ferryStreamSynchronize(NULL));
	assert_true(first[0] == 4 && first[1] == 4 && second[0] == 6 && second[1] == 6);
	close_ranks(&ranks);
}

/* ---- ranks in threads of their own ---- */

struct actor {
	struct ranks *ranks;
	int rank;
	pthread_t thread;
	int failed;
};

static void each_in_a_thread(struct ranks *ranks, void *(*play)(void *))
{
	struct actor actors[FERRY_MAX_RANKS];
	for (int rank = 0; rank < ranks->count; rank++) {
		actors[rank] = (struct actor){.ranks = ranks, .rank = rank};
		assert_int_equal(pthread_create(&actors[rank].thread, NULL, play, &actors[rank]), 0);
	}
	for (int rank = 0; rank < ranks->count; rank++) {
		pthread_join(actors[rank].thread, NULL);
		if (actors[rank].failed)
			fail_msg("rank %d failed at step %d", rank, actors[rank].failed);
	}
}

#define STEP(number, condition)                                                                                        \
	if (!(condition)) {                                                                                            \
		actor->failed = number;                                                                                \
		return NULL;                                                                                           \
	}

static void *split_and_use(void *argument)
{
	struct actor *actor = argument;
	ferryComm_t comm = actor->ranks->comms[actor->rank], half = NULL, reversed = NULL;
	int color = actor->rank % 2, rank, count, value = actor->rank, sum = 0;
	STEP(1, !ferryCommSplit(comm, color, actor->rank, &half, NULL));
	STEP(2, !ferryCommCount(half, &count) && !ferryCommUserRank(half, &rank));
	STEP(3, count == 3 && rank == actor->rank / 2);
	for (int round = 0; round < 10; round++) {
		STEP(4,
		     !ferryAllReduce(&value, &sum, 1, ferryInt, ferrySum, half, NULL) && !ferryStreamSynchronize(NULL));
		STEP(5, sum == (color ? 1 + 3 + 5 : 0 + 2 + 4));
	}
	STEP(6, !ferryCommSplit(comm, actor->rank == 0 ? FERRY_SPLIT_NOCOLOR : 7, -actor->rank, &reversed, NULL));
	STEP(7, (reversed == NULL) == (actor->rank == 0));
	if (reversed) {
		STEP(8, !ferryCommUserRank(reversed, &rank) && rank == 5 - actor->rank);
		STEP(9, !ferryBroadcast(&value, &sum, 1, ferryInt, 0, reversed, NULL) &&
		                !ferryStreamSynchronize(NULL) && sum == 5);
		STEP(10, !ferryCommDestroy(reversed));
	}
	STEP(11, !ferryCommDestroy(half));
	STEP(12, !ferryAllReduce(&value, &sum, 1, ferryInt, ferrySum, comm, NULL) && !ferryStreamSynchronize(NULL) &&
	                 sum == 15);
	return NULL;
}

static void splitting_gives_communicators_ordered_by_key(void **state)
{
	(void)state;
	struct ranks ranks;
	open_ranks(&ranks, 6, 2);
	each_in_a_thread(&ranks, split_and_use);
	close_ranks(&ranks);
}

/* Every rank runs the same seeded sequence of collectives and checks its own results. */
static void *random_sequence(void *argument)
{
	struct actor *actor = argument;
	int n = actor->ranks->count, rank = actor->rank;
	ferryComm_t comm = actor->ranks->comms[rank];
	enum { MOST = 3000 };
	int32_t *in = malloc((size_t)n * MOST * sizeof *in), *out = malloc((size_t)n * MOST * sizeof *out);
	uint32_t seed = 12345;
	for (int step = 1; step <= 60; step++) {
		seed = seed * 1664525u + 1013904223u;
		size_t count = seed >> 8 & 1 ? seed >> 16 & 15 : (seed >> 16) % MOST;
		int kind = (int)(seed >> 28) % 4, root = (int)(seed >> 4) % n;
		ferryResult_t result = ferrySuccess;
		for (size_t i = 0; i < (size_t)n * count; i++)
			in[i] = (int32_t)(i * 3) + rank + step;
		if (kind == 0)
			result = ferryAllReduce(in, out, count, ferryInt32, ferrySum, comm, NULL);
		else if (kind == 1)
			result = ferryAllGather(in, out, count, ferryInt32, comm, NULL);
		else if (kind == 2)
			result = ferryAllToAll(in, out, count, ferryInt32, comm, NULL);
		else
			result = ferryBroadcast(in, out, count, ferryInt32, root, comm, NULL);
		STEP(step * 10, !result && !ferryStreamSynchronize(NULL));
		for (size_t i = 0; i < count; i++) {
			int32_t own = (int32_t)(i * 3) + step;
			if (kind == 0)
				STEP(step * 10 + 1, out[i] == n * own + n * (n - 1) / 2);
			if (kind == 1)
				STEP(step * 10 + 2, out[(size_t)(n - 1) * count + i] == own + n - 1);
			if (kind == 2)
				STEP(step * 10 + 3, out[(size_t)root * count + i] ==
				                            (int32_t)(((size_t)rank * count + i) * 3) + step + root);
			if (kind == 3)
				STEP(step * 10 + 4, out[i] == own + root);
		}
	}
	free(in);
	free(out);
	return NULL;
}

static void ranks_in_threads_run_a_random_sequence(void **state)
{
	(void)state;
	struct ranks ranks;
	open_ranks(&ranks, 7, 3);
	each_in_a_thread(&ranks, random_sequence);
	close_ranks(&ranks);
}

static void sixty_four_ranks_share_two_cores_with_one_slot_windows(void **state)
{
	(void)state;
	struct ranks ranks;
	setenv("FERRY_WINDOW", "1", 1);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
	open_ranks(&ranks, 12, 4); /* each plans for all, and every access costs there: 64 show nothing more */
#else
	open_ranks(&ranks, 64, 8);
#endif
	each_in_a_thread(&ranks, random_sequence);
	close_ranks(&ranks);
	unsetenv("FERRY_WINDOW");
}

static void a_modelled_link_takes_the_time_of_its_speed(void **state)
{
	(void)state;
	struct ranks ranks;
	size_t count = 1 << 20; /* 4 MiB up and 4 MiB down at 1 GB/s: at least 4.2 ms, both ways at once */
	float *in = calloc(2 * count, sizeof *in), *out = calloc(2 * count, sizeof *out);
	ferryEvent_t events[2];
	double microseconds;
	ferryStream_t stream;
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=1", 1);
	open_ranks(&ranks, 2, 1);
	unsetenv("FERRY_HOST_LINK");
	OK(ferryStreamCreate(&stream, 0));
	for (int i = 0; i < 2; i++)
		OK(ferryEventCreate(&events[i]));
	OK(ferryEventRecord(events[0], stream));
	OK(ferryAllReduce(in, out, count, ferryFloat, ferrySum, ranks.comms[0], stream));
	OK(ferryEventRecord(events[1], stream));
	OK(ferryAllReduce(in + count, out + count, count, ferryFloat, ferrySum, ranks.comms[1], NULL));
	OK(ferryEventSynchronize(events[1]));
	OK(ferryStreamSynchronize(NULL));
	OK(ferryEventElapsedTime(&microseconds, events[0], events[1]));
	assert_true(microseconds > 4100);
	for (int i = 0; i < 2; i++)
		OK(ferryEventDestroy(events[i]));
	OK(ferryStreamDestroy(stream));
	free(in);
	free(out);
	close_ranks(&ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stream_order_holds_before_and_after_a_call),
		cmocka_unit_test(a_call_starts_when_its_stream_reaches_it_and_events_tell),
		cmocka_unit_test(many_calls_in_flight_finish_in_order),
		cmocka_unit_test(two_communicators_run_on_two_streams_at_once),
		cmocka_unit_test(grouped_sends_and_receives_progress_together),
		cmocka_unit_test(a_long_message_passes_through_a_shorter_window),
		cmocka_unit_test(messages_of_all_lengths_follow_each_other),
		cmocka_unit_test(uneven_all_to_all_delivers_every_part),
		cmocka_unit_test(figure_3_of_hylink_runs_as_printed),
		cmocka_unit_test(premultiplied_sums_scale_each_rank_by_its_own_factor),
		cmocka_unit_test(a_group_keeps_the_factor_of_an_operation_destroyed_in_it),
		cmocka_unit_test(splitting_gives_communicators_ordered_by_key),
		cmocka_unit_test(ranks_in_threads_run_a_random_sequence),
		cmocka_unit_test(sixty_four_ranks_share_two_cores_with_one_slot_windows),
		cmocka_unit_test(a_modelled_link_takes_the_time_of_its_speed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
