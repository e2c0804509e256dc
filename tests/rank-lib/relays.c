/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Programs over memory of the ranks' GPUs, where links lead between some GPUs alone, over the double of the driver:
 * relays of an AllToAllv, and sums up trees. All is right, nothing goes by the host where links connect the ranks, and
 * a router that dies changes nothing. Short kernels carry 8 KiB at most (tests/CMakeLists.txt).
 */
#include "tests/fake_cuda/device_buffers.h"
#include "tests/fake_cuda/rank_process.h"
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

/* Bytes that routers have pushed and brought down to GPUs, and the time of their workers. */
static void count_bytes(uint64_t *pushed, uint64_t *down, uint64_t *working_ns)
{
	*pushed = *down = *working_ns = 0;
	for (int domain = 0; domain < domains_asked_for(); domain++) {
		static struct ferry_counters counters;
		char path[128];
		snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domain);
		assert_int_equal(counters_take(path, &counters), ferrySuccess);
		for (uint32_t i = 0; i < counters.njob_rows; i++) {
			*down += counters.job_rows[i].h2d;
			*working_ns += counters.job_rows[i].working_ns;
		}
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
		uint64_t pushed, down, working;
		struct gang gang;
		machine_open(&gang, cases[i].nranks, cases[i].links, "peer");
		rounds_of(&gang, (struct what){.kind = UNEVEN, .bytes = 100000}, 3, 1, false);
		count_bytes(&pushed, &down, &working);
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
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i += REPEATS(1, 3)) {
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

/* All GPUs reach each other, by the driver's word. */
static void pairs_that_are_left_out_do_not_push(void **state)
{
	static struct ferry_counters counters;
	struct gang gang;
	char path[128];
	(void)state;
	if (domains_asked_for() > 1)
		skip();
	setenv("FAKE_CUDA_NVLINKS", "1", 1);
	setenv("FERRY_PEERS", ROUND, 1);
	machine_open(&gang, 4, NULL, "peer");
	unsetenv("FAKE_CUDA_NVLINKS");
	unsetenv("FERRY_PEERS");
	all_kinds(&gang, 70001, 0, false);
	assert_true(has_memory(gang.comms[0]));
	snprintf(path, sizeof path, "%s/router-0.sock", getenv("FERRY_SOCKET_DIR"));
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_true(counters.nlink_rows > 0);
	for (uint32_t i = 0; i < counters.nlink_rows; i++)
		assert_int_not_equal((counters.link_rows[i].number >> 8 ^ counters.link_rows[i].number) & 3, 2);
	machine_close(&gang);
}

static void nonsense_about_pairs_is_refused(void **state)
{
	static const char *const texts[] = {"0", "0-", "0-1,", "0-64", "0-1;2-3", "-1-2"};
	ferryComm_t comms[2];
	(void)state;
	domains_open(1);
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		setenv("FERRY_PEERS", texts[i], 1);
		REFUSED(ferryInvalidArgument, "FERRY_PEERS=", ferryCommInitAll(comms, 2, devices));
	}
	unsetenv("FERRY_PEERS");
	domains_close();
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

/* ---- sums ---- */

/* Kernels of the ranks add up in their memory; alone: no router does. */
static void sum_is_right(const struct gang *gang, struct ferry_trial trial, bool alone)
{
	struct device_buffers buffers[MOST_PLACES];
	uint64_t pushed, down, before, working;
	size_t wrong = 0;
	trial.nranks = gang->nranks;
	trial.ndomains = 1;
	trial.partly = true;
	assert_true(ferry_trial_open(&trial));
	count_bytes(&pushed, &down, &before);
	for (int rank = 0; rank < gang->nranks; rank++)
		device_buffers_open(&trial, rank, gang->devices[rank], 3, &buffers[rank]);
	for (int rank = 0; rank < gang->nranks; rank++) {
		place_enter(&(struct place){.device = gang->devices[rank]});
		OK(ferry_trial_start(&trial, rank, buffers[rank].send, buffers[rank].receive, trial.op,
		                     gang->comms[rank], (ferryStream_t)buffers[rank].stream));
	}
	for (int rank = 0; rank < gang->nranks; rank++)
		wrong += device_buffers_close(&trial, rank, gang->devices[rank], &buffers[rank]);
	count_bytes(&pushed, &down, &working);
	if (wrong || (alone && working != before))
		fail_msg("%s: %zu wrong, routers have added for %llu ns", trial_text(&trial), wrong,
		         (unsigned long long)(working - before));
	ferry_trial_close(&trial);
}

static const enum ferry_collective sums[] = {FERRY_ALLREDUCE, FERRY_REDUCESCATTER, FERRY_REDUCE_TO_ROOT};

static void sums_of_types_and_operations_are_right(const char *links, int nranks, int step, bool alone)
{
	struct gang gang;
	int turn = 0;
	machine_open(&gang, nranks, links, "peer");
	for (int type = 0; type < ferryNumTypes; type += REPEATS(step, 5))
		for (int i = 0; i < 3; i++, turn++) {
			struct ferry_trial trial = {.collective = sums[i],
			                            .type = (ferryDataType_t)type,
			                            .op = (ferryRedOp_t)(turn % ferryNumOps),
			                            .count = turn % 4 ? 20011 : 70000,
			                            .root = turn % nranks,
			                            .in_place = turn % 2,
			                            .seed = 1 + (uint64_t)turn};
			sum_is_right(&gang, trial, alone);
		}
	assert_int_equal(alone, alone && has_memory(gang.comms[0]));
	machine_close(&gang);
}

static void sums_go_up_trees_over_the_links_that_there_are(void **state)
{
	(void)state;
	sums_of_types_and_operations_are_right(ROUND, 4, 1, true);
	sums_of_types_and_operations_are_right(STAR, 4, 3, true);
	sums_of_types_and_operations_are_right(LINE, 4, 4, true);
	sums_of_types_and_operations_are_right(CUBES, 8, 5, true);
}

/* Two islands, and pairs of GPUs with faster links in each. */
static void sums_are_right_where_trees_do_not_carry_them_all(void **state)
{
	(void)state;
	sums_of_types_and_operations_are_right("0-1,2-3", 4, 4, false);
	sums_of_types_and_operations_are_right(NULL, 4, 3, false);
}

/* A pair of GPUs with a faster link, and one alone, to which all pairs take longest: kernels add up for the others. */
static void a_reduce_goes_up_trees_to_some_roots(void **state)
{
	struct gang gang;
	(void)state;
	machine_open(&gang, 3, NULL, NULL);
	for (int rank = 0; rank < 3; rank++)
		assert_int_equal(gang.comms[rank]->fabrics.adds[FERRY_REDUCE_TO_ROOT], 1u << 2);
	for (int root = 0; root < 3; root++)
		sum_is_right(&gang,
		             (struct ferry_trial){.collective = FERRY_REDUCE_TO_ROOT,
		                                  .type = ferryFloat32,
		                                  .count = 5u * MIB / 4,
		                                  .root = root,
		                                  .seed = 1},
		             true);
	for (int rank = 0; rank < 3; rank++)
		assert_true(has_memory(gang.comms[rank]));
	machine_close(&gang);
}

/* FERRY_SHARES names what the host carries; sums are not divided, so it has them all. */
static void a_share_of_the_host_keeps_sums_there(void **state)
{
	(void)state;
	setenv("FAKE_CUDA_NVLINKS", "1", 1);
	for (int pinned = 0; pinned < 2; pinned++) {
		uint64_t pushed, down, before, working;
		struct gang gang;
		if (pinned)
			setenv("FERRY_SHARES", "host=0.5,peer=0.5", 1);
		machine_open(&gang, 4, ROUND, NULL);
		unsetenv("FERRY_SHARES");
		count_bytes(&pushed, &down, &before);
		sum_is_right(&gang,
		             (struct ferry_trial){.collective = FERRY_ALLREDUCE, .type = ferryFloat32,
		                                  .count = (5u * MIB) / 4, .seed = 1},
		             !pinned);
		count_bytes(&pushed, &down, &working);
		assert_int_equal(working > before, pinned);
		machine_close(&gang);
	}
	unsetenv("FAKE_CUDA_NVLINKS");
}

/* What kernels of calls would carry, and calls of several slices by turns in two streams. */
static void sums_of_all_sizes_follow_each_other(void **state)
{
	struct gang gang;
	(void)state;
	setenv("FERRY_SLICE", "4096", 1);
	machine_open(&gang, 4, ROUND, "peer");
	unsetenv("FERRY_SLICE");
	for (int i = 0; i < REPEATS(30, 8); i++)
		sum_is_right(&gang,
		             (struct ferry_trial){.collective = sums[i % 3],
		                                  .type = ferryFloat32,
		                                  .count = 1 + (size_t)(i * 7919) % 60000,
		                                  .root = i % 4,
		                                  .seed = 1 + (uint64_t)i},
		             false);
	machine_close(&gang);
}

/* ---- room on the GPUs ---- */

#define STREAMS 7

static void wait_for_gate(void *gate)
{
	while (!atomic_load((_Atomic int *)gate))
		doze(1);
}

/*
 * Behind a kernel of the program's that is late in the first stream, which all others' calls wait for: only one of
 * these may have its kernel there, as the first call's parity is not free.
 */
static void kernels_that_add_wait_for_the_last_but_one(void **state)
{
	static struct device_buffers buffers[STREAMS][4];
	static _Atomic int gate;
	struct ferry_trial trials[STREAMS];
	struct gang gang;
	size_t wrong = 0;
	(void)state;
	machine_open(&gang, 4, ROUND, "peer");
	atomic_store(&gate, 0);
	(void)fake_cuda_most_adds();
	for (int stream = 0; stream < STREAMS; stream++) {
		trials[stream] = (struct ferry_trial){.collective = FERRY_ALLREDUCE,
		                                      .type = ferryFloat32,
		                                      .count = 20011,
		                                      .nranks = 4,
		                                      .ndomains = 1,
		                                      .partly = true,
		                                      .seed = 1 + (uint64_t)stream};
		assert_true(ferry_trial_open(&trials[stream]));
		for (int rank = 0; rank < 4; rank++)
			device_buffers_open(&trials[stream], rank, rank, 3, &buffers[stream][rank]);
	}
	for (int stream = 0; stream < STREAMS; stream++)
		for (int rank = 0; rank < 4; rank++) {
			struct device_buffers *mine = &buffers[stream][rank];
			place_enter(&(struct place){.device = rank});
			if (!stream)
				CU(fake_cuda_launch((CUstream)mine->stream, wait_for_gate, &gate));
			OK(ferry_trial_start(&trials[stream], rank, mine->send, mine->receive, ferrySum,
			                     gang.comms[rank], (ferryStream_t)mine->stream));
		}
	doze(50);
	assert_int_equal(fake_cuda_most_adds(), 1);
	atomic_store(&gate, 1);
	for (int stream = 0; stream < STREAMS; stream++) {
		for (int rank = 0; rank < 4; rank++)
			wrong += device_buffers_close(&trials[stream], rank, rank, &buffers[stream][rank]);
		ferry_trial_close(&trials[stream]);
	}
	assert_int_equal(wrong, 0);
	assert_in_range(fake_cuda_most_adds(), 1, FERRY_PARITIES);
	machine_close(&gang);
}

/* Of a GPU's 132 multiprocessors 112 may have blocks that add: 96 of three communicators. */
static void communicators_without_room_have_their_sums_elsewhere(void **state)
{
	const struct ferry_trial trial = {
	        .collective = FERRY_ALLREDUCE, .type = ferryFloat32, .count = 20011, .seed = 1};
	struct gang gangs[4];
	(void)state;
	setenv("FERRY_KERNELS", "16", 1);
	for (int i = 0; i < 4; i++)
		machine_open(&gangs[i], 4, ROUND, "peer");
	for (int again = 0; again < 2; again++) {
		for (int i = 0; i < 4; i++)
			for (int rank = 0; rank < 4; rank++)
				assert_int_equal(gangs[i].comms[rank]->fabrics.adds[FERRY_ALLREDUCE] & 1, i < 3);
		sum_is_right(&gangs[2], trial, true);
		sum_is_right(&gangs[3], trial, false);
		gang_close(&gangs[3]);
		gang_close(&gangs[0]);
		machine_open(&gangs[0], 4, ROUND, "peer");
		machine_open(&gangs[3], 4, ROUND, "peer");
	}
	for (int i = 3; i > 0; i--)
		gang_close(&gangs[i]);
	setenv("FERRY_KERNELS", "2", 1);
	machine_close(&gangs[0]);
}

/* ---- tenants ---- */

/* What the tenant's windows may take in the last domain, and what its last job has on the GPUs there. */
static uint64_t count_windows(uint64_t *on_gpus)
{
	static struct ferry_counters counters;
	char path[128];
	snprintf(path, sizeof path, "%s/router-%d.sock", getenv("FERRY_SOCKET_DIR"), domains_asked_for() - 1);
	assert_int_equal(counters_take(path, &counters), ferrySuccess);
	assert_int_equal(counters.ntenant_rows, 1);
	*on_gpus = counters.job_rows[counters.njob_rows - 1].on_gpus;
	return counters.tenant_rows[0].windows;
}

static void sums_and_uneven_calls_are_right(const struct gang *gang, bool windows)
{
	uint64_t pushed, down, before, working;
	struct ferry_trial trial = {.collective = FERRY_ALLREDUCE, .type = ferryFloat32,
	                            .count = 5u * MIB / 4, .seed = 1};
	count_bytes(&pushed, &down, &before);
	sum_is_right(gang, trial, windows);
	count_bytes(&pushed, &down, &working);
	assert_int_equal(working == before, windows);
	rounds_of(gang, (struct what){.kind = UNEVEN, .bytes = 100000}, 2, 1, false);
	for (int rank = 0; rank < gang->nranks; rank++)
		assert_int_equal(has_memory(gang->comms[rank]), windows);
}

/* The tenant of the last domain's router has room for the windows of one communicator. */
static void without_windows_all_ranks_take_other_ways(void **state)
{
	const int last = domains_asked_for() - 1;
	const uint64_t windows = 4u / (unsigned)domains_asked_for() * 2 * FERRY_RANK_WINDOWS;
	uint64_t on_gpus;
	struct gang first, second;
	(void)state;
	routers_limit(last, last ? "windows = 256M" : "windows = 512M");
	setenv("FAKE_CUDA_NVLINKS", "1", 1);
	machine_open(&first, 4, ROUND, NULL);
	machine_open(&second, 4, ROUND, NULL);
	assert_int_equal(count_windows(&on_gpus), windows);
	sums_and_uneven_calls_are_right(&first, true);
	sums_and_uneven_calls_are_right(&second, false);
	assert_int_equal(count_windows(&on_gpus), windows);
	assert_true(on_gpus < windows);
	for (int rank = 0; rank < 4 && !last; rank++) {
		place_enter(&(struct place){.device = rank});
		REFUSED(ferryProgramError, "536870912 bytes in domain 0, where the job's tenant has 0 left",
		        ferryRunProgram(by_relay, NULL, NULL, 0, ferryUint8, ferrySum, second.comms[rank], NULL));
	}
	gang_close(&second);
	routers_kill(last);
	routers_open_again(last);
	sums_and_uneven_calls_are_right(&first, true);
	assert_int_equal(count_windows(&on_gpus), windows);
	assert_true(on_gpus >= windows);
	machine_close(&first);
	routers_limit(last, "");
	unsetenv("FAKE_CUDA_NVLINKS");
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

#define FLOATS 60001

/* Floats of which sums depend on the order. */
static void fill_floats(void *argument)
{
	struct rank *mine = argument;
	unsigned char *floats = seen(mine->send); /* at any address */
	for (uint32_t i = 0; i < FLOATS; i++) {
		float value = (float)((i * 2654435761u ^ (uint32_t)mine->rank * 40503u) % 1000003) * 1e-3f;
		memcpy(floats + i * sizeof value, &value, sizeof value);
	}
}

/* The bits of the first round; `judged` counts rounds with others. */
static void keep_or_compare(void *argument)
{
	static unsigned char bits[MOST_PLACES][4 * FLOATS];
	struct rank *mine = argument;
	const unsigned char *got = seen(mine->receive);
	if (!mine->judged++)
		memcpy(bits[mine->rank], got, sizeof bits[0]);
	mine->wrong += memcmp(bits[mine->rank], got, sizeof bits[0]) != 0;
}

static void sums_have_the_same_bits_when_routers_die(void **state)
{
	struct gang gang;
	struct rank ranks[MOST_PLACES];
	struct what what = {.kind = ALLGATHER, .bytes = 4 * FLOATS, .nranks = 4};
	uint32_t rounds = 0;
	(void)state;
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	setenv("FERRY_SLICE", "16384", 1);
	machine_open(&gang, 4, ROUND, "peer");
	unsetenv("FERRY_SLICE");
	ranks_open(ranks, &what, &gang, false);
	for (int death = 0; death < REPEATS(6, 2); death++) {
		for (int round = 0; round < 4; round++, rounds++)
			for (int rank = 0; rank < 4; rank++) {
				ferryStream_t stream = (ferryStream_t)ranks[rank].stream;
				place_enter(&(struct place){.device = ranks[rank].device});
				CU(fake_cuda_launch(ranks[rank].stream, fill_floats, &ranks[rank]));
				OK(ferryAllReduce(ranks[rank].send, ranks[rank].receive, FLOATS, ferryFloat32,
				                  ferrySum, gang.comms[rank], stream));
				CU(fake_cuda_launch(ranks[rank].stream, keep_or_compare, &ranks[rank]));
			}
		doze(5 + 7 * death);
		for (int domain = 0; domain < domains_asked_for(); domain++) {
			routers_kill(domain);
			routers_open_again(domain);
		}
		settle(ranks, &gang, rounds);
	}
	ranks_close(ranks, &gang);
	machine_close(&gang);
	unsetenv("FAKE_CUDA_PUSH_MS");
}

/* ---- ranks that go ---- */

/* One gives up while the others' kernels wait for what it sends. */
static void kernels_that_add_end_when_a_rank_gives_up(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	(void)state;
	machine_open(&gang, 4, ROUND, "peer");
	places_open(places, &gang, FLOATS);
	for (int rank = 0; rank < 3; rank++) {
		place_enter(&places[rank]);
		OK(ferryAllReduce(pointer_of(places[rank].input), pointer_of(places[rank].output), FLOATS, ferryUint32,
		                  ferrySum, gang.comms[rank], (ferryStream_t)places[rank].stream));
	}
	doze(20);
	OK(ferryCommAbort(gang.comms[3]));
	for (int rank = 0; rank < 3; rank++) {
		ferryResult_t error = ferrySuccess;
		place_enter(&places[rank]);
		CU(cuStreamSynchronize(places[rank].stream));
		for (int waited = 0; !error && waited < 60000; waited++) {
			OK(ferryCommGetAsyncError(gang.comms[rank], &error));
			doze(1);
		}
		assert_int_equal(error, ferryRemoteError);
		OK(ferryCommAbort(gang.comms[rank]));
	}
	domains_close();
	places_close(places, &gang);
}

/* Processes, of which each has kernels for its sums. */
static void processes_start(struct rank_process *ranks)
{
	setenv("FERRY_FABRICS", "peer", 1);
	setenv("FAKE_CUDA_PEERS", ROUND, 1);
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	domains_open(domains_asked_for());
	for (int rank = 0; rank < 4; rank++)
		ranks[rank] = rank_start(NULL);
	unsetenv("FERRY_FABRICS");
	unsetenv("FAKE_CUDA_PEERS");
	unsetenv("FAKE_CUDA_PUSH_MS");
	ranks_join(ranks, 4, devices, FLOATS);
	ranks_round(ranks, 4, 1, 1);
}

/* Rank 3 is gone: the calls that the others are in end and name it. */
static void others_end(struct rank_process ranks[4])
{
	for (int rank = 0; rank < 3; rank++)
		(void)rank_heard(&ranks[rank]);
	for (int rank = 0; rank < 3; rank++)
		rank_released(&ranks[rank], "rank 3");
	for (int rank = 0; rank < 3; rank++) {
		rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
		rank_finish(&ranks[rank]);
	}
	domains_close();
}

static void survivors_streams_go_on_when_a_rank_dies(void **state)
{
	(void)state;
	for (int after = 0; after < REPEATS(3, 1); after++) {
		struct rank_process ranks[4];
		processes_start(ranks);
		for (int rank = 0; rank < 4; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 20});
		doze(5 + 10 * after);
		rank_kill(&ranks[3]);
		others_end(ranks);
	}
}

/* It may have no part in calls that are over, and the others' next call tells them. */
static void a_rank_leaves_when_its_calls_are_over(void **state)
{
	struct rank_process ranks[4];
	(void)state;
	processes_start(ranks);
	ranks_round(ranks, 4, 3, 4);
	rank_tell(&ranks[3], (struct rank_ordered){.order = RANK_DESTROY});
	rank_finish(&ranks[3]);
	for (int rank = 0; rank < 3; rank++)
		rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1});
	others_end(ranks);
}

