/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of what a rank exports to its router: names are found again, other memory at an address gets another name,
 * what cannot be exported is said to be so, and nothing of a rank that is gone stays. Over the double of the driver;
 * the router is another process.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/arena.h"
#include "ipc/attach.h"
#include "ipc/endpoint.h"
#include "ipc/error.h"
#include "rank-lib/call/exports.h"
#include "rank-lib/device/cuda_device.h"
#include "rank-lib/device/open.h"
#include "router/daemon/router.h"
#include "tests/fake_cuda/cuda_api.h"
#include "tests/folder.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CU(call) assert_int_equal((call), CUDA_SUCCESS)
#define PIECE    (2u << 20)
#define NEVER    0 /* the number of no submission: nothing keeps the router from forgetting */

/* ---- routers: children, made before this process starts the driver ---- */

struct router_process {
	pid_t pid;
	int lifeline; /* closed: it stops */
	char folder[64], path[80];
};

static struct router_process router, mortal, slow; /* slow: takes its time to unmap */

static void serve_until_closed(const char *folder, int ready, int lifeline)
{
	struct ferry_router *started;
	struct ferry_layout layout;
	char byte = 0;
	struct ferry_router_options options = {.layout = &layout, .directory = folder, .workers = 1};
	if (ferry_layout_load(&layout) || ferry_router_start(&options, &started) || write(ready, &byte, 1) != 1)
		_exit(1);
	if (read(lifeline, &byte, 1) < 0)
		_exit(2);
	ferry_router_stop(started);
	_exit(0);
}

static int start_router(struct router_process *process, const char *name)
{
	int ready[2], lifeline[2];
	char byte;
	if (!folder_make(process->folder, name))
		return 1;
	snprintf(process->path, sizeof process->path, "%s/router-0.sock", process->folder);
	if (pipe(ready) || pipe(lifeline))
		return 1;
	process->pid = fork();
	if (!process->pid) {
		close(lifeline[1]);
		serve_until_closed(process->folder, ready[1], lifeline[0]);
	}
	close(ready[1]);
	close(lifeline[0]);
	process->lifeline = lifeline[1];
	int failed = read(ready[0], &byte, 1) != 1;
	close(ready[0]);
	return failed;
}

static int stop_router(struct router_process *process)
{
	int status = 0;
	close(process->lifeline);
	waitpid(process->pid, &status, 0);
	folder_remove(process->folder);
	return status;
}

/* ---- this process: a rank ---- */

static struct ferry_device *device;
static CUcontext context;
static struct ferry_link to_router;
static struct ferry_arena arena;
static struct ferry_exports *exports;
static struct ferry_holders holders = {.count = 1};

static void attach(const struct router_process *to)
{
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_RANK,
	                                       .nranks = 1,
	                                       .ndomains = 1,
	                                       .staging = 1 << 16,
	                                       .flags = FERRY_ATTACH_MAPPED,
	                                       .descriptors = 1};
	static const _Atomic uint32_t failed;
	struct ferry_attach_reply reply;
	int descriptor, flags = memfd_create("words", MFD_CLOEXEC);
	memset(message.key, 7, sizeof message.key);
	ferry_link_init(&to_router);
	assert_int_equal(device->ops->pieces->identify(device, message.gpu), ferrySuccess);
	assert_int_equal(ferry_endpoint_connect(to->path, &to_router.socket), ferrySuccess);
	if (ferry_attach_exchange(to_router.socket, &message, NULL, &flags, &reply, &descriptor, 1, NULL))
		fail_msg("%s", ferry_last_message());
	close(flags);
	if (!(reply.flags & FERRY_ATTACH_MAPPED))
		fail_msg("not mapped: %s", reply.message);
	assert_int_equal(ferry_arena_map(descriptor, &arena), ferrySuccess);
	assert_int_equal(ferry_exports_open(device, &to_router, &failed, arena.export_cells, &holders, &exports),
	                 ferrySuccess);
}

static CUdeviceptr allocate(size_t bytes)
{
	CUdeviceptr at;
	CU(cuMemAlloc(&at, bytes));
	return at;
}

static uint64_t memory_left(void)
{
	size_t left, total;
	CU(cuMemGetInfo(&left, &total));
	return left;
}

static void pause_briefly(void)
{
	struct timespec pause = {.tv_nsec = 20000000};
	nanosleep(&pause, NULL);
}

