/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the order in which a router's mapper does what ranks ask for: a program that waits in cudaFree does not
 * wait for others' contexts and mappings, and nobody waits for ever. What has waited is seen from inside the driver,
 * as the mapper asks it for the next thing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "router/copy/cuda_driver.h"
#include "router/gpu/mapper.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/owner.h"

#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define RANKS 5u
#define BUSY  3u   /* the rank whose mapping keeps the mapper busy */
#define MANY  200u /* FORGETs, far more than go before others in a row */

static struct ferry_mapper mapper;
static struct ferry_job *job;
static int router_side[RANKS], rank_side[RANKS];
static struct answer memory; /* that all ranks export */

/* The driver's functions that are watched, in the table of them that the mapper calls. */
static struct ferry_cuda_driver *driver, real;

static bool has_answer(uint32_t rank)
{
	struct pollfd entry = {rank_side[rank], POLLIN, 0};
	return poll(&entry, 1, 0) == 1;
}

static void hear(uint32_t rank)
{
	struct ferry_attach_reply reply;
	assert_int_equal(recv(rank_side[rank], &reply, sizeof reply, MSG_WAITALL), sizeof reply);
	assert_int_equal(reply.result, ferrySuccess);
	/* what the mapper has written before it is seen: it takes the lock before it answers */
	pthread_mutex_lock(&mapper.lock);
	pthread_mutex_unlock(&mapper.lock);
}

static void join(uint32_t rank)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK, .rank = rank, .flags = FERRY_ATTACH_MAPPED};
	memcpy(message.gpu, memory.exported.gpu, sizeof message.gpu);
	assert_int_equal(ferry_mapper_join(&mapper, job, &message, router_side[rank]), ferrySuccess);
}

static void export(uint32_t rank, uint32_t index)
{
	struct ferry_exported exported = memory.exported;
	exported.index = index;
	exported.generation = 1;
	assert_int_equal(ferry_mapper_export(&mapper, job->imports[rank], &exported, NULL, router_side[rank]),
	                 ferrySuccess);
}

static ferryResult_t forget(uint32_t rank, uint32_t index, bool unmapped)
{
	return ferry_mapper_forget(&mapper, job->imports[rank], index, unmapped, router_side[rank]);
}

/* All but the last have joined, which is left to tests. */
static int start(void **state)
{
	static const uint8_t key[FERRY_KEY_BYTES] = {7};
	const struct ferry_arena_shape shape = {.ndomains = 1, .nranks = RANKS, .staging = 1 << 20, .node = -1};
	const struct timeval patience = {.tv_sec = 60};
	const struct ferry_cuda_driver *found;
	(void)state;
	memory = owner_tell((struct order){.kind = ALLOCATE});
	ferry_mapper_init(&mapper, NULL);
	if (ferry_job_new(key, &shape, 1, &job) || ferry_cuda_driver_open(&found))
		return 1;
	driver = (struct ferry_cuda_driver *)(uintptr_t)found;
	real = *driver;
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		int sockets[2];
		if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets))
			return 1;
		setsockopt(sockets[1], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
		router_side[rank] = sockets[0];
		rank_side[rank] = sockets[1];
		if (rank == RANKS - 1)
			continue;
		join(rank);
		hear(rank);
	}
	return 0;
}

static int stop(void **state)
{
	(void)state;
	ferry_mapper_leave(&mapper, job);
	ferry_mapper_stop(&mapper);
	*driver = real; /* it unmaps what is idle until then */
	ferry_job_free(job);
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		close(router_side[rank]);
		close(rank_side[rank]);
	}
	owner_tell((struct order){.kind = FREE, .at = memory.at});
	return 0;
}

/* ---- the mapper is busy, until it is let go ---- */

static sem_t begun, released;

static CUresult hold_mapping(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	sem_post(&begun);
	sem_wait(&released);
	return real.IpcOpenMemHandle(address, handle, flags);
}

static void keep_busy(void)
{
	sem_init(&begun, 0, 0);
	sem_init(&released, 0, 0);
	driver->IpcOpenMemHandle = hold_mapping;
	export(BUSY, 5);
	sem_wait(&begun);
	driver->IpcOpenMemHandle = real.IpcOpenMemHandle;
}

/* ---- what waits for a mapping or a context, and what for cudaFree ---- */

static unsigned mapped;
static bool heard_before[2];      /* whether rank 0 had its answer: at the first mapping, at a later one */
static struct ferry_import *held; /* let go of at the first mapping */

static CUresult open_mapping(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	if (held)
		ferry_imports_release(held);
	held = NULL;
	heard_before[mapped++ ? 1 : 0] = has_answer(0);
	return real.IpcOpenMemHandle(address, handle, flags);
}

static void watch(void)
{
	mapped = 0;
	memset(heard_before, 0, sizeof heard_before);
	driver->IpcOpenMemHandle = open_mapping;
}

