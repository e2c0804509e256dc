/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call in a CUDA stream is two memory operations on one stream flag (ipc/stream_flag.h): write 1, wait for 0. They
 * need neither an SM nor the host, and a graph can capture and replay them.
 */
#include "rank-lib/device/cuda.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "rank-lib/device/cuda_device.h"
#include "rank-lib/device/cuda_kernels.h"
#include "rank-lib/device/cuda_memory.h"
#include "rank-lib/device/cuda_pieces.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define FEW_CONNECTIONS 8

static struct ferry_cuda_device *devices[FERRY_MAX_RANKS];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- visits ---- */

_Static_assert(sizeof(struct ferry_cuda_visit) <= sizeof(struct ferry_device_visit), "what a visit remembers");

static ferryResult_t enter(struct ferry_device *device, struct ferry_device_visit *visit)
{
	return ferry_cuda_enter(ferry_cuda_device(device), (struct ferry_cuda_visit *)visit);
}

static void leave(struct ferry_device_visit *visit)
{
	ferry_cuda_visit_end((struct ferry_cuda_visit *)visit);
}

/* ---- streams ---- */

static ferryResult_t check_stream(struct ferry_device *base, ferryStream_t given, struct ferry_stream_state *state)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	const struct ferry_cuda_driver *driver = device->driver;
	CUstream stream = (CUstream)given;
	CUcontext context = NULL;
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	bool named = stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD;
	CUresult refused = named ? driver->StreamGetCtx(stream, &context) : CUDA_SUCCESS;
	if (refused)
		result = ferry_cuda_failed(driver, refused, "looking at the stream");
	else if (named && context != device->context)
		result = ferry_fail(
		        ferryInvalidArgument,
		        "stream %p is of another device or context than the communicator, which is on CUDA device %d",
		        (void *)stream, base->ordinal);
	if (!result && (refused = driver->StreamIsCapturing(stream, &status)))
		result = ferry_fail(ferryInvalidUsage,
		                    "the default stream cannot be used while another stream of this thread's device is "
		                    "capturing (CUDA error %d)",
		                    (int)refused);
	if (!result && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		result = ferry_fail(ferryInvalidUsage, "the capture of stream %p was invalidated before this call",
		                    (void *)stream);
	unsigned long long id = 0;
	/* A captured call needs no id. */
	bool captures = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (!result && !captures && (refused = driver->StreamGetId(stream, &id)))
		result = ferry_cuda_failed(driver, refused, "asking for the stream's id");
	*state = (struct ferry_stream_state){.stream = given, .id = id, .captures = captures};
	ferry_cuda_visit_end(&visit);
	return result;
}

/* `forget` runs when the captured graph, and all graphs instantiated from it, have been destroyed. */
static CUresult give_to_graph(const struct ferry_cuda_driver *driver, CUstream stream,
                              const struct ferry_stream_call *call)
{
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	CUuserObject object;
	CUresult refused = driver->StreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL);
	if (!refused)
		refused = driver->UserObjectCreate(&object, call->argument, call->forget, 1,
		                                   CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (!refused && (refused = driver->GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE)))
		driver->UserObjectRelease(object, 1);
	return refused;
}

static CUstreamBatchMemOpParams write_flag(_Atomic uint32_t *flag, uint32_t value)
{
	return (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
	                                                 .address = (CUdeviceptr)(uintptr_t)flag,
	                                                 .value = value,
	                                                 .flags = CU_STREAM_WRITE_VALUE_DEFAULT}};
}

static CUstreamBatchMemOpParams wait_for_flag(_Atomic uint32_t *flag, uint32_t value, unsigned flags)
{
	return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                                .address = (CUdeviceptr)(uintptr_t)flag,
	                                                .value = value,
	                                                .flags = CU_STREAM_WAIT_VALUE_EQ | flags}};
}

