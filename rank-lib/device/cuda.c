/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call in a CUDA stream is two memory operations on one word (ipc/words.h): write 1, wait for 0. They work in the
 * stream's order, without an SM and without the host, and can be captured into a graph and replayed.
 */
#include "rank-lib/device/cuda.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <pthread.h>
#include <stdlib.h>

static struct ferry_cuda_device *devices[FERRY_MAX_RANKS];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

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
	if (!result && (refused = driver->StreamGetId(stream, &id)))
		result = ferry_cuda_failed(driver, refused, "asking for the stream's id");
	*state = (struct ferry_stream_state){.id = id, .captures = status == CU_STREAM_CAPTURE_STATUS_ACTIVE};
	ferry_cuda_visit_end(&visit);
	return result;
}

/* When the graph that is captured and all that was instantiated from it are gone, `forget` runs. */
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

static CUstreamBatchMemOpParams write_word(_Atomic uint32_t *word, uint32_t value)
{
	return (CUstreamBatchMemOpParams){.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32,
	                                                 .address = (CUdeviceptr)(uintptr_t)word,
	                                                 .value = value,
	                                                 .flags = CU_STREAM_WRITE_VALUE_DEFAULT}};
}

static CUstreamBatchMemOpParams wait_for_word(_Atomic uint32_t *word, uint32_t value, unsigned flags)
{
	return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                                .address = (CUdeviceptr)(uintptr_t)word,
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

/* One call of the driver where nothing lies between the two operations. */
static CUresult pass_word(const struct ferry_cuda_device *device, CUstream stream, const struct ferry_stream_call *call)
{
	const struct ferry_cuda_driver *driver = device->driver;
	CUstreamBatchMemOpParams operations[2] = {write_word(&call->word->word, 1),
	                                          wait_for_word(&call->word->word, 0, device->wait_flags)};
	if (!call->ncopies)
		return driver->StreamBatchMemOp(stream, 2, operations, 0);
	CUresult refused = driver->StreamBatchMemOp(stream, 1, operations, 0);
	if (!refused)
		refused = copy_within(driver, stream, call->copies, call->ncopies);
	return refused ? refused : driver->StreamBatchMemOp(stream, 1, operations + 1, 0);
}

static CUresult fill_stream(const struct ferry_cuda_device *device, CUstream stream,
                            const struct ferry_stream_call *call)
{
	const struct ferry_cuda_driver *driver = device->driver;
	CUresult refused = CUDA_SUCCESS;
	if (call->scalar)
		refused = driver->MemcpyAsync((CUdeviceptr)(uintptr_t)&call->word->scalar,
		                              (CUdeviceptr)(uintptr_t)call->scalar, call->scalar_bytes, stream);
	if (!refused)
		refused = copy_within(driver, stream, call->before, call->nbefore);
	if (!refused)
		refused = pass_word(device, stream, call);
	return refused ? refused : copy_within(driver, stream, call->after, call->nafter);
}

static ferryResult_t enqueue_word(struct ferry_device *base, ferryStream_t given, const struct ferry_stream_call *call)
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

static ferryResult_t register_words(struct ferry_device *base, struct ferry_word *words, size_t bytes)
{
	return base->copier->ops->register_memory(base->copier, (void *)words, bytes);
}

static void close_device(struct ferry_device *device)
{
	(void)device; /* kept: see cuda.h */
}

static const struct ferry_device_ops cuda_ops = {.kind = "cuda",
                                                 .enqueue_word = enqueue_word,
                                                 .register_words = register_words,
                                                 .check_stream = check_stream,
                                                 .check_buffer = ferry_cuda_check_buffer,
                                                 .export_buffer = ferry_cuda_export,
                                                 .import_buffer = ferry_cuda_import,
                                                 .import_close = ferry_cuda_import_close,
                                                 .pieces = &ferry_cuda_pieces,
                                                 .node = ferry_cuda_node,
                                                 .close = close_device};

static ferryResult_t set_up(struct ferry_cuda_device *device, int ordinal)
{
	const struct ferry_cuda_driver *driver = device->driver;
	int addressing = 0, flushes = 0;
	CUmoduleLoadingMode loading;
	long lazy;
	ferryResult_t result = ferry_env_integer("FERRY_LAZY_MODULES", 0, 1, 0, &lazy);
	if (result)
		return result;
	if (!lazy && !driver->ModuleGetLoadingMode(&loading) && loading == CU_MODULE_LAZY_LOADING)
		return ferry_fail(ferryInvalidUsage,
		                  "this process loads CUDA kernels lazily, which can deadlock beside a call: set "
		                  "CUDA_MODULE_LOADING=EAGER before CUDA starts (ferryrun does), or "
		                  "FERRY_LAZY_MODULES=1 if all its kernels have run once");
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
	device->base.copier = &device->copier.base;
	return ferry_cuda_copier_open(&device->copier, driver, device->context);
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
