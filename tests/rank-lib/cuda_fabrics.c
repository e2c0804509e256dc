/* SPDX-License-Identifier: Apache-2.0 */
/* Which fabric carries calls on GPUs: what FERRY_FABRICS and FERRY_SHARES ask for, over the double of the driver. */
#include "tests/fake_cuda/routers.h"
#include "tests/rounds.h"
#include "tests/status_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const int spread[] = {0, 1};

static unsigned long long moved_h2d_by(int domain)
{
	static struct ferry_counters counters;
	char path[128];
	snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domain);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_true(counters.njob_rows > 0);
	return counters.job_rows[0].h2d;
}

static unsigned long long moved_h2d(void)
{
	unsigned long long bytes = 0;
	for (int domain = 0; domain < domains_asked_for(); domain++)
		bytes += moved_h2d_by(domain);
	return bytes;
}

/* Bytes that went from staging to GPUs. */
static unsigned long long through_the_host(const char *fabrics, const char *shares, enum kind kind)
{
	struct gang gang;
	open_with(&gang, 2, spread, fabrics, shares);
	rounds_of(&gang, (struct what){.kind = kind, .bytes = 100000}, 2, -1, false);
	unsigned long long bytes = moved_h2d();
	gang_close(&gang);
	no_misuse(NULL); /* the next one is a router's first job again */
	return bytes;
}

/* Two rounds among two ranks, of 100000 bytes to each. */
static void what_the_fabrics_carry_is_what_was_asked_for(void **state)
{
	(void)state;
	for (int kind = 0; kind < 2; kind++) {
		assert_int_equal(through_the_host("host", NULL, kind ? RING : ALLGATHER), 400000);
		assert_int_equal(through_the_host("peer", NULL, kind ? RING : ALLGATHER), 0);
		assert_int_equal(through_the_host(NULL, NULL, kind ? RING : ALLGATHER), 0);
	}
	assert_int_equal(through_the_host("host,peer", "host=0.25", ALLGATHER), 100000);
	assert_int_equal(through_the_host("host,peer", "nccl:0.6,host:0.1,peer=0.3", ALLGATHER), 100000);
	assert_int_equal(through_the_host(NULL, "peer=0", ALLGATHER), 400000);
	assert_int_equal(through_the_host(NULL, "host=0", ALLGATHER), 0);
}

/* By the file of limits copies between GPUs go astray: neither collectives nor messages are pushed. */
static void what_limits_have_found_astray_is_not_pushed(void **state)
{
	static const char limits[] = "{\"windows\": [], \"gpus\": [], \"about\": {\"astray\": true}}";
	char name[] = "/tmp/ferry-astray-XXXXXX";
	int file = mkstemp(name);
	(void)state;
	assert_true(file >= 0 && write(file, limits, sizeof limits - 1) == sizeof limits - 1);
	close(file);
	setenv("FERRY_LIMITS", name, 1);
	for (int kind = 0; kind < 2; kind++)
		assert_int_equal(through_the_host(NULL, NULL, kind ? RING : ALLGATHER), 400000);
	unsetenv("FERRY_LIMITS");
	unlink(name);
}

static void refused_at_start(const char *name, const char *value, const char *flags)
{
	ferryComm_t comms[2];
	setenv(name, value, 1);
	domains_open(1);
	REFUSED(ferryInvalidArgument, flags, ferryCommInitAll(comms, 2, spread));
	domains_close();
	unsetenv(name);
}

static void nonsense_is_refused_with_what_was_expected(void **state)
{
	(void)state;
	refused_at_start("FERRY_FABRICS", "peers", "at \"peers\"");
	refused_at_start("FERRY_FABRICS", "host,", "FERRY_FABRICS=host,");
	refused_at_start("FERRY_FABRICS", "host,host", "at \"host\"");
	refused_at_start("FERRY_FABRICS", "peer host", "at \"peer host\"");
	refused_at_start("FERRY_SHARES", "host", "at \"host\"");
	refused_at_start("FERRY_SHARES", "host=", "at \"host=\"");
	refused_at_start("FERRY_SHARES", "host=1.5", "at \"host=1.5\"");
	refused_at_start("FERRY_SHARES", "host=-0.1", "from 0 to 1");
	refused_at_start("FERRY_SHARES", "host=nan", "from 0 to 1");
	refused_at_start("FERRY_SHARES", "host=0.2,peer=0.2", "they sum to 0.4");
	refused_at_start("FERRY_SHARES", "peer=0.2,peer=0.8", "at \"peer=0.8\"");
	refused_at_start("FERRY_SHARES", "gpu=0.2", "at \"gpu=0.2\"");
	refused_at_start("FERRY_SHARES", "host=0.2 ", "at \"host=0.2 \"");
	refused_at_start("FERRY_SHARES", "host:0.2,peer=0.2", "they sum to 0.4");
	refused_at_start("FERRY_SHARES", "nccl:0.9,host:0.2", "they sum to 1.1");
}

static void contradictions_are_refused_with_both_sides(void **state)
{
	static const char *const both[][3] = {
	        {"peer", "host=1", "FERRY_FABRICS=peer leaves host out, FERRY_SHARES=host=1 gives it 1 of each call"},
	        {"peer", "host=0.25", "gives it 0.25"},
	        {"host", "peer=0.5", "FERRY_FABRICS=host leaves peer out"},
	        {"host", "host=0.7,peer=0.3", "gives it 0.3"}};
	(void)state;
	for (int i = 0; i < 4; i++) {
		setenv("FERRY_SHARES", both[i][1], 1);
		refused_at_start("FERRY_FABRICS", both[i][0], both[i][2]);
		unsetenv("FERRY_SHARES");
	}
	assert_int_equal(through_the_host("peer", "host=0", ALLGATHER), 0);
	assert_int_equal(through_the_host("host", "host=1", ALLGATHER), 400000);
	assert_int_equal(through_the_host("host", "host=0.5", ALLGATHER), 400000); /* the rest might be NCCL's */
}

