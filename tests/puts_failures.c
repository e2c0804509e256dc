/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers push from GPU to GPU, over the double of the driver: what is told, and what comes back, where something goes
 * wrong meanwhile. What arrives where nothing does: puts.c.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT 30011

static const int devices[] = {0, 1, 2, 3};

/* ---- a driver that hangs ---- */

/* How often the words are in the file, after so long at most; as soon as they are there as often. */
static int times_said(int file, const char *words, int wanted, int milliseconds)
{
	char said[8192];
	int count;
	do {
		ssize_t length = pread(file, said, sizeof said - 1, 0);
		assert_true(length >= 0);
		said[length] = '\0';
		count = 0;
		for (const char *at = said; (at = strstr(at, words)); at++)
			count++;
		doze(1);
	} while (count < wanted && milliseconds-- > 0);
	return count;
}

/* Both GPUs' D2H lanes are in there; nothing else moves. */
static void a_push_that_hangs_in_the_driver_is_told_of_by_the_other_lane(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	char path[] = "/tmp/ferry-puts-XXXXXX", stuck[64];
	int file = mkstemp(path), before = dup(STDERR_FILENO);
	(void)state;
	assert_true(file >= 0 && before >= 0);
	snprintf(stuck, sizeof stuck, "%s-stuck", path);
	setenv("FERRY_STALL_SECONDS", "1", 1);
	setenv("FAKE_CUDA_STUCK", stuck, 1);
	dup2(file, STDERR_FILENO); /* the router's, too */
	gang_open(&gang, 2, devices, 1);
	dup2(before, STDERR_FILENO);
	unsetenv("FAKE_CUDA_STUCK");
	unsetenv("FERRY_STALL_SECONDS");
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	assert_int_equal(times_said(file, "in the device's driver", 1, 0), 0);
	int made = open(stuck, O_CREAT | O_WRONLY, 0600);
	assert_true(made >= 0);
	close(made);
	places_round(places, &gang);
	int told = times_said(file, "D2H lane: in the device's driver for ", 2, 20000);
	unlink(stuck);
	places_settle(places, &gang, 2);
	int others = times_said(file, "H2D lane: in the device's driver", 1, 0);
	gang_close(&gang);
	places_close(places, &gang);
	unlink(path);
	close(file);
	close(before);
	assert_int_equal(told, 2);
	assert_int_equal(others, 0);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_push_that_hangs_in_the_driver_is_told_of_by_the_other_lane),
	};
	char machine[32];
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	snprintf(machine, sizeof machine, "puts-failures-%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	setenv("FERRY_TEST_PUSHES", "1", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