/* Returns whether so much memory comes to be left, after a minute at most. */
static bool comes_to_be_left(uint64_t bytes)
{
	for (int round = 0; round < 3000 && memory_left() != bytes; round++)
		pause_briefly();
	return memory_left() == bytes;
}

static void detach(void)
{
	ferry_exports_close(exports);
	ferry_arena_unmap(&arena);
	close(to_router.socket);
}

static uint64_t at_start; /* memory left, with the router's context */

static int enter(void **state)
{
	(void)state;
	attach(&router);
	at_start = memory_left();
	return 0;
}

/* Whatever a test did, and freed: in the end the router has nothing of it. */
static int leave(void **state)
{
	(void)state;
	detach();
	return comes_to_be_left(at_start) ? 0 : 1;
}

static ferryResult_t try_name(CUdeviceptr at, uint64_t bytes, uint64_t submission, struct ferry_buffer_name *name)
{
	ferry_exports_begin(exports);
	return ferry_exports_name(exports, (void *)(uintptr_t)at, bytes,
	                          submission == FERRY_EXPORT_PINNED ? NEVER : submission,
	                          submission == FERRY_EXPORT_PINNED, false, name);
}

static struct ferry_buffer_name name_of(CUdeviceptr at, uint64_t bytes, uint64_t submission)
{
	struct ferry_buffer_name name;
	if (try_name(at, bytes, submission, &name))
		fail_msg("%s", ferry_last_message());
	assert_int_equal(atomic_load(&arena.export_cells[name.index].mapped), name.generation);
	return name;
}

/* Maps new memory into reserved addresses. */
static void map_piece(CUdeviceptr at, size_t bytes, CUmemAllocationHandleType type)
{
	CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                              .requestedHandleTypes = type,
	                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CU(cuMemCreate(&handle, bytes, &wanted, 0));
	CU(cuMemMap(at, bytes, 0, handle, 0));
	CU(cuMemRelease(handle));
	CU(cuMemSetAccess(at, bytes, &access, 1));
}

#define SHAREABLE CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static void buffers_of_an_allocation_share_its_name_and_differ_by_their_offsets(void **state)
{
	(void)state;
	CUdeviceptr at = allocate(100000), other = allocate(5000);
	struct ferry_buffer_name first = name_of(at + 300, 1000, NEVER);
	assert_int_equal(first.offset, 300);
	struct ferry_buffer_name again = name_of(at + 300, 1000, NEVER);
	assert_memory_equal(&again, &first, sizeof again);
	struct ferry_buffer_name whole = name_of(at, 100000, NEVER);
	assert_int_equal(whole.index, first.index);
	assert_int_equal(whole.generation, first.generation);
	assert_int_equal(whole.offset, 0);
	struct ferry_buffer_name elsewhere = name_of(other + 8, 8, NEVER);
	assert_int_not_equal(elsewhere.index, first.index);
	assert_int_equal(elsewhere.offset, 8);
	CU(cuMemFree(at));
	CU(cuMemFree(other));
}

static void other_memory_at_the_same_addresses_is_exported_anew(void **state)
{
	(void)state;
	CUdeviceptr at;
	CU(cuMemAddressReserve(&at, 4 * PIECE, 0, 0, 0));
	for (uint32_t i = 0; i < 3; i++)
		map_piece(at + i * PIECE, PIECE, SHAREABLE);
	struct ferry_buffer_name first = name_of(at + PIECE - 16, PIECE + 32, NEVER);
	assert_int_equal(first.offset, PIECE - 16);
	struct ferry_buffer_name inside = name_of(at + 2 * PIECE, 100, NEVER);
	assert_int_equal(inside.index, first.index);
	assert_int_equal(inside.generation, first.generation);
	for (uint32_t i = 0; i < 3; i++) { /* each of the pieces, not only the first */
		struct ferry_buffer_name before = name_of(at + 8, 3 * PIECE - 16, NEVER);
		CU(cuMemUnmap(at + i * PIECE, PIECE));
		map_piece(at + i * PIECE, PIECE, SHAREABLE);
		struct ferry_buffer_name after = name_of(at + 8, 3 * PIECE - 16, NEVER);
		assert_true(after.index != before.index || after.generation > before.generation);
	}
	CU(cuMemUnmap(at, 3 * PIECE));
	CU(cuMemAddressFree(at, 4 * PIECE));
}

