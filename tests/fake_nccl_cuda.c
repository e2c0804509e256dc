/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver of one device whose memory is the host's: as much of one as the test of ferry-perf's NCCL child needs. An
 * IPC handle holds a file name. fake_cuda_rest.c has the other entry points.
 */
#include <cuda.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

CUresult cuInit(unsigned flags)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	*count = 1;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	*device = ordinal;
	return ordinal ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult result, const char **text)
{
	(void)result;
	*text = "the fake driver refused";
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
	(void)device;
	*context = NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	(void)context;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags)
{
	(void)flags;
	*stream = NULL;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	(void)stream;
	return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned flags)
{
	char name[sizeof handle];
	struct stat status;
	(void)flags;
	memcpy(name, &handle, sizeof handle);
	name[sizeof name - 1] = '\0';
	int file = open(name, O_RDWR | O_CLOEXEC);
	if (file < 0 || fstat(file, &status))
		return CUDA_ERROR_INVALID_HANDLE;
	void *memory = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	*pointer = (CUdeviceptr)memory;
	return memory == MAP_FAILED ? CUDA_ERROR_MAP_FAILED : CUDA_SUCCESS;
}
