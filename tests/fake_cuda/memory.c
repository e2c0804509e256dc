/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver knows: regions, sorted by address. Device memory is a file mapped twice: unreadable where its CUDA
 * address is, so that host code which touches it dies there, and readable where streams and kernels find it.
 */
#include "tests/fake_cuda/fake.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct fake_region **regions;
static size_t nregions, capacity;
static uint64_t next_id = 1;

/* The index of the first region that begins after the address. Under the lock. */
static size_t index_after(uintptr_t address)
{
	size_t low = 0, high = nregions;
	while (low < high) {
		size_t middle = (low + high) / 2;
		if (regions[middle]->start <= address)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static struct fake_region *region_at(uintptr_t address)
{
	size_t after = index_after(address);
	if (!after || address - regions[after - 1]->start >= regions[after - 1]->bytes)
		return NULL;
	return regions[after - 1];
}

struct fake_region *fake_pin(uintptr_t address, size_t bytes)
{
	pthread_rwlock_rdlock(&fake_lock);
	struct fake_region *region = region_at(address);
	if (region && bytes > region->bytes - (address - region->start))
		region = NULL;
	if (region)
		atomic_fetch_add_explicit(&region->busy, 1, memory_order_relaxed);
	pthread_rwlock_unlock(&fake_lock);
	return region;
}

void fake_unpin(struct fake_region *region)
{
	if (region)
		atomic_fetch_sub_explicit(&region->busy, 1, memory_order_release);
}

void *fake_cuda_reach(CUdeviceptr address)
{
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	char *found = region ? fake_at(region, (uintptr_t)address) : NULL;
	fake_unpin(region);
	return found;
}

static CUresult add_region(struct fake_region made)
{
	struct fake_region *region = malloc(sizeof *region);
	CUresult refused = CUDA_SUCCESS;
	if (!region)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*region = made;
	pthread_rwlock_wrlock(&fake_lock);
	if (nregions == capacity) {
		struct fake_region **larger = realloc(regions, (capacity + 64) * sizeof *larger);
		if (larger) {
			regions = larger;
			capacity += 64;
		}
	}
	size_t after = index_after(made.start);
	if (nregions == capacity)
		refused = CUDA_ERROR_OUT_OF_MEMORY;
	else if ((after && regions[after - 1]->start + regions[after - 1]->bytes > made.start) ||
	         (after < nregions && made.start + made.bytes > regions[after]->start))
		refused = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	if (!refused) {
		memmove(&regions[after + 1], &regions[after], (nregions - after) * sizeof *regions);
		regions[after] = region;
		nregions++;
		region->id = next_id++;
	}
	pthread_rwlock_unlock(&fake_lock);
	if (refused)
		free(region);
	return refused;
}

static void unmap(const struct fake_region *region)
{
	if (region->kind == FAKE_REGISTERED)
		return;
	munmap(region->reach, region->mapped);
	if (region->start != (uintptr_t)region->reach)
		munmap((void *)region->start, region->mapped);
	if (region->file >= 0)
		close(region->file);
}

CUresult fake_memory_free(uintptr_t address, unsigned kinds)
{
	unsigned turn = 0;
	pthread_rwlock_wrlock(&fake_lock);
	struct fake_region *region = region_at(address);
	if (region && (region->start != address || !(kinds >> region->kind & 1)))
		region = NULL;
	if (region) {
		size_t after = index_after(address);
		memmove(&regions[after - 1], &regions[after], (nregions - after) * sizeof *regions);
		nregions--;
	}
	pthread_rwlock_unlock(&fake_lock);
	if (!region)
		return CUDA_ERROR_INVALID_VALUE;
	while (atomic_load_explicit(&region->busy, memory_order_acquire))
		fake_pause(&turn);
	unmap(region);
	free(region);
	return CUDA_SUCCESS;
}

static size_t whole_pages(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (bytes + page - 1) / page * page;
}

/* Maps the file for the process and, out of its reach, for the device. */
static CUresult map_device(struct fake_region *region)
{
	void *reach = mmap(NULL, region->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, region->file, 0);
	void *start = mmap(NULL, region->mapped, PROT_NONE, MAP_SHARED, region->file, 0);
	if (reach != MAP_FAILED && start != MAP_FAILED) {
		region->reach = reach;
		region->start = (uintptr_t)start;
		CUresult refused = add_region(*region);
		if (!refused)
			return CUDA_SUCCESS;
	}
	if (reach != MAP_FAILED)
		munmap(reach, region->mapped);
	if (start != MAP_FAILED)
		munmap(start, region->mapped);
	close(region->file);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult allocate_device(CUdeviceptr *address, size_t bytes, int ordinal, enum fake_memory kind)
{
	struct fake_region region = {.bytes = bytes, .mapped = whole_pages(bytes), .kind = kind, .ordinal = ordinal};
	if (!address || !bytes || region.mapped < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	region.file = memfd_create("fake GPU memory", MFD_CLOEXEC);
	if (region.file < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (ftruncate(region.file, (off_t)region.mapped)) {
		close(region.file);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	CUresult refused = map_device(&region);
	if (!refused)
		*address = region.start;
	return refused;
}

static CUresult allocate_host(uintptr_t *address, size_t bytes, int ordinal, enum fake_memory kind)
{
	struct fake_region region = {.bytes = bytes, .mapped = whole_pages(bytes), .kind = kind, .ordinal = ordinal, .file = -1};
	if (!bytes || region.mapped < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	void *memory = mmap(NULL, region.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region.reach = memory;
	region.start = *address = (uintptr_t)memory;
	CUresult refused = add_region(region);
	if (refused)
		munmap(memory, region.mapped);
	return refused;
}

/* ---- the driver's names ---- */

static CUresult enter_unsafe(CUcontext *context)
{
	CUresult refused = fake_enter_context(context);
	return refused ? refused : fake_unsafe_call();
}

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
	CUcontext context;
	CUresult refused = enter_unsafe(&context);
	return refused ? refused : allocate_device(address, bytes, context->ordinal, FAKE_DEVICE);
}

/* The memory is there at once, which is earlier than promised; it goes when the stream comes to cuMemFreeAsync. */
CUresult CUDAAPI cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream given)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	return refused ? refused : allocate_device(address, bytes, stream->context->ordinal, FAKE_POOL);
}

CUresult CUDAAPI cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	bool fits = region && region->kind == FAKE_POOL && region->start == address;
	fake_unpin(region);
	if (!fits)
		return CUDA_ERROR_INVALID_VALUE;
	return fake_submit(stream, &(struct fake_operation){.kind = FAKE_FREE, .to = (uintptr_t)address}, 1);
}

/* Waits for the device, as the driver does except for memory of pools. */
static CUresult free_now(uintptr_t address, unsigned kinds)
{
	CUcontext context;
	CUresult refused = enter_unsafe(&context);
	if (refused || !address)
		return refused;
	struct fake_region *region = fake_pin(address, 1);
	int ordinal = region ? region->ordinal : -1;
	fake_unpin(region);
	if (ordinal >= 0)
		fake_drain_context(&fake_contexts[ordinal]);
	return fake_memory_free(address, kinds);
}

CUresult CUDAAPI cuMemFree(CUdeviceptr address)
{
	return free_now((uintptr_t)address, 1u << FAKE_DEVICE | 1u << FAKE_POOL | 1u << FAKE_MANAGED);
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	CUcontext context;
	uintptr_t made;
	CUresult refused = enter_unsafe(&context);
	if (!refused && (!address || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused)
		refused = allocate_host(&made, bytes, context->ordinal, FAKE_MANAGED);
	if (!refused)
		*address = made;
	return refused;
}

CUresult CUDAAPI cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	CUcontext context;
	uintptr_t made;
	CUresult refused = enter_unsafe(&context);
	if (!refused && (!memory || flags & ~7u))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused)
		refused = allocate_host(&made, bytes, context->ordinal, FAKE_PINNED);
	if (!refused)
		*memory = (void *)made;
	return refused;
}

CUresult CUDAAPI cuMemFreeHost(void *memory)
{
	return free_now((uintptr_t)memory, 1u << FAKE_PINNED);
}

CUresult CUDAAPI cuMemHostRegister(void *memory, size_t bytes, unsigned int flags)
{
	CUcontext context;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)memory;
	CUresult refused = enter_unsafe(&context);
	if (refused)
		return refused;
	if (!memory || !bytes || start % page || bytes % page || flags & ~15u)
		return CUDA_ERROR_INVALID_VALUE;
	if (msync(memory, bytes, MS_ASYNC)) /* ENOMEM: not all of it is mapped */
		return CUDA_ERROR_INVALID_VALUE;
	return add_region((struct fake_region){.start = start, .bytes = bytes, .mapped = bytes, .kind = FAKE_REGISTERED,
	                                       .ordinal = context->ordinal, .file = -1, .reach = memory});
}

CUresult CUDAAPI cuMemHostUnregister(void *memory)
{
	CUcontext context;
	CUresult refused = enter_unsafe(&context);
	if (refused)
		return refused;
	fake_drain_context(context);
	return fake_memory_free((uintptr_t)memory, 1u << FAKE_REGISTERED) ? CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED : CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned int flags)
{
	CUresult refused = fake_enter();
	struct fake_region *region = refused ? NULL : fake_pin((uintptr_t)memory, 1);
	bool fits = region && !fake_on_device(region);
	fake_unpin(region);
	if (refused || !address || flags || !fits)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*address = (CUdeviceptr)(uintptr_t)memory;
	return CUDA_SUCCESS;
}

/* ---- attributes ---- */

/* One attribute; of no region, its value for memory that the driver does not know. */
static CUresult attribute(CUpointer_attribute wanted, void *data, const struct fake_region *region, uintptr_t address)
{
	bool device = region && (fake_on_device(region) || region->kind == FAKE_MANAGED);
	bool host = region && !fake_on_device(region);
	switch (wanted) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = region && region->kind != FAKE_POOL ? &fake_contexts[region->ordinal] : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = device ? CU_MEMORYTYPE_DEVICE : host ? CU_MEMORYTYPE_HOST : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = region ? address : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		*(void **)data = host ? (void *)address : NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(uint64_t *)data = region ? region->id : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = region && region->kind == FAKE_MANAGED;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = region ? region->ordinal : CU_DEVICE_INVALID;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = region && region->kind == FAKE_DEVICE;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = region ? region->start : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = region ? region->bytes : 0;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = region != NULL;
		return CUDA_SUCCESS;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(void **)data = region && region->kind == FAKE_POOL ? &fake_contexts[region->ordinal] : NULL;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult CUDAAPI cuPointerGetAttributes(unsigned int count, CUpointer_attribute *wanted, void **data, CUdeviceptr address)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !count || !wanted || !data)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	for (unsigned i = 0; !refused && i < count; i++)
		refused = data[i] ? attribute(wanted[i], data[i], region, (uintptr_t)address) : CUDA_ERROR_INVALID_VALUE;
	fake_unpin(region);
	return refused;
}

/* ---- memory of other processes ---- */

/* Names the whole allocation, wherever in it the address lies. */
struct handle {
	pid_t pid;
	int file, physical;
	uint64_t bytes, inode; /* inode: a file number may by now be another file's */
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "a handle has 64 bytes");

static pthread_mutex_t import_lock = PTHREAD_MUTEX_INITIALIZER;

CUresult CUDAAPI cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr address)
{
	CUcontext context;
	struct stat status;
	CUresult refused = fake_enter_context(&context);
	struct fake_region *region = refused ? NULL : fake_pin((uintptr_t)address, 1);
	if (!refused && (!handle || !region || region->kind != FAKE_DEVICE || fstat(region->file, &status)))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused) {
		struct handle made = {getpid(), region->file, fake_contexts[region->ordinal].physical, region->bytes, status.st_ino};
		memset(handle, 0, sizeof *handle);
		memcpy(handle, &made, sizeof made);
	}
	fake_unpin(region);
	return refused;
}

