/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of uneven traffic by name or from a file: who sends what, and what is refused with which message. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "bench/trial/skew.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct ferry_skew skew;

static void read_as(const char *text, int nranks)
{
	char message[256] = "";
	if (!ferry_skew_read(text, nranks, &skew, message, sizeof message))
		fail_msg("%s: %s", text, message);
}

static void assert_part(int from, int to, double part)
{
	if (fabs(skew.part[from][to] - part) > 1e-9)
		fail_msg("from %d to %d: %g instead of %g", from, to, skew.part[from][to], part);
}

static void refuse(const char *text, int nranks, const char *says)
{
	char message[256] = "";
	if (ferry_skew_read(text, nranks, &skew, message, sizeof message) || !strstr(message, says))
		fail_msg("\"%s\": \"%s\" instead of \"%s\"", text, message, says);
}

/* The file's name, which the caller unlinks. */
static const char *file_of(const char *text)
{
	static char name[] = "/tmp/ferry-skew-XXXXXX";
	strcpy(name, "/tmp/ferry-skew-XXXXXX");
	int file = mkstemp(name);
	assert_true(file >= 0);
	assert_int_equal(write(file, text, strlen(text)), strlen(text));
	close(file);
	return name;
}

static void traffic_is_what_its_name_says(void **state)
{
	(void)state;
	read_as("own:0.7", 4);
	assert_part(0, 1, 0.7);
	assert_part(3, 0, 0.7);
	assert_part(3, 1, 0.15);
	assert_part(2, 2, 0);
	read_as("hot:0.5", 3); /* rank 0 receives 0.5 of two, and 0.5 of the rest of none: the busiest */
	assert_part(1, 0, 0.5);
	assert_part(2, 0, 0.5);
	assert_part(0, 1, 0.5);
	read_as("pair", 5);
	assert_part(0, 4, 1);
	assert_part(4, 0, 0);
	read_as("own:0", 2); /* there is but one other rank */
	assert_part(1, 0, 1);
}

static void parts_fall_by_a_power_law_in_another_order_at_each_rank(void **state)
{
	(void)state;
	read_as("zipf:1", 5);
	for (int from = 0; from < 5; from++) {
		double sum = 0, squares = 0, first = 0;
		for (int to = 0; to < 5; to++) {
			sum += skew.part[from][to];
			squares += skew.part[from][to] * skew.part[from][to];
			first = fmax(first, skew.part[from][to]);
		}
		assert_true(fabs(sum / first - (1 + 1 / 2.0 + 1 / 3.0 + 1 / 4.0)) < 1e-9);
		assert_true(fabs(squares / first / first - (1 + 1 / 4.0 + 1 / 9.0 + 1 / 16.0)) < 1e-9);
	}
}

static void the_busiest_rank_has_all(void **state)
{
	(void)state;
	static const char *const texts[] = {"hot:0.7", "own:0.2", "pair", "zipf:1.2", "zipf:0"};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		for (int n = 2; n <= FERRY_MAX_RANKS; n++) {
			double most = 0;
			read_as(texts[i], n);
			for (int rank = 0; rank < n; rank++) {
				double sends = 0, receives = 0;
				for (int peer = 0; peer < n; peer++) {
					sends += skew.part[rank][peer];
					receives += skew.part[peer][rank];
				}
				most = fmax(most, fmax(sends, receives));
			}
			if (fabs(most - 1) > 1e-9)
				fail_msg("%s, %d ranks: the busiest has %g", texts[i], n, most);
		}
}

static void a_file_has_a_line_per_rank(void **state)
{
	(void)state;
	const char *name = file_of("# bytes\n0 3 1\n\n  2, 0 2 # rank 1\n1 1 0\n");
	read_as(name, 3);
	assert_part(0, 1, 0.75);
	assert_part(1, 0, 0.5);
	refuse(name, 4, ":2: 3 numbers for 4 ranks");
	refuse(name, 2, ":2: 3 numbers for 2 ranks");
	unlink(name);
	refuse(name, 3, "No such file");
}

static void what_makes_no_sense_is_refused_with_its_values(void **state)
{
	(void)state;
	static const struct {
		const char *lines, *says;
	} files[] = {
	        {"", "lines of 0 ranks, and there are 2"},
	        {"0 1\n", "lines of 1 ranks, and there are 2"},
	        {"0 1\n1 0\n1 0\n", ":3: a line more than there are ranks, 2"},
	        {"0 1\n-1 0\n", ":2: \"-1\" is no number from 0 on"},
	        {"0 1x\n1 0\n", ":1: \"1x\" is no number"},
	        {"0 nan\n1 0\n", ":1: \"nan\" is no number"},
	        {"0 inf\n1 0\n", ":1: \"inf\" is no number"},
	        {"0 0\n0 0\n", "nobody sends anything"},
	};
	for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
		const char *name = file_of(files[i].lines);
		refuse(name, 2, files[i].says);
		unlink(name);
	}
	refuse("hot:", 4, "\"hot:\": a number from 0 to 1");
	refuse("own:-0.1", 4, "from 0 to 1");
	refuse("hot:0.7x", 4, "from 0 to 1");
	refuse("zipf:11", 4, "from 0 to 10");
	refuse("zipf:nan", 4, "from 0 to 10");
	refuse("pair", 1, "2 ranks at least, not 1");
	refuse("/", 2, "/: it cannot be read");
	refuse("even", 2, "even: No such file or directory; or hot:PART");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(traffic_is_what_its_name_says),
	        cmocka_unit_test(parts_fall_by_a_power_law_in_another_order_at_each_rank),
	        cmocka_unit_test(the_busiest_rank_has_all),
	        cmocka_unit_test(a_file_has_a_line_per_rank),
	        cmocka_unit_test(what_makes_no_sense_is_refused_with_its_values),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