static CUresult copy_within(const struct ferry_cuda_driver *driver, CUstream stream,
                            const struct ferry_local_copy *copies, uint32_t ncopies)
{
	CUresult refused = CUDA_SUCCESS;
	for (uint32_t i = 0; !refused && i < ncopies; i++)
		refused = driver->MemcpyDtoDAsync((CUdeviceptr)(uintptr_t)copies[i].destination,
		                                  (CUdeviceptr)(uintptr_t)copies[i].source, copies[i].bytes, stream);
	return refused;
}

/* Reads the flag until it is 0, five times a microsecond. */
static const char wait_source[] = ".version 6.3\n.target sm_70\n.address_size 64\n"
                                  ".visible .entry ferry_wait(.param .u64 word)\n{\n"
                                  "\t.reg .pred %over;\n\t.reg .u32 %value;\n\t.reg .u64 %at;\n"
                                  "\tld.param.u64 %at, [word];\n"
                                  "again:\n\tld.volatile.u32 %value, [%at];\n"
                                  "\tsetp.eq.u32 %over, %value, 0;\n\t@%over bra done;\n"
                                  "\tnanosleep.u32 200;\n\tbra again;\n"
                                  "done:\n\tfence.sc.sys;\n\tret;\n}\n";

static CUresult launch_wait(const struct ferry_cuda_device *device, CUstream stream, _Atomic uint32_t *flag)
{
	void *parameters[] = {&flag};
	return device->driver->LaunchKernel(device->wait_kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static CUresult wait_in_stream(const struct ferry_cuda_device *device, CUstream stream, _Atomic uint32_t *flag)
{
	CUstreamBatchMemOpParams operation = wait_for_flag(flag, 0, device->wait_flags);
	return device->wait_kernel ? launch_wait(device, stream, flag)
	                           : device->driver->StreamBatchMemOp(stream, 1, &operation, 0);
}

/* Behind the last kernel of the order, in whatever stream that is. An event that was never recorded delays nothing. */
static CUresult launch_beside(const struct ferry_cuda_driver *driver, CUstream stream,
                              const struct ferry_beside_kernel *kernel)
{
	CUevent *event = (CUevent *)&kernel->order->event;
	CUresult refused = *event ? CUDA_SUCCESS : driver->EventCreate(event, CU_EVENT_DISABLE_TIMING);
	if (!refused)
		refused = driver->StreamWaitEvent(stream, *event, CU_EVENT_WAIT_DEFAULT);
	if (!refused)
		refused = driver->LaunchKernel(kernel->function, kernel->blocks, 1, 1, kernel->threads, 1, 1, 0, stream,
		                               (void *[]){kernel->adds}, NULL);
	return refused ? refused : driver->EventRecord(*event, stream);
}

/* Makes one driver call if nothing is to run between the two operations. */
static CUresult pass_flag(const struct ferry_cuda_device *device, CUstream stream, const struct ferry_stream_call *call)
{
	const struct ferry_cuda_driver *driver = device->driver;
	CUstreamBatchMemOpParams operations[2] = {write_flag(&call->flag->flag, 1),
	                                          wait_for_flag(&call->flag->flag, 0, device->wait_flags)};
	if (!call->ncopies && !device->wait_kernel && !call->open && !call->beside.function)
		return driver->StreamBatchMemOp(stream, 2, operations, 0);
	CUresult refused = driver->StreamBatchMemOp(stream, 1, operations, 0);
	if (!refused)
		refused = copy_within(driver, stream, call->copies, call->ncopies);
	if (!refused && call->beside.function)
		refused = launch_beside(driver, stream, &call->beside);
	return refused || call->open ? refused : wait_in_stream(device, stream, &call->flag->flag);
}

static CUresult pass_rest(const struct ferry_cuda_driver *driver, CUstream stream, const struct ferry_stream_call *call)
{
	const struct ferry_local_kernel *kernel = &call->kernel;
	void *parameters[] = {(void *)(uintptr_t)&kernel->call};
	CUresult refused = copy_within(driver, stream, call->after, call->nafter);
	if (refused || !kernel->function)
		return refused;
	return driver->LaunchKernel(kernel->function, kernel->blocks, 1, 1, kernel->threads, 1, 1, 0, stream,
	                            parameters, NULL);
}

static CUresult fill_stream(const struct ferry_cuda_device *device, CUstream stream,
                            const struct ferry_stream_call *call)
{
	const struct ferry_cuda_driver *driver = device->driver;
	CUresult refused = CUDA_SUCCESS;
	if (call->scalar)
		refused = driver->MemcpyAsync((CUdeviceptr)(uintptr_t)&call->flag->scalar,
		                              (CUdeviceptr)(uintptr_t)call->scalar, call->scalar_bytes, stream);
	if (!refused)
		refused = copy_within(driver, stream, call->before, call->nbefore);
	if (!refused)
		refused = pass_flag(device, stream, call);
	return refused || call->open ? refused : pass_rest(driver, stream, call);
}

static ferryResult_t enqueue_flag(struct ferry_device *base, ferryStream_t given, const struct ferry_stream_call *call)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	CUstream stream = (CUstream)given;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = fill_stream(device, stream, call);
	if (!refused && call->forget)
		refused = give_to_graph(device->driver, stream, call);
	if (refused)
		result = ferry_cuda_failed(device->driver, refused, "putting a call into the stream");
	ferry_cuda_visit_end(&visit);
	return result;
}

static ferryResult_t finish_flag(struct ferry_device *base, ferryStream_t given, const struct ferry_stream_call *call)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = wait_in_stream(device, (CUstream)given, &call->flag->flag);
	if (!refused)
		refused = pass_rest(device->driver, (CUstream)given, call);
	if (refused)
		result = ferry_cuda_failed(device->driver, refused, "putting the end of a call into the stream");
	ferry_cuda_visit_end(&visit);
	return result;
}

