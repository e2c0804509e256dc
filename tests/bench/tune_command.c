/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of `ferry-perf tune`, over the doubles of CUDA and NCCL. No time means anything. */
#include "orchestrator/prior.h"
#include "tests/commands.h"

static char output[1 << 16], file[96];

/* Exit code; what it has printed is in `output`. Outside commands.h's folder, which must be empty at the end. */
static int tune(const char *environment, const char *arguments)
{
	char command[1024];
	snprintf(command, sizeof command,
	         "export FAKE_CUDA_DEVICES=2 FAKE_CUDA_CONTEXT_MEMORY=1048576 FAKE_CUDA_MACHINE=$FERRY_SOCKET_DIR "
	         "FERRY_CUDA_LIBRARY=%s FERRY_NCCL_LIBRARY=%s; exec 2>&1; %s %s tune --quick -e 1M %s",
	         FAKE_CUDA_LIBRARY, FERRY_FAKE_NCCL, environment, FERRY_PERF, arguments);
	return run(command, output, sizeof output);
}

static void must(int code, int expected, const char *text)
{
	if (code != expected || !strstr(output, text))
		fail_msg("exit code %d, not %d with \"%s\":\n%s", code, expected, text, output);
}

static bool knows(uint32_t nranks, enum ferry_collective collective, enum ferry_prior_arm arm)
{
	struct ferry_prior prior;
	double us = 0;
	ferry_prior_load(&prior, nranks);
	return ferry_prior_us(&prior, collective, 1 << 20, arm, &us) && us > 0;
}

static void programs_know_what_collectives_take_by_nccl_and_by_ferry(void **state)
{
	(void)state;
	static const enum ferry_collective all[] = {FERRY_ALLREDUCE, FERRY_ALLGATHER, FERRY_REDUCESCATTER,
	                                            FERRY_BROADCAST, FERRY_REDUCE_TO_ROOT, FERRY_ALLTOALL,
	                                            FERRY_SENDRECV};
	must(tune("", ""), 0, "2 GPUs, NCCL 2.28.9");
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		bool messages = all[i] == FERRY_ALLTOALL || all[i] == FERRY_SENDRECV;
		if (!knows(2, all[i], FERRY_PRIOR_NCCL) || !knows(2, all[i], FERRY_PRIOR_FERRY) ||
		    knows(2, all[i], FERRY_PRIOR_NCCL_16_CHANNELS) == messages)
			fail_msg("%s\n%s", ferry_collective_name(all[i]), output);
	}
	assert_false(knows(3, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL));
}

/* One late row must not turn programs away from what is faster: four calls of a quarter of the size do as much. */
static void no_size_takes_longer_than_four_of_a_quarter(void **state)
{
	(void)state;
	struct ferry_prior prior;
	must(tune("", "-e 16M"), 0, "written to");
	ferry_prior_load(&prior, 2);
	for (enum ferry_collective all = 0; all < FERRY_NUM_COLLECTIVES; all++)
		for (uint64_t bytes = 1 << 20; prior.counts[all] && bytes < 16 << 20; bytes *= 4)
			for (int arm = FERRY_PRIOR_NCCL; arm <= FERRY_PRIOR_FERRY; arm++) {
				double less, more;
				if (!ferry_prior_us(&prior, all, bytes, (enum ferry_prior_arm)arm, &less) ||
				    !ferry_prior_us(&prior, all, 4 * bytes, (enum ferry_prior_arm)arm, &more))
					continue;
				if (more > 4.01 * less)
					fail_msg("%s\n%s", ferry_collective_name(all), output);
			}
}

/* Without matplotlib ferry-plot says so. */
static void what_was_measured_is_drawn(void **state)
{
	(void)state;
	char command[512];
	must(tune("", ""), 0, "written to");
	snprintf(command, sizeof command,
	         "exec 2>&1; $(dirname %s)/ferry-plot %s -o %s.picture; code=$?; rm -f %s.picture.*; exit $code",
	         FERRY_PERF, file, file, file);
	bool draws = !system("python3 -c 'import matplotlib' 2>/dev/null");
	must(run(command, output, sizeof output), !draws, draws ? ".picture.png" : "ferry-plot: needs matplotlib");
}