/* What a call need not ask the driver about once more. */
static void what_is_held_is_exported_memory_that_is_still_there(void **state)
{
	(void)state;
	CUdeviceptr at = allocate(100000), other = allocate(5000);
	void *buffer = (void *)(uintptr_t)at;
	name_of(at, 1, NEVER);
	ferry_exports_begin(exports);
	assert_true(ferry_exports_hold(exports, buffer, 100000));
	assert_false(ferry_exports_hold(exports, buffer, 100001));
	assert_false(ferry_exports_hold(exports, buffer, 0));
	assert_false(ferry_exports_hold(exports, (void *)(uintptr_t)other, 1));
	CU(cuMemFree(at));
	ferry_exports_begin(exports);
	assert_false(ferry_exports_hold(exports, buffer, 1));
	CU(cuMemFree(other));
}

/* So a call with it would not wait. */
static void what_the_router_has_is_mapped_there_and_still_the_same_memory(void **state)
{
	(void)state;
	CUdeviceptr at = allocate(100000);
	void *buffer = (void *)(uintptr_t)at;
	struct ferry_buffer_name name;
	assert_false(ferry_exports_have(exports, buffer, 100000, false));
	uint32_t index = name_of(at, 1, NEVER).index;
	ferry_exports_begin(exports);
	assert_true(ferry_exports_have(exports, buffer, 100000, false));
	assert_false(ferry_exports_have(exports, buffer, 100001, false));
	assert_false(ferry_exports_have(exports, buffer, 0, false));
	assert_false(ferry_exports_have(exports, buffer, 1, true)); /* not for what others put into it */
	assert_int_equal(ferry_exports_name(exports, buffer, 1, NEVER, false, true, &name), ferrySuccess);
	assert_true(ferry_exports_have(exports, buffer, 1, true));
	for (int round = 0; round < 200 && atomic_load(&arena.export_cells[index].mapped); round++)
		pause_briefly(); /* until it has been idle for long enough */
	assert_int_equal(atomic_load(&arena.export_cells[index].mapped), 0);
	assert_false(ferry_exports_have(exports, buffer, 1, false));
	name_of(at, 1, NEVER);
	assert_true(ferry_exports_have(exports, buffer, 1, false));
	CU(cuMemFree(at));
	ferry_exports_begin(exports);
	assert_false(ferry_exports_have(exports, buffer, 1, false));
}

static void allocations_that_come_and_go_are_never_taken_for_each_other(void **state)
{
	(void)state;
	uint64_t seen_generation[FERRY_MOST_EXPORTS] = {0};
	uint64_t before = memory_left();
	for (int round = 0; round < 200; round++) {
		CUdeviceptr at = allocate(40000 + (size_t)(round % 3) * 4096);
		struct ferry_buffer_name name = name_of(at + 16, 30000, NEVER);
		assert_true(name.generation > seen_generation[name.index]);
		seen_generation[name.index] = name.generation;
		CU(cuMemFree(at));
	}
	assert_true(comes_to_be_left(before));
}

static void memory_that_cannot_be_exported_is_told_apart(void **state)
{
	(void)state;
	struct ferry_buffer_name name;
	CUdeviceptr pool, at, ordinary = allocate(4096);
	char host[64];
	CU(cuMemAllocAsync(&pool, 4096, NULL));
	CU(cuStreamSynchronize(NULL));
	assert_int_equal(try_name(pool, 4096, NEVER, &name), ferryInvalidUsage);
	assert_non_null(strstr(ferry_last_message(), "pool"));
	CU(cuMemAddressReserve(&at, 2 * PIECE, 0, 0, 0));
	map_piece(at, PIECE, SHAREABLE);
	map_piece(at + PIECE, PIECE, 0);
	assert_int_equal(try_name(at + PIECE - 8, 16, NEVER, &name), ferryInvalidUsage);
	assert_non_null(strstr(ferry_last_message(), "handle"));
	name_of(at, PIECE, NEVER);
	/* What is no memory of the device at all is another matter. */
	assert_int_equal(ferry_exports_name(exports, host, sizeof host, NEVER, false, false, &name),
	                 ferryInvalidArgument);
	assert_int_equal(try_name(ordinary, 1 << 20, NEVER, &name), ferryInvalidArgument);
	assert_int_equal(try_name(ordinary, 0, NEVER, &name), ferryInvalidArgument);
	assert_int_equal(try_name(ordinary + 8, UINT64_MAX - 4, NEVER, &name), ferryInvalidArgument);
	CU(cuMemFree(ordinary));
	CU(cuMemFreeAsync(pool, NULL));
	CU(cuMemUnmap(at, PIECE));
	CU(cuMemUnmap(at + PIECE, PIECE));
	CU(cuMemAddressFree(at, 2 * PIECE));
}

