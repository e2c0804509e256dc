/* SPDX-License-Identifier: Apache-2.0 */
/* A job that notices nothing: collectives of mixed sizes, whose every bit is looked at. */
#include "tests/hostility/hostility.h"
#include "tests/hostility/random.h"

#include "ferry.h"
#include "ipc/wait.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <unistd.h>

#define RANKS 4
#define MOST  (96 << 10) /* elements of a rank's block */
#define KINDS 4

struct other {
	int rank;
	ferryComm_t comm;
	ferryStream_t stream;
	uint32_t *send, *receive;
};

static ferryUniqueId name;
static pthread_barrier_t together;

static uint32_t element(uint64_t round, uint32_t rank, size_t i)
{
	return (uint32_t)((round + 1) * 2654435761u + (rank + 1) * 40503u * (uint32_t)(i + 7));
}

static ferryResult_t call(const struct other *other, uint64_t kind, size_t count)
{
	switch (kind) {
	case 0:
		return ferryAllReduce(other->send, other->receive, count, ferryUint32, ferrySum, other->comm,
		                      other->stream);
	case 1:
		return ferryAllGather(other->send, other->receive, count, ferryUint32, other->comm, other->stream);
	case 2:
		return ferryReduceScatter(other->send, other->receive, count, ferryUint32, ferrySum, other->comm,
		                          other->stream);
	default:
		return ferryAllToAll(other->send, other->receive, count, ferryUint32, other->comm, other->stream);
	}
}

static uint32_t expected(const struct other *other, uint64_t kind, size_t count, uint64_t round, size_t i)
{
	uint32_t rank = (uint32_t)other->rank, sum = 0;
	size_t at = kind == 2 ? rank * count + i : i;
	if (kind == 1)
		return element(round, (uint32_t)(i / count), i % count);
	if (kind == 3)
		return element(round, (uint32_t)(i / count), rank * count + i % count);
	for (uint32_t from = 0; from < RANKS; from++)
		sum += element(round, from, at);
	return sum;
}

static uint64_t judge(const struct other *other, uint64_t kind, size_t count, uint64_t round)
{
	size_t results = kind == 1 || kind == 3 ? RANKS * count : count;
	uint64_t wrong = 0;
	for (size_t i = 0; i < results; i++)
		wrong += other->receive[i] != expected(other, kind, count, round, i);
	return wrong;
}

static void fail(const struct other *other, ferryResult_t result)
{
	if (!atomic_exchange(&shared->failed, 1))
		snprintf(shared->failure, SAID, "rank %d: %s: %s", other->rank, ferryGetErrorString(result),
		         ferryGetLastError(NULL));
}

static void note_length(uint64_t took)
{
	uint64_t longest = atomic_load(&shared->longest_ns);
	while (took > longest && !atomic_compare_exchange_weak(&shared->longest_ns, &longest, took))
		;
}

static ferryResult_t play(struct other *other, uint64_t round)
{
	uint64_t state = random_begin(options.seed ^ 0x0707, round), kind = random_below(&state, KINDS);
	size_t count = 1 + random_below(&state, random_below(&state, 4) ? 2000 : MOST);
	size_t inputs = kind >= 2 ? RANKS * count : count;
	for (size_t i = 0; i < inputs; i++)
		other->send[i] = element(round, (uint32_t)other->rank, i);
	memset(other->receive, 0x5a, RANKS * count * sizeof(uint32_t));
	uint64_t began = ferry_now_ns();
	ferryResult_t result = call(other, kind, count);
	if (!result)
		result = ferryStreamSynchronize(other->stream);
	if (result)
		return result;
	note_length(ferry_now_ns() - began);
	atomic_fetch_add(&shared->wrong, judge(other, kind, count, round));
	return ferrySuccess;
}

static void *other_main(void *argument)
{
	struct other *other = argument;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	config.ordinal = other->rank;
	config.domain = other->rank % options.domains;
	ferryResult_t result = ferryCommInitRankConfig(&other->comm, RANKS, name, other->rank, &config);
	if (!result)
		result = ferryStreamCreate(&other->stream, other->rank);
	for (uint64_t round = 0; !result; round++) {
		static _Atomic int stop; /* as rank 0 saw it: all make the same calls */
		if (other->rank == 0)
			atomic_store(&stop, atomic_load(&shared->stop));
		pthread_barrier_wait(&together);
		if (atomic_load(&stop))
			break;
		result = play(other, round);
		if (result)
			break;
		if (other->rank == 0)
			atomic_fetch_add(&shared->rounds, 1);
		pthread_barrier_wait(&together);
	}
	if (!result && !(result = ferryStreamDestroy(other->stream)))
		result = ferryCommDestroy(other->comm);
	if (result)
		fail(other, result);
	if (result)
		_exit(1);
	return NULL;
}

static void run(void)
{
	static struct other others[RANKS];
	pthread_t threads[RANKS];
	pthread_barrier_init(&together, NULL, RANKS);
	if (ferryGetUniqueId(&name))
		_exit(1);
	for (int rank = 0; rank < RANKS; rank++) {
		others[rank] = (struct other){.rank = rank, .send = malloc(RANKS * MOST * sizeof(uint32_t)),
		                              .receive = malloc(RANKS * MOST * sizeof(uint32_t))};
		if (pthread_create(&threads[rank], NULL, other_main, &others[rank]))
			_exit(1);
	}
	for (int rank = 0; rank < RANKS; rank++) {
		pthread_join(threads[rank], NULL);
		free(others[rank].send);
		free(others[rank].receive);
	}
}

pid_t others_start(void)
{
	pid_t child = fork();
	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setenv("FERRY_TIMEOUT", "60", 1); /* only the hostile job is to end soon: these ranks may be late */
	run();
	_exit(0);
}
