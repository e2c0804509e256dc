/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of ferryrun: exit codes and signals pass, clear refusals, and nothing left behind whichever process dies. */
#include "tests/commands.h"

static void exit_codes_pass_through(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -n 3 --fork -- true 2>&1", text, sizeof text), 0);
	assert_int_equal(run("$B/ferryrun -n 2 --fork -- sh -c 'exit 7' 2>&1", text, sizeof text), 7);
	assert_int_equal(run("$B/ferryrun -n 2 --fork -- sh -c 'kill -SEGV $$' 2>&1", text, sizeof text),
	                 128 + SIGSEGV);
	assert_int_equal(entries_left(), 0);
}

/* Else a rank's first socket is its standard output, and what it prints goes to the router. */
static void ranks_of_a_ferryrun_without_standard_descriptors_have_the_null_device(void **state)
{
	(void)state;
	char text[4096];
	for (unsigned closed = 0; closed < 3; closed++) {
		char command[512];
		snprintf(command, sizeof command,
		         "$B/ferryrun -n 2 --fork -- sh -c 'exec 7>>${FERRY_SOCKET_DIR%%/*}/seen; link=$(readlink "
		         "/proc/$$/fd/%u); echo $link >&7' %u>&-",
		         closed, closed);
		assert_int_equal(run(command, text, sizeof text), 0);
	}
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && uniq -c seen && rm seen", text, sizeof text), 0);
	assert_string_equal(text, "      6 /dev/null\n");
	assert_int_equal(run("$B/ferryrun -n 2 --fork -- $B/ferry-perf allreduce -e 16K -n 1 2>&1 >&-", text,
	                     sizeof text),
	                 0);
	assert_int_equal(run("$B/ferryrun -n 2 --fork -- $B/ferry-perf allreduce -e 16K -n 1 <&- >&- 2>&-", text,
	                     sizeof text),
	                 0);
	assert_int_equal(run("$B/ferry-stat <&- >&- 2>&-", text, sizeof text), 0);
	assert_int_equal(entries_left(), 0);
}

/* Before any router is started; so the one that is named here, which would fail, is not heard of. */
static void a_command_that_cannot_be_run_ends_with_a_shells_code_in_every_mode(void **state)
{
	(void)state;
	static const char *const modes[] = {"--fork", "--mpiexec mpiexec"};
	static const struct {
		const char *command, *says;
		int code;
	} cases[] = {{"/nonexistent", "ferryrun: cannot run /nonexistent: No such file or directory\n", 127},
	             {"ferry-nonexistent",
	              "ferryrun: cannot run ferry-nonexistent: no such command on PATH (/bin:/usr/bin)\n", 127},
	             {"''", "ferryrun: cannot run : No such file or directory\n", 127},
	             {"/etc/passwd", "ferryrun: cannot run /etc/passwd: no permission to execute it (mode 0644)\n",
	              126},
	             {"/etc/passwd/x", "ferryrun: cannot run /etc/passwd/x: Not a directory\n", 127},
	             {"/etc", "ferryrun: cannot run /etc: Is a directory\n", 126}};
	char command[256], text[4096];
	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
		for (size_t j = 0; j < sizeof cases / sizeof *cases; j++) {
			snprintf(command, sizeof command,
			         "PATH=/bin:/usr/bin FERRY_ROUTER_EXE=/no/router $B/ferryrun -n 2 %s -- %s "
			         "2>&1", modes[i],
			         cases[j].command);
			int code = run(command, text, sizeof text);
			if (code != cases[j].code || strcmp(text, cases[j].says))
				fail_msg("%s: exit code %d instead of %d, or it says \"%s\"", command, code,
				         cases[j].code, text);
		}
	assert_int_equal(run("FERRY_RANK=0 FERRY_SIZE=1 $B/ferryrun --join -- /nonexistent 2>&1", text, sizeof text),
	                 127);
	assert_int_equal(run("FERRY_RANK=0 FERRY_SIZE=1 $B/ferryrun --join -- /etc/passwd 2>&1", text, sizeof text),
	                 126);
}

