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
#include "router/daemon/saved_shares.h"

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
                                             .size_class = 54,
                                             .why = FERRY_BALANCE_SETTLED,
                                             .calls = 321,
                                             .word = 32u << 14, /* a quarter is the host's */
                                             .nccl = 3,
                                             .ferry = 32u << 14,
                                             .trial = 64u << 14,
                                             .run = 5,
                                             .turn = 7,
                                             .bytes = BYTES,
                                             .nccl_us = 4567.5,
                                             .ferry_us = 3210.25};

static void lines_are_rows_of_the_routers_counters(void **state)
{
	(void)state;
	static struct ferry_counters counters;
	struct ferry_arena arena;
	struct ferry_share_line found;
	int connection = attach(&arena, 1);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_int_equal(counters.nshare_rows, 0);
	ferry_share_line_write(&arena.shares->lines[7], &line); /* there may be holes */
	ferry_share_line_write(&arena.shares->lines[FERRY_SHARE_LINES - 1], &line);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_int_equal(counters.nshare_rows, 2);
	assert_int_equal(counters.share_rows[0].number, 1 << 8 | 7);
	assert_int_equal(counters.share_rows[1].number, 1 << 8 | (FERRY_SHARE_LINES - 1));
	assert_int_equal(counters.share_rows[0].job, counters.job_rows[0].name);
	assert_true(ferry_share_line_read(&counters.share_rows[0].line, &found));
	assert_true(found.collective == line.collective && found.bytes == BYTES && found.trial == line.trial);
	assert_true(found.run == 5 && found.turn == 7 && found.nccl == 3 && found.ferry_us == line.ferry_us);
	leave(connection, &arena);
}

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
	struct ferry_share_line other = line;
	int connection = attach(&arena, 1);
	ferry_share_line_write(&arena.shares->lines[0], &line);
	find_in_output(FERRY_STAT " --shares", "allgather     bf16       118M   25.0%    0.0%   75.0%      0     4567.5"
	                                       "     3210.2      321  settled");
	find_in_output(FERRY_STAT " --shares --json",
	               "\"bytes\":123456789,\"why\":\"settled\",\"calls\":321,\"nccl_us\":4567.5,\"ferry_us\":3210.2,"
	               "\"in_place\":0,\"tuning\":0,\"host\":0.25,\"peer\":0,\"nccl\":0.75}");
	other.in_place = true;
	other.why = FERRY_BALANCE_HIDDEN;
	other.word = 3; /* NCCL's, by its third tuning */
	other.ferry_us = 0;
	ferry_share_line_write(&arena.shares->lines[1], &other);
	find_in_output(FERRY_STAT " --shares", "    0.0%    0.0%  100.0%      3     4567.5          -      321  "
	                                       "hidden, in place");
	find_in_output(FERRY_STAT " --shares --json", "\"in_place\":1,\"tuning\":3,\"host\":0,\"peer\":0,\"nccl\":1}");
	leave(connection, &arena);
}

/* But for a trial, which ends with its job. */
static void the_next_job_finds_what_one_has_learned(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_share_line other = line, found;
	int connection = attach(&arena, 1);
	assert_int_equal(arena.shares->saved_signatures[0], 0);
	arena.shares->signature = 99;
	other.in_place = true;
	other.ferry_us = NAN; /* not that */
	ferry_share_line_write(&arena.shares->lines[4], &line);
	ferry_share_line_write(&arena.shares->lines[9], &other);
	leave(connection, &arena);

	connection = attach(&arena, 2);
	assert_int_equal(arena.shares->saved_signatures[0], 99);
	assert_int_equal(arena.shares->saved_signatures[1], 0);
	assert_true(ferry_share_line_read(&arena.shares->saved[0][0], &found));
	assert_true(found.collective == FERRY_ALLGATHER && found.size_class == 54 && !found.in_place);
	assert_true(found.word == line.word && found.nccl == line.nccl && found.ferry == line.ferry);
	assert_true(found.nccl_us == line.nccl_us && found.ferry_us == line.ferry_us && !found.run);
	assert_true(ferry_share_line_read(&arena.shares->saved[0][1], &found));
	assert_true(found.in_place && found.ferry_us == 0);
	assert_false(ferry_share_line_read(&arena.shares->saved[0][2], &found));
	leave(connection, &arena);
}

