/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A little of the CUDA runtime over the double of the driver: libcudart.so.13, whose symbols have a version as the real
 * one's, and which takes the driver's functions out of the driver, whatever else has their names. What a thread does is
 * on the device that it has set.
 */
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/runtime.h"


#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DEVICES 8

static CUcontext contexts[DEVICES];
static CUresult (*mem_free)(CUdeviceptr address);
static CUresult (*mem_free_async)(CUdeviceptr address, CUstream stream);

__attribute__((constructor)) static void find_driver(void)
{
	void *driver = dlopen("libcuda-fake.so", RTLD_LAZY | RTLD_NOLOAD);
	*(void **)&mem_free = dlsym(driver, "cuMemFree_v2");
	*(void **)&mem_free_async = dlsym(driver, "cuMemFreeAsync");
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void begin(void)
{
	int count = 0;
	if (cuInit(0) || cuDeviceGetCount(&count))
		return;
	for (int i = 0; i < count && i < DEVICES; i++)
		if (cuDevicePrimaryCtxRetain(&contexts[i], i))
			contexts[i] = NULL;
}

int cudaSetDevice(int device)
{
	pthread_once(&once, begin);
	if (device < 0 || device >= DEVICES || !contexts[device])
		return CUDA_ERROR_INVALID_DEVICE;
	return (int)cuCtxSetCurrent(contexts[device]);
}

int cudaMalloc(void **memory, size_t bytes)
{
	CUdeviceptr address = 0;
	CUresult refused = cuMemAlloc(&address, bytes);
	*memory = (void *)(uintptr_t)address;
	return (int)refused;
}

int cudaFree(void *memory)
{
	return (int)mem_free((CUdeviceptr)(uintptr_t)memory);
}

int cudaFreeAsync(void *memory, cudaStream_t stream)
{
	return (int)mem_free_async((CUdeviceptr)(uintptr_t)memory, stream);
}

int cudaMemGetInfo(size_t *left, size_t *total)
{
	return (int)cuMemGetInfo(left, total);
}

int cudaStreamCreate(cudaStream_t *stream)
{
	return (int)cuStreamCreate(stream, CU_STREAM_NON_BLOCKING);
}

int cudaStreamSynchronize(cudaStream_t stream)
{
	return (int)cuStreamSynchronize(stream);
}

int cudaStreamDestroy(cudaStream_t stream)
{
	return (int)cuStreamDestroy(stream);
}

int cudaStreamQuery(cudaStream_t stream)
{
	return (int)cuStreamQuery(stream);
}

/* Nothing is under way on the memory. */
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
	void *there = kind == 1 ? fake_cuda_reach((CUdeviceptr)(uintptr_t)to) : to;
	const void *here = kind == 2 ? fake_cuda_reach((CUdeviceptr)(uintptr_t)from) : from;
	if (!there || !here)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(there, here, bytes);
	return 0;
}

int cudaStreamBeginCapture(cudaStream_t stream, int mode)
{
	return (int)cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode);
}

int cudaStreamEndCapture(cudaStream_t stream, void **graph)
{
	return (int)cuStreamEndCapture(stream, (CUgraph *)graph);
}

int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags)
{
	return (int)cuGraphInstantiateWithFlags((CUgraphExec *)executable, graph, flags);
}

int cudaGraphLaunch(void *executable, cudaStream_t stream)
{
	return (int)cuGraphLaunch(executable, stream);
}

int cudaGraphExecDestroy(void *executable)
{
	return (int)cuGraphExecDestroy(executable);
}

int cudaGraphDestroy(void *graph)
{
	return (int)cuGraphDestroy(graph);
}
