/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/cuda_memory.h"

#include "ipc/error.h"
#include "rank-lib/device/cuda_device.h"

#include <ctype.h>
#include <stdio.h>

struct description {
	unsigned type;  /* CUmemorytype; 0: memory that CUDA knows nothing of */
	unsigned managed;
	int ordinal;
};

static CUresult describe(const struct ferry_cuda_driver *driver, CUdeviceptr address, struct description *description)
{
	CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
	                                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *values[] = {&description->type, &description->managed, &description->ordinal};
	*description = (struct description){.ordinal = -1};
	return driver->PointerGetAttributes(3, attributes, values, address);
}

/* Why the memory at this address is not a buffer; NULL if it is one. */
static const char *objection(const struct description *description, int ordinal)
{
	if (description->managed)
		return "managed memory (cudaMallocManaged); Ferry takes device memory";
	if (description->type == CU_MEMORYTYPE_HOST)
		return "pinned or registered host memory; Ferry takes device memory, or FERRY_DEVICE=host";
	if (description->type != CU_MEMORYTYPE_DEVICE)
		return "ordinary host memory, or freed; Ferry takes device memory, or FERRY_DEVICE=host";
	return description->ordinal == ordinal ? NULL : "memory of another device";
}

static ferryResult_t check_at(const struct ferry_cuda_device *device, CUdeviceptr address, const char *what,
                              const void *buffer, size_t bytes, struct description *description)
{
	CUresult refused = describe(device->driver, address, description);
	if (refused)
		return ferry_cuda_failed(device->driver, refused, "looking at a buffer");
	const char *reason = objection(description, device->base.ordinal);
	if (!reason)
		return ferrySuccess;
	if (address != (CUdeviceptr)(uintptr_t)buffer)
		return ferry_fail(ferryInvalidArgument,
		                  "%s %p of %zu bytes reaches beyond its allocation: its last byte is %s", what, buffer,
		                  bytes, reason);
	if (description->type == CU_MEMORYTYPE_DEVICE && !description->managed)
		return ferry_fail(ferryInvalidArgument,
		                  "%s %p is memory of CUDA device %d; the communicator is on device %d", what, buffer,
		                  description->ordinal, device->base.ordinal);
	return ferry_fail(ferryInvalidArgument, "%s %p is %s", what, buffer, reason);
}

ferryResult_t ferry_cuda_check_buffer(struct ferry_device *base, const void *buffer, size_t bytes, const char *what)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	CUdeviceptr first = (CUdeviceptr)(uintptr_t)buffer;
	struct description description;
	struct ferry_cuda_visit visit;
	if (!bytes)
		return ferrySuccess;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	result = check_at(device, first, what, buffer, bytes, &description);
	/*
	 * Addresses may be reserved without being mapped (cuMemMap), within one range of CUDA's: so the last byte is
	 * checked, too, which is cheap.
	 */
	if (!result)
		result = check_at(device, first + bytes - 1, what, buffer, bytes, &description);
	ferry_cuda_visit_end(&visit);
	return result;
}

static int node_from_sysfs(const struct ferry_cuda_device *device)
{
	char bus[32], path[96];
	int node = -1;
	if (device->driver->DeviceGetPCIBusId(bus, sizeof bus, device->device))
		return -1;
	for (char *c = bus; *c; c++)
		*c = (char)tolower((unsigned char)*c);
	snprintf(path, sizeof path, "/sys/bus/pci/devices/%s/numa_node", bus);
	FILE *file = fopen(path, "r");
	if (!file)
		return -1;
	if (fscanf(file, "%d", &node) != 1)
		node = -1;
	fclose(file);
	return node;
}

int ferry_cuda_node(struct ferry_device *base)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	int node = -1;
	if (!device->driver->DeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device->device) && node >= 0)
		return node;
	return node_from_sysfs(device);
}
