/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what a router maps for a rank: lanes take what is inside and of the generation named, and nothing else;
 * nothing goes that a submission or a lane may use, and all else does within about a second, so that memory which its
 * owner has freed comes back; but what is small beside the memory that is left stays until a program comes back to it.
 * The owner is another process (owner.h), and time is what sweeps are told.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "router/copy/cuda_driver.h"
#include "router/gpu/imports.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/owner.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)
#define PART     32 /* of the memory that is left may stay mapped though it is idle */
#define ROOM_FOR_TWO ((2 * PART + PART / 2) * (size_t)ROOM)

/* ---- this process: the router ---- */

static struct ferry_gpus gpus;
static struct ferry_export_cell *cells;
static struct ferry_imports table, *const imports = &table;
static uint64_t now = 1000000000;

/* The driver's functions, as the router calls them: what memory is left is what a test says. */
static struct ferry_cuda_driver *driver, real;
static size_t memory_left = ROOM_FOR_TWO;
static unsigned asked;

static CUresult ask_memory(size_t *left, size_t *total)
{
	asked++;
	*left = *total = memory_left;
	return CUDA_SUCCESS;
}

static int watch(void **state)
{
	const struct ferry_cuda_driver *found;
	(void)state;
	if (ferry_cuda_driver_open(&found))
		return 1;
	driver = (struct ferry_cuda_driver *)(uintptr_t)found;
	real = *driver;
	driver->MemGetInfo = ask_memory;
	return 0;
}

static int attach_rank(void **state)
{
	(void)state;
	struct answer nothing = owner_tell((struct order){.kind = LEFT});
	cells = calloc(FERRY_MOST_EXPORTS, sizeof *cells);
	ferry_imports_init(imports, 3, nothing.exported.gpu, cells, false);
	return !cells || ferry_imports_open(imports, &gpus);
}

static int leave(void **state)
{
	(void)state;
	ferry_imports_abandon(imports);
	free(cells);
	return ferry_imports_end(imports) ? 0 : 1;
}

static void rank_uses(uint32_t index, uint64_t submission)
{
	atomic_store(&cells[index].used, submission);
}

static ferryResult_t map_in(struct ferry_imports *into, const struct answer *answer)
{
	int descriptors[FERRY_MOST_PIECES];
	for (uint32_t i = 0; i < answer->exported.npieces; i++)
		descriptors[i] = dup(answer->descriptors[i]);
	ferryResult_t result = ferry_imports_map(into, &answer->exported, descriptors);
	for (uint32_t i = 0; i < answer->exported.npieces; i++)
		if (descriptors[i] >= 0)
			close(descriptors[i]);
	return result;
}

static ferryResult_t map(const struct answer *answer)
{
	return map_in(imports, answer);
}

static ferryResult_t take(uint32_t index, uint64_t generation, uint64_t offset, uint64_t bytes, char **address,
                          struct ferry_import **held)
{
	struct ferry_buffer_name name = {.index = index, .generation = generation, .offset = offset};
	return ferry_imports_take(imports, &name, bytes, NULL, address, held);
}

static unsigned char byte_at(const char *address)
{
	const unsigned char *bytes = fake_cuda_reach((CUdeviceptr)(uintptr_t)address);
	assert_non_null(bytes);
	return *bytes;
}

static bool is_named(uint32_t index)
{
	return atomic_load(&cells[index].mapped);
}

/* Sweeps, as the mapper does, for so long; true once the index names nothing. */
static bool is_forgotten_within(uint32_t index, double seconds)
{
	for (int round = 0; round < (int)(seconds * 10) && is_named(index); round++)
		ferry_imports_sweep(imports, now += 100000000);
	return !is_named(index);
}

static bool stays_for(uint32_t index, double seconds)
{
	return !is_forgotten_within(index, seconds);
}