/* Line by line, and of a line what it knows. */
static void what_a_job_has_not_measured_stays(void **state)
{
	(void)state;
	struct ferry_arena arena;
	struct ferry_share_line half = line, found;
	int connection = attach(&arena, 3);
	arena.shares->signature = 55;
	ferry_share_line_write(&arena.shares->lines[3], &line);
	leave(connection, &arena);

	connection = attach(&arena, 4);
	half.why = FERRY_BALANCE_PRIOR;
	half.ferry_us = 5000;
	arena.shares->signature = 55;
	ferry_share_line_write(&arena.shares->lines[0], &half);
	leave(connection, &arena);

	connection = attach(&arena, 4);
	half.why = FERRY_BALANCE_SETTLED;
	half.ferry_us = 0;
	half.ferry = 0;
	half.nccl = 2;
	half.nccl_us = 4000;
	arena.shares->signature = 55;
	ferry_share_line_write(&arena.shares->lines[0], &half);
	leave(connection, &arena);

	connection = attach(&arena, 5);
	assert_int_equal(arena.shares->saved_signatures[0], 55);
	assert_true(ferry_share_line_read(&arena.shares->saved[0][0], &found));
	assert_true(found.ferry == line.ferry && found.ferry_us == line.ferry_us);
	assert_true(found.nccl == 2 && found.nccl_us == 4000);
	assert_false(ferry_share_line_read(&arena.shares->saved[0][1], &found));
	leave(connection, &arena);
}

/* ---- of several users ---- */

static struct ferry_saved_shares saved;

static void new_arena(struct ferry_arena *arena)
{
	struct ferry_arena_shape shape = {.ndomains = 1, .nranks = 2, .staging = 1 << 20, .node = -1};
	assert_int_equal(ferry_arena_create(&shape, arena), ferrySuccess);
}

/* A job of that user has learned something under these settings. */
static void learn(uint32_t user, uint64_t signature)
{
	struct ferry_arena arena;
	new_arena(&arena);
	arena.shares->signature = signature;
	ferry_share_line_write(&arena.shares->lines[0], &line);
	ferry_saved_shares_take(&saved, user, &arena);
	ferry_arena_unmap(&arena);
}

static bool is_kept(uint32_t user, uint64_t signature)
{
	for (int i = 0; i < FERRY_SAVED_SHARES; i++)
		if (saved.settings[i].owner == user && saved.settings[i].signature == signature)
			return true;
	return false;
}

static void what_a_users_jobs_have_learned_no_other_user_gets(void **state)
{
	(void)state;
	struct ferry_share_line found;
	memset(&saved, 0, sizeof saved);
	learn(1000, 99);
	for (uint32_t user = 0; user < 2000; user += 1000) {
		struct ferry_arena arena;
		new_arena(&arena);
		ferry_saved_shares_give(&saved, user, &arena);
		assert_int_equal(arena.shares->saved_signatures[0], user ? 99 : 0);
		assert_int_equal(ferry_share_line_read(&arena.shares->saved[0][0], &found), user != 0);
		ferry_arena_unmap(&arena);
	}
}

static void where_there_is_no_room_who_has_most_loses_what_was_used_least_lately(void **state)
{
	(void)state;
	memset(&saved, 0, sizeof saved);
	learn(2000, 1);
	for (uint64_t signature = 1; signature < FERRY_SAVED_SHARES; signature++)
		learn(1000, signature);
	learn(1000, 1); /* again */
	learn(2000, 2);
	assert_true(is_kept(2000, 1) && is_kept(2000, 2));
	assert_true(is_kept(1000, 1) && !is_kept(1000, 2) && is_kept(1000, 3));
	learn(1000, 77);
	assert_true(is_kept(2000, 1) && is_kept(2000, 2) && is_kept(1000, 77) && !is_kept(1000, 3));
}

/* Where ferry-stat looks for routers. */
static char directory[] = "/tmp/ferry-tests-XXXXXX";

static int start_in_directory(void **state)
{
	(void)state;
	struct ferry_router_options options = {.layout = &layout, .directory = directory, .workers = 2};
	setenv("FERRY_DOMAINS", "1", 1);
	if (!mkdtemp(directory) || setenv("FERRY_SOCKET_DIR", directory, 1))
		return 1;
	snprintf(path, sizeof path, "%s/router-0.sock", directory);
	return ferry_layout_load(&layout) || ferry_router_start(&options, &router);
}

static int stop_in_directory(void **state)
{
	char lock[sizeof path + 5];
	stop_router(state);
	snprintf(lock, sizeof lock, "%s.lock", path);
	unlink(lock);
	unsetenv("FERRY_SOCKET_DIR");
	return rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(lines_are_rows_of_the_routers_counters),
	        cmocka_unit_test_setup_teardown(ferry_stat_shows_them, start_in_directory, stop_in_directory),
	        TEST(the_next_job_finds_what_one_has_learned),
	        TEST(what_a_job_has_not_measured_stays),
	        cmocka_unit_test(what_a_users_jobs_have_learned_no_other_user_gets),
	        cmocka_unit_test(where_there_is_no_room_who_has_most_loses_what_was_used_least_lately),
	};
	return cmocka_run_group_tests_name("saved_shares", tests, NULL, NULL);
}
