/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pieces that a buffer of a GPU lies in. cuMemGetAddressRange gives cudaMalloc's allocation, or for memory of
 * cuMemMap one mapping; range attributes would give the whole reservation. BUFFER_ID is of that allocation or mapping.
 * A query takes 70 ns.
 *
 * Other threads may free memory between two queries. So the id is queried before and after the others. Ids are never
 * reused: if both are the same, the allocation existed all the time, and all answers are about it.
 */
#include "rank-lib/device/cuda_pieces.h"

#include "ipc/error.h"
#include "rank-lib/device/cuda_device.h"
#include "rank-lib/device/cuda_memory.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define SAMPLE_BYTES 4096

static ferryResult_t identify(struct ferry_device *base, uint8_t uuid[16])
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	CUuuid found;
	CUresult refused = device->driver->DeviceGetUuid(&found, device->device);
	if (refused)
		return ferry_cuda_failed(device->driver, refused, "asking for the GPU's UUID");
	memcpy(uuid, &found, sizeof found);
	return ferrySuccess;
}

/* Returns 0 if there is no memory. */
static uint64_t id_at(const struct ferry_cuda_driver *driver, CUdeviceptr address)
{
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_BUFFER_ID;
	unsigned long long id = 0;
	void *value = &id;
	return driver->PointerGetAttributes(1, &attribute, &value, address) ? 0 : id;
}

static ferryResult_t refuse(const void *buffer, uint64_t bytes, const char *reason)
{
	return ferry_fail(ferryInvalidUsage, "buffer %p of %llu bytes cannot be exported: %s", buffer,
	                  (unsigned long long)bytes, reason);
}

/* Why memory of cuMemMap cannot be exported; NULL: it can, and is of this device. */
static const char *objection(const struct ferry_cuda_device *device, CUdeviceptr address)
{
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp properties;
	if (device->driver->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)address))
		return "it lies in a memory pool (cudaMallocAsync), is imported, or this system has no IPC";
	CUresult refused = device->driver->MemGetAllocationPropertiesFromHandle(&properties, handle);
	device->driver->MemRelease(handle);
	if (refused || !(properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return "it was mapped (cuMemMap) without a handle that can be shared "
		       "(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)";
	return properties.location.type == CU_MEM_LOCATION_TYPE_DEVICE && properties.location.id == device->device
	               ? NULL
	               : "a piece of it is another device's memory";
}

/* Finds the allocation or mapping that the address lies in. If piece->id is 0 it has no id, and the rest is unknown. */
static CUresult find_piece(const struct ferry_cuda_driver *driver, CUdeviceptr address, struct ferry_piece *piece)
{
	CUresult refused;
	uint64_t before;
	do {
		CUdeviceptr start;
		size_t size;
		before = id_at(driver, address);
		if ((refused = driver->MemGetAddressRange(&start, &size, address)))
			return refused;
		*piece = (struct ferry_piece){start, size, id_at(driver, start)};
	} while (piece->id != before); /* repeats if it was freed and allocated meanwhile */
	return refused;
}

static ferryResult_t find_in_context(const struct ferry_cuda_device *device, const void *buffer, uint64_t bytes,
                                     struct ferry_pieces *pieces)
{
	const struct ferry_cuda_driver *driver = device->driver;
	CUdeviceptr next = (CUdeviceptr)(uintptr_t)buffer, end = next + bytes;
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
	unsigned has_ipc = 0;
	void *value = &has_ipc;
	if (driver->PointerGetAttributes(1, &attribute, &value, next))
		has_ipc = 0;
	pieces->kind = has_ipc ? FERRY_EXPORTED_IPC : FERRY_EXPORTED_VMM;
	pieces->count = 0;
	do {
		struct ferry_piece piece;
		if (find_piece(driver, next, &piece))
			return ferry_fail(ferryInvalidArgument, "buffer %p of %llu bytes: there is no memory at %p",
			                  buffer, (unsigned long long)bytes, (void *)(uintptr_t)next);
		if (has_ipc && end > piece.start + piece.bytes)
			return ferry_fail(ferryInvalidArgument,
			                  "buffer %p of %llu bytes reaches beyond its allocation of %llu at %p", buffer,
			                  (unsigned long long)bytes, (unsigned long long)piece.bytes,
			                  (void *)(uintptr_t)piece.start);
		const char *reason = !piece.id ? "it has no id by which it would be known again"
		                     : has_ipc ? NULL
		                     : pieces->count == FERRY_MOST_PIECES ? "it is mapped in more than 240 pieces"
		                                                          : objection(device, next);
		if (reason)
			return refuse(buffer, bytes, reason);
		pieces->all[pieces->count++] = piece;
		next = piece.start + piece.bytes;
	} while (next < end);
	return ferrySuccess;
}

static ferryResult_t find(struct ferry_device *base, const void *buffer, uint64_t bytes, struct ferry_pieces *pieces)
{
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_check_buffer(base, buffer, bytes, "buffer");
	if (!result)
		result = ferry_cuda_enter(ferry_cuda_device(base), &visit);
	if (result)
		return result;
	result = find_in_context(ferry_cuda_device(base), buffer, bytes, pieces);
	ferry_cuda_visit_end(&visit);
	return result;
}

static bool are_same(const struct ferry_cuda_driver *driver, const struct ferry_piece *pieces, uint32_t count)
{
	bool same = true;
	for (uint32_t i = 0; same && i < count; i++)
		same = id_at(driver, pieces[i].start) == pieces[i].id;
	return same;
}

static bool are_there(struct ferry_device *base, const struct ferry_piece *pieces, uint32_t count)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return false;
	bool same = are_same(device->driver, pieces, count);
	ferry_cuda_visit_end(&visit);
	return same;
}

