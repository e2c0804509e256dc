/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of what is known of calls before a program makes one: which rows of the limits file, and what they tell. */
#include "ipc/error.h"
#include "ipc/nccl_settings.h"
#include "orchestrator/prior.h"
#include "rank-lib/program/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <cmocka.h>

static char file[] = "/tmp/ferry-prior-XXXXXX";

static void write_text(const char *text)
{
	FILE *out = fopen(file, "w");
	assert_non_null(out);
	fputs(text, out);
	assert_int_equal(fclose(out), 0);
}

static void write_limits(const struct ferry_limits *limits)
{
	cJSON *json = ferry_limits_json(limits);
	char *text = cJSON_Print(json);
	write_text(text);
	free(text);
	cJSON_Delete(json);
}

static struct ferry_limits_collective row_of(const char *collective, uint64_t bytes, double nccl, double ferry)
{
	struct ferry_limits_collective row = {.ranks = 2, .bytes = bytes, .nccl_us = nccl, .ferry_us = ferry};
	ferry_limits_print_settings(ferry_nccl_settings(), row.settings);
	snprintf(row.collective, sizeof row.collective, "%s", collective);
	return row;
}

static struct ferry_limits limits;

/* Two sizes of AllReduce, the larger one first. */
static void keep_two(void)
{
	struct ferry_limits_collective rows[] = {row_of("allreduce", 16 << 20, 400, 800),
	                                         row_of("allreduce", 1 << 20, 50, 200)};
	limits = (struct ferry_limits){0};
	ferry_limits_replace(&limits, rows, 2);
	write_limits(&limits);
}

static double known(const struct ferry_prior *prior, uint64_t bytes, enum ferry_prior_arm arm)
{
	double us = -1;
	return ferry_prior_us(prior, FERRY_ALLREDUCE, bytes, arm, &us) ? us : 0;
}

static void near(double is, double expected)
{
	if (is < expected * 0.9999 || is > expected * 1.0001)
		fail_msg("%g instead of %g", is, expected);
}

static void calls_take_what_was_measured_around_them(void **state)
{
	struct ferry_prior prior;
	(void)state;
	keep_two();
	ferry_prior_load(&prior, 2);
	near(known(&prior, 1 << 20, FERRY_PRIOR_NCCL), 50);
	near(known(&prior, 16 << 20, FERRY_PRIOR_FERRY), 800);
	near(known(&prior, 4 << 20, FERRY_PRIOR_NCCL), 141.42136); /* half way, in logarithms */
	near(known(&prior, 4 << 20, FERRY_PRIOR_FERRY), 400);
	near(known(&prior, 64 << 20, FERRY_PRIOR_NCCL), 1600); /* at the rate of the largest */
	assert_true(known(&prior, (1 << 20) - 1, FERRY_PRIOR_NCCL) == 0);
	assert_true(known(&prior, 4 << 20, FERRY_PRIOR_NCCL_16_CHANNELS) == 0); /* not measured */
	double us;
	assert_false(ferry_prior_us(&prior, FERRY_ALLGATHER, 4 << 20, FERRY_PRIOR_NCCL, &us));
}

static void rows_of_other_settings_and_ranks_say_nothing(void **state)
{
	struct ferry_prior prior;
	(void)state;
	keep_two();
	ferry_prior_load(&prior, 4);
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
	setenv("NCCL_ALGO", "Ring", 1);
	ferry_prior_load(&prior, 2);
	unsetenv("NCCL_ALGO");
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
	setenv("NCCL_DEBUG", "INFO", 1); /* which changes no speed */
	ferry_prior_load(&prior, 2);
	unsetenv("NCCL_DEBUG");
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 2);
}

static void a_file_that_is_none_or_broken_says_nothing(void **state)
{
	struct ferry_prior prior;
	(void)state;
	write_text("not JSON");
	memset(&prior, 0x5a, sizeof prior);
	ferry_prior_load(&prior, 2);
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
	write_text("{\"windows\": [], \"gpus\": []}");
	ferry_prior_load(&prior, 2);
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
	unlink(file);
	setenv("FERRY_LIMITS", "/nonexistent/limits.json", 1);
	ferry_prior_load(&prior, 2);
	setenv("FERRY_LIMITS", file, 1);
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
}

