/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-stat's table: what it makes of two reports, and that it fits 80 columns whatever the values. */

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "launch/context_memory.h"
#include "launch/exposition.h"
#include "launch/screen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull

static struct ferry_router_report routers[2];
static struct ferry_job_report jobs[2];
static struct ferry_gpu_report gpus[1];
static struct ferry_sockets sockets = {.directory = "/run/ferry"};

/* Two routers of a ferryrun, and its job of four ranks in both. */
static struct ferry_report report_of(uint64_t taken_ns, struct ferry_router_report *of_routers,
                                     struct ferry_job_report *of_jobs)
{
	return (struct ferry_report){.taken_ns = taken_ns,
	                             .sockets = sockets,
	                             .routers = of_routers,
	                             .jobs = of_jobs,
	                             .gpus = gpus,
	                             .nrouters = 2,
	                             .njobs = 2};
}

static int make(void **state)
{
	(void)state;
	for (unsigned domain = 0; domain < 2; domain++) {
		routers[domain] = (struct ferry_router_report){.domain = domain,
		                                               .workers = 4,
		                                               .jobs = 1,
		                                               .ranks = 4,
		                                               .pid = 100 + (int)domain};
		snprintf(routers[domain].socket.path, sizeof routers[domain].socket.path,
		         "/run/ferry/run-abcdef/router-%u.sock", domain);
		strcpy(routers[domain].socket.place, "run-abcdef");
		jobs[domain] = (struct ferry_job_report){.router = domain,
		                                         .number = 1,
		                                         .name = 0xabc,
		                                         .nranks = 4,
		                                         .state = "ready",
		                                         .attached = 0xf};
	}
	gpus[0] = (struct ferry_gpu_report){.router = 1};
	strcpy(gpus[0].uuid, "GPU-01234567-89ab-cdef-0123-456789abcdef");
	return 0;
}

static void rates_are_of_the_time_between_two_reports(void **state)
{
	(void)state;
	struct ferry_router_report old_routers[2] = {routers[0], routers[1]};
	struct ferry_job_report old_jobs[2] = {jobs[0], jobs[1]};
	struct ferry_report before = report_of(SECOND, old_routers, old_jobs),
	                    now = report_of(3 * SECOND, routers, jobs);
	struct ferry_rows rows;
	old_jobs[0].up = old_jobs[0].down = 7000000000;
	jobs[0].up = 9000000000, jobs[0].down = 11000000000; /* 6 GB in 2 s */
	jobs[1].up = 1000000000, jobs[1].down = 1000000000;  /* 2 GB */
	jobs[0].calls = 41, jobs[1].calls = 42;
	old_routers[0].working_ms = 1000, routers[0].working_ms = 5000; /* of 2 s of 4 workers */
	old_routers[1].working_ms = 9000, routers[1].working_ms = 1000; /* a job has left */
	assert_int_equal(ferry_rows_make(&before, &now, &rows), ferrySuccess);
	assert_int_equal(rows.nrouters, 2);
	assert_int_equal(rows.njobs, 1); /* of both routers together */
	assert_true(rows.routers[0].gbps == 3 && rows.routers[1].gbps == 1 && rows.jobs[0].gbps == 4);
	assert_true(rows.routers[0].busy == 0.5 && rows.routers[1].busy == 0);
	assert_int_equal(rows.jobs[0].up, 10000000000);
	assert_int_equal(rows.jobs[0].calls, 42);
	ferry_rows_free(&rows);
	/* Another router process on the same socket, and one with another job: they began at 0. */
	old_routers[0].pid = 99;
	old_jobs[1].number = 2;
	old_jobs[1].up = 500000000;
	assert_int_equal(ferry_rows_make(&before, &now, &rows), ferrySuccess);
	assert_true(rows.routers[0].gbps == 10 && rows.routers[1].gbps == 1);
	ferry_rows_free(&rows);
}