/* The file behind the handle, opened; -1 if it is no more, or another. */
static int open_file(const struct handle *handle)
{
	char path[64];
	struct stat status;
	snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)handle->pid, handle->file);
	int file = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
	if (file < 0 || (!fstat(file, &status) && S_ISREG(status.st_mode) && status.st_ino == handle->inode &&
	                 (uint64_t)status.st_size == whole_pages(handle->bytes)))
		return file;
	close(file);
	return -1;
}

static int visible_ordinal(int physical)
{
	for (int i = 0; i < fake_device_count; i++)
		if (fake_contexts[i].physical == physical)
			return i;
	return -1;
}

/* An allocation that is open already; under import_lock, which holds up its close. */
static struct fake_region *open_already(uint64_t inode)
{
	struct fake_region *found = NULL;
	pthread_rwlock_rdlock(&fake_lock);
	for (size_t i = 0; i < nregions && !found; i++)
		if (regions[i]->kind == FAKE_IMPORTED && regions[i]->inode == inode)
			found = regions[i];
	pthread_rwlock_unlock(&fake_lock);
	return found;
}

static CUresult open_again_or_map(CUdeviceptr *address, const struct handle *given, int ordinal)
{
	struct fake_region *open_one = open_already(given->inode);
	struct fake_region region = {.bytes = given->bytes, .mapped = whole_pages(given->bytes), .kind = FAKE_IMPORTED,
	                             .ordinal = ordinal, .opens = 1, .inode = given->inode};
	if (open_one) {
		open_one->opens++;
		*address = open_one->start;
		return CUDA_SUCCESS;
	}
	region.file = open_file(given);
	if (region.file < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult refused = map_device(&region);
	if (!refused)
		*address = region.start;
	return refused;
}

CUresult CUDAAPI cuIpcOpenMemHandle(CUdeviceptr *address, CUipcMemHandle handle, unsigned int flags)
{
	CUcontext context;
	struct handle given;
	CUresult refused = enter_unsafe(&context);
	memcpy(&given, &handle, sizeof given);
	if (refused || !address || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !given.bytes)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	int ordinal = visible_ordinal(given.physical);
	if (ordinal < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (given.pid == getpid())
		return CUDA_ERROR_INVALID_CONTEXT;
	if (ordinal != context->ordinal && !fake_peers)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	pthread_mutex_lock(&import_lock);
	refused = open_again_or_map(address, &given, ordinal);
	pthread_mutex_unlock(&import_lock);
	return refused;
}

CUresult CUDAAPI cuIpcCloseMemHandle(CUdeviceptr address)
{
	CUresult result = CUDA_SUCCESS;
	pthread_mutex_lock(&import_lock);
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	bool last = !region || region->kind != FAKE_IMPORTED || region->start != address || region->opens == 1;
	if (!last)
		region->opens--;
	fake_unpin(region);
	if (last)
		result = free_now((uintptr_t)address, 1u << FAKE_IMPORTED);
	pthread_mutex_unlock(&import_lock);
	return result;
}
