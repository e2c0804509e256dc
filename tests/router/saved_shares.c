/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a router about shares: its counters have a job's table line by line, ferry-stat shows that, and what one
 * job has learned the next one finds in its arena.
 */
#include "tests/router/router_fixture.h"
#include "tests/status_line.h"

#include "ipc/arena.h"
#include "ipc/collective.h"
#include "ipc/endpoint.h"

#include <math.h>

#define BYTES 123456789u /* no other job of this machine has such calls */

static int attach(struct ferry_arena *arena, uint8_t job)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .nranks = 2,
	                                       .ndomains = 1,
	                                       .staging = 1 << 20,
	                                       .key = {job}};
	int connection, descriptor;
	assert_int_equal(ferry_endpoint_connect(path, &connection), ferrySuccess);
	assert_int_equal(ferry_attach_call(connection, &message, NULL, &descriptor), ferrySuccess);
	assert_int_equal(ferry_arena_map(descriptor, arena), ferrySuccess);
	return connection;
}

/* And waits until the router has no job: it has then taken what it keeps. */
static void leave(int connection, struct ferry_arena *arena)
{
	char text[512];
	ferry_arena_unmap(arena);
	close(connection);
	do
		assert_int_equal(status_line(path, text, sizeof text), ferrySuccess);
	while (!strstr(text, "jobs=0"));
}

static const struct ferry_share_line line = {.collective = FERRY_ALLGATHER,
                                             .type = ferryBfloat16,
                                             .why = FERRY_BALANCE_SETTLED,
                                             .samples = 321,
                                             .word = 256u << 11,
                                             .probe_every = 128,
                                             .interval = 3,
                                             .bytes = BYTES,
                                             .us = 4567.5,
                                             .paces = {{75, 24000}, {0, 0}, {25, 310000}}};

static void lines_are_rows_of_the_routers_counters(void **state)
{
	(void)state;
	static struct ferry_counters counters;
	struct ferry_arena arena;
	struct ferry_share_line found;
	int connection = attach(&arena, 1);
	assert_int_equal(ferry_counters_take(path, &counters), ferrySuccess);
	assert_int_equal(counters.nshare_rows, 0);
	ferry_share_line_write(&arena.shares->lines[7], &line); /* there may be holes */
	ferry_share_line_write(&arena.shares->lines[FERRY_SHARE_LINES - 1], &line);
	assert_int_equal(ferry_counters_take(path, &counters), ferrySuccess);
	assert_int_equal(counters.nshare_rows, 2);
	assert_int_equal(counters.share_rows[0].number, 1 << 8 | 7);
	assert_int_equal(counters.share_rows[1].number, 1 << 8 | (FERRY_SHARE_LINES - 1));
	assert_int_equal(counters.share_rows[0].job, counters.job_rows[0].name);
	assert_true(ferry_share_line_read(&counters.share_rows[0].line, &found));
	assert_true(found.collective == line.collective && found.bytes == BYTES && found.us == line.us);
	leave(connection, &arena);
}

/* What NCCL and Ferry take for calls that one of them makes whole; the one that makes them now has the share. */
static const struct ferry_share_line whole = {.collective = FERRY_ALLTOALL,
                                              .type = ferryFloat32,
                                              .size_class = 54,
                                              .whole = true,
                                              .in_place = true,
                                              .why = FERRY_BALANCE_SETTLED,
                                              .samples = 7,
                                              .word = FERRY_SHARES_WHOLE,
                                              .interval = 32,
                                              .bytes = BYTES,
                                              .us = 181.5,
                                              .paces = {{0, 0}, {0, 740000}, {0, 485000}}};

static void find_in_output(const char *command, const char *words)
{
	char text[1024];
	bool found = false;
	FILE *out = popen(command, "r");
	assert_non_null(out);
	while (fgets(text, sizeof text, out)) {
		print_message("%s", text);
		found |= strstr(text, words) != NULL;
	}
	assert_int_equal(pclose(out), 0);
	if (!found)
		fail_msg("%s does not say \"%s\"", command, words);
}