static void jobs_of_one_name_in_two_ferryruns_are_two(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	struct ferry_rows rows;
	strcpy(routers[1].socket.path, "/run/ferry/run-ghijkl/router-1.sock");
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.njobs, 2);
	ferry_rows_free(&rows);
}

static void who_waits_for_others_is_not_blamed(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	struct ferry_rows rows;
	jobs[0].waiting = 0x3, jobs[0].awaited = 0x4; /* 0 and 1 for 2, which waits for 3 */
	jobs[1].waiting = 0x4, jobs[1].awaited = 0x8;
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.jobs[0].waiting, 0x7);
	assert_int_equal(rows.jobs[0].awaited, 0x8);
	ferry_rows_free(&rows);
	jobs[1].awaited = 0x1; /* a circle: all of it */
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.jobs[0].awaited, 0x5);
	ferry_rows_free(&rows);
}

static char *screen_of_lines(const struct ferry_report *report, size_t lines)
{
	struct ferry_rows rows;
	char *text;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	assert_int_equal(ferry_rows_make(report, report, &rows), ferrySuccess);
	ferry_screen_print(&rows, &report->sockets, lines, out);
	ferry_rows_free(&rows);
	fclose(out);
	return text;
}

static char *screen_of(const struct ferry_report *report)
{
	return screen_of_lines(report, 0);
}

static void what_a_router_did_while_it_was_silent_is_no_rate(void **state)
{
	(void)state;
	struct ferry_router_report old_routers[2] = {routers[0], routers[1]};
	struct ferry_report before = report_of(SECOND, old_routers, jobs), now = report_of(2 * SECOND, routers, jobs);
	struct ferry_rows rows;
	before.njobs = 0; /* it told of none */
	old_routers[0].silent = true;
	strcpy(old_routers[0].trouble, "it has not answered");
	jobs[0].up = 9000000000, routers[0].working_ms = 1e9;
	jobs[1].up = 1000000000;
	for (int known = 0; known < 2; known++) { /* nor where nobody has taken the connection */
		old_routers[0].pid = known ? routers[0].pid : 0;
		assert_int_equal(ferry_rows_make(&before, &now, &rows), ferrySuccess);
		assert_true(rows.routers[0].gbps == 0 && rows.routers[0].busy == 0);
		assert_true(rows.routers[1].gbps == 1);
		ferry_rows_free(&rows);
	}
}

static void of_a_silent_router_there_is_what_is_known(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	now.njobs = 0;
	routers[1] = (struct ferry_router_report){.socket = routers[1].socket, .domain = 1, .pid = 101, .silent = true};
	strcpy(routers[1].trouble, "it has not answered for 1.0 s");
	char *text = screen_of(&now);
	assert_non_null(strstr(text, "run-abcdef         101      1       ?     ?        ?     ?      ?   silent\n"));
	free(text);
	routers[1].pid = 0;
	text = screen_of(&now);
	assert_non_null(strstr(text, "run-abcdef           ?      1       ?     ?        ?     ?      ?   silent\n"));
	free(text);
}

static size_t lines_with(const char *text, const char *words)
{
	size_t count = 0;
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
		const char *found = strstr(line, words);
		count += found && found < line + strcspn(line, "\n");
	}
	return count;
}

/* How many of them the last line says are left out. */
static size_t left_out(const char *text, const char *noun)
{
	const char *last = strstr(text, "left out: "), *found = last ? strstr(last, noun) : NULL;
	if (!found)
		return 0;
	for (found--; found[-1] >= '0' && found[-1] <= '9';)
		found--;
	return strtoul(found, NULL, 10);
}