static ferryResult_t register_flags(struct ferry_device *base, struct ferry_stream_flag *flags, size_t bytes)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->MemHostRegister((void *)flags, bytes,
	                                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "registering the words of calls with the GPU")
	               : ferrySuccess;
}

static void close_device(struct ferry_device *device)
{
	(void)device; /* kept: see cuda_device.h */
}

static const struct ferry_device_ops cuda_ops = {.kind = "cuda",
                                                 .enter = enter,
                                                 .leave = leave,
                                                 .enqueue_flag = enqueue_flag,
                                                 .finish_flag = finish_flag,
                                                 .register_flags = register_flags,
                                                 .check_stream = check_stream,
                                                 .check_buffer = ferry_cuda_check_buffer,
                                                 .pieces = &ferry_cuda_pieces,
                                                 .kernels = &ferry_cuda_kernels,
                                                 .node = ferry_cuda_node,
                                                 .close = close_device};

/* Loads the kernel and launches it once before any stream waits: a first launch may wait for the whole device. */
static ferryResult_t load_wait(struct ferry_cuda_device *device)
{
	const struct ferry_cuda_driver *driver = device->driver;
	struct ferry_cuda_visit visit;
	CUmodule module;
	CUdeviceptr flag = 0;
	CUstream stream = NULL;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = driver->ModuleLoadData(&module, wait_source);
	if (!refused)
		refused = driver->ModuleGetFunction(&device->wait_kernel, module, "ferry_wait");
	if (!refused && !(refused = driver->StreamCreate(&stream, CU_STREAM_NON_BLOCKING)) &&
	    !(refused = driver->MemAlloc(&flag, sizeof(uint32_t))) &&
	    !(refused = driver->MemsetD8Async(flag, 0, sizeof(uint32_t), stream)) &&
	    !(refused = launch_wait(device, stream, (_Atomic uint32_t *)(uintptr_t)flag)))
		refused = driver->StreamSynchronize(stream);
	/* the flag is never freed: freeing waits for all work of the device, which may wait for a dead rank */
	if (stream)
		driver->StreamDestroy(stream);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(driver, refused, "loading the kernel that waits for calls") : ferrySuccess;
}

