/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs over memory of the ranks' GPUs, where links lead between some GPUs alone, over the double of the driver:
 * relays of an AllToAllv. Every byte arrives, none goes by the host where links connect the ranks, and a router that
 * dies changes nothing.
 */
#include "tests/fake_cuda/routers.h"
#include "tests/rounds.h"
#include "tests/status_line.h"

#include "rank-lib/call/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB   (1u << 20)
#define LINE  "0-1,1-2,2-3"
#define ROUND "0-1,1-2,2-3,3-0"
#define STAR  "0-1,0-2,0-3"
#define CUBES "0-1,0-2,0-3,0-4,1-2,1-3,1-5,2-3,2-6,3-7,4-5,4-6,4-7,5-6,5-7,6-7"

static const int devices[MOST_PLACES] = {0, 1, 2, 3, 4, 5, 6, 7};

static void machine_open(struct gang *gang, int nranks, const char *links, const char *fabrics)
{
	if (links)
		setenv("FAKE_CUDA_PEERS", links, 1);
	open_with(gang, nranks, devices, fabrics, NULL);
	unsetenv("FAKE_CUDA_PEERS");
}

static void machine_close(struct gang *gang)
{
	gang_close(gang);
	no_misuse(NULL); /* the next one is a router's first job again */
}

/* Of this router's ranks: pushed, and from staging to GPUs. */
static void count_bytes(uint64_t *pushed, uint64_t *down)
{
	*pushed = *down = 0;
	for (int domain = 0; domain < domains_asked_for(); domain++) {
		static struct ferry_counters counters;
		char path[128];
		snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domain);
		assert_int_equal(counters_take(path, &counters), ferrySuccess);
		*down += counters.job_rows[0].h2d;
		for (uint32_t i = 0; i < counters.nlink_rows; i++)
			*pushed += counters.link_rows[i].bytes;
	}
}

/* Whether the rank has its windows in memory of its GPU. */
static bool has_memory(ferryComm_t comm)
{
	bool any = false;
	for (const struct ferry_bounce_buffer *bounce = comm->mapped.bounces.all; bounce; bounce = bounce->next)
		any |= bounce->bytes == FERRY_PARITIES * comm->plans.options.memory;
	return any;
}

/* ---- relays ---- */

static void relays_bring_what_no_link_leads_to(void **state)
{
	static const struct {
		const char *links;
		int nranks;
	} cases[] = {{ROUND, 4}, {STAR, 4}, {LINE, 4}, {CUBES, 8}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t pushed, down;
		struct gang gang;
		machine_open(&gang, cases[i].nranks, cases[i].links, "peer");
		rounds_of(&gang, (struct what){.kind = UNEVEN, .bytes = 100000}, 3, 1, false);
		count_bytes(&pushed, &down);
		for (int rank = 0; rank < cases[i].nranks; rank++)
			assert_true(has_memory(gang.comms[rank]));
		machine_close(&gang);
		if (down || !pushed)
			fail_msg("%s: %llu bytes by the host, %llu pushed", cases[i].links, (unsigned long long)down,
			         (unsigned long long)pushed);
	}
}

/* In several parts, by several paths; and beside the same by other calls. */
static void every_kind_is_right_on_every_machine(void **state)
{
	static const struct {
		const char *links;
		int nranks;
	} cases[] = {{ROUND, 4}, {STAR, 4}, {"0-1,2-3", 4}, {NULL, 4}, {NULL, 8}, {CUBES, 8}};
	(void)state;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct gang gang;
		machine_open(&gang, cases[i].nranks, cases[i].links, i % 2 ? "peer" : NULL);
		rounds_of(&gang, (struct what){.kind = UNEVEN, .bytes = 3 * MIB + 5}, 2, -1, false);
		all_kinds(&gang, 70001, 3, false);
		machine_close(&gang);
	}
}