/* A file that may not be executed hides none behind it; and an empty part of PATH is this directory. */
static void a_command_is_looked_for_as_execvp_does(void **state)
{
	(void)state;
	static const char
	        make[] = "cd $FERRY_SOCKET_DIR && mkdir bin && : >bin/run && printf '#!/bin/sh\\necho here\\n' >run && "
	                 "chmod +x run";
	char text[4096];
	assert_int_equal(run(make, text, sizeof text), 0);
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && PATH=$PWD/bin:/bin $B/ferryrun --fork -- run 2>&1", text,
	                     sizeof text),
	                 126);
	assert_non_null(strstr(text, "/bin/run: no permission"));
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && PATH=$PWD/bin:$PWD:/bin $B/ferryrun --fork -- run 2>&1", text,
	                     sizeof text),
	                 0);
	assert_string_equal(text, "here\n");
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && PATH=/bin: $B/ferryrun --fork -- run 2>&1", text, sizeof text),
	                 0);
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && rm -r bin run", text, sizeof text), 0);
}

static void one_failing_rank_ends_the_others(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -n 3 --fork -- sh -c '[ $FERRY_RANK = 1 ] && exit 9; exec sleep 60' 2>&1",
	                     text, sizeof text),
	                 9);
	assert_non_null(strstr(text, "rank 1"));
}

static void a_run_over_its_time_ends_with_124(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -n 2 --fork --timeout 1 -- sleep 60 2>&1", text, sizeof text), 124);
	assert_non_null(strstr(text, "--timeout"));
}

static void a_missing_mpiexec_is_named_with_the_way_out(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -n 2 --mpiexec /no/mpiexec -- true 2>&1", text, sizeof text), 125);
	assert_non_null(strstr(text, "/no/mpiexec"));
	assert_non_null(strstr(text, "--fork"));
	assert_int_equal(entries_left(), 0);
}

static void without_an_mpiexec_ranks_are_forked_and_that_is_said(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("PATH=$FERRY_SOCKET_DIR $B/ferryrun -n 2 -- /bin/sh -c 'echo up $FERRY_SIZE' 2>&1", text,
	                     sizeof text),
	                 0);
	assert_string_equal(text, "ferryrun: there is no mpiexec on PATH: the ranks are forked on this host, as by "
	                          "--fork\nup 2\nup 2\n");
	assert_int_equal(entries_left(), 0);
}

static void a_job_in_each_rank_of_another_is_named(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("PMI_RANK=0 PMI_SIZE=3 $B/ferryrun -n 2 --fork -- true 2>&1", text, sizeof text), 0);
	assert_string_equal(text, "ferryrun: each of the 3 ranks of an outer job (launcher pmi) starts a job of 2 "
	                          "ranks of its own; with --join they are the ranks of one\n");
	static const char *const silent[] = {
	        "PMI_RANK=1 PMI_SIZE=3 $B/ferryrun -n 2 --fork", "PMI_RANK=0 PMI_SIZE=1 $B/ferryrun -n 2 --fork",
	        "PMI_RANK=0 PMI_SIZE=3 $B/ferryrun --join",
	        "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 $B/ferryrun --fork"}; /* a batch script's */
	for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
		char command[256];
		snprintf(command, sizeof command, "%s -- true 2>&1", silent[i]);
		assert_int_equal(run(command, text, sizeof text), 0);
		assert_string_equal(text, "");
	}
}

