/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a mark that some stream will reach, or a place in a capture. */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <string.h>

#define MOST_EVENTS 65536

struct CUevent_st {
	CUcontext context;
	bool alive, timed;
	struct fake_mark *mark; /* NULL: not recorded */
	CUgraph capture;        /* recorded there; its number tells whether that capture still goes on */
	uint64_t capture_id;
	uint32_t seen[FAKE_MOST_BRANCHES];
};

/* All under the lock. */
static struct CUevent_st events[MOST_EVENTS];
static unsigned nevents;

static bool is_event(CUevent event)
{
	size_t offset = (size_t)((char *)event - (char *)events);
	return offset < sizeof events && offset % sizeof *events == 0 && event->alive;
}

CUresult CUDAAPI cuEventCreate(CUevent *made, unsigned int flags)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !made || flags & ~7u)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (nevents < MOST_EVENTS) {
		*made = &events[nevents++];
		**made = (struct CUevent_st){.context = context, .alive = true, .timed = !(flags & CU_EVENT_DISABLE_TIMING)};
	} else {
		refused = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult CUDAAPI cuEventDestroy(CUevent event)
{
	struct fake_mark *mark = NULL;
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (is_event(event)) {
		mark = event->mark;
		event->alive = false;
	} else {
		refused = CUDA_ERROR_INVALID_HANDLE;
	}
	pthread_rwlock_unlock(&fake_lock);
	fake_mark_drop(mark);
	return refused;
}

/* The event becomes this mark, or a place in the capture that the stream is in. */
static CUresult place_event(CUevent event, CUstream stream, struct fake_mark *mark, struct fake_mark **old, bool *captured)
{
	CUresult refused = CUDA_SUCCESS;
	pthread_rwlock_wrlock(&fake_lock);
	*captured = stream->capture != NULL;
	if (!is_event(event) || event->context != stream->context) {
		refused = CUDA_ERROR_INVALID_HANDLE;
	} else if (*captured && stream->capture->invalid) {
		refused = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	} else {
		*old = event->mark;
		event->mark = *captured ? NULL : mark;
		event->capture = stream->capture;
		if (*captured) {
			event->capture_id = stream->capture->id;
			fake_capture_look(stream, event->seen);
		}
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream given)
{
	struct fake_mark *mark = calloc(1, sizeof *mark), *old = NULL;
	CUstream stream;
	bool captured = false;
	CUresult refused = fake_stream_find(given, &stream);
	if (!mark)
		return CUDA_ERROR_OUT_OF_MEMORY;
	atomic_init(&mark->holders, 2); /* the event and the operation */
	if (!refused)
		refused = place_event(event, stream, mark, &old, &captured);
	if (!refused && !captured)
		refused = fake_submit(given, &(struct fake_operation){.kind = FAKE_MARK, .mark = mark}, 1);
	else
		free(mark);
	fake_mark_drop(old);
	return refused;
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream given, CUevent event, unsigned int flags)
{
	struct fake_mark *mark = NULL;
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || flags & ~1u)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (!is_event(event)) {
		refused = CUDA_ERROR_INVALID_HANDLE;
	} else if (event->capture) {
		refused = fake_capture_join(stream, event->capture, event->capture_id, event->seen);
	} else if (event->mark && stream->capture) {
		fake_capture_invalidate(stream->capture);
		refused = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	} else if (event->mark) {
		mark = event->mark;
		atomic_fetch_add_explicit(&mark->holders, 1, memory_order_relaxed);
	}
	pthread_rwlock_unlock(&fake_lock);
	if (!mark)
		return refused;
	refused = fake_submit(given, &(struct fake_operation){.kind = FAKE_AWAIT_MARK, .mark = mark}, 1);
	if (refused)
		fake_mark_drop(mark);
	return refused;
}

/* A held mark of the event, NULL if it was not recorded. */
static CUresult take_mark(CUevent event, struct fake_mark **mark, CUcontext *context)
{
	CUresult refused = fake_enter();
	*mark = NULL;
	if (!refused)
		refused = fake_unsafe_call();
	if (refused)
		return refused;
	pthread_rwlock_rdlock(&fake_lock);
	if (!is_event(event))
		refused = CUDA_ERROR_INVALID_HANDLE;
	else if (event->capture)
		refused = CUDA_ERROR_CAPTURED_EVENT;
	else if ((*mark = event->mark))
		atomic_fetch_add_explicit(&event->mark->holders, 1, memory_order_relaxed);
	*context = refused ? NULL : event->context;
	pthread_rwlock_unlock(&fake_lock);
	return refused ? refused : (CUresult)atomic_load_explicit(&(*context)->error, memory_order_relaxed);
}

CUresult CUDAAPI cuEventQuery(CUevent event)
{
	struct fake_mark *mark;
	CUcontext context;
	CUresult refused = take_mark(event, &mark, &context);
	if (!refused && mark && !atomic_load_explicit(&mark->reached, memory_order_acquire))
		refused = CUDA_ERROR_NOT_READY;
	fake_mark_drop(mark);
	return refused;
}

CUresult CUDAAPI cuEventSynchronize(CUevent event)
{
	struct fake_mark *mark;
	CUcontext context;
	unsigned turn = 0;
	CUresult refused = take_mark(event, &mark, &context);
	while (!refused && mark && !atomic_load_explicit(&mark->reached, memory_order_acquire))
		fake_pause(&turn);
	fake_mark_drop(mark);
	return refused ? refused : (CUresult)atomic_load_explicit(&context->error, memory_order_relaxed);
}

CUresult CUDAAPI cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	CUresult refused = fake_enter();
	if (refused || !milliseconds)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_lock);
	if (!is_event(start) || !is_event(end) || !start->timed || !end->timed || !start->mark || !end->mark)
		refused = CUDA_ERROR_INVALID_HANDLE;
	else if (!atomic_load_explicit(&start->mark->reached, memory_order_acquire) ||
	         !atomic_load_explicit(&end->mark->reached, memory_order_acquire))
		refused = CUDA_ERROR_NOT_READY;
	else
		*milliseconds = (float)(end->mark->ns - start->mark->ns) / 1e6f;
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}
