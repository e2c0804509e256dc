/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what goes wrong in Ferry: NCCL goes on as it would alone, the log says so once, and a call of which a
 * part is lost ends with an error and not with wrong data. And of communicators that end, pause, or are made out of
 * others that Ferry shares. Over both doubles; ranks are threads.
 */
#include "tests/nccl/heard.h"
#include "tests/nccl/players.h"
#include "tests/sanitized.h"

#include "orchestrator/real.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#define ROUNDS REPEATS(5, 3)

static pthread_barrier_t together;

/* ---- calls ---- */

static ncclResult_t try_reduce(struct player *player, int round, ncclResult_t *error)
{
	*error = ncclSuccess;
	fill(player, LARGE, round);
	ncclResult_t result = ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum,
	                                    player->rank.comm, (cudaStream_t)player->stream);
	settle(player);
	NCCL(ncclCommGetAsyncError(player->rank.comm, error));
	return result;
}

/* By NCCL alone, and right. The communicator's error stays what it is. */
static void goes_on(struct player *player)
{
	ncclResult_t error;
	uint64_t parts = parts_of(player);
	for (int round = 0; round < ROUNDS; round++) {
		NCCL(try_reduce(player, round, &error));
		check_sum(player, LARGE, round);
	}
	EQUAL(parts_of(player), parts);
}

static void play(void (*work)(struct rank *rank))
{
	run_by_host_alone(&together, work);
}

/* ---- Ferry is not there ---- */

static void alone(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	goes_on(player);
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(rank->comm);
	struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
	ferry_shadow_comm_await(shadow_comm, UINT64_MAX);
	HOLDS(!ferry_shadow_comm_is_ready(shadow_comm));
	ferry_nccl_comm_release(comm);
	goes_on(player);
	player_close(player);
}

/* So many ranks say why. */
static void without(void (*work)(struct rank *rank), const char *why, int times)
{
	setenv("FERRY_LOG", "info", 1);
	listen_to_all();
	play(work);
	must_have_said(why, times);
	unsetenv("FERRY_LOG");
}

static void without_a_router_nccl_goes_on(void **state)
{
	char elsewhere[] = "/tmp/ferry-nowhere-XXXXXX";
	char *directory = strdup(getenv("FERRY_SOCKET_DIR"));
	(void)state;
	assert_non_null(mkdtemp(elsewhere));
	setenv("FERRY_SOCKET_DIR", elsewhere, 1);
	setenv("FERRY_ATTACH_TIMEOUT", "1", 1);
	without(alone, "stays NCCL's alone: no router answers on ", RANKS);
	unsetenv("FERRY_ATTACH_TIMEOUT");
	setenv("FERRY_SOCKET_DIR", directory, 1);
	rmdir(elsewhere);
	free(directory);
}

/* Not for each call. */
static void with_an_invalid_setting_nccl_goes_on_and_each_rank_says_so_once(void **state)
{
	(void)state;
	setenv("FERRY_SPLIT_FLOOR", "much", 1);
	without(alone, "FERRY_SPLIT_FLOOR=much: expected bytes", RANKS);
	setenv("FERRY_SPLIT_FLOOR", "256K", 1);
}

static void over_its_quota_nccl_goes_on(void **state)
{
	(void)state;
	setenv("FERRY_STAGING", "900G", 1);
	without(alone, "the job asks for 966367641600 bytes of staging", RANKS);
	unsetenv("FERRY_STAGING");
}

/* A limit of files' sizes stands for a full /dev/shm: both refuse the allocation (tests/ipc/arena.c). */
static void without_shared_memory_nccl_goes_on(void **state)
{
	struct rlimit limit;
	(void)state;
	signal(SIGXFSZ, SIG_IGN);
	getrlimit(RLIMIT_FSIZE, &limit);
	rlim_t soft = limit.rlim_cur;
	limit.rlim_cur = 1 << 16;
	setrlimit(RLIMIT_FSIZE, &limit);
	setenv("FERRY_SHM", "posix", 1);
	domains_open(1); /* the router has that limit */
	limit.rlim_cur = soft;
	setrlimit(RLIMIT_FSIZE, &limit);
	without(alone, "files of this process, which shared memory counts as, may have 65536", RANKS);
	domains_close();
	unsetenv("FERRY_SHM");
}

