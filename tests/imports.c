/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what a router maps for a rank: lanes take what is inside and of the generation named, and nothing else;
 * nothing goes that a submission or a lane may use, and all else does, so that memory which its owner has freed comes
 * back. The owner is another process.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "router/imports.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)
#define ROOM     (6u << 20)
#define PIECE    (2u << 20)
#define MACHINE  (2ull << 30) /* memory of a GPU */

/* ---- the owner: a child that allocates, exports and frees as it is told ---- */

enum order_kind { ALLOCATE, FREE, CREATE, UNMAP, LEFT };

struct order {
	enum order_kind kind;
	CUdeviceptr at;
	uint32_t npieces;
};

struct answer {
	struct ferry_exported exported; /* but index and generation */
	CUdeviceptr at;
	uint64_t left;
	int descriptors[FERRY_MOST_PIECES];
};

static int owner;

static void must(int failed)
{
	if (failed)
		_exit(70 + failed % 50);
}

/* Byte k * PIECE of what it owns is k + 1. */
static void mark(CUdeviceptr at, uint64_t bytes)
{
	for (uint64_t k = 0; k * PIECE < bytes; k++)
		must(cuMemsetD8Async(at + k * PIECE, (unsigned char)(k + 1), 1, NULL));
	must(cuStreamSynchronize(NULL));
}

