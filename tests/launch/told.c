/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What people are told when a job fails: the cause, whichever rank notices first, and what to do about it. Given
 * "mismatch", this program is a rank that receives less than it is sent; given "message", rank 1 receives what rank 0
 * sends.
 */
#include "tests/commands.h"

#include "ferry.h"

#include <stdbool.h>
#include <sys/socket.h>

#define STRANGER "61234" /* a user without processes */

static int count_of(const char *text, const char *words)
{
	int count = 0;
	for (const char *found = text; (found = strstr(found, words)); found += strlen(words))
		count++;
	return count;
}

/* Also the ranks that find that one has given up; they are deaf to ferryrun, which ends them meanwhile. */
static void after_a_failed_start_all_ranks_say_who_is_missing(void **state)
{
	(void)state;
	static const char *const modes[] = {"", "--domains 2"};
	int seconds = 2; /* longer where ranks take as long to start */
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		char command[512], text[8192];
		snprintf(command, sizeof command,
		         "FERRY_ATTACH_TIMEOUT=%d $B/ferryrun -n 4 %s --fork -- sh -c 'trap \"\" TERM; case "
		         "$FERRY_RANK in "
		         "3) exit;; 2) sleep 1; esac; exec $B/ferry-perf allreduce -e 16K' 2>&1",
		         seconds, modes[i]);
		assert_int_equal(run(command, text, sizeof text), 1);
		if (seconds < 16 && (strstr(text, ": 1 of 4 ranks attached") || strstr(text, ": 2 of 4 ranks"))) {
			seconds *= 2;
			i--;
			continue;
		}
		/* and so has the log of each router */
		if (count_of(text, "3 of 4 ranks attached to domain 0 in time, missing: rank 3; rank ") < 3 + 1 ||
		    count_of(text, "ferry-perf: ") != 3 || strstr(text, "died"))
			fail_msg("not all name the missing rank, or they name one that has not died: %s", text);
	}
}

/* Rank 1, once it and rank 0 have attached; rank 2 never comes. Which of the two ends first, and so with which code the
   run does, is the scheduler's. */
static void a_rank_that_dies_while_others_are_to_come_is_blamed_before_them(void **state)
{
	(void)state;
	char text[8192];
	int status;
	pid_t child = start("export D=$FERRY_SOCKET_DIR; exec $B/ferryrun -n 3 --fork -- sh -c 'trap \"\" TERM; case "
	                    "$FERRY_RANK in 2) exit;; "
	                    "1) echo $$ >$D/1;; esac; exec $B/ferry-perf allreduce -e 16K' "
	                    ">$D/said 2>&1");
	while (run("$B/ferry-stat --json | grep -q '\"place\":\"'$(cd $FERRY_SOCKET_DIR && ls | grep "
	           "run-)'\",\"state\":"
	           "\"attaching\",\"ranks\":3,\"attached\":\\[0,1\\],' 2>&1",
	           text, sizeof text) != 0)
		if (waitpid(child, &status, WNOHANG) != 0) {
			run("cat $FERRY_SOCKET_DIR/said", text, sizeof text);
			fail_msg("the run ended before: %s", text);
		}
	assert_int_equal(run("kill -KILL $(cat $FERRY_SOCKET_DIR/1)", text, sizeof text), 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 137 || WEXITSTATUS(status) == 1));
	run("cat $FERRY_SOCKET_DIR/said; rm $FERRY_SOCKET_DIR/said $FERRY_SOCKET_DIR/1", text, sizeof text);
	if (!strstr(text, "ferry-perf: rank 1 of 3 died, gave up, or closed its connection without leaving; rank 2 had "
	                  "not attached to domain 0\n"))
		fail_msg("rank 1 is not blamed: %s", text);
}

static int mismatch(void)
{
	static float buffer[1 << 20];
	ferryComm_t comm;
	int rank;
	if (ferryCommInitEnv(&comm, NULL) || ferryCommUserRank(comm, &rank))
		return 2;
	ferryGroupStart();
	ferrySend(buffer, 1 << 18, ferryFloat32, 1 - rank, comm, NULL);
	ferryRecv(buffer + (1 << 19), rank ? 1 << 17 : 1 << 18, ferryFloat32, 1 - rank, comm, NULL);
	ferryResult_t result = ferryGroupEnd();
	if (!result)
		result = ferryStreamSynchronize(NULL);
	if (!result)
		return ferryCommDestroy(comm) != ferrySuccess;
	fprintf(stderr, "rank %d: %s\n", rank, ferryGetLastError(comm));
	return 0; /* without leaving, which the router sees */
}

