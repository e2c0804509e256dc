/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of ferry-stat as people run it: it finds the routers of ferryruns, and shows what their jobs have done and
 * which ranks they wait for. Given "rank", this program is a rank.
 */
#include "tests/commands.h"

#include "ferry.h"

#include <pty.h>
#include <stdbool.h>
#include <time.h>

#define CALLS 10
#define COUNT (1 << 20) /* floats */
#define BYTES ((uint64_t)CALLS * COUNT * sizeof(float))

static char fifo[80], self[128];

static int make_fifo(void **state)
{
	snprintf(fifo, sizeof fifo, "/tmp/ferry-stat-test-%d", (int)getpid());
	unlink(fifo);
	setenv("FIFO", fifo, 1);
	return mkfifo(fifo, 0600) || make_directory(state);
}

static int remove_fifo(void **state)
{
	unlink(fifo);
	return remove_directory(state);
}

/* Some calls that all make, then one that rank 1 does not. Tells the test then, and waits until it is ended. */
static int be_rank(const char *what)
{
	static float buffer[COUNT], received[COUNT];
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	ferryComm_t comm;
	int rank;
	config.device = "host";
	if (ferryCommInitEnv(&comm, &config) || ferryCommUserRank(comm, &rank))
		return 2;
	bool pushes = !strcmp(what, "push");
	for (int i = 0; i < CALLS && pushes; i++)
		if (ferryAllToAll(buffer, received, COUNT / 2, ferryFloat32, comm, NULL) ||
		    ferryStreamSynchronize(NULL))
			return 3;
	for (int i = 0; i < CALLS && !pushes; i++)
		if (ferryAllReduce(buffer, buffer, COUNT, ferryFloat32, ferrySum, comm, NULL) ||
		    ferryStreamSynchronize(NULL))
			return 3;
	if (rank == 0 && !strcmp(what, "collective"))
		ferryAllReduce(buffer, buffer, COUNT, ferryFloat32, ferrySum, comm, NULL);
	if (rank == 0 && !strcmp(what, "send"))
		ferrySend(buffer, COUNT, ferryFloat32, 1, comm, NULL);
	if (rank == 0 && !strcmp(what, "receive"))
		ferryRecv(buffer, COUNT, ferryFloat32, 1, comm, NULL);
	if (rank == 0) {
		FILE *d2h = fopen(getenv("FIFO"), "w");
		fprintf(d2h, "up\n");
		fclose(d2h);
	}
	while (1)
		pause();
}

/* A run of two ranks in two domains that have come so far. */
static pid_t start_ranks(const char *what)
{
	char command[512];
	snprintf(command, sizeof command,
	         "FERRY_STAGING=8M exec $B/ferryrun -n 2 --domains 2 --fork -- %s rank %s 2>/dev/null", self, what);
	pid_t child = start(command);
	await_line(fifo);
	return child;
}

static void end(pid_t child)
{
	kill(child, SIGTERM);
	await_no_children();
}

/* Of all the lines that routers of the machine may have, the first that has these words; NULL: none. */
static char *line_with(char *text, const char *words)
{
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
		if (strstr(line, words))
			return line;
	return NULL;
}

/* Until it has been long enough for the lanes to tell. */
static void await_in_json(const char *words)
{
	static char text[65536];
	do
		assert_int_equal(run("$B/ferry-stat --json", text, sizeof text), 0);
	while (!strstr(text, words));
}