static void channels_that_the_user_has_set_are_nccls_defaults(void **state)
{
	(void)state;
	setenv("NCCL_MAX_NCHANNELS", "4", 1);
	must(tune("", ""), 0, "written to");
	assert_true(knows(2, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL));
	assert_false(knows(2, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL_16_CHANNELS));
	unsetenv("NCCL_MAX_NCHANNELS");
	assert_false(knows(2, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL)); /* of other settings */
}

static void once_measures_once_and_for_each_settings(void **state)
{
	(void)state;
	must(tune("FAKE_CUDA_DEVICES=3", "--once"), 0, "measuring NCCL and Ferry on 3 GPUs");
	assert_true(knows(3, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL) && knows(2, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL));
	assert_int_equal(tune("FAKE_CUDA_DEVICES=3", "--once"), 0);
	assert_string_equal(output, "");
	assert_int_equal(tune("", "--once"), 0);
	assert_string_equal(output, "");
	assert_int_equal(tune("CUDA_VISIBLE_DEVICES=0,1 FERRY_CUDA_LIBRARY=/unopened", "--once"), 0);
	assert_string_equal(output, "");
	must(tune("NCCL_BUFFSIZE=1048576", "--once"), 0, "measuring NCCL and Ferry on 2 GPUs");
}

/* The later one waits, and finds what the other has written. */
static void two_at_once_measure_one_after_the_other(void **state)
{
	(void)state;
	assert_int_equal(tune("FERRY_LOG=info", "--once & wait_for=$!; " FERRY_PERF " tune --quick --once -e 1M; "
	                                        "wait $wait_for"), 0);
	const char *said = strstr(output, "measuring NCCL and Ferry on 2 GPUs");
	if (!said || strstr(said + 1, "measuring NCCL") || strstr(output, " info: "))
		fail_msg("%s", output);
	assert_true(knows(2, FERRY_ALLREDUCE, FERRY_PRIOR_NCCL));
}

static void what_cannot_be_measured_is_told_unless_it_is_to_be_measured_once(void **state)
{
	static const char *const cases[][2] = {{"FAKE_CUDA_DEVICES=1", "ways between GPUs, and there is 1"},
	                                       {"FERRY_CUDA_LIBRARY=/none", "/none"},
	                                       {"FERRY_NCCL_LIBRARY=/none", "FERRY_NCCL_LIBRARY: /none"}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		must(tune(cases[i][0], ""), 1, cases[i][1]);
		assert_int_equal(tune(cases[i][0], "--once"), 0);
		assert_string_equal(output, "");
	}
	must(tune("NCCL_PROTO=LL128", "--once"), 1, "ended by signal 6"); /* the double dies of it */
	must(tune("FERRY_LIMITS=/dev/null/limits.json", ""), 1, "/dev/null");
	must(tune("", "-e 3"), 64, "-e 3: from 1M to 256M");
	assert_int_equal(access(file, F_OK), -1);
}

static int make_file(void **state)
{
	snprintf(file, sizeof file, "/tmp/ferry-tune-test-%ld.json", (long)getpid());
	return make_directory(state) || setenv("FERRY_LIMITS", file, 1);
}

static int remove_file(void **state)
{
	unlink(file);
	return remove_directory(state);
}

#define TUNES(name) cmocka_unit_test_setup_teardown(name, make_file, remove_file)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TUNES(programs_know_what_collectives_take_by_nccl_and_by_ferry),
	        TUNES(no_size_takes_longer_than_four_of_a_quarter),
	        TUNES(what_was_measured_is_drawn),
	        TUNES(channels_that_the_user_has_set_are_nccls_defaults),
	        TUNES(once_measures_once_and_for_each_settings),
	        TUNES(two_at_once_measure_one_after_the_other),
	        TUNES(what_cannot_be_measured_is_told_unless_it_is_to_be_measured_once),
	};
	return cmocka_run_group_tests_name("tune_command", tests, NULL, NULL);
}