static void what_a_screen_has_no_lines_for_is_counted(void **state)
{
	(void)state;
	enum { ROUTERS = 20, JOBS = 30, LINES = 1 + 3 + ROUTERS + 2 + JOBS + 2 + 1 };
	static struct ferry_router_report many_routers[ROUTERS];
	static struct ferry_job_report many_jobs[JOBS];
	struct ferry_report now = report_of(SECOND, many_routers, many_jobs);
	now.nrouters = ROUTERS, now.njobs = JOBS, now.ngpus = 1;
	for (size_t i = 0; i < ROUTERS; i++)
		many_routers[i] = routers[0];
	for (uint32_t i = 0; i < JOBS; i++) {
		many_jobs[i] = jobs[0];
		many_jobs[i].name = i;
	}
	for (size_t lines = 0; lines <= LINES + 1; lines++) {
		if (lines > 0 && lines < 6)
			continue; /* not even a row of one table */
		char *text = screen_of_lines(&now, lines);
		size_t shown_jobs = lines_with(text, " 4/4 "), gpus_shown = lines_with(text, "GPU-0"),
		       shown_routers = lines_with(text, "run-abcdef ") - shown_jobs - gpus_shown;
		assert_int_equal(shown_routers + left_out(text, "router"), ROUTERS);
		assert_int_equal(shown_jobs + left_out(text, "job"), JOBS);
		assert_int_equal(gpus_shown + left_out(text, "GPU"), 1);
		size_t ends = 1; /* the cursor's */
		for (const char *at = text; *at; at++)
			ends += *at == '\n';
		assert_int_equal(ends, lines && lines < LINES ? lines : LINES);
		if (lines == 24) /* of all tables, and of the long ones as many */
			assert_true(shown_routers == 7 && shown_jobs == 7 && gpus_shown == 1);
		assert_int_equal(lines_with(text, "left out: "), lines > 0 && lines < LINES);
		free(text);
	}
}

static void the_table_fits_80_columns_with_the_largest_values(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	now.ngpus = 1;
	for (int i = 0; i < 2; i++) {
		strcpy(routers[i].socket.place, "run-abcdef");
		routers[i].pid = 4194304;
		routers[i].workers = routers[i].ranks = 64;
		routers[i].jobs = 9999;
		routers[i].staging = 999ull << 50;
		jobs[i] = (struct ferry_job_report){.router = (size_t)i,
		                                    .name = 0xffffff,
		                                    .nranks = 64,
		                                    .state = "ready",
		                                    .attached = ~0ull,
		                                    .calls = 999999999,
		                                    .up = 1ull << 62,
		                                    .waiting = 0x5555555555555555,
		                                    .awaited = 0xaaaaaaaaaaaaaaaa,
		                                    .waited_ms = 86400e3};
	}
	strcpy(routers[1].trouble, "a trouble that cannot be told of in a few words, nor in so many that they fit the "
	                           "rest of a line that has eighty columns");
	char *text = screen_of(&now);
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (strcspn(line, "\n") > 80)
			fail_msg("%zu columns: %.*s", strcspn(line, "\n"), (int)strcspn(line, "\n"), line);
	assert_non_null(strstr(text, "GPU-01234567-89ab-cdef-0123-456789abcdef"));
	free(text);
}

/* A column for each GPU of the router, and none of another router's. */
static void the_links_of_a_gpu_are_their_ranks_in_the_order_of_the_rows(void **state)
{
	enum { GPUS = 14 };
	static struct ferry_gpu_report many[GPUS];
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	now.gpus = many;
	now.ngpus = 5;
	for (uint32_t i = 0; i < GPUS; i++) {
		many[i] = (struct ferry_gpu_report){.router = i == 1};
		snprintf(many[i].uuid, sizeof many[i].uuid, "GPU-%08x-89ab-cdef-0123-456789abcdef", 0xab0000 + i);
	}
	many[0].nlinks = 3;
	many[0].links[0] = (struct ferry_link_report){.to = "00ab0003", .rank = 0};
	many[0].links[1] = (struct ferry_link_report){.to = "00ab0004", .rank = 12};
	many[0].links[2] = (struct ferry_link_report){.to = "00ab0001", .rank = 0}; /* another router's */
	many[4].nlinks = 1;
	many[4].links[0] = (struct ferry_link_report){.to = "00ab0000", .rank = 2};
	char *text = screen_of(&now);
	assert_non_null(strstr(text, "LINKS\n"));
	assert_non_null(strstr(text, "GPU-00ab0000-89ab-cdef-0123-456789abcdef run-abcdef     100        ? -.0+\n"));
	assert_non_null(strstr(text, "GPU-00ab0001-89ab-cdef-0123-456789abcdef run-abcdef     101        ? -\n"));
	assert_non_null(strstr(text, "GPU-00ab0002-89ab-cdef-0123-456789abcdef run-abcdef     100        ? .-..\n"));
	assert_non_null(strstr(text, "GPU-00ab0004-89ab-cdef-0123-456789abcdef run-abcdef     100        ? 2..-\n"));
	free(text);
	now.ngpus = GPUS; /* more than there are columns */
	text = screen_of(&now);
	assert_non_null(strstr(text, "GPU-00ab0000-89ab-cdef-0123-456789abcdef run-abcdef     100        ? 2 of 12\n"));
	free(text);
}

