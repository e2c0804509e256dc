/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of memory that programs free: it comes back at once, whatever calls were made with it, and freeing waits for
 * nothing that it need not wait for. Over both doubles; GPUs have little memory, of which each process sees the same.
 */
#include "tests/fake_cuda/runtime.h"
#include "tests/nccl/players.h"

#include "orchestrator/real.h"
#include "rank-lib/api/freed.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MIB       ((size_t)1 << 20)
#define ALL       (100 * MIB) /* of a GPU; contexts and what Ferry has take a few */
#define BUFFER    (LARGE * RANKS * sizeof(float) * 2)
#define FAR_MORE  (60 * MIB)
#define OUT       2             /* cudaErrorMemoryAllocation */

static pthread_barrier_t together;

static size_t left(void)
{
	size_t bytes, total;
	EQUAL(cuMemGetInfo(&bytes, &total), 0);
	return bytes;
}

static bool comes_back_within(size_t bytes, int milliseconds)
{
	while (left() != bytes && milliseconds-- > 0)
		doze(1);
	return left() == bytes;
}

/* In the place of one of the player's. */
static void take_memory(struct player *player, int which, void *memory)
{
	player->memory[which] = (CUdeviceptr)(uintptr_t)memory;
	*(which ? &player->receive : &player->send) = memory;
	*(which ? &player->out : &player->in) = fake_cuda_reach(player->memory[which]);
}

static void *free_one(struct player *player, int which)
{
	void *memory = pointer_of(player->memory[which]);
	EQUAL(cudaFree(memory), 0);
	return memory;
}

static void call(struct player *player, int round)
{
	NCCL(ncclAllReduce(player->send, player->receive, LARGE - (size_t)round, ncclFloat32, ncclSum,
	                   player->rank.comm, (cudaStream_t)player->stream));
}

static void play(void (*work)(struct rank *rank))
{
	run_by_host_alone(&together, work);
}

/* ---- it comes back ---- */

static void freed(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < 10; round++) {
		int which = round % 2;
		pthread_barrier_wait(&together);
		size_t before = left();
		free_one(player, which);
		EQUAL(left() - before, BUFFER);
		EQUAL(cudaMalloc(&memory, BUFFER), 0);
		take_memory(player, which, memory);
		fill(player, LARGE - (size_t)round, round);
		call(player, round);
		settle(player);
		check_sum(player, LARGE - (size_t)round, round);
	}
	player_close(player);
}

static void memory_comes_back_at_once(void **state)
{
	(void)state;
	play(freed);
}

static void exhausted(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory, *again;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < 5; round++) {
		free_one(player, 0);
		EQUAL(cudaMalloc(&memory, FAR_MORE), 0);
		take_memory(player, 0, memory);
		fill(player, LARGE - (size_t)round, round);
		call(player, round);
		settle(player);
		check_sum(player, LARGE - (size_t)round, round);
		EQUAL(cudaMalloc(&again, FAR_MORE), OUT);
		EQUAL(cudaFree(memory), 0);
		EQUAL(cudaMalloc(&again, FAR_MORE), 0);
		EQUAL(cudaFree(again), 0);
		EQUAL(cudaMalloc(&memory, BUFFER), 0);
		take_memory(player, 0, memory);
	}
	player_close(player);
}

static void who_is_out_of_memory_frees_and_allocates_again(void **state)
{
	(void)state;
	play(exhausted);
}

/* Rank 0's stream is at the call, that of another rank is not yet. */
static void busy(struct rank *rank)
{
	static _Atomic int held;
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < 3; round++) {
		fill(player, LARGE - (size_t)round, round);
		if (rank->rank == 1)
			held = 1;
		pthread_barrier_wait(&together);
		size_t before = left();
		if (rank->rank == 1)
			EQUAL(fake_cuda_launch(player->stream, hold, &held), 0);
		call(player, round);
		if (rank->rank == 1) {
			doze(50);
			held = 0;
		}
		if (!rank->rank) {
			free_one(player, 0);
			EQUAL(left() - before, BUFFER);
		}
		settle(player);
		check_sum(player, LARGE - (size_t)round, round);
		if (!rank->rank) {
			EQUAL(cudaMalloc(&memory, BUFFER), 0);
			take_memory(player, 0, memory);
		}
	}
	player_close(player);
}

static void what_a_call_under_way_names_comes_back_with_its_end(void **state)
{
	(void)state;
	play(busy);
}

