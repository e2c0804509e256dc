/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of a router process that several users share: an application hears why its tenant may not have more, a
 * hangup has the file read again, and ranks of other users find a router that root has given a place.
 */
#include "tests/commands.h"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#define ROUTER_USER "61244" /* users without processes, also in other suites (told.c ends all of its own) */
#define TENANT      "61245"
#define STRANGER    "61246"

/* ferry-perf makes two communicators, so a rank is of two jobs */
#define PERF "$B/ferry-perf allreduce -e 16K -n 1 2>&1"
#define ONE  "FERRY_RANK=0 FERRY_SIZE=1 " RANK
#define RANK "FERRY_DOMAINS=1 FERRY_ROUTER=required FERRY_SHORT=0 " /* calls by plans */

static pid_t router; /* of a test; 0: none */

static void must_say(const char *text, const char *words)
{
	if (!strstr(text, words))
		fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* What the router's processes, and nobody else, have written. */
static void read_log(char *text, size_t bytes)
{
	run("cat $FERRY_SOCKET_DIR/log", text, bytes);
}

static void write_file(const char *text)
{
	char name[128];
	snprintf(name, sizeof name, "%s/tenants", directory);
	FILE *file = fopen(name, "w");
	assert_non_null(file);
	fprintf(file, text, geteuid());
	fclose(file);
}

/* prefix: what the command is started by. */
static void start_router(const char *prefix)
{
	char command[512], text[4096];
	snprintf(command, sizeof command,
	         "exec %s $B/ferry-router --config $FERRY_SOCKET_DIR/tenants --layout '0: cpus=0' "
	         "2>$FERRY_SOCKET_DIR/log",
	         prefix);
	router = start(command);
	while (run("$B/ferry-stat --routers | grep 'tenants=1 config=read'", text, sizeof text) != 0)
		assert_int_equal(waitpid(router, NULL, WNOHANG), 0);
}

/* Also after a failure. */
static int stop_router(void **state)
{
	char text[4096];
	if (router) {
		kill(router, SIGTERM);
		waitpid(router, NULL, 0);
	}
	router = 0;
	run("rm -f $FERRY_SOCKET_DIR/tenants $FERRY_SOCKET_DIR/log $FERRY_SOCKET_DIR/router-0.sock*", text,
	    sizeof text);
	return remove_directory(state);
}

static void await_in_log(const char *words)
{
	char text[8192];
	do
		read_log(text, sizeof text);
	while (!strstr(text, words));
}

static void an_application_hears_what_its_tenant_has_left(void **state)
{
	(void)state;
	char text[8192];
	write_file("[tenant own]\nusers = %u\njob_staging = 1M\nranks = 2\n");
	start_router("");
	assert_int_equal(run("FERRY_STAGING=4M " ONE PERF, text, sizeof text), 1);
	must_say(text, "the job asks for 4194304 bytes of staging in domain 0, a job of tenant own may have 1048576");
	assert_int_equal(run("FERRY_RANK=0 FERRY_SIZE=3 " RANK PERF, text, sizeof text), 1);
	must_say(text, "the job asks for 3 ranks in domain 0, tenant own has 2 of 2 left");
	assert_int_equal(run(ONE PERF, text, sizeof text), 0);
}

/* Asked for by a call: it fails, and the communicator is as good as before. */
static void a_call_hears_that_its_tenant_may_have_no_more_plans(void **state)
{
	(void)state;
	char text[8192];
	write_file("[tenant own]\nusers = %u\nplans = 1\n");
	start_router("");
	run("FERRY_SIZE=2 FERRY_RANK=1 " RANK
	    "$B/ferry-perf allreduce -e 1M -n 1 >/dev/null 2>&1 & FERRY_SIZE=2 FERRY_RANK=0 " RANK
	    "$B/ferry-perf allreduce -e 1M -n 1 2>&1; wait",
	    text, sizeof text);
	must_say(text, "and may have 1: no place for");
}

static void a_hangup_has_the_file_read_again_and_a_bad_one_changes_nothing(void **state)
{
	(void)state;
	char text[1 << 16]; /* a command that prints more than is read has its pipe closed */
	write_file("[tenant own]\nusers = %u\njobs = 0\n");
	start_router("");
	assert_int_equal(run(ONE PERF, text, sizeof text), 1);
	must_say(text, "tenant own has 0 of the 0 that it may have");
	write_file("[tenant own]\nusers = %u\n\njobs = none\n");
	kill(router, SIGHUP);
	await_in_log(
	        "/tenants:4: jobs = none: expected a whole number from 0 to 1048576; the tenants are what they were");
	assert_int_equal(run(ONE PERF, text, sizeof text), 1);
	must_say(text, "tenant own has 0 of the 0 that it may have");
	assert_int_equal(run("$B/ferry-stat --routers", text, sizeof text), 0);
	must_say(text, "tenants=1 config=bad");
	write_file("[tenant own]\nusers = %u\njobs = 2\n");
	kill(router, SIGHUP);
	await_in_log("the tenants have been read again");
	assert_int_equal(run("$B/ferry-stat --prometheus", text, sizeof text), 0);
	must_say(text, "tenant=\"own\"} 2\n# HELP ferry_tenant_ranks ");
	assert_int_equal(run(ONE PERF, text, sizeof text), 0);
}

static void a_router_does_not_start_with_a_file_that_cannot_be(void **state)
{
	(void)state;
	char text[8192];
	write_file("[tenant own]\nuser = %u\n");
	assert_int_equal(run("$B/ferry-router --config $FERRY_SOCKET_DIR/tenants --layout '0: cpus=0' 2>&1", text,
	                     sizeof text),
	                 1);
	must_say(text, "/tenants:2: \"user\"");
	assert_int_equal(run("$B/ferry-router --config $FERRY_SOCKET_DIR/none --layout '0: cpus=0' 2>&1", text,
	                     sizeof text),
	                 1);
	must_say(text, "/none: No such file or directory");
}

/* As systemd waits for it (Type=notify). */
static void a_router_tells_systemd_when_ranks_can_attach(void **state)
{
	(void)state;
	char text[4096] = "";
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval patience = {20, 0};
	snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", directory);
	int notified = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(notified, (struct sockaddr *)&address, sizeof address), 0);
	assert_int_equal(setsockopt(notified, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience), 0);
	write_file("[tenant own]\nusers = %u\n");
	setenv("NOTIFY_SOCKET", address.sun_path, 1);
	router = start("exec $B/ferry-router --config $FERRY_SOCKET_DIR/tenants --layout '0: cpus=0'");
	unsetenv("NOTIFY_SOCKET");
	assert_int_equal(recv(notified, text, sizeof text - 1, 0), strlen("READY=1"));
	assert_string_equal(text, "READY=1");
	close(notified);
	unlink(address.sun_path);
	assert_int_equal(run(ONE PERF, text, sizeof text), 0);
}

