/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A communicator is ended by one thread while others are in calls with it: they come out soon, with a reason, and what
 * they use is not freed under them. To be run under the sanitizers too. On GPUs; with FERRY_TEST_HOST on host devices.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"
#include "tests/kept_log.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define COUNT    4096
#define ROUNDS   8
#define CALLERS  4
#define MANY     60

static const int devices[] = {0, 1};
static bool on_host;

/* What the threads are in calls with: rank 0's. */
struct bench {
	struct gang gang;
	struct place place;
	char *memory; /* host devices: of three buffers */
	void *send, *receive, *registered;
	ferryStream_t stream;
};

struct caller {
	struct bench *bench;
	ferryResult_t (*call)(struct caller *caller);
	unsigned calls;
	ferryResult_t result; /* of the first call that failed */
	char message[256];
	pthread_t thread;
};

static void bench_open(struct bench *bench, int nranks)
{
	*bench = (struct bench){.stream = NULL};
	log_keep();
	gang_open(&bench->gang, nranks, devices, 1);
	if (on_host) {
		assert_non_null(bench->memory = calloc(3, COUNT * sizeof(uint32_t)));
		bench->send = bench->memory;
		bench->receive = bench->memory + COUNT * sizeof(uint32_t);
		bench->registered = bench->memory + 2 * COUNT * sizeof(uint32_t);
		return;
	}
	place_open(&bench->place, devices[0], 0, nranks, COUNT);
	bench->send = bench->registered = pointer_of(bench->place.input);
	bench->receive = pointer_of(bench->place.output);
	bench->stream = (ferryStream_t)bench->place.stream;
}

/* Else it was after ten seconds. */
static void nobody_gave_up(void)
{
	log_release();
	assert_false(log_has(GAVE_UP));
}

/* The communicator of rank 0 has ended. */
static void bench_close(struct bench *bench)
{
	if (on_host) {
		ferryStreamSynchronize(NULL); /* with the error of the calls that were cut off */
		free(bench->memory);
	} else {
		place_enter(&bench->place);
		CU(cuStreamSynchronize(bench->place.stream));
		place_close(&bench->place);
	}
	for (int rank = 1; rank < bench->gang.nranks; rank++)
		OK(ferryCommAbort(bench->gang.comms[rank]));
	domains_close();
	log_release();
}

/* ---- what threads do ---- */

/* One plan after another: each is given to a router. */
static ferryResult_t reduce(struct caller *caller)
{
	struct bench *bench = caller->bench;
	return ferryAllReduce(bench->send, bench->receive, 1 + caller->calls % 64, ferryUint32, ferrySum,
	                      bench->gang.comms[0], bench->stream);
}

static ferryResult_t message(struct caller *caller)
{
	struct bench *bench = caller->bench;
	return bench->gang.nranks == 1 ? ferryAllGather(bench->send, bench->receive, COUNT, ferryUint32,
	                                                bench->gang.comms[0], bench->stream)
	                               : ferrySend(bench->send, COUNT, ferryUint32, 1, bench->gang.comms[0],
	                                           bench->stream);
}

static ferryResult_t registration(struct caller *caller)
{
	struct bench *bench = caller->bench;
	void *handle;
	ferryResult_t result = ferryCommRegister(bench->gang.comms[0], bench->registered, COUNT * sizeof(uint32_t),
	                                         &handle);
	return result ? result : ferryCommDeregister(bench->gang.comms[0], handle);
}

static ferryResult_t question(struct caller *caller)
{
	ferryResult_t error = ferrySuccess, result = ferryCommGetAsyncError(caller->bench->gang.comms[0], &error);
	return result ? result : error;
}

static void *call_until_refused(void *argument)
{
	struct caller *caller = argument;
	if (!on_host)
		place_enter(&caller->bench->place);
	while (!(caller->result = caller->call(caller)))
		if (++caller->calls > MANY)
			doze(1); /* streams come out of the calls that have piled up by one a millisecond */
	snprintf(caller->message, sizeof caller->message, "%s", ferryGetLastError(NULL));
	return NULL;
}

static void callers_start(struct caller *callers, struct bench *bench)
{
	static ferryResult_t (*const calls[CALLERS])(struct caller *) = {reduce, message, registration, question};
	for (int i = 0; i < CALLERS; i++) {
		callers[i] = (struct caller){.bench = bench, .call = calls[i]};
		assert_int_equal(pthread_create(&callers[i].thread, NULL, call_until_refused, &callers[i]), 0);
	}
}

/* Each was refused for the end: as it came, or for a communicator that is gone. */
static void callers_end(struct caller *callers, ferryResult_t expected, const char *flags)
{
	for (int i = 0; i < CALLERS; i++) {
		struct caller *caller = &callers[i];
		assert_int_equal(pthread_join(caller->thread, NULL), 0);
		bool gone = caller->result == ferryInvalidArgument && strstr(caller->message, "destroyed");
		bool logged = caller->call == question || strstr(caller->message, flags);
		bool meanwhile = caller->result == ferryInvalidUsage && strstr(caller->message, "meanwhile");
		if (!gone && !meanwhile && (caller->result != expected || !logged))
			fail_msg("caller %d after %u calls: %s: \"%s\"", i, caller->calls,
			         ferryGetErrorString(caller->result), caller->message);
	}
	nobody_gave_up();
}

