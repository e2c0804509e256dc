/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routers push from GPU to GPU, over the double of the driver: what is told, and what comes back, where something goes
 * wrong meanwhile. What arrives where nothing does: puts.c.
 */
#include "tests/fake_cuda/rank_process.h"
#include "tests/fake_cuda/routers.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define COUNT  30011
#define BYTES  (32u << 20) /* of a buffer that is missed while somebody has it */
#define SENT   (1u << 20)  /* by each rank into it */
#define PIECES (2 * SENT)  /* the same of memory that is mapped */

static const int devices[] = {0, 1, 2, 3};

/* ---- ends that are set otherwise ---- */

static void must_be_told(const char *const *variables, int domains, const char *flags)
{
	struct rank_process ranks[2];
	struct rank_answer answers[2];
	domains_open(domains);
	for (int rank = 0; rank < 2; rank++)
		ranks[rank] = rank_start(variables[rank]);
	ranks_join(ranks, 2, devices, COUNT);
	ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_MESSAGE}, NULL);
	ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_SETTLE, .number = 10000, .wanted = true}, answers);
	for (int rank = 0; rank < 2; rank++)
		if (!answers[rank].settled || !answers[rank].error || !strstr(answers[rank].message, flags))
			fail_msg("%s, %s: rank %d: settled %d, %s: \"%s\", expected \"%s\"",
			         variables[0] ? variables[0] : "", variables[1] ? variables[1] : "", rank,
			         answers[rank].settled, ferryGetErrorString(answers[rank].error), answers[rank].message,
			         flags);
	ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ABORT}, NULL);
	for (int rank = 0; rank < 2; rank++)
		rank_finish(&ranks[rank]);
	domains_close();
}

/* One rank's router pushes, and the other's looks into the window, in either direction. */
static void ranks_of_which_one_alone_may_push_are_told_that_their_settings_differ(void **state)
{
	static const char *const hosts[] = {"FERRY_FABRICS=host", "FERRY_SHARES=host=1"};
	(void)state;
	for (int i = 0; i < 2; i++)
		for (int domains = 1; domains <= 2; domains++) {
			must_be_told((const char *const[]){hosts[i], NULL}, domains,
			             "from rank 0 to rank 1: sent 120044 bytes of u32 through the host, received as "
			             "120044 bytes of u32 by a push: FERRY_FABRICS, FERRY_SHARES or ");
			must_be_told((const char *const[]){NULL, hosts[i]}, domains,
			             "from rank 0 to rank 1: sent 120044 bytes of u32 by a push, received as 120044 "
			             "bytes of u32 through the host: FERRY_FABRICS, FERRY_SHARES or ");
		}
}

/* ---- a driver that hangs ---- */

/* How often the words are in the file, after so long at most; as soon as they are there as often. */
static int times_said(int file, const char *flags, int wanted, int milliseconds)
{
	char said[8192];
	int count;
	do {
		ssize_t length = pread(file, said, sizeof said - 1, 0);
		assert_true(length >= 0);
		said[length] = '\0';
		count = 0;
		for (const char *at = said; (at = strstr(at, flags)); at++)
			count++;
		doze(1);
	} while (count < wanted && milliseconds-- > 0);
	return count;
}

/* Both GPUs' D2H lanes are in there; nothing else moves. The H2D lanes tell. */
static void a_push_that_hangs_in_the_driver_is_told_of(void **state)
{
	struct gang gang;
	struct place places[MOST_PLACES];
	char path[] = "/tmp/ferry-puts-XXXXXX", stuck[64];
	int file = mkstemp(path), before = dup(STDERR_FILENO);
	(void)state;
	assert_true(file >= 0 && before >= 0);
	snprintf(stuck, sizeof stuck, "%s-stuck", path);
	setenv("FERRY_TIMEOUT", "1", 1);
	setenv("FAKE_CUDA_STUCK", stuck, 1);
	dup2(file, STDERR_FILENO); /* the router's, too */
	gang_open(&gang, 2, devices, 1);
	dup2(before, STDERR_FILENO);
	unsetenv("FAKE_CUDA_STUCK");
	unsetenv("FERRY_TIMEOUT");
	places_open(places, &gang, COUNT);
	places_round(places, &gang);
	places_settle(places, &gang, 1);
	assert_int_equal(times_said(file, "has waited", 1, 0), 0);
	int made = open(stuck, O_CREAT | O_WRONLY, 0600);
	assert_true(made >= 0);
	close(made);
	places_round(places, &gang);
	int logged = times_said(file, "to run PUT, slice 1 of ", 2, 20000);
	unlink(stuck);
	places_settle(places, &gang, 2);
	gang_close(&gang);
	places_close(places, &gang);
	unlink(path);
	close(file);
	close(before);
	assert_int_equal(logged, 2);
}

