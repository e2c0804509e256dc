/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-perf --vs mpi: what it measures of MPI, how, and how it shows that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "tests/bench/perf_rows.h"

#include <math.h>
#include <string.h>

static void against_mpi_rows_have_peer_and_ratio(void **state)
{
	(void)state;
	cJSON *rows = rows_of("allgather -b 64K -e 64K -n 3 -w 1 --ranks 2 --vs mpi");
	assert_int_equal(cJSON_GetArraySize(rows), 2);
	for (const cJSON *row = rows->child; row; row = row->next) {
		assert_string_equal(string(row, "peer"), "mpi");
		assert_true(fabs(number(row, "peer_time_us") / number(row, "time_us") / number(row, "ratio") - 1) <
		            1e-6);
		assert_true(number(row, "wrong") == 0);
		assert_true(number(row, "peer_time_us_low_quartile") <= number(row, "peer_time_us"));
		assert_true(number(row, "peer_time_us_high_quartile") >= number(row, "peer_time_us"));
	}
	cJSON_Delete(rows);
}

#ifdef MPI_ORDER
/* How often so many calls of MPI came in a row, by the file that a rank has written. */
static int times_in_a_row(const char *name, unsigned calls)
{
	unsigned read;
	int times = 0;
	FILE *file = fopen(name, "r");
	assert_non_null(file);
	while (fscanf(file, "%u", &read) == 1)
		times += read == calls;
	fclose(file);
	unlink(name);
	return times;
}

/* A rank that a call of Ferry's has just woken enters MPI's late, which the others' times would show. */
static void calls_of_mpi_follow_one_another_and_none_of_ferrys_is_between(void **state)
{
	(void)state;
	char command[1024], output[8192], name[96];
	unlink(json_file);
	snprintf(command, sizeof command,
	         "%s -n 2 -- env MPI_ORDER=%s LD_PRELOAD=%s %s allreduce -b 64 -e 64 -n 5 -w 1 -c 0 --vs mpi "
	         "--json %s 2>&1",
	         FERRYRUN, json_file, MPI_ORDER, FERRY_PERF, json_file);
	if (run_command(command, output, sizeof output))
		fail_msg("%s failed:\n%s", command, output);
	cJSON *whole = read_json(), *row;
	unsigned calls[2] = {0, 0}, half = 0;
	cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(whole, "rows"))
		calls[half++] = (unsigned)number(row, "calls_per_sample");
	cJSON_Delete(whole);
	assert_int_equal(half, 2);
	for (int rank = 0; rank < 2; rank++) {
		snprintf(name, sizeof name, "%s.%d", json_file, rank);
		/* as many that are not timed, and those of the sample */
		int times = times_in_a_row(name, 2 * calls[0]);
		if (times < (calls[0] == calls[1] ? 10 : 5))
			fail_msg("rank %d: %d samples had %u calls of MPI in a row", rank, times, 2 * calls[0]);
	}
}
#endif

static void lines_of_a_comparison_fit_100_columns(void **state)
{
	(void)state;
	char output[8192];
	assert_int_equal(run("allreduce -b 64 -e 4M -f 1024 -n 1 -w 1 --ranks 2 --vs mpi", output, sizeof output), 0);
	for (const char *line = strtok(output, "\n"); line; line = strtok(NULL, "\n"))
		if (strlen(line) > 100 && strncmp(line, "ferry-perf: ", 12))
			fail_msg("%zu columns: %s", strlen(line), line);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(against_mpi_rows_have_peer_and_ratio),
	        cmocka_unit_test(lines_of_a_comparison_fit_100_columns),
#ifdef MPI_ORDER
	        cmocka_unit_test(calls_of_mpi_follow_one_another_and_none_of_ferrys_is_between),
#endif
	};
#if defined(__SANITIZE_ADDRESS__)
	setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* the leak check crashes on an MPI that was opened at run time */
#endif
	return cmocka_run_group_tests(tests, name_file, remove_file);
}
