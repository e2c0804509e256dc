/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management: memory (a backing), addresses (a reservation) and what lies where (regions of kind
 * FAKE_MAPPED). What the process reaches is reserved in one piece too, so neighbours there are neighbours for copies.
 * Memory goes with its last handle and mapping, here and in other processes. As with the driver, nothing here waits for
 * streams.
 */
#include "tests/fake_cuda/fake.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_BACKINGS 65536

struct fake_backing {
	unsigned references, mappings; /* under virtual_lock */
	int file, ordinal;
	size_t bytes;
	bool shareable;
};

struct fake_reservation {
	struct fake_reservation *next;
	uintptr_t start;
	char *reach;
	size_t bytes;
};

static pthread_mutex_t virtual_lock = PTHREAD_MUTEX_INITIALIZER; /* taken before fake_lock */
static struct fake_backing backings[MOST_BACKINGS];
static unsigned nbackings;
static struct fake_reservation *reservations; /* also under fake_lock */

static size_t granularity(void)
{
	return fake_number("FAKE_CUDA_GRANULARITY", 2 << 20);
}

/* ---- memory ---- */

static struct fake_backing *find_backing(CUmemGenericAllocationHandle handle)
{
	size_t offset = (size_t)handle - (size_t)backings;
	struct fake_backing *backing = (struct fake_backing *)(uintptr_t)handle;
	return offset < sizeof backings && offset % sizeof *backings == 0 && backing->references ? backing : NULL;
}

static void drop(struct fake_backing *backing)
{
	if (backing->references || backing->mappings || backing->file < 0)
		return;
	close(backing->file);
	backing->file = -1;
}

void fake_backings_forked(void)
{
	for (unsigned i = 0; i < nbackings; i++) {
		if (backings[i].file >= 0)
			close(backings[i].file);
		backings[i].file = -1;
	}
}

bool fake_backing_is_shareable(const struct fake_region *region)
{
	return region->backing && region->backing->shareable;
}

/* Owns the file, also on an error. */
static CUresult new_backing(CUmemGenericAllocationHandle *handle, int file, int ordinal, size_t bytes, bool shareable)
{
	CUresult refused = CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&virtual_lock);
	if (nbackings < MOST_BACKINGS) {
		backings[nbackings] = (struct fake_backing){
		        .references = 1, .file = file, .ordinal = ordinal, .bytes = bytes, .shareable = shareable};
		*handle = (uintptr_t)&backings[nbackings++];
		refused = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&virtual_lock);
	if (refused)
		close(file);
	return refused;
}

static bool is_possible(const CUmemAllocationProp *wanted)
{
	return wanted && wanted->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
	       wanted->location.type == CU_MEM_LOCATION_TYPE_DEVICE && wanted->location.id >= 0 &&
	       wanted->location.id < fake_device_count &&
	       !(wanted->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *wanted,
                                               CUmemAllocationGranularity_flags option)
{
	CUresult refused = fake_enter();
	if (refused || !bytes || !is_possible(wanted) || (int)option < 0 ||
	    option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*bytes = granularity();
	return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *wanted,
                             unsigned long long flags)
{
	CUresult refused = fake_enter();
	if (refused || !handle || !bytes || bytes % granularity() || flags || !is_possible(wanted))
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	bool shareable = wanted->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	int file = fake_machine_file(fake_contexts[wanted->location.id].physical, shareable ? "shareable" : "physical",
	                             bytes);
	return file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : new_backing(handle, file, wanted->location.id, bytes, shareable);
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_mutex_lock(&virtual_lock);
	struct fake_backing *backing = find_backing(handle);
	if (backing) {
		backing->references--;
		drop(backing);
	}
	pthread_mutex_unlock(&virtual_lock);
	return backing ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Also of memory whose handles are all released, as long as it is mapped. */
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult refused = fake_enter();
	if (refused || !handle)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&virtual_lock);
	struct fake_region *region = fake_pin((uintptr_t)address, 1);
	if (region && region->backing) {
		region->backing->references++;
		*handle = (uintptr_t)region->backing;
	} else {
		refused = CUDA_ERROR_INVALID_VALUE;
	}
	fake_unpin(region);
	pthread_mutex_unlock(&virtual_lock);
	return refused;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *found, CUmemGenericAllocationHandle handle)
{
	CUresult refused = fake_enter();
	if (refused || !found)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&virtual_lock);
	const struct fake_backing *backing = find_backing(handle);
	if (backing)
		*found = (CUmemAllocationProp){
		        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
		        .requestedHandleTypes =
		                backing->shareable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE,
		        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = backing->ordinal}};
	pthread_mutex_unlock(&virtual_lock);
	return backing ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemExportToShareableHandle(void *exported, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags)
{
	CUresult refused = fake_enter();
	if (refused || !exported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&virtual_lock);
	const struct fake_backing *backing = find_backing(handle);
	int file = backing && backing->shareable ? fcntl(backing->file, F_DUPFD_CLOEXEC, 3) : -1;
	pthread_mutex_unlock(&virtual_lock);
	if (file < 0)
		return CUDA_ERROR_INVALID_VALUE;
	*(int *)exported = file;
	return CUDA_SUCCESS;
}

