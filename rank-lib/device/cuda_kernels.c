/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/cuda_kernels.h"

#include "ipc/error.h"
#include "rank-lib/device/cuda_device.h"
#include "rank-lib/kernels/kernel_call.h"

#include <string.h>

static uint32_t multiprocessors(struct ferry_device *base)
{
	const struct ferry_cuda_device *device = ferry_cuda_device(base);
	int count = 0;
	if (device->driver->DeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device->device))
		return 0;
	return count > 0 ? (uint32_t)count : 0;
}

static ferryResult_t load(struct ferry_device *base, const char *ptx, const char *const *names, uint32_t count,
                          void **functions)
{
	const struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	CUmodule module;
	ferryResult_t result = ferry_cuda_enter(ferry_cuda_device(base), &visit);
	if (result)
		return result;
	CUresult refused = device->driver->ModuleLoadData(&module, ptx);
	for (uint32_t i = 0; i < count && !refused; i++) {
		CUfunction function;
		refused = device->driver->ModuleGetFunction(&function, module, names[i]);
		if (!refused) /* now: a lazy driver would do it at the first launch, beside kernels that wait */
			refused = device->driver->FuncLoad(function);
		functions[i] = function;
	}
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "loading kernels") : ferrySuccess;
}

/* ---- launches ---- */

/* In the capture `id`: behind the communicator's last kernel there, which may be in another stream of it. */
static CUresult follow_capture(const struct ferry_cuda_driver *driver, CUstream stream, uint64_t id,
                               struct ferry_kernel_order *order)
{
	if (order->capture != id || order->branch == (ferryStream_t)stream)
		return CUDA_SUCCESS;
	return driver->StreamWaitEvent(stream, order->event, 0);
}

/* Once per graph, which then has the memory that its kernels use. */
static CUresult give_to_graph(const struct ferry_cuda_driver *driver, CUgraph graph, void (*keep)(void *argument),
                              void (*forget)(void *argument), void *argument)
{
	CUuserObject object;
	keep(argument);
	CUresult refused = driver->UserObjectCreate(&object, argument, forget, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (refused) {
		forget(argument);
		return refused;
	}
	refused = driver->GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
	if (refused)
		driver->UserObjectRelease(object, 1);
	return refused;
}

static CUresult mark_capture(const struct ferry_cuda_driver *driver, CUstream stream, uint64_t id,
                             struct ferry_kernel_order *order)
{
	CUresult refused = CUDA_SUCCESS;
	if (!order->event)
		refused = driver->EventCreate((CUevent *)&order->event, CU_EVENT_DISABLE_TIMING);
	if (!refused)
		refused = driver->EventRecord(order->event, stream);
	order->capture = id;
	order->branch = (ferryStream_t)stream;
	return refused;
}

static ferryResult_t launch(struct ferry_device *base, void *function, uint32_t blocks, uint32_t threads,
                            ferryStream_t given, struct ferry_kernel_order *order, struct ferry_kernel_call *call,
                            void (*keep)(void *argument), void (*forget)(void *argument), void *argument)
{
	const struct ferry_cuda_driver *driver = ferry_cuda_device(base)->driver;
	CUstream stream = (CUstream)given;
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	uint64_t capture = 0;
	unsigned long long id = 0;
	void *parameters[] = {call};
	CUresult refused = driver->StreamGetCaptureInfo(stream, &status, &capture, &graph, NULL, NULL, NULL);
	if (refused)
		return ferry_fail(ferryInvalidUsage,
		                  "stream %p is of another device, or it is the default stream while another stream of "
		                  "this thread's device is capturing (CUDA error %d)",
		                  (void *)stream, (int)refused);
	if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		return ferry_fail(ferryInvalidUsage, "the capture of stream %p was invalidated before this call",
		                  (void *)stream);
	call->captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (call->captured)
		refused = follow_capture(driver, stream, capture, order);
	else if (!(refused = driver->StreamGetId(stream, &id)) && order->stream && order->stream != id)
		call->awaits = 1;
	call->awaited_plain = order->plain;
	if (!refused)
		refused = driver->LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
	if (refused == CUDA_ERROR_INVALID_HANDLE || refused == CUDA_ERROR_INVALID_CONTEXT)
		return ferry_fail(
		        ferryInvalidArgument,
		        "stream %p is of another device or context than the communicator, which is on CUDA device %d",
		        (void *)stream, base->ordinal);
	if (!refused && !call->captured) {
		order->stream = id;
		order->plain++;
	}
	if (!refused && call->captured && order->capture != capture)
		refused = give_to_graph(driver, graph, keep, forget, argument);
	if (!refused && call->captured)
		refused = mark_capture(driver, stream, capture, order);
	return refused ? ferry_cuda_failed(driver, refused, "putting a kernel into the stream") : ferrySuccess;
}

static void order_end(struct ferry_device *base, struct ferry_kernel_order *order)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (!order->event || ferry_cuda_enter(device, &visit))
		return;
	device->driver->EventDestroy(order->event);
	order->event = NULL;
	ferry_cuda_visit_end(&visit);
}

