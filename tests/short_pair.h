/* SPDX-License-Identifier: Apache-2.0 */
/** Two ranks in threads of this process, with two communicators and two streams each, for suites of short calls. */
#ifndef FERRY_TESTS_SHORT_PAIR_H
#define FERRY_TESTS_SHORT_PAIR_H

#include "tests/api_ranks.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#define LONG (4u << 20) /* bytes: more than any short call */

static inline void open_with(struct ranks *ranks, int count, int domains, const char *most)
{
	setenv("FERRY_SHORT", most, 1);
	open_ranks(ranks, count, domains);
	unsetenv("FERRY_SHORT");
}

/* One rank of two, in a thread, with two communicators and two streams. */
struct rank {
	int rank;
	ferryComm_t comms[2];
	ferryStream_t streams[2];
	pthread_barrier_t *both;
	pthread_t thread;
	float *input, *output;
	char wrong[200];
};

static struct rank pair[2];
static struct ranks one, two;
static pthread_barrier_t both;

static inline void pair_open(const char *most)
{
	open_with(&one, 2, 1, most);
	open_with(&two, 2, 1, most);
	pthread_barrier_init(&both, NULL, 2);
	for (int rank = 0; rank < 2; rank++) {
		pair[rank] = (struct rank){.rank = rank, .comms = {one.comms[rank], two.comms[rank]}, .both = &both};
		pair[rank].input = calloc(1, LONG);
		pair[rank].output = calloc(2, LONG);
		for (int stream = 0; stream < 2; stream++)
			OK(ferryStreamCreate(&pair[rank].streams[stream], rank));
	}
}

static inline void pair_close(void)
{
	for (int rank = 0; rank < 2; rank++) {
		for (int stream = 0; stream < 2; stream++)
			OK(ferryStreamDestroy(pair[rank].streams[stream]));
		free(pair[rank].input);
		free(pair[rank].output);
	}
	pthread_barrier_destroy(&both);
	close_ranks(&one);
	close_ranks(&two);
}

static inline void pair_run(void *(*body)(void *))
{
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(pthread_create(&pair[rank].thread, NULL, body, &pair[rank]), 0);
	for (int rank = 0; rank < 2; rank++)
		pthread_join(pair[rank].thread, NULL);
	for (int rank = 0; rank < 2; rank++)
		if (pair[rank].wrong[0])
			fail_msg("rank %d: %s", rank, pair[rank].wrong);
}

/* In a thread: the first failure is kept for the test. */
static inline bool went(struct rank *rank, ferryResult_t result)
{
	if (result && !rank->wrong[0])
		snprintf(rank->wrong, sizeof rank->wrong, "%s: %.150s", ferryGetErrorString(result),
		         ferryGetLastError(NULL));
	return !result;
}

/*
 * Called by the rank that comes late, when the waiting rank has stored its CPU clock in pair_clock: returns once that
 * clock stands still, so that rank sleeps. If it runs on for a minute, that is a failure.
 */
static clockid_t pair_clock;

static inline bool other_sleeps(struct rank *rank)
{
	struct timespec before, after = {0, 0};
	int still = 0;
	for (int i = 0; i < 3000; i++) {
		before = after;
		clock_gettime(pair_clock, &after);
		still = i && before.tv_sec == after.tv_sec && before.tv_nsec == after.tv_nsec ? still + 1 : 0;
		if (still == 20) /* 0.4 s: a thread that only waits for a CPU gets one meanwhile */
			return true;
		nanosleep(&(struct timespec){0, 20000000}, NULL);
	}
	snprintf(rank->wrong, sizeof rank->wrong, "the rank that waits has run for a minute");
	return false;
}

static inline bool waits(struct rank *rank, int comm)
{
	return went(rank, ferryStreamSynchronize(rank->streams[comm]));
}

#endif