static void captured(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	CUgraph graph;
	CUgraphExec exec;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < 4; round++) {
		EQUAL(cuStreamBeginCapture(player->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0);
		call(player, round);
		EQUAL(cuStreamEndCapture(player->stream, &graph), 0);
		EQUAL(cuGraphInstantiateWithFlags(&exec, graph, 0), 0);
		EQUAL(cuGraphDestroy(graph), 0);
		fill(player, LARGE - (size_t)round, round);
		EQUAL(cuGraphLaunch(exec, player->stream), 0);
		settle(player);
		check_sum(player, LARGE - (size_t)round, round);
		pthread_barrier_wait(&together);
		doze(200); /* the router looks ever more seldom whether the graph is there */
		EQUAL(cuGraphExecDestroy(exec), 0);
		size_t before = left();
		free_one(player, 0);
		EQUAL(left() - before, BUFFER);
		pthread_barrier_wait(&together);
		EQUAL(cudaMalloc(&memory, BUFFER), 0);
		take_memory(player, 0, memory);
	}
	player_close(player);
}

static void what_a_graph_had_comes_back_when_that_is_gone(void **state)
{
	(void)state;
	play(captured);
}

/* ---- nothing is waited for ---- */

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static _Atomic long days_ahead; /* of the clock of day, which is set back as soon as somebody has read it */

int clock_gettime(clockid_t clock, struct timespec *now)
{
	long result = syscall(SYS_clock_gettime, clock, now);
	if (clock == CLOCK_REALTIME)
		now->tv_sec += 86400 * atomic_load(&days_ahead);
	return (int)result;
}

static _Thread_local int asked; /* messages of this thread's to a router, without descriptors */

ssize_t send(int socket, const void *bytes, size_t length, int flags)
{
	asked++;
	return syscall(SYS_sendto, socket, bytes, length, flags, NULL, 0);
}

static _Thread_local int patient; /* of this thread: waits of a limited time for a lock */

int pthread_mutex_clocklock(pthread_mutex_t *lock, clockid_t clock, const struct timespec *until)
{
	int (*real)(pthread_mutex_t *, clockid_t, const struct timespec *);
	*(void **)&real = dlsym(RTLD_NEXT, "pthread_mutex_clocklock");
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	HOLDS(clock == CLOCK_MONOTONIC && until->tv_sec - now.tv_sec <= 1);
	patient++;
	return real(lock, clock, until);
}

/* Frees it, and tells how often a router was asked for that, and what it took. */
static int asked_for(void *memory, double *us)
{
	int before = asked;
	double begun = seconds();
	EQUAL(cudaFree(memory), 0);
	*us += 1e6 * (seconds() - begun);
	return asked - before;
}

/* Until the router has forgotten by itself all that the rank has exported, and unmapped it. */
static void wait_for_idleness(struct player *player)
{
	struct ferry_nccl_comm *known = ferry_nccl_comm_take(player->rank.comm);
	struct ferryComm *comm = atomic_load(&known->shadow_comm)->comm;
	struct ferry_export_cell *cells =
	        comm->rank.shared.arenas[0].export_cells + (size_t)player->rank.rank * FERRY_MOST_EXPORTS;
	uint64_t mapped = 1;
	for (int i = 0; i < 30000 && mapped; i++) {
		doze(1);
		mapped = 0;
		for (uint32_t index = 0; index < FERRY_MOST_EXPORTS; index++)
			mapped |= atomic_load(&cells[index].mapped);
	}
	HOLDS(!mapped);
	ferry_nccl_comm_release(known);
}

static void counted(struct rank *rank)
{
	enum { TIMES = 12 };
	struct player *player = (struct player *)rank;
	double unknown_us = 0, mapped_us = 0, idle_us = 0;
	int asked_of = 0;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < TIMES; round++) {
		EQUAL(cudaMalloc(&memory, MIB), 0);
		EQUAL(asked_for(memory, &unknown_us), 0);
		pthread_barrier_wait(&together);
		int times = asked_for(player->send, &mapped_us);
		HOLDS(times <= 1);
		asked_of += times; /* unless the machine has slept for a second since the call */
		EQUAL(cudaMalloc(&memory, BUFFER), 0);
		take_memory(player, 0, memory);
		fill(player, LARGE - (size_t)round, round);
		call(player, round);
		settle(player);
		check_sum(player, LARGE - (size_t)round, round);
	}
	HOLDS(asked_of > 0);
	wait_for_idleness(player);
	EQUAL(asked_for(player->send, &idle_us), 0);
	if (!rank->rank)
		print_message("cudaFree takes %.0f us, %.0f of what a router has mapped, and %.0f of what it had\n",
		              unknown_us / TIMES, mapped_us / TIMES, idle_us);
	EQUAL(cudaMalloc(&memory, BUFFER), 0);
	take_memory(player, 0, memory);
	player_close(player);
}

/* Once, of what a call has named a short while ago. */
static void routers_are_asked_about_what_they_have_mapped_alone(void **state)
{
	(void)state;
	play(counted);
}

