/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of other processes by CUDA's IPC. A CUipcMemHandle names a whole allocation, so the offset travels beside it.
 * CUDA counts how often a process opens an allocation, and each time gives the same address.
 */
#include "rank-lib/device/cuda.h"

#include "ipc/error.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

_Static_assert(sizeof(CUipcMemHandle) == sizeof((struct ferry_export *)0)->name, "IPC handles travel as bytes");
_Static_assert(sizeof(CUuuid) == sizeof((struct ferry_export *)0)->device, "UUIDs travel as bytes");

/* ---- export ---- */

struct range {
	CUdeviceptr start;
	size_t bytes;
	unsigned has_ipc;
};

static CUresult find_range(const struct ferry_cuda_driver *driver, CUdeviceptr address, struct range *range)
{
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	                                    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
	void *values[] = {&range->start, &range->bytes, &range->has_ipc};
	*range = (struct range){0};
	return driver->PointerGetAttributes(3, attributes, values, address);
}

static ferryResult_t name_range(const struct ferry_cuda_device *device, const struct range *range,
                                struct ferry_export *handle)
{
	CUipcMemHandle name;
	CUuuid uuid;
	CUresult refused = device->driver->DeviceGetUuid(&uuid, device->device);
	if (!refused)
		refused = device->driver->IpcGetMemHandle(&name, range->start);
	if (refused) {
		ferry_cuda_failed(device->driver, refused, "naming a buffer to other processes (cuIpcGetMemHandle)");
		return ferry_fail_context(ferryUnhandledDeviceError, "an allocation of %zu bytes on CUDA device %d",
		                          range->bytes, device->base.ordinal);
	}
	memcpy(handle->device, &uuid, sizeof uuid);
	memcpy(handle->name, &name, sizeof name);
	return ferrySuccess;
}

static ferryResult_t export_at(const struct ferry_cuda_device *device, CUdeviceptr address, size_t bytes,
                               struct ferry_export *handle)
{
	struct range range;
	void *buffer = (void *)(uintptr_t)address;
	CUresult refused = find_range(device->driver, address, &range);
	if (refused)
		return ferry_cuda_failed(device->driver, refused, "looking at a buffer");
	if (!range.has_ipc)
		return ferry_fail(ferryInvalidArgument,
		                  "exported buffer %p cannot be opened by CUDA's IPC, which opens what cudaMalloc has "
		                  "given: it lies in a memory pool (cudaMallocAsync) or a mapping (cuMemMap), is "
		                  "itself imported, or this system has no IPC",
		                  buffer);
	if (bytes > range.bytes - (address - range.start))
		return ferry_fail(ferryInvalidArgument,
		                  "exported buffer %p of %zu bytes reaches beyond its allocation of %zu at %p", buffer,
		                  bytes, range.bytes, (void *)(uintptr_t)range.start);
	*handle = (struct ferry_export){.kind = "cuda",
	                                .process = getpid(),
	                                .allocation = range.bytes,
	                                .offset = address - range.start,
	                                .bytes = bytes};
	return name_range(device, &range, handle);
}

ferryResult_t ferry_cuda_export(struct ferry_device *base, const void *buffer, size_t bytes,
                                struct ferry_export *handle)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_check_buffer(base, buffer, bytes, "exported buffer");
	if (!result)
		result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	result = export_at(device, (CUdeviceptr)(uintptr_t)buffer, bytes, handle);
	ferry_cuda_visit_end(&visit);
	if (!result)
		ferry_export_seal(handle);
	return result;
}

/* ---- import ---- */

static bool has_uuid(const struct ferry_cuda_driver *driver, int ordinal, const unsigned char *wanted)
{
	CUdevice device;
	CUuuid uuid;
	return !driver->DeviceGet(&device, ordinal) && !driver->DeviceGetUuid(&uuid, device) &&
	       !memcmp(&uuid, wanted, sizeof uuid);
}

void ferry_cuda_write_uuid(const unsigned char *uuid, char text[48])
{
	size_t length = (size_t)sprintf(text, "GPU");
	for (int i = 0; i < 16; i++)
		length += (size_t)sprintf(text + length, "%s%02x", !i || (i >= 4 && i <= 10 && i % 2 == 0) ? "-" : "",
		                          uuid[i]);
}