static void ferry_stat_shows_them(void **state)
{
	(void)state;
	struct ferry_arena arena;
	int connection = attach(&arena, 1);
	ferry_share_line_write(&arena.shares->lines[0], &line);
	find_in_output(FERRY_STAT " --shares", "allgather     bf16       118M   25.0%    75   24.0                    "
	                                       "-   75.0%    25  310.0    4567.5      321  settled");
	find_in_output(FERRY_STAT " --shares --json",
	               "\"bytes\":123456789,\"why\":\"settled\",\"samples\":321,\"us\":4567.5,\"measured_every\":3,"
	               "\"probed_every\":128,\"host\":0.25,\"host_us\":75,\"host_gbps\":24,\"peer\":0,\"nccl\":0.75,");
	ferry_share_line_write(&arena.shares->wholes[0], &whole);
	find_in_output(FERRY_STAT " --shares",
	               "alltoall      f32        118M                    -  100.0%     0  740.0    0.0%     0  485.0"
	               "     181.5        7  settled, whole, in place");
	find_in_output(FERRY_STAT " --shares --json",
	               "\"whole\":1,\"in_place\":1,\"host\":0,\"peer\":1,\"peer_us\":0,\"peer_gbps\":740,"
	               "\"nccl\":0,\"nccl_us\":0,\"nccl_gbps\":485}");
	leave(connection, &arena);
}

/* Line by line, and of a line what it knows. */
static void the_next_job_finds_what_is_known_of_whole_calls(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_share_line other = whole, half = whole, found;
	int connection = attach(&arena, 3);
	other.in_place = false;
	arena.shares->signature = 55;
	ferry_share_line_write(&arena.shares->wholes[3], &whole);
	ferry_share_line_write(&arena.shares->wholes[9], &other);
	leave(connection, &arena);

	connection = attach(&arena, 4);
	half.paces[FERRY_FABRIC_PEER].rate = 0;
	half.paces[FERRY_FABRIC_NCCL].rate = 450000;
	arena.shares->signature = 55;
	ferry_share_line_write(&arena.shares->wholes[0], &half);
	leave(connection, &arena);

	connection = attach(&arena, 5);
	assert_int_equal(arena.shares->saved_signatures[0], 55);
	assert_true(ferry_share_line_read(&arena.shares->saved_wholes[0][0], &found));
	assert_true(found.whole && found.in_place);
	assert_int_equal(found.size_class, 54);
	assert_true(found.paces[FERRY_FABRIC_PEER].rate == 740000);
	assert_true(found.paces[FERRY_FABRIC_NCCL].rate == 450000);
	assert_true(ferry_share_line_read(&arena.shares->saved_wholes[0][1], &found));
	assert_false(found.in_place);
	assert_true(found.paces[FERRY_FABRIC_NCCL].rate == 485000);
	assert_false(ferry_share_line_read(&arena.shares->saved_wholes[0][2], &found));
	leave(connection, &arena);
}

static void the_next_job_finds_what_one_has_learned(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_share_course course = {.collective = FERRY_ALLTOALL, .type = ferryFloat32}, found;
	course.paces[FERRY_FABRIC_HOST][2] = (struct ferry_pace){75, 24000};
	course.paces[FERRY_FABRIC_NCCL][1] = (struct ferry_pace){-1, NAN}; /* not that */
	int connection = attach(&arena, 1);
	assert_int_equal(arena.shares->saved_signatures[0], 0);
	arena.shares->signature = 99;
	ferry_share_course_write(&arena.shares->courses[4], &course);
	leave(connection, &arena);

	connection = attach(&arena, 2);
	assert_int_equal(arena.shares->saved_signatures[0], 99);
	assert_int_equal(arena.shares->saved_signatures[1], 0);
	assert_true(ferry_share_course_read(&arena.shares->saved[0][0], &found));
	assert_int_equal(found.collective, FERRY_ALLTOALL);
	assert_true(found.paces[FERRY_FABRIC_HOST][2].rate == 24000);
	assert_true(found.paces[FERRY_FABRIC_NCCL][1].rate == 0);
	leave(connection, &arena);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(lines_are_rows_of_the_routers_counters),
	        TEST(ferry_stat_shows_them),
	        TEST(the_next_job_finds_what_one_has_learned),
	        TEST(the_next_job_finds_what_is_known_of_whole_calls),
	};
	return cmocka_run_group_tests_name("saved_shares", tests, NULL, NULL);
}
