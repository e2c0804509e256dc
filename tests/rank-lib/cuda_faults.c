/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device over the double of the driver: what fails, hangs or is refused, and which ranks are told. */
#include "tests/fake_cuda/places.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT 30011

static ferryResult_t error_within(ferryComm_t comm, int milliseconds)
{
	ferryResult_t error = ferrySuccess;
	for (int waited = 0; !error && waited < milliseconds; waited++) {
		OK(ferryCommGetAsyncError(comm, &error));
		doze(1);
	}
	return error;
}

static _Atomic int held_up, other_held_up;

/*
 * A call that its stream has not reached ends with its communicator; the start that lies in that stream is written
 * later. By then a call of another communicator must not have it for its own.
 */
static void a_call_that_failed_before_its_stream_reached_it_starts_no_other(void **state)
{
	(void)state;
	enum { CALLS = 1500 }; /* more than these two devices have lines: each is used again */
	static const int others[] = {2, 3};
	struct gang gangs[2];
	struct place places[2][MOST_PLACES];
	for (int which = 0; which < 2; which++) {
		gang_open(&gangs[which], 2, others, 1);
		places_open(places[which], &gangs[which], 1000);
	}
	atomic_store(&held_up, 1);
	atomic_store(&other_held_up, 1);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[0][rank]);
		CU(fake_cuda_launch(places[0][rank].stream, hold, &held_up));
		place_call(&places[0][rank], gangs[0].comms[rank]);
	}
	for (int rank = 0; rank < 2; rank++) { /* in a stream that is free, a call on which the two disagree */
		place_enter(&places[0][rank]);
		OK(ferryAllReduce(pointer_of(places[0][rank].input), pointer_of(places[0][rank].output),
		                  10 + (size_t)rank, ferryUint32, ferrySum, gangs[0].comms[rank],
		                  (ferryStream_t)CU_STREAM_PER_THREAD));
	}
	for (int rank = 0; rank < 2; rank++)
		assert_int_equal(error_within(gangs[0].comms[rank], 20000), ferryInvalidUsage);
	doze(20);
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&places[1][rank]);
		CU(fake_cuda_launch(places[1][rank].stream, hold, &other_held_up));
	}
	for (int i = 0; i < CALLS; i++)
		places_round(places[1], &gangs[1]);
	atomic_store(&held_up, 0);
	doze(50);
	atomic_store(&other_held_up, 0);
	places_settle(places[0], &gangs[0], 0);
	places_settle(places[1], &gangs[1], CALLS);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(gangs[0].comms[rank]));
	gang_close(&gangs[1]);
	for (int which = 0; which < 2; which++)
		places_close(places[which], &gangs[which]);
}

static int refused_settings(void)
{
	static const char *const settings[][2] = {{"FERRY_STAGING", "0"},
	                                          {"FERRY_LIMITS", "/dev/null/limits.json"}};
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		ferryComm_t comm;
		setenv(settings[i][0], settings[i][1], 1);
		ferryResult_t result = ferryCommInitAll(&comm, 1, NULL);
		const char *said = result ? ferryGetLastError(NULL) : "taken";
		if (result != ferryInvalidArgument || !strstr(said, settings[i][0]) || !strstr(said, settings[i][1])) {
			fprintf(stderr, "%s=%s: %s\n", settings[i][0], settings[i][1], said);
			return 1;
		}
		unsetenv(settings[i][0]);
	}
	return 0;
}

/* In a child: a device that has been opened keeps its settings. */
static void settings_out_of_range_are_refused_by_name_and_value(void **state)
{
	int status;
	(void)state;
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		_exit(refused_settings());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && !WEXITSTATUS(status));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(settings_out_of_range_are_refused_by_name_and_value), /* first: it forks */
	        cmocka_unit_test_teardown(a_call_that_failed_before_its_stream_reached_it_starts_no_other, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