/* Every call says so, not the first alone: none of them takes the host in secret. */
static void peers_that_there_are_not_are_missed_at_every_call(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 1000, .nranks = 2};
	(void)state;
	setenv("FAKE_CUDA_PEERS", "0", 1);
	open_with(&gang, 2, spread, "peer", NULL);
	unsetenv("FAKE_CUDA_PEERS");
	ranks_open(ranks, &what, &gang, false);
	for (int attempt = 0; attempt < 3; attempt++)
		for (int rank = 0; rank < 2; rank++)
			REFUSED(ferryInvalidUsage, "FERRY_FABRICS=peer",
			        ferryAllGather(ranks[rank].send, ranks[rank].receive, what.bytes + (size_t)attempt / 2,
			                       ferryUint8, gang.comms[rank], (ferryStream_t)ranks[rank].stream));
	gang_close(&gang);
	ranks_close(ranks, &gang);
}

/* ---- links between some ---- */

/* A path, two pairs and a ring of four GPUs: all is right, whatever fabrics are named. */
static void links_between_some_gpus_are_used_and_the_host_for_the_rest(void **state)
{
	static const char *const links[] = {"0-1,1-2,2-3", "0-1,2-3", "0-1,1-2,2-3,3-0"};
	static const int four[] = {0, 1, 2, 3};
	(void)state;
	for (int i = 0; i < 3; i++) {
		setenv("FAKE_CUDA_PEERS", links[i], 1);
		for (int named = 0; named < 2; named++) {
			struct gang gang;
			open_with(&gang, 4, four, named ? "peer" : NULL, NULL);
			all_kinds(&gang, 100000, 0, false);
			gang_close(&gang);
			no_misuse(NULL);
		}
	}
	unsetenv("FAKE_CUDA_PEERS");
}

/* Whose lengths its ranks alone know. */
static void an_alltoallv_is_pushed_where_there_are_links(void **state)
{
	(void)state;
	assert_int_equal(through_the_host("peer", NULL, UNEVEN), 0);
	assert_int_equal(through_the_host(NULL, NULL, UNEVEN), 0);
	assert_true(through_the_host("host", NULL, UNEVEN) > 0);
	assert_true(through_the_host("host,peer", "host=1", UNEVEN) > 0);
}

/* Bytes through the host of two AllGathers of 100000 bytes by peers alone: once to each island from each outside. */
static void all_that_links_lead_to_is_pushed(void **state)
{
	static const struct {
		const char *links;
		unsigned long long bytes;
	} cases[] = {{"0-1,1-2,2-3", 0}, {"0-1,1-2,2-3,3-0", 0}, {"0-1,2-3", 2 * 4 * 100000}};
	static const int four[] = {0, 1, 2, 3};
	(void)state;
	for (int i = 0; i < 3; i++) {
		struct gang gang;
		setenv("FAKE_CUDA_PEERS", cases[i].links, 1);
		open_with(&gang, 4, four, "peer", NULL);
		rounds_of(&gang, (struct what){.kind = ALLGATHER, .bytes = 100000}, 2, -1, false);
		unsigned long long bytes = moved_h2d();
		gang_close(&gang);
		no_misuse(NULL);
		if (bytes != cases[i].bytes)
			fail_msg("%s: %llu bytes through the host, not %llu", cases[i].links, bytes, cases[i].bytes);
	}
	unsetenv("FAKE_CUDA_PEERS");
}

/* By the host where no GPU reaches another, but not where peers alone are named. */
static void gpus_without_links_go_by_the_host(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 1000, .nranks = 2};
	(void)state;
	setenv("FAKE_CUDA_PEERS", "2-3", 1);
	assert_int_equal(through_the_host(NULL, NULL, ALLGATHER), 400000);
	assert_int_equal(through_the_host("host,peer", NULL, ALLGATHER), 400000);
	open_with(&gang, 2, spread, "peer", NULL);
	ranks_open(ranks, &what, &gang, false);
	for (int rank = 0; rank < 2; rank++)
		REFUSED(ferryInvalidUsage, "no rank's device reaches another's memory",
		        ferryAllGather(ranks[rank].send, ranks[rank].receive, what.bytes, ferryUint8, gang.comms[rank],
		                       (ferryStream_t)ranks[rank].stream));
	gang_close(&gang);
	ranks_close(ranks, &gang);
	unsetenv("FAKE_CUDA_PEERS");
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(what_the_fabrics_carry_is_what_was_asked_for),
	        TEST(what_limits_have_found_astray_is_not_pushed),
	        TEST(nonsense_is_refused_with_what_was_expected),
	        TEST(contradictions_are_refused_with_both_sides),
	        TEST(peers_that_there_are_not_are_missed_at_every_call),
	        TEST(links_between_some_gpus_are_used_and_the_host_for_the_rest),
	        TEST(an_alltoallv_is_pushed_where_there_are_links),
	        TEST(all_that_links_lead_to_is_pushed),
	        TEST(gpus_without_links_go_by_the_host),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