static void create_pieces(struct answer *answer, uint32_t npieces)
{
	CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct ferry_exported *exported = &answer->exported;
	exported->kind = FERRY_EXPORTED_VMM;
	exported->npieces = npieces;
	for (uint32_t i = 0; i < npieces; i++)
		exported->bytes += exported->lengths[i] = (i % 2 + 1) * PIECE;
	must(cuMemAddressReserve(&answer->at, exported->bytes, 0, 0, 0));
	CUdeviceptr next = answer->at;
	for (uint32_t i = 0; i < npieces; i++) {
		CUmemGenericAllocationHandle handle;
		must(cuMemCreate(&handle, exported->lengths[i], &wanted, 0));
		must(cuMemMap(next, exported->lengths[i], 0, handle, 0));
		must(cuMemExportToShareableHandle(&answer->descriptors[i], handle,
		                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		must(cuMemRelease(handle));
		next += exported->lengths[i];
	}
	must(cuMemSetAccess(answer->at, exported->bytes, &access, 1));
	mark(answer->at, exported->bytes);
}

static void obey(const struct order *order, struct answer *answer)
{
	CUuuid uuid;
	CUipcMemHandle handle;
	size_t left, total;
	must(cuDeviceGetUuid(&uuid, 0));
	memcpy(answer->exported.gpu, &uuid, sizeof uuid);
	switch (order->kind) {
	case ALLOCATE:
		answer->exported.kind = FERRY_EXPORTED_IPC;
		answer->exported.bytes = ROOM;
		must(cuMemAlloc(&answer->at, ROOM));
		mark(answer->at, ROOM);
		must(cuIpcGetMemHandle(&handle, answer->at));
		memcpy(answer->exported.handle, &handle, sizeof handle);
		break;
	case FREE:
		must(cuMemFree(order->at));
		break;
	case CREATE:
		create_pieces(answer, order->npieces);
		break;
	case UNMAP:
		for (uint32_t i = 0; i < order->npieces; i++)
			must(cuMemUnmap(order->at + i / 2 * 3 * PIECE + i % 2 * PIECE, (i % 2 + 1) * PIECE));
		break;
	case LEFT:
		break;
	}
	must(cuMemGetInfo(&left, &total));
	answer->left = left;
}

static void obey_until_closed(int channel)
{
	struct order order;
	CUcontext context;
	CUdevice device;
	must(cuInit(0));
	must(cuDeviceGet(&device, 0));
	must(cuDevicePrimaryCtxRetain(&context, device));
	must(cuCtxSetCurrent(context));
	while (recv(channel, &order, sizeof order, MSG_WAITALL) == (ssize_t)sizeof order) {
		static struct answer answer;
		memset(&answer, 0, sizeof answer);
		obey(&order, &answer);
		_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof answer.descriptors)] = {0};
		struct iovec part = {&answer, sizeof answer};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
		size_t bytes = answer.exported.npieces * sizeof(int);
		if (bytes) {
			message.msg_control = control;
			message.msg_controllen = CMSG_SPACE(bytes);
			struct cmsghdr *head = CMSG_FIRSTHDR(&message);
			*head = (struct cmsghdr){CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
			memcpy(CMSG_DATA(head), answer.descriptors, bytes);
		}
		must(sendmsg(channel, &message, 0) != (ssize_t)sizeof answer);
		for (uint32_t i = 0; i < answer.exported.npieces; i++)
			close(answer.descriptors[i]);
	}
}

static struct answer tell(struct order order)
{
	static struct ferry_attach_received received;
	struct answer answer;
	assert_int_equal(send(owner, &order, sizeof order, MSG_NOSIGNAL), sizeof order);
	uint32_t ndescriptors = 0;
	size_t have = 0;
	int descriptors[FERRY_MOST_PIECES];
	while (have < sizeof answer) {
		ferry_attach_receive(owner, (char *)&answer + have, sizeof answer - have, &received);
		if (received.bytes == 0)
			fail_msg("the owner has ended");
		if (received.bytes < 0) {
			struct pollfd entry = {owner, POLLIN, 0};
			poll(&entry, 1, -1);
			continue;
		}
		for (uint32_t i = 0; i < received.ndescriptors; i++)
			descriptors[ndescriptors++] = received.descriptors[i];
		have += (size_t)received.bytes;
	}
	assert_int_equal(ndescriptors, answer.exported.npieces);
	memcpy(answer.descriptors, descriptors, ndescriptors * sizeof(int));
	return answer;
}

static void drop_descriptors(struct answer *answer)
{
	for (uint32_t i = 0; i < answer->exported.npieces; i++)
		close(answer->descriptors[i]);
}

static struct answer allocate(uint32_t index, uint64_t generation)
{
	struct answer answer = tell((struct order){.kind = ALLOCATE});
	answer.exported.index = index;
	answer.exported.generation = generation;
	return answer;
}

static uint64_t memory_left(void)
{
	return tell((struct order){.kind = LEFT}).left;
}

/* ---- this process: the router ---- */

static struct ferry_gpus gpus;
static struct ferry_export_cell *cells;
static struct ferry_imports *imports;

static int attach_rank(void **state)
{
	(void)state;
	struct answer nothing = tell((struct order){.kind = LEFT});
	cells = calloc(FERRY_MOST_EXPORTS, sizeof *cells);
	imports = ferry_imports_new(3, nothing.exported.gpu, cells);
	return !cells || !imports || ferry_imports_open(imports, &gpus);
}

static int leave(void **state)
{
	(void)state;
	ferry_imports_abandon(imports);
	free(cells);
	return ferry_imports_free(imports) ? 0 : 1;
}

static void rank_uses(uint32_t index, uint64_t submission)
{
	atomic_store(&cells[index].used, submission);
}

static ferryResult_t map(struct answer *answer)
{
	return ferry_imports_map(imports, &answer->exported, answer->descriptors);
}

static ferryResult_t take(uint32_t index, uint64_t generation, uint64_t offset, uint64_t bytes, char **address,
                          struct ferry_import **held)
{
	struct ferry_buffer_name name = {.index = index, .generation = generation, .offset = offset};
	return ferry_imports_take(imports, &name, bytes, address, held);
}

static unsigned char byte_at(const char *address)
{
	const unsigned char *bytes = fake_cuda_reach((CUdeviceptr)(uintptr_t)address);
	assert_non_null(bytes);
	return *bytes;
}

/* Sweeps, as the mapper does, for so long at most; true once the index names nothing. */
static bool is_forgotten_within(uint32_t index, double seconds)
{
	struct timespec pause = {.tv_nsec = 20000000};
	for (int round = 0; round < (int)(seconds * 50); round++) {
		ferry_imports_sweep(imports);
		if (!atomic_load(&cells[index].mapped))
			return true;
		nanosleep(&pause, NULL);
	}
	return false;
}

static void lanes_reach_what_was_exported_and_nothing_beside_it(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = allocate(1023, 5);
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
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void pieces_are_one_range_in_their_order(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = tell((struct order){.kind = CREATE, .npieces = 3});
	answer.exported.index = 7;
	answer.exported.generation = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	drop_descriptors(&answer);
	assert_int_equal(take(7, 1, 0, answer.exported.bytes, &address, &held), ferrySuccess);
	for (uint64_t k = 0; k * PIECE < answer.exported.bytes; k++)
		assert_int_equal(byte_at(address + k * PIECE), k + 1);
	ferry_imports_release(held);
	assert_int_equal(take(7, 1, 1, answer.exported.bytes, &address, &held), ferryInvalidUsage);
	/* The memory of pieces too is the owner's again when nobody has it mapped. */
	uint64_t before = memory_left();
	tell((struct order){.kind = UNMAP, .at = answer.at, .npieces = 3});
	assert_int_equal(memory_left(), before);
	ferry_imports_forget(imports, 7);
	assert_int_equal(memory_left(), before + answer.exported.bytes);
}

static void another_generation_takes_the_place_and_the_old_one_stays_for_who_may_use_it(void **state)
{
	(void)state;
	struct ferry_import *held, *later;
	char *address, *other;
	struct answer first = allocate(0, 1);
	assert_int_equal(map(&first), ferrySuccess);
	rank_uses(0, 10);
	assert_int_equal(take(0, 1, 0, ROOM, &address, &held), ferrySuccess);
	uint64_t before = memory_left();
	struct answer second = allocate(0, 2);
	tell((struct order){.kind = FREE, .at = first.at});
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
	ferry_imports_sweep(imports);
	assert_int_equal(byte_at(address + PIECE), 2); /* a lane has it still */
	assert_int_equal(memory_left(), before - ROOM);
	ferry_imports_release(held);
	ferry_imports_sweep(imports);
	assert_int_equal(memory_left(), before);
	assert_int_equal(take(0, 1, 0, 1, &other, &later), ferryInvalidUsage);
	tell((struct order){.kind = FREE, .at = second.at});
}

static void what_was_freed_is_unmapped_for_what_comes_to_its_place(void **state)
{
	(void)state;
	struct answer first = allocate(0, 1);
	assert_int_equal(map(&first), ferrySuccess);
	rank_uses(0, 10);
	tell((struct order){.kind = FREE, .at = first.at});
	struct answer second = allocate(0, 2);
	assert_int_equal(second.at, first.at);
	assert_int_equal(map(&second), ferryRefused);
	assert_false(ferry_imports_clear(imports)); /* submission 10 may name it */
	assert_int_equal(map(&second), ferryRefused);
	ferry_imports_ended(imports, 10);
	assert_true(ferry_imports_clear(imports));
	assert_int_equal(atomic_load(&cells[0].mapped), 0);
	assert_int_equal(map(&second), ferrySuccess);
	assert_int_equal(atomic_load(&cells[0].mapped), 2);
	tell((struct order){.kind = FREE, .at = second.at});
}

static void what_a_submission_may_name_is_not_forgotten_before_it_has_ended(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer answer = allocate(5, 1);
	assert_int_equal(map(&answer), ferrySuccess);
	rank_uses(5, 20);
	ferry_imports_ended(imports, 19);
	ferry_imports_forget(imports, 5);
	assert_int_equal(atomic_load(&cells[5].mapped), 0);
	assert_int_equal(take(5, 1, 0, ROOM, &address, &held), ferrySuccess);
	ferry_imports_ended(imports, 20);
	ferry_imports_release(held);
	ferry_imports_sweep(imports);
	assert_int_equal(take(5, 1, 0, ROOM, &address, &held), ferryInvalidUsage);
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void memory_that_is_freed_comes_back_when_nobody_has_used_it_for_a_second(void **state)
{
	(void)state;
	struct answer idle = allocate(1, 1), under_way = allocate(2, 1), pinned = allocate(3, 1);
	uint64_t before = memory_left();
	assert_int_equal(map(&idle), ferrySuccess);
	assert_int_equal(map(&under_way), ferrySuccess);
	assert_int_equal(map(&pinned), ferrySuccess);
	rank_uses(1, 1);
	rank_uses(2, 2);
	rank_uses(3, FERRY_EXPORT_PINNED);
	ferry_imports_ended(imports, 1);
	tell((struct order){.kind = FREE, .at = idle.at});
	tell((struct order){.kind = FREE, .at = under_way.at});
	assert_int_equal(memory_left(), before);
	assert_false(is_forgotten_within(1, 0.5));
	assert_true(is_forgotten_within(1, 2));
	assert_int_equal(memory_left(), before + ROOM);
	/* It looked at the others as often, and they are older. */
	assert_int_equal(atomic_load(&cells[2].mapped), 1);
	assert_int_equal(atomic_load(&cells[3].mapped), 1);
	ferry_imports_ended(imports, 2);
	assert_true(is_forgotten_within(2, 3));
	assert_int_equal(atomic_load(&cells[3].mapped), 1);
	assert_int_equal(memory_left(), before + 2 * ROOM);
	tell((struct order){.kind = FREE, .at = pinned.at});
}

static void doze_ms(long milliseconds)
{
	struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
	nanosleep(&pause, NULL);
}

/* Exported again after some time, as long as it is the same memory: it stays for that time, and longer. */
static void what_is_named_once_in_a_while_stays_mapped_until_the_next_time(void **state)
{
	(void)state;
	struct answer answer = allocate(4, 1);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_true(is_forgotten_within(4, 2));
	doze_ms(700);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_false(is_forgotten_within(4, 2));
	rank_uses(4, 1);
	ferry_imports_ended(imports, 1);
	ferry_imports_sweep(imports);
	assert_false(is_forgotten_within(4, 2.5)); /* twice the time between two uses */
	assert_true(is_forgotten_within(4, 4));
	tell((struct order){.kind = FREE, .at = answer.at});
	struct answer other = allocate(4, 2); /* of other memory nothing is known */
	assert_int_equal(map(&other), ferrySuccess);
	assert_true(is_forgotten_within(4, 2));
	tell((struct order){.kind = FREE, .at = other.at});
}

static void where_memory_is_short_nothing_stays_that_is_idle(void **state)
{
	(void)state;
	enum { MOST = 400 };
	static CUdeviceptr taken[MOST];
	uint32_t count = 0;
	struct answer answer = allocate(4, 1);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_true(is_forgotten_within(4, 2));
	doze_ms(2000);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_false(is_forgotten_within(4, 1.5));
	while (memory_left() >= MACHINE / 32 && count < MOST)
		taken[count++] = tell((struct order){.kind = ALLOCATE}).at;
	assert_true(is_forgotten_within(4, 1));
	while (count)
		tell((struct order){.kind = FREE, .at = taken[--count]});
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void what_is_exported_again_under_its_generation_is_the_same_mapping(void **state)
{
	(void)state;
	struct ferry_import *held, *again;
	char *address, *same;
	struct answer answer = allocate(9, 4);
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(take(9, 4, 0, ROOM, &address, &held), ferrySuccess);
	atomic_store(&cells[9].mapped, 0); /* as the rank saw it while the router was about to forget it */
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[9].mapped), 4);
	assert_int_equal(take(9, 4, 0, ROOM, &same, &again), ferrySuccess);
	assert_ptr_equal(same, address);
	assert_null(imports->retired); /* nothing was mapped a second time */
	ferry_imports_release(again);
	ferry_imports_release(held);
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void what_is_not_as_the_rank_says_is_refused_and_leaves_nothing_behind(void **state)
{
	(void)state;
	struct ferry_import *held;
	char *address;
	struct answer good = allocate(4, 7), bad;
	struct answer pieces = tell((struct order){.kind = CREATE, .npieces = 3});
	pieces.exported.index = 4;
	pieces.exported.generation = 8;
	assert_int_equal(map(&good), ferrySuccess);
	uint64_t before = memory_left();
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
	drop_descriptors(&pieces);
	/* What was there is there still; and what failed half way holds nothing. */
	assert_int_equal(take(4, 7, 0, ROOM, &address, &held), ferrySuccess);
	ferry_imports_release(held);
	assert_int_equal(memory_left(), before);
	tell((struct order){.kind = UNMAP, .at = pieces.at, .npieces = 3});
	assert_int_equal(memory_left(), before + pieces.exported.bytes);
	tell((struct order){.kind = FREE, .at = good.at});
}

static void a_table_that_a_lane_still_uses_is_freed_when_it_is_released(void **state)
{
	(void)state;
	struct answer answer = allocate(0, 1);
	struct ferry_export_cell *own = calloc(FERRY_MOST_EXPORTS, sizeof *own);
	struct ferry_imports *other = ferry_imports_new(1, answer.exported.gpu, own);
	struct ferry_buffer_name name = {.index = 0, .generation = 1};
	struct ferry_import *held;
	char *address;
	assert_int_equal(ferry_imports_open(other, &gpus), ferrySuccess);
	assert_int_equal(ferry_imports_map(other, &answer.exported, NULL), ferrySuccess);
	assert_int_equal(ferry_imports_take(other, &name, ROOM, &address, &held), ferrySuccess);
	ferry_imports_abandon(other);
	free(own);
	ferry_imports_forget(other, 0);
	assert_int_equal(ferry_imports_map(other, &answer.exported, NULL),
	                 ferrySuccess); /* nothing, and nobody hears it */
	assert_false(ferry_imports_free(other));
	assert_int_equal(byte_at(address), 1);
	ferry_imports_release(held);
	assert_true(ferry_imports_free(other));
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void one_context_serves_all_ranks_of_a_GPU_and_is_given_up_when_nobody_holds_it(void **state)
{
	(void)state;
	struct answer nothing = tell((struct order){.kind = LEFT});
	struct ferry_gpu *gpu[2], *unknown;
	assert_int_equal(atomic_load(&gpus.count), 1); /* of the tests before, not ten seconds ago */
	ferry_gpus_rest(&gpus, true);
	assert_int_equal(atomic_load(&gpus.count), 0);
	uint64_t before = memory_left();
	assert_int_equal(ferry_gpus_hold(&gpus, nothing.exported.gpu, &gpu[0]), ferrySuccess);
	uint64_t with_context = memory_left();
	assert_true(with_context < before);
	assert_int_equal(ferry_gpus_hold(&gpus, nothing.exported.gpu, &gpu[1]), ferrySuccess);
	assert_ptr_equal(gpu[0], gpu[1]);
	assert_int_equal(memory_left(), with_context);
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
	assert_int_equal(memory_left(), before);
}

/* ---- guests: ranks of other domains ---- */

static struct ferry_gpu *putting; /* a GPU that reaches the owner's */
static _Atomic uint64_t over;     /* as the guest's own router says */

static int attach_guest(void **state)
{
	CUuuid uuid;
	(void)state;
	struct answer nothing = tell((struct order){.kind = LEFT});
	must(cuInit(0));
	must(cuDeviceGetUuid(&uuid, 1));
	cells = calloc(FERRY_MOST_EXPORTS, sizeof *cells);
	imports = ferry_imports_new_guest(3, nothing.exported.gpu, cells);
	atomic_store(&over, 0);
	if (!cells || !imports || ferry_gpus_hold(&gpus, (const uint8_t *)&uuid, &putting))
		return 1;
	ferry_imports_other(imports, putting);
	return !ferry_gpu_reaches_uuid(putting, nothing.exported.gpu);
}

static int leave_guest(void **state)
{
	ferry_gpu_drop(putting);
	return leave(state);
}

static ferryResult_t land(uint64_t generation, uint64_t offset, uint64_t bytes, const struct ferry_gpu *gpu,
                          char **address, struct ferry_import **held)
{
	struct ferry_buffer_name name = {.index = 4, .generation = generation, .offset = offset};
	return ferry_imports_land(imports, &name, bytes, gpu, address, held);
}

static void a_guest_exports_what_others_put_into_once_the_job_is_ready(void **state)
{
	struct ferry_import *held;
	struct ferry_gpu *own;
	char *address;
	(void)state;
	struct answer answer = allocate(4, 1);
	assert_false(ferry_imports_are_open(imports));
	ferry_imports_follow(imports, &over);
	assert_true(ferry_imports_are_open(imports));
	assert_int_equal(map(&answer), ferryInvalidArgument);
	assert_int_equal(atomic_load(&cells[4].mapped), 0);
	answer.exported.landing = 1;
	assert_int_equal(map(&answer), ferrySuccess);
	assert_int_equal(atomic_load(&cells[4].mapped), 1);
	assert_int_equal(land(1, PIECE, ROOM - PIECE, putting, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 2);
	ferry_imports_let_go(held);
	assert_int_equal(land(1, PIECE, ROOM, putting, &address, &held), ferryInvalidUsage);
	assert_int_equal(land(2, 0, 1, putting, &address, &held), ferryInvalidUsage);
	/* Its own GPU may have a context here, too: nothing is mapped there. */
	assert_int_equal(ferry_gpus_hold(&gpus, answer.exported.gpu, &own), ferrySuccess);
	assert_int_equal(land(1, 0, 1, own, &address, &held), ferryInvalidUsage);
	ferry_gpu_drop(own);
	ferry_imports_shut(imports);
	assert_int_equal(land(1, 0, 1, putting, &address, &held), ferryRemoteError);
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void what_no_GPU_of_a_router_reaches_is_not_exported_to_it(void **state)
{
	(void)state;
	struct answer answer = allocate(4, 1);
	imports->nothers = 0;
	ferry_imports_follow(imports, &over);
	answer.exported.landing = 1;
	assert_int_equal(map(&answer), ferryInvalidArgument);
	tell((struct order){.kind = FREE, .at = answer.at});
}

static void pieces_of_a_guest_are_mapped_for_who_puts_into_them(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = tell((struct order){.kind = CREATE, .npieces = 3});
	answer.exported.index = 4;
	answer.exported.generation = 1;
	answer.exported.landing = 1;
	ferry_imports_follow(imports, &over);
	assert_int_equal(map(&answer), ferrySuccess);
	drop_descriptors(&answer);
	assert_int_equal(land(1, 3 * PIECE, PIECE, putting, &address, &held), ferrySuccess);
	assert_int_equal(byte_at(address), 4);
	ferry_imports_let_go(held);
	assert_int_equal(land(1, 0, answer.exported.bytes + 1, putting, &address, &held), ferryInvalidUsage);
	tell((struct order){.kind = UNMAP, .at = answer.at, .npieces = 3});
}

static void what_a_guest_names_stays_until_its_call_is_over(void **state)
{
	struct ferry_import *held;
	char *address;
	(void)state;
	struct answer answer = allocate(4, 1);
	uint64_t before = memory_left();
	answer.exported.landing = 1;
	ferry_imports_follow(imports, &over);
	assert_int_equal(map(&answer), ferrySuccess);
	tell((struct order){.kind = FREE, .at = answer.at});
	rank_uses(4, 7);
	atomic_store(&over, 6);
	ferry_imports_ended(imports, 7); /* nothing that counts here */
	assert_false(is_forgotten_within(4, 1.5));
	assert_false(ferry_imports_clear(imports));
	assert_int_equal(land(1, 0, ROOM, putting, &address, &held), ferrySuccess);
	atomic_store(&over, 7);
	assert_false(ferry_imports_clear(imports)); /* a lane puts into it */
	ferry_imports_let_go(held);
	assert_true(is_forgotten_within(4, 2));
	assert_int_equal(memory_left(), before + ROOM);
}

#define GUEST(name) cmocka_unit_test_setup_teardown(name, attach_guest, leave_guest)
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
	        TEST(where_memory_is_short_nothing_stays_that_is_idle),
	        TEST(what_is_exported_again_under_its_generation_is_the_same_mapping),
	        TEST(what_is_not_as_the_rank_says_is_refused_and_leaves_nothing_behind),
	        TEST(a_table_that_a_lane_still_uses_is_freed_when_it_is_released),
	        cmocka_unit_test(one_context_serves_all_ranks_of_a_GPU_and_is_given_up_when_nobody_holds_it),
	        GUEST(a_guest_exports_what_others_put_into_once_the_job_is_ready),
	        GUEST(what_no_GPU_of_a_router_reaches_is_not_exported_to_it),
	        GUEST(pieces_of_a_guest_are_mapped_for_who_puts_into_them),
	        GUEST(what_a_guest_names_stays_until_its_call_is_over),
	};
	char machine[32], bytes[24];
	int channels[2];
	snprintf(bytes, sizeof bytes, "%llu", MACHINE);
	setenv("FAKE_CUDA_MEMORY", bytes, 1);
	setenv("FAKE_CUDA_CONTEXT_MEMORY", "1048576", 1);
	snprintf(machine, sizeof machine, "imports-%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels))
		return 70;
	pid_t child = fork();
	if (!child) {
		close(channels[0]);
		obey_until_closed(channels[1]);
		_exit(0);
	}
	close(channels[1]);
	owner = channels[0];
	ferry_log_set_level(FERRY_LOG_ERROR);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	close(owner);
	return failed;
}
