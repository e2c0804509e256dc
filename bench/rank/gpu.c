/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/rank/gpu.h"

#include "ipc/error.h"

#include <stdio.h>
#include <string.h>

const struct ferry_cuda_driver *gpu_driver;

const char *gpu_missing(void)
{
	return ferry_cuda_driver_open(&gpu_driver) ? ferry_last_message() : NULL;
}

void gpu_describe(struct gpu_facts *facts)
{
	CUdevice device;
	*facts = (struct gpu_facts){0};
	if (gpu_missing())
		return;
	gpu_driver->DriverGetVersion(&facts->cuda_version);
	if (!gpu_driver->DeviceGetCount(&facts->count) && facts->count && !gpu_driver->DeviceGet(&device, 0))
		gpu_driver->DeviceGetName(facts->name, sizeof facts->name, device);
}

ferryResult_t gpu_good(CUresult refused, const char *tried)
{
	return refused ? ferry_cuda_failed(gpu_driver, refused, tried) : ferrySuccess;
}

ferryResult_t gpu_enter(int ordinal, CUcontext *context)
{
	CUdevice device;
	ferryResult_t result = gpu_good(gpu_driver->DeviceGet(&device, ordinal), "finding the device");
	if (!result)
		result = gpu_good(gpu_driver->DevicePrimaryCtxRetain(context, device),
		                  "opening the device's primary context");
	if (result)
		return result;
	result = gpu_good(gpu_driver->CtxSetCurrent(*context), "making the primary context current");
	if (result)
		gpu_driver->DevicePrimaryCtxRelease(device);
	return result;
}

void gpu_leave(int ordinal)
{
	CUdevice device;
	gpu_driver->CtxSetCurrent(NULL);
	if (!gpu_driver->DeviceGet(&device, ordinal))
		gpu_driver->DevicePrimaryCtxRelease(device);
}

/* ---- a stream, and buffers ---- */

static CUdeviceptr at(const void *buffer)
{
	return (CUdeviceptr)(uintptr_t)buffer;
}

ferryResult_t gpu_open_stream(int local_rank, int *ordinal, void **stream)
{
	CUcontext context;
	int count = 0;
	ferryResult_t result = gpu_good(gpu_driver->DeviceGetCount(&count), "counting devices");
	if (result)
		return result;
	*ordinal = local_rank % count;
	result = gpu_enter(*ordinal, &context);
	if (!result && (result = gpu_good(gpu_driver->StreamCreate((CUstream *)stream, CU_STREAM_NON_BLOCKING),
	                                  "making a stream")))
		gpu_leave(*ordinal);
	return result;
}

void gpu_close_stream(int ordinal, void *stream)
{
	gpu_driver->StreamDestroy(stream);
	gpu_leave(ordinal);
}

ferryResult_t gpu_take(int ordinal, size_t bytes, void **buffer)
{
	char tried[96];
	snprintf(tried, sizeof tried, "allocating %zu bytes on GPU %d", bytes, ordinal);
	return gpu_good(gpu_driver->MemAlloc((CUdeviceptr *)buffer, bytes), tried);
}

void gpu_give_back(void *buffer)
{
	if (buffer)
		gpu_driver->MemFree(at(buffer));
}

ferryResult_t gpu_zero(void *buffer, size_t bytes, void *stream)
{
	return gpu_good(gpu_driver->MemsetD8Async(at(buffer), 0, bytes, stream), "zeroing a buffer");
}

ferryResult_t gpu_copy(void *to, const void *from, size_t bytes, void *stream)
{
	return gpu_good(gpu_driver->MemcpyAsync(at(to), at(from), bytes, stream),
	                "copying between the GPU and the host");
}

ferryResult_t gpu_wait(void *stream)
{
	return gpu_good(gpu_driver->StreamSynchronize(stream), "waiting for the stream");
}

/* ---- other processes' buffers ---- */

_Static_assert(sizeof(CUuuid) == sizeof((struct gpu_shared *)0)->gpu, "UUIDs travel as bytes");
_Static_assert(sizeof(CUipcMemHandle) == sizeof((struct gpu_shared *)0)->allocation, "IPC handles travel as bytes");

ferryResult_t gpu_share(int ordinal, const void *buffer, struct gpu_shared *shared)
{
	CUdevice device;
	CUdeviceptr start = 0;
	CUpointer_attribute attribute = CU_POINTER_ATTRIBUTE_RANGE_START_ADDR;
	void *value = &start;
	CUresult refused = gpu_driver->DeviceGet(&device, ordinal);
	if (!refused)
		refused = gpu_driver->DeviceGetUuid((CUuuid *)shared->gpu, device);
	if (!refused)
		refused = gpu_driver->PointerGetAttributes(1, &attribute, &value, at(buffer));
	if (!refused)
		refused = gpu_driver->IpcGetMemHandle((CUipcMemHandle *)shared->allocation, start);
	shared->offset = at(buffer) - start;
	return gpu_good(refused, "naming a buffer to other processes (cuIpcGetMemHandle)");
}

ferryResult_t gpu_find(const struct gpu_shared *shared, int *ordinal)
{
	CUdevice device;
	CUuuid uuid;
	char name[48];
	int count = 0;
	ferryResult_t result = gpu_good(gpu_driver->DeviceGetCount(&count), "counting devices");
	for (*ordinal = 0; *ordinal < count && !result; ++*ordinal)
		if (!gpu_driver->DeviceGet(&device, *ordinal) && !gpu_driver->DeviceGetUuid(&uuid, device) &&
		    !memcmp(&uuid, shared->gpu, sizeof uuid))
			return ferrySuccess;
	gpu_name(shared, name);
	return result ? result
	              : ferry_fail(ferryInvalidArgument,
	                           "the buffer is on %s, which is none of the %d GPUs that this process sees "
	                           "(CUDA_VISIBLE_DEVICES?)",
	                           name, count);
}

ferryResult_t gpu_reach(const struct gpu_shared *shared, char **address)
{
	CUdeviceptr allocation = 0;
	CUipcMemHandle handle;
	memcpy(&handle, shared->allocation, sizeof handle);
	CUresult refused =
	        gpu_driver->IpcOpenMemHandle(&allocation, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	*address = (char *)(uintptr_t)(allocation + shared->offset);
	return gpu_good(refused, "opening another process's buffer (cuIpcOpenMemHandle)");
}

void gpu_name(const struct gpu_shared *shared, char name[48])
{
	size_t length = (size_t)sprintf(name, "GPU");
	for (size_t i = 0; i < sizeof shared->gpu; i++)
		length += (size_t)sprintf(name + length, !i || (i >= 4 && i <= 10 && i % 2 == 0) ? "-%02x" : "%02x",
		                          shared->gpu[i]);
}