/* Sums of a graph, and all behind it, are the routers'. */
static void captured_sums_go_by_the_host(void **state)
{
	struct rank_process ranks[4];
	struct rank_answer answers[4];
	(void)state;
	processes_start(ranks);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_CAPTURE, .number = 2}, NULL);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_REPLAY, .number = 2}, NULL);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_ROUNDS, .number = 3}, NULL);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000}, answers);
	for (int rank = 0; rank < 4; rank++)
		if (!answers[rank].settled || answers[rank].wrong || answers[rank].round != 6)
			fail_msg("rank %d: %zu wrong in %u rounds: %s", rank, answers[rank].wrong, answers[rank].round,
			         answers[rank].message);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_FORGET}, NULL);
	ranks_tell(ranks, 4, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
	for (int rank = 0; rank < 4; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(relays_bring_what_no_link_leads_to),
	        TEST(every_kind_is_right_on_every_machine),
	        TEST(where_all_links_are_alike_there_are_none),
	        TEST(pairs_that_are_left_out_do_not_push),
	        TEST(nonsense_about_pairs_is_refused),
	        TEST(two_calls_under_way_have_memory_of_their_own),
	        TEST(sums_go_up_trees_over_the_links_that_there_are),
	        TEST(sums_are_right_where_trees_do_not_carry_them_all),
	        TEST(a_reduce_goes_up_trees_to_some_roots),
	        TEST(a_share_of_the_host_keeps_sums_there),
	        TEST(sums_of_all_sizes_follow_each_other),
	        TEST(sums_have_the_same_bits_when_routers_die),
	        TEST(kernels_that_add_wait_for_the_last_but_one),
	        TEST(communicators_without_room_have_their_sums_elsewhere),
	        TEST(without_windows_all_ranks_take_other_ways),
	        TEST(kernels_that_add_end_when_a_rank_gives_up),
	        TEST(survivors_streams_go_on_when_a_rank_dies),
	        TEST(a_rank_leaves_when_its_calls_are_over),
	        TEST(captured_sums_go_by_the_host),
	        TEST(relays_go_on_when_a_router_dies),
	};
	if (argc > 1 && *argv[1] >= '0' && *argv[1] <= '9')
		return rank_process_main(atoi(argv[1]));
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	setenv("FAKE_CUDA_DEVICES", "8", 1);
	setenv("FERRY_KERNELS", "2", 1); /* blocks that add up: each is a thread here */
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