/* The last rank calls NCCL itself, as one that has no library of Ferry's, or has it turned off. */
static void one_has_none(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	if (rank->rank != RANKS - 1) {
		alone(rank);
		return;
	}
	buffers_open(player);
	NCCL(ferry_nccl_real_CommInitRank(&rank->comm, RANKS, rank->id, rank->rank));
	for (int round = 0; round < 2 * ROUNDS; round++) {
		fill(player, LARGE, round % ROUNDS);
		NCCL(ferry_nccl_real_AllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                               (cudaStream_t)player->stream));
		settle(player);
		check_sum(player, LARGE, round % ROUNDS);
	}
	NCCL(ferry_nccl_real_CommDestroy(rank->comm));
	buffers_close(player);
}

static void beside_a_rank_without_ferry_nccl_goes_on(void **state)
{
	(void)state;
	setenv("FERRY_ATTACH_TIMEOUT", "2", 1);
	without(one_has_none, "stays NCCL's alone: ", RANKS - 1);
	unsetenv("FERRY_ATTACH_TIMEOUT");
}

static const char *floors[RANKS];

/* Its shadow communicator reads the setting, which is the process's: one rank after the other. */
static void begin_with_floor(struct rank *rank)
{
	static pthread_mutex_t alone = PTHREAD_MUTEX_INITIALIZER;
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(rank->comm);
	pthread_mutex_lock(&alone);
	HOLDS(!atomic_load(&comm->shadow_comm) && ferry_nccl_comm_learn(comm));
	setenv("FERRY_SPLIT_FLOOR", floors[rank->rank], 1);
	struct ferry_shadow_comm *shadow_comm = ferry_nccl_comm_shadow_comm(comm);
	ferry_shadow_comm_begin(shadow_comm);
	pthread_mutex_unlock(&alone);
	ferry_nccl_comm_release(comm);
	ferry_shadow_comm_await(shadow_comm, UINT64_MAX);
	HOLDS(ferry_shadow_comm_is_ready(shadow_comm));
	pthread_barrier_wait(&together);
}

/* Every second call at the end is under the floor of rank 1, which does not number it. */
static void counted_differently(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	player_open(player);
	begin_with_floor(rank);
	goes_on(player);
	for (int round = 0; round < ROUNDS; round++)
		for (size_t count = LARGE; count >= LARGE / 4; count -= LARGE / 2) {
			fill(player, count, round);
			NCCL(ncclAllReduce(player->send, player->receive, count, ncclFloat32, ncclSum, rank->comm,
			                   (cudaStream_t)player->stream));
			settle(player);
			check_sum(player, count, round);
		}
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess);
	EQUAL(parts_of(player), 0);
	player_close(player);
}

static void counted_alike(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	begin_with_floor(rank);
	reduce_until(player, 3);
	player_close(player);
}

static void run_with_floor_of_rank_1(const char *floor, void (*work)(struct rank *rank), int times)
{
	ncclUniqueId id;
	ncclComm_t first; /* the process's first one would be begun when it is made */
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclCommInitRank(&first, 1, id, 0));
	NCCL(ncclCommDestroy(first));
	for (int i = 0; i < RANKS; i++)
		floors[i] = i == 1 ? floor : "256K";
	listen_to_all();
	play(work);
	must_have_said("FERRY_SPLIT_FLOOR is ", times);
	setenv("FERRY_SPLIT_FLOOR", "256K", 1);
}

static void ranks_that_number_other_calls_leave_all_of_them_to_nccl(void **state)
{
	(void)state;
	run_with_floor_of_rank_1("1M", counted_differently, RANKS);
	run_with_floor_of_rank_1("262144", counted_alike, 0);
}

/* ---- what it takes ---- */