static void who_frees_memory_does_not_wait_for_what_others_have_asked_for_earlier(void **state)
{
	(void)state;
	export(0, 5);
	hear(0);
	keep_busy();
	watch();
	export(1, 5);
	join(RANKS - 1);
	assert_int_equal(forget(0, 5, true), ferrySuccess);
	sem_post(&released);
	hear(RANKS - 1);
	hear(1);
	hear(0); /* last, as it is looked for meanwhile */
	assert_int_equal(mapped, 1);
	assert_true(heard_before[0]);
}

/* The lane says that it is done while others are served: that is looked for before the next of them. */
static void who_frees_memory_in_use_does_not_wait_for_all_others_once_it_is_released(void **state)
{
	const struct ferry_buffer_name name = {.index = 5, .generation = 1};
	char *address;
	(void)state;
	export(0, 5);
	hear(0);
	assert_int_equal(ferry_imports_take(job->imports[0], &name, 1, NULL, &address, &held), ferrySuccess);
	keep_busy();
	watch();
	export(1, 5);
	export(2, 5);
	assert_int_equal(forget(0, 5, true), ferrySuccess);
	sem_post(&released);
	hear(2);
	hear(1);
	hear(0);
	assert_int_equal(mapped, 2);
	assert_true(heard_before[1]);
}

/* ---- nobody waits for ever ---- */

static uint32_t forgotten, before_mapping;
static bool all_asked;

/* Rank 0's is being forgotten: rank 1 asks for the same, and so on. */
static CUresult close_mapping(CUdeviceptr address)
{
	if (++forgotten < MANY)
		all_asked &= forget(forgotten % 2, 5 + forgotten / 2, false) == ferrySuccess;
	return real.IpcCloseMemHandle(address);
}

static CUresult count_forgotten(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	before_mapping = forgotten;
	return real.IpcOpenMemHandle(address, handle, flags);
}

static void who_exports_is_not_overtaken_for_ever_by_those_that_forget(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < MANY; i++) {
		export(i % 2, 5 + i / 2);
		hear(i % 2);
	}
	keep_busy();
	forgotten = before_mapping = 0;
	all_asked = true;
	driver->IpcCloseMemHandle = close_mapping;
	driver->IpcOpenMemHandle = count_forgotten;
	export(2, 5);
	assert_int_equal(forget(0, 5, false), ferrySuccess);
	sem_post(&released);
	for (uint32_t i = 0; i < MANY; i++)
		hear(i % 2);
	hear(2);
	assert_true(all_asked);
	assert_int_equal(forgotten, MANY);
	assert_in_range(before_mapping, 1, MANY / 2);
}

static uint32_t heard_at[3]; /* which ranks have their answer at each mapping, as bits */

static CUresult note_heard(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	for (uint32_t rank = 0; mapped < 3 && rank < BUSY; rank++)
		heard_at[mapped] |= (uint32_t)has_answer(rank) << rank;
	mapped++;
	return real.IpcOpenMemHandle(address, handle, flags);
}

static void who_has_waited_longest_is_next(void **state)
{
	(void)state;
	keep_busy();
	mapped = 0;
	memset(heard_at, 0, sizeof heard_at);
	driver->IpcOpenMemHandle = note_heard;
	for (uint32_t i = 0; i < 3; i++)
		export((i + 1) % 3, 5);
	sem_post(&released);
	for (uint32_t rank = 0; rank < 3; rank++) /* the rank that is answered last comes first */
		hear(rank);
	assert_int_equal(heard_at[1], 1u << 1);
	assert_int_equal(heard_at[2], 1u << 1 | 1u << 2);
}

/*
 * Rank 0's FORGET waits for a lane, so the mapper looks after all ranks between two requests: the ranks have left by
 * then. A rank that joins sees the end of its connection, as no job welcomes it.
 */
static void a_rank_that_has_left_is_answered_all_the_same(void **state)
{
	const struct ferry_buffer_name name = {.index = 5, .generation = 1};
	char *address, byte;
	(void)state;
	export(0, 5);
	hear(0);
	export(2, 5);
	hear(2);
	assert_int_equal(ferry_imports_take(job->imports[0], &name, 1, NULL, &address, &held), ferrySuccess);
	assert_int_equal(forget(0, 5, true), ferrySuccess);
	keep_busy();
	export(1, 5);
	assert_int_equal(forget(2, 5, false), ferrySuccess);
	join(RANKS - 1);
	close(router_side[RANKS - 1]);
	router_side[RANKS - 1] = -1;
	ferry_mapper_leave(&mapper, job);
	ferry_imports_release(held);
	held = NULL;
	sem_post(&released);
	hear(0);
	hear(1);
	hear(2);
	hear(BUSY);
	assert_int_equal(recv(rank_side[RANKS - 1], &byte, 1, 0), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(who_frees_memory_does_not_wait_for_what_others_have_asked_for_earlier),
	        TEST(who_frees_memory_in_use_does_not_wait_for_all_others_once_it_is_released),
	        TEST(who_exports_is_not_overtaken_for_ever_by_those_that_forget),
	        TEST(who_has_waited_longest_is_next),
	        TEST(a_rank_that_has_left_is_answered_all_the_same),
	};
	if (!owner_start("mapper", 0))
		return 70;
	ferry_log_set_level(FERRY_LOG_ERROR);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	owner_end();
	return failed;
}