/* The directory is root's, and the router's group may write to it, as of a package (launch/systemd). */
static void ranks_of_a_tenant_are_served_by_a_router_that_root_gave_a_place(void **state)
{
	(void)state;
	char text[8192];
	/* commands built in root's home are visible to nobody else */
	if (geteuid() != 0 ||
	    run("setpriv --reuid=" TENANT " --clear-groups test -x $B/ferry-perf", text, sizeof text) != 0) {
		print_message("only root can be several users, where they can reach the build: skipped\n");
		skip();
	}
	write_file("[tenant theirs]\nusers = " TENANT "\n");
	assert_int_equal(run("chgrp " ROUTER_USER " $FERRY_SOCKET_DIR && chmod 775 $FERRY_SOCKET_DIR && "
	                     "install -o " ROUTER_USER " /dev/null $FERRY_SOCKET_DIR/log",
	                     text, sizeof text),
	                 0);
	start_router("setpriv --reuid=" ROUTER_USER " --regid=" ROUTER_USER " --clear-groups");
	assert_int_equal(run("as='setpriv --reuid=" TENANT " --regid=" TENANT
	                     " --clear-groups env HOME=/nonexistent'; cd /; "
	                     "FERRY_SIZE=2 FERRY_RANK=1 " RANK "$as $B/ferry-perf allreduce -e 1M -n 1 2>&1 & "
	                     "FERRY_SIZE=2 FERRY_RANK=0 " RANK "$as $B/ferry-perf allreduce -e 1M -n 1 2>&1 && wait $!",
	                     text, sizeof text),
	                 0);
	must_say(text, "1048576");
	assert_int_equal(run("cd /; FERRY_SIZE=1 FERRY_RANK=0 " RANK "setpriv --reuid=" STRANGER " --regid=" STRANGER
	                     " --clear-groups env HOME=/nonexistent $B/ferry-perf allreduce -e 16K -n 1 2>&1",
	                     text, sizeof text),
	                 1);
	must_say(text, "of uid " STRANGER " is of no tenant of this router of uid " ROUTER_USER);
	/* where everybody may write, anybody may have put the socket there */
	assert_int_equal(chmod(directory, 0777), 0);
	assert_int_equal(run("cd /; FERRY_SIZE=1 FERRY_RANK=0 " RANK "setpriv --reuid=" TENANT " --regid=" TENANT
	                     " --clear-groups env HOME=/nonexistent $B/ferry-perf allreduce -e 16K -n 1 2>&1",
	                     text, sizeof text),
	                 1);
	must_say(text, "of uid " ROUTER_USER " is not to be trusted by one of uid " TENANT);
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_directory, stop_router)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(an_application_hears_what_its_tenant_has_left),
	        TEST(a_call_hears_that_its_tenant_may_have_no_more_plans),
	        TEST(a_hangup_has_the_file_read_again_and_a_bad_one_changes_nothing),
	        TEST(a_router_does_not_start_with_a_file_that_cannot_be),
	        TEST(a_router_tells_systemd_when_ranks_can_attach),
	        TEST(ranks_of_a_tenant_are_served_by_a_router_that_root_gave_a_place),
	};
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
