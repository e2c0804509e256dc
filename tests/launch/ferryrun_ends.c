/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferryrun about runs that are broken off: it ends whatever its ranks do, says why, and leaves nothing. */
#include "tests/commands.h"

#include <errno.h>
#include <stdbool.h>
#include <time.h>

static char fifo[80];

static int make_fifo(void **state)
{
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-ends-%d", (int)getpid());
	unlink(fifo);
	setenv("FIFO", fifo, 1);
	if (mkfifo(fifo, 0600) || make_directory(state))
		return 1;
	return setenv("TEST_DIRECTORY", directory, 1); /* FERRY_SOCKET_DIR is another one in ranks */
}

static int remove_fifo(void **state)
{
	unlink(fifo);
	return remove_directory(state);
}

/* A shell command to the end, what it says on standard error kept aside. */
static pid_t start_kept(const char *command)
{
	char text[1024];
	snprintf(text, sizeof text, "%s 2>$FERRY_SOCKET_DIR/said", command);
	return start(text);
}

/* All that a run has started has gone: the exit code, and what it said. */
static int await_end(pid_t child, char *said, size_t bytes)
{
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	await_no_children();
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && cat said && rm said", said, bytes), 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* A number that somebody writes to a file before he writes to the fifo. */
static pid_t number_in(const char *name)
{
	char path[160];
	int number = 0;
	snprintf(path, sizeof path, "%s/%s", directory, name);
	FILE *file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%d", &number), 1);
	fclose(file);
	unlink(path);
	return number;
}

/* Of /proc: T is stopped. */
static char state_of(pid_t pid)
{
	char path[32], state = 0;
	snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "r");
	if (file && fscanf(file, "%*d %*s %c", &state) != 1)
		state = 0;
	if (file)
		fclose(file);
	return state;
}

#define DEAF "sh -c 'trap \"\" TERM INT HUP; echo up >$FIFO; while :; do sleep 0.1; done'"

static void deaf_ranks_are_killed_by_the_second_signal(void **state)
{
	(void)state;
	char said[4096];
	static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		pid_t child = start_kept("exec $B/ferryrun --fork --grace 1000 -- " DEAF);
		await_line(fifo);
		/* Not before it has taken the first, and as a person would: two at once are one. */
		kill(child, signals[i]);
		while (run("grep -q 'told to end by' $FERRY_SOCKET_DIR/said", said, sizeof said))
			;
		nanosleep(&(struct timespec){0, 300000000}, NULL);
		kill(child, SIGTERM);
		assert_int_equal(await_end(child, said, sizeof said), 128 + SIGKILL);
		assert_non_null(strstr(said, "again, or in 1000 s, they are killed\n"));
		assert_non_null(strstr(said, "told to end a second time: killing the ranks\n"));
	}
	assert_int_equal(entries_left(), 0);
}

static void deaf_ranks_are_killed_after_the_grace_period(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept("exec $B/ferryrun --fork --grace 1 -- " DEAF);
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGKILL);
	assert_non_null(strstr(said, "not done so for 1 s (--grace): killing the ranks\n"));
	assert_int_equal(
	        run("$B/ferryrun --fork --timeout 1 --grace 1 -- sh -c 'trap \"\" TERM; while :; do sleep 0.1; "
	            "done' 2>&1",
	            said, sizeof said),
	        124);
	assert_non_null(strstr(said, "not done so for 1 s (--grace)"));
}

/* Its command's child would be an orphan that nobody knows. */
static void what_deaf_ranks_have_started_is_killed_with_them(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept(
	        "exec $B/ferryrun --fork --grace 1 -- sh -c 'trap \"\" TERM; sh -c \"trap : TERM; echo up "
	        ">$FIFO; while :; do sleep 0.1; done\"; true'");
	await_line(fifo);
	kill(child, SIGTERM);
	await_end(child, said, sizeof said);
}

/* The shell ends by the signal, and nobody kills anything later. */
static void what_a_script_has_started_ends_with_it(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept("exec $B/ferryrun --fork --grace 1000 -- sh -c 'echo up >$FIFO; sleep 600; true'");
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGTERM);
}

/* Between any look at what runs and the script's end there is a new one. */
static void what_a_script_starts_as_it_is_told_to_end_ends_with_it(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept("exec $B/ferryrun --fork --grace 1000 -- sh -c 'echo up >$FIFO; i=0; while [ $i -lt "
	                         "1000 ]; do sleep 600 & i=$((i + 1)); done; wait'");
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGTERM);
}