static struct ferry_tenant_report tenants[2];

static struct ferry_report report_of_tenants(void)
{
	struct ferry_report report = report_of(SECOND, routers, jobs);
	strcpy(jobs[0].tenant, "physics");
	for (size_t i = 0; i < 2; i++)
		tenants[i] = (struct ferry_tenant_report){.router = i, .name = "physics", .weight = 3, .jobs = 1,
		                                          .ranks = 4, .plans = 7, .staging = 16 << 20,
		                                          .jobs_limit = i ? UINT64_MAX : 2,
		                                          .ranks_limit = UINT64_MAX, .plans_limit = UINT64_MAX,
		                                          .staging_limit = i ? UINT64_MAX : 1 << 30,
		                                          .job_staging_limit = UINT64_MAX};
	report.tenants = tenants;
	report.ntenants = 2;
	return report;
}

static char *text_of(const struct ferry_report *report, bool prometheus)
{
	struct ferry_rows rows;
	char *text;
	size_t bytes;
	FILE *out = open_memstream(&text, &bytes);
	if (prometheus) {
		ferry_exposition_print(report, out);
	} else {
		assert_int_equal(ferry_rows_make(report, report, &rows), ferrySuccess);
		ferry_screen_print(&rows, &sockets, 0, out);
		assert_int_equal(ferry_screen_print_json(&rows, out), ferrySuccess);
		ferry_rows_free(&rows);
	}
	fclose(out);
	return text;
}

static void must_have(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("\"%s\" is not in %s", words, text);
}

static void what_tenants_have_and_may_have_is_shown(void **state)
{
	(void)state;
	struct ferry_report report = report_of_tenants();
	char *text = text_of(&report, false);
	must_have(text, "physics        run-abcdef      0      3       1/2       4/-       7/-  16.0M/1.0G\n");
	must_have(text, "physics        run-abcdef      1      3       1/-       4/-       7/-     16.0M/-\n");
	must_have(text, "\"tenants\":[{\"tenant\":\"physics\",\"place\":\"run-abcdef\",\"domain\":0,\"weight\":3,"
	                "\"jobs\":1,\"ranks\":4,\"plans\":7,\"staging\":16777216,\"jobs_limit\":2,"
	                "\"staging_limit\":1073741824},");
	must_have(text, "\"state\":\"ready\",\"tenant\":\"physics\"");
	free(text);
	report.ntenants = 0; /* as ever where there is none */
	text = text_of(&report, false);
	assert_null(strstr(text, "TENANT"));
	assert_null(strstr(text, "tenants"));
	free(text);
}