/* ---- memory comes back ---- */

static size_t memory_left(void)
{
	size_t left, total;
	CU(cuMemGetInfo(&left, &total));
	return left;
}

/* On the calling thread's device. */
static void must_be_back(size_t before, int milliseconds, const char *when)
{
	for (int waited = 0; memory_left() < before && waited < milliseconds; waited++)
		doze(1);
	if (memory_left() < before)
		fail_msg("%s: %zu bytes are not back after %d ms", when, before - memory_left(), milliseconds);
}

/* Two ranks that have made a call, and a buffer on rank 1's device that they are about to push into. */
struct pair {
	struct gang gang;
	struct place places[MOST_PLACES];
	CUdeviceptr buffer;
	size_t before; /* memory left without it */
};

/* Both ranks give SENT bytes; rank 1 gathers them there. */
static void gather_into(const struct pair *pair, CUdeviceptr buffer)
{
	for (int rank = 0; rank < 2; rank++) {
		const struct place *place = &pair->places[rank];
		place_enter(place);
		OK(ferryAllGather(pointer_of(place->input), pointer_of(rank ? buffer : place->output), SENT, ferryUint8,
		                  pair->gang.comms[rank], (ferryStream_t)place->stream));
	}
}

static void pair_open_in(struct pair *pair, int domains)
{
	gang_open(&pair->gang, 2, devices, domains);
	places_open(pair->places, &pair->gang, SENT / 4);
	places_round(pair->places, &pair->gang);
	places_settle(pair->places, &pair->gang, 1);
	place_enter(&pair->places[1]);
	pair->before = memory_left();
	CU(cuMemAlloc(&pair->buffer, BYTES));
}

static void pair_open(struct pair *pair)
{
	pair_open_in(pair, 1);
}

static void pair_close(struct pair *pair)
{
	places_round(pair->places, &pair->gang);
	places_settle(pair->places, &pair->gang, 2);
	gang_close(&pair->gang);
	places_close(pair->places, &pair->gang);
}

/* Rank 1 has given up. */
static void pair_give_up(struct pair *pair)
{
	OK(ferryCommAbort(pair->gang.comms[0]));
	for (int rank = 0; rank < 2; rank++) {
		place_enter(&pair->places[rank]);
		CU(cuStreamSynchronize(pair->places[rank].stream));
	}
	domains_close();
	places_close(pair->places, &pair->gang);
}

/* The router has it mapped for both GPUs. */
static void a_buffer_that_others_pushed_into_comes_back_when_it_has_idled(void **state)
{
	struct pair pair;
	(void)state;
	pair_open(&pair);
	gather_into(&pair, pair.buffer);
	places_settle(pair.places, &pair.gang, 1);
	place_enter(&pair.places[1]);
	CU(cuMemFree(pair.buffer));
	assert_int_equal(memory_left(), pair.before - BYTES);
	must_be_back(pair.before, 2500, "freed");
	pair_close(&pair);
}

static void a_registered_buffer_that_others_pushed_into_comes_back_when_it_is_none_any_more(void **state)
{
	struct pair pair;
	void *handle;
	(void)state;
	pair_open(&pair);
	OK(ferryCommRegister(pair.gang.comms[1], pointer_of(pair.buffer), BYTES, &handle));
	gather_into(&pair, pair.buffer);
	places_settle(pair.places, &pair.gang, 1);
	place_enter(&pair.places[1]);
	doze(2500); /* however long it idles */
	CU(cuMemFree(pair.buffer));
	assert_int_equal(memory_left(), pair.before - BYTES);
	OK(ferryCommDeregister(pair.gang.comms[1], handle));
	must_be_back(pair.before, 500, "deregistered");
	pair_close(&pair);
}