static void bad_usage_is_refused(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("$B/ferryrun -n 65 -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun -n x -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun --help", text, sizeof text), 0);
	assert_non_null(strstr(text, " 64 "));
	assert_int_equal(run("$B/ferryrun --fork --mpiexec mpiexec -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun --layout '0: cpus=0' --domains 2 -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun --fork --layout '' -- true 2>&1", text, sizeof text), 64);
	assert_int_equal(run("$B/ferryrun --fork --layout nonsense -- true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "--layout"));
	assert_non_null(strstr(text, "nonsense"));
	assert_int_equal(run("$B/ferryrun -n -18446744073709551615 --fork -- true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "-n: \"-18446744073709551615\" is not a number from 1 to 64"));
	assert_int_equal(run("$B/ferryrun --fork --spare=9 -- true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "--spare: \"9\" is not a number from 1 to 8"));
	assert_int_equal(run("$B/ferryrun --fork --spare 2 -n 2 true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "--spare 2: write \"--spare=2\""));
	assert_int_equal(run("$B/ferryrun --fork --nccl name true 2>&1", text, sizeof text), 64);
	assert_non_null(strstr(text, "--nccl name: write \"--nccl=name\""));
	static const char *const written[][2] = {{"-np=2", "-np=2: write \"-n 2\", or \"-np 2\"\n"},
	                                         {"-n=2", "-n=2: write \"-n 2\", or \"-np 2\"\n"},
	                                         {"-np2", "-np2: write \"-n 2\", or \"-np 2\"\n"},
	                                         {"-np", "-np: write \"-n RANKS\", or \"-np RANKS\"\n"}};
	for (size_t i = 0; i < sizeof written / sizeof *written; i++) {
		char command[128];
		snprintf(command, sizeof command, "$B/ferryrun --fork %s%s 2>&1", written[i][0],
		         i < 3 ? " -- true" : "");
		assert_int_equal(run(command, text, sizeof text), 64);
		if (!strstr(text, written[i][1]))
			fail_msg("%s: %s", command, text);
	}
	assert_int_equal(run("FERRY_RANK=0 FERRY_SIZE=1 $B/ferryrun --join --workers 2 -- true 2>&1", text,
	                     sizeof text),
	                 64);
	assert_non_null(strstr(text, "--join"));
	assert_int_equal(run("FERRY_LAYOUT=nonsense $B/ferryrun --fork -- true 2>&1", text, sizeof text), 125);
	assert_non_null(strstr(text, "nonsense"));
	assert_int_equal(run("FERRY_ROUTER=maybe $B/ferryrun --fork -- true 2>&1", text, sizeof text), 125);
	assert_non_null(strstr(text, "FERRY_ROUTER=maybe"));
}

/* Spares have hardly begun when they are told to end, and their folder goes. */
static void a_run_that_is_over_before_its_spares_stand_by_says_nothing(void **state)
{
	(void)state;
	char text[4096];
	for (int i = 0; i < 20; i++) {
		assert_int_equal(run("$B/ferryrun --spare=8 --fork -- true 2>&1", text, sizeof text), 0);
		assert_string_equal(text, "");
	}
	assert_int_equal(entries_left(), 0);
}

static void ranks_find_the_routers_from_another_directory(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && FERRY_SOCKET_DIR=own $B/ferryrun -n 2 --fork -- "
	                     "sh -c 'cd / && exec $B/ferry-perf allreduce -e 16K -n 1' 2>&1", text, sizeof text), 0);
	assert_int_equal(run("rmdir $FERRY_SOCKET_DIR/own", text, sizeof text), 0);
}

/* Nobody may make a directory there, root neither. */
static void a_socket_directory_that_cannot_be_used_is_named_with_the_variable(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("FERRY_SOCKET_DIR=/proc $B/ferryrun --fork -- true 2>&1", text, sizeof text), 125);
	assert_non_null(strstr(text, "/proc/run-"));
	assert_non_null(strstr(text, "FERRY_SOCKET_DIR"));
}

static void a_router_that_cannot_go_to_the_background_says_why(void **state)
{
	(void)state;
	char text[4096];
	assert_int_equal(run("FERRY_WORKERS=0 $B/ferry-router --daemon --socket-dir $FERRY_SOCKET_DIR 2>&1", text,
	                     sizeof text),
	                 1);
	assert_non_null(strstr(text, "FERRY_WORKERS=0"));
	assert_int_equal(run("$B/ferry-router --daemon --socket-dir /nonexistent 2>&1", text, sizeof text), 1);
	assert_non_null(strstr(text, "/nonexistent"));
}