static void stopped_ranks_end_by_a_signal(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept("exec $B/ferryrun --fork --grace 1000 -- sh -c 'echo $$ >$TEST_DIRECTORY/rank; echo "
	                         "up >$FIFO; exec sleep 600'");
	await_line(fifo);
	pid_t rank = number_in("rank");
	kill(rank, SIGSTOP);
	while (state_of(rank) != 'T')
		;
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGTERM);
}

/* As MPICH's does: it waits for the end of the ranks' output, whatever is between. */
static void ranks_end_with_the_proxy_of_mpiexec(void **state)
{
	(void)state;
	char said[4096], command[512];
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && cat >mpiexec <<'END' && chmod +x mpiexec\n"
	                     "#!/bin/sh\n"
	                     "shift 2\n"
	                     "sh -c 'echo $$ >$0/proxy; \"$@\" & wait' \"${0%/*}\" \"$@\" | cat\n"
	                     "exit 3\n"
	                     "END\n",
	                     said, sizeof said),
	                 0);
	snprintf(command, sizeof command,
	         "exec $B/ferryrun --mpiexec %s/mpiexec -- sh -c 'echo up >$FIFO; exec sleep 600'", directory);
	pid_t child = start_kept(command);
	await_line(fifo);
	kill(number_in("proxy"), SIGKILL);
	assert_int_equal(await_end(child, said, sizeof said), 3);
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/mpiexec", said, sizeof said), 0);
}

static void a_stopped_mpiexec_is_killed_with_all_below_it(void **state)
{
	(void)state;
	char said[4096], command[512];
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && cat >mpiexec <<'END' && chmod +x mpiexec\n"
	                     "#!/bin/sh\n"
	                     "trap '' TERM\n"
	                     "shift 2\n"
	                     "sh -c '\"$@\" & wait; true' sh \"$@\" &\n"
	                     "while :; do wait; done\n"
	                     "END\n",
	                     said, sizeof said),
	                 0);
	snprintf(command, sizeof command,
	         "exec $B/ferryrun --grace 1 --mpiexec %s/mpiexec -- sh -c 'echo up >$FIFO; exec sleep 600'",
	         directory);
	pid_t child = start_kept(command);
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGKILL);
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/mpiexec", said, sizeof said), 0);
}

static void a_quit_ends_everything(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept(
	        "ulimit -c 0; exec $B/ferryrun -n 2 --domains 2 --fork -- sh -c '[ $FERRY_RANK = 0 ] && echo "
	        "up >$FIFO; exec sleep 600'");
	await_line(fifo);
	kill(child, SIGQUIT);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGQUIT);
	assert_int_equal(entries_left(), 0);
}

/* A router that never comes. */
static void a_signal_is_heard_while_routers_start(void **state)
{
	(void)state;
	char said[4096], command[512];
	assert_int_equal(
	        run("cd $FERRY_SOCKET_DIR && printf '#!/bin/sh\\necho up >$FIFO; exec sleep 600\\n' >router && "
	            "chmod +x router",
	            said, sizeof said),
	        0);
	snprintf(command, sizeof command, "FERRY_ROUTER_EXE=%s/router exec $B/ferryrun --fork -- true", directory);
	pid_t child = start_kept(command);
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(await_end(child, said, sizeof said), 128 + SIGTERM);
	assert_string_equal(said, "ferryrun: waiting for the router of domain 0: told to end by signal 15 "
	                          "(Terminated)\n");
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/router", said, sizeof said), 0);
}

