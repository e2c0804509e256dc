/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferry-stat's table: what it makes of two reports, and that it fits 80 columns whatever the values. */

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/nvml.h"
#include "launch/exposition.h"
#include "launch/screen.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000000ull

static struct ferry_router_report routers[2];
static struct ferry_counters logged[2], old_told[2];
static struct ferry_sockets sockets = {.directory = "/run/ferry"};

/* Two routers of a ferryrun, and its job of four ranks in both. */
static struct ferry_report report_of(uint64_t taken_ns, struct ferry_router_report *of_routers)
{
	for (int i = 0; i < 2; i++)
		if (of_routers[i].counters)
			of_routers[i].counters->written_ns = taken_ns;
	return (struct ferry_report){
	        .taken_ns = taken_ns, .sockets = sockets, .routers = of_routers, .nrouters = 2};
}

/* GPU-<the number>-89ab-cdef-0123-456789abcdef. */
static void name_gpu(uint8_t *uuid, uint32_t number)
{
	static const uint8_t rest[] = {0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef};
	for (int i = 0; i < 4; i++)
		uuid[i] = (uint8_t)(number >> (24 - 8 * i));
	memcpy(uuid + 4, rest, sizeof rest);
}

static int make(void **state)
{
	(void)state;
	for (unsigned domain = 0; domain < 2; domain++) {
		struct ferry_counters *counters = &logged[domain];
		memset(counters, 0, sizeof *counters);
		counters->workers = counters->ranks = 4;
		counters->jobs = counters->njob_rows = 1;
		counters->ngpu_rows = domain;
		counters->job_rows[0] = (struct ferry_job_counters){
		        .number = 1, .name = 0xabc, .nranks = 4, .state = FERRY_JOB_READY, .attached = 0xf};
		name_gpu(counters->gpu_rows[0].uuid, 0x01234567);
		routers[domain] = (struct ferry_router_report){
		        .domain = domain, .pid = 100 + (int)domain, .counters = counters};
		snprintf(routers[domain].socket.path, sizeof routers[domain].socket.path,
		         "/run/ferry/run-abcdef/router-%u.sock", domain);
		strcpy(routers[domain].socket.place, "run-abcdef");
	}
	return 0;
}

/* The routers of an earlier report, with counters of their own. */
static void make_old(struct ferry_router_report old_routers[2])
{
	memcpy(old_routers, routers, sizeof routers);
	memcpy(old_told, logged, sizeof logged);
	for (int i = 0; i < 2; i++)
		old_routers[i].counters = &old_told[i];
}

static void has_not_answered(struct ferry_router_report *router, const char *trouble)
{
	router->silent = 1;
	router->counters = NULL;
	snprintf(router->trouble, sizeof router->trouble, "%s", trouble);
}

static void rates_are_of_the_time_between_two_reports(void **state)
{
	(void)state;
	struct ferry_router_report old_routers[2];
	make_old(old_routers);
	struct ferry_report before = report_of(SECOND, old_routers), now = report_of(3 * SECOND, routers);
	struct ferry_rows rows;
	old_told[0].job_rows[0].d2h = old_told[0].job_rows[0].h2d = 7000000000;
	logged[0].job_rows[0].d2h = 9000000000, logged[0].job_rows[0].h2d = 11000000000; /* 6 GB in 2 s */
	logged[1].job_rows[0].d2h = 1000000000, logged[1].job_rows[0].h2d = 1000000000;  /* 2 GB */
	logged[0].job_rows[0].calls = 41, logged[1].job_rows[0].calls = 42;
	old_told[0].working_ns = SECOND, logged[0].working_ns = 5 * SECOND; /* of 2 s of 4 workers */
	old_told[1].working_ns = 9 * SECOND, logged[1].working_ns = SECOND; /* a job has left */
	assert_int_equal(ferry_rows_make(&before, &now, &rows), ferrySuccess);
	assert_int_equal(rows.nrouters, 2);
	assert_int_equal(rows.njobs, 1); /* of both routers together */
	assert_true(rows.routers[0].gbps == 3 && rows.routers[1].gbps == 1 && rows.jobs[0].gbps == 4);
	assert_true(rows.routers[0].busy == 0.5 && rows.routers[1].busy == 0);
	assert_int_equal(rows.jobs[0].d2h, 10000000000);
	assert_int_equal(rows.jobs[0].calls, 42);
	ferry_rows_free(&rows);
	/* Another router process on the same socket, and one with another job: they began at 0. */
	old_routers[0].pid = 99;
	old_told[1].job_rows[0].number = 2;
	old_told[1].job_rows[0].d2h = 500000000;
	assert_int_equal(ferry_rows_make(&before, &now, &rows), ferrySuccess);
	assert_true(rows.routers[0].gbps == 10 && rows.routers[1].gbps == 1);
	ferry_rows_free(&rows);
}

