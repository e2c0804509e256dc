/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random sequences of calls with one-slot windows and many more threads than cores, several calls in flight at a time,
 * every result judged (bench/trial/trial.h). `api_stress [SEED]` runs ranks in threads of this process; under ferryrun
 * each process is a rank, and all draw the same sequence. The seed is printed, and gives the same sequence again.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/launcher.h"
#include "tests/hosted.h"
#include "tests/trial_run.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FLIGHTS 4    /* calls in flight */
#define LARGEST 9000 /* elements */

static uint64_t seed = 1;

/* Of a sequence; `make soak` has longer ones. */
static int calls_of_sequence(void)
{
	const char *times = getenv("FERRY_TEST_TIMES");
	return 200 * (times ? atoi(times) : 1);
}

/* A call under way: one rank's view of it. */
struct flight {
	struct ferry_trial trial;
	struct trial_buffers buffers;
	bool open;
};

/* One rank on its way through the sequence. */
struct walker {
	ferryComm_t comm;
	ferryStream_t stream; /* NULL: the default */
	int rank, nranks, ndomains, calls;
	uint64_t sequence; /* the same for all ranks */
	uint64_t hurry;    /* this rank's own */
	struct flight flights[FLIGHTS];
	unsigned failures;
	/* a call failed: the communicator has, and with it every rank's calls. A wrong result breaks nothing. */
	bool broken;
};

static struct ferry_trial random_trial(struct walker *walker)
{
	uint64_t *random = &walker->sequence;
	struct ferry_trial trial = {
	        .nranks = walker->nranks, .ndomains = (unsigned)walker->ndomains, .exact = walker->ndomains == 1};
	trial.collective = (enum ferry_collective)(trial_random(random) % FERRY_NUM_COLLECTIVES);
	trial.type = (ferryDataType_t)(trial_random(random) % ferryNumTypes);
	trial.op = (ferryRedOp_t)(trial_random(random) % (ferryNumOps + 1));
	trial.root = (int)(trial_random(random) % (uint64_t)walker->nranks);
	size_t most = LARGEST >> trial_random(random) % 14; /* about as many small as large */
	trial.count = trial_random(random) % (most + 1);
	trial.in_place = trial_random(random) % 2 && ferry_trial_can_be_in_place(trial.collective);
	trial.seed = trial_random(random);
	return trial;
}

static void complain(struct walker *walker, const struct ferry_trial *trial, const char *what, const char *why)
{
	if (walker->failures++ < 3)
		fprintf(stderr, "seed %llu: rank %d: %s: %s %s\n", (unsigned long long)seed, walker->rank,
		        trial_text(trial), what, why);
}

static void start(struct walker *walker, struct flight *flight)
{
	ferryRedOp_t op;
	flight->trial = random_trial(walker);
	flight->open = true;
	struct ferry_trial *trial = &flight->trial;
	unsigned offset = (unsigned)(trial_random(&walker->sequence) % 4);
	if (!ferry_trial_open(trial) || !trial_buffers_open(trial, walker->rank, offset, &flight->buffers)) {
		complain(walker, trial, "no memory", "");
		walker->broken = true;
		return;
	}
	ferryResult_t result = trial_op(trial, walker->rank, walker->comm, &op);
	if (!result)
		result = ferry_trial_start(trial, walker->rank, flight->buffers.send, flight->buffers.receive, op,
		                           walker->comm, walker->stream);
	if (result)
		complain(walker, trial, "refused:", ferryGetLastError(NULL));
	walker->broken = walker->broken || result;
	if (op >= ferryNumOps)
		ferryRedOpDestroy(op, walker->comm);
}

static void land(struct walker *walker)
{
	ferryResult_t result = ferryStreamSynchronize(walker->stream);
	walker->broken = walker->broken || result;
	for (int i = 0; i < FLIGHTS; i++) {
		struct flight *flight = &walker->flights[i];
		if (!flight->open)
			continue;
		size_t wrong = result ? 0 : trial_buffers_wrong(&flight->trial, walker->rank, &flight->buffers);
		if (result)
			complain(walker, &flight->trial, "failed:", ferryGetLastError(walker->comm));
		else if (wrong)
			complain(walker, &flight->trial, "has wrong elements", "");
		trial_buffers_close(&flight->buffers);
		ferry_trial_close(&flight->trial);
		flight->open = false;
	}
}

