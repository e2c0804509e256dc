/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy queues: a stream each. Behind each copy an event is recorded, which the lane queries. That costs the host next
 * to nothing, and the copy engine nothing: it goes on to the next copy of the stream at once. A flag in memory that the
 * stream writes behind the copy would make the engine wait until all is written. A second stream would fill that gap,
 * but two copies that go on together both end late, and the pipeline with them (docs/lab/lanes-and-workers.md).
 */
#include "router/copy/cuda.h"

#include "ipc/error.h"

#include <stdlib.h>

#define SHORT   (64u << 10)
#define PENDING 128 /* at least as many copies as a lane may have outstanding */

static struct ferry_cuda_copier *cuda_copier(struct ferry_copier *base)
{
	return (struct ferry_cuda_copier *)base;
}

/* Whether the context is gone: then every call in it fails, also this query. */
static bool is_lost(const struct ferry_cuda_copier *copier)
{
	const struct ferry_cuda_driver *driver = copier->driver;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUcontext left;
	if (driver->CtxPushCurrent(copier->context))
		return true;
	driver->ThreadExchangeStreamCaptureMode(&mode);
	CUresult state = driver->StreamQuery(NULL);
	driver->ThreadExchangeStreamCaptureMode(&mode);
	driver->CtxPopCurrent(&left);
	return ferry_cuda_may_be_loss(state);
}

ferryResult_t ferry_cuda_copier_failed(const struct ferry_cuda_copier *copier, CUresult result, const char *tried)
{
	ferryResult_t failed = ferry_cuda_failed(copier->driver, result, tried);
	if (copier->owner && ferry_cuda_may_be_loss(result) && is_lost(copier))
		copier->owner->lost(copier->owner, ferry_last_message());
	return failed;
}

struct cuda_queue {
	CUstream stream;
	CUevent events[PENDING]; /* of copy number n modulo PENDING */
	uint64_t finished;
};

static ferryResult_t open_stream(struct ferry_cuda_copier *copier, struct cuda_queue *backend)
{
	CUresult refused = copier->driver->StreamCreateWithPriority(&backend->stream, CU_STREAM_NON_BLOCKING,
	                                                            copier->priority);
	if (refused)
		return ferry_cuda_copier_failed(copier, refused, "creating a copy stream");
	for (uint32_t i = 0; i < PENDING; i++) {
		refused = copier->driver->EventCreate(&backend->events[i], CU_EVENT_DISABLE_TIMING);
		if (refused)
			return ferry_cuda_copier_failed(copier, refused, "creating an event for copies");
	}
	return ferrySuccess;
}

static void close_stream(struct ferry_cuda_copier *copier, struct cuda_queue *backend)
{
	if (backend->stream)
		copier->driver->StreamDestroy(backend->stream);
	for (uint32_t i = 0; i < PENDING; i++)
		if (backend->events[i])
			copier->driver->EventDestroy(backend->events[i]);
	free(backend);
}

static ferryResult_t queue_open(struct ferry_copier *base, enum ferry_direction direction,
                                struct ferry_copy_queue *queue)
{
	struct ferry_cuda_copier *copier = cuda_copier(base);
	struct cuda_queue *backend = calloc(1, sizeof *backend);
	struct ferry_cuda_visit visit;
	if (!backend)
		return ferry_fail(ferrySystemError, "no memory for a copy queue");
	ferryResult_t result = ferry_cuda_visit(copier->driver, copier->context, &visit);
	if (result) {
		free(backend);
		return result;
	}
	if ((result = open_stream(copier, backend)))
		close_stream(copier, backend);
	ferry_cuda_visit_end(&visit);
	*queue = (struct ferry_copy_queue){base, direction, 0, result ? NULL : backend};
	return result;
}

static void queue_close(struct ferry_copy_queue *queue)
{
	struct ferry_cuda_copier *copier = cuda_copier(queue->copier);
	struct ferry_cuda_visit visit;
	if (queue->backend && !ferry_cuda_visit(copier->driver, copier->context, &visit)) {
		close_stream(copier, queue->backend);
		ferry_cuda_visit_end(&visit);
	}
	queue->backend = NULL;
}