/* The descriptor stays the caller's. */
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *exported,
                                                CUmemAllocationHandleType type)
{
	CUresult refused = fake_enter();
	int given = (int)(intptr_t)exported, physical;
	size_t bytes;
	if (refused || !handle || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (!fake_machine_knows(given, "shareable", &physical, &bytes))
		return CUDA_ERROR_UNKNOWN;
	if (fake_shut)
		return CUDA_ERROR_NOT_SUPPORTED;
	int ordinal = fake_visible_ordinal(physical);
	if (ordinal < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	int file = fcntl(given, F_DUPFD_CLOEXEC, 3);
	return file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : new_backing(handle, file, ordinal, bytes, true);
}

/* ---- addresses ---- */

/* Under either lock. */
static struct fake_reservation *reservation_at(uintptr_t address, size_t bytes)
{
	struct fake_reservation *found = reservations;
	while (found && !(address - found->start < found->bytes && bytes <= found->bytes - (address - found->start)))
		found = found->next;
	return found;
}

bool fake_reserved(uintptr_t address, uintptr_t *start, size_t *bytes)
{
	pthread_rwlock_rdlock(&fake_lock);
	const struct fake_reservation *found = reservation_at(address, 1);
	if (found) {
		*start = found->start;
		*bytes = found->bytes;
	}
	pthread_rwlock_unlock(&fake_lock);
	return found != NULL;
}

/* So many addresses that nothing is behind, at a multiple of `alignment`; NULL if there are none. */
static char *reserve(size_t bytes, size_t alignment)
{
	char *all = mmap(NULL, bytes + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (all == MAP_FAILED)
		return NULL;
	size_t before = (alignment - (uintptr_t)all % alignment) % alignment;
	if (before)
		munmap(all, before);
	munmap(all + before + bytes, alignment - before);
	return all + before;
}

CUresult cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr hint,
                                     unsigned long long flags)
{
	CUresult refused = fake_enter();
	(void)hint;
	if (refused || !address || !bytes || bytes % granularity() || alignment & (alignment - 1) || flags)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	struct fake_reservation *made = malloc(sizeof *made);
	if (!made)
		return CUDA_ERROR_OUT_OF_MEMORY;
	char *start = reserve(bytes, alignment > granularity() ? alignment : granularity()),
	     *reach = reserve(bytes, granularity());
	if (!start || !reach) {
		if (start)
			munmap(start, bytes);
		if (reach)
			munmap(reach, bytes);
		free(made);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*made = (struct fake_reservation){.start = (uintptr_t)start, .reach = reach, .bytes = bytes};
	*address = made->start;
	pthread_mutex_lock(&virtual_lock);
	pthread_rwlock_wrlock(&fake_lock);
	made->next = reservations;
	reservations = made;
	pthread_rwlock_unlock(&fake_lock);
	pthread_mutex_unlock(&virtual_lock);
	return CUDA_SUCCESS;
}

/* ---- what lies where; under virtual_lock, so that no mapping comes or goes meanwhile ---- */

struct range {
	uintptr_t start;
	size_t bytes;
};

static bool touches(const struct fake_region *region, const void *argument)
{
	const struct range *range = argument;
	return region->kind == FAKE_MAPPED && region->start < range->start + range->bytes &&
	       range->start < region->start + region->bytes;
}

static bool sticks_out(const struct fake_region *region, const void *argument)
{
	const struct range *range = argument;
	return touches(region, range) &&
	       (region->start < range->start || region->start + region->bytes > range->start + range->bytes);
}

CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
	struct range range = {(uintptr_t)address, bytes};
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_mutex_lock(&virtual_lock);
	struct fake_reservation *gone = bytes ? reservation_at(range.start, bytes) : NULL, **link = &reservations;
	if (!gone || gone->start != range.start || gone->bytes != bytes || fake_region_find(touches, &range)) {
		pthread_mutex_unlock(&virtual_lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	pthread_rwlock_wrlock(&fake_lock);
	while (*link != gone)
		link = &(*link)->next;
	*link = gone->next;
	pthread_rwlock_unlock(&fake_lock);
	pthread_mutex_unlock(&virtual_lock);
	munmap((void *)gone->start, bytes);
	munmap(gone->reach, bytes);
	free(gone);
	return CUDA_SUCCESS;
}

static CUresult map(uintptr_t address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle)
{
	struct fake_backing *backing = find_backing(handle);
	struct fake_reservation *reservation = reservation_at(address, bytes);
	if (!backing || !reservation || !bytes || address % granularity() ||
	    fake_region_find(touches, &(struct range){address, bytes}))
		return CUDA_ERROR_INVALID_VALUE;
	if (offset || bytes != backing->bytes)
		return CUDA_ERROR_NOT_SUPPORTED;
	char *reach = reservation->reach + (address - reservation->start);
	if (mmap(reach, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, backing->file, 0) == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	CUresult refused = fake_region_add((struct fake_region){.start = address,
	                                                        .bytes = bytes,
	                                                        .mapped = bytes,
	                                                        .kind = FAKE_MAPPED,
	                                                        .ordinal = backing->ordinal,
	                                                        .file = -1,
	                                                        .reach = reach,
	                                                        .backing = backing,
	                                                        .reservation = reservation});
	if (!refused)
		backing->mappings++;
	return refused;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags)
{
	CUresult refused = fake_enter();
	if (refused || flags)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&virtual_lock);
	refused = map((uintptr_t)address, bytes, offset, handle);
	pthread_mutex_unlock(&virtual_lock);
	return refused;
}

void fake_backing_unmap(const struct fake_region *region)
{
	mmap(region->reach, region->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	region->backing->mappings--;
	drop(region->backing);
}

/* Whole mappings, any number of them: none is no error. */
CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	struct range range = {(uintptr_t)address, bytes};
	struct fake_region *region;
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_mutex_lock(&virtual_lock);
	if (!bytes || !reservation_at(range.start, bytes) || fake_region_find(sticks_out, &range))
		refused = CUDA_ERROR_INVALID_VALUE;
	while (!refused && (region = fake_region_find(touches, &range)))
		refused = fake_memory_free(region->start, 1u << FAKE_MAPPED);
	pthread_mutex_unlock(&virtual_lock);
	return refused;
}

static CUresult set_access(const struct range *range, const CUmemAccessDesc *wanted)
{
	int device = wanted->location.id;
	if (wanted->location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= fake_device_count ||
	    (wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
	     wanted->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
		return CUDA_ERROR_INVALID_VALUE;
	for (uintptr_t at = range->start; at < range->start + range->bytes;) {
		struct fake_region *region = fake_pin(at, 1);
		if (!fake_reaches(device, region->ordinal)) {
			fake_unpin(region);
			return CUDA_ERROR_INVALID_DEVICE;
		}
		pthread_rwlock_wrlock(&fake_lock);
		if (wanted->flags)
			region->access |= 1u << device;
		else
			region->access &= ~(1u << device);
		pthread_rwlock_unlock(&fake_lock);
		at = region->start + region->bytes;
		fake_unpin(region);
	}
	return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *wanted, size_t count)
{
	struct range range = {(uintptr_t)address, bytes};
	CUresult refused = fake_enter();
	if (refused || !bytes || !wanted || !count)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&virtual_lock);
	struct fake_region *whole = fake_pin(range.start, bytes);
	if (!whole || whole->kind != FAKE_MAPPED || fake_region_find(sticks_out, &range))
		refused = CUDA_ERROR_INVALID_VALUE;
	fake_unpin(whole);
	for (size_t i = 0; !refused && i < count; i++)
		refused = set_access(&range, &wanted[i]);
	pthread_mutex_unlock(&virtual_lock);
	return refused;
}
