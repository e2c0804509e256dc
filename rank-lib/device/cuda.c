/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call in a CUDA stream is three memory operations: write started = 1, wait for finished == 1, write finished = 0. They work
 * in the stream's order, without an SM and without the host; and because each word is put back by the side that read it, they
 * can be captured into a graph and replayed. The words are pinned host memory that the lanes look at.
 *
 * Outside of a capture only the first goes into the user's stream. The others go into a stream of the communicator's own, the
 * gate, and the user's stream waits for an event behind them. A stream that waits in a memory operation holds one of the few
 * hardware queues (8 by default) that small copies to the GPU go through as well; eight user's streams that wait so keep the
 * copies out that they wait for. With the gate it is one.
 */
#include "rank-lib/device/cuda.h"

#include "ipc/environment.h"
#include "ipc/error.h"

#include <stdlib.h>
#include <string.h>

#define LINES_AT_ONCE 1024

static struct ferry_cuda_device *devices[FERRY_MAX_RANKS];
static pthread_mutex_t devices_lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- lines ---- */

static void put_line(struct ferry_cuda_device *device, struct ferry_cuda_line *line)
{
	device->lines[(device->first + device->nlines++) % device->capacity] = line;
}

/* There is room for every line ever made, so giving one back cannot fail. Under the lock. */
static ferryResult_t make_lines(struct ferry_cuda_device *device)
{
	uint32_t capacity = device->capacity + LINES_AT_ONCE;
	struct ferry_cuda_line **ring = calloc(capacity, sizeof *ring), *made = NULL;
	if (!ring)
		return ferry_fail(ferrySystemError, "no memory for %u calls", capacity);
	CUresult refused = device->driver->MemHostAlloc((void **)&made, LINES_AT_ONCE * sizeof *made,
	                                                CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (refused) {
		free(ring);
		return ferry_cuda_failed(device->driver, refused, "allocating pinned memory for calls");
	}
	memset((void *)made, 0, LINES_AT_ONCE * sizeof *made);
	for (uint32_t i = 0; i < LINES_AT_ONCE; i++)
		atomic_store_explicit(&made[i].started, 1, memory_order_relaxed);
	for (uint32_t i = 0; i < device->nlines; i++)
		ring[i] = device->lines[(device->first + i) % device->capacity];
	free(device->lines);
	device->lines = ring;
	device->capacity = capacity;
	device->first = 0;
	for (uint32_t i = 0; i < LINES_AT_ONCE; i++)
		put_line(device, &made[i]);
	return ferrySuccess;
}

/*
 * No stream has it before it any more. A call that failed is finished before its stream comes to its start, and the gate may then
 * be past it while that start is still to be written. What comes with a start (the scalar) is before it.
 */
static bool is_over(const struct ferry_cuda_line *line)
{
	return atomic_load_explicit(&line->started, memory_order_acquire) &&
	       !atomic_load_explicit(&line->finished, memory_order_acquire);
}

/* The first line that no stream is about to pass any more; they are given back in about that order. Under the lock. */
static struct ferry_cuda_line *usable_line(struct ferry_cuda_device *device)
{
	for (uint32_t tried = device->nlines; tried; tried--) {
		struct ferry_cuda_line *line = device->lines[device->first];
		device->first = (device->first + 1) % device->capacity;
		device->nlines--;
		if (is_over(line))
			return line;
		put_line(device, line);
	}
	return NULL;
}

ferryResult_t ferry_cuda_take_line(struct ferry_cuda_device *device, struct ferry_cuda_line **line)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&device->lock);
	*line = usable_line(device);
	if (!*line && !(result = make_lines(device)))
		*line = usable_line(device);
	pthread_mutex_unlock(&device->lock);
	if (*line)
		atomic_store_explicit(&(*line)->started, 0, memory_order_relaxed);
	return result;
}

void ferry_cuda_give_line(struct ferry_cuda_device *device, struct ferry_cuda_line *line)
{
	pthread_mutex_lock(&device->lock);
	put_line(device, line);
	pthread_mutex_unlock(&device->lock);
}

/* ---- streams ---- */

