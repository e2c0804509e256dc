/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that routers die under (tests/launch/takeover.c): so many calls of one kind or of all in turn, whose results
 * it sums up in one number; then how long its longest call took.
 */
#include "ferry.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(call)                                                                                                    \
	do {                                                                                                           \
		if (call) {                                                                                            \
			fprintf(stderr, "rank %d: %s: %s\n", rank, #call, ferryGetLastError(comm));                    \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static ferryComm_t comm;
static int rank, nranks;

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

static double now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

/* Values whose sum depends on the order. */
static void fill(float *values, size_t count, uint64_t seed)
{
	for (size_t i = 0; i < count; i++) {
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		values[i] = (float)(int32_t)(seed >> 32) * (1.0f / 65536) + 0.1f;
	}
}

static uint64_t sum_up(uint64_t sum, const void *bytes, size_t length)
{
	const uint64_t *words = bytes;
	for (size_t i = 0; i < length / 8; i++)
		sum = (sum ^ words[i]) * 0x9e3779b97f4a7c15ull + (sum >> 29);
	return sum;
}

enum kind { ALLREDUCE, IN_PLACE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BROADCAST, MESSAGES, KINDS };

static void call(enum kind kind, float *send, float *receive, size_t count)
{
	int next = (rank + 1) % nranks, before = (rank + nranks - 1) % nranks;
	size_t part = count / (size_t)nranks;
	switch (kind) {
	case ALLREDUCE:
		CHECK(ferryAllReduce(send, receive, count, ferryFloat, ferrySum, comm, NULL));
		return;
	case IN_PLACE:
		memcpy(receive, send, count * sizeof *send);
		CHECK(ferryAllReduce(receive, receive, count, ferryFloat16, ferryMax, comm, NULL));
		return;
	case ALLGATHER:
		CHECK(ferryAllGather(send, receive, part, ferryFloat, comm, NULL));
		return;
	case REDUCE_SCATTER:
		CHECK(ferryReduceScatter(send, receive, part, ferryFloat, ferryAvg, comm, NULL));
		return;
	case ALLTOALL:
		CHECK(ferryAllToAll(send, receive, part, ferryFloat, comm, NULL));
		return;
	case BROADCAST:
		CHECK(ferryBroadcast(send, receive, count, ferryFloat, 1 % nranks, comm, NULL));
		return;
	default:
		CHECK(ferryGroupStart());
		CHECK(ferrySend(send, count, ferryFloat, next, comm, NULL));
		CHECK(ferryRecv(receive, count, ferryFloat, before, comm, NULL));
		CHECK(ferryGroupEnd());
	}
}

/* Its routers are dead, and none comes: what ends the communicator returns, whatever is under way. */
static int end_alone(const char *how, float *send, float *receive, size_t count)
{
	while (access(getenv("GO"), F_OK))
		usleep(1000);
	bool aborts = !strcmp(how, "abort");
	if (aborts)
		CHECK(ferryAllReduce(send, receive, count, ferryFloat, ferrySum, comm, NULL));
	usleep(100000);
	CHECK(aborts ? ferryCommAbort(comm) : ferryCommDestroy(comm));
	printf("rank %d ended\n", rank);
	free(send);
	free(receive);
	return 0;
}

/*
 * takeover_rank CALLS BYTES KIND PAUSE_MS [abort|destroy]: KIND -1: all in turn, of sizes up to that; pause: between
 * calls
 */
int main(int argc, char **argv)
{
	if (argc != 5 && argc != 6)
		return 64;
	long calls = atol(argv[1]), kind = atol(argv[3]), pause_ms = atol(argv[4]);
	size_t most = (size_t)atol(argv[2]) / sizeof(float);
	uint64_t sum = 0;
	double longest = 0;
	signal(SIGTERM, SIG_IGN); /* it ends when its communicator does */
	CHECK(ferryCommInitEnv(&comm, NULL));
	CHECK(ferryCommUserRank(comm, &rank));
	CHECK(ferryCommCount(comm, &nranks));
	printf("rank %d begins\n", rank);
	fflush(stdout);
	float *send = malloc(most * sizeof *send), *receive = malloc(most * sizeof *receive);
	for (long i = 0; i < calls; i++) {
		size_t count = kind >= 0 ? most : mix((uint64_t)i) % (most / 64) * 64 + 64;
		enum kind now = kind >= 0 ? (enum kind)kind : (enum kind)(mix((uint64_t)i + 7) % KINDS);
		fill(send, count, (uint64_t)i * 64 + (uint64_t)rank);
		memset(receive, 0, count * sizeof *receive);
		double start = now_ms();
		call(now, send, receive, count);
		CHECK(ferryStreamSynchronize(NULL));
		double took = now_ms() - start;
		longest = took > longest ? took : longest;
		sum = sum_up(sum, receive, count * sizeof *receive);
		if (pause_ms)
			usleep((useconds_t)pause_ms * 1000);
	}
	if (argc == 6)
		return end_alone(argv[5], send, receive, most);
	CHECK(ferryCommDestroy(comm));
	printf("rank %d sum %016llx longest %.1f ms\n", rank, (unsigned long long)sum, longest);
	free(send);
	free(receive);
	return 0;
}
