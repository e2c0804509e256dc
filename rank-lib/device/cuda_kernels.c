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
		CUfunction function = NULL;
		refused = device->driver->ModuleGetFunction(&function, module, names[i]);
		if (!refused) /* a lazy driver would load it at the first launch, while kernels wait */
			refused = device->driver->FuncLoad(function);
		functions[i] = function;
	}
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "loading kernels") : ferrySuccess;
}

/* ---- launches ---- */

/* Once per graph: the graph then holds the memory that its kernels use. */
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

/* ---- plain kernels ---- */

static CUresult before_plain(const struct ferry_cuda_driver *driver, CUstream stream,
                             const struct ferry_kernel_order *order, struct ferry_kernel_call *call,
                             unsigned long long *id)
{
	if (order->mixed)
		return driver->StreamWaitEvent(stream, order->event, CU_EVENT_WAIT_DEFAULT);
	CUresult refused = driver->StreamGetId(stream, id);
	call->awaits = !refused && order->stream && order->stream != *id;
	return refused;
}

static CUresult behind_plain(const struct ferry_cuda_driver *driver, CUstream stream, struct ferry_kernel_order *order,
                             unsigned long long id)
{
	order->plain++;
	if (order->mixed)
		return driver->EventRecord(order->event, stream);
	order->counted = order->plain;
	order->stream = id;
	return CUDA_SUCCESS;
}

/* ---- captured kernels ---- */

struct capture {
	CUgraph graph;
	uint64_t id;
	const CUgraphNode *nodes; /* the next node depends on these; valid until the stream is used */
	size_t count;
	struct ferry_kernel_capture *found; /* NULL: the graph has no kernel of the communicator yet */
};

static CUresult look(const struct ferry_cuda_driver *driver, CUstream stream, CUstreamCaptureStatus *status,
                     struct capture *capture)
{
	const CUgraphEdgeData *edges; /* not used; NULL would be an error where an edge has data of its own */
	return driver->StreamGetCaptureInfo(stream, status, &capture->id, &capture->graph, &capture->nodes, &edges,
	                                    &capture->count);
}

static struct ferry_kernel_capture *find_capture(struct ferry_kernel_order *order, uint64_t id)
{
	for (uint32_t i = 0; i < FERRY_KERNEL_CAPTURES; i++)
		if (order->captures[i].id == id)
			return &order->captures[i];
	return NULL;
}

/* A graph's first kernel waits for all that was launched before the graph; each other one follows its last one. */
static CUresult before_captured(const struct ferry_cuda_driver *driver, CUstream stream,
                                const struct capture *capture, struct ferry_kernel_order *order)
{
	struct ferry_kernel_capture *found = capture->found;
	CUresult refused = CUDA_SUCCESS;
	if (!order->event)
		refused = driver->EventCreate((CUevent *)&order->event, CU_EVENT_DISABLE_TIMING);
	if (refused || !found)
		return refused ? refused : driver->StreamWaitEvent(stream, order->event, CU_EVENT_WAIT_EXTERNAL);
	bool follows = found->stream == (ferryStream_t)stream;
	for (size_t i = 0; i < capture->count; i++)
		follows |= capture->nodes[i] == found->last;
	return follows ? CUDA_SUCCESS
	               : driver->StreamUpdateCaptureDependencies(stream, (CUgraphNode *)&found->last, NULL, 1,
	                                                         CU_STREAM_ADD_CAPTURE_DEPENDENCIES);
}

/* The event's record depends on all of the graph's kernels; no node depends on the record. */
static CUresult behind_captured(const struct ferry_cuda_driver *driver, CUstream stream, struct capture *capture,
                                struct ferry_kernel_order *order)
{
	struct ferry_kernel_capture *found = capture->found;
	CUstreamCaptureStatus status;
	CUgraphNode kernel, record;
	order->mixed = true;
	CUresult refused = look(driver, stream, &status, capture);
	if (refused || capture->count != 1)
		return refused ? refused : CUDA_ERROR_ILLEGAL_STATE;
	kernel = capture->nodes[0];
	if (found) {
		record = found->record;
		refused = driver->GraphAddDependencies(capture->graph, &kernel, &record, NULL, 1);
	} else {
		refused = driver->GraphAddEventRecordNode(&record, capture->graph, &kernel, 1, order->event);
		if (refused) /* there is no record */
			return refused;
		found = &order->captures[order->ncaptures++ % FERRY_KERNEL_CAPTURES];
	}
	*found = (struct ferry_kernel_capture){capture->id, (ferryStream_t)stream, kernel, record};
	return refused;
}

