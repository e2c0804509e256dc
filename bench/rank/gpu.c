/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/rank/gpu.h"

#include "ipc/error.h"
#include "rank-lib/device/cuda.h"

#include <stdio.h>

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

ferryResult_t gpu_share(int ordinal, const void *buffer, size_t bytes, struct ferry_export *handle)
{
	struct ferry_device *device;
	ferryResult_t result = ferry_cuda_device_open(ordinal, 0, &device);
	return result ? result : ferry_device_export(device, buffer, bytes, handle);
}

ferryResult_t gpu_reach(const struct ferry_export *handle, int *ordinal, char **address)
{
	struct ferry_device *device;
	struct ferry_imported imported;
	ferryResult_t result = ferry_cuda_exported_ordinal(handle, ordinal);
	if (!result)
		result = ferry_cuda_device_open(*ordinal, 0, &device);
	if (!result)
		result = ferry_device_import(device, handle, handle->bytes, &imported);
	if (!result)
		*address = imported.address;
	return result;
}

void gpu_name(const struct ferry_export *handle, char name[48])
{
	name[0] = '\0';
	if (!ferry_export_check(handle, "cuda"))
		ferry_cuda_write_uuid(handle->device, name);
}