static void odd(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 2);
	for (int round = 0; round < ROUNDS; round++) {
		/* NCCL's buffers may be anywhere; of the ranks one has them elsewhere than the others */
		size_t shift = (size_t)(round % RANKS == rank->rank ? 1 + round : 0);
		char *in = (char *)player->in + shift, *out = (char *)player->out + shift;
		uint64_t parts = parts_of(player);
		for (size_t i = 0; i < LARGE; i++) {
			float element = value_of(rank->rank, i, round);
			memcpy(in + i * sizeof element, &element, sizeof element);
		}
		pthread_barrier_wait(&together);
		NCCL(ncclAllReduce((char *)player->send + shift, (char *)player->receive + shift, LARGE, ncclFloat32,
		                   ncclSum, rank->comm, (cudaStream_t)player->stream));
		settle(player);
		for (size_t i = 0; i < LARGE; i++) {
			float got, sum = 0;
			memcpy(&got, out + i * sizeof got, sizeof got);
			for (int from = 0; from < RANKS; from++)
				sum += value_of(from, i, round);
			HOLDS(got == sum);
		}
		EQUAL(parts_of(player), parts + 1);
	}
	player_close(player);
}

static void buffers_that_are_not_aligned_are_taken(void **state)
{
	(void)state;
	play(odd);
}

/* ---- Ferry fails ---- */

static struct ferryComm *ferrys(struct player *player)
{
	struct ferry_nccl_comm *known = ferry_nccl_comm_take(player->rank.comm);
	struct ferryComm *comm = atomic_load(&known->shadow_comm)->comm;
	ferry_nccl_comm_release(known);
	return comm;
}

static void break_communicator(struct player *player)
{
	ferry_rank_fail(&ferrys(player)->rank, ferryRemoteError, "it was to fail");
}

/* As the kernel does when the process is killed. */
static void break_connections(struct player *player)
{
	shutdown(ferrys(player)->rank.links[0].socket, SHUT_RDWR);
}

static void break_router(struct player *player)
{
	(void)player;
	routers_kill(0);
}

static void (*break_now)(struct player *player);

/* Between calls: all have ended, so nothing is lost. */
static void broken(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	player_open(player);
	reduce_until(player, 3);
	NCCL(ncclCommGetAsyncError(rank->comm, &error)); /* a rank that has seen that all have ended */
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		break_now(player);
	pthread_barrier_wait(&together);
	while (!ferry_rank_failed(&ferrys(player)->rank))
		doze(1);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess);
	pthread_barrier_wait(&together);
	goes_on(player);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess);
	/* as a thread that was just making a call when this one found the failure */
	atomic_fetch_add(&ferrys(player)->journal.calls, 1);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclRemoteError);
	player_close(player);
}

/* In the middle of a call, in which rank 2 is not yet. */
static void broken_in_a_call(struct rank *rank)
{
	static _Atomic int held;
	struct player *player = (struct player *)rank;
	ncclResult_t error = ncclSuccess;
	player_open(player);
	reduce_until(player, 3);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	if (rank->rank == 2)
		held = 1;
	pthread_barrier_wait(&together);
	if (rank->rank == 2)
		EQUAL(fake_cuda_launch(player->stream, hold, &held), 0);
	fill(player, LARGE, 1);
	NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
	                   (cudaStream_t)player->stream));
	pthread_barrier_wait(&together);
	if (rank->rank == 1)
		break_now(player);
	pthread_barrier_wait(&together);
	held = 0;
	settle(player);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclRemoteError);
	pthread_barrier_wait(&together);
	goes_on(player);
	player_close(player);
}

static void breaks(void (*how)(struct player *player), void (*work)(struct rank *rank))
{
	break_now = how;
	listen_to_all();
	play(work);
	must_have_said("is NCCL's alone from now on", RANKS);
}

static void a_failed_communicator_leaves_nccl_alone(void **state)
{
	(void)state;
	breaks(break_communicator, broken);
}

static void a_rank_that_dies_in_ferry_leaves_nccl_alone(void **state)
{
	(void)state;
	breaks(break_connections, broken);
}

/* Nobody takes its place in that time. */
static void a_router_that_dies_leaves_nccl_alone(void **state)
{
	(void)state;
	setenv("FERRY_ATTACH_TIMEOUT", "8", 1);
	breaks(break_router, broken);
	unsetenv("FERRY_ATTACH_TIMEOUT");
}

