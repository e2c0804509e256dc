/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that GPUs make themselves (rank-lib/call/gpu_sums.h), over the double of the CUDA driver: where ranks disagree,
 * die, abort or have no memory, and where routers die. Pieces are of 4 to 64 KiB, and short kernels carry 8 KiB at most
 * (tests/CMakeLists.txt); a push takes milliseconds, so that failures come in the middle of calls.
 */
#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <stdlib.h>

static const int devices[] = {0, 1, 2, 3};

static void use(const char *fabric)
{
	setenv("FERRY_KERNELS", "on", 1);
	setenv("FERRY_FABRICS", fabric, 1);
}

/* ---- ranks that disagree ---- */

struct call {
	enum ferry_collective collective;
	size_t count;
	ferryRedOp_t op;
};

/* Rank 0's sum, and what another makes of it. */
static const struct {
	struct call one, other;
	const char *words;
} disagreements[] = {
        {{FERRY_REDUCESCATTER, 1900, ferrySum}, {FERRY_ALLTOALL, 1900, 0}, "calls reducescatter of 1900 i32 (sum)"},
        {{FERRY_REDUCESCATTER, 1900, ferrySum},
         {FERRY_REDUCESCATTER, 1900, ferryMax},
         "calls reducescatter of 1900 i32 (max)"},
        {{FERRY_REDUCESCATTER, 1900, ferrySum},
         {FERRY_REDUCESCATTER, 1901, ferrySum},
         "calls reducescatter of 1901 i32 (sum)"},
        {{FERRY_ALLREDUCE, 9600, ferryProd},
         {FERRY_ALLREDUCE, 9600, ferryMin},
         "calls allreduce of blocks of 4800 i32 (prod)"},
        {{FERRY_ALLREDUCE, 9600, ferrySum}, {FERRY_ALLREDUCE, 19200, ferrySum}, "calls allreduce of blocks of"},
        {{FERRY_REDUCE_TO_ROOT, 9600, ferrySum},
         {FERRY_REDUCE_TO_ROOT, 9600, ferryMax},
         "calls reduce of 9600 i32 (max, root 0)"},
        {{FERRY_REDUCE_TO_ROOT, 9600, ferrySum}, {FERRY_GATHER, 9600, 0}, "calls reduce of 9600 i32 (sum, root 0)"},
        {{FERRY_REDUCE_TO_ROOT, 9600, ferrySum},
         {FERRY_REDUCE_TO_ROOT, 9601, ferrySum},
         "calls reduce of 9601 i32 (sum, root 0)"},
        {{FERRY_ALLREDUCE, 3800, ferrySum},
         {FERRY_REDUCESCATTER, 1900, ferrySum},
         "calls reducescatter of 1900 i32 (sum)"},
};

static ferryResult_t make(const struct call *call, const struct place *place, ferryComm_t comm)
{
	const struct ferry_request request = {.collective = call->collective,
	                                      .send = pointer_of(place->input),
	                                      .receive = pointer_of(place->output),
	                                      .count = call->count,
	                                      .type = ferryInt32,
	                                      .op = call->op,
	                                      .comm = comm,
	                                      .stream = (ferryStream_t)place->stream};
	place_enter(place);
	return ferry_group_call(&request);
}

static void check_told(const struct gang *gang, const struct place *places, const char *words)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		ferryResult_t error = ferrySuccess;
		place_enter(&places[rank]);
		CU(cuStreamSynchronize(places[rank].stream));
		for (int waited = 0; !error && waited < 60000; waited++) {
			OK(ferryCommGetAsyncError(gang->comms[rank], &error));
			doze(1);
		}
		if (!error || !strstr(ferryGetLastError(gang->comms[rank]), words))
			fail_msg("rank %d: %s: \"%s\", not \"%s\"", rank, ferryGetErrorString(error),
			         ferryGetLastError(gang->comms[rank]), words);
	}
}

static void ranks_that_disagree_are_told_what_they_have_called(void **state)
{
	(void)state;
	use("peer");
	domains_open(1);
	for (size_t i = 0; i < sizeof disagreements / sizeof *disagreements; i += REPEATS(1, 2)) {
		struct gang gang;
		struct place places[MOST_PLACES];
		gang_open(&gang, 2, devices, 1);
		places_open(places, &gang, 19200);
		for (int rank = 0; rank < 2; rank++) /* an error where it is known by then */
			(void)make(rank ? &disagreements[i].other : &disagreements[i].one, &places[rank],
			           gang.comms[rank]);
		check_told(&gang, places, disagreements[i].words);
		for (int rank = 0; rank < 2; rank++)
			OK(ferryCommAbort(gang.comms[rank]));
		domains_close();
		places_close(places, &gang);
	}
	domains_close();
}

/* ---- memory ---- */

static size_t memory_left(const struct place *place)
{
	size_t left, all;
	place_enter(place);
	CU(cuMemGetInfo(&left, &all));
	return left;
}