/* Puts a lane's thread into its GPU's context, for good; its calls end no capture of the application. */
static CUresult settle_thread(struct ferry_cuda_copier *copier)
{
	static _Thread_local struct ferry_cuda_copier *settled;
	if (settled == copier)
		return CUDA_SUCCESS;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult refused = copier->driver->CtxSetCurrent(copier->context);
	if (!refused)
		refused = copier->driver->ThreadExchangeStreamCaptureMode(&mode);
	if (!refused)
		settled = copier;
	return refused;
}

static const char *path_name(const struct ferry_copy_queue *queue, bool crosses)
{
	return !crosses                            ? "copying within the GPU"
	       : queue->direction == FERRY_DIR_D2H ? "copying from the GPU"
	                                           : "copying to the GPU";
}

/* So many rows, one behind the other. */
static CUresult copy_rows(const struct ferry_cuda_driver *driver, CUdeviceptr to, const char *source, size_t width,
                          size_t rows, CUstream stream)
{
	const CUDA_MEMCPY2D copied = {.srcMemoryType = CU_MEMORYTYPE_HOST,
	                              .srcHost = source,
	                              .srcPitch = width,
	                              .dstMemoryType = CU_MEMORYTYPE_DEVICE,
	                              .dstDevice = to,
	                              .dstPitch = width,
	                              .WidthInBytes = width,
	                              .Height = rows};
	return driver->Memcpy2DAsync(&copied, stream);
}

/*
 * cuMemcpyHtoDAsync does not leave short copies to a copy engine but puts them among the commands of the engine that
 * runs kernels. If another process runs kernels, that engine changes hands in 276 us (H200, up to 16 KiB and beyond; a
 * copy takes 7). Copies of several rows are made by copy engines, whatever their length. (One byte is no two rows.)
 */
static CUresult copy_h2d(const struct ferry_cuda_driver *driver, CUdeviceptr to, const char *source, size_t bytes,
                         CUstream stream)
{
	if (bytes >= SHORT || bytes == 1)
		return driver->MemcpyHtoDAsync(to, source, bytes, stream);
	if (bytes % 2 == 0)
		return copy_rows(driver, to, source, bytes / 2, 2, stream);
	size_t even = bytes - 3;
	CUresult refused = even ? copy_rows(driver, to, source, even / 2, 2, stream) : CUDA_SUCCESS;
	if (!refused && (refused = copy_rows(driver, to + even, source + even, 1, 3, stream)))
		driver->StreamSynchronize(stream); /* the first part is under way, and no caller would wait for it */
	return refused;
}

static ferryResult_t copy(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes,
                          uint64_t whole, bool crosses)
{
	struct ferry_cuda_copier *copier = cuda_copier(queue->copier);
	struct cuda_queue *backend = queue->backend;
	CUdeviceptr to = (CUdeviceptr)(uintptr_t)destination, from = (CUdeviceptr)(uintptr_t)source;
	CUstream stream = backend->stream;
	(void)whole;
	CUresult refused = settle_thread(copier);
	if (!refused)
		refused = !crosses ? copier->driver->MemcpyDtoDAsync(to, from, bytes, stream)
		          : queue->direction == FERRY_DIR_D2H
		                  ? copier->driver->MemcpyDtoHAsync(destination, from, bytes, stream)
		                  : copy_h2d(copier->driver, to, source, bytes, stream);
	if (!refused) {
		refused = copier->driver->EventRecord(backend->events[queue->started % PENDING], stream);
		if (refused) /* the copy is under way, and no caller would wait for it */
			copier->driver->StreamSynchronize(stream);
	}
	if (refused)
		return ferry_cuda_copier_failed(copier, refused, path_name(queue, crosses));
	queue->started++;
	return ferrySuccess;
}

/* Both sides are in this context; the peer's memory has been mapped into it. Pushes are faster than pulls. */
static ferryResult_t push(struct ferry_copy_queue *queue, const struct ferry_put_target *to, const void *source,
                          size_t bytes)
{
	return copy(queue, to->address, source, bytes, bytes, false);
}