static CUresult name_piece(const struct ferry_cuda_driver *driver, const struct ferry_piece *piece, int *descriptor)
{
	CUmemGenericAllocationHandle handle;
	CUresult refused = driver->MemRetainAllocationHandle(&handle, (void *)(uintptr_t)piece->start);
	if (refused)
		return refused;
	refused = driver->MemExportToShareableHandle(descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	driver->MemRelease(handle);
	return refused;
}

static CUresult name_in_context(const struct ferry_cuda_driver *driver, const struct ferry_pieces *pieces,
                                struct ferry_exported *exported, int *descriptors)
{
	CUipcMemHandle handle;
	CUresult refused = CUDA_SUCCESS;
	if (pieces->kind == FERRY_EXPORTED_IPC) {
		refused = driver->IpcGetMemHandle(&handle, pieces->all[0].start);
		memcpy(exported->handle, &handle, sizeof handle);
		exported->bytes = pieces->all[0].bytes;
		return refused;
	}
	for (uint32_t i = 0; i < pieces->count; i++) {
		if ((refused = name_piece(driver, &pieces->all[i], &descriptors[i])))
			break;
		exported->npieces++;
		exported->lengths[i] = pieces->all[i].bytes;
		exported->bytes += pieces->all[i].bytes;
	}
	while (refused && exported->npieces > 0)
		close(descriptors[--exported->npieces]);
	return refused;
}

static ferryResult_t name(struct ferry_device *base, const struct ferry_pieces *pieces, struct ferry_exported *exported,
                          int *descriptors)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	exported->kind = pieces->kind;
	exported->npieces = 0;
	exported->bytes = 0;
	ferryResult_t result = identify(base, exported->gpu);
	if (!result)
		result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = name_in_context(device->driver, pieces, exported, descriptors);
	bool same = refused || are_same(device->driver, pieces->all, pieces->count);
	ferry_cuda_visit_end(&visit);
	while (!same && exported->npieces)
		close(descriptors[--exported->npieces]);
	if (!same)
		return ferry_fail(ferryInvalidArgument, "memory at %p was freed while it was being exported",
		                  (void *)(uintptr_t)pieces->all[0].start);
	return refused ? ferry_cuda_failed(device->driver, refused, "naming a buffer to the router") : ferrySuccess;
}

static ferryResult_t allocate(struct ferry_device *base, uint64_t bytes, void **memory)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	CUdeviceptr address = 0;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->MemAlloc(&address, bytes);
	ferry_cuda_visit_end(&visit);
	*memory = (void *)(uintptr_t)address;
	return refused ? ferry_cuda_failed(device->driver, refused, "allocating device memory") : ferrySuccess;
}

static void release(struct ferry_device *base, void *memory)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return;
	device->driver->MemFree((CUdeviceptr)(uintptr_t)memory);
	ferry_cuda_visit_end(&visit);
}

static pthread_mutex_t sample_lock = PTHREAD_MUTEX_INITIALIZER;

/* In the device's context, under the lock. Makes the sample again if a reset of the device has freed it. */
static CUresult make_sample(struct ferry_cuda_device *device)
{
	CUdeviceptr made;
	if (device->sample.bytes && are_same(device->driver, &device->sample, 1))
		return CUDA_SUCCESS;
	CUresult refused = device->driver->MemAlloc(&made, SAMPLE_BYTES);
	device->sample = refused ? (struct ferry_piece){0}
	                         : (struct ferry_piece){made, SAMPLE_BYTES, id_at(device->driver, made)};
	return refused;
}

static ferryResult_t sample(struct ferry_device *base, struct ferry_piece *lasting)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	pthread_mutex_lock(&sample_lock);
	CUresult refused = make_sample(device);
	*lasting = device->sample;
	pthread_mutex_unlock(&sample_lock);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "allocating device memory") : ferrySuccess;
}

const struct ferry_pieces_ops ferry_cuda_pieces = {.identify = identify,
                                                   .find = find,
                                                   .are_there = are_there,
                                                   .name = name,
                                                   .allocate = allocate,
                                                   .release = release,
                                                   .sample = sample};