ferryResult_t ferry_cuda_exported_ordinal(const struct ferry_export *handle, int *ordinal)
{
	const struct ferry_cuda_driver *driver;
	char text[48];
	int count = 0;
	ferryResult_t result = ferry_export_check(handle, "cuda");
	if (!result)
		result = ferry_cuda_driver_open(&driver);
	if (result)
		return result;
	CUresult refused = driver->DeviceGetCount(&count);
	if (refused)
		return ferry_cuda_failed(driver, refused, "counting CUDA devices");
	for (*ordinal = 0; *ordinal < count; ++*ordinal)
		if (has_uuid(driver, *ordinal, handle->device))
			return ferrySuccess;
	ferry_cuda_write_uuid(handle->device, text);
	return ferry_fail(ferryInvalidArgument,
	                  "the exported buffer is on %s, which is none of the %d that this process sees "
	                  "(CUDA_VISIBLE_DEVICES?)", text,
	                  count);
}

/* Copies of this device can reach the memory of that one. */
static ferryResult_t check_peer(const struct ferry_cuda_device *device, int other)
{
	CUdevice peer;
	int can = 0;
	if (other == device->base.ordinal)
		return ferrySuccess;
	CUresult refused = device->driver->DeviceGet(&peer, other);
	if (!refused)
		refused = device->driver->DeviceCanAccessPeer(&can, device->device, peer);
	if (refused)
		return ferry_cuda_failed(device->driver, refused, "looking for peer access");
	if (!can)
		return ferry_fail(ferryInvalidUsage,
		                  "the exported buffer is on CUDA device %d, whose memory device %d cannot reach (no "
		                  "peer access)", other,
		                  device->base.ordinal);
	return ferrySuccess;
}

static ferryResult_t open_failed(const struct ferry_cuda_driver *driver, CUresult refused,
                                 const struct ferry_export *handle)
{
	if (handle->process == getpid())
		return ferry_fail(ferryInvalidUsage,
		                  "the buffer was exported by this process (%lld) itself, where CUDA does not open it: "
		                  "use its own address",
		                  (long long)handle->process);
	ferry_cuda_failed(driver, refused, "opening another process's buffer (cuIpcOpenMemHandle)");
	return ferry_fail_context(ferryUnhandledDeviceError, "%llu bytes of process %lld",
	                          (unsigned long long)handle->allocation, (long long)handle->process);
}

static ferryResult_t open_mapping(const struct ferry_cuda_driver *driver, const struct ferry_export *handle,
                                  struct ferry_imported *imported)
{
	CUipcMemHandle name;
	CUdeviceptr mapping;
	struct range range;
	memcpy(&name, handle->name, sizeof name);
	CUresult refused = driver->IpcOpenMemHandle(&mapping, name, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (refused)
		return open_failed(driver, refused, handle);
	/* What is mapped counts, not what the handle says of it. 0: the driver does not tell. */
	if (!find_range(driver, mapping, &range) && range.bytes &&
	    handle->offset + handle->bytes > range.start + range.bytes - mapping) {
		driver->IpcCloseMemHandle(mapping);
		return ferry_fail(ferryInvalidArgument,
		                  "the handle is of %llu bytes at %llu, but process %lld's allocation has %zu",
		                  (unsigned long long)handle->bytes, (unsigned long long)handle->offset,
		                  (long long)handle->process, range.bytes);
	}
	*imported = (struct ferry_imported){.address = (char *)(uintptr_t)mapping + handle->offset,
	                                    .mapping = (void *)(uintptr_t)mapping};
	return ferrySuccess;
}

ferryResult_t ferry_cuda_import(struct ferry_device *base, const struct ferry_export *handle,
                                struct ferry_imported *imported)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	int owner;
	ferryResult_t result = ferry_cuda_exported_ordinal(handle, &owner);
	if (!result)
		result = check_peer(device, owner);
	if (!result)
		result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	result = open_mapping(device->driver, handle, imported);
	ferry_cuda_visit_end(&visit);
	return result;
}

void ferry_cuda_import_close(struct ferry_device *base, struct ferry_imported *imported)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return;
	device->driver->IpcCloseMemHandle((CUdeviceptr)(uintptr_t)imported->mapping);
	ferry_cuda_visit_end(&visit);
}