static void jobs_of_one_name_in_two_ferryruns_are_two(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers);
	struct ferry_rows rows;
	strcpy(routers[1].socket.path, "/run/ferry/run-ghijkl/router-1.sock");
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.njobs, 2);
	ferry_rows_free(&rows);
}

static void who_waits_for_others_is_not_blamed(void **state)
{
	(void)state;
	struct ferry_report now = report_of(SECOND, routers);
	struct ferry_rows rows;
	logged[0].job_rows[0].waiting = 0x3, logged[0].job_rows[0].blockers = 0x4; /* 0, 1 for 2, that for 3 */
	logged[1].job_rows[0].waiting = 0x4, logged[1].job_rows[0].blockers = 0x8;
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.jobs[0].waiting, 0x7);
	assert_int_equal(rows.jobs[0].blockers, 0x8);
	ferry_rows_free(&rows);
	logged[1].job_rows[0].blockers = 0x1; /* a circle: all of it */
	assert_int_equal(ferry_rows_make(&now, &now, &rows), ferrySuccess);
	assert_int_equal(rows.jobs[0].blockers, 0x5);
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
	struct ferry_router_report old_routers[2];
	make_old(old_routers);
	struct ferry_report before = report_of(SECOND, old_routers), now = report_of(2 * SECOND, routers);
	struct ferry_rows rows;
	has_not_answered(&old_routers[0], "it has not answered");
	logged[0].job_rows[0].d2h = 9000000000, logged[0].working_ns = 1000000 * SECOND;
	logged[1].job_rows[0].d2h = 1000000000;
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
	struct ferry_report now = report_of(SECOND, routers);
	has_not_answered(&routers[1], "it has not answered for 1.0 s");
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
	struct ferry_report now = {
	        .taken_ns = SECOND, .sockets = sockets, .routers = many_routers, .nrouters = ROUTERS};
	for (size_t i = 0; i < ROUTERS; i++) { /* all jobs are the first one's */
		many_routers[i] = routers[0];
		many_routers[i].counters = i ? &old_told[0] : &logged[1];
	}
	old_told[0] = logged[0];
	old_told[0].njob_rows = 0;
	logged[1].njob_rows = JOBS;
	for (uint32_t i = 0; i < JOBS; i++) {
		logged[1].job_rows[i] = logged[0].job_rows[0];
		logged[1].job_rows[i].name = i;
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
	struct ferry_report now = report_of(SECOND, routers);
	for (int i = 0; i < 2; i++) {
		strcpy(routers[i].socket.place, "run-abcdef");
		routers[i].pid = 4194304;
		logged[i].workers = logged[i].ranks = 64;
		logged[i].jobs = 9999;
		logged[i].staging = 999ull << 50;
		logged[i].ngpu_rows = 1;
		logged[i].job_rows[0] = (struct ferry_job_counters){.name = 0xffffff,
		                                                    .nranks = 64,
		                                                    .state = FERRY_JOB_READY,
		                                                    .attached = ~0ull,
		                                                    .calls = 999999999,
		                                                    .d2h = 1ull << 62,
		                                                    .waiting = 0x5555555555555555,
		                                                    .blockers = 0xaaaaaaaaaaaaaaaa,
		                                                    .waited_ns = 86400 * SECOND};
	}
	has_not_answered(&routers[1], "a trouble that cannot be told of in a few words, nor in so many that they fit "
	                              "the rest of a line that has eighty columns");
	routers[1].silent = 0;
	char *text = screen_of(&now);
	for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n')
		if (strcspn(line, "\n") > 80)
			fail_msg("%zu columns: %.*s", strcspn(line, "\n"), (int)strcspn(line, "\n"), line);
	assert_non_null(strstr(text, "GPU-01234567-89ab-cdef-0123-456789abcdef"));
	free(text);
}

static void link_gpus(struct ferry_gpu_counters *from, const struct ferry_gpu_counters *to, int rank)
{
	struct ferry_gpu_link *link = &from->links[from->nlinks++];
	memcpy(link->to, to->uuid, sizeof link->to);
	link->rank = rank;
}