static ferryResult_t launch(struct ferry_device *base, void *function, uint32_t blocks, uint32_t threads,
                            ferryStream_t given, struct ferry_kernel_order *order, struct ferry_kernel_call *call,
                            void (*keep)(void *argument), void (*forget)(void *argument), void *argument)
{
	const struct ferry_cuda_driver *driver = ferry_cuda_device(base)->driver;
	CUstream stream = (CUstream)given;
	CUstreamCaptureStatus status;
	struct capture capture = {0};
	unsigned long long id = 0;
	void *parameters[] = {call};
	CUresult refused = look(driver, stream, &status, &capture);
	if (refused)
		return ferry_fail(ferryInvalidUsage,
		                  "stream %p is of another device, or it is the default stream while another stream of "
		                  "this thread's device is capturing (CUDA error %d)",
		                  (void *)stream, (int)refused);
	if (status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		return ferry_fail(ferryInvalidUsage, "the capture of stream %p was invalidated before this call",
		                  (void *)stream);
	bool captured = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	capture.found = captured ? find_capture(order, capture.id) : NULL;
	call->awaits = call->uncounted = captured || order->mixed;
	call->awaited_plain = order->counted;
	refused = captured ? before_captured(driver, stream, &capture, order)
	                   : before_plain(driver, stream, order, call, &id);
	if (!refused)
		refused = driver->LaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, parameters, NULL);
	if (refused == CUDA_ERROR_INVALID_HANDLE || refused == CUDA_ERROR_INVALID_CONTEXT)
		return ferry_fail(
		        ferryInvalidArgument,
		        "stream %p is of another device or context than the communicator, which is on CUDA device %d",
		        (void *)stream, base->ordinal);
	if (!refused && captured && !capture.found)
		refused = give_to_graph(driver, capture.graph, keep, forget, argument);
	if (!refused)
		refused = captured ? behind_captured(driver, stream, &capture, order)
		                   : behind_plain(driver, stream, order, id);
	return refused ? ferry_cuda_failed(driver, refused, "putting a kernel into the stream") : ferrySuccess;
}

static ferryResult_t follow(struct ferry_device *base, struct ferry_kernel_order *order, ferryStream_t stream,
                            ferryStream_t other)
{
	const struct ferry_cuda_driver *driver = ferry_cuda_device(base)->driver;
	CUresult refused = CUDA_SUCCESS;
	if (stream == other)
		return ferrySuccess;
	if (!order->joint)
		refused = driver->EventCreate((CUevent *)&order->joint, CU_EVENT_DISABLE_TIMING);
	if (!refused)
		refused = driver->EventRecord(order->joint, (CUstream)other);
	if (!refused)
		refused = driver->StreamWaitEvent((CUstream)stream, order->joint, CU_EVENT_WAIT_DEFAULT);
	return refused ? ferry_cuda_failed(driver, refused, "joining the streams of a group") : ferrySuccess;
}

static ferryResult_t stream_beside(struct ferry_device *base, struct ferry_kernel_order *order, ferryStream_t *stream)
{
	const struct ferry_cuda_driver *driver = ferry_cuda_device(base)->driver;
	CUresult refused = CUDA_SUCCESS;
	if (!order->beside)
		refused = driver->StreamCreate((CUstream *)&order->beside, CU_STREAM_NON_BLOCKING);
	*stream = order->beside;
	return refused ? ferry_cuda_failed(driver, refused, "making a stream for messages") : ferrySuccess;
}

static bool is_over(struct ferry_device *base, const struct ferry_kernel_order *order)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (!order->mixed)
		return true;
	if (ferry_cuda_enter(device, &visit))
		return false;
	CUresult refused = device->driver->EventQuery(order->event);
	ferry_cuda_visit_end(&visit);
	return !refused;
}

static void order_end(struct ferry_device *base, struct ferry_kernel_order *order)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if ((!order->event && !order->joint) || ferry_cuda_enter(device, &visit)) /* `beside` comes with `joint` */
		return;
	if (order->event)
		device->driver->EventDestroy(order->event);
	if (order->joint)
		device->driver->EventDestroy(order->joint);
	if (order->beside)
		device->driver->StreamDestroy(order->beside);
	order->event = order->joint = order->beside = NULL;
	ferry_cuda_visit_end(&visit);
}

/* ---- memory ---- */

/* Uses a stream of its own, so that it waits for no other work of the device. */
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

static ferryResult_t map(struct ferry_device *base, const uint8_t handle[64], void **address, uint64_t *bytes)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	CUdeviceptr mapped = 0;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = ferry_cuda_open_handle(device->driver, handle, &mapped, bytes);
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
                                                     .follow = follow,
                                                     .stream_beside = stream_beside,
                                                     .is_over = is_over,
                                                     .order_end = order_end,
                                                     .zero = zero,
                                                     .read = read_memory,
                                                     .reach = reach,
                                                     .map = map,
                                                     .unmap = unmap,
                                                     .add_host = add_host,
                                                     .remove_host = remove_host};