/* ---- a driver beside which another thread frees memory, and allocates, just now ---- */

static struct ferry_cuda_driver interrupted;
static const struct ferry_cuda_driver *uninterrupted;
static CUdeviceptr freed;
static size_t allocated; /* in its place, once */

static void interrupt(void)
{
	if (!freed)
		return;
	CU(cuMemFree(freed));
	assert_int_equal(allocate(allocated), freed);
	freed = 0;
}

static CUresult range_and_interrupt(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
	CUresult result = uninterrupted->MemGetAddressRange(start, bytes, address);
	interrupt();
	return result;
}

static CUresult interrupt_and_name(CUipcMemHandle *handle, CUdeviceptr address)
{
	interrupt();
	return uninterrupted->IpcGetMemHandle(handle, address);
}

static CUresult attributes_without_id(unsigned count, CUpointer_attribute *wanted, void **data,
                                              CUdeviceptr address)
{
	CUresult result = uninterrupted->PointerGetAttributes(count, wanted, data, address);
	for (unsigned i = 0; i < count; i++)
		if (wanted[i] == CU_POINTER_ATTRIBUTE_BUFFER_ID)
			*(unsigned long long *)data[i] = 0;
	return result;
}

static int interrupt_the_driver(void **state)
{
	uninterrupted = ferry_cuda_device(device)->driver;
	interrupted = *uninterrupted;
	ferry_cuda_device(device)->driver = &interrupted;
	return enter(state);
}

static int let_the_driver_be(void **state)
{
	ferry_cuda_device(device)->driver = uninterrupted;
	return leave(state);
}

#define MORE 12000 /* in as many pages as */
#define LESS 9000

static void what_is_freed_between_two_looks_is_not_taken_for_what_comes_to_its_place(void **state)
{
	(void)state;
	struct ferry_buffer_name name;
	CUdeviceptr at = allocate(LESS);
	interrupted.MemGetAddressRange = range_and_interrupt;
	freed = at;
	allocated = MORE;
	name_of(at, LESS, NEVER);
	assert_true(ferry_exports_hold(exports, (void *)(uintptr_t)at, MORE)); /* all of the memory that is there */
	CU(cuMemFree(at));
	/* while it is named */
	assert_int_equal(allocate(LESS), at);
	interrupted = *uninterrupted;
	interrupted.IpcGetMemHandle = interrupt_and_name;
	freed = at;
	assert_int_equal(try_name(at, LESS, NEVER, &name), ferryInvalidArgument);
	assert_non_null(strstr(ferry_last_message(), "was freed"));
	name_of(at, MORE, NEVER);
	CU(cuMemFree(at));
}

enum { OWN_DOMAIN, OTHER_DOMAIN };

static void open_journal(struct ferry_journal *journal)
{
	ferry_journal_init(journal);
	ferry_journal_open(journal, arena.rings, 1u << OWN_DOMAIN, 1u << OTHER_DOMAIN, arena.export_cells, NULL);
}

static ferryResult_t note_put_target(void *sum, const struct ferry_exported *exported, const int *descriptors,
                                     bool pinned)
{
	(void)descriptors;
	assert_false(pinned);
	*(uint32_t *)sum += 1 + 16 * exported->put_target;
	return ferrySuccess;
}

static const struct ferry_journal_reader put_target_reader = {.exported = note_put_target};

