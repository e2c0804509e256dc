/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Ferry adds to calls that stay NCCL's, in CPU time of the thread that makes them: the same calls are made with
 * and without, by ranks that are threads of this process on the doubles of the CUDA driver and of NCCL. The least of
 * each is compared: other programs on the machine make that no longer.
 */
#include "tests/nccl/players.h"

#include <math.h>
#include <time.h>

#define CALLS 1600
#define SIZES 4 /* one class each */
/*
 * Of what the double of NCCL takes alone, which is little; both are printed. Where calls take a millisecond, as on a
 * busy machine, each is measured, by two events.
 */
#define GROWTH 10

static double cost_us[RANKS];

static double cpu_us(void)
{
	struct timespec now;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* In place these stay NCCL's, whatever is learned, and are decided on as all others (orchestrator/split.c). */
static void exchange(struct player *player, size_t block)
{
	NCCL(ncclAlltoAll(player->receive, player->receive, block, ncclFloat32, player->rank.comm,
	                  (cudaStream_t)player->stream));
}

static void exchange_often(struct rank *rank)
{
	struct player *player = (struct player *)rank;
	player_open(player);
	double least = INFINITY;
	for (int i = 0; i < CALLS; i++) {
		double before = cpu_us();
		exchange(player, LARGE / RANKS * 2 * (size_t)(SIZES - i % SIZES) / SIZES);
		if (i >= CALLS / 4) /* settled by then */
			least = fmin(least, cpu_us() - before);
		if (i % 8 == 7)
			settle(player);
	}
	EQUAL(parts_of(player), 0);
	cost_us[rank->rank] = least;
	player_close(player);
}

static double slowest(void)
{
	double most = 0;
	for (int rank = 0; rank < RANKS; rank++)
		most = cost_us[rank] > most ? cost_us[rank] : most;
	return most;
}

static void a_call_that_stays_nccls_costs_little_more(void **state)
{
	(void)state;
	setenv("FERRY_SPLIT_WAIT", "30", 1);
	run(exchange_often);
	double with = slowest();
	setenv("FERRY_SPLIT_FLOOR", "1G", 1);
	run(exchange_often);
	double without = slowest();
	unsetenv("FERRY_SPLIT_FLOOR");
	unsetenv("FERRY_SPLIT_WAIT");
	print_message("a call takes its thread %.2f us, %.2f without Ferry\n", with, without);
	assert_true(with < GROWTH * without);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(a_call_that_stays_nccls_costs_little_more),
	};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