static void counts_that_differ_are_blamed_before_the_ranks_that_left_for_them(void **state)
{
	(void)state;
	static const char
	        why[] = "rank 1: message 1 from rank 0 to rank 1: sent 1048576 bytes of f32, received as 524288 "
	                "bytes of f32\n";
	char command[256], text[8192], self[128];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	assert_in_range(length, 1, sizeof self - 2);
	self[length] = '\0';
	for (int i = 0; i < 5; i++) { /* it depends on which rank is first */
		snprintf(command, sizeof command, "$B/ferryrun -n 2 --fork -- %s mismatch 2>&1", self);
		assert_int_equal(run(command, text, sizeof text), 0);
		const char *logged = strstr(text, "error: job of 2 ranks failed: ");
		if (!logged || strncmp(strstr(logged, "failed: ") + 8, why, strlen(why)) != 0)
			fail_msg("\"%s\" is not blamed: %s", why, text);
		assert_null(strstr(text, "died"));
	}
}

static int message(void)
{
	static float buffer[1 << 18];
	ferryComm_t comm;
	int rank;
	if (ferryCommInitEnv(&comm, NULL) || ferryCommUserRank(comm, &rank))
		return 2;
	ferryResult_t result = rank ? ferryRecv(buffer, 1 << 18, ferryFloat32, 0, comm, NULL)
	                            : ferrySend(buffer, 1 << 18, ferryFloat32, 1, comm, NULL);
	if (!result)
		result = ferryStreamSynchronize(NULL);
	fprintf(stderr, "rank %d: %s\n", rank, result ? ferryGetLastError(comm) : "it has come");
	return 0; /* without leaving, as there is nobody to leave to where it has failed */
}

/* One end pushes, and the other one looks for the message in the host's memory. */
static void settings_of_two_ranks_that_differ_are_blamed_for_what_neither_can_move(void **state)
{
	(void)state;
	static const char *const ways[] = {"through the host", "by a push"};
	static const struct {
		const char *host, *pushes;
	} cases[] = {{"FERRY_FABRICS=host", "FERRY_FABRICS=peer"},
	             {"FERRY_FABRICS=host,peer FERRY_SHARES=host=1", "FERRY_FABRICS=host,peer"},
	             {"FERRY_FABRICS=host,peer FERRY_HOST_LINK=peer=50,peer@0-1=0", "FERRY_FABRICS=host,peer"}};
	char command[512], text[8192], self[128], why[256];
	ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
	assert_in_range(length, 1, sizeof self - 2);
	self[length] = '\0';
	for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
		bool sender = i % 2; /* it is that one that pushes */
		snprintf(command, sizeof command,
		         "FERRY_TIMEOUT=5 FERRY_ON_TIMEOUT=fail $B/ferryrun -n 2 --fork -- sh -c 'case $FERRY_RANK in "
		         "%d) export %s;; *) export %s;; esac; exec %s message' 2>&1",
		         sender, cases[i / 2].host, cases[i / 2].pushes, self);
		snprintf(why, sizeof why,
		         "rank 1: message 1 from rank 0 to rank 1: sent 1048576 bytes of f32 %s, received as 1048576 "
		         "bytes of f32 %s: FERRY_FABRICS, FERRY_SHARES or FERRY_HOST_LINK differ on the two ranks\n",
		         ways[sender], ways[!sender]);
		run(command, text, sizeof text);
		if (count_of(text, why) < 2 || strstr(text, "rank 1: it has come")) /* the rank's line, and the log's */
			fail_msg("%s: \"%s\" is not blamed: %s", command, why, text);
	}
}

/* By SIGXFSZ, without a word, which would take the router's other jobs along. */
/* Until a command that goes on has said that. */
static void await_words(pid_t child, const char *words)
{
	char command[512], text[8192];
	int status;
	snprintf(command, sizeof command, "grep -q '%s' $FERRY_SOCKET_DIR/said", words);
	while (run(command, text, sizeof text)) {
		if (waitpid(child, &status, WNOHANG)) {
			run("cat $FERRY_SOCKET_DIR/said", text, sizeof text);
			fail_msg("it ended without \"%s\": %s", words, text);
		}
		usleep(20000);
	}
	kill(child, SIGTERM);
	await_no_children();
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/said", text, sizeof text), 0);
}