/* A column for each GPU of the router, and none of another router's. */
static void the_links_of_a_gpu_are_their_ranks_in_the_order_of_the_rows(void **state)
{
	enum { GPUS = 14 };
	struct ferry_gpu_counters *many = logged[0].gpu_rows, *other = logged[1].gpu_rows;
	(void)state;
	struct ferry_report now = report_of(SECOND, routers);
	for (uint32_t i = 0; i < GPUS; i++)
		name_gpu(many[i].uuid, 0xab0000 + i);
	logged[0].ngpu_rows = 4;
	link_gpus(&many[0], &many[2], 0);
	link_gpus(&many[0], &many[3], 12);
	link_gpus(&many[0], &other[0], 0); /* another router's */
	link_gpus(&many[3], &many[0], 2);
	char *text = screen_of(&now);
	assert_non_null(strstr(text, "LINKS\n"));
	assert_non_null(strstr(text, "GPU-00ab0000-89ab-cdef-0123-456789abcdef run-abcdef     100        ? -.0+\n"));
	assert_non_null(strstr(text, "GPU-00ab0001-89ab-cdef-0123-456789abcdef run-abcdef     100        ? .-..\n"));
	assert_non_null(strstr(text, "GPU-00ab0003-89ab-cdef-0123-456789abcdef run-abcdef     100        ? 2..-\n"));
	assert_non_null(strstr(text, "GPU-01234567-89ab-cdef-0123-456789abcdef run-abcdef     101        ? -\n"));
	free(text);
	logged[0].ngpu_rows = GPUS; /* more than there are columns */
	text = screen_of(&now);
	assert_non_null(strstr(text, "GPU-00ab0000-89ab-cdef-0123-456789abcdef run-abcdef     100        ? 2 of 13\n"));
	free(text);
}

static struct ferry_report report_of_tenants(void)
{
	strcpy(logged[0].job_rows[0].tenant, "physics");
	for (size_t i = 0; i < 2; i++) {
		logged[i].ntenant_rows = 1;
		logged[i].tenant_rows[0] = (struct ferry_tenant_counters){.name = "physics",
		                                                          .weight = 3,
		                                                          .jobs = 1,
		                                                          .ranks = 4,
		                                                          .plans = 7,
		                                                          .staging = 16 << 20,
		                                                          .windows = 512 << 20,
		                                                          .jobs_limit = i ? UINT64_MAX : 2,
		                                                          .ranks_limit = UINT64_MAX,
		                                                          .plans_limit = UINT64_MAX,
		                                                          .staging_limit = i ? UINT64_MAX : 1 << 30,
		                                                          .job_staging_limit = UINT64_MAX,
		                                                          .windows_limit = i ? UINT64_MAX : 1 << 30};
	}
	return report_of(SECOND, routers);
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
	must_have(text, "physics        run-abcdef      0      3       1/2       4/-       7/-  16.0M/1.0G   512M/1.0");
	must_have(text, "physics        run-abcdef      1      3       1/-       4/-       7/-     16.0M/-"
	                "      512M/-");
	must_have(text, "\"tenants\":[{\"tenant\":\"physics\",\"place\":\"run-abcdef\",\"domain\":0,\"weight\":3,"
	                "\"jobs\":1,\"ranks\":4,\"plans\":7,\"staging\":16777216,\"windows\":536870912,"
	                "\"jobs_limit\":2,\"staging_limit\":1073741824,\"windows_limit\":1073741824},");
	must_have(text, "\"state\":\"ready\",\"tenant\":\"physics\"");
	free(text);
	logged[0].ntenant_rows = logged[1].ntenant_rows = 0; /* as ever where there is none */
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
	strcpy(routers[0].socket.place, "a\"b\\");
	has_not_answered(&routers[1], "it has not answered");
	logged[0].job_rows[0].d2h = 5000000000;
	logged[0].job_rows[0].working_ns = 3 * SECOND / 2;
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
	struct ferry_report now = report_of(SECOND, routers);
	logged[0].job_rows[0].waiting = 0x3, logged[0].job_rows[0].blockers = 0xc;
	logged[0].job_rows[0].waited_ns = 2345000000;
	char *text = screen_of(&now);
	assert_non_null(strstr(text, "ranks 2-3, 2.3 s\n"));
	free(text);
	logged[0].job_rows[0].attached = logged[1].job_rows[0].attached = 0x7;
	text = screen_of(&now);
	assert_non_null(strstr(text, "  3/4 "));
	assert_non_null(strstr(text, "rank 3 to attach\n"));
	free(text);
	logged[1].job_rows[0].state = FERRY_JOB_FAILED;
	text = screen_of(&now);
	assert_non_null(strstr(text, "nobody: it has failed\n"));
	free(text);
	now.nrouters = 0;
	text = screen_of(&now);
	assert_string_equal(text, "no router answers in /run/ferry, nor in the directory of a ferryrun\n");
	free(text);
}

/* By a double of the driver's library, which knows one GPU and two processes there. */
static void the_memory_of_a_context_is_what_the_driver_tells(void **state)
{
	(void)state;
	assert_int_equal(ferry_nvml_process_bytes("GPU-fake", 4711), 525ull << 20);
	assert_int_equal(ferry_nvml_process_bytes("GPU-fake", 4712), 0); /* it does not know how much */
	assert_int_equal(ferry_nvml_process_bytes("GPU-fake", 4713), 0);
	assert_int_equal(ferry_nvml_process_bytes("GPU-none", 4711), 0);
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