/* ---- memory ---- */

/* On a stream of its own, which waits for no other work of the device. */
static ferryResult_t zero_or_read(struct ferry_device *base, CUdeviceptr memory, void *to, size_t bytes)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	const struct ferry_cuda_driver *driver = device->driver;
	struct ferry_cuda_visit visit;
	CUstream stream = NULL;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = driver->StreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	if (!refused && to)
		refused = driver->MemcpyDtoHAsync(to, memory, bytes, stream);
	else if (!refused)
		refused = driver->MemsetD8Async(memory, 0, bytes, stream);
	if (!refused)
		refused = driver->StreamSynchronize(stream);
	if (stream)
		driver->StreamDestroy(stream);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(driver, refused, "preparing a mailbox") : ferrySuccess;
}

static ferryResult_t zero(struct ferry_device *device, void *memory, size_t bytes)
{
	return zero_or_read(device, (CUdeviceptr)(uintptr_t)memory, NULL, bytes);
}

static ferryResult_t read_memory(struct ferry_device *device, void *to, const void *memory, size_t bytes)
{
	return zero_or_read(device, (CUdeviceptr)(uintptr_t)memory, to, bytes);
}

static ferryResult_t reach(struct ferry_device *base, struct ferry_device *other)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (base == other)
		return ferrySuccess;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->CtxEnablePeerAccess(ferry_cuda_device(other)->context, 0);
	ferry_cuda_visit_end(&visit);
	if (!refused || refused == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)
		return ferrySuccess;
	return ferry_cuda_failed(device->driver, refused, "reaching another GPU's memory");
}

static ferryResult_t map(struct ferry_device *base, const uint8_t given[64], void **address)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	CUdeviceptr mapped = 0;
	CUipcMemHandle handle;
	memcpy(&handle, given, sizeof handle);
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->IpcOpenMemHandle(&mapped, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	ferry_cuda_visit_end(&visit);
	*address = (void *)(uintptr_t)mapped;
	return refused ? ferry_cuda_failed(device->driver, refused, "mapping a mailbox of another process")
	               : ferrySuccess;
}

static void unmap(struct ferry_device *base, void *address)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return;
	device->driver->IpcCloseMemHandle((CUdeviceptr)(uintptr_t)address);
	ferry_cuda_visit_end(&visit);
}

static ferryResult_t add_host(struct ferry_device *base, void *memory, size_t bytes)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->MemHostRegister(memory, bytes,
	                                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "registering host memory with the GPU")
	               : ferrySuccess;
}

static void remove_host(struct ferry_device *base, void *memory)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return;
	device->driver->MemHostUnregister(memory);
	ferry_cuda_visit_end(&visit);
}

const struct ferry_kernels_ops ferry_cuda_kernels = {.multiprocessors = multiprocessors,
                                                     .load = load,
                                                     .launch = launch,
                                                     .order_end = order_end,
                                                     .zero = zero,
                                                     .read = read_memory,
                                                     .reach = reach,
                                                     .map = map,
                                                     .unmap = unmap,
                                                     .add_host = add_host,
                                                     .remove_host = remove_host};