static void routers_of_a_ferryrun_are_found_with_their_job(void **state)
{
	(void)state;
	static char text[65536];
	char bytes[64];
	pid_t child = start_ranks("nothing");
	assert_int_equal(run("ls -d $FERRY_SOCKET_DIR/run-*", text, sizeof text), 0);
	char *name = strdup(strrchr(text, '/') + 1);
	name[strcspn(name, "\n")] = '\0';
	assert_int_equal(run("$B/ferry-stat", text, sizeof text), 0);
	char *line = line_with(strdup(text), name); /* a router's */
	assert_non_null(line);
	for (unsigned domain = 0; domain < 2; domain++) {
		unsigned of, workers, jobs, ranks;
		assert_int_equal(sscanf(line, "%*s %*d %u %u %*s %*s %u %u", &of, &workers, &jobs, &ranks), 4);
		assert_int_equal(of, domain);
		assert_int_equal(jobs, 1);
		assert_int_equal(ranks, 2);
		do
			line = strtok(NULL, "\n");
		while (line && !strstr(line, name));
		assert_non_null(line);
	}
	unsigned calls;
	char place[32], ranks[16], moved[16], gbps[16], waits[16];
	assert_int_equal(sscanf(line, "%*x %31s %15s %u %15s %15s %15s", place, ranks, &calls, moved, gbps, waits), 6);
	assert_string_equal(place, name);
	assert_string_equal(ranks, "2/2");
	assert_int_equal(calls, CALLS);
	assert_string_equal(moved, "160M"); /* up and down, of two ranks */
	assert_string_equal(waits, "-");
	assert_int_equal(run("$B/ferry-stat --json --once", text, sizeof text), 0);
	snprintf(bytes, sizeof bytes, "\"calls\":%d,\"bytes_up\":%llu,\"bytes_down\":%llu", CALLS,
	         2 * (unsigned long long)BYTES, 2 * (unsigned long long)BYTES);
	assert_non_null(strstr(text, bytes));
	free(name);
	end(child);
}

/* Each rank's router knows what that has pushed. */
static void what_ranks_push_to_each_other_is_told_by_link(void **state)
{
	(void)state;
	static char text[65536];
	char link[80];
	setenv("FERRY_HOST_LINK", "peer=8", 1);
	setenv("FERRY_FABRICS", "peer", 1);
	pid_t child = start_ranks("push");
	unsetenv("FERRY_HOST_LINK");
	unsetenv("FERRY_FABRICS");
	assert_int_equal(run("$B/ferry-stat --links --json", text, sizeof text), 0);
	for (int from = 0; from < 2; from++) {
		snprintf(link, sizeof link, "\"from\":%d,\"to\":%d,\"bytes\":%llu,", from, 1 - from,
		         (unsigned long long)BYTES / 2);
		if (!strstr(text, link))
			fail_msg("no %s in %s", link, text);
	}
	assert_int_equal(run("$B/ferry-stat --links | grep -c '   0    1         20.0 '", text, sizeof text), 0);
	end(child);
	assert_int_equal(run("$B/ferry-stat --links --shares 2>&1", text, sizeof text), 64);
}

static void whom_a_job_waits_for_is_told(void **state)
{
	(void)state;
	static const char *const whats[] = {"collective", "send", "receive"};
	for (size_t i = 0; i < sizeof whats / sizeof *whats; i++) {
		pid_t child = start_ranks(whats[i]);
		await_in_json("\"waiting\":[0],\"waits_for\":[1]");
		end(child);
	}
}

/* Rank 1 never comes. */
static void ranks_that_have_not_attached_are_told(void **state)
{
	(void)state;
	char command[512];
	snprintf(command, sizeof command,
	         "FERRY_STAGING=8M exec $B/ferryrun -n 2 --fork --grace 1 -- sh -c '[ $FERRY_RANK = 1 ] && exec sleep "
	         "600; "
	         "exec %s rank nothing' 2>/dev/null",
	         self);
	pid_t child = start(command);
	await_in_json("\"state\":\"attaching\",\"ranks\":2,\"attached\":[0],");
	end(child);
}

static char terminal_text[65536];