static void the_other_commands_refuse_by_option_and_value(void **state)
{
	(void)state;
	static const char *const cases[][2] = {
		{"ferry-router --workers 0", "--workers: \"0\""}, {"ferry-router --workers 65", "--workers: \"65\""},
		{"ferry-router --domain -1", "--domain: \"-1\""}, {"ferry-router --idle-exit x", "--idle-exit: \"x\""},
		{"ferry-router --staging-limit 0", "--staging-limit: \"0\""}, {"ferry-router --socket-dir ''",
		 "--socket-dir: \"\""},
		{"ferry-router --layout ''", "--layout: \"\""}, {"ferry-router --private-dir", "--socket-dir"},
		{"ferry-router --daemon --ready-fd 1", "--ready-fd 1"}, {"ferry-stat --markdown", "--env"},
		{"ferry-digits --epochs 3x", "--epochs: \"3x\""}, {"ferry-digits --rate nan", "--rate: \"nan\""}};
	char command[128], text[4096];
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		snprintf(command, sizeof command, "timeout 9 $B/%s 2>&1", cases[i][0]);
		assert_int_equal(run(command, text, sizeof text), 64);
		assert_non_null(strstr(text, cases[i][1]));
	}
	static const char *const settings[] = {"FERRY_LOG=loud", "FERRY_WORKERS=zero", "FERRY_SPIN_US=-3",
	                                       "FERRY_REDUCE=upside-down"};
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		snprintf(command, sizeof command, "%s timeout 9 $B/ferry-router 2>&1", settings[i]);
		assert_int_equal(run(command, text, sizeof text), 1);
		assert_non_null(strstr(text, settings[i]));
	}
}

static void looking_for_routers_makes_no_directory(void **state)
{
	(void)state;
	char text[4096], none[80];
	snprintf(none, sizeof none, "%s/none", directory);
	setenv("FERRY_SOCKET_DIR", none, 1);
	assert_int_equal(run("$B/ferry-stat 2>&1", text, sizeof text), 0);
	assert_non_null(strstr(text, "there is no directory"));
	assert_non_null(strstr(text, none));
	assert_int_equal(run("FERRY_ROUTER=required FERRY_RANK=0 FERRY_SIZE=1 $B/ferry-perf allreduce 2>&1", text,
	                     sizeof text),
	                 1);
	assert_non_null(strstr(text, "no router answers on"));
	assert_int_equal(entries_left(), 0);
}

static void joining_ranks_get_ferrys_variables(void **state)
{
	(void)state;
	char text[4096];
	int code = run("PMI_RANK=2 PMI_SIZE=5 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3 $B/ferryrun --join -- sh -c "
	               "'echo $FERRY_RANK $FERRY_SIZE $FERRY_LOCAL_RANK $FERRY_LOCAL_SIZE ${#FERRY_JOB_KEY}'",
	               text, sizeof text);
	assert_int_equal(code, 0);
	assert_string_equal(text, "2 5 1 3 32\n");
	assert_int_equal(run("$B/ferryrun --join -- true 2>&1", text, sizeof text), 125);
	assert_non_null(strstr(text, "mpirun"));
}

static void nothing_is_left_when_ferryrun_is_killed(void **state)
{
	(void)state;
	char fifo[128], command[512];
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -f %s; mkfifo %s", fifo, fifo);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof command,
	         "exec $B/ferryrun -n 2 --domains 2 --fork -- sh -c '[ $FERRY_RANK = 0 ] && echo up > %s; exec sleep "
	         "600'", fifo);
	pid_t child = start(command);
	await_line(fifo);
	kill(child, SIGKILL);
	await_no_children(); /* routers and ranks; ctest's timeout tells if one stays */
	assert_int_equal(entries_left(), 0);
	unlink(fifo);
}

/* A run in the background, with its routers' ids in a file and its ranks waiting. */
static pid_t start_run(const char *fifo, const char *routers)
{
	char command[1024];
	snprintf(command, sizeof command,
	         "rm -f %s %s; mkfifo %s; printf '#!/bin/sh\\necho $$ >>%s\\nexec %s/ferry-router \"$@\"\\n' >%s.sh; "
	         "chmod +x %s.sh",
	         fifo, routers, fifo, routers, getenv("B"), routers, routers);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof command,
	         "FERRY_ROUTER_EXE=%s.sh exec $B/ferryrun --domains 2 --fork -- "
	         "sh -c 'echo up >%s; exec sleep 600' 2>/dev/null",
	         routers, fifo);
	pid_t child = start(command);
	await_line(fifo);
	snprintf(command, sizeof command, "rm %s %s.sh", fifo, routers);
	assert_int_equal(system(command), 0);
	return child;
}

