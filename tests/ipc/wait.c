/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the doorbell: no wake-up is lost, nobody is woken for nothing, a timeout ends a wait. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/wait.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct ping_pong {
	struct ferry_doorbell bells[2];
	_Atomic uint64_t turns[2];
};

static void wait_for(struct ferry_doorbell *bell, _Atomic uint64_t *value, uint64_t wanted)
{
	while (atomic_load_explicit(value, memory_order_acquire) < wanted) {
		uint32_t seen = ferry_doorbell_prepare(bell);
		if (atomic_load_explicit(value, memory_order_acquire) >= wanted) {
			ferry_doorbell_cancel(bell);
			return;
		}
		ferry_doorbell_wait(bell, seen, -1); /* a lost wake-up hangs here, and ctest's timeout tells */
	}
}

static void play(struct ping_pong *game, int side, uint64_t rounds)
{
	for (uint64_t round = 1; round <= rounds; round++) {
		if (side)
			wait_for(&game->bells[1], &game->turns[0], round);
		atomic_store_explicit(&game->turns[side], round, memory_order_release);
		ferry_doorbell_ring(&game->bells[!side]);
		if (!side)
			wait_for(&game->bells[0], &game->turns[1], round);
	}
}

static void *play_thread(void *argument)
{
	play(argument, 1, 50000);
	return NULL;
}

static void no_wake_up_is_lost_between_threads(void **state)
{
	(void)state;
	static struct ping_pong game;
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, play_thread, &game), 0);
	play(&game, 0, 50000);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&game.bells[0].sleepers), 0);
	assert_int_equal(atomic_load(&game.bells[1].sleepers), 0);
}

static void no_wake_up_is_lost_between_processes(void **state)
{
	(void)state;
	int status;
	struct ping_pong *game = mmap(NULL, sizeof *game, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(game, MAP_FAILED);
	pid_t child = fork();
	assert_true(child >= 0);
	if (!child) {
		play(game, 1, 20000);
		_exit(0);
	}
	play(game, 0, 20000);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	munmap(game, sizeof *game);
}

static void ringing_makes_no_system_call_while_nobody_sleeps(void **state)
{
	(void)state;
	struct ferry_doorbell bell = {0};
	ferry_doorbell_ring(&bell);
	assert_int_equal(atomic_load(&bell.rings), 0); /* rings counts the wake-ups that reached the kernel */
}

static void a_ring_between_check_and_sleep_ends_the_sleep(void **state)
{
	(void)state;
	struct ferry_doorbell bell = {0};
	uint32_t seen = ferry_doorbell_prepare(&bell);
	ferry_doorbell_ring(&bell);
	uint64_t before = ferry_now_ns();
	ferry_doorbell_wait(&bell, seen, 100000000);
	assert_true(ferry_now_ns() - before < 50000000000ull);
	assert_int_equal(atomic_load(&bell.sleepers), 0);
}

static void a_wait_without_a_ring_ends_at_its_timeout(void **state)
{
	(void)state;
	struct ferry_doorbell bell = {0};
	uint64_t before = ferry_now_ns();
	ferry_doorbell_wait(&bell, ferry_doorbell_prepare(&bell), 20000);
	assert_true(ferry_now_ns() - before >= 19000000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_wake_up_is_lost_between_threads),
		cmocka_unit_test(no_wake_up_is_lost_between_processes),
		cmocka_unit_test(ringing_makes_no_system_call_while_nobody_sleeps),
		cmocka_unit_test(a_ring_between_check_and_sleep_ends_the_sleep),
		cmocka_unit_test(a_wait_without_a_ring_ends_at_its_timeout),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