static void lanes_reach_what_was_exported_and_nothing_beside_it(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = owner_allocate(1023, 5);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[1023].mapped), 5);
	assert_int_equal(take(1023, 5, 2 * PIECE, ROOM - 2 * PIECE, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 3);
	ferry_imports_release(held);
	assert_int_equal(take(1023, 5, ROOM, 0, &address, &held), ferrySuccess);
	ferry_imports_release(held);
	static const struct {
		uint32_t index;
		uint64_t generation, offset, bytes;
	} outside[] = {
	        {1023, 5, 0, ROOM + 1},
	        {1023, 5, ROOM, 1},
	        {1023, 5, ROOM + 1, 0},
	        {1023, 5, UINT64_MAX, 1},
	        {1023, 5, UINT64_MAX, 2},
	        {1023, 5, 1, UINT64_MAX},
	        {1023, 4, 0, 1},
	        {1023, 6, 0, 1},
	        {1022, 5, 0, 1},
	        {1024, 5, 0, 1},
	        {UINT32_MAX, 5, 0, 1},
	        {1023, 0, 0, 1},
	        {1023, 5, UINT64_MAX - 1, 16},
	};
	for (size_t i = 0; i < sizeof outside / sizeof *outside; i++)
		assert_int_equal(take(outside[i].index, outside[i].generation, outside[i].offset, outside[i].bytes,
		                      &address, &held),
		                 ferryInvalidUsage);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void pieces_are_one_range_in_their_order(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = owner_tell((struct order){.kind = CREATE, .npieces = 3});
	answer.exported.index = 7;
	answer.exported.generation = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	owner_drop_descriptors(&answer);
	assert_int_equal(take(7, 1, 0, answer.exported.bytes, &address, &held), ferrySuccess);
	for (uint64_t k = 0; k * PIECE < answer.exported.bytes; k++)
		assert_int_equal(byte_at(address + k * PIECE), k + 1);
	ferry_imports_release(held);
	assert_int_equal(take(7, 1, 1, answer.exported.bytes, &address, &held), ferryInvalidUsage);
	/* The memory of pieces too is the owner's again when nobody has it mapped. */
	uint64_t before = owner_memory_left();
	owner_tell((struct order){.kind = UNMAP, .at = answer.at, .npieces = 3});
	assert_int_equal(owner_memory_left(), before);
	ferry_imports_forget(imports, 7);
	assert_int_equal(owner_memory_left(), before + answer.exported.bytes);
}

static void another_generation_takes_the_place_and_the_old_one_stays_for_who_may_use_it(void **state)
{
	(void)state;
	struct ferry_import *held, *later;
	char *address, *other;
	struct answer first = owner_allocate(0, 1);
	assert_int_equal(map(&first), ferrySuccess);
	rank_uses(0, 10);
	assert_int_equal(take(0, 1, 0, ROOM, &address, &held), ferrySuccess);
	uint64_t before = owner_memory_left();
	struct answer second = owner_allocate(0, 2);
	owner_tell((struct order){.kind = FREE, .at = first.at});
	assert_int_equal(map(&second), ferrySuccess);
	assert_int_equal(atomic_load(&cells[0].mapped), 2);
	/* Submission 9 may not have begun: it finds what it names. */
	assert_int_equal(take(0, 1, PIECE, 1, &other, &later), ferrySuccess);
	assert_ptr_equal(other, address + PIECE);
	ferry_imports_release(later);
	assert_int_equal(take(0, 2, PIECE, 1, &other, &later), ferrySuccess);
	assert_ptr_not_equal(other, address + PIECE);
	ferry_imports_release(later);
	ferry_imports_ended(imports, 10);
	ferry_imports_sweep(imports, now);
	assert_int_equal(byte_at(address + PIECE), 2); /* a lane has it still */
	assert_int_equal(owner_memory_left(), before - ROOM);
	ferry_imports_release(held);
	ferry_imports_sweep(imports, now);
	assert_int_equal(owner_memory_left(), before);
	assert_int_equal(take(0, 1, 0, 1, &other, &later), ferryInvalidUsage);
	owner_tell((struct order){.kind = FREE, .at = second.at});
}

static void what_was_freed_is_unmapped_for_what_comes_to_its_place(void **state)
{
	(void)state;
	struct answer first = owner_allocate(0, 1);
	assert_int_equal(map(&first), ferrySuccess);
	rank_uses(0, 10);
	owner_tell((struct order){.kind = FREE, .at = first.at});
	struct answer second = owner_allocate(0, 2);
	assert_int_equal(second.at, first.at);
	assert_int_equal(map(&second), ferryRefused);
	assert_false(ferry_imports_clear(imports)); /* submission 10 may name it */
	assert_int_equal(map(&second), ferryRefused);
	ferry_imports_ended(imports, 10);
	assert_true(ferry_imports_clear(imports));
	assert_int_equal(atomic_load(&cells[0].mapped), 0);
	assert_int_equal(map(&second), ferrySuccess);
	assert_int_equal(atomic_load(&cells[0].mapped), 2);
	owner_tell((struct order){.kind = FREE, .at = second.at});
}

static void what_a_submission_may_name_is_not_forgotten_before_it_has_ended(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = owner_allocate(5, 1);
	assert_int_equal(map(&answer), ferrySuccess);
	rank_uses(5, 20);
	ferry_imports_ended(imports, 19);
	ferry_imports_forget(imports, 5);
	assert_int_equal(atomic_load(&cells[5].mapped), 0);
	assert_int_equal(take(5, 1, 0, ROOM, &address, &held), ferrySuccess);
	ferry_imports_ended(imports, 20);
	ferry_imports_release(held);
	ferry_imports_sweep(imports, now);
	assert_int_equal(take(5, 1, 0, ROOM, &address, &held), ferryInvalidUsage);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void memory_that_is_freed_comes_back_when_nobody_has_used_it_for_a_second(void **state)
{
	(void)state;
	struct answer idle = owner_allocate(1, 1), under_way = owner_allocate(2, 1), pinned = owner_allocate(3, 1);
	uint64_t before = owner_memory_left();
	assert_int_equal(map(&idle), ferrySuccess);
	assert_int_equal(map(&under_way), ferrySuccess);
	assert_int_equal(map(&pinned), ferrySuccess);
	rank_uses(1, 1);
	rank_uses(2, 2);
	rank_uses(3, FERRY_EXPORT_PINNED);
	ferry_imports_ended(imports, 1);
	owner_tell((struct order){.kind = FREE, .at = idle.at});
	owner_tell((struct order){.kind = FREE, .at = under_way.at});
	assert_int_equal(owner_memory_left(), before);
	assert_true(stays_for(1, 0.5));
	assert_true(is_forgotten_within(1, 2));
	assert_int_equal(owner_memory_left(), before + ROOM);
	/* It looked at the others as often, and they are older. */
	assert_int_equal(atomic_load(&cells[2].mapped), 1);
	assert_int_equal(atomic_load(&cells[3].mapped), 1);
	ferry_imports_ended(imports, 2);
	assert_true(is_forgotten_within(2, 3));
	assert_int_equal(atomic_load(&cells[3].mapped), 1);
	assert_int_equal(owner_memory_left(), before + 2 * ROOM);
	owner_tell((struct order){.kind = FREE, .at = pinned.at});
}

/* ---- what a program comes back to ---- */

/* Exported again, as long as it is the same memory, it is one that its program comes back to. */
static struct answer come_back_to(uint32_t index)
{
	struct answer answer = owner_allocate(index, 1);
	answer.exported.put_target = imports->foreign_rank;
	assert_int_equal(map(&answer), ferrySuccess);
	assert_true(is_forgotten_within(index, 2));
	now += 2000000000;
	assert_int_equal(map(&answer), ferrySuccess);
	return answer;
}

static void what_is_named_once_in_a_while_stays_mapped_until_the_next_time(void **state)
{
	(void)state;
	struct answer answer = come_back_to(4);
	assert_true(stays_for(4, 19));
	rank_uses(4, 1);
	ferry_imports_ended(imports, 1);
	assert_true(stays_for(4, 19));
	assert_true(is_forgotten_within(4, 2));
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	struct answer other = owner_allocate(4, 2); /* of other memory nothing is known */
	assert_int_equal(map(&other), ferrySuccess);
	assert_true(is_forgotten_within(4, 2));
	owner_tell((struct order){.kind = FREE, .at = other.at});
}

static void what_is_large_beside_the_memory_that_is_left_comes_back_after_a_second_all_the_same(void **state)
{
	(void)state;
	struct answer answer = come_back_to(0);
	assert_true(stays_for(0, 3));
	memory_left = PART * (size_t)ROOM - 1;
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	uint64_t before = owner_memory_left();
	assert_true(is_forgotten_within(0, 2));
	assert_int_equal(owner_memory_left(), before + ROOM);
	memory_left = ROOM_FOR_TWO;
}

static void what_stays_is_small_all_of_it_together_and_what_was_used_last(void **state)
{
	(void)state;
	enum { ALL = 4, ROOMS = 2 };
	struct answer answers[ALL];
	for (uint32_t index = 0; index < ALL; index++)
		answers[index] = come_back_to(index);
	for (uint32_t index = 1; index <= ROOMS; index++)
		rank_uses(index, 1);
	ferry_imports_ended(imports, 1);
	assert_true(stays_for(1, 3));
	for (uint32_t index = 0; index < ALL; index++) {
		assert_int_equal(is_named(index), index >= 1 && index <= ROOMS);
		owner_tell((struct order){.kind = FREE, .at = answers[index].at});
	}
}

/* As communicators of one rank do: the one that goes leaves it to the other. */
static void ranks_of_a_GPU_have_what_stays_in_common(void **state)
{
	(void)state;
	static struct ferry_imports other;
	struct answer answers[3] = {come_back_to(0), come_back_to(1), owner_allocate(0, 1)};
	struct ferry_export_cell *own = calloc(FERRY_MOST_EXPORTS, sizeof *own);
	assert_true(stays_for(0, 2));
	ferry_imports_init(&other, 4, answers[0].exported.gpu, own, false);
	assert_int_equal(ferry_imports_open(&other, &gpus), ferrySuccess);
	for (int alone = 0; alone < 2; alone++) {
		other.idled[0] = 1; /* so it comes back to that */
		assert_int_equal(map_in(&other, &answers[2]), ferrySuccess);
		for (int round = 0; round < 20; round++)
			ferry_imports_sweep(&other, now += 100000000);
		assert_int_equal(atomic_load(&own[0].mapped), alone);
		ferry_imports_forget(imports, 0);
		ferry_imports_sweep(imports, now);
	}
	ferry_imports_abandon(&other);
	free(own);
	assert_true(ferry_imports_end(&other));
	for (uint32_t i = 0; i < 3; i++)
		owner_tell((struct order){.kind = FREE, .at = answers[i].at});
}

static uint32_t watched;
static uint64_t said[2]; /* what its cell says when a mapping of it has been closed, and the next one */
static unsigned closed;

static CUresult close_mapping(CUdeviceptr address)
{
	if (closed < 2)
		said[closed++] = atomic_load(&cells[watched].mapped);
	return real.IpcCloseMemHandle(address);
}

static void what_memory_is_left_is_asked_once_a_second(void **state)
{
	(void)state;
	struct answer answer = come_back_to(0);
	assert_true(stays_for(0, 2));
	asked = 0;
	assert_true(stays_for(0, 5));
	assert_in_range(asked, 4, 6);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

/* A rank that waits until its memory is unmapped frees it then. */
static void a_cell_says_that_it_is_unmapped_when_it_is_and_not_when_an_older_one_was(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer first = owner_allocate(6, 1);
	assert_int_equal(map(&first), ferrySuccess);
	assert_int_equal(take(6, 1, 0, ROOM, &address, &held), ferrySuccess);
	struct answer second = owner_allocate(6, 2);
	assert_int_equal(map(&second), ferrySuccess);
	watched = 6;
	closed = 0;
	driver->IpcCloseMemHandle = close_mapping;
	ferry_imports_release(held);
	assert_true(ferry_imports_clear(imports)); /* both */
	driver->IpcCloseMemHandle = real.IpcCloseMemHandle;
	assert_int_equal(closed, 2);
	assert_int_equal(said[1], FERRY_EXPORT_LEAVING); /* while the second one is mapped */
	assert_int_equal(atomic_load(&cells[6].mapped), 0);
	owner_tell((struct order){.kind = FREE, .at = first.at});
	owner_tell((struct order){.kind = FREE, .at = second.at});
}

static void what_is_exported_again_under_its_generation_is_the_same_mapping(void **state)
{
	(void)state;
	struct ferry_import *held, *again;
	char *address, *same;
	struct answer answer = owner_allocate(9, 4);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(take(9, 4, 0, ROOM, &address, &held), ferrySuccess);
	atomic_store(&cells[9].mapped, 0); /* as the rank saw it while the router was about to forget it */
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[9].mapped), 4);
	assert_int_equal(take(9, 4, 0, ROOM, &same, &again), ferrySuccess);
	assert_ptr_equal(same, address);
	assert_int_equal(imports->nreplaced, 0); /* nothing was mapped a second time */
	ferry_imports_release(again);
	ferry_imports_release(held);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void what_is_not_as_the_rank_says_is_refused_and_leaves_nothing_behind(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer good = owner_allocate(4, 7), bad;
	struct answer pieces = owner_tell((struct order){.kind = CREATE, .npieces = 3});
	pieces.exported.index = 4;
	pieces.exported.generation = 8;
	assert_int_equal(map(&good), ferrySuccess);
	uint64_t before = owner_memory_left();
	bad = good;
	bad.exported.generation = 6; /* older */
	assert_int_equal(map(&bad), ferryInvalidArgument);
	bad = good;
	bad.exported.bytes--; /* the same, but of another length */
	assert_int_equal(map(&bad), ferryInvalidArgument);
	bad = good;
	bad.exported.generation = 8;
	bad.exported.bytes++; /* more than there is */
	assert_int_equal(map(&bad), ferryInvalidArgument);
	bad.exported.bytes = 1ull << 46;
	assert_int_equal(map(&bad), ferryInvalidArgument);
	bad = good;
	bad.exported.generation = 8;
	bad.exported.gpu[0] ^= 1;
	assert_int_equal(map(&bad), ferryInvalidArgument);
	bad = good;
	bad.exported.generation = 8;
	memset(bad.exported.handle, 0x5a, sizeof bad.exported.handle);
	assert_int_equal(map(&bad), ferryUnhandledDeviceError);
	bad = pieces;
	bad.exported.lengths[1] += PIECE; /* more than the second has */
	bad.exported.bytes += PIECE;
	assert_int_equal(map(&bad), ferryUnhandledDeviceError);
	bad = pieces;
	bad.descriptors[2] = memfd_create("no memory of a GPU", MFD_CLOEXEC);
	assert_int_equal(map(&bad), ferryUnhandledDeviceError);
	close(bad.descriptors[2]);
	bad = pieces;
	for (uint32_t i = 0; i < 3; i++)
		bad.exported.lengths[i] = 1ull << 45;
	bad.exported.bytes = 3ull << 45;
	assert_int_equal(map(&bad), ferryUnhandledDeviceError);
	owner_drop_descriptors(&pieces);
	/* What was there is there still; and what failed half way holds nothing. */
	assert_int_equal(take(4, 7, 0, ROOM, &address, &held), ferrySuccess);
	ferry_imports_release(held);
	assert_int_equal(owner_memory_left(), before);
	owner_tell((struct order){.kind = UNMAP, .at = pieces.at, .npieces = 3});
	assert_int_equal(owner_memory_left(), before + pieces.exported.bytes);
	owner_tell((struct order){.kind = FREE, .at = good.at});
}

static void a_table_that_a_lane_still_uses_is_freed_when_it_is_released(void **state)
{
	(void)state;
	struct answer answer = owner_allocate(0, 1);
	struct ferry_export_cell *own = calloc(FERRY_MOST_EXPORTS, sizeof *own);
	static struct ferry_imports other;
	struct ferry_buffer_name name = {.index = 0, .generation = 1};
	struct ferry_import *held;
	char *address;
	ferry_imports_init(&other, 1, answer.exported.gpu, own, false);
	assert_int_equal(ferry_imports_open(&other, &gpus), ferrySuccess);
	assert_int_equal(map_in(&other, &answer), ferrySuccess);
	assert_int_equal(ferry_imports_take(&other, &name, ROOM, NULL, &address, &held), ferrySuccess);
	ferry_imports_abandon(&other);
	free(own);
	ferry_imports_forget(&other, 0);
	assert_int_equal(map_in(&other, &answer), ferrySuccess); /* nothing, and nobody hears it */
	assert_false(ferry_imports_end(&other));
	assert_int_equal(byte_at(address), 1);
	ferry_imports_release(held);
	assert_true(ferry_imports_end(&other));
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void one_context_serves_all_ranks_of_a_GPU_and_is_given_up_when_nobody_holds_it(void **state)
{
	(void)state;
	struct answer nothing = owner_tell((struct order){.kind = LEFT});
	struct ferry_gpu *gpu[2], *unknown;
	assert_int_equal(atomic_load(&gpus.count), 1); /* of the tests before, not ten seconds ago */
	ferry_gpus_rest(&gpus, true);
	assert_int_equal(atomic_load(&gpus.count), 0);
	uint64_t before = owner_memory_left();
	assert_int_equal(ferry_gpus_hold(&gpus, nothing.exported.gpu, &gpu[0]), ferrySuccess);
	uint64_t with_context = owner_memory_left();
	assert_true(with_context < before);
	assert_int_equal(ferry_gpus_hold(&gpus, nothing.exported.gpu, &gpu[1]), ferrySuccess);
	assert_ptr_equal(gpu[0], gpu[1]);
	assert_int_equal(owner_memory_left(), with_context);
	nothing.exported.gpu[3] ^= 0x80;
	assert_int_equal(ferry_gpus_hold(&gpus, nothing.exported.gpu, &unknown), ferryInvalidUsage);
	ferry_gpu_drop(gpu[0]);
	assert_int_equal(ferry_gpus_rest(&gpus, true), -1);
	assert_int_equal(atomic_load(&gpus.count), 1);
	ferry_gpu_drop(gpu[1]);
	int64_t next = ferry_gpus_rest(&gpus, false);
	assert_true(next > 0 && next <= (int64_t)FERRY_GPU_IDLE_NS);
	assert_int_equal(atomic_load(&gpus.count), 1);
	ferry_gpus_rest(&gpus, true);
	assert_int_equal(owner_memory_left(), before);
}

/* ---- foreign ranks: ranks of other domains ---- */

static struct ferry_gpu *putting; /* a GPU that reaches the owner's */
static _Atomic uint64_t over;     /* as the foreign rank's own router says */

static int attach_foreign_rank(void **state)
{
	CUuuid uuid;
	(void)state;
	struct answer nothing = owner_tell((struct order){.kind = LEFT});
	CU(cuInit(0));
	CU(cuDeviceGetUuid(&uuid, 1));
	cells = calloc(FERRY_MOST_EXPORTS, sizeof *cells);
	ferry_imports_init(imports, 3, nothing.exported.gpu, cells, true);
	atomic_store(&over, 0);
	if (!cells || ferry_gpus_hold(&gpus, (const uint8_t *)&uuid, &putting))
		return 1;
	ferry_imports_other(imports, putting);
	return !ferry_gpu_reaches_uuid(putting, nothing.exported.gpu);
}

static int leave_foreign_rank(void **state)
{
	ferry_gpu_drop(putting);
	return leave(state);
}

static ferryResult_t hold_target(uint64_t generation, uint64_t offset, uint64_t bytes, const struct ferry_gpu *gpu,
                                 char **address, struct ferry_import **held)
{
	struct ferry_buffer_name name = {.index = 4, .generation = generation, .offset = offset};
	return ferry_imports_take(imports, &name, bytes, gpu, address, held);
}

static void a_foreign_rank_exports_what_others_put_into_once_the_job_is_ready(void **state)
{
	struct ferry_import *held;
	struct ferry_gpu *own;
	char *address;
	(void)state;
	struct answer answer = owner_allocate(4, 1);
	assert_false(ferry_imports_are_open(imports));
	ferry_imports_follow(imports, &over);
	assert_true(ferry_imports_are_open(imports));
	assert_int_equal(map(&answer), ferryInvalidArgument);
	assert_int_equal(atomic_load(&cells[4].mapped), 0);
	answer.exported.put_target = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[4].mapped), 1);
	assert_int_equal(hold_target(1, PIECE, ROOM - PIECE, putting, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 2);
	ferry_imports_release(held);
	assert_int_equal(hold_target(1, PIECE, ROOM, putting, &address, &held), ferryInvalidUsage);
	assert_int_equal(hold_target(2, 0, 1, putting, &address, &held), ferryInvalidUsage);
	/* Its own GPU may have a context here, too: nothing is mapped there. */
	assert_int_equal(ferry_gpus_hold(&gpus, answer.exported.gpu, &own), ferrySuccess);
	assert_int_equal(hold_target(1, 0, 1, own, &address, &held), ferryInvalidUsage);
	ferry_gpu_drop(own);
	ferry_imports_shut(imports);
	assert_int_equal(hold_target(1, 0, 1, putting, &address, &held), ferryRemoteError);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void what_no_GPU_of_a_router_reaches_is_not_exported_to_it(void **state)
{
	(void)state;
	struct answer answer = owner_allocate(4, 1);
	imports->nothers = 0;
	ferry_imports_follow(imports, &over);
	answer.exported.put_target = 1;
	assert_int_equal(map(&answer), ferryInvalidArgument);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void pieces_of_a_foreign_rank_are_mapped_for_who_puts_into_them(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = owner_tell((struct order){.kind = CREATE, .npieces = 3});
	answer.exported.index = 4;
	answer.exported.generation = 1;
	answer.exported.put_target = 1;
	ferry_imports_follow(imports, &over);
	assert_int_equal(map(&answer), ferrySuccess);
	owner_drop_descriptors(&answer);
	assert_int_equal(hold_target(1, 3 * PIECE, PIECE, putting, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 4);
	ferry_imports_release(held);
	assert_int_equal(hold_target(1, 0, answer.exported.bytes + 1, putting, &address, &held), ferryInvalidUsage);
	owner_tell((struct order){.kind = UNMAP, .at = answer.at, .npieces = 3});
}

static void what_a_foreign_rank_names_stays_until_its_call_is_over(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = owner_allocate(4, 1);
	uint64_t before = owner_memory_left();
	answer.exported.put_target = 1;
	ferry_imports_follow(imports, &over);
	assert_int_equal(map(&answer), ferrySuccess);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	rank_uses(4, 7);
	atomic_store(&over, 6);
	ferry_imports_ended(imports, 7); /* nothing that counts here */
	assert_true(stays_for(4, 1.5));
	assert_false(ferry_imports_clear(imports));
	assert_int_equal(hold_target(1, 0, ROOM, putting, &address, &held), ferrySuccess);
	atomic_store(&over, 7);
	assert_false(ferry_imports_clear(imports)); /* a lane puts into it */
	ferry_imports_release(held);
	assert_true(is_forgotten_within(4, 2));
	assert_int_equal(owner_memory_left(), before + ROOM);
}

static void memory_of_a_foreign_rank_comes_back_after_a_second_all_the_same(void **state)
{
	(void)state;
	ferry_imports_follow(imports, &over);
	struct answer answer = come_back_to(4);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
	uint64_t before = owner_memory_left();
	assert_true(is_forgotten_within(4, 2));
	assert_int_equal(owner_memory_left(), before + ROOM);
}

/* ---- ranks that come from another router ---- */

static int attach_imported_arena(void **state)
{
	CUuuid uuid;
	int refused = attach_rank(state);
	CU(cuDeviceGetUuid(&uuid, 1));
	ferry_imports_await_others(imports);
	return refused || ferry_gpus_hold(&gpus, (const uint8_t *)&uuid, &putting);
}

/* Of an older generation too, whether in one piece or several. */
static void what_was_exported_before_it_was_known_who_puts_is_mapped_for_them_then(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer first = owner_allocate(4, 1), second = owner_tell((struct order){.kind = CREATE, .npieces = 2});
	second.exported.index = 4;
	second.exported.generation = 2;
	first.exported.put_target = second.exported.put_target = 1;
	rank_uses(4, 1);
	assert_int_equal(map(&first), ferrySuccess);
	assert_int_equal(map(&second), ferrySuccess);
	owner_drop_descriptors(&second);
	assert_int_equal(atomic_load(&cells[4].mapped), 2);
	assert_int_equal(take(4, 2, 0, 1, &address, &held), ferrySuccess); /* its own lanes need not wait */
	ferry_imports_release(held);
	assert_int_equal(hold_target(1, 0, 1, putting, &address, &held), ferryInvalidUsage);
	ferry_imports_other(imports, putting);
	assert_int_equal(ferry_imports_land_later(imports), ferrySuccess);
	for (uint64_t generation = 1; generation <= 2; generation++) {
		assert_int_equal(hold_target(generation, PIECE, 1, putting, &address, &held), ferrySuccess);
		assert_int_equal(byte_at(address), 2);
		ferry_imports_release(held);
	}
	ferry_imports_ended(imports, 1);
	owner_tell((struct order){.kind = FREE, .at = first.at});
	owner_tell((struct order){.kind = UNMAP, .at = second.at, .npieces = 2});
}

static void what_is_exported_for_others_and_not_before_waits_for_them_too(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = owner_allocate(4, 1);
	assert_int_equal(map(&answer), ferrySuccess);
	answer.exported.put_target = 1;
	for (int again = 0; again < 2; again++)
		assert_int_equal(map(&answer), ferrySuccess);
	ferry_imports_other(imports, putting);
	assert_int_equal(ferry_imports_land_later(imports), ferrySuccess);
	assert_int_equal(hold_target(1, 0, ROOM, putting, &address, &held), ferrySuccess);
	ferry_imports_release(held);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

static void a_rank_that_goes_before_it_is_known_who_puts_leaves_nothing_behind(void **state)
{
	(void)state;
	uint64_t before = owner_memory_left();
	struct answer answer = owner_tell((struct order){.kind = CREATE, .npieces = 2});
	answer.exported.index = 4;
	answer.exported.generation = answer.exported.put_target = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	owner_drop_descriptors(&answer);
	owner_tell((struct order){.kind = UNMAP, .at = answer.at, .npieces = 2});
	ferry_imports_forget(imports, 4);
	assert_int_equal(owner_memory_left(), before);
}

static int attach_imported_arena_foreign_rank(void **state)
{
	int refused = attach_foreign_rank(state);
	imports->nothers = 0;
	ferry_imports_await_others(imports);
	ferry_imports_follow(imports, &over);
	return refused;
}

/* Descriptors are other jobs', too. Of a foreign rank nothing is mapped before, so these are none of memory. */
static void a_rank_has_no_more_kept_for_others_than_it_may(void **state)
{
	(void)state;
	ferryResult_t result = ferrySuccess;
	struct answer answer = owner_tell((struct order){.kind = LEFT});
	struct ferry_exported *exported = &answer.exported;
	exported->kind = FERRY_EXPORTED_VMM;
	exported->generation = exported->put_target = 1;
	exported->npieces = 200;
	for (uint32_t i = 0; i < 200; i++)
		answer.descriptors[i] = STDERR_FILENO;
	uint32_t kept = 0;
	for (; kept < 20 && !(result = map(&answer)); kept++)
		exported->index = kept + 1;
	assert_int_equal(kept, FERRY_MOST_LATER_PIECES / 200);
	assert_int_equal(result, ferrySystemError);
	assert_non_null(strstr(ferry_last_message(), "2200 pieces"));
}

static void a_foreign_rank_exports_before_it_is_known_who_puts(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = owner_allocate(4, 1);
	assert_int_equal(map(&answer), ferryInvalidArgument);
	answer.exported.put_target = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[4].mapped), 1);
	assert_int_equal(hold_target(1, 0, 1, putting, &address, &held), ferryInvalidUsage);
	ferry_imports_other(imports, putting);
	assert_int_equal(ferry_imports_land_later(imports), ferrySuccess);
	assert_int_equal(hold_target(1, PIECE, ROOM - PIECE, putting, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 2);
	ferry_imports_release(held);
	owner_tell((struct order){.kind = FREE, .at = answer.at});
}

/* The foreign rank's own router ends its calls meanwhile. */
static void what_a_foreign_rank_has_freed_before_it_is_known_who_puts_is_done_without(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer gone = owner_allocate(3, 1), stays = owner_allocate(4, 1);
	gone.exported.put_target = stays.exported.put_target = 1;
	assert_int_equal(map(&gone), ferrySuccess);
	assert_int_equal(map(&stays), ferrySuccess);
	rank_uses(3, 7); /* that is of what takes the index next */
	rank_uses(4, 7);
	owner_tell((struct order){.kind = FREE, .at = gone.at});
	ferry_imports_other(imports, putting);
	assert_int_not_equal(ferry_imports_land_later(imports), ferrySuccess);
	assert_true(ferry_imports_do_without(imports));
	assert_int_equal(atomic_load(&cells[3].mapped), 0);
	assert_int_equal(ferry_imports_land_later(imports), ferrySuccess);
	assert_int_equal(hold_target(1, 0, ROOM, putting, &address, &held), ferrySuccess);
	ferry_imports_release(held);
	assert_false(ferry_imports_do_without(imports));
	owner_tell((struct order){.kind = FREE, .at = stays.at});
}

#define IMPORTED_ARENA_FOREIGN_RANK(name)                                                                              \
	cmocka_unit_test_setup_teardown(name, attach_imported_arena_foreign_rank, leave_foreign_rank)
#define IMPORTED_ARENA(name) cmocka_unit_test_setup_teardown(name, attach_imported_arena, leave_foreign_rank)
#define FOREIGN_RANK(name)   cmocka_unit_test_setup_teardown(name, attach_foreign_rank, leave_foreign_rank)
#define TEST(name) cmocka_unit_test_setup_teardown(name, attach_rank, leave)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(lanes_reach_what_was_exported_and_nothing_beside_it),
	        TEST(pieces_are_one_range_in_their_order),
	        TEST(another_generation_takes_the_place_and_the_old_one_stays_for_who_may_use_it),
	        TEST(what_was_freed_is_unmapped_for_what_comes_to_its_place),
	        TEST(what_a_submission_may_name_is_not_forgotten_before_it_has_ended),
	        TEST(memory_that_is_freed_comes_back_when_nobody_has_used_it_for_a_second),
	        TEST(what_is_named_once_in_a_while_stays_mapped_until_the_next_time),
	        TEST(what_is_large_beside_the_memory_that_is_left_comes_back_after_a_second_all_the_same),
	        TEST(what_stays_is_small_all_of_it_together_and_what_was_used_last),
	        TEST(ranks_of_a_GPU_have_what_stays_in_common),
	        TEST(what_memory_is_left_is_asked_once_a_second),
	        TEST(a_cell_says_that_it_is_unmapped_when_it_is_and_not_when_an_older_one_was),
	        TEST(what_is_exported_again_under_its_generation_is_the_same_mapping),
	        TEST(what_is_not_as_the_rank_says_is_refused_and_leaves_nothing_behind),
	        TEST(a_table_that_a_lane_still_uses_is_freed_when_it_is_released),
	        cmocka_unit_test(one_context_serves_all_ranks_of_a_GPU_and_is_given_up_when_nobody_holds_it),
	        FOREIGN_RANK(a_foreign_rank_exports_what_others_put_into_once_the_job_is_ready),
	        FOREIGN_RANK(what_no_GPU_of_a_router_reaches_is_not_exported_to_it),
	        FOREIGN_RANK(pieces_of_a_foreign_rank_are_mapped_for_who_puts_into_them),
	        FOREIGN_RANK(what_a_foreign_rank_names_stays_until_its_call_is_over),
	        FOREIGN_RANK(memory_of_a_foreign_rank_comes_back_after_a_second_all_the_same),
	        IMPORTED_ARENA(what_was_exported_before_it_was_known_who_puts_is_mapped_for_them_then),
	        IMPORTED_ARENA(what_is_exported_for_others_and_not_before_waits_for_them_too),
	        IMPORTED_ARENA_FOREIGN_RANK(a_rank_has_no_more_kept_for_others_than_it_may),
	        IMPORTED_ARENA_FOREIGN_RANK(a_foreign_rank_exports_before_it_is_known_who_puts),
	        IMPORTED_ARENA_FOREIGN_RANK(what_a_foreign_rank_has_freed_before_it_is_known_who_puts_is_done_without),
	        IMPORTED_ARENA(a_rank_that_goes_before_it_is_known_who_puts_leaves_nothing_behind),
	};
	if (!owner_start("imports", 0))
		return 70;
	ferry_log_set_level(FERRY_LOG_ERROR);
	int failed = cmocka_run_group_tests(tests, watch, NULL);
	owner_end();
	return failed;
}
