/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of other processes, by CUDA IPC: a handle names the owner's file, which is opened by way of /proc. A mapping
 * is one context's; the file, and so the memory, stays until its last holder has closed it.
 */
#include "tests/fake_cuda/fake.h"
#include "tests/foreign_file.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names the whole allocation, wherever in it the address lies. */
struct handle {
	pid_t pid;
	int file, physical;
	uint64_t start, bytes, inode; /* inode: a file number may by now be another file's */
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

static pthread_mutex_t import_lock = PTHREAD_MUTEX_INITIALIZER;

/* FAKE_CUDA_LIES: of an allocation of so many bytes or more a smaller one is named, as by a hostile process. */
static struct fake_region *pin_named(CUdeviceptr address)
{
	static CUdeviceptr small;
	size_t lies = fake_number("FAKE_CUDA_LIES", 0);
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	if (!lies || !region || region->bytes < lies || (!small && cuMemAlloc(&small, 2 << 20)))
		return region;
	fake_unpin(region);
	return fake_pin((uintptr_t)small, 1);
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUcontext context;
	struct stat status;
	CUresult refused = fake_enter_context(&context);
	struct fake_region *region = refused ? NULL : pin_named(address);
	if (!refused && (!handle || !region || region->kind != FAKE_DEVICE || fstat(region->file, &status)))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused) {
		struct handle made = {getpid(), region->file, fake_contexts[region->ordinal].physical, region->start,
		                      region->bytes, status.st_ino};
		memset(handle, 0, sizeof *handle);
		memcpy(handle, &made, sizeof made);
	}
	fake_unpin(region);
	return refused;
}

/* The file behind the handle, opened; -1 if it is no more, or another. */
static int open_file(const struct handle *handle)
{
	struct stat status;
	int file = foreign_file(handle->pid, handle->file);
	if (file < 0 || (!fstat(file, &status) && S_ISREG(status.st_mode) && status.st_ino == handle->inode &&
	                 (uint64_t)status.st_size == fake_whole_pages(handle->bytes)))
		return file;
	close(file);
	return -1;
}

struct wanted {
	const struct handle *handle;
	CUcontext context;
};

static bool is_wanted(const struct fake_region *region, const void *argument)
{
	const struct wanted *wanted = argument;
	return region->kind == FAKE_IMPORTED && region->inode == wanted->handle->inode &&
	       region->context == wanted->context;
}

/* What its owner has freed, and what has come to that place, cannot be mapped side by side. */
static bool is_in_its_place(const struct fake_region *region, const void *argument)
{
	const struct wanted *wanted = argument;
	const struct handle *handle = wanted->handle;
	return region->kind == FAKE_IMPORTED && region->context == wanted->context && region->owner == handle->pid &&
	       region->there < handle->start + handle->bytes && handle->start < region->there + region->bytes;
}

/* Under import_lock, which holds up the close of what is open already. */
static CUresult open_again_or_map(CUdeviceptr *address, const struct handle *given, int ordinal, CUcontext context)
{
	struct wanted wanted = {given, context};
	struct fake_region *open_one = fake_region_find(is_wanted, &wanted);
	struct fake_region region = {.bytes = given->bytes,
	                             .mapped = fake_whole_pages(given->bytes),
	                             .kind = FAKE_IMPORTED,
	                             .ordinal = ordinal,
	                             .context = context,
	                             .opens = 1,
	                             .owner = given->pid,
	                             .there = given->start,
	                             .inode = given->inode};
	if (open_one) {
		open_one->opens++;
		*address = open_one->start;
		return CUDA_SUCCESS;
	}
	if (fake_region_find(is_in_its_place, &wanted))
		return CUDA_ERROR_ALREADY_MAPPED;
	region.file = open_file(given);
	if (region.file < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult refused = fake_map_device(&region);
	if (!refused)
		*address = region.start;
	return refused;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	CUcontext context;
	struct handle given;
	CUresult refused = fake_enter_unsafe(&context);
	memcpy(&given, &handle, sizeof given);
	if (refused || !address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !given.bytes)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (fake_shut)
		return CUDA_ERROR_NOT_SUPPORTED;
	int ordinal = fake_visible_ordinal(given.physical);
	if (ordinal < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (given.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!fake_reaches(context->ordinal, ordinal))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&import_lock);
	refused = open_again_or_map(address, &given, ordinal, context);
	pthread_mutex_unlock(&import_lock);
	return refused;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr address)
{
	CUresult result = CUDA_SUCCESS;
	usleep(1000 * (unsigned)fake_number("FAKE_CUDA_CLOSE_MS", 0));
	pthread_mutex_lock(&import_lock);
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	bool last = !region || region->kind != FAKE_IMPORTED || region->start != address || region->opens == 1;
	if (!last)
		region->opens--;
	fake_unpin(region);
	if (last)
		result = fake_memory_free_now((uintptr_t)address, 1u << FAKE_IMPORTED);
	pthread_mutex_unlock(&import_lock);
	return result;
}