/* First for the rank itself, then under the same name for others, too. */
static void the_next_router_hears_what_others_put_into(void **state)
{
	(void)state;
	struct ferry_journal journal;
	struct ferry_journal_taken taken;
	struct ferry_buffer_name first, again;
	uint32_t given = 0;
	CUdeviceptr at = allocate(100000);
	open_journal(&journal);
	ferry_exports_journal(exports, &journal);
	for (int put_target = 0; put_target < 2; put_target++)
		assert_int_equal(ferry_exports_name(exports, (void *)(uintptr_t)at, 1000, 1, false, put_target,
		                                    put_target ? &again : &first),
		                 ferrySuccess);
	assert_memory_equal(&again, &first, sizeof again);
	assert_int_equal(ferry_journal_replay(&journal, OWN_DOMAIN, &put_target_reader, &given, &taken), ferrySuccess);
	assert_int_equal(given, 17);
	assert_int_equal(ferry_journal_replay(&journal, OTHER_DOMAIN, &put_target_reader, &given, &taken),
	                 ferrySuccess);
	assert_int_equal(given, 34);
	ferry_exports_journal(exports, NULL);
	ferry_journal_end(&journal);
	CU(cuMemFree(at));
}

/* Another router takes its router's place, which has been given what is held so far. */
static CUresult share_and_lose_the_router(void *descriptor, CUmemGenericAllocationHandle piece,
                                                  CUmemAllocationHandleType type, unsigned long long flags)
{
	for (uint32_t index = 0; index < FERRY_MOST_EXPORTS; index++)
		atomic_store(&arena.export_cells[index].mapped, 0);
	return uninterrupted->MemExportToShareableHandle(descriptor, piece, type, flags);
}

static void what_is_in_the_journal_after_the_next_router_came_is_exported_to_that(void **state)
{
	(void)state;
	struct ferry_journal journal;
	CUdeviceptr at;
	CU(cuMemAddressReserve(&at, PIECE, 0, 0, 0));
	map_piece(at, PIECE, SHAREABLE);
	open_journal(&journal);
	ferry_exports_journal(exports, &journal);
	struct ferry_buffer_name first = name_of(at, PIECE, NEVER);
	/* the router was about to unmap it, and has not */
	atomic_store(&arena.export_cells[first.index].mapped, FERRY_EXPORT_LEAVING);
	ferry_journal_sweep(&journal, true);
	atomic_store(&arena.export_cells[first.index].mapped, first.generation);
	interrupted.MemExportToShareableHandle = share_and_lose_the_router;
	struct ferry_buffer_name again = name_of(at, PIECE, NEVER); /* which sees that it is mapped */
	assert_memory_equal(&again, &first, sizeof again);
	ferry_exports_journal(exports, NULL);
	ferry_journal_end(&journal);
	CU(cuMemUnmap(at, PIECE));
	CU(cuMemAddressFree(at, PIECE));
}

static void memory_that_could_not_be_known_again_is_not_exported(void **state)
{
	(void)state;
	struct ferry_buffer_name name;
	CUdeviceptr at = allocate(PIECE);
	interrupted.PointerGetAttributes = attributes_without_id;
	assert_int_equal(try_name(at, PIECE, NEVER, &name), ferryInvalidUsage);
	assert_non_null(strstr(ferry_last_message(), "no id"));
	CU(cuMemFree(at));
}

static void what_is_pinned_stays_and_what_is_forgotten_gives_its_memory_back(void **state)
{
	(void)state;
	uint64_t before = memory_left();
	CUdeviceptr idle = allocate(3 * PIECE), pinned = allocate(5 * PIECE);
	struct ferry_buffer_name name = name_of(idle, PIECE, NEVER), kept = name_of(pinned, PIECE, FERRY_EXPORT_PINNED);
	name_of(pinned, PIECE, NEVER); /* which takes no pin away */
	CU(cuMemFree(idle));
	CU(cuMemFree(pinned));
	assert_int_equal(memory_left(), before - 8 * PIECE);
	assert_true(comes_to_be_left(before - 5 * PIECE));
	assert_int_equal(atomic_load(&arena.export_cells[name.index].mapped), 0);
	assert_int_equal(ferry_exports_forget(exports, &kept), ferrySuccess); /* it is pinned: nothing happens */
	assert_int_equal(memory_left(), before - 5 * PIECE);
	ferry_exports_unpin(exports, &kept);
	assert_int_equal(ferry_exports_forget(exports, &kept), ferrySuccess);
	assert_int_equal(memory_left(), before);
	assert_int_equal(ferry_exports_forget(exports, &kept), ferrySuccess); /* it is no name any more */
}