/*
 * A call that a group keeps holds the communicator: threads that begin a call when its end is over would be wrong
 * without.
 */
static void keep_in_group(struct bench *bench)
{
	OK(ferryGroupStart());
	OK(ferryAllReduce(bench->send, bench->receive, 1, ferryUint32, ferrySum, bench->gang.comms[0], bench->stream));
}

/* ---- ends beside calls ---- */

static void threads_come_out_of_their_calls_when_another_aborts(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct bench bench;
		struct caller callers[CALLERS];
		bench_open(&bench, 2); /* the other rank makes no calls: none ends */
		keep_in_group(&bench);
		callers_start(callers, &bench);
		doze(round % 6);
		OK(ferryCommAbort(bench.gang.comms[0]));
		callers_end(callers, ferryRemoteError, "rank 0 aborted");
		REFUSED(ferryInvalidArgument, "destroyed", ferryGroupEnd());
		bench_close(&bench);
	}
}

static void calls_that_their_streams_have_not_come_to_do_not_hold_up_an_abort(void **state)
{
	(void)state;
	struct bench bench;
	struct caller caller = {.bench = &bench};
	bench_open(&bench, 2);
	for (; caller.calls < 2 * MANY; caller.calls++)
		OK(reduce(&caller));
	OK(ferryCommAbort(bench.gang.comms[0]));
	nobody_gave_up();
	bench_close(&bench);
}

static void threads_are_refused_calls_when_another_destroys(void **state)
{
	(void)state;
	for (int round = 0; round < ROUNDS; round++) {
		struct bench bench;
		struct caller callers[CALLERS];
		bench_open(&bench, 1);
		keep_in_group(&bench);
		callers_start(callers, &bench);
		doze(round % 6);
		OK(ferryCommDestroy(bench.gang.comms[0]));
		callers_end(callers, ferryInvalidUsage, "finalized");
		REFUSED(ferryInvalidArgument, "destroyed", ferryGroupEnd());
		bench_close(&bench);
	}
}

static void *abort_now(void *argument)
{
	ferryCommAbort(argument);
	return NULL;
}

static void a_thread_that_destroys_comes_out_when_another_aborts(void **state)
{
	(void)state;
	struct bench bench;
	struct caller caller = {.bench = &bench};
	bench_open(&bench, 2);
	OK(reduce(&caller)); /* the other rank does not take part */
	pthread_t other;
	keep_in_group(&bench);
	assert_int_equal(pthread_create(&other, NULL, abort_now, bench.gang.comms[0]), 0);
	ferryResult_t result = ferryCommDestroy(bench.gang.comms[0]);
	assert_true(result == ferryRemoteError || result == ferryInvalidArgument);
	assert_int_equal(pthread_join(other, NULL), 0);
	REFUSED(ferryInvalidArgument, "destroyed", ferryGroupEnd());
	bench_close(&bench);
}

/* ---- a router that does not answer ---- */

static void stop_router(void)
{
	int status;
	assert_int_equal(kill(routers_pid(0), SIGSTOP), 0);
	assert_int_equal(waitpid(routers_pid(0), &status, WUNTRACED), routers_pid(0));
	assert_true(WIFSTOPPED(status));
}

/* The thread that waits for it is the last that holds the communicator. */
static void abort_beside(ferryResult_t (*call)(struct caller *))
{
	struct bench bench;
	setenv("FERRY_ATTACH_TIMEOUT", "86400", 1); /* a thread that the abort does not end waits for a day */
	bench_open(&bench, 2);
	struct caller caller = {.bench = &bench, .call = call};
	stop_router();
	assert_int_equal(pthread_create(&caller.thread, NULL, call_until_refused, &caller), 0);
	doze(100);
	OK(ferryCommAbort(bench.gang.comms[0]));
	assert_int_equal(pthread_join(caller.thread, NULL), 0);
	assert_int_equal(kill(routers_pid(0), SIGCONT), 0);
	assert_int_equal(caller.calls, 0);
	if (caller.result != ferryRemoteError || !strstr(caller.message, "rank 0 aborted"))
		fail_msg("%s: \"%s\"", ferryGetErrorString(caller.result), caller.message);
	bench_close(&bench);
	unsetenv("FERRY_ATTACH_TIMEOUT");
}

static void a_thread_that_waits_for_a_router_comes_out_when_another_aborts(void **state)
{
	(void)state;
	if (!routers_used())
		skip(); /* one in this process cannot be stopped */
	abort_beside(reduce);
	abort_beside(registration);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(calls_that_their_streams_have_not_come_to_do_not_hold_up_an_abort),
	        TEST(threads_come_out_of_their_calls_when_another_aborts),
	        TEST(threads_are_refused_calls_when_another_destroys),
	        TEST(a_thread_that_destroys_comes_out_when_another_aborts),
	        TEST(a_thread_that_waits_for_a_router_comes_out_when_another_aborts),
	};
	fake_is_the_driver();
	on_host = getenv("FERRY_TEST_HOST");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
