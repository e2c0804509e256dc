/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what a router has mapped and nobody uses: what is freed comes back within about a second, and what is
 * small beside the memory that is left stays mapped until a program comes back to it. The owner is another process
 * (owner.h).
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/copy/cuda_driver.h"
#include "router/idle_imports.h"
#include "router/new_imports.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/owner.h"

#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)
#define PART     32                                                /* of the memory that is left stays */
#define MACHINE  ((2 * PART + PART / 2) * (unsigned long long)ROOM) /* memory of a GPU: room for two */
#define EACH     3                                                 /* allocations of each of two ranks */
#define SPAN     2                                                 /* seconds for what goes after one */

/* ---- this process: the router ---- */

struct mapped {
	struct ferry_imports *imports;
	struct ferry_export_cell *cells;
};

static struct ferry_gpus gpus;
static struct mapped ranks[2]; /* on one GPU */
static struct mapped guest;    /* whose memory another GPU puts into */
static struct ferry_gpu *putting;
static _Atomic uint64_t over;

static int attach_rank(uint32_t rank)
{
	struct answer nothing = owner_tell((struct order){.kind = LEFT});
	struct mapped *mapped = &ranks[rank];
	mapped->cells = calloc(FERRY_MOST_EXPORTS, sizeof *mapped->cells);
	mapped->imports = ferry_imports_new(rank, nothing.exported.gpu, mapped->cells);
	return !mapped->cells || !mapped->imports || ferry_imports_open(mapped->imports, &gpus);
}

static int attach(void **state)
{
	CUuuid uuid;
	(void)state;
	struct answer nothing = owner_tell((struct order){.kind = LEFT});
	if (attach_rank(0) || attach_rank(1))
		return 1;
	guest.cells = calloc(FERRY_MOST_EXPORTS, sizeof *guest.cells);
	guest.imports = ferry_imports_new_guest(2, nothing.exported.gpu, guest.cells);
	CU(cuDeviceGetUuid(&uuid, 1));
	if (!guest.cells || !guest.imports || ferry_gpus_hold(&gpus, (const uint8_t *)&uuid, &putting))
		return 1;
	ferry_imports_other(guest.imports, putting);
	ferry_imports_follow(guest.imports, &over);
	return 0;
}

static int end(struct mapped *mapped)
{
	ferry_imports_abandon(mapped->imports);
	free(mapped->cells);
	return ferry_imports_free(mapped->imports) ? 0 : 1;
}

static int leave(void **state)
{
	(void)state;
	int failed = end(&ranks[0]) + end(&ranks[1]) + end(&guest);
	ferry_gpu_drop(putting);
	ferry_gpus_rest(&gpus, true);
	return failed;
}

static void map(const struct mapped *mapped, struct answer *answer)
{
	assert_int_equal(ferry_new_imports_map(mapped->imports, &answer->exported, answer->descriptors), ferrySuccess);
}

static bool is_mapped(const struct mapped *mapped, uint32_t index)
{
	return atomic_load(&mapped->cells[index].mapped);
}

/* Of the first ones of both ranks. */
static uint32_t count_mapped(void)
{
	uint32_t count = 0;
	for (uint32_t index = 0; index < EACH; index++)
		count += is_mapped(&ranks[0], index) + is_mapped(&ranks[1], index);
	return count;
}

static void sweep_all(void)
{
	ferry_idle_imports_sweep(ranks[0].imports);
	ferry_idle_imports_sweep(ranks[1].imports);
	ferry_idle_imports_sweep(guest.imports);
}

static void doze_ms(long milliseconds)
{
	struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	nanosleep(&pause, NULL);
}

/* Sweeps, as the mapper does, for so long, longer on a busy machine; true once the index names nothing. */
static bool is_forgotten_within(const struct mapped *mapped, uint32_t index, double seconds)
{
	for (int round = 0; round < (int)(seconds * 50) && is_mapped(mapped, index); round++) {
		sweep_all();
		doze_ms(20);
	}
	return !is_mapped(mapped, index);
}

/* By the clock: on a busy machine so many rounds take longer, and then it may go. */
static bool stays_for(const struct mapped *mapped, uint32_t index, double seconds)
{
	uint64_t begin = ferry_now_ns();
	while (is_mapped(mapped, index) && (double)(ferry_now_ns() - begin) < seconds * 1e9) {
		sweep_all();
		doze_ms(20);
	}
	return is_mapped(mapped, index);
}

/* An allocation, and named again about two seconds after it was forgotten: it comes at long intervals. */
static struct answer name_at_long_intervals(const struct mapped *mapped)
{
	struct answer answer = owner_allocate(0, 1);
	answer.exported.landing = mapped == &guest;
	map(mapped, &answer);
	assert_true(is_forgotten_within(mapped, 0, SPAN));
	doze_ms(2000);
	map(mapped, &answer);
	return answer;
}

static void free_all(struct answer *answers, uint32_t count)
{
	while (count)
		owner_tell((struct order){.kind = FREE, .at = answers[--count].at});
}

