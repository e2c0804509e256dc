/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators that cannot be made: impossible arguments, settings without sense, ranks that never come, and a system
 * that has no room or no router. Each gets a result code and a message with the values; nothing crashes or hangs.
 */
#include "tests/hosted.h"
#include "tests/refused.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- communicators that cannot be made ---- */

static void impossible_communicators_are_refused_by_value(void **state)
{
	(void)state;
	ferryUniqueId id, forged = {{0}};
	ferryComm_t comm, comms[65];
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	int twice[] = {3, 3}, negative[] = {0, -2};
	hosted_routers(2);
	assert_int_equal(ferryGetUniqueId(&id), ferrySuccess);
	REFUSED(ferryInvalidArgument, ferryGetUniqueId(NULL), "NULL");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(NULL, 1, id, 0), "(nil)");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(&comm, 0, id, 0), "0");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(&comm, 65, id, 0), "65", "64");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(&comm, 2, id, 2), "rank 2 of 2");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(&comm, 2, id, -1), "rank -1");
	REFUSED(ferryInvalidArgument, ferryCommInitRank(&comm, 1, forged, 0), "ferryGetUniqueId");
	REFUSED(ferryInvalidArgument, ferryCommInitAll(comms, 0, NULL), "0");
	REFUSED(ferryInvalidArgument, ferryCommInitAll(comms, 65, NULL), "65", "64");
	REFUSED(ferryInvalidArgument, ferryCommInitAll(NULL, 2, NULL), "(nil)");
	REFUSED(ferryInvalidArgument, ferryCommInitAll(comms, 2, twice), "devices[1] = 3", "devices[0] = 3");
	REFUSED(ferryInvalidArgument, ferryCommInitAll(comms, 2, negative), "-2");
	REFUSED(ferryInvalidUsage, ferryCommInitEnv(&comm, NULL), "rank", "ferryrun");
	config.size = 8;
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "size 8");
	config = (ferryConfig_t)FERRY_CONFIG_INITIALIZER;
	config.device = "tpu";
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "tpu");
	config = (ferryConfig_t)FERRY_CONFIG_INITIALIZER;
	config.domain = 7;
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "domain 7", "2 domains");
	config = (ferryConfig_t)FERRY_CONFIG_INITIALIZER;
	config.ordinal = 4096;
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "4096");
	config = (ferryConfig_t)FERRY_CONFIG_INITIALIZER;
	config.router = "maybe";
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "maybe");
	config = (ferryConfig_t)FERRY_CONFIG_INITIALIZER;
	config.staging = 10;
	REFUSED(ferryInvalidArgument, ferryCommInitRankConfig(&comm, 1, id, 0, &config), "10 bytes");
}

static void a_rank_whose_peers_never_come_gives_up_and_says_how_many_are_missing(void **state)
{
	(void)state;
	ferryUniqueId id;
	ferryComm_t comm;
	hosted_routers(1);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	assert_int_equal(ferryGetUniqueId(&id), ferrySuccess);
	REFUSED(ferryRemoteError, ferryCommInitRank(&comm, 3, id, 1), "1 of 3", "rank 1", "FERRY_ATTACH_TIMEOUT");
	unsetenv("FERRY_ATTACH_TIMEOUT");
}

static void settings_with_senseless_values_are_refused_by_name_and_value(void **state)
{
	(void)state;
	static const char *const settings[][2] = {
	        {"FERRY_SLICE", "100"},
	        {"FERRY_SLICE", "many"},
	        {"FERRY_SLICE", "0"},
	        {"FERRY_SLICE", "2G"},
	        {"FERRY_WINDOW", "0"},
	        {"FERRY_WINDOW", "-1"},
	        {"FERRY_WINDOW", "4096"},
	        {"FERRY_STAGING", "5 apples"},
	        {"FERRY_STAGING", "1"},
	        {"FERRY_STAGING", "0"},
	        {"FERRY_STAGING", "1025G"},
	        {"FERRY_ROUTER", "maybe"},
	        {"FERRY_DEVICE", "tpu"},
	        {"FERRY_HOST_LINK", "d2h=x"},
	        {"FERRY_HOST_LINK", "d2h=1e-300"},
	        {"FERRY_HOST_LINK", "d2h=inf"},
	        {"FERRY_HOST_LINK", "d2h=1,d2h=2"},
	        {"FERRY_HOST_LINK", "h2d=1,"},
	        {"FERRY_HOST_LINK", "links=dgx2:1"},
	        {"FERRY_DOMAINS", "99"},
	        {"FERRY_LAYOUT", "0: cups=1"},
	        {"FERRY_ATTACH_TIMEOUT", "0"},
	        {"FERRY_JOB_KEY", "xyz"},
	        {"FERRY_PROGRAM_PATH", "/nonexistent/program"},
	        {"FERRY_SPIN_US", "-3"},
	        {"FERRY_LOG", "loud"},
	        {"FERRY_TIMEOUT", "soon"},
	        {"FERRY_TIMEOUT", "-1"},
	        {"FERRY_TIMEOUT", "86401"},
	        {"FERRY_ON_TIMEOUT", "never"},
	        {"FERRY_DEBUG", "plans"},
	};
	for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
		ferryComm_t comms[1];
		char before[32] = "", *old = getenv(settings[i][0]);
		if (old)
			snprintf(before, sizeof before, "%s", old);
		setenv(settings[i][0], settings[i][1], 1);
		ferryResult_t result = ferryCommInitAll(comms, 1, NULL);
		if (!result)
			fail_msg("%s=%s was taken", settings[i][0], settings[i][1]);
		if (result != ferryInvalidArgument || !strstr(ferryGetLastError(NULL), settings[i][1]) ||
		    !strstr(ferryGetLastError(NULL), settings[i][0]))
			fail_msg("%s=%s: %s: %s", settings[i][0], settings[i][1], ferryGetErrorString(result),
			         ferryGetLastError(NULL));
		if (old)
			setenv(settings[i][0], before, 1);
		else
			unsetenv(settings[i][0]);
	}
}

