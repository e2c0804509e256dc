/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises about affinity masks: all ranks of a job have the same domains, whatever CPUs each is bound to. Who starts
 * the routers decides. hwloc is told that this machine's first two CPUs are two nodes.
 */
#include "tests/commands.h"

#define NODES "export HWLOC_SYNTHETIC='pack:2 [numa(memory=0)] pu:1'; " /* none to bind memory to */
#define PERF  "$B/ferry-perf allreduce -b 1K -e 1K -n 1 -w 1"
/* Two ranks without ferryrun: the first under $FIRST, the other under $OTHER. */
#define RANKS \
	"export FERRY_SIZE=2 FERRY_JOB_KEY=0123456789abcdef0123456789abcdef; " \
	"FERRY_RANK=1 $OTHER " PERF " & FERRY_RANK=0 $FIRST " PERF "; first=$?; wait $! && exit $first"

static void two_ranks_have(const char *what, const char *command, int ndomains)
{
	char text[8192], header[48];
	int code = run(command, text, sizeof text);
	snprintf(header, sizeof header, "2 ranks, %d domain", ndomains);
	if (code || !strstr(text, header))
		fail_msg("%s: exit code %d, \"%s\" is not in: %s", what, code, header, text);
}

static void ranks_that_start_routers_hide_no_domain_by_their_masks(void **state)
{
	(void)state;
	static const char *const bound[][2] = {
	        {"taskset -c 0", "taskset -c 1"}, {"taskset -c 0", ""}, {"", "taskset -c 1"}};
	for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
		setenv("FIRST", bound[i][0], 1);
		setenv("OTHER", bound[i][1], 1);
		two_ranks_have("routers of the ranks'", NODES "(" RANKS ") 2>&1", 2);
		end_routers();
	}
	assert_int_equal(entries_left(), 0);
}

static void ranks_of_ferryrun_hide_no_domain_by_their_masks(void **state)
{
	(void)state;
	two_ranks_have("ferryrun",
	               NODES "$B/ferryrun -n 2 --fork -- sh -c 'exec taskset -c $FERRY_RANK " PERF "' 2>&1", 2);
	assert_int_equal(entries_left(), 0);
}

static void ferryrun_uses_the_cpus_of_its_own_mask(void **state)
{
	(void)state;
	two_ranks_have("ferryrun under a mask",
	               NODES "taskset -c 1 $B/ferryrun -n 2 --fork -- taskset -c 0-1 " PERF " 2>&1", 1);
	assert_int_equal(entries_left(), 0);
}

static void ranks_have_the_domains_of_routers_that_serve_already(void **state)
{
	(void)state;
	pid_t routers[3];
	char text[8192];
	for (int i = 0; i < 3; i++) {
		char command[256];
		snprintf(command, sizeof command,
		         "exec $B/ferry-router --socket-dir $FERRY_SOCKET_DIR --domain %d --layout '0: cpus=0; 1: "
		         "cpus=1; 2: cpus=0-1'",
		         i);
		routers[i] = start(command);
		snprintf(command, sizeof command, "until [ -S $FERRY_SOCKET_DIR/router-%d.sock ]; do sleep 0.05; done",
		         i);
		run(command, text, sizeof text);
	}
	setenv("FIRST", "taskset -c 0", 1);
	setenv("OTHER", "", 1);
	two_ranks_have("routers that serve", "export FERRY_ROUTER=required; (" RANKS ") 2>&1", 3);
	/* a rank whose environment says otherwise is told of what differs */
	setenv("OTHER", "env FERRY_DOMAINS=2", 1);
	assert_int_not_equal(run("export FERRY_ATTACH_TIMEOUT=5 FERRY_ROUTER=required; (" RANKS ") 2>&1", text,
	                         sizeof text),
	                     0);
	assert_non_null(strstr(text, "by affinity or control group"));
	assert_non_null(strstr(text, "set the same FERRY_LAYOUT for all ranks"));
	for (int i = 0; i < 3; i++)
		kill(routers[i], SIGTERM);
	end_routers();
	assert_int_equal(entries_left(), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(ranks_that_start_routers_hide_no_domain_by_their_masks),
	        TEST(ranks_of_ferryrun_hide_no_domain_by_their_masks),
	        TEST(ferryrun_uses_the_cpus_of_its_own_mask),
	        TEST(ranks_have_the_domains_of_routers_that_serve_already),
	};
	if (argc == 2)
		setenv("B", argv[1], 1); /* the directory of the commands */
	setenv("FERRY_STAGING", "1M", 1);
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2)
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