/* Exported again after some time, as long as it is the same memory: it stays for that time, and longer. */
static void what_is_named_once_in_a_while_stays_mapped_until_the_next_time(void **state)
{
	(void)state;
	struct mapped *rank = &ranks[0];
	struct answer answer = owner_allocate(4, 1);
	map(rank, &answer);
	assert_true(is_forgotten_within(rank, 4, SPAN));
	doze_ms(700);
	map(rank, &answer);
	assert_true(stays_for(rank, 4, 2));
	atomic_store(&rank->cells[4].used, 1);
	ferry_imports_ended(rank->imports, 1);
	sweep_all();
	assert_true(stays_for(rank, 4, 2.5)); /* twice the time between two uses */
	assert_true(is_forgotten_within(rank, 4, 4));
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	struct answer other = owner_allocate(4, 2); /* of other memory nothing is known */
	map(rank, &other);
	assert_true(is_forgotten_within(rank, 4, SPAN));
	owner_tell((struct order){.kind = FREE, .at = other.at});
}

static void what_is_large_beside_the_memory_that_is_left_comes_back_after_a_second_all_the_same(void **state)
{
	(void)state;
	enum { MOST = 3 * PART };
	static struct answer taken[MOST];
	uint32_t count = 0;
	struct answer answer = name_at_long_intervals(&ranks[0]);
	assert_true(stays_for(&ranks[0], 0, 1.5));
	while (owner_memory_left() >= PART / 2 * (unsigned long long)ROOM && count < MOST)
		taken[count++] = owner_tell((struct order){.kind = ALLOCATE});
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	uint64_t before = owner_memory_left();
	assert_true(is_forgotten_within(&ranks[0], 0, SPAN));
	assert_int_equal(owner_memory_left(), before + ROOM);
	free_all(taken, count);
}

static void map_all(struct answer answers[2][EACH])
{
	for (uint32_t rank = 0; rank < 2; rank++)
		for (uint32_t index = 0; index < EACH; index++)
			map(&ranks[rank], &answers[rank][index]);
}

/* Ranks that share a GPU, or communicators of one rank, have what stays in common; who goes leaves it to the other. */
static void what_stays_is_small_all_of_it_together(void **state)
{
	(void)state;
	static struct answer answers[2][EACH];
	for (uint32_t rank = 0; rank < 2; rank++)
		for (uint32_t index = 0; index < EACH; index++)
			answers[rank][index] = owner_allocate(index, 1);
	map_all(answers);
	for (uint32_t index = 0; index < EACH; index++)
		assert_true(is_forgotten_within(&ranks[0], index, SPAN) && is_forgotten_within(&ranks[1], index, SPAN));
	doze_ms(2000);
	map_all(answers);
	uint64_t begin = ferry_now_ns();
	while (ferry_now_ns() - begin < 1500000000) {
		sweep_all();
		doze_ms(20);
	}
	assert_int_equal(count_mapped(), 2);
	assert_int_equal(end(&ranks[0]), 0);
	assert_int_equal(attach_rank(0), 0);
	map(&ranks[1], &answers[1][0]);
	assert_true(stays_for(&ranks[1], 0, 1.5));
	free_all(answers[0], EACH);
	free_all(answers[1], EACH);
}

static void memory_of_a_guest_comes_back_after_a_second_all_the_same(void **state)
{
	(void)state;
	struct answer answer = name_at_long_intervals(&guest);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	uint64_t before = owner_memory_left();
	assert_true(is_forgotten_within(&guest, 0, SPAN));
	assert_int_equal(owner_memory_left(), before + ROOM);
}

/* The driver's function that is watched, in the table of them that the router calls. */
static struct ferry_cuda_driver *driver, real;
static unsigned asked;

static CUresult ask_memory(size_t *left, size_t *total)
{
	asked++;
	return real.MemGetInfo(left, total);
}

static void what_memory_is_left_is_asked_once_a_second(void **state)
{
	(void)state;
	const struct ferry_cuda_driver *found;
	struct answer answer = name_at_long_intervals(&ranks[0]);
	doze_ms(1100); /* so it is idle, and stays as it comes at longer intervals */
	assert_int_equal(ferry_cuda_driver_open(&found), ferrySuccess);
	driver = (struct ferry_cuda_driver *)(uintptr_t)found;
	real = *driver;
	driver->MemGetInfo = ask_memory;
	for (int i = 0; i < 20; i++) {
		sweep_all();
		doze_ms(20);
	}
	*driver = real;
	assert_true(is_mapped(&ranks[0], 0));
	assert_in_range(asked, 1, 2);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, attach, leave)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(what_is_named_once_in_a_while_stays_mapped_until_the_next_time),
	        TEST(what_is_large_beside_the_memory_that_is_left_comes_back_after_a_second_all_the_same),
	        TEST(what_stays_is_small_all_of_it_together),
	        TEST(memory_of_a_guest_comes_back_after_a_second_all_the_same),
	        TEST(what_memory_is_left_is_asked_once_a_second),
	};
	if (!owner_start("idle-imports", MACHINE))
		return 70;
	ferry_log_set_level(FERRY_LOG_ERROR);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	owner_end();
	return failed;
}