/* ---- what the system refuses; in children, since limits only go down ---- */

static void in_child(int (*body)(void))
{
	int status;
	fflush(NULL);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child)
		_exit(body());
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* The child's verdict: 0 if the communicator was refused with that code and these words. */
static int refused_init(ferryResult_t code, const char *first, const char *second)
{
	ferryComm_t comms[1];
	ferryResult_t result = ferryCommInitAll(comms, 1, NULL);
	if (result == code && strstr(ferryGetLastError(NULL), first) && strstr(ferryGetLastError(NULL), second))
		return 0;
	fprintf(stderr, "%s: \"%s\" should say %s and %s\n", ferryGetErrorString(result),
	        result ? ferryGetLastError(NULL) : "", first, second);
	return 1;
}

static int without_room(void)
{
	/* A file size limit stands for a lack of memory: both refuse the allocation. */
	struct rlimit limit = {1 << 20, 1 << 20};
	signal(SIGXFSZ, SIG_IGN);
	setrlimit(RLIMIT_FSIZE, &limit);
	setenv("FERRY_STAGING", "64M", 1);
	hosted_routers(1);
	return refused_init(ferrySystemError, "an arena of", "bytes");
}

static int without_router(void)
{
	setenv("FERRY_ROUTER", "required", 1);
	setenv("FERRY_SOCKET_DIR", "/tmp", 1);
	return refused_init(ferrySystemError, "no router", "/tmp/router-0");
}

static int without_router_command(void)
{
	char directory[] = "/tmp/ferry-test-XXXXXX";
	if (!mkdtemp(directory))
		return 2;
	setenv("FERRY_ROUTER", "auto", 1);
	setenv("FERRY_SOCKET_DIR", directory, 1);
	setenv("FERRY_ROUTER_EXE", "/nonexistent/ferry-router", 1);
	int verdict = refused_init(ferrySystemError, "/nonexistent/ferry-router", "");
	return rmdir(directory) ? 3 : verdict;
}

static int without_driver(void)
{
	unsetenv("FERRY_DEVICE");
	setenv("FERRY_CUDA_LIBRARY", "/nonexistent/libcuda.so", 1);
	return refused_init(ferryInvalidUsage, "cuda", "");
}

static void a_driver_that_is_named_and_not_there_is_no_reason_for_host_memory(void **state)
{
	(void)state;
	in_child(without_driver);
}

static void no_room_in_shared_memory_is_told_with_the_size(void **state)
{
	(void)state;
	in_child(without_room);
}

static void a_required_router_that_is_not_there_is_told_with_its_socket(void **state)
{
	(void)state;
	in_child(without_router);
}

static void a_router_command_that_is_not_there_is_told_by_name(void **state)
{
	(void)state;
	in_child(without_router_command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        /* first: a child of a process with threads may do little */
	        cmocka_unit_test(no_room_in_shared_memory_is_told_with_the_size),
	        cmocka_unit_test(a_required_router_that_is_not_there_is_told_with_its_socket),
	        cmocka_unit_test(a_router_command_that_is_not_there_is_told_by_name),
	        cmocka_unit_test(a_driver_that_is_named_and_not_there_is_no_reason_for_host_memory),
	        cmocka_unit_test(impossible_communicators_are_refused_by_value),
	        cmocka_unit_test(a_rank_whose_peers_never_come_gives_up_and_says_how_many_are_missing),
	        cmocka_unit_test(settings_with_senseless_values_are_refused_by_name_and_value),
	};
	setenv("FERRY_LOG", "error", 1); /* routers warn of every job that these tests end */
	return cmocka_run_group_tests(tests, NULL, NULL);
}