static void a_part_that_is_lost_ends_with_an_error_and_not_with_wrong_data(void **state)
{
	(void)state;
	setenv("FERRY_TAKEOVER", "off", 1);
	breaks(break_router, broken_in_a_call);
	unsetenv("FERRY_TAKEOVER");
	breaks(break_connections, broken_in_a_call);
	breaks(break_communicator, broken_in_a_call);
}

/* ---- communicators ---- */

static void states(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 3);
	NCCL(ncclCommSuspend(rank->comm, 0));
	goes_on(player);
	NCCL(ncclCommResume(rank->comm));
	pthread_barrier_wait(&together);
	HOLDS(reduce_until(player, 3) == 3);
	pthread_barrier_wait(&together); /* nobody's calls are under way */
	NCCL(ncclCommRevoke(rank->comm, 0));
	goes_on(player);
	NCCL(ncclCommFinalize(rank->comm));
	goes_on(player); /* the double of NCCL still takes calls */
	player_close(player);
}

static void what_is_suspended_revoked_or_finalized_is_nccls_and_what_is_resumed_is_shared(void **state)
{
	(void)state;
	play(states);
}

/* Calls are under way, one rank's stream is not at them yet: all streams come to their ends. */
static void aborted(struct rank *rank)
{
	static _Atomic int held;
	struct player *player = (struct player *)rank;
	player_open(player);
	reduce_until(player, 3);
	if (rank->rank == 2)
		held = 1;
	pthread_barrier_wait(&together);
	if (rank->rank == 2)
		EQUAL(fake_cuda_launch(player->stream, hold, &held), 0);
	for (int i = 0; i < 3; i++)
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
	pthread_barrier_wait(&together);
	if (rank->rank == 2)
		held = 0; /* its own calls are given up before its stream comes to them, or behind that */
	NCCL(ncclCommAbort(rank->comm));
	settle(player);
	pthread_barrier_wait(&together);
	NCCL(ncclCommInitRank(&rank->comm, RANKS, rank->id, rank->rank));
	player_close(player);
}

static void an_abort_lets_all_streams_go_on(void **state)
{
	(void)state;
	play(aborted);
}

/*
 * Each device is in a call of NCCL's that waits for rank 2, whose stream is held before it; then comes one that is
 * worth it, and with it Ferry's communicator.
 */
static void stuck(struct player *player, _Atomic int *held)
{
	struct rank *rank = &player->rank;
	player_open(player);
	if (rank->rank == 2) {
		*held = 1;
		EQUAL(fake_cuda_launch(player->stream, hold, held), 0);
	}
	for (int i = 0; i < 2; i++)
		NCCL(ncclAllReduce(player->send, player->receive, i ? LARGE : SMALL, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
	pthread_barrier_wait(&together);
}

/* Rank 2 comes when the others have given it up. */
static void abort_stuck(struct player *player, _Atomic int *held)
{
	pthread_barrier_wait(&together);
	if (player->rank.rank == 2) {
		pthread_barrier_wait(&together);
		*held = 0;
	}
	NCCL(ncclCommAbort(player->rank.comm));
	settle(player);
	if (player->rank.rank != 2)
		pthread_barrier_wait(&together);
	pthread_barrier_wait(&together);
	NCCL(ncclCommInitRank(&player->rank.comm, RANKS, player->rank.id, player->rank.rank));
	player_close(player);
}

static void made_beside_stuck_calls(struct rank *rank)
{
	static _Atomic int held;
	struct player *player = (struct player *)rank;
	stuck(player, &held);
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(rank->comm);
	struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
	ferry_shadow_comm_await(shadow_comm, ferry_now_ns() + 10000000000u);
	HOLDS(ferry_shadow_comm_is_ready(shadow_comm));
	ferry_nccl_comm_release(comm);
	abort_stuck(player, &held);
}

static void what_is_stuck_in_nccl_does_not_hold_up_what_is_made_beside(void **state)
{
	(void)state;
	play(made_beside_stuck_calls);
}

/* The process's first communicator would be made at once. */
static void not_the_first(void)
{
	ncclUniqueId id;
	ncclComm_t first;
	NCCL(ncclGetUniqueId(&id));
	NCCL(ncclCommInitRank(&first, 1, id, 0));
	NCCL(ncclCommDestroy(first));
}

/* In a process that has not used its devices yet, with kernels that wait, which are loaded then. */
static void nor_what_uses_the_devices_for_the_first_time(void **state)
{
	(void)state;
	not_the_first();
	setenv("FERRY_WAIT", "kernel", 1);
	play(made_beside_stuck_calls);
}

static void comes_to_its_end(struct player *player)
{
	uint64_t deadline = ferry_now_ns() + 20000000000u;
	while (cuStreamQuery(player->stream) && ferry_now_ns() < deadline)
		doze(1);
	EQUAL(cuStreamQuery(player->stream), 0);
}

/* Of a communicator of all ranks but the last. */
static void reduce_without_last(struct player *player, ncclComm_t child)
{
	ncclComm_t own = player->rank.comm;
	uint64_t parts = 0;
	player->rank.comm = child;
	for (int round = 0; round < MOST && parts < 3; round++, parts = parts_of(player)) {
		fill(player, LARGE, round);
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclMax, child,
		                   (cudaStream_t)player->stream));
		settle(player);
		HOLDS(player->out[LARGE - 1] == value_of(RANKS - 2, LARGE - 1, round));
	}
	HOLDS(parts >= 3);
	player->rank.comm = own;
	NCCL(ncclCommDestroy(child));
}

