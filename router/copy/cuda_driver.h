/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The CUDA driver, opened at run time: one struct of the entry points that Ferry calls. Built where cuda.h is found;
 * the binary then runs with and without a driver. Used by the cuda device, by ferry-perf and by tests.
 */
#ifndef FERRY_ROUTER_COPY_CUDA_DRIVER_H
#define FERRY_ROUTER_COPY_CUDA_DRIVER_H

#include "ipc/ferry_types.h"

#include <cuda.h>

/* F(name): cuda.h maps cuMemAlloc and its like to the version of the entry point that its prototype is for. */
/* clang-format off */
#define FERRY_CUDA_FUNCTIONS(F)                                                                        \
	F(Init) F(DriverGetVersion) F(GetErrorString)                                                  \
	F(DeviceGet) F(DeviceGetCount) F(DeviceGetName) F(DeviceGetAttribute) F(DeviceGetPCIBusId)     \
	F(DeviceGetUuid) F(DeviceCanAccessPeer) F(DeviceGetP2PAttribute) F(DevicePrimaryCtxRetain)     \
	F(DevicePrimaryCtxRelease)                                                                     \
	F(ModuleGetLoadingMode) F(ModuleLoadData) F(ModuleGetFunction) F(LaunchKernel)                 \
	F(CtxGetCurrent) F(CtxSetCurrent) F(CtxPushCurrent) F(CtxPopCurrent) F(CtxGetDevice)           \
	F(CtxGetStreamPriorityRange) F(CtxEnablePeerAccess)                                            \
	F(StreamCreate) F(StreamCreateWithPriority) F(StreamDestroy) F(StreamSynchronize)              \
	F(StreamQuery) F(StreamGetCtx) F(StreamGetId) F(StreamBatchMemOp) F(StreamWriteValue32)        \
	F(StreamIsCapturing) F(StreamGetCaptureInfo)                                                   \
	F(ThreadExchangeStreamCaptureMode)                                                             \
	F(GraphRetainUserObject) F(UserObjectCreate) F(UserObjectRelease)                              \
	F(MemAlloc) F(MemFree) F(MemHostAlloc) F(MemFreeHost) F(MemHostRegister)                       \
	F(MemHostUnregister) F(MemGetInfo)                                                             \
	F(MemcpyAsync) F(MemcpyDtoHAsync) F(MemcpyHtoDAsync) F(Memcpy2DAsync) F(MemcpyDtoDAsync)       \
	F(MemsetD8Async)                                                                               \
	F(MemGetAddressRange) F(MemAddressReserve) F(MemAddressFree) F(MemMap) F(MemUnmap)             \
	F(MemSetAccess) F(MemRelease) F(MemRetainAllocationHandle) F(MemExportToShareableHandle)       \
	F(MemGetAllocationPropertiesFromHandle) F(MemImportFromShareableHandle)                        \
	F(PointerGetAttributes)                                                                        \
	F(IpcGetMemHandle) F(IpcOpenMemHandle) F(IpcCloseMemHandle)                                    \
	F(EventCreate) F(EventRecord) F(EventQuery) F(EventElapsedTime) F(EventDestroy)
/* clang-format on */

struct ferry_cuda_driver {
#define FERRY_CUDA_MEMBER(name) __typeof__(cu##name) *name;
	FERRY_CUDA_FUNCTIONS(FERRY_CUDA_MEMBER)
#undef FERRY_CUDA_MEMBER
};

/**
 * Opens libcuda.so.1 (or FERRY_CUDA_LIBRARY) and initializes it, once per process.
 * *driver points to constants of the process. Errors, remembered: ferryInvalidUsage with the reason if there is no
 * driver, it lacks an entry point (CUDA 12.8 has all), or it finds no device.
 */
ferryResult_t ferry_cuda_driver_open(const struct ferry_cuda_driver **driver);

/** Turns a driver's result into Ferry's, with a message: what was tried, the driver's words and the code. */
ferryResult_t ferry_cuda_failed(const struct ferry_cuda_driver *driver, CUresult result, const char *tried);

#endif
