/* SPDX-License-Identifier: Apache-2.0 */
/* What a lane says when its call does not get on, and that it says nothing where there is nothing wrong. */
#include "tests/hosted.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ferry.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define COUNT (64 << 10)
#define LONG (4 << 20) /* more than there is room for on the way */
#define RANKS 4

static float inputs[RANKS][COUNT], outputs[RANKS][COUNT];
static float sent[LONG], received[LONG];

static void sleep_ms(long ms)
{
	struct timespec time = {ms / 1000, ms % 1000 * 1000000};
	nanosleep(&time, NULL);
}

/* What is written to stderr meanwhile. */
struct listener {
	int file, before;
};

static void listen_open(struct listener *listener)
{
	char path[] = "/tmp/ferry-stall-XXXXXX";
	listener->file = mkstemp(path);
	listener->before = dup(STDERR_FILENO);
	assert_true(listener->file >= 0 && listener->before >= 0);
	unlink(path);
	dup2(listener->file, STDERR_FILENO);
}

/* Until something is written, for half a minute at most. */
static void listen_for_more(const struct listener *listener)
{
	struct stat status = {.st_size = 0};
	for (int i = 0; i < 3000 && !fstat(listener->file, &status) && !status.st_size; i++)
		sleep_ms(10);
}

static void listen_close(struct listener *listener, char *said, size_t room)
{
	dup2(listener->before, STDERR_FILENO);
	close(listener->before);
	ssize_t length = pread(listener->file, said, room - 1, 0);
	close(listener->file);
	assert_true(length >= 0);
	said[length] = '\0';
}

/*
 * AllReduces of 256 KiB, each rank's on so many streams one after another, of ranks that all but the first come so much
 * later; what was written to stderr meanwhile.
 */
static void call_with_delay(int nranks, int ncalls, int nstreams, long delay_ms, char *said, size_t room)
{
	ferryComm_t comms[RANKS];
	ferryStream_t streams[RANKS][3] = {{NULL}};
	struct listener listener;
	listen_open(&listener);
	ferryResult_t result = ferryCommInitAll(comms, nranks, NULL);
	for (int rank = 0; rank < nranks && !result; rank++) {
		if (rank == 1)
			sleep_ms(delay_ms);
		for (int i = 0; i < nstreams && !result; i++)
			result = ferryStreamCreate(&streams[rank][i], rank);
		for (int call = 0; call < ncalls && !result; call++)
			result = ferryAllReduce(inputs[rank], outputs[rank], COUNT, ferryFloat32, ferrySum, comms[rank],
			                        streams[rank][call % nstreams]);
	}
	for (int rank = 0; rank < nranks; rank++)
		for (int i = 0; i < nstreams && !result; i++)
			result = ferryStreamDestroy(streams[rank][i]);
	for (int rank = 0; rank < nranks; rank++)
		ferryCommDestroy(comms[rank]);
	listen_close(&listener, said, room);
	assert_int_equal(result, ferrySuccess);
}

/*
 * Slices of 64 KiB, each 130 ms under way: after the late rank has come, the H2D lanes wait for the first of them: no
 * stall.
 */
static void a_late_rank_is_named_once_and_is_no_stall(void **state)
{
	char said[4096];
	(void)state;
	setenv("FERRY_SLICE", "65536", 1);
	setenv("FERRY_HOST_LINK", "d2h=0.0005,h2d=1", 1);
	call_with_delay(2, 1, 1, 3500, said, sizeof said);
	char *line = strstr(said, "rank 0 has waited 2 s for rank 1 to reach call 1 (allreduce)\n");
	if (!line || strchr(line, '\n')[1] || strchr(said, '\n') < line)
		fail_msg("not this alone, but \"%s\"", said);
}

static void late_ranks_are_named_also_where_calls_wait_behind(void **state)
{
	char said[4096];
	(void)state;
	setenv("FERRY_SLICE", "65536", 1);
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=1", 1);
	call_with_delay(RANKS, 3, 1, 2500, said, sizeof said);
	char *line = strstr(said, "rank 0 has waited 2 s for ranks 1-3 to reach call 1 (allreduce)\n");
	if (!line || strchr(line, '\n')[1] || strchr(said, '\n') < line)
		fail_msg("not this alone, but \"%s\"", said);
}

/* Three calls at once in two parities: the third begins when the first is over, and all ranks have made it. */
static void who_may_not_begin_names_those_that_have_not_finished(void **state)
{
	char said[4096], line[128];
	(void)state;
	setenv("FERRY_SLICE", "262144", 1);
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=0.0001", 1); /* 2.6 s */
	call_with_delay(2, 3, 3, 0, said, sizeof said);
	for (int rank = 0; rank < 2; rank++) {
		snprintf(line, sizeof line,
		         "rank %d has waited 2 s for ranks 0-1 to finish call 1, before call 3 (allreduce)\n", rank);
		if (!strstr(said, line))
			fail_msg("not said: \"%s\" but \"%s\"", line, said);
	}
}

static void a_copy_that_takes_long_is_reported_once_by_its_lane(void **state)
{
	char said[4096];
	(void)state;
	setenv("FERRY_SLICE", "262144", 1);
	setenv("FERRY_HOST_LINK", "d2h=0.00005,h2d=1", 1); /* 5.2 s */
	call_with_delay(2, 1, 1, 0, said, sizeof said);
	for (int rank = 0; rank < 2; rank++) {
		char start[64];
		snprintf(start, sizeof start, "rank %d, D2H lane: no progress for ", rank);
		char *found = strstr(said, start), *rest = NULL;
		if (found)
			rest = strstr(found, " s in call 1 (allreduce): 0 of 1 slices copied, 1 copies under way\n");
		if (!rest || rest > found + strlen(start) + 2)
			fail_msg("not said: \"%s\" but \"%s\"", start, said);
		assert_null(strstr(found + 1, start));
	}
}

