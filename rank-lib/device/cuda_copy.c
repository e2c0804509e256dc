/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copy queues: a stream, or several by turns. Behind each copy an event is recorded, which the lane queries: next to no work for
 * the host and none for the copy engine, which goes on to the next copy of the same stream at once. A word that the stream writes
 * behind the copy makes it wait until all is written; then a second stream fills the gap, but two copies that go on together both
 * end late, and the pipeline with them (docs/performance.md).
 */
#include "rank-lib/device/cuda.h"

#include "ipc/error.h"

#include <stdlib.h>

#define PENDING 128 /* at least as many copies as a lane may have outstanding */

struct cuda_queue {
	CUstream streams[FERRY_MOST_COPY_STREAMS];
	CUevent events[PENDING]; /* of copy number n modulo PENDING */
	uint64_t finished;
};

static ferryResult_t open_streams(struct ferry_cuda_device *device, struct cuda_queue *backend)
{
	for (uint32_t i = 0; i < device->nstreams; i++) {
		CUresult refused =
		        device->driver->StreamCreateWithPriority(&backend->streams[i], CU_STREAM_NON_BLOCKING, device->copy_priority);
		if (refused)
			return ferry_cuda_failed(device->driver, refused, "creating a copy stream");
	}
	for (uint32_t i = 0; i < PENDING; i++) {
		CUresult refused = device->driver->EventCreate(&backend->events[i], CU_EVENT_DISABLE_TIMING);
		if (refused)
			return ferry_cuda_failed(device->driver, refused, "creating an event for copies");
	}
	return ferrySuccess;
}

static void close_streams(struct ferry_cuda_device *device, struct cuda_queue *backend)
{
	for (uint32_t i = 0; i < device->nstreams; i++)
		if (backend->streams[i])
			device->driver->StreamDestroy(backend->streams[i]);
	for (uint32_t i = 0; i < PENDING; i++)
		if (backend->events[i])
			device->driver->EventDestroy(backend->events[i]);
	free(backend);
}

ferryResult_t ferry_cuda_queue_open(struct ferry_device *base, enum ferry_direction direction, struct ferry_copy_queue *queue)
{
	struct ferry_cuda_device *device = ferry_cuda_device(base);
	struct cuda_queue *backend = calloc(1, sizeof *backend);
	struct ferry_cuda_visit visit;
	if (!backend)
		return ferry_fail(ferrySystemError, "no memory for a copy queue");
	ferryResult_t result = ferry_cuda_enter(device, &visit);
	if (result) {
		free(backend);
		return result;
	}
	if ((result = open_streams(device, backend)))
		close_streams(device, backend);
	ferry_cuda_leave(device, &visit);
	*queue = (struct ferry_copy_queue){base, direction, 0, result ? NULL : backend};
	return result;
}

void ferry_cuda_queue_close(struct ferry_copy_queue *queue)
{
	struct ferry_cuda_device *device = ferry_cuda_device(queue->device);
	struct ferry_cuda_visit visit;
	if (queue->backend && !ferry_cuda_enter(device, &visit)) {
		close_streams(device, queue->backend);
		ferry_cuda_leave(device, &visit);
	}
	queue->backend = NULL;
}

/* A lane thread stays in its device's context, and no capture of the application's is any business of its calls. */
static CUresult settle_thread(struct ferry_cuda_device *device)
{
	static _Thread_local struct ferry_cuda_device *settled;
	if (settled == device)
		return CUDA_SUCCESS;
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult refused = device->driver->CtxSetCurrent(device->context);
	if (!refused)
		refused = device->driver->ThreadExchangeStreamCaptureMode(&mode);
	if (!refused)
		settled = device;
	return refused;
}

static const char *path_name(const struct ferry_copy_queue *queue, bool crosses)
{
	return !crosses ? "copying within the GPU" : queue->direction == FERRY_UP ? "copying from the GPU" : "copying to the GPU";
}

ferryResult_t ferry_cuda_copy(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes, uint64_t whole,
                              bool crosses)
{
	struct ferry_cuda_device *device = ferry_cuda_device(queue->device);
	struct cuda_queue *backend = queue->backend;
	uint32_t turn = (uint32_t)(queue->started % device->nstreams);
	CUdeviceptr to = (CUdeviceptr)(uintptr_t)destination, from = (CUdeviceptr)(uintptr_t)source;
	CUstream stream = backend->streams[turn];
	(void)whole;
	CUresult refused = settle_thread(device);
	if (!refused)
		refused = !crosses                      ? device->driver->MemcpyDtoDAsync(to, from, bytes, stream)
		          : queue->direction == FERRY_UP ? device->driver->MemcpyDtoHAsync(destination, from, bytes, stream)
		                                         : device->driver->MemcpyHtoDAsync(to, source, bytes, stream);
	if (!refused) {
		refused = device->driver->EventRecord(backend->events[queue->started % PENDING], stream);
		if (refused) /* the copy is under way, and nobody would wait for it */
			device->driver->StreamSynchronize(stream);
	}
	if (refused)
		return ferry_cuda_failed(device->driver, refused, path_name(queue, crosses));
	queue->started++;
	return ferrySuccess;
}

uint64_t ferry_cuda_finished(struct ferry_copy_queue *queue)
{
	const struct ferry_cuda_driver *driver = ferry_cuda_device(queue->device)->driver;
	struct cuda_queue *backend = queue->backend;
	/* An error is no end: ferry_cuda_queue_check finds it. */
	while (backend->finished < queue->started && !driver->EventQuery(backend->events[backend->finished % PENDING]))
		backend->finished++;
	return backend->finished;
}

int64_t ferry_cuda_wait_us(struct ferry_copy_queue *queue)
{
	(void)queue;
	return 0; /* microseconds, mostly: look again */
}

ferryResult_t ferry_cuda_queue_check(struct ferry_copy_queue *queue)
{
	struct ferry_cuda_device *device = ferry_cuda_device(queue->device);
	struct cuda_queue *backend = queue->backend;
	CUresult refused = settle_thread(device);
	for (uint32_t i = 0; !refused && i < device->nstreams; i++) {
		refused = device->driver->StreamQuery(backend->streams[i]);
		if (refused == CUDA_ERROR_NOT_READY)
			refused = CUDA_SUCCESS;
	}
	return refused ? ferry_cuda_failed(device->driver, refused, "the GPU stopped working for this process") : ferrySuccess;
}