/* Its routers first, so that none of them can tidy up. */
static void kill_run(pid_t ferryrun, const char *routers)
{
	int router, count = 0;
	FILE *file = fopen(routers, "r");
	assert_non_null(file);
	for (; fscanf(file, "%d", &router) == 1; count++)
		kill(router, SIGKILL);
	fclose(file);
	unlink(routers);
	assert_int_equal(count, 2);
	kill(ferryrun, SIGKILL);
	await_no_children();
}

static void what_killed_routers_leave_the_next_run_removes(void **state)
{
	(void)state;
	char fifo[128], routers[128], text[4096];
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(routers, sizeof routers, "/tmp/ferryrun-routers-%d", (int)getpid());
	kill_run(start_run(fifo, routers), routers);
	assert_int_equal(entries_left(), 1);
	assert_int_equal(run("$B/ferryrun --fork -- true 2>&1", text, sizeof text), 0);
	assert_int_equal(entries_left(), 0);
}

static void a_run_that_goes_on_keeps_its_directory(void **state)
{
	(void)state;
	char fifo[128], routers[128], text[4096];
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(routers, sizeof routers, "/tmp/ferryrun-routers-%d", (int)getpid());
	pid_t first = start_run(fifo, routers);
	assert_int_equal(run("$B/ferryrun --fork -- true 2>&1", text, sizeof text), 0);
	assert_int_equal(run("ls -d $FERRY_SOCKET_DIR/run-*/router-[01].sock | wc -l", text, sizeof text), 0);
	assert_string_equal(text, "2\n");
	/* Also without any answer: ferryrun is there. */
	assert_int_equal(run("rm $FERRY_SOCKET_DIR/run-*/router-*.sock && $B/ferryrun --fork -- true 2>&1", text,
	                     sizeof text),
	                 0);
	assert_int_equal(entries_left(), 1);
	kill_run(first, routers);
	assert_int_equal(run("$B/ferryrun --fork -- true 2>&1", text, sizeof text), 0);
}

/* Whose ferryrun holds no lock: it was killed alone just now, or knows of none. */
static void a_router_that_answers_keeps_its_directory(void **state)
{
	(void)state;
	char fifo[128], command[512], text[4096];
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -f %s; mkfifo %s; mkdir -m 700 $FERRY_SOCKET_DIR/run-lives0", fifo, fifo);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof command,
	         "exec $B/ferry-router --socket-dir $FERRY_SOCKET_DIR/run-lives0 --private-dir --ready-fd 3 "
	         "3>%s", fifo);
	pid_t router = start(command);
	await_line(fifo);
	unlink(fifo);
	assert_int_equal(run("$B/ferryrun --fork -- true 2>&1", text, sizeof text), 0);
	assert_int_equal(entries_left(), 1);
	kill(router, SIGTERM);
	await_no_children();
	assert_int_equal(entries_left(), 0);
}

/* Each is like a directory that was left over but for one thing. */
static void what_is_no_left_over_directory_stays(void **state)
{
	(void)state;
	static const char make[] =
	        "cd $FERRY_SOCKET_DIR && umask 077 && mkdir run-empt-1 && for d in run-toolong run-four run-file01 "
	        "run-mode01 run-lin-01 walk-abcd other; do mkdir $d && : >$d/router-0.sock.lock; done && "
	        ": >run-file01/notes && chmod 755 run-mode01 && ln -s other run-link01 && "
	        "mkdir run-link02 && ln -s ../other run-link02/router-0.sock && mkdir run-regul1 && "
	        ": >run-regul1/router-0.sock && mkdir run-goes01 && : >run-goes01/router-7.sock.lock";
	static const char list[] = "cd $FERRY_SOCKET_DIR && $B/ferryrun --fork -- true && find . | sort";
	char before[4096], text[4096];
	assert_int_equal(run(make, text, sizeof text), 0);
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && find . | grep -v run-goes01 | sort", before, sizeof before), 0);
	assert_int_equal(run(list, text, sizeof text), 0);
	assert_string_equal(text, before);
	assert_int_equal(run("rm -r $FERRY_SOCKET_DIR/*", text, sizeof text), 0);
}