static pid_t start_said(const char *command)
{
	char text[1024];
	snprintf(text, sizeof text, "export FERRY_ATTACH_TIMEOUT=86400; exec %s >$FERRY_SOCKET_DIR/said 2>&1", command);
	return start(text);
}

/* With code 0, which ferryrun takes for no failure. */
static void a_rank_that_ends_before_it_attaches_is_told_at_once(void **state)
{
	(void)state;
	static const char *const modes[] = {"", "--domains 2"};
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		char command[256];
		snprintf(command, sizeof command,
		         "$B/ferryrun -n 4 %s --fork -- sh -c '[ $FERRY_RANK = 2 ] && exit; exec $B/ferry-perf "
		         "allreduce -e 16K'",
		         modes[i]);
		await_words(start_said(command),
		            "ferryrun: rank 2 ended with code 0 before attaching; waiting in vain, until "
		            "FERRY_ATTACH_TIMEOUT: ranks* [013]");
	}
}

static void who_has_not_attached_is_told_within_seconds(void **state)
{
	(void)state;
	await_words(start_said("env FERRY_RANK=0 FERRY_SIZE=3 $B/ferry-perf allreduce -e 16K"),
	            "rank 0 of 3 has waited 5 s for ranks 1-2 to attach");
	/* what a batch script has, whose ranks no srun has started */
	await_words(start_said("env SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 $B/ferry-perf allreduce -e 16K"),
	            "for ranks 1-3 to attach, .* SLURM_STEP_ID is not: start the ranks with srun");
	end_routers();
}

static void a_limit_of_file_sizes_is_named_and_ends_no_router(void **state)
{
	(void)state;
	char text[8192];
	assert_int_equal(run("ulimit -f 200; $B/ferryrun --fork -- $B/ferry-perf allreduce -e 16K 2>&1", text,
	                     sizeof text),
	                 1);
	assert_non_null(strstr(text, "may have 102400 (raise ulimit -f)\n"));
	assert_null(strstr(text, "ended with code 153"));
}

/* Neither of root: the limit does not hold for it, and all sockets are its own. */
static void needs_root_to_be_another(void)
{
	if (geteuid() || access("/usr/bin/setpriv", X_OK))
		skip();
}

/* The build folder may lie where only root gets to, as its home does. */
static void a_limit_of_processes_is_named(void **state)
{
	(void)state;
	char command[512], text[8192], theirs[] = "/tmp/ferry-told-XXXXXX";
	needs_root_to_be_another();
	assert_non_null(mkdtemp(theirs));
	snprintf(command, sizeof command,
	         "chmod 755 %s && cd %s && mkdir bin lib && cp $B/ferryrun $B/ferry-router $B/ferry-perf bin && "
	         "cp -P $B/../lib/libferry.so* lib",
	         theirs, theirs);
	assert_int_equal(run(command, text, sizeof text), 0);
	static const struct {
		int most; /* threads of the user */
		const char *options, *command;
	} cases[] = {{2, "--fork", "true"},              /* a router's process */
	             {3, "--workers 9 --fork", "true"}}; /* its threads */
	assert_int_equal(chmod(directory, 0777), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(command, sizeof command,
		         "setpriv --reuid=" STRANGER " --clear-groups --bounding-set=-all bash -c 'T=%s; ulimit -u "
		         "%d; exec $T/bin/ferryrun %s -- %s' 2>&1",
		         theirs, cases[i].most, cases[i].options, cases[i].command);
		int code = run(command, text, sizeof text);
		if (code == 0 || !strstr(text, "raise ulimit -u"))
			fail_msg("%s: code %d: %s", command, code, text);
	}
	snprintf(command, sizeof command, "rm -r %s", theirs);
	assert_int_equal(run(command, text, sizeof text), 0);
}

static void a_misspelt_variable_is_named_once(void **state)
{
	(void)state;
	static const char *const commands[] = {
	        "$B/ferryrun -n 3 --domains 2 --fork -- $B/ferry-perf allreduce -e 16K -n 1",
	        "$B/ferryrun -n 1 --fork -- true", "timeout 1 $B/ferry-router --socket-dir $FERRY_SOCKET_DIR",
	        "$B/ferryrun -n 2 --fork -- sh -c 'export FERRY_SOKCET_DIRS=1; exec $B/ferry-perf allreduce -e 16K "
	        "-n 1'"};
	for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
		char command[512], text[8192];
		snprintf(command, sizeof command, "FERRY_TIMOUT=3 %s 2>&1", commands[i]);
		run(command, text, sizeof text);
		if (count_of(text, "no variable FERRY_TIMOUT ") != 1)
			fail_msg("%s: %s", command, text);
		if (i == 3 && count_of(text, "no variable FERRY_SOKCET_DIRS ") != 1)
			fail_msg("%s: %s", command, text);
	}
	char text[8192];
	run("rm -f $FERRY_SOCKET_DIR/router-0.sock*", text, sizeof text);
}