static ferryResult_t check_stream(struct ferry_device *base, ferryStream_t given, bool *captures)
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
		result = ferry_fail(ferryInvalidArgument, "stream %p is of another device or context than the communicator, which is on CUDA device %d",
		                    (void *)stream, base->ordinal);
	if (!result && (refused = driver->StreamIsCapturing(stream, &status)))
		result = ferry_fail(ferryInvalidUsage,
		                    "the default stream cannot be used while another stream of this thread's device is capturing (CUDA error %d)",
		                    (int)refused);
	if (!result && status == CU_STREAM_CAPTURE_STATUS_INVALIDATED)
		result = ferry_fail(ferryInvalidUsage, "the capture of stream %p was invalidated before this call", (void *)stream);
	*captures = status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	ferry_cuda_visit_end(&visit);
	return result;
}

static void forget(void *argument)
{
	struct ferry_ticket *ticket = argument;
	atomic_store_explicit(&ticket->forgotten, 1, memory_order_release);
	ticket->on_forget(ticket);
	ferry_ticket_drop(ticket);
}

/* The graph holds the ticket: when it and all that was instantiated from it are gone, `forget` runs. */
static CUresult give_to_graph(const struct ferry_cuda_driver *driver, CUstream stream, struct ferry_ticket *ticket)
{
	CUstreamCaptureStatus status;
	CUgraph graph = NULL;
	CUuserObject object;
	CUresult refused = driver->StreamGetCaptureInfo(stream, &status, NULL, &graph, NULL, NULL, NULL);
	if (!refused)
		refused = driver->UserObjectCreate(&object, ticket, forget, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
	if (refused)
		return refused;
	atomic_fetch_add_explicit(&ticket->holders, 1, memory_order_relaxed); /* from here on `forget` will be called */
	refused = driver->GraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
	if (refused)
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

static CUstreamBatchMemOpParams wait_for_word(_Atomic uint32_t *word, uint32_t value)
{
	return (CUstreamBatchMemOpParams){.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                                                .address = (CUdeviceptr)(uintptr_t)word,
	                                                .value = value,
	                                                .flags = CU_STREAM_WAIT_VALUE_EQ}};
}

static CUresult copy_within(const struct ferry_cuda_driver *driver, CUstream stream, const struct ferry_stream_work *work)
{
	CUresult refused = CUDA_SUCCESS;
	for (uint32_t i = 0; !refused && i < work->ncopies; i++)
		refused = driver->MemcpyDtoDAsync((CUdeviceptr)(uintptr_t)work->copies[i].destination,
		                                  (CUdeviceptr)(uintptr_t)work->copies[i].source, work->copies[i].bytes, stream);
	return refused;
}

/*
 * The copies are in the stream before the gate waits: tools such as compute-sanitizer run a copy within the GPU, a kernel to them,
 * only once all work that was there before has ended.
 */
static CUresult pass_gate(const struct ferry_cuda_driver *driver, CUstream stream, CUstream gate, struct ferry_cuda_line *line,
                          CUstreamBatchMemOpParams *operations, const struct ferry_stream_work *work)
{
	CUresult refused = line->passed ? CUDA_SUCCESS : driver->EventCreate(&line->passed, CU_EVENT_DISABLE_TIMING);
	if (!refused)
		refused = driver->StreamBatchMemOp(stream, 1, operations, 0);
	if (!refused)
		refused = copy_within(driver, stream, work);
	if (!refused)
		refused = driver->StreamBatchMemOp(gate, 2, operations + 1, 0);
	if (!refused)
		refused = driver->EventRecord(line->passed, gate);
	return refused ? refused : driver->StreamWaitEvent(stream, line->passed, 0);
}

static CUresult fill_stream(const struct ferry_cuda_driver *driver, CUstream stream, CUstream gate, struct ferry_cuda_line *line,
                            const struct ferry_stream_work *work)
{
	CUstreamBatchMemOpParams operations[3] = {write_word(&line->started, 1), wait_for_word(&line->finished, 1),
	                                          write_word(&line->finished, 0)};
	CUresult refused = CUDA_SUCCESS;
	if (work->scalar)
		refused = driver->MemcpyAsync((CUdeviceptr)(uintptr_t)&line->scalar, (CUdeviceptr)(uintptr_t)work->scalar,
		                              work->scalar_bytes, stream);
	if (refused || gate)
		return refused ? refused : pass_gate(driver, stream, gate, line, operations, work);
	if (!work->ncopies)
		return driver->StreamBatchMemOp(stream, 3, operations, 0);
	refused = driver->StreamBatchMemOp(stream, 1, operations, 0);
	if (!refused)
		refused = copy_within(driver, stream, work);
	return refused ? refused : driver->StreamBatchMemOp(stream, 2, operations + 1, 0);
}

static ferryResult_t gate_open(struct ferry_device *base, void **gate)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	CUresult refused = device->driver->StreamCreateWithPriority((CUstream *)gate, CU_STREAM_NON_BLOCKING, device->copier.priority);
	ferry_cuda_visit_end(&visit);
	return refused ? ferry_cuda_failed(device->driver, refused, "creating a stream for calls") : ferrySuccess;
}