/* Rank 0's stream has not reached the call; rank 1 gives it up, and frees what would have been pushed into. */
static void a_buffer_that_others_push_into_comes_back_when_its_rank_has_aborted(void **state)
{
	static _Atomic int held;
	struct pair pair;
	(void)state;
	pair_open(&pair);
	gather_into(&pair, pair.buffer);
	places_settle(pair.places, &pair.gang, 1);
	atomic_store(&held, 1);
	place_enter(&pair.places[0]);
	CU(fake_cuda_launch(pair.places[0].stream, hold, &held));
	gather_into(&pair, pair.buffer);
	OK(ferryCommAbort(pair.gang.comms[1]));
	place_enter(&pair.places[1]);
	CU(cuMemFree(pair.buffer));
	must_be_back(pair.before, 5000, "aborted"); /* idling would not do: a call that has not ended names it */
	atomic_store(&held, 0);
	pair_give_up(&pair);
}

/* In the middle of calls, at any place; the other rank's pushes into it end in memory that nobody sees. */
static void memory_of_a_rank_that_dies_while_others_push_into_it_comes_back(void **state)
{
	struct rank_process ranks[2];
	size_t before = 0;
	(void)state;
	domains_open(1);
	for (int attempt = 0; attempt < 4; attempt++) {
		/* the first one ends in order: then the router has its contexts */
		for (int rank = 0; rank < 2; rank++)
			ranks[rank] = rank_start(NULL);
		ranks_join(ranks, 2, devices, 1000003);
		ranks_round(ranks, 2, 1, 1);
		place_enter(&(struct place){.device = 1});
		assert_true(!attempt || memory_left() < before);
		if (!attempt) {
			ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_DESTROY}, NULL);
			rank_finish(&ranks[1]);
		} else {
			ranks_tell(ranks, 2, (struct rank_ordered){.order = RANK_ROUNDS, .number = 6}, NULL);
			doze(7 * (attempt - 1));
			rank_kill(&ranks[1]);
			rank_tell(&ranks[0], (struct rank_ordered){.order = RANK_ABORT});
		}
		rank_finish(&ranks[0]);
		if (!attempt)
			doze(2500);
		before = attempt ? before : memory_left();
		must_be_back(before, 2000, "killed");
	}
	domains_close();
}

static void *unlink_later(void *path)
{
	doze(300);
	unlink(path);
	return NULL;
}

/*
 * Its lane is in the driver when the rank submits its last call and gives up, and then has nothing to take it up for;
 * the other rank stays.
 */
static void abort_before_its_lane_looks(int domains)
{
	struct pair pair;
	pthread_t thread;
	char stuck[64];
	snprintf(stuck, sizeof stuck, "/tmp/ferry-stuck-%d", (int)getpid());
	setenv("FAKE_CUDA_STUCK", stuck, 1);
	pair_open_in(&pair, domains);
	unsetenv("FAKE_CUDA_STUCK");
	gather_into(&pair, pair.buffer); /* the buffer is mapped */
	places_settle(pair.places, &pair.gang, 1);
	int made = open(stuck, O_CREAT | O_WRONLY, 0600);
	assert_true(made >= 0);
	close(made);
	places_round(pair.places, &pair.gang);
	doze(300); /* the lanes are in the driver */
	gather_into(&pair, pair.buffer);
	assert_int_equal(pthread_create(&thread, NULL, unlink_later, stuck), 0);
	OK(ferryCommAbort(pair.gang.comms[1]));
	pthread_join(thread, NULL);
	place_enter(&pair.places[1]);
	CU(cuMemFree(pair.buffer));
	must_be_back(pair.before, 5000, "aborted before its lane looked");
	pair_give_up(&pair);
}

static void memory_that_an_aborted_rank_named_in_a_call_that_nobody_took_up_comes_back(void **state)
{
	(void)state;
	abort_before_its_lane_looks(1);
}

/* That router hears of calls that are over from the rank's own, which has nothing to say. */
static void and_so_does_what_another_domains_router_has_mapped_of_it(void **state)
{
	(void)state;
	abort_before_its_lane_looks(2);
}

/* ---- a buffer that is freed during a call ---- */