static void a_terminating_signal_ends_everything_and_is_named(void **state)
{
	(void)state;
	char fifo[128], command[512], text[4096];
	int status;
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -f %s; mkfifo %s", fifo, fifo);
	assert_int_equal(system(command), 0);
	snprintf(command, sizeof command,
	         "exec $B/ferryrun -n 2 --fork -- sh -c '[ $FERRY_RANK = 0 ] && echo up > %s; exec sleep 600' "
	         "2>$FERRY_SOCKET_DIR/said", fifo);
	pid_t child = start(command);
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
	await_no_children();
	assert_int_equal(run("cd $FERRY_SOCKET_DIR && cat said && rm said", text, sizeof text), 0);
	assert_non_null(strstr(text, "ferryrun: told to end by signal 15 (Terminated)"));
	assert_int_equal(entries_left(), 0);
	unlink(fifo);
}

static void a_run_broken_off_is_no_success_whatever_mpiexec_says(void **state)
{
	(void)state;
	char fifo[128], mpiexec[128], command[512];
	int status;
	snprintf(fifo, sizeof fifo, "/tmp/ferryrun-fifo-%d", (int)getpid());
	snprintf(mpiexec, sizeof mpiexec, "/tmp/ferryrun-mpiexec-%d", (int)getpid());
	snprintf(command, sizeof command, "rm -f %s; mkfifo %s", fifo, fifo);
	assert_int_equal(system(command), 0);
	FILE *script = fopen(mpiexec, "w");
	assert_non_null(script);
	fprintf(script, "#!/bin/sh\ntrap 'exit 0' TERM\necho up > %s\nwhile :; do sleep 0.05; done\n", fifo);
	fclose(script);
	assert_int_equal(chmod(mpiexec, 0700), 0);
	snprintf(command, sizeof command, "exec $B/ferryrun -n 2 --mpiexec %s -- true", mpiexec);
	pid_t child = start(command);
	await_line(fifo);
	kill(child, SIGTERM);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 128 + SIGTERM);
	await_no_children();
	unlink(fifo);
	unlink(mpiexec);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(exit_codes_pass_through),
		TEST(ranks_of_a_ferryrun_without_standard_descriptors_have_the_null_device),
		TEST(a_command_that_cannot_be_run_ends_with_a_shells_code_in_every_mode),
		TEST(a_command_is_looked_for_as_execvp_does),
		TEST(one_failing_rank_ends_the_others),
		TEST(a_run_over_its_time_ends_with_124),
		TEST(a_missing_mpiexec_is_named_with_the_way_out),
		TEST(without_an_mpiexec_ranks_are_forked_and_that_is_said),
		TEST(a_job_in_each_rank_of_another_is_named),
		TEST(bad_usage_is_refused),
		TEST(a_run_that_is_over_before_its_spares_stand_by_says_nothing),
		TEST(ranks_find_the_routers_from_another_directory),
		TEST(a_socket_directory_that_cannot_be_used_is_named_with_the_variable),
		TEST(a_router_that_cannot_go_to_the_background_says_why),
		TEST(the_other_commands_refuse_by_option_and_value),
		TEST(looking_for_routers_makes_no_directory),
		TEST(joining_ranks_get_ferrys_variables),
		TEST(nothing_is_left_when_ferryrun_is_killed),
		TEST(what_killed_routers_leave_the_next_run_removes),
		TEST(a_run_that_goes_on_keeps_its_directory),
		TEST(a_router_that_answers_keeps_its_directory),
		TEST(what_is_no_left_over_directory_stays),
		TEST(a_terminating_signal_ends_everything_and_is_named),
		TEST(a_run_broken_off_is_no_success_whatever_mpiexec_says),
	};
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