static void strange_rows_do_no_harm(void **state)
{
	struct ferry_prior prior;
	struct ferry_limits_collective rows[FERRY_PRIOR_SIZES + 4];
	(void)state;
	for (int i = 0; i < FERRY_PRIOR_SIZES + 1; i++)
		rows[i] = row_of("broadcast", 1u << (20 + i), 10 + i, 20);
	rows[FERRY_PRIOR_SIZES + 1] = row_of("nothing", 1 << 20, 1, 1);
	rows[FERRY_PRIOR_SIZES + 2] = row_of("allreduce", 0, 1, 1);
	rows[FERRY_PRIOR_SIZES + 3] = row_of("", 1 << 20, 1, 1);
	limits = (struct ferry_limits){0};
	ferry_limits_replace(&limits, rows, FERRY_PRIOR_SIZES + 4);
	write_limits(&limits);
	ferry_prior_load(&prior, 2);
	assert_int_equal(prior.counts[FERRY_BROADCAST], FERRY_PRIOR_SIZES);
	assert_int_equal(prior.counts[FERRY_ALLREDUCE], 0);
}

static void new_rows_take_the_place_of_old_ones_of_their_settings_and_ranks(void **state)
{
	struct ferry_limits_collective row = row_of("allreduce", 1 << 20, 70, 0), other = row;
	(void)state;
	keep_two();
	other.ranks = 4;
	ferry_limits_replace(&limits, &other, 1);
	ferry_limits_replace(&limits, &row, 1);
	assert_int_equal(limits.ncollectives, 2);
	assert_int_equal(limits.collectives[0].ranks, 4);
	assert_true(limits.collectives[1].nccl_us == 70);
	for (int i = 0; i < FERRY_LIMITS_COLLECTIVES; i++) { /* as many settings: the oldest go */
		ferry_limits_print_settings((uint64_t)i, other.settings);
		ferry_limits_replace(&limits, &other, 1);
	}
	assert_int_equal(limits.ncollectives, FERRY_LIMITS_COLLECTIVES);
	assert_string_equal(limits.collectives[0].settings, "0000000000000000");
}

/* Each rank reads it on its way to its first call. */
static void a_file_that_is_a_pipe_or_a_folder_is_not_waited_for(void **state)
{
	static struct ferry_prior prior;
	bool found;
	(void)state;
	keep_two();
	unlink(file);
	assert_int_equal(mkfifo(file, 0600), 0);
	alarm(30);
	assert_int_equal(ferry_limits_load(&limits, &found), ferryInvalidArgument);
	ferry_prior_load(&prior, 2);
	alarm(0);
	assert_true(known(&prior, 1 << 20, FERRY_PRIOR_NCCL) == 0);
	unlink(file);
	assert_int_equal(mkdir(file, 0700), 0);
	assert_int_equal(ferry_limits_load(&limits, &found), ferryInvalidArgument);
	assert_int_equal(rmdir(file), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(calls_take_what_was_measured_around_them),
	        cmocka_unit_test(rows_of_other_settings_and_ranks_say_nothing),
	        cmocka_unit_test(a_file_that_is_none_or_broken_says_nothing),
	        cmocka_unit_test(strange_rows_do_no_harm),
	        cmocka_unit_test(a_file_that_is_a_pipe_or_a_folder_is_not_waited_for),
	        cmocka_unit_test(new_rows_take_the_place_of_old_ones_of_their_settings_and_ranks),
	};
	int made = mkstemp(file);
	if (made < 0)
		return 1;
	close(made);
	setenv("FERRY_LIMITS", file, 1);
	int failed = cmocka_run_group_tests_name("prior", tests, NULL, NULL);
	unlink(file);
	return failed;
}
