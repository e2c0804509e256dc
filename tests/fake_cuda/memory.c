/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the driver knows: regions, sorted by address. Device memory is a file mapped twice: unreadable where its
 * CUDA address is, so that host code which touches it dies there, and readable where streams and kernels find it.
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

/* Neighbours of one reservation, from this index on, that hold the bytes between them: one region that names them all.
 */
static struct fake_region *span_of(size_t first, uintptr_t address, size_t bytes)
{
	size_t last = first, covered = regions[first]->bytes - (address - regions[first]->start);
	unsigned access = regions[first]->access;
	while (covered < bytes) {
		const struct fake_region *before = regions[last++];
		if (last == nregions || regions[last]->reservation != before->reservation ||
		    regions[last]->start != before->start + before->bytes)
			return NULL;
		covered += regions[last]->bytes;
		access &= regions[last]->access;
	}
	size_t count = last - first + 1;
	struct fake_region *span = malloc(sizeof *span), **pieces = malloc(count * sizeof *pieces);
	if (!span || !pieces) {
		free(span);
		free(pieces);
		return NULL;
	}
	const struct fake_region *from = regions[first];
	*span = (struct fake_region){.start = from->start,
	                             .bytes = address - from->start + bytes,
	                             .kind = FAKE_MAPPED,
	                             .ordinal = from->ordinal,
	                             .file = -1,
	                             .reach = from->reach,
	                             .id = from->id,
	                             .reservation = from->reservation,
	                             .access = access,
	                             .pieces = pieces,
	                             .npieces = count};
	for (size_t i = 0; i < count; i++) {
		pieces[i] = regions[first + i];
		atomic_fetch_add_explicit(&pieces[i]->busy, 1, memory_order_relaxed);
	}
	return span;
}

struct fake_region *fake_pin(uintptr_t address, size_t bytes)
{
	pthread_rwlock_rdlock(&fake_lock);
	struct fake_region *region = region_at(address);
	if (region && bytes > region->bytes - (address - region->start))
		region = region->kind == FAKE_MAPPED ? span_of(index_after(address) - 1, address, bytes) : NULL;
	else if (region)
		atomic_fetch_add_explicit(&region->busy, 1, memory_order_relaxed);
	pthread_rwlock_unlock(&fake_lock);
	return region;
}

void fake_unpin(struct fake_region *region)
{
	if (!region)
		return;
	if (!region->pieces) {
		atomic_fetch_sub_explicit(&region->busy, 1, memory_order_release);
		return;
	}
	for (size_t i = 0; i < region->npieces; i++)
		atomic_fetch_sub_explicit(&region->pieces[i]->busy, 1, memory_order_release);
	free(region->pieces);
	free(region);
}

struct fake_region *fake_region_find(bool (*see)(const struct fake_region *, const void *), const void *argument)
{
	struct fake_region *found = NULL;
	pthread_rwlock_rdlock(&fake_lock);
	for (size_t i = 0; i < nregions && !found; i++)
		if (see(regions[i], argument))
			found = regions[i];
	pthread_rwlock_unlock(&fake_lock);
	return found;
}

void *fake_cuda_reach(CUdeviceptr address)
{
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	char *found = region ? fake_at(region, (uintptr_t)address) : NULL;
	fake_unpin(region);
	return found;
}

CUresult fake_region_add(struct fake_region made)
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

/* ---- addresses ---- */

/* Where device memory was, the latest last: kept, so that the next memory of the same size comes to lie there. */
static struct hole {
	uintptr_t start;
	size_t bytes;
	bool imported;
} holes[64]; /* under the lock */
static size_t nholes;

static void remove_hole(size_t at)
{
	memmove(&holes[at], &holes[at + 1], (--nholes - at) * sizeof *holes);
}

static void *take_hole(size_t bytes)
{
	void *found = NULL;
	pthread_rwlock_wrlock(&fake_lock);
	for (size_t at = nholes; at-- && !found;)
		if (holes[at].bytes == bytes) {
			found = (void *)holes[at].start;
			remove_hole(at);
		}
	pthread_rwlock_unlock(&fake_lock);
	return found;
}

