/* SPDX-License-Identifier: Apache-2.0 */
/* ferry-perf's buffers on a GPU. */
#include "bench/perf_memory.h"
#include "ipc/error.h"
#include "router/copy/cuda_driver.h"
#include "rank-lib/device/device.h"

#include <stdio.h>
#include <string.h>

static const struct ferry_cuda_driver *cuda;

static bool good(CUresult result, const char *tried)
{
	if (!result)
		return true;
	ferry_cuda_failed(cuda, result, tried);
	fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
	return false;
}

static CUdeviceptr at(const char *buffer)
{
	return (CUdeviceptr)(uintptr_t)buffer;
}

static CUstream stream_of(const struct perf_memory *memory)
{
	return (CUstream)(void *)memory->stream;
}

static bool synchronize(struct perf_memory *memory)
{
	return good(cuda->StreamSynchronize(stream_of(memory)), "waiting for the stream");
}

static bool zero(struct perf_memory *memory, char *buffer, size_t bytes)
{
	return good(cuda->MemsetD8Async(at(buffer), 0, bytes, stream_of(memory)), "zeroing a buffer") && synchronize(memory);
}

static char *take(struct perf_memory *memory, size_t bytes)
{
	CUdeviceptr buffer = 0;
	char tried[96];
	snprintf(tried, sizeof tried, "allocating %zu bytes on GPU %d", bytes, memory->ordinal);
	if (!good(cuda->MemAlloc(&buffer, bytes), tried))
		return NULL;
	if (zero(memory, (char *)(uintptr_t)buffer, bytes))
		return (char *)(uintptr_t)buffer;
	cuda->MemFree(buffer);
	return NULL;
}

static void give_back(char *buffer)
{
	if (buffer)
		good(cuda->MemFree(at(buffer)), "freeing a buffer");
}

/* The memory of one row's check is ordinary: such copies may return early, and only the synchronization ends them. */
static bool upload(struct perf_memory *memory, char *buffer, const char *host, size_t bytes)
{
	return !bytes ||
	       (good(cuda->MemcpyHtoDAsync(at(buffer), host, bytes, stream_of(memory)), "copying input to the GPU") &&
	        synchronize(memory));
}

static bool download(struct perf_memory *memory, char *host, const char *buffer, size_t bytes)
{
	return !bytes ||
	       (good(cuda->MemcpyDtoHAsync(host, at(buffer), bytes, stream_of(memory)), "copying a result to the host") &&
	        synchronize(memory));
}

static bool share(const struct perf_memory *memory, const char *buffer, size_t bytes, struct ferry_export *handle)
{
	struct ferry_device *device;
	if (!ferry_cuda_device_open(memory->ordinal, 0, &device) && !ferry_device_export(device, buffer, bytes, handle))
		return true;
	fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
	return false;
}

static void close_memory(struct perf_memory *memory)
{
	CUdevice device;
	good(cuda->StreamDestroy(stream_of(memory)), "destroying the stream");
	cuda->CtxSetCurrent(NULL);
	if (good(cuda->DeviceGet(&device, memory->ordinal), "finding the device"))
		good(cuda->DevicePrimaryCtxRelease(device), "releasing the primary context");
}

const char *perf_cuda_missing(void)
{
	return ferry_cuda_driver_open(&cuda) ? ferry_last_message() : NULL;
}

void perf_cuda_describe(struct perf_gpus *gpus)
{
	CUdevice device;
	memset(gpus, 0, sizeof *gpus);
	if (perf_cuda_missing())
		return;
	cuda->DriverGetVersion(&gpus->cuda_version);
	if (!cuda->DeviceGetCount(&gpus->count) && gpus->count && !cuda->DeviceGet(&device, 0))
		cuda->DeviceGetName(gpus->name, sizeof gpus->name, device);
}

bool perf_cuda_open(struct perf_memory *memory, int local_rank)
{
	CUdevice device;
	CUcontext context;
	CUstream stream;
	int count = 0;
	const char *missing = perf_cuda_missing();
	if (missing) {
		fprintf(stderr, "ferry-perf: --device cuda: %s\n", missing);
		return false;
	}
	if (!good(cuda->DeviceGetCount(&count), "counting devices"))
		return false;
	memory->ordinal = local_rank % count;
	if (!good(cuda->DeviceGet(&device, memory->ordinal), "finding the device") ||
	    !good(cuda->DevicePrimaryCtxRetain(&context, device), "opening the device's primary context"))
		return false;
	if (!good(cuda->CtxSetCurrent(context), "making the primary context current") ||
	    !good(cuda->StreamCreate(&stream, CU_STREAM_NON_BLOCKING), "making a stream")) {
		cuda->DevicePrimaryCtxRelease(device);
		return false;
	}
	memory->stream = (ferryStream_t)(void *)stream;
	memory->take = take;
	memory->give_back = give_back;
	memory->zero = zero;
	memory->upload = upload;
	memory->download = download;
	memory->synchronize = synchronize;
	memory->share = share;
	memory->close = close_memory;
	return true;
}
