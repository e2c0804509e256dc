/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device over the double of the driver: what fails, hangs or is refused, and who is told. */
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

static const int devices[] = {0, 1, 2, 3};

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

/* Never returns: a call under way, and memory freed beside it. */
static void free_beside_a_call(int say)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr memory;
	dup2(say, STDERR_FILENO);
	setenv("FERRY_TIMEOUT", "1", 1);
	gang_open(&gang, 2, devices, 1);
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	place_enter(&places[0]);
	CU(cuMemAlloc(&memory, 4096));
	places[1].wait_ms = 100; /* so the first one's call is still under way below */
	places_round(places, &gang);
	place_enter(&places[0]);
	cuMemFree(memory);
	_exit(0);
}

static bool tells_of_it(const char *said)
{
	return strstr(said, "lane: in the device's driver for ") || strstr(said, "lane: no progress for ");
}

/*
 * The driver waits for the call in a lock that the lanes need. Nothing can be done about it here, but it is told: by
 * the other lane where one of them hangs, by the other rank's where both do.
 */
static void a_call_that_the_driver_holds_up_is_told_of(void **state)
{
	char said[4096];
	size_t length = 0;
	int ends[2];
	ssize_t got;
	(void)state;
	only_direct("the driver of a rank whose router moves its data holds nothing up");
	assert_int_equal(pipe(ends), 0);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		free_beside_a_call(ends[1]);
	close(ends[1]);
	said[0] = '\0';
	while (!tells_of_it(said) && length < sizeof said - 1 &&
	       (got = read(ends[0], said + length, sizeof said - 1 - length)) > 0)
		said[length += (size_t)got] = '\0';
	kill(child, SIGKILL);
	assert_int_equal(waitpid(child, NULL, 0), child);
	close(ends[0]);
	if (!tells_of_it(said))
		fail_msg("said: \"%s\"", said);
}

static int refused_settings(void)
{
	static const char *const settings[][2] = {{"FERRY_COPY_STREAMS", "9"}, /* the device is not open then */
	                                          {"FERRY_LAZY_MODULES", "yes"},
	                                          {"FERRY_LAZY_MODULES", "-1"},
	                                          {"FERRY_STAGING", "0"},
	                                          {"FERRY_LIMITS", "/dev/null/limits.json"}};
	setenv("FERRY_ROUTER", "embedded", 1); /* some settings are of lanes of its own */
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

/*
 * Rank 1 never calls; rank 0's GPU fails while its call waits. Staging stays registered with it: the suite's last test.
 */
static void a_gpu_that_fails_fails_its_communicator_and_no_other(void **state)
{
	(void)state;
	static const int others[] = {2, 3};
	struct gang gang, bystanders;
	struct place places[MOST_PLACES], other_places[MOST_PLACES];
	only_direct("a fault in a rank's context is none in its router's");
	gang_open(&gang, 2, devices, 1);
	gang_open(&bystanders, 2, others, 1);
	places_open(places, &gang, COUNT);
	places_open(other_places, &bystanders, COUNT);
	place_round(&places[0], gang.comms[0]);
	place_round(&other_places[0], bystanders.comms[0]);
	doze(20);
	CU(fake_cuda_break(0, CUDA_ERROR_ILLEGAL_ADDRESS));
	ferryResult_t error = error_within(gang.comms[0], 20000);
	const char *why = ferryGetLastError(gang.comms[0]);
	if (error != ferryUnhandledDeviceError || !strstr(why, "700"))
		fail_msg("%s: %s", ferryGetErrorString(error), why);
	for (int rank = 0; rank < 2; rank++)
		OK(ferryCommAbort(gang.comms[rank]));
	place_round(&other_places[1], bystanders.comms[1]);
	places_round(other_places, &bystanders);
	places_settle(other_places, &bystanders, 2);
	gang_close(&bystanders);
	places_close(other_places, &bystanders);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_call_that_the_driver_holds_up_is_told_of), /* first: they fork */
	        cmocka_unit_test(settings_out_of_range_are_refused_by_name_and_value),
	        cmocka_unit_test_teardown(a_call_that_failed_before_its_stream_reached_it_starts_no_other, no_misuse),
	        cmocka_unit_test_teardown(a_gpu_that_fails_fails_its_communicator_and_no_other, no_misuse),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