/* Each end in turn calls 3.5 s before the other one: it says which message it waits for. */
static void ends_of_a_message_name_it_and_its_other_end(void **state)
{
	static const char *const lines[] = {"rank 0 has waited 2 s for rank 1 to receive message 1\n",
	                                    "rank 1 has waited 2 s for message 2, which rank 0 has not sent\n"};
	char said[4096];
	ferryComm_t comms[2];
	ferryStream_t streams[2];
	struct listener listener;
	(void)state;
	setenv("FERRY_SLICE", "262144", 1);
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=1", 1);
	assert_int_equal(ferryCommInitAll(comms, 2, NULL), ferrySuccess);
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(ferryStreamCreate(&streams[rank], rank), ferrySuccess);
	for (int first = 0; first < 2; first++) {
		ferryResult_t result = ferrySuccess;
		listen_open(&listener);
		for (int i = 0; i < 2; i++) {
			int rank = i ? !first : first;
			if (i)
				sleep_ms(3500);
			result |= rank ? ferryRecv(received, LONG, ferryFloat32, 0, comms[1], streams[1])
			               : ferrySend(sent, LONG, ferryFloat32, 1, comms[0], streams[0]);
		}
		for (int rank = 0; rank < 2; rank++)
			result |= ferryStreamSynchronize(streams[rank]);
		listen_close(&listener, said, sizeof said);
		assert_int_equal(result, ferrySuccess);
		const char *line = strstr(said, lines[first]);
		if (!line || strchr(line, '\n')[1] || strchr(said, '\n') < line)
			fail_msg("not \"%s\" alone, but \"%s\"", lines[first], said);
	}
	for (int rank = 0; rank < 2; rank++) {
		ferryStreamDestroy(streams[rank]);
		ferryCommDestroy(comms[rank]);
	}
}

static void *split(void *argument)
{
	ferryComm_t *made = argument;
	return ferryCommSplit(made[0], 0, 0, &made[1], NULL) ? argument : NULL;
}

static void a_split_names_once_who_has_not_called_it(void **state)
{
	char said[4096];
	ferryComm_t comms[2], made[2][2];
	pthread_t threads[2];
	struct listener listener;
	void *failed[2];
	(void)state;
	assert_int_equal(ferryCommInitAll(comms, 2, NULL), ferrySuccess);
	listen_open(&listener);
	for (int rank = 0; rank < 2; rank++) {
		made[rank][0] = comms[rank];
		assert_int_equal(pthread_create(&threads[rank], NULL, split, made[rank]), 0);
		if (!rank)
			listen_for_more(&listener);
	}
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(pthread_join(threads[rank], &failed[rank]), 0);
	listen_close(&listener, said, sizeof said);
	assert_true(!failed[0] && !failed[1]);
	char *line = strstr(said, " s in ferryCommSplit for rank 1 to call it, too (split 1)\n");
	if (!line || !strstr(said, "rank 0 has waited ") || strchr(line, '\n')[1] || strchr(said, '\n') < line)
		fail_msg("not this alone, but \"%s\"", said);
	for (int rank = 0; rank < 2; rank++)
		for (int i = 0; i < 2; i++)
			ferryCommDestroy(made[rank][i]);
}

/* Each of two streams has both communicators' calls, in another order. */
static void communicators_that_share_streams_in_another_order_are_told_of(void **state)
{
	char said[4096];
	ferryComm_t comms[2][2];
	ferryStream_t streams[2];
	struct listener listener;
	(void)state;
	listen_open(&listener);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(ferryCommInitAll(comms[i], 2, NULL), ferrySuccess);
		assert_int_equal(ferryStreamCreate(&streams[i], i), ferrySuccess);
	}
	for (int i = 0; i < 4; i++) {
		int rank = i % 2, which = i / 2 ? !rank : rank;
		assert_int_equal(ferryAllReduce(inputs[rank], outputs[rank], 1, ferryFloat32, ferrySum,
		                                comms[which][rank], streams[rank]),
		                 ferrySuccess);
	}
	sleep_ms(3000);
	for (int i = 0; i < 2; i++)
		for (int rank = 0; rank < 2; rank++)
			ferryCommAbort(comms[i][rank]);
	for (int i = 0; i < 2; i++)
		ferryStreamDestroy(streams[i]);
	listen_close(&listener, said, sizeof said);
	for (int rank = 0; rank < 2; rank++) {
		char line[256];
		snprintf(line, sizeof line,
		         "rank %d has waited 2 s for rank %d to reach call 1 (allreduce); 1 call of other "
		         "communicators of its process is not over, either: if they share a stream, do all ranks "
		         "call in the same order?\n",
		         rank, !rank);
		if (!strstr(said, line))
			fail_msg("not said: \"%s\" but \"%s\"", line, said);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_late_rank_is_named_once_and_is_no_stall),
	        cmocka_unit_test(late_ranks_are_named_also_where_calls_wait_behind),
	        cmocka_unit_test(who_may_not_begin_names_those_that_have_not_finished),
	        cmocka_unit_test(a_copy_that_takes_long_is_reported_once_by_its_lane),
	        cmocka_unit_test(communicators_that_share_streams_in_another_order_are_told_of),
	        cmocka_unit_test(ends_of_a_message_name_it_and_its_other_end),
	        cmocka_unit_test(a_split_names_once_who_has_not_called_it),
	};
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_TIMEOUT", "2", 1); /* long for a thread to be put aside */
	hosted_routers(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