static void *walk(void *argument)
{
	struct walker *walker = argument;
	for (int done = 0; done < walker->calls && !walker->broken;) {
		int together = 1 + (int)(trial_random(&walker->sequence) % FLIGHTS);
		for (int i = 0; i < together && done < walker->calls; i++, done++)
			start(walker, &walker->flights[i]);
		/* Ranks arrive in another order each time. */
		for (uint64_t yields = trial_random(&walker->hurry) % 8; yields; yields--)
			sched_yield();
		land(walker);
	}
	return NULL;
}

static void set_number(const char *name, int value)
{
	char text[16];
	snprintf(text, sizeof text, "%d", value);
	setenv(name, text, 1);
}

/*
 * A thread per rank. Threads stop at their first failure, and the others with them, since Destroy and Abort end their
 * calls.
 */
static void run_threads(int nranks, int domains, int slice, int calls)
{
	static struct walker walkers[FERRY_MAX_RANKS];
	pthread_t threads[FERRY_MAX_RANKS];
	ferryComm_t comms[FERRY_MAX_RANKS];
	unsigned failures = 0;
	hosted_routers(domains);
	set_number("FERRY_SLICE", slice);
	setenv("FERRY_WINDOW", "1", 1);
	if (ferryCommInitAll(comms, nranks, NULL))
		fail_msg("%d ranks, %d domains: %s", nranks, domains, ferryGetLastError(NULL));
	for (int rank = 0; rank < nranks; rank++) {
		walkers[rank] = (struct walker){.comm = comms[rank],
		                                .rank = rank,
		                                .nranks = nranks,
		                                .ndomains = domains,
		                                .calls = calls,
		                                .sequence = seed * 0x9e3779b97f4a7c15ull + 1,
		                                .hurry = seed + (uint64_t)rank + 1};
		assert_int_equal(ferryStreamCreate(&walkers[rank].stream, rank), ferrySuccess);
		assert_int_equal(pthread_create(&threads[rank], NULL, walk, &walkers[rank]), 0);
	}
	for (int rank = 0; rank < nranks; rank++) {
		pthread_join(threads[rank], NULL);
		failures += walkers[rank].failures;
		assert_int_equal(ferryStreamDestroy(walkers[rank].stream), ferrySuccess);
	}
	for (int rank = 0; rank < nranks; rank++)
		assert_int_equal(ferryCommDestroy(comms[rank]), ferrySuccess);
	assert_int_equal(failures, 0);
}

static void sixty_four_ranks_get_every_random_call_right(void **state)
{
	(void)state;
	run_threads(64, 4, 1024, 40);
}

static void eight_ranks_get_a_long_random_sequence_right(void **state)
{
	(void)state;
	run_threads(8, 3, 256, calls_of_sequence());
}

static void one_domain_gives_rank_order_bits_under_stress(void **state)
{
	(void)state;
	run_threads(7, 1, 512, calls_of_sequence());
}

/* Communicators of random halves, made and ended over and over while calls of the whole are in flight around them. */
static void *split_and_walk(void *argument)
{
	struct walker *walker = argument;
	for (int round = 0; round < 6 && !walker->broken; round++) {
		struct walker part = {.calls = 10, .ndomains = walker->ndomains};
		uint64_t colors = trial_random(&walker->sequence), order = trial_random(&walker->sequence);
		int color = (int)(colors >> walker->rank & 1), key = (int)((order >> walker->rank & 7) * 8);
		struct ferry_trial none = {.nranks = walker->nranks};
		walk(walker);
		if (ferryCommSplit(walker->comm, color, key, &part.comm, NULL) ||
		    ferryCommUserRank(part.comm, &part.rank) || ferryCommCount(part.comm, &part.nranks)) {
			complain(walker, &none, "split:", ferryGetLastError(NULL));
			walker->broken = true;
			return NULL;
		}
		part.sequence = walker->sequence ^ (uint64_t)(color + 2);
		part.hurry = walker->hurry;
		part.stream = walker->stream;
		walk(&part);
		walker->failures += part.failures;
		if (ferryCommDestroy(part.comm))
			complain(walker, &none, "destroying a part:", ferryGetLastError(NULL));
	}
	return NULL;
}