/* The first two; the third is a router. */
static void a_router_that_a_signal_kills_before_it_is_ready_is_tried_again(void **state)
{
	(void)state;
	static const char *const signals[] = {"KILL", "SEGV", "TERM", "BUS", "HUP"};
	char text[4096], expected[512];
	for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
		snprintf(text, sizeof text,
		         "ulimit -c 0; cd $FERRY_SOCKET_DIR && printf '#!/bin/sh\necho >>tried\n[ $(wc -l <tried) "
		         "-gt 2 ] && exec $B/ferry-router \"$@\"\nkill -%s $$\n' >router && chmod +x router && "
		         "FERRY_ROUTER_EXE=./router $B/ferryrun --fork -- true 2>&1; echo $?; rm tried router",
		         signals[i]);
		assert_int_equal(run(text, text, sizeof text), 0);
		snprintf(expected, sizeof expected,
		         "ferryrun: the router of domain 0 (./router) was never ready: it was killed by signal ");
		if (strncmp(text, expected, strlen(expected)) || !strstr(text, "): another is started\n0\n"))
			fail_msg("SIG%s: %s", signals[i], text);
	}
	/* and one that is never ready ends the run, after some more */
	assert_int_equal(run("ulimit -c 0; cd $FERRY_SOCKET_DIR && printf '#!/bin/sh\nkill -SEGV $$\n' >router && "
	                     "chmod +x router && FERRY_ROUTER_EXE=./router $B/ferryrun --fork -- true 2>&1; echo $?; "
	                     "rm router",
	                     text, sizeof text),
	                 0);
	assert_non_null(strstr(text, "it was killed by signal 11 (Segmentation fault)\n125\n"));
	assert_int_equal(entries_left(), 0);
}

/* And does not point to a message where there is none. */
static void how_a_router_ended_before_it_was_ready_is_told(void **state)
{
	(void)state;
	char text[4096], expected[512];
	static const char *const cases[][2] = {{"exit 3", "it ended with exit code 3\n"},
	                                       {"exit 0", "it ended with exit code 0\n"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(text, sizeof text,
		         "cd $FERRY_SOCKET_DIR && printf '#!/bin/sh\\n%s\\n' >router && chmod +x router", cases[i][0]);
		assert_int_equal(run(text, text, sizeof text), 0);
		assert_int_equal(run("FERRY_ROUTER_EXE=$FERRY_SOCKET_DIR/router $B/ferryrun --fork -- true 2>&1", text,
		                     sizeof text),
		                 125);
		snprintf(expected, sizeof expected, "ferryrun: the router of domain 0 (%s/router) was never ready: %s",
		         directory, cases[i][1]);
		assert_string_equal(text, expected);
	}
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/router", text, sizeof text), 0);
}

/* Signal dispositions that it may inherit: env(1) of coreutils sets them. */
static const char *const dispositions[] = {"--ignore-signal=CHLD",
                                           "--block-signal=CHLD",
                                           "--ignore-signal=TERM",
                                           "--block-signal=TERM",
                                           "--ignore-signal=INT,QUIT,HUP",
                                           "--block-signal=INT,QUIT,HUP",
                                           "--ignore-signal=CHLD,TERM --block-signal=CHLD,TERM",
                                           "--ignore-signal=PIPE,USR1,USR2,ALRM",
                                           "--block-signal=PIPE,USR1,USR2,ALRM,SEGV,BUS,CONT",
                                           "--ignore-signal",
                                           "--block-signal",
                                           "--ignore-signal --block-signal"};

/* MPICH's own: it tells a proxy that has just ended to end the other rank, and fails to, or dies of it. */
static bool has_met_an_ended_proxy(int code, const char *text)
{
	return (code == 255 && strstr(text, "control socket")) || code == 128 + SIGPIPE;
}

static void runs_end_whatever_signals_are_ignored_or_blocked(void **state)
{
	(void)state;
	static const char *const modes[] = {"--fork", "--fork --domains 2 --spare",
#ifndef __SANITIZE_ADDRESS__ /* whose runtime wants to be loaded before what is preloaded */
	                                    "--nccl",
#endif
	                                    ""};
	char command[512], text[4096];
	bool has_mpiexec = !run("command -v mpiexec >/dev/null", text, sizeof text);
	for (size_t i = 0; i < sizeof dispositions / sizeof *dispositions; i++)
		for (size_t j = 0; j < sizeof modes / sizeof *modes - !has_mpiexec; j++) {
			snprintf(command, sizeof command, "env %s $B/ferryrun %s %s -- sh -c 'exit 3' 2>&1",
			         dispositions[i], strcmp(modes[j], "--nccl") ? "-n 2" : "", modes[j]);
			int code = run(command, text, sizeof text);
			for (int again = 0; again < 5 && has_met_an_ended_proxy(code, text); again++)
				code = run(command, text, sizeof text);
			if (code != 3)
				fail_msg("%s: %d: %s", command, code, text);
		}
	assert_int_equal(entries_left(), 0);
}

static void a_terminating_signal_is_heeded_whatever_signals_are_ignored_or_blocked(void **state)
{
	(void)state;
	char command[512], said[4096];
	for (size_t i = 0; i < sizeof dispositions / sizeof *dispositions; i++) {
		snprintf(command, sizeof command,
		         "exec env %s $B/ferryrun --fork --grace 1000 -- sh -c 'echo up >$FIFO; exec sleep 600'",
		         dispositions[i]);
		pid_t child = start_kept(command);
		await_line(fifo);
		kill(child, SIGTERM);
		int code = await_end(child, said, sizeof said);
		if (code != 128 + SIGTERM)
			fail_msg("%s: %d: %s", dispositions[i], code, said);
	}
}

/* nohup(1), and scripts' commands in the background. */
static void signals_that_the_caller_has_ignored_end_no_run(void **state)
{
	(void)state;
	char said[4096];
	pid_t child = start_kept("exec env --ignore-signal=HUP,INT,QUIT $B/ferryrun --fork -- sh -c 'echo up >$FIFO; "
	                         "read x <$FIFO'");
	await_line(fifo);
	kill(child, SIGHUP);
	kill(child, SIGINT);
	kill(child, SIGQUIT);
	assert_int_equal(run("echo on >$FIFO", said, sizeof said), 0);
	assert_int_equal(await_end(child, said, sizeof said), 0);
	assert_string_equal(said, "");
}

/* Of a ferryrun that died before its routers had begun. One that somebody has locked is about to be used. */
static void an_empty_directory_that_nobody_has_locked_is_removed_by_the_next_run(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && mkdir -m 700 run-empty1 run-locked && flock run-locked "
	                     "$B/ferryrun --fork -- true && ls",
	                     text, sizeof text),
	                 0);
	assert_string_equal(text, "run-locked\n");
	assert_int_equal(run("$B/ferryrun --fork -- true", text, sizeof text), 0);
	assert_int_equal(entries_left(), 0);
}