/* A name and its samples in one piece, a line each; nothing is said of what is not known. */
static void totals_are_in_the_format_of_prometheus(void **state)
{
	(void)state;
	struct ferry_report report = report_of_tenants();
	routers[0].workers = 4;
	strcpy(routers[0].socket.place, "a\"b\\");
	strcpy(routers[1].trouble, "it has not answered");
	routers[1].silent = true;
	jobs[0].up = 5000000000;
	jobs[0].working_ms = 1500;
	char *text = text_of(&report, true);
	must_have(text, "# HELP ferry_router_workers Threads that reduce and copy between domains.\n"
	                "# TYPE ferry_router_workers gauge\n"
	                "ferry_router_workers{place=\"a\\\"b\\\\\",domain=\"0\",pid=\"100\"} 4\n"
	                "# HELP ferry_router_jobs ");
	must_have(text, "ferry_router_silent{place=\"a\\\"b\\\\\",domain=\"0\",pid=\"100\"} 0\n"
	                "ferry_router_silent{place=\"run-abcdef\",domain=\"1\",pid=\"101\"} 1\n");
	must_have(text, "# TYPE ferry_job_up_bytes_total counter\n"
	                "ferry_job_up_bytes_total{place=\"a\\\"b\\\\\",domain=\"0\",pid=\"100\",job=\"000abc\","
	                "number=\"1\",tenant=\"physics\"} 5000000000\n");
	must_have(text, ",tenant=\"physics\"} 1.500000\n");
	must_have(text, "# TYPE ferry_tenant_jobs_limit gauge\n"
	                "ferry_tenant_jobs_limit{place=\"a\\\"b\\\\\",domain=\"0\",pid=\"100\",tenant=\"physics\"} 2\n"
	                "# HELP ferry_tenant_ranks "); /* the other one has no limit */
	assert_null(strstr(text, "ferry_tenant_ranks_limit"));
	free(text);
}

static void what_a_job_waits_for_is_said(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers, jobs);
	jobs[0].waiting = 0x3, jobs[0].awaited = 0xc, jobs[0].waited_ms = 2345;
	char *text = screen_of(&now);
	assert_non_null(strstr(text, "ranks 2-3, 2.3 s\n"));
	free(text);
	jobs[0].attached = jobs[1].attached = 0x7;
	text = screen_of(&now);
	assert_non_null(strstr(text, "  3/4 "));
	assert_non_null(strstr(text, "rank 3 to attach\n"));
	free(text);
	strcpy(jobs[1].state, "failed");
	text = screen_of(&now);
	assert_non_null(strstr(text, "nobody: it has failed\n"));
	free(text);
	now.nrouters = now.njobs = 0;
	text = screen_of(&now);
	assert_string_equal(text, "no router answers in /run/ferry, nor in the directory of a ferryrun\n");
	free(text);
}

/* By a double of the driver's library, which knows one GPU and two processes there. */
static void the_memory_of_a_context_is_what_the_driver_tells(void **state)
{
	(void)state;
	assert_int_equal(ferry_context_memory("GPU-fake", 4711), 525ull << 20);
	assert_int_equal(ferry_context_memory("GPU-fake", 4712), 0); /* it does not know how much */
	assert_int_equal(ferry_context_memory("GPU-fake", 4713), 0);
	assert_int_equal(ferry_context_memory("GPU-none", 4711), 0);
}

#define TEST(name) cmocka_unit_test_setup(name, make)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(rates_are_of_the_time_between_two_reports),
	        TEST(jobs_of_one_name_in_two_ferryruns_are_two),
	        TEST(who_waits_for_others_is_not_blamed),
	        TEST(the_table_fits_80_columns_with_the_largest_values),
	        TEST(the_links_of_a_gpu_are_their_ranks_in_the_order_of_the_rows),
	        TEST(what_tenants_have_and_may_have_is_shown),
	        TEST(totals_are_in_the_format_of_prometheus),
	        TEST(what_a_job_waits_for_is_said),
	        TEST(what_a_router_did_while_it_was_silent_is_no_rate),
	        TEST(of_a_silent_router_there_is_what_is_known),
	        TEST(what_a_screen_has_no_lines_for_is_counted),
	        TEST(the_memory_of_a_context_is_what_the_driver_tells),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