/* Whether a ferry-stat that writes to a terminal of that size does so again and again; terminal_text has it. */
static bool fills_a_terminal(int times, unsigned short lines, unsigned short columns)
{
	struct winsize size = {.ws_row = lines, .ws_col = columns};
	size_t length = 0;
	int count = 0, terminal, status;
	pid_t child = forkpty(&terminal, NULL, NULL, &size);
	if (!child) {
		execl("/bin/sh", "sh", "-c", "exec $B/ferry-stat --interval 0.05", (char *)NULL);
		_exit(127);
	}
	FILE *file = fdopen(terminal, "r");
	while (count <= times && length + 1024 < sizeof terminal_text && fgets(terminal_text + length, 1024, file)) {
		const char *line = terminal_text + length;
		count += strstr(line, "ROUTER ") && strstr(line, "PID") && strstr(line, "BUSY");
		length += strlen(line);
	}
	kill(child, SIGKILL);
	fclose(file);
	waitpid(child, &status, 0);
	return count > times; /* that many are whole */
}

static void it_goes_on_telling_where_it_is_to(void **state)
{
	(void)state;
	static char text[65536];
	pid_t child = start_ranks("nothing");
	assert_int_equal(run("$B/ferry-stat --json --interval 0.05 | head -n 3 | wc -l", text, sizeof text), 0);
	assert_string_equal(text, "3\n");
	assert_true(fills_a_terminal(3, 24, 80));
	end(child);
}

/* Each question would be an event after which an idle router waits anew. */
static void an_idle_router_leaves_though_it_is_watched(void **state)
{
	(void)state;
	char text[4096];
	pid_t watcher = start("exec $B/ferry-stat --json --interval 0.02 >/dev/null");
	assert_int_equal(run("$B/ferry-router --socket-dir $FERRY_SOCKET_DIR --layout '0: cpus=0' --idle-exit 1 2>&1",
	                     text, sizeof text),
	                 0);
	assert_string_equal(text, "");
	kill(watcher, SIGTERM);
	await_no_children();
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/router-0.sock.lock", text, sizeof text), 0);
}

static pid_t routers[4]; /* of a test that has some; 0: none */

/* Those of the first domains, which listen. */
static void start_routers(unsigned count)
{
	char command[256], text[4096];
	for (unsigned domain = 0; domain < count; domain++) {
		snprintf(command, sizeof command,
		         "exec $B/ferry-router --socket-dir $FERRY_SOCKET_DIR --layout '0: cpus=0; 1: cpus=0; 2: "
		         "cpus=0; 3: cpus=0' --domain %u",
		         domain);
		routers[domain] = start(command);
		snprintf(command, sizeof command, "$B/ferry-stat --routers | grep -c '/router-%u.sock .*pid=%d '",
		         domain, (int)routers[domain]);
		while (run(command, text, sizeof text) != 0)
			;
	}
}

/* Also after a failure. */
static int end_fifo_routers(void **state)
{
	char text[64];
	for (int i = 0; i < 4 && routers[i]; i++) {
		kill(routers[i], SIGCONT); /* first: LeakSanitizer, at a process's end, hangs by it */
		kill(routers[i], SIGTERM);
		waitpid(routers[i], NULL, 0);
		routers[i] = 0;
	}
	run("rm -f $FERRY_SOCKET_DIR/router-*.sock.lock", text, sizeof text);
	return remove_fifo(state);
}