static void what_the_router_has_forgotten_is_exported_again_under_its_name(void **state)
{
	(void)state;
	CUdeviceptr at = allocate(PIECE);
	struct ferry_buffer_name name = name_of(at, PIECE, NEVER);
	for (int round = 0; round < 3000 && atomic_load(&arena.export_cells[name.index].mapped); round++)
		pause_briefly();
	assert_int_equal(atomic_load(&arena.export_cells[name.index].mapped), 0);
	struct ferry_buffer_name again = name_of(at, PIECE, 1);
	assert_memory_equal(&again, &name, sizeof again);
	assert_int_equal(atomic_load(&arena.export_cells[name.index].used), 1);
	CU(cuMemFree(at));
}

static void the_buffer_named_longest_ago_makes_room_and_pinned_ones_do_not(void **state)
{
	(void)state;
	static CUdeviceptr at[FERRY_MOST_EXPORTS + 1];
	struct ferry_buffer_name first = {0}, name;
	for (uint32_t i = 0; i <= FERRY_MOST_EXPORTS; i++)
		at[i] = allocate(512);
	for (uint32_t i = 0; i < FERRY_MOST_EXPORTS; i++) {
		name = name_of(at[i], 512, i ? FERRY_EXPORT_PINNED : NEVER);
		first = i ? first : name;
	}
	name = name_of(at[FERRY_MOST_EXPORTS], 512, NEVER);
	assert_int_equal(name.index, first.index);
	assert_true(name.generation > first.generation);
	first = name_of(at[0], 512, FERRY_EXPORT_PINNED);
	assert_int_equal(name.index, first.index);
	assert_true(name.generation < first.generation);
	assert_int_equal(try_name(at[FERRY_MOST_EXPORTS], 512, NEVER, &name), ferryRefused);
	for (uint32_t i = 0; i <= FERRY_MOST_EXPORTS; i++)
		CU(cuMemFree(at[i]));
}

/* Nothing of a rank stays that has gone without a word, in the middle of an export. */
static void a_rank_that_dies_leaves_no_memory_mapped(void **state)
{
	(void)state;
	attach(&router);
	uint64_t before = memory_left();
	CUdeviceptr at = allocate(PIECE);
	name_of(at, PIECE, 9);
	struct ferry_exported exported = {.kind = FERRY_EXPORTED_IPC, .index = 3, .generation = 1, .bytes = PIECE};
	CUipcMemHandle handle;
	CU(cuIpcGetMemHandle(&handle, at));
	memcpy(exported.handle, &handle, sizeof handle);
	assert_int_equal(device->ops->pieces->identify(device, exported.gpu), ferrySuccess);
	struct ferry_attach_message message = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_EXPORT,
	                                       .payload = ferry_exported_size(&exported)};
	assert_int_equal(send(to_router.socket, &message, sizeof message, 0), sizeof message);
	assert_int_equal(send(to_router.socket, &exported, message.payload, 0), message.payload);
	detach();
	CU(cuMemFree(at));
	assert_true(comes_to_be_left(before));
}

/* A thread that frees memory just then waits until the router has unmapped it. */
static void what_is_forgotten_while_the_router_unmaps_it_for_being_idle_is_unmapped_then(void **state)
{
	(void)state;
	attach(&slow);
	uint64_t before = memory_left();
	CUdeviceptr at = allocate(PIECE);
	struct ferry_buffer_name name = name_of(at, PIECE, NEVER);
	const struct timespec moment = {.tv_nsec = 1000000};
	while (atomic_load(&arena.export_cells[name.index].mapped) == name.generation)
		nanosleep(&moment, NULL);
	assert_false(ferry_exports_forget_range(exports, at, at + PIECE, NEVER, false));
	assert_int_equal(atomic_load(&arena.export_cells[name.index].mapped), 0);
	CU(cuMemFree(at));
	assert_int_equal(memory_left(), before);
	detach();
}