/* A thread that is inside the communicator for long, as one that waits for room in the ring. */
static void occupied(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	pthread_barrier_wait(&together);
	struct ferry_nccl_comm *known = ferry_nccl_comm_take(rank->comm);
	struct ferryComm *comm = atomic_load(&known->shadow_comm)->comm;
	size_t before = left();
	pthread_mutex_lock(&comm->lock);
	/* what Ferry has never seen */
	EQUAL(cudaMalloc(&memory, MIB), 0);
	EQUAL(cudaFree(memory), 0);
	EQUAL(patient, 0);
	/* and what it has: that waits for a second, whatever the time of day, and is left to idleness */
	days_ahead = 1;
	free_one(player, 0);
	days_ahead = 0;
	HOLDS(patient > 0);
	pthread_mutex_unlock(&comm->lock);
	HOLDS(comes_back_within(before + BUFFER, 30000));
	ferry_nccl_comm_release(known);
	EQUAL(cudaMalloc(&memory, BUFFER), 0);
	take_memory(player, 0, memory);
	player_close(player);
}

static void who_is_inside_the_communicator_holds_up_no_free(void **state)
{
	(void)state;
	play(occupied);
}

/* NCCL's own calls, by the thread that is in NCCL. */
static void inside(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	pthread_barrier_wait(&together);
	size_t before = left();
	ferry_nccl_inside++;
	free_one(player, 0);
	ferry_nccl_inside--;
	EQUAL(left(), before);
	HOLDS(comes_back_within(before + BUFFER, 30000));
	EQUAL(cudaMalloc(&memory, BUFFER), 0);
	take_memory(player, 0, memory);
	player_close(player);
}

static void what_nccl_frees_is_its_own_business(void **state)
{
	(void)state;
	play(inside);
}

static void orphaned(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	size_t before = left();
	pthread_barrier_wait(&together);
	if (!rank->rank)
		routers_kill(0);
	pthread_barrier_wait(&together);
	free_one(player, 0);
	HOLDS(left() >= before + BUFFER); /* and what the router had */
	EQUAL(cudaMalloc(&memory, BUFFER), 0);
	take_memory(player, 0, memory);
	player_close(player);
}

static void without_its_router_it_comes_back_all_the_same(void **state)
{
	(void)state;
	setenv("FERRY_TAKEOVER", "off", 1); /* else it waits for another */
	play(orphaned);
	unsetenv("FERRY_TAKEOVER");
}

/* ---- what is freed by other functions ---- */

static void kin(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	void *memory;
	player_open(player);
	reduce_until(player, 2);
	pthread_barrier_wait(&together);
	size_t before = left();
	EQUAL(cuMemFree(player->memory[0]), 0);
	EQUAL(left() - before, BUFFER);
	EQUAL(cudaMalloc(&memory, BUFFER), 0);
	take_memory(player, 0, memory);
	/* of a pool, which Ferry has in a window: the function does what it does */
	CUdeviceptr pooled;
	EQUAL(cuMemAllocAsync(&pooled, BUFFER, player->stream), 0);
	void *own = player->send;
	take_memory(player, 0, pointer_of(pooled));
	fill(player, LARGE - 1, 1);
	pthread_barrier_wait(&together);
	call(player, 1);
	settle(player);
	check_sum(player, LARGE - 1, 1);
	before = left();
	EQUAL(cudaFreeAsync(player->send, (cudaStream_t)player->stream), 0);
	settle(player);
	HOLDS(comes_back_within(before + BUFFER, 30000));
	take_memory(player, 0, own);
	EQUAL(cudaFree(NULL), 0);
	HOLDS(cudaFree((char *)player->send + 64) != 0); /* NCCL's buffers stay what they were */
	fill(player, LARGE - 2, 2);
	pthread_barrier_wait(&together);
	call(player, 2);
	settle(player);
	check_sum(player, LARGE - 2, 2);
	player_close(player);
}

static void its_kin_do_the_same(void **state)
{
	(void)state;
	play(kin);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(memory_comes_back_at_once, no_misuse),
	        cmocka_unit_test_teardown(who_is_out_of_memory_frees_and_allocates_again, no_misuse),
	        cmocka_unit_test_teardown(what_a_call_under_way_names_comes_back_with_its_end, no_misuse),
	        cmocka_unit_test_teardown(what_a_graph_had_comes_back_when_that_is_gone, no_misuse),
	        cmocka_unit_test_teardown(routers_are_asked_about_what_they_have_mapped_alone, no_misuse),
	        cmocka_unit_test_teardown(who_is_inside_the_communicator_holds_up_no_free, no_misuse),
	        cmocka_unit_test_teardown(what_nccl_frees_is_its_own_business, no_misuse),
	        cmocka_unit_test_teardown(without_its_router_it_comes_back_all_the_same, no_misuse),
	        cmocka_unit_test_teardown(its_kin_do_the_same, no_misuse),
	};
	char bytes[24];
	snprintf(bytes, sizeof bytes, "%zu", ALL);
	setenv("FAKE_CUDA_MEMORY", bytes, 1);
	setenv("FAKE_CUDA_CONTEXT_MEMORY", "1048576", 1);
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