static void leave_hole(uintptr_t start, size_t bytes, bool imported)
{
	void *kept =
	        mmap((void *)start, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (kept == MAP_FAILED)
		return;
	pthread_rwlock_wrlock(&fake_lock);
	if (nholes == sizeof holes / sizeof *holes) {
		munmap((void *)holes[0].start, holes[0].bytes);
		remove_hole(0);
	}
	holes[nholes++] = (struct hole){start, bytes, imported};
	pthread_rwlock_unlock(&fake_lock);
}

bool fake_memory_was_mapped(uintptr_t address)
{
	bool was = false;
	pthread_rwlock_rdlock(&fake_lock);
	for (size_t i = 0; i < nholes; i++)
		was |= holes[i].imported && address - holes[i].start < holes[i].bytes;
	pthread_rwlock_unlock(&fake_lock);
	return was;
}

static void unmap(const struct fake_region *region)
{
	if (region->kind == FAKE_MAPPED)
		fake_backing_unmap(region);
	if (region->kind == FAKE_MAPPED || region->kind == FAKE_REGISTERED)
		return;
	munmap(region->reach, region->mapped);
	if (region->start != (uintptr_t)region->reach)
		leave_hole(region->start, region->mapped, region->kind == FAKE_IMPORTED);
	if (region->file >= 0)
		close(region->file);
}

/* In a child that was forked: it has no part in what its parent has on its GPUs. */
static void lock_for_fork(void)
{
	pthread_rwlock_rdlock(&fake_lock);
}

static void unlock_after_fork(void)
{
	pthread_rwlock_unlock(&fake_lock);
}

static void forget_files(void)
{
	for (size_t i = 0; i < nregions; i++) {
		if (regions[i]->file >= 0)
			close(regions[i]->file);
		regions[i]->file = -1;
	}
	fake_backings_forked();
	fake_contexts_forked();
	pthread_rwlock_unlock(&fake_lock);
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(lock_for_fork, unlock_after_fork, forget_files);
}

/* ---- regions that go ---- */

/* Out of the list, and freed when nobody holds it. The lock is held for writing, and let go. */
static void remove_region(size_t at)
{
	struct fake_region *region = regions[at];
	unsigned turn = 0;
	memmove(&regions[at], &regions[at + 1], (--nregions - at) * sizeof *regions);
	pthread_rwlock_unlock(&fake_lock);
	while (atomic_load_explicit(&region->busy, memory_order_acquire))
		fake_pause(&turn);
	unmap(region);
	free(region);
}

CUresult fake_memory_free(uintptr_t address, unsigned kinds)
{
	pthread_rwlock_wrlock(&fake_lock);
	const struct fake_region *region = region_at(address);
	if (!region || region->start != address || !(kinds >> region->kind & 1)) {
		pthread_rwlock_unlock(&fake_lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	remove_region(index_after(address) - 1);
	return CUDA_SUCCESS;
}

void fake_memory_end(CUcontext context)
{
	pthread_rwlock_wrlock(&fake_lock);
	for (size_t i = 0; i < nregions;) {
		if (regions[i]->context != context) {
			i++;
			continue;
		}
		remove_region(i);
		pthread_rwlock_wrlock(&fake_lock);
		i = 0;
	}
	pthread_rwlock_unlock(&fake_lock);
}

size_t fake_whole_pages(size_t bytes)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (bytes + page - 1) / page * page;
}

CUresult fake_map_device(struct fake_region *region)
{
	void *hole = take_hole(region->mapped);
	void *reach = mmap(NULL, region->mapped, PROT_READ | PROT_WRITE, MAP_SHARED, region->file, 0);
	void *start = mmap(hole, region->mapped, PROT_NONE, MAP_SHARED | (hole ? MAP_FIXED : 0), region->file, 0);
	if (reach != MAP_FAILED && start != MAP_FAILED) {
		region->reach = reach;
		region->start = (uintptr_t)start;
		CUresult refused = fake_region_add(*region);
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

static CUresult allocate_device(CUdeviceptr *address, size_t bytes, CUcontext context, enum fake_memory kind)
{
	struct fake_region region = {.bytes = bytes,
	                             .mapped = fake_whole_pages(bytes),
	                             .kind = kind,
	                             .ordinal = context->ordinal,
	                             .context = context};
	if (!address || !bytes || region.mapped < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	region.file = fake_machine_file(context->physical, "memory", region.mapped);
	if (region.file < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult refused = fake_map_device(&region);
	if (!refused)
		*address = region.start;
	return refused;
}

static CUresult allocate_host(uintptr_t *address, size_t bytes, CUcontext context, enum fake_memory kind)
{
	struct fake_region region = {.bytes = bytes,
	                             .mapped = fake_whole_pages(bytes),
	                             .kind = kind,
	                             .ordinal = context->ordinal,
	                             .context = context,
	                             .file = -1};
	if (!bytes || region.mapped < bytes)
		return CUDA_ERROR_INVALID_VALUE;
	void *memory = mmap(NULL, region.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	region.reach = memory;
	region.start = *address = (uintptr_t)memory;
	CUresult refused = fake_region_add(region);
	if (refused)
		munmap(memory, region.mapped);
	return refused;
}

/* ---- the driver's names ---- */

CUresult cuMemAlloc(CUdeviceptr *address, size_t bytes)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	return refused ? refused : allocate_device(address, bytes, context, FAKE_DEVICE);
}

/* The memory is there at once, which is earlier than promised; it goes when the stream comes to cuMemFreeAsync. */
CUresult cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUstream given)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	return refused ? refused : allocate_device(address, bytes, stream->context, FAKE_POOL);
}

CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream)
{
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	bool fits = region && region->kind == FAKE_POOL && region->start == address;
	fake_unpin(region);
	if (!fits)
		return CUDA_ERROR_INVALID_VALUE;
	return fake_submit(stream, &(struct fake_operation){.kind = FAKE_FREE, .to = (uintptr_t)address}, 1);
}

CUresult fake_memory_free_now(uintptr_t address, unsigned kinds)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	if (refused || !address)
		return refused;
	struct fake_region *region = fake_pin(address, 1);
	context = region ? region->context : NULL;
	fake_unpin(region);
	if (context)
		fake_drain_context(context);
	return fake_memory_free(address, kinds);
}

CUresult cuMemFree(CUdeviceptr address)
{
	return fake_memory_free_now((uintptr_t)address, 1u << FAKE_DEVICE | 1u << FAKE_POOL | 1u << FAKE_MANAGED);
}

/* Of all processes; contexts take some too. */
CUresult cuMemGetInfo(size_t *left, size_t *total)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !left || !total)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	size_t used = fake_machine_in_use(context->physical);
	*total = fake_machine_total;
	*left = used < *total ? *total - used : 0;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocManaged(CUdeviceptr *address, size_t bytes, unsigned int flags)
{
	CUcontext context;
	uintptr_t made;
	CUresult refused = fake_enter_unsafe(&context);
	if (!refused && (!address || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused)
		refused = allocate_host(&made, bytes, context, FAKE_MANAGED);
	if (!refused)
		*address = made;
	return refused;
}

CUresult cuMemHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
	CUcontext context;
	uintptr_t made;
	CUresult refused = fake_enter_unsafe(&context);
	if (!refused && (!memory || flags & ~7u))
		refused = CUDA_ERROR_INVALID_VALUE;
	if (!refused)
		refused = allocate_host(&made, bytes, context, FAKE_PINNED);
	if (!refused)
		*memory = (void *)made;
	return refused;
}

CUresult cuMemFreeHost(void *memory)
{
	return fake_memory_free_now((uintptr_t)memory, 1u << FAKE_PINNED);
}

CUresult cuMemHostRegister(void *memory, size_t bytes, unsigned int flags)
{
	CUcontext context;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uintptr_t start = (uintptr_t)memory;
	CUresult refused = fake_enter_unsafe(&context);
	if (!refused)
		refused = fake_fault_of_call(context);
	if (!refused && fake_fault_of_context(context))
		refused = (CUresult)atomic_load_explicit(&context->error, memory_order_relaxed);
	if (refused)
		return refused;
	if (!memory || !bytes || start % page || bytes % page || flags & ~15u)
		return CUDA_ERROR_INVALID_VALUE;
	if (msync(memory, bytes, MS_ASYNC)) /* ENOMEM: not all of it is mapped */
		return CUDA_ERROR_INVALID_VALUE;
	return fake_region_add((struct fake_region){.start = start,
	                                            .bytes = bytes,
	                                            .mapped = bytes,
	                                            .kind = FAKE_REGISTERED,
	                                            .ordinal = context->ordinal,
	                                            .context = context,
	                                            .file = -1,
	                                            .reach = memory});
}

CUresult cuMemHostUnregister(void *memory)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	if (refused)
		return refused;
	fake_drain_context(context);
	usleep(1000 * (unsigned)fake_number("FAKE_CUDA_UNREGISTER_MS", 0));
	if (fake_memory_free((uintptr_t)memory, 1u << FAKE_REGISTERED))
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer(CUdeviceptr *address, void *memory, unsigned int flags)
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