static double seconds_now(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* A second for all of them together. */
static void silent_routers_cost_a_moment_and_are_told_of(void **state)
{
	(void)state;
	static const char *const commands[] = {"--json", "--once", "--routers"};
	static const char *const words[] = {"\"domain\":%u,\"state\":\"silent\",\"trouble\":\"it has not answered for ",
	                                    "%u       ?     ?        ?     ?      ?   silent\n",
	                                    "router-%u.sock  it has not answered for "};
	static const char *const answers[] = {"\"domain\":3,\"state\":\"serving\"", "3       1    0%",
	                                      "router-3.sock  domain=3 "};
	static char text[65536];
	char command[64], silent[128];
	start_routers(4);
	for (int i = 0; i < 3; i++)
		kill(routers[i], SIGSTOP);
	for (int i = 0; i < 3; i++) {
		double before = seconds_now();
		snprintf(command, sizeof command, "$B/ferry-stat %s", commands[i]);
		assert_int_equal(run(command, text, sizeof text), 0);
		if (seconds_now() - before > 14) /* one after another they would be asked for 15 s */
			fail_msg("ferry-stat %s took %.1f s", commands[i], seconds_now() - before);
		for (unsigned domain = 0; domain < 3; domain++) {
			snprintf(silent, sizeof silent, words[i], domain);
			if (!strstr(text, silent))
				fail_msg("no \"%s\" in %s", silent, text);
		}
		if (!strstr(text, answers[i]))
			fail_msg("no \"%s\" in %s", answers[i], text);
	}
}

static void a_silent_router_delays_no_screen_and_comes_back(void **state)
{
	(void)state;
	static char line[65536];
	start_routers(1);
	kill(routers[0], SIGSTOP);
	double before = seconds_now();
	assert_true(fills_a_terminal(20, 24, 80)); /* every 50 ms */
	if (seconds_now() - before > 15) /* 20 s, if each waited a second for the router */
		fail_msg("20 tables took %.1f s", seconds_now() - before);
	FILE *tables = popen("exec $B/ferry-stat --json --interval 0.05", "r");
	while (fgets(line, sizeof line, tables) && !strstr(line, "\"state\":\"silent\""))
		;
	kill(routers[0], SIGCONT);
	while (fgets(line, sizeof line, tables) && !strstr(line, "\"state\":\"serving\""))
		;
	assert_non_null(strstr(line, "\"state\":\"serving\""));
	pclose(tables);
}

/* Those of other tests may be among them. */
static void a_small_terminal_has_as_much_as_fits(void **state)
{
	(void)state;
	start_routers(4);
	assert_true(fills_a_terminal(2, 7, 80));
	const char *left = strstr(terminal_text, "left out: ");
	assert_non_null(left);
	assert_true(strtoul(left + strlen("left out: "), NULL, 10) >= 2);
	assert_true(fills_a_terminal(2, 500, 80));
	assert_null(strstr(terminal_text, "left out"));
	assert_true(fills_a_terminal(2, 24, 50));
	for (const char *line = terminal_text, *end; (end = strchr(line, '\r')); line = end + 2)
		if (end > line + strlen("\033[H\033[J") + 50)
			fail_msg("%td columns: %.*s", end - line, (int)(end - line), line);
}

static void options_that_do_not_go_together_are_refused(void **state)
{
	(void)state;
	char text[4096];
	static const char *const cases[][2] = {{"--interval 0", "--interval: \"0\""},
	                                       {"--interval x", "--interval: \"x\""},
	                                       {"--layout --json", "--json"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char command[128];
		snprintf(command, sizeof command, "$B/ferry-stat %s 2>&1", cases[i][0]);
		assert_int_equal(run(command, text, sizeof text), 64);
		assert_non_null(strstr(text, cases[i][1]));
	}
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_fifo, remove_fifo)
#define ROUTER_TEST(name) cmocka_unit_test_setup_teardown(name, make_fifo, end_fifo_routers)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(routers_of_a_ferryrun_are_found_with_their_job),
	        TEST(what_ranks_push_to_each_other_is_told_by_link),
	        TEST(whom_a_job_waits_for_is_told),
	        TEST(ranks_that_have_not_attached_are_told),
	        TEST(it_goes_on_telling_where_it_is_to),
	        ROUTER_TEST(silent_routers_cost_a_moment_and_are_told_of),
	        ROUTER_TEST(a_silent_router_delays_no_screen_and_comes_back),
	        ROUTER_TEST(a_small_terminal_has_as_much_as_fits),
	        TEST(an_idle_router_leaves_though_it_is_watched),
	        TEST(options_that_do_not_go_together_are_refused),
	};
	if (argc == 3 && !strcmp(argv[1], "rank"))
		return be_rank(argv[2]);
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	if (readlink("/proc/self/exe", self, sizeof self - 1) < 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