/* In a group by itself, which is open or not. */
static void refused(const struct place *place, ferryComm_t comm, bool open)
{
	struct ferry_open_group group = {0};
	place_enter(place);
	OK(ferryGroupStart());
	OK(place_try(place, comm));
	REFUSED(ferryUnhandledDeviceError, "memory", open ? ferry_group_end_open(&group) : ferryGroupEnd());
	(void)ferry_group_finish(&group);
}

/* The last rank, or both. Before the call has a number: a rank can make it again, and the others have waited for it. */
static void ranks_without_memory_for_blocks_are_told_and_may_try_again(void **state)
{
	(void)state;
	use("peer");
	domains_open(1);
	for (int which = 0; which < 4; which += REPEATS(1, 3)) {
		const int lacking = which % 2;
		struct gang gang;
		struct place places[MOST_PLACES];
		CUdeviceptr rest[2];
		gang_open(&gang, 2, devices, 1);
		places_open(places, &gang, 9001);
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			place_write(&places[rank]);
		}
		for (int rank = lacking; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuMemAlloc(&rest[rank], 1)); /* whatever its context takes */
			CU(cuMemFree(rest[rank]));
			CU(cuMemAlloc(&rest[rank], memory_left(&places[rank])));
		}
		if (lacking) {
			place_enter(&places[0]);
			OK(place_try(&places[0], gang.comms[0]));
		}
		for (int rank = lacking; rank < 2; rank++)
			refused(&places[rank], gang.comms[rank], which / 2);
		for (int rank = lacking; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuMemFree(rest[rank]));
			OK(place_try(&places[rank], gang.comms[rank]));
		}
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			place_judge(&places[rank]);
		}
		places_settle(places, &gang, 1);
		gang_close(&gang);
		places_close(places, &gang);
	}
	domains_close();
}

/* Open ones, too. */
static void a_rank_without_memory_for_blocks_may_give_up(void **state)
{
	(void)state;
	use("peer");
	domains_open(1);
	for (int open = SANITIZED; open < 2; open++) {
		struct gang gang;
		struct place places[MOST_PLACES];
		CUdeviceptr rest;
		gang_open(&gang, 2, devices, 1);
		places_open(places, &gang, 9001);
		place_enter(&places[0]);
		OK(place_try(&places[0], gang.comms[0]));
		place_enter(&places[1]);
		CU(cuMemAlloc(&rest, memory_left(&places[1])));
		refused(&places[1], gang.comms[1], open);
		OK(ferryCommAbort(gang.comms[1]));
		for (int rank = 0; rank < 2; rank++) {
			place_enter(&places[rank]);
			CU(cuStreamSynchronize(places[rank].stream));
		}
		OK(ferryCommAbort(gang.comms[0]));
		CU(cuMemFree(rest));
		domains_close();
		places_close(places, &gang);
	}
	domains_close();
}

#define STREAMS 4

/* Of lengths of their own, so that memory is made anew for some. */
static void sums_in_streams(const struct gang *gang, struct place places[][MOST_PLACES],
                            enum ferry_collective collective)
{
	for (int stream = 0; stream < STREAMS; stream++)
		places_open(places[stream], gang, 6000 * (size_t)(1 + stream));
	for (int stream = 0; stream < STREAMS; stream++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			const struct place *place = &places[stream][rank];
			OK(make(&(struct call){collective, place->count / 2, ferrySum}, place, gang->comms[rank]));
		}
	for (int stream = 0; stream < STREAMS; stream++)
		for (int rank = 0; rank < gang->nranks; rank++) {
			place_enter(&places[stream][rank]);
			CU(cuStreamSynchronize(places[stream][rank].stream));
		}
}

/* But mailboxes, which are kept: what routers map goes with them. */
static void nothing_is_left_of_a_communicator(void **state)
{
	(void)state;
	for (int fabric = SANITIZED; fabric < 2; fabric++) {
		size_t left[2] = {0};
		use(fabric ? "peer" : "host");
		for (int i = 0; i < 3; i++) {
			struct gang gang;
			struct place places[STREAMS][MOST_PLACES];
			gang_open(&gang, 2, devices, 1);
			sums_in_streams(&gang, places, fabric ? FERRY_ALLREDUCE : FERRY_REDUCESCATTER);
			assert_non_null(gang.comms[0]->mapped.bounces.all);
			gang_close(&gang);
			for (int stream = 0; stream < STREAMS; stream++)
				places_close(places[stream], &gang);
			routers_close();
			for (int rank = 0; rank < 2; rank++) {
				left[rank] = i ? left[rank] : memory_left(&places[0][rank]);
				assert_int_equal(memory_left(&places[0][rank]), left[rank]);
			}
		}
	}
}

/* ---- processes ---- */

#define LONG 100000 /* elements: of an AllReduce in a dozen of steps */