static void gate_close(struct ferry_device *base, void *gate)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_enter(device, &visit))
		return;
	device->driver->StreamDestroy(gate);
	ferry_cuda_visit_end(&visit);
}

static ferryResult_t enqueue(struct ferry_device *base, ferryStream_t given, struct ferry_ticket *ticket,
                             const struct ferry_stream_work *work)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct ferry_cuda_line *line;
	struct ferry_cuda_visit visit;
	CUstream stream = (CUstream)given;
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result)
		return result;
	if (!(result = ferry_cuda_take_line(device, &line))) {
		ticket->backend = line;
		ticket->started = &line->started;
		ticket->finished = &line->finished;
		if (work->scalar)
			*work->scalar_at = &line->scalar;
		CUresult refused = ticket->repeats ? give_to_graph(device->driver, stream, ticket) : CUDA_SUCCESS;
		if (!refused)
			refused = fill_stream(device->driver, stream, ticket->repeats ? NULL : work->gate, line, work);
		if (refused)
			result = ferry_cuda_failed(device->driver, refused, "putting a call into the stream");
	}
	ferry_cuda_visit_end(&visit);
	return result;
}

static void release(struct ferry_device *base, struct ferry_ticket *ticket)
{
	struct ferry_cuda_line *line = ticket->backend;
	if (!line)
		return;
	if (ticket->repeats) { /* no graph is left that could pass it */
		atomic_store_explicit(&line->started, 1, memory_order_relaxed);
		atomic_store_explicit(&line->finished, 0, memory_order_relaxed);
	}
	ferry_cuda_give_line(ferry_cuda_device(base), line);
}

/* ---- devices ---- */

static void close_device(struct ferry_device *device)
{
	(void)device; /* kept: see cuda.h */
}

static const struct ferry_device_ops cuda_ops = {.kind = "cuda",
                                                 .copies_in_stream = true,
                                                 .enqueue = enqueue,
                                                 .gate_open = gate_open,
                                                 .gate_close = gate_close,
                                                 .release = release,
                                                 .check_stream = check_stream,
                                                 .check_buffer = ferry_cuda_check_buffer,
                                                 .export_buffer = ferry_cuda_export,
                                                 .import_buffer = ferry_cuda_import,
                                                 .import_close = ferry_cuda_import_close,
                                                 .node = ferry_cuda_node,
                                                 .close = close_device};

static ferryResult_t set_up(struct ferry_cuda_device *device, int ordinal)
{
	const struct ferry_cuda_driver *driver = device->driver;
	int addressing = 0;
	CUmoduleLoadingMode loading;
	long lazy;
	ferryResult_t result = ferry_env_integer("FERRY_LAZY_MODULES", 0, 1, 0, &lazy);
	if (result)
		return result;
	if (!lazy && !driver->ModuleGetLoadingMode(&loading) && loading == CU_MODULE_LAZY_LOADING)
		return ferry_fail(ferryInvalidUsage,
		                  "this process loads CUDA kernels lazily, which can deadlock beside a call: set CUDA_MODULE_LOADING=EAGER "
		                  "before CUDA starts (ferryrun does), or FERRY_LAZY_MODULES=1 if all its kernels have run once");
	device->base.ops = &cuda_ops;
	device->base.ordinal = ordinal;
	pthread_mutex_init(&device->lock, NULL);
	CUresult refused = driver->DeviceGet(&device->device, ordinal);
	if (!refused)
		refused = driver->DeviceGetAttribute(&addressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, device->device);
	if (!refused && !addressing)
		return ferry_fail(ferryInvalidUsage, "CUDA device %d has no unified addressing", ordinal);
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
	if (driver->CtxGetCurrent(&context) || !context || driver->CtxGetDevice(&device) || driver->DeviceGetCount(&count))
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
		return ferry_fail(ferryInvalidArgument, "CUDA device %d: this process sees %d (CUDA_VISIBLE_DEVICES?)", ordinal, count);
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