static uint64_t finished(struct ferry_copy_queue *queue)
{
	const struct ferry_cuda_copier *copier = cuda_copier(queue->copier);
	struct cuda_queue *backend = queue->backend;
	CUresult state = CUDA_SUCCESS;
	while (backend->finished < queue->started &&
	       !(state = copier->driver->EventQuery(backend->events[backend->finished % PENDING])))
		backend->finished++;
	/* An error is no end of a copy: queue_check finds copies that never end. */
	if (state && state != CUDA_ERROR_NOT_READY)
		ferry_cuda_copier_failed(copier, state, path_name(queue, true));
	return backend->finished;
}

static int64_t wait_us(struct ferry_copy_queue *queue)
{
	(void)queue;
	return 0; /* microseconds, mostly: poll */
}

static ferryResult_t queue_check(struct ferry_copy_queue *queue)
{
	struct ferry_cuda_copier *copier = cuda_copier(queue->copier);
	struct cuda_queue *backend = queue->backend;
	CUresult refused = settle_thread(copier);
	if (!refused)
		refused = copier->driver->StreamQuery(backend->stream);
	return refused && refused != CUDA_ERROR_NOT_READY
	               ? ferry_cuda_copier_failed(copier, refused, "the GPU stopped working for this process")
	               : ferrySuccess;
}

/* ---- the copier ---- */

static ferryResult_t register_memory(struct ferry_copier *base, void *memory, size_t bytes)
{
	struct ferry_cuda_copier *copier = cuda_copier(base);
	struct ferry_cuda_visit visit;
	ferryResult_t result = ferry_cuda_visit(copier->driver, copier->context, &visit);
	if (result)
		return result;
	CUresult refused = copier->driver->MemHostRegister(memory, bytes,
	                                                   CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
	ferry_cuda_visit_end(&visit);
	if (!refused)
		return ferrySuccess;
	ferry_cuda_copier_failed(copier, refused, "registering staging memory with the GPU");
	return ferry_fail_context(ferryUnhandledDeviceError, "%zu bytes", bytes);
}

static void unregister_memory(struct ferry_copier *base, void *memory)
{
	struct ferry_cuda_copier *copier = cuda_copier(base);
	struct ferry_cuda_visit visit;
	if (ferry_cuda_visit(copier->driver, copier->context, &visit))
		return;
	copier->driver->MemHostUnregister(memory);
	ferry_cuda_visit_end(&visit);
}

static const struct ferry_copy_ops cuda_ops = {.kind = "cuda",
                                               .polled = true,
                                               .direct_memory_access = true,
                                               .register_memory = register_memory,
                                               .unregister_memory = unregister_memory,
                                               .queue_open = queue_open,
                                               .queue_close = queue_close,
                                               .copy = copy,
                                               .push = push,
                                               .finished = finished,
                                               .wait_us = wait_us,
                                               .queue_check = queue_check};

ferryResult_t ferry_cuda_copier_open(struct ferry_cuda_copier *copier, const struct ferry_cuda_driver *driver,
                                     CUcontext context)
{
	struct ferry_cuda_visit visit;
	int least = 0;
	*copier = (struct ferry_cuda_copier){.base.ops = &cuda_ops, .driver = driver, .context = context};
	ferryResult_t result = ferry_cuda_visit(driver, context, &visit);
	if (result)
		return result;
	driver->CtxGetStreamPriorityRange(&least, &copier->priority);
	ferry_cuda_visit_end(&visit);
	return ferrySuccess;
}

static _Thread_local CUcontext visited; /* NULL: this thread is on no visit */

ferryResult_t ferry_cuda_visit(const struct ferry_cuda_driver *driver, CUcontext context,
                               struct ferry_cuda_visit *visit)
{
	visit->driver = NULL;
	if (visited == context)
		return ferrySuccess;
	CUresult refused = driver->CtxPushCurrent(context);
	if (refused)
		return ferry_cuda_failed(driver, refused, "making the GPU's primary context current");
	visit->driver = driver;
	visit->outer = visited;
	visited = context;
	visit->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	driver->ThreadExchangeStreamCaptureMode(&visit->mode);
	return ferrySuccess;
}

void ferry_cuda_visit_end(struct ferry_cuda_visit *visit)
{
	CUcontext left;
	if (!visit->driver)
		return;
	visited = visit->outer;
	visit->driver->ThreadExchangeStreamCaptureMode(&visit->mode);
	visit->driver->CtxPopCurrent(&left);
}