static void parts_of_a_communicator_come_and_go(void **state)
{
	(void)state;
	enum { N = 6 };
	static struct walker walkers[N];
	pthread_t threads[N];
	ferryComm_t comms[N];
	unsigned failures = 0;
	hosted_routers(2);
	set_number("FERRY_SLICE", 512);
	if (ferryCommInitAll(comms, N, NULL))
		fail_msg("%s", ferryGetLastError(NULL));
	for (int rank = 0; rank < N; rank++) {
		walkers[rank] = (struct walker){.comm = comms[rank],
		                                .rank = rank,
		                                .nranks = N,
		                                .ndomains = 2,
		                                .calls = 10,
		                                .sequence = seed * 77 + 5,
		                                .hurry = seed + (uint64_t)rank + 1};
		assert_int_equal(ferryStreamCreate(&walkers[rank].stream, rank), ferrySuccess);
		assert_int_equal(pthread_create(&threads[rank], NULL, split_and_walk, &walkers[rank]), 0);
	}
	for (int rank = 0; rank < N; rank++) {
		pthread_join(threads[rank], NULL);
		failures += walkers[rank].failures;
		assert_int_equal(ferryStreamDestroy(walkers[rank].stream), ferrySuccess);
	}
	for (int rank = 0; rank < N; rank++)
		assert_int_equal(ferryCommDestroy(comms[rank]), ferrySuccess);
	assert_int_equal(failures, 0);
}

/* One of many processes. */
static void this_process_gets_every_random_call_right(void **state)
{
	(void)state;
	static struct walker walker;
	int domain;
	setenv("FERRY_WINDOW", "1", 1);
	set_number("FERRY_SLICE", 1024);
	if (ferryCommInitEnv(&walker.comm, NULL))
		fail_msg("%s", ferryGetLastError(NULL));
	assert_int_equal(ferryCommUserRank(walker.comm, &walker.rank), ferrySuccess);
	assert_int_equal(ferryCommCount(walker.comm, &walker.nranks), ferrySuccess);
	assert_int_equal(ferryCommDomain(walker.comm, &domain, &walker.ndomains), ferrySuccess);
	walker.calls = 60;
	walker.sequence = seed * 0x9e3779b97f4a7c15ull + 1;
	walker.hurry = seed + (uint64_t)walker.rank + 1;
	walk(&walker);
	assert_int_equal(ferryCommDestroy(walker.comm), ferrySuccess);
	assert_int_equal(walker.failures, 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest in_threads[] = {
	        cmocka_unit_test(eight_ranks_get_a_long_random_sequence_right),
	        cmocka_unit_test(one_domain_gives_rank_order_bits_under_stress),
	        cmocka_unit_test(parts_of_a_communicator_come_and_go),
	        cmocka_unit_test(sixty_four_ranks_get_every_random_call_right),
	};
	const struct CMUnitTest in_processes[] = {cmocka_unit_test(this_process_gets_every_random_call_right)};
	struct ferry_launch launch;
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	setenv("FERRY_SHORT", "1K", 0); /* about half of the calls are the routers', */
	setenv("FERRY_WORKERS", "8", 0); /* which work as on a larger machine */
	if (ferry_launch_read(&launch))
		return 1;
	if (launch.rank >= 0)
		return cmocka_run_group_tests(in_processes, NULL, NULL);
	hosted_routers(0);
	printf("seed %llu\n", (unsigned long long)seed);
	return cmocka_run_group_tests(in_threads, NULL, NULL);
}