/*
 * Streams share hardware queues, 8 unless CUDA_DEVICE_MAX_CONNECTIONS says otherwise. A stream that waits at a memory
 * operation blocks its queue. A kernel that waits blocks none, as long as no other kernel is behind it in its stream.
 * With few queues this is worth the launch.
 */
static ferryResult_t choose_wait(struct ferry_cuda_device *device)
{
	const char *given = ferry_env("FERRY_WAIT"), *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
	if (given && strcmp(given, "memory") && strcmp(given, "kernel"))
		return ferry_fail(ferryInvalidArgument, "FERRY_WAIT=%s: memory or kernel", given);
	bool few = connections && atoi(connections) > 0 && atoi(connections) < FEW_CONNECTIONS;
	return (given ? given[0] == 'k' : few) ? load_wait(device) : ferrySuccess;
}

static ferryResult_t set_up(struct ferry_cuda_device *device, int ordinal)
{
	const struct ferry_cuda_driver *driver = device->driver;
	int addressing = 0, flushes = 0;
	device->base.ops = &cuda_ops;
	device->base.ordinal = ordinal;
	CUresult refused = driver->DeviceGet(&device->device, ordinal);
	if (!refused)
		refused = driver->DeviceGetAttribute(&addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
		                                     device->device);
	if (!refused && !addressing)
		return ferry_fail(ferryInvalidUsage, "CUDA device %d has no unified addressing", ordinal);
	if (!refused)
		refused = driver->DeviceGetAttribute(&flushes, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES,
		                                     device->device);
	device->wait_flags = flushes ? CU_STREAM_WAIT_VALUE_FLUSH : 0;
	if (!refused)
		refused = driver->DevicePrimaryCtxRetain(&device->context, device->device);
	if (refused)
		return ferry_cuda_failed(driver, refused, "opening the CUDA device");
	ferryResult_t result = choose_wait(device);
	if (result)
		driver->DevicePrimaryCtxRelease(device->device);
	return result;
}

/* The device whose context the calling thread has made current, if any. */
static int current_device(const struct ferry_cuda_driver *driver)
{
	CUcontext context = NULL;
	CUdevice device, candidate;
	int count = 0;
	if (driver->CtxGetCurrent(&context) || !context || driver->CtxGetDevice(&device) ||
	    driver->DeviceGetCount(&count))
		return -1;
	for (int ordinal = 0; ordinal < count; ordinal++)
		if (!driver->DeviceGet(&candidate, ordinal) && candidate == device)
			return ordinal;
	return -1;
}

ferryResult_t ferry_cuda_device_open(int ordinal, int local_rank, struct ferry_device **opened)
{
	const struct ferry_cuda_driver *driver;
	int count = 0;
	ferryResult_t result = ferry_cuda_driver_open(&driver);
	if (result)
		return result;
	CUresult refused = driver->DeviceGetCount(&count);
	if (refused)
		return ferry_cuda_failed(driver, refused, "counting CUDA devices");
	if (ordinal < 0)
		ordinal = current_device(driver);
	if (ordinal < 0)
		ordinal = local_rank % count;
	if (ordinal >= count || ordinal >= FERRY_MAX_RANKS)
		return ferry_fail(ferryInvalidArgument, "CUDA device %d: this process sees %d (CUDA_VISIBLE_DEVICES?)",
		                  ordinal, count);
	pthread_mutex_lock(&devices_lock);
	struct ferry_cuda_device *device = devices[ordinal];
	if (!device) {
		device = calloc(1, sizeof *device);
		if (!device)
			result = ferry_fail(ferrySystemError, "no memory for a CUDA device");
		else
			device->driver = driver;
		if (device && (result = set_up(device, ordinal))) {
			free(device);
			device = NULL;
		}
		devices[ordinal] = device;
	}
	*opened = device ? &device->base : NULL;
	pthread_mutex_unlock(&devices_lock);
	return result;
}