static void revoke_it(struct player *player)
{
	NCCL(ncclCommRevoke(player->rank.comm, 0));
	comes_to_its_end(player);
}

static void shrink_it(struct player *player)
{
	int last = RANKS - 1;
	ncclComm_t child;
	NCCL(ncclCommShrink(player->rank.comm, &last, 1, &child, NULL, NCCL_SHRINK_ABORT));
	comes_to_its_end(player);
	reduce_without_last(player, child);
}

static void (*stop)(struct player *player);

/* The last rank never comes to calls that the others are in. */
static void stopped(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclResult_t error;
	player_open(player);
	reduce_until(player, 3);
	NCCL(ncclCommGetAsyncError(rank->comm, &error)); /* a rank that has seen that all have ended */
	uint64_t parts = parts_of(player);
	bool last = rank->rank == RANKS - 1;
	for (int i = 0; i < 3 && !last; i++)
		NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
		                   (cudaStream_t)player->stream));
	EQUAL(parts_of(player), parts + (last ? 0 : 3));
	pthread_barrier_wait(&together);
	if (!last)
		stop(player);
	NCCL(ncclCommGetAsyncError(rank->comm, &error));
	EQUAL(error, ncclSuccess); /* it was asked for */
	pthread_barrier_wait(&together);
	if (last && stop == revoke_it)
		revoke_it(player);
	if (stop == revoke_it)
		goes_on(player);
	player_close(player);
}

static void what_is_revoked_lets_all_streams_go_on(void **state)
{
	(void)state;
	stop = revoke_it;
	play(stopped);
}

static void what_aborts_to_shrink_lets_all_streams_go_on(void **state)
{
	(void)state;
	stop = shrink_it;
	play(stopped);
}

/* The last rank's is not begun: the others' wait for it. */
static void revoked_early(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	bool last = rank->rank == RANKS - 1;
	player_open(player);
	fill(player, LARGE, 1);
	if (last) {
		pthread_barrier_wait(&together);
		pthread_barrier_wait(&together);
	}
	NCCL(ncclAllReduce(player->send, player->receive, LARGE, ncclFloat32, ncclSum, rank->comm,
	                   (cudaStream_t)player->stream)); /* NCCL's, and the double revokes nothing */
	if (!last) {
		struct ferry_nccl_comm *comm = ferry_nccl_comm_take(rank->comm);
		struct ferry_shadow_comm *shadow_comm = atomic_load(&comm->shadow_comm);
		EQUAL(atomic_load(&shadow_comm->state), FERRY_SHADOW_COMM_MAKING);
		pthread_barrier_wait(&together);
		NCCL(ncclCommRevoke(rank->comm, 0));
		ferry_shadow_comm_await(shadow_comm, ferry_now_ns() + 20000000000u);
		EQUAL(atomic_load(&shadow_comm->state), FERRY_SHADOW_COMM_NONE);
		ferry_nccl_comm_release(comm);
		pthread_barrier_wait(&together);
	}
	settle(player);
	check_sum(player, LARGE, 1);
	player_close(player);
}