/* Without waiting for the answer to the first. */
static void a_second_request_before_the_first_is_answered_harms_nobody(void **state)
{
	(void)state;
	struct ferry_attach_message message = {FERRY_ATTACH_MAGIC, FERRY_ATTACH_ABI, .kind = FERRY_ATTACH_FORGET,
	                                       .index = 3};
	struct ferry_attach_reply reply;
	for (int i = 0; i < 100; i++)
		assert_int_equal(send(to_router.socket, &message, sizeof message, 0), sizeof message);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(recv(to_router.socket, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
		assert_true(reply.result == ferrySuccess || reply.result == ferryInvalidUsage);
	}
	CUdeviceptr at = allocate(PIECE);
	name_of(at, PIECE, NEVER);
	CU(cuMemFree(at));
}

static void a_router_that_dies_is_told_of(void **state)
{
	(void)state;
	struct ferry_buffer_name name;
	attach(&mortal);
	CUdeviceptr at = allocate(PIECE);
	name_of(at, PIECE, NEVER);
	kill(mortal.pid, SIGKILL);
	waitpid(mortal.pid, NULL, 0);
	CUdeviceptr other = allocate(PIECE);
	assert_int_equal(try_name(other, PIECE, NEVER, &name), ferryRemoteError);
	assert_int_equal(try_name(other, PIECE, NEVER, &name), ferryRemoteError);
	CU(cuMemFree(at));
	CU(cuMemFree(other));
	detach();
}

static void a_device_that_cannot_be_opened_gives_its_context_back(void **state)
{
	struct ferry_device *other;
	(void)state;
	setenv("FERRY_WAIT", "never", 1);
	assert_int_equal(ferry_device_open("cuda", 1, 0, &other), ferryInvalidArgument);
	unsetenv("FERRY_WAIT");
	assert_int_equal(cuDevicePrimaryCtxRelease(1), CUDA_ERROR_INVALID_CONTEXT); /* nobody retains it */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, enter, leave)

static int run(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(buffers_of_an_allocation_share_its_name_and_differ_by_their_offsets),
	        TEST(what_is_held_is_exported_memory_that_is_still_there),
	        TEST(other_memory_at_the_same_addresses_is_exported_anew),
	        TEST(what_the_router_has_is_mapped_there_and_still_the_same_memory),
	        TEST(allocations_that_come_and_go_are_never_taken_for_each_other),
	        TEST(memory_that_cannot_be_exported_is_told_apart),
	        cmocka_unit_test_setup_teardown(
	                what_is_freed_between_two_looks_is_not_taken_for_what_comes_to_its_place,
	                interrupt_the_driver, let_the_driver_be),
	        cmocka_unit_test_setup_teardown(what_is_in_the_journal_after_the_next_router_came_is_exported_to_that,
	                                        interrupt_the_driver, let_the_driver_be),
	        cmocka_unit_test_setup_teardown(memory_that_could_not_be_known_again_is_not_exported,
	                                        interrupt_the_driver, let_the_driver_be),
	        TEST(the_next_router_hears_what_others_put_into),
	        TEST(what_is_pinned_stays_and_what_is_forgotten_gives_its_memory_back),
	        TEST(what_the_router_has_forgotten_is_exported_again_under_its_name),
	        TEST(the_buffer_named_longest_ago_makes_room_and_pinned_ones_do_not),
	        TEST(a_second_request_before_the_first_is_answered_harms_nobody),
	        cmocka_unit_test(a_rank_that_dies_leaves_no_memory_mapped),
	        cmocka_unit_test(what_is_forgotten_while_the_router_unmaps_it_for_being_idle_is_unmapped_then),
	        cmocka_unit_test(a_router_that_dies_is_told_of),
	        cmocka_unit_test(a_device_that_cannot_be_opened_gives_its_context_back),
	};
	if (ferry_device_open("cuda", 0, 0, &device) || cuDevicePrimaryCtxRetain(&context, 0) ||
	    cuCtxSetCurrent(context))
		return 1;
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	ferry_device_close(device);
	return failed;
}

int main(void)
{
	char machine[32];
	snprintf(machine, sizeof machine, "exports-%d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	setenv("FERRY_DOMAINS", "1", 1);
	unsetenv("FERRY_LAYOUT");
	ferry_log_set_level(FERRY_LOG_ERROR);
	if (start_router(&router, "exports") || start_router(&mortal, "mortal"))
		return 1;
	setenv("FAKE_CUDA_CLOSE_MS", "400", 1);
	if (start_router(&slow, "slow"))
		return 1;
	int failed = run();
	close(mortal.lifeline);
	folder_remove(mortal.folder);
	failed |= stop_router(&slow); /* which has the first one's lifeline, too */
	return failed | stop_router(&router);
}
