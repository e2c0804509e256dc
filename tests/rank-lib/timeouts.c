/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call that waits for a router or a rank that stands still: a message names it after FERRY_TIMEOUT, and with
 * FERRY_ON_TIMEOUT=fail the communicator ends on all ranks within a second of that. Ranks and routers are processes;
 * the devices are host devices.
 */
#include "tests/crew.h"
#include "tests/fake_cuda/routers.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT (256u << 10)
#define ORDER(...) ((struct crew_order){__VA_ARGS__})

static struct crew crew;

static void begin(int ranks, int domains, const char *action)
{
	char number[8];
	snprintf(number, sizeof number, "%d", domains);
	setenv("FERRY_DOMAINS", number, 1);
	setenv("FERRY_ON_TIMEOUT", action, 1);
	routers_open(domains);
	crew_start(&crew, ranks);
	crew_join(&crew);
}

static int finish(void **state)
{
	(void)state;
	for (int member = 0; member < crew.size; member++)
		if (crew.pids[member])
			crew_continue(&crew, member);
	crew_end(&crew);
	routers_close();
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=1", 1);
	return 0;
}

static void stop_router(int domain)
{
	kill(routers_pid(domain), SIGSTOP);
	assert_int_equal(waitpid(routers_pid(domain), NULL, WUNTRACED), routers_pid(domain));
}

/* Of a call with FERRY_TIMEOUT=1: it says these things, among them how long it has waited. */
static void ended_in_time(const struct crew_answer *said, const char *const *words)
{
	bool all = true;
	for (; *words; words++)
		all &= strstr(said->message, *words) != NULL;
	if (said->result != ferryRemoteError || !all)
		fail_msg("%s after %.2f s: \"%s\"", ferryGetErrorString(said->result), said->seconds, said->message);
}

#define ENDED(said, ...) ended_in_time(said, (const char *const[]){__VA_ARGS__, NULL})

static void a_router_that_is_stopped_ends_the_call_by_name(void **state)
{
	struct crew_answer answers[CREW_MOST];
	(void)state;
	begin(4, 2, "fail");
	crew_sums(&crew, COUNT, 2);
	stop_router(1);
	crew_tell(&crew, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1), answers);
	for (int rank = 0; rank < 4; rank++)
		ENDED(&answers[rank], "FERRY_TIMEOUT: ",
		      " has waited 1 s in call 3 (allreduce) for the router of domain 1 to run ", ", slice 1 of ");
	kill(routers_pid(1), SIGCONT);
}