static void what_is_revoked_while_it_is_made_waits_for_nobody(void **state)
{
	(void)state;
	not_the_first();
	play(revoked_early);
}

/* As the player's own for a while. */
static void reduce_in(struct player *player, ncclComm_t child, bool shared)
{
	ncclComm_t own = player->rank.comm;
	player->rank.comm = child;
	if (shared)
		reduce_until(player, 3);
	else
		goes_on(player);
	player->rank.comm = own;
}

static void out_of_one(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	ncclComm_t child;
	player_open(player);
	reduce_until(player, 3);
	NCCL(ncclCommSplit(rank->comm, 0, RANKS - rank->rank, &child, NULL));
	reduce_in(player, child, true);
	NCCL(ncclCommDestroy(child));
	reduce_until(player, 3); /* the one that it came from is shared still */
	int last = RANKS - 1;
	child = NULL;
	if (rank->rank != last)
		NCCL(ncclCommShrink(rank->comm, &last, 1, &child, NULL, 0));
	pthread_barrier_wait(&together);
	if (child)
		reduce_without_last(player, child);
	player_close(player);
}

static void what_is_made_out_of_a_shared_one_is_shared(void **state)
{
	(void)state;
	play(out_of_one);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest first[] = {
	        cmocka_unit_test_teardown(nor_what_uses_the_devices_for_the_first_time, no_misuse),
	};
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(without_a_router_nccl_goes_on, no_misuse),
	        cmocka_unit_test_teardown(with_an_invalid_setting_nccl_goes_on_and_each_rank_says_so_once,
	                                  no_misuse),
	        cmocka_unit_test_teardown(over_its_quota_nccl_goes_on, no_misuse),
	        cmocka_unit_test_teardown(without_shared_memory_nccl_goes_on, no_misuse),
	        cmocka_unit_test_teardown(beside_a_rank_without_ferry_nccl_goes_on, no_misuse),
	        cmocka_unit_test_teardown(ranks_that_number_other_calls_leave_all_of_them_to_nccl, no_misuse),
	        cmocka_unit_test_teardown(buffers_that_are_not_aligned_are_taken, no_misuse),
	        cmocka_unit_test_teardown(a_failed_communicator_leaves_nccl_alone, no_misuse),
	        cmocka_unit_test_teardown(a_rank_that_dies_in_ferry_leaves_nccl_alone, no_misuse),
	        cmocka_unit_test_teardown(a_router_that_dies_leaves_nccl_alone, no_misuse),
	        cmocka_unit_test_teardown(a_part_that_is_lost_ends_with_an_error_and_not_with_wrong_data, no_misuse),
	        cmocka_unit_test_teardown(what_is_suspended_revoked_or_finalized_is_nccls_and_what_is_resumed_is_shared,
	                                  no_misuse),
	        cmocka_unit_test_teardown(an_abort_lets_all_streams_go_on, no_misuse),
	        cmocka_unit_test_teardown(what_is_revoked_lets_all_streams_go_on, no_misuse),
	        cmocka_unit_test_teardown(what_aborts_to_shrink_lets_all_streams_go_on, no_misuse),
	        cmocka_unit_test_teardown(what_is_revoked_while_it_is_made_waits_for_nobody, no_misuse),
	        cmocka_unit_test_teardown(what_is_stuck_in_nccl_does_not_hold_up_what_is_made_beside, no_misuse),
	        cmocka_unit_test_teardown(what_is_made_out_of_a_shared_one_is_shared, no_misuse),
	};
	fake_is_the_driver();
	return argc > 1 && !strcmp(argv[1], "first") ? cmocka_run_group_tests(first, NULL, NULL)
	                                             : cmocka_run_group_tests(tests, NULL, NULL);
}