/* None may take another's, new and not locked yet, for one that was left over. */
static void runs_that_start_at_once_leave_each_other_their_directories(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(
	        run("for i in 1 2 3 4; do (for j in 1 2 3 4 5 6 7 8; do $B/ferryrun --fork -- true || echo no; "
	            "done) & done 2>&1; wait",
	            text, sizeof text),
	        0);
	assert_string_equal(text, "");
	assert_int_equal(entries_left(), 0);
}

static void mpiexecs_name_for_the_number_of_ranks_is_understood(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -np 2 --fork -- sh -c 'echo $FERRY_SIZE' 2>&1", text, sizeof text), 0);
	assert_string_equal(text, "2\n2\n");
	assert_int_equal(run("$B/ferryrun --workers 1 -np 1 --fork -- echo -np 3 2>&1", text, sizeof text), 0);
	assert_string_equal(text, "-np 3\n");
	assert_int_equal(run("$B/ferryrun -np x --fork -- true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "\"x\" is not a number"));
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_fifo, remove_fifo)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(deaf_ranks_are_killed_by_the_second_signal),
	        TEST(deaf_ranks_are_killed_after_the_grace_period),
	        TEST(what_deaf_ranks_have_started_is_killed_with_them),
	        TEST(what_a_script_has_started_ends_with_it),
	        TEST(what_a_script_starts_as_it_is_told_to_end_ends_with_it),
	        TEST(stopped_ranks_end_by_a_signal),
	        TEST(ranks_end_with_the_proxy_of_mpiexec),
	        TEST(a_stopped_mpiexec_is_killed_with_all_below_it),
	        TEST(a_quit_ends_everything),
	        TEST(a_signal_is_heard_while_routers_start),
	        TEST(a_router_that_a_signal_kills_before_it_is_ready_is_tried_again),
	        TEST(how_a_router_ended_before_it_was_ready_is_told),
	        TEST(runs_end_whatever_signals_are_ignored_or_blocked),
	        TEST(a_terminating_signal_is_heeded_whatever_signals_are_ignored_or_blocked),
	        TEST(signals_that_the_caller_has_ignored_end_no_run),
	        TEST(an_empty_directory_that_nobody_has_locked_is_removed_by_the_next_run),
	        TEST(runs_that_start_at_once_leave_each_other_their_directories),
	        TEST(mpiexecs_name_for_the_number_of_ranks_is_understood),
	};
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