static void start(struct rank_process *ranks, int nranks, const char *variables)
{
	use("peer");
	domains_open(1);
	for (int rank = 0; rank < nranks; rank++)
		ranks[rank] = rank_start(variables);
	ranks_join(ranks, nranks, devices, LONG);
	ranks_round(ranks, nranks, 1, 1);
	const bool pair = places_reduce() && nranks == 2;
	/* a rest's */
	assert_int_equal(rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_KERNELS}).number, !pair);
}

static void give_up(struct rank_process *ranks, int nranks)
{
	for (int rank = 0; rank < nranks; rank++) {
		rank_tell(&ranks[rank], (struct rank_ordered){.order = RANK_ABORT});
		rank_finish(&ranks[rank]);
	}
	domains_close();
}

static void survivors_streams_are_free_when_a_rank_dies(void **state)
{
	(void)state;
	for (int after = 0; after < REPEATS(3, 1); after++) {
		struct rank_process ranks[3];
		start(ranks, 3, NULL);
		for (int rank = 0; rank < 3; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
		doze(8 + 8 * after);
		rank_kill(&ranks[2]);
		for (int rank = 0; rank < 2; rank++)
			(void)rank_heard(&ranks[rank]);
		rank_released(&ranks[0], "rank 2");
		rank_released(&ranks[1], "rank 2");
		give_up(ranks, 2);
	}
}

static void all_streams_are_free_when_a_rank_aborts(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	start(ranks, 2, NULL);
	rank_order(&ranks[0], (struct rank_ordered){.order = RANK_ROUNDS, .number = 1}); /* may have no room for all */
	doze(50);
	rank_tell(&ranks[1], (struct rank_ordered){.order = RANK_ABORT});
	(void)rank_heard(&ranks[0]);
	rank_released(&ranks[0], "rank 1 aborted");
	rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* Routers die in the middle of the calls: all of them are right. */
static void go_on(int nranks, int deaths)
{
	struct rank_process ranks[3];
	struct rank_answer answers[3];
	start(ranks, nranks, NULL);
	for (int death = 0; death < deaths; death++) {
		for (int rank = 0; rank < nranks; rank++)
			rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
		doze(10 + 10 * death);
		routers_kill(0);
		routers_open(1);
		for (int rank = 0; rank < nranks; rank++)
			OK(rank_heard(&ranks[rank]).result);
		ranks_tell(ranks, nranks, (struct rank_ordered){.order = RANK_SETTLE, .number = 60000}, answers);
		for (int rank = 0; rank < nranks; rank++)
			if (!answers[rank].settled || answers[rank].wrong ||
			    answers[rank].round != 1 + 2 * (uint32_t)(death + 1))
				fail_msg("death %d: rank %d: settled %d, %zu wrong, %u rounds: %s", death, rank,
				         answers[rank].settled, answers[rank].wrong, answers[rank].round,
				         answers[rank].message);
	}
	ranks_tell(ranks, nranks, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
	for (int rank = 0; rank < nranks; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

static void sums_go_on_with_the_next_router(void **state)
{
	(void)state;
	go_on(3, REPEATS(6, 2));
}

/* Of two ranks by one step, of three by two. */
static void reduces_go_on_with_the_next_router(void **state)
{
	(void)state;
	setenv("FERRY_TEST_REDUCES", "1", 1);
	for (int nranks = 2; nranks <= 3; nranks++)
		go_on(nranks, REPEATS(4, 1));
	unsetenv("FERRY_TEST_REDUCES");
}

/* Nobody takes its place. */
static void all_streams_are_free_when_the_router_dies_for_good(void **state)
{
	(void)state;
	struct rank_process ranks[2];
	start(ranks, 2, "FERRY_TAKEOVER=off");
	for (int rank = 0; rank < 2; rank++)
		rank_order(&ranks[rank], (struct rank_ordered){.order = RANK_ROUNDS, .number = 2});
	doze(20);
	routers_kill(0);
	for (int rank = 0; rank < 2; rank++)
		(void)rank_heard(&ranks[rank]);
	for (int rank = 0; rank < 2; rank++)
		rank_released(&ranks[rank], "router of domain 0 died");
	give_up(ranks, 2);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        /* first: where a communicator has failed before, there is memory left */
	        TEST(ranks_without_memory_for_blocks_are_told_and_may_try_again),
	        TEST(a_rank_without_memory_for_blocks_may_give_up),
	        TEST(ranks_that_disagree_are_told_what_they_have_called),
	        TEST(survivors_streams_are_free_when_a_rank_dies),
	        TEST(all_streams_are_free_when_a_rank_aborts),
	        TEST(sums_go_on_with_the_next_router),
	        TEST(reduces_go_on_with_the_next_router),
	        TEST(all_streams_are_free_when_the_router_dies_for_good),
	        TEST(nothing_is_left_of_a_communicator),
	};
	if (argc == 2 && argv[1][0] >= '0' && argv[1][0] <= '9')
		return rank_process_main(atoi(argv[1]));
	setenv("FAKE_CUDA_MEMORY", "8589934592", 1);
	setenv("FAKE_CUDA_PUSH_MS", "1", 1);
	fake_is_the_driver();
	if (argc == 2)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