static void a_rank_that_does_not_call_ends_the_call_by_name(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(3, 1, "fail");
	crew_order(&crew, 0, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	crew_order(&crew, 2, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	for (int rank = 0; rank < 3; rank += 2) {
		said = crew_heard(&crew, rank);
		ENDED(&said, " has waited 1 s for rank 1 to reach call 1 (allreduce)");
	}
	crew_order(&crew, 1, ORDER(.kind = CREW_ERROR));
	said = crew_heard(&crew, 1);
	assert_int_equal(said.result, ferryRemoteError);
	assert_non_null(strstr(said.message, "for rank 1 to reach call 1 (allreduce)"));
}

/* A call of 5 s, by its links. */
static void a_rank_that_is_stopped_in_the_middle_ends_the_call_by_name(void **state)
{
	struct crew_answer said;
	char process[32];
	(void)state;
	setenv("FERRY_HOST_LINK", "d2h=0.01,h2d=0.01", 1);
	setenv("FERRY_SLICE", "65536", 1);
	begin(3, 1, "fail");
	unsetenv("FERRY_SLICE");
	for (int rank = 0; rank < 3; rank++)
		crew_order(&crew, rank, ORDER(.kind = CREW_CALL, .count = 12u << 20, .calls = 1, .logged = true));
	said = crew_heard(&crew, 1);
	assert_true(said.middle);
	crew_stop(&crew, 1);
	double start = crew_now();
	snprintf(process, sizeof process, "for rank 1 (process %d)", (int)crew.pids[1]);
	for (int rank = 0; rank < 3; rank += 2) {
		assert_true(crew_heard(&crew, rank).middle);
		said = crew_heard(&crew, rank);
		said.seconds = crew_now() - start;
		ENDED(&said, " in call 1 (allreduce) ", process, " to run ", ", slice ");
	}
	crew_continue(&crew, 1);
	said = crew_heard(&crew, 1);
	assert_int_equal(said.result, ferryRemoteError);
}

static int said_file = -1, kept_stderr = -1;

static void listen_in(void)
{
	char path[] = "/tmp/ferry-timeouts-XXXXXX";
	said_file = mkstemp(path);
	kept_stderr = dup(STDERR_FILENO);
	assert_true(said_file >= 0 && kept_stderr >= 0);
	unlink(path);
	dup2(said_file, STDERR_FILENO);
}

static void listen_no_more(void)
{
	dup2(kept_stderr, STDERR_FILENO);
	close(kept_stderr);
}

static const char *heard(void)
{
	static char text[8192];
	ssize_t length = pread(said_file, text, sizeof text - 1, 0);
	text[length > 0 ? length : 0] = '\0';
	return text;
}

static void by_default_it_is_told_and_the_call_goes_on(void **state)
{
	struct crew_answer said;
	(void)state;
	listen_in();
	begin(2, 1, "report");
	listen_no_more();
	crew_sums(&crew, COUNT, 1);
	stop_router(0);
	for (int rank = 0; rank < 2; rank++)
		crew_order(&crew, rank, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	static const char logged[] = " has waited 1 s in call 2 (allreduce) for the router of domain 0 to run REDUCE, ";
	for (double until = crew_now() + 60; !strstr(heard(), logged);)
		if (crew_now() > until)
			fail_msg("not said: \"%s\"", heard());
	kill(routers_pid(0), SIGCONT);
	for (int rank = 0; rank < 2; rank++) {
		said = crew_heard(&crew, rank);
		assert_true(!said.result && !said.wrong && said.sum == 3);
	}
	close(said_file);
}

/* A router that is asked something, here by rank 0 for a plan that it has not. */
static void a_stopped_router_that_is_to_take_a_plan_ends_the_call_by_name(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(2, 1, "fail");
	stop_router(0);
	crew_order(&crew, 0, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1));
	crew_order(&crew, 1, ORDER(.kind = CREW_ERROR));
	said = crew_heard(&crew, 0);
	ENDED(&said, "FERRY_TIMEOUT: rank 0 has waited 1 s for the router of domain 0 to take a plan");
	said = crew_heard(&crew, 1);
	ENDED(&said, "rank 0: FERRY_TIMEOUT: rank 0 has waited 1 s for the router of domain 0 to take a plan");
	kill(routers_pid(0), SIGCONT);
}

/* More, by half, than a job that waits for a call gives up after. */
static void kill_routers(void)
{
	for (int kills = 0; kills < 96; kills++) {
		struct timespec while_it_serves = {0, 50000000};
		routers_kill(0);
		routers_open(1);
		nanosleep(&while_it_serves, NULL);
	}
}

static void routers_that_die_in_a_row_without_progress_end_the_job(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(2, 1, "report");
	crew_sums(&crew, COUNT, 1);
	crew_order(&crew, 0, ORDER(.kind = CREW_CALL, .count = COUNT, .calls = 1)); /* rank 1 does not call */
	kill_routers();
	said = crew_heard(&crew, 0);
	if (said.result != ferryRemoteError ||
	    !strstr(said.message, "64 routers of domain 0 in a row died without any progress"))
		fail_msg("%s: \"%s\"", ferryGetErrorString(said.result), said.message);
}

static void routers_of_a_job_without_calls_may_die_as_often_as_they_like(void **state)
{
	(void)state;
	begin(2, 1, "report");
	crew_sums(&crew, COUNT, 1);
	kill_routers();
	crew_sums(&crew, COUNT, 1);
}

static void a_split_that_a_rank_does_not_make_ends(void **state)
{
	struct crew_answer said;
	(void)state;
	begin(2, 1, "fail");
	crew_order(&crew, 0, ORDER(.kind = CREW_SPLIT));
	said = crew_heard(&crew, 0);
	ENDED(&said, "FERRY_TIMEOUT: rank 0 has waited 1 s in ferryCommSplit for rank 1 to call it, too (split 1)");
}

#define TEST(name) cmocka_unit_test_teardown(name, finish)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(a_router_that_is_stopped_ends_the_call_by_name),
	        TEST(a_rank_that_does_not_call_ends_the_call_by_name),
	        TEST(a_rank_that_is_stopped_in_the_middle_ends_the_call_by_name),
	        TEST(by_default_it_is_told_and_the_call_goes_on),
	        TEST(a_stopped_router_that_is_to_take_a_plan_ends_the_call_by_name),
	        TEST(a_split_that_a_rank_does_not_make_ends),
	        TEST(routers_that_die_in_a_row_without_progress_end_the_job),
	        TEST(routers_of_a_job_without_calls_may_die_as_often_as_they_like),
	};
	routers_use();
	setenv("FERRY_DEVICE", "host", 1);
	setenv("FERRY_HOST_LINK", "d2h=1,h2d=1", 1);
	setenv("FERRY_TIMEOUT", "1", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