static void where_all_links_are_alike_there_are_none(void **state)
{
	struct gang gang;
	(void)state;
	setenv("FAKE_CUDA_NVLINKS", "1", 1);
	machine_open(&gang, 4, NULL, "peer");
	rounds_of(&gang, (struct what){.kind = UNEVEN, .bytes = 3 * MIB}, 2, -1, false);
	assert_false(has_memory(gang.comms[0]));
	machine_close(&gang);
	unsetenv("FAKE_CUDA_NVLINKS");
}

/* ---- users' programs ---- */

static const char by_relay[] = "program broadcast ranks 4 domains 1 chunks 1 root 0\n"
                               "rank 0\nPUT gpu[0] -> mem@3[0]\n"
                               "rank 3\nPUT mem@3[0] -> gpu[0] deps: mem@3[0]>=1\n"
                               "PUT mem@3[0] -> mem@1[0] deps: mem@3[0]>=1\n"
                               "PUT mem@3[0] -> gpu@2[0] deps: mem@3[0]>=1\n"
                               "rank 1\nPUT mem@1[0] -> gpu[0] deps: mem@1[0]>=1\n";

/* Of two streams by turns, so that one's call is under way beside the other's: GPU n takes n + 1 ms for a push. */
static void two_calls_under_way_have_memory_of_their_own(void **state)
{
	struct gang gang;
	struct rank ranks[2][MOST_PLACES];
	struct what what = {.kind = BROADCAST, .bytes = 30000, .nranks = 4};
	(void)state;
	if (domains_asked_for() > 1)
		skip();
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	machine_open(&gang, 4, "0-3,1-3,2-3", NULL);
	for (int stream = 0; stream < 2; stream++)
		ranks_open(ranks[stream], &what, &gang, false);
	for (int round = 0; round < 12; round++)
		for (int rank = 0; rank < 4; rank++) {
			struct rank *mine = &ranks[round % 2][rank];
			place_enter(&(struct place){.device = mine->device});
			CU(fake_cuda_launch(mine->stream, fill, mine));
			OK(ferryRunProgram(by_relay, mine->send, mine->receive, what.bytes, ferryUint8, ferrySum,
			                   gang.comms[rank], (ferryStream_t)mine->stream));
			CU(fake_cuda_launch(mine->stream, judge, mine));
		}
	for (int stream = 0; stream < 2; stream++)
		settle(ranks[stream], &gang, 6);
	for (int stream = 0; stream < 2; stream++)
		ranks_close(ranks[stream], &gang);
	machine_close(&gang);
	unsetenv("FAKE_CUDA_PUSH_MS");
}

/* ---- routers die ---- */

static void a_router_that_dies_changes_nothing(struct what what, const char *links, int nranks)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	uint32_t rounds = 0;
	machine_open(&gang, nranks, links, "peer");
	what.nranks = nranks;
	ranks_open(ranks, &what, &gang, false);
	for (int death = 0; death < REPEATS(5, 2); death++) {
		for (int round = 0; round < 6; round++, rounds++)
			round_of(ranks, &gang);
		doze(3 * death);
		routers_kill(0);
		routers_open_again(0);
		settle(ranks, &gang, rounds);
	}
	ranks_close(ranks, &gang);
	machine_close(&gang);
}

static void relays_go_on_when_a_router_dies(void **state)
{
	(void)state;
	setenv("FAKE_CUDA_PUSH_MS", "1", 1); /* deaths come in the middle of pushes */
	a_router_that_dies_changes_nothing((struct what){.kind = UNEVEN, .bytes = 300001}, ROUND, 4);
	a_router_that_dies_changes_nothing((struct what){.kind = UNEVEN, .bytes = 3 * MIB}, NULL, 4);
	unsetenv("FAKE_CUDA_PUSH_MS");
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(relays_bring_what_no_link_leads_to),
	        TEST(every_kind_is_right_on_every_machine),
	        TEST(where_all_links_are_alike_there_are_none),
	        TEST(two_calls_under_way_have_memory_of_their_own),
	        TEST(relays_go_on_when_a_router_dies),
	};
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setenv("FAKE_CUDA_DEVICES", "8", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