/* As with any stream that has work: cudaFree waits for the device, and so for the call. */
static void a_buffer_freed_during_a_call_is_freed_when_the_call_is_over(void **state)
{
	struct pair pair;
	(void)state;
	pair_open(&pair);
	pair.places[0].wait_ms = 300;
	place_enter(&pair.places[0]);
	place_write(&pair.places[0]);
	gather_into(&pair, pair.buffer);
	place_enter(&pair.places[1]);
	assert_int_equal(cuStreamQuery(pair.places[1].stream), CUDA_ERROR_NOT_READY);
	CU(cuMemFree(pair.buffer));
	CU(cuStreamQuery(pair.places[1].stream));
	must_be_back(pair.before, 2500, "freed during a call");
	pair_close(&pair);
}

/* New memory of rank 1's device at that place. */
static void map_pieces(CUdeviceptr at, int filled)
{
	CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
	CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CU(cuMemCreate(&handle, PIECES, &wanted, 0));
	CU(cuMemMap(at, PIECES, 0, handle, 0));
	CU(cuMemRelease(handle));
	CU(cuMemSetAccess(at, PIECES, &access, 1));
	memset(fake_cuda_reach(at), filled, PIECES);
}

static void must_hold(CUdeviceptr at, const struct pair *pair)
{
	for (int rank = 0; rank < 2; rank++)
		assert_memory_equal((char *)fake_cuda_reach(at) + (size_t)rank * SENT,
		                    fake_cuda_reach(pair->places[rank].input), SENT);
}

/*
 * What is unmapped waits for nobody. The pushes go into the memory that the call has named, which the router still has,
 * and not into what lies at its address by now.
 */
static void memory_unmapped_during_a_call_takes_the_pushes_and_nothing_else_does(void **state)
{
	static _Atomic int held;
	struct pair pair;
	CUdeviceptr at;
	(void)state;
	pair_open(&pair);
	CU(cuMemFree(pair.buffer));
	CU(cuMemAddressReserve(&at, PIECES, 0, 0, 0));
	map_pieces(at, 0);
	atomic_store(&held, 1);
	place_enter(&pair.places[0]);
	CU(fake_cuda_launch(pair.places[0].stream, hold, &held));
	gather_into(&pair, at);
	place_enter(&pair.places[1]);
	const uint32_t *own = fake_cuda_reach(pair.places[1].input), *copied = fake_cuda_reach(at);
	while (__atomic_load_n(&copied[2 * (SENT / 4) - 1], __ATOMIC_ACQUIRE) != own[SENT / 4 - 1])
		doze(1); /* its own block, which its stream copies */
	assert_memory_equal(copied + SENT / 4, own, SENT);
	CU(cuMemUnmap(at, PIECES));
	map_pieces(at, 0xcc);
	atomic_store(&held, 0);
	places_settle(pair.places, &pair.gang, 1);
	const unsigned char *seen = fake_cuda_reach(at);
	if (seen[0] != 0xcc || memcmp(seen, seen + 1, PIECES - 1) != 0)
		fail_msg("what lies there now was written");
	gather_into(&pair, at); /* is exported anew */
	places_settle(pair.places, &pair.gang, 1);
	must_hold(at, &pair);
	place_enter(&pair.places[1]);
	CU(cuMemUnmap(at, PIECES));
	CU(cuMemAddressFree(at, PIECES));
	must_be_back(pair.before, 2500, "unmapped");
	pair_close(&pair);
}

#define TEST(name) cmocka_unit_test_teardown(name, no_misuse)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        TEST(ranks_of_which_one_alone_may_push_are_told_that_their_settings_differ),
	        TEST(a_push_that_hangs_in_the_driver_is_told_of),
	        TEST(a_buffer_that_others_pushed_into_comes_back_when_it_has_idled),
	        TEST(a_registered_buffer_that_others_pushed_into_comes_back_when_it_is_none_any_more),
	        TEST(a_buffer_that_others_push_into_comes_back_when_its_rank_has_aborted),
	        TEST(memory_of_a_rank_that_dies_while_others_push_into_it_comes_back),
	        TEST(memory_that_an_aborted_rank_named_in_a_call_that_nobody_took_up_comes_back),
	        TEST(and_so_does_what_another_domains_router_has_mapped_of_it),
	        TEST(a_buffer_freed_during_a_call_is_freed_when_the_call_is_over),
	        TEST(memory_unmapped_during_a_call_takes_the_pushes_and_nothing_else_does),
	};
	if (argc == 2)
		return rank_process_main(atoi(argv[1]));
	setenv("FERRY_TEST_PUSHES", "1", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