/* A socket that keeps messages apart shows what is one write. */
static void a_line_of_the_log_is_one_write(void **state)
{
	(void)state;
	char name[64] = "FERRY_", line[1024]; /* the longest that is named; then the line has more than 128 bytes */
	int ends[2];
	memset(name + 6, 'X', sizeof name - 7);
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
	pid_t child = fork();
	if (!child) {
		dup2(ends[1], STDERR_FILENO);
		setenv(name, "1", 1);
		execl("/bin/sh", "sh", "-c", "exec $B/ferryrun -n 1 --fork -- true", NULL);
		_exit(127);
	}
	close(ends[1]);
	ssize_t length = recv(ends[0], line, sizeof line - 1, 0);
	close(ends[0]);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_in_range(length, 1, sizeof line - 1);
	line[length] = '\0';
	if (!strstr(line, name) || line[length - 1] != '\n')
		fail_msg("\"%s\" is no line about %s", line, name);
}

static void another_users_sockets_are_told_of_with_the_variable(void **state)
{
	(void)state;
	char command[512], text[8192];
	needs_root_to_be_another();
	snprintf(command, sizeof command,
	         "mkdir $FERRY_SOCKET_DIR/theirs; chown " STRANGER " $FERRY_SOCKET_DIR/theirs; "
	         "FERRY_SOCKET_DIR=$FERRY_SOCKET_DIR/theirs $B/ferry-stat --routers 2>&1; rmdir "
	         "$FERRY_SOCKET_DIR/theirs");
	run(command, text, sizeof text);
	assert_non_null(strstr(text, "theirs belongs to uid " STRANGER ", not to 0: "));
	assert_non_null(strstr(text, "FERRY_SOCKET_DIR names another directory"));
	assert_int_equal(chmod(directory, 0777), 0);
	assert_int_equal(run("setpriv --reuid=" STRANGER " --clear-groups $B/ferry-router --daemon --idle-exit 60 "
	                     "--socket-dir $FERRY_SOCKET_DIR --layout '0: cpus=0' 2>&1",
	                     text, sizeof text),
	                 0);
	run("FERRY_DOMAINS=1 FERRY_ROUTER=required FERRY_RANK=0 FERRY_SIZE=1 $B/ferry-perf allreduce -e 16K 2>&1", text,
	    sizeof text);
	assert_non_null(strstr(text, "of uid " STRANGER " is not to be trusted"));
	assert_non_null(strstr(text, "(FERRY_SOCKET_DIR names another directory)"));
	run("pkill -u " STRANGER " -x ferry-router", text, sizeof text);
	await_no_children();
	assert_int_equal(run("rm -f $FERRY_SOCKET_DIR/router-0.sock*", text, sizeof text), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(after_a_failed_start_all_ranks_say_who_is_missing),
	        TEST(a_rank_that_dies_while_others_are_to_come_is_blamed_before_them),
	        TEST(counts_that_differ_are_blamed_before_the_ranks_that_left_for_them),
	        TEST(settings_of_two_ranks_that_differ_are_blamed_for_what_neither_can_move),
	        TEST(a_rank_that_ends_before_it_attaches_is_told_at_once),
	        TEST(who_has_not_attached_is_told_within_seconds),
	        TEST(a_limit_of_file_sizes_is_named_and_ends_no_router),
	        TEST(a_limit_of_processes_is_named),
	        TEST(a_misspelt_variable_is_named_once),
	        TEST(a_line_of_the_log_is_one_write),
	        TEST(another_users_sockets_are_told_of_with_the_variable),
	};
	setvbuf(stderr, NULL, _IOLBF, 0); /* two ranks write whole lines there */
	if (argc == 2 && !strcmp(argv[1], "mismatch"))
		return mismatch();
	if (argc == 2 && !strcmp(argv[1], "message"))
		return message();
	if (argc == 2)
		setenv("B", argv[1], 1);  /* the directory of the commands */
	setenv("FERRY_STAGING", "1M", 1); /* else a busy machine takes longer to make it than is waited for here */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
