/* SPDX-License-Identifier: Apache-2.0 */
/* Events: a mark that some stream will reach, or a place in a capture. */
#include "tests/fake_cuda/fake.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_EVENTS REPEATS(1 << 19, 1 << 15) /* LeakSanitizer reads the whole table as each process ends */
#define NAP_NS      20000
#define NAPS        64 /* then they are twice as long */

struct CUevent_st {
	pthread_mutex_t lock; /* for all but context, generation and timed; taken after fake_lock. All 0, as here, is an
	                         open mutex */
	CUcontext context;
	unsigned generation; /* of the context */
	bool alive, timed;
	struct fake_mark *mark; /* NULL: not recorded */
	CUgraph capture;        /* recorded there; its number tells whether that capture still goes on */
	uint64_t capture_id;
	uint32_t seen[FAKE_MOST_BRANCHES];
};

static struct CUevent_st events[MOST_EVENTS];
static unsigned nevents; /* under fake_lock */

/* Locks the event if it is one. */
static CUresult lock_event(CUevent event)
{
	size_t offset = (size_t)((char *)event - (char *)events);
	if (offset >= sizeof events || offset % sizeof *events)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_mutex_lock(&event->lock);
	if (event->alive &&
	    event->generation == atomic_load_explicit(&event->context->generation, memory_order_relaxed))
		return CUDA_SUCCESS;
	pthread_mutex_unlock(&event->lock);
	return CUDA_ERROR_INVALID_HANDLE;
}

static struct fake_mark *held(struct fake_mark *mark)
{
	if (mark)
		atomic_fetch_add_explicit(&mark->holders, 1, memory_order_relaxed);
	return mark;
}

CUresult cuEventCreate(CUevent *made, unsigned int flags)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !made || flags & ~7u)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	CUevent event = nevents < MOST_EVENTS ? &events[nevents++] : NULL;
	pthread_rwlock_unlock(&fake_lock);
	if (!event)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&event->lock);
	event->context = context;
	event->generation = atomic_load_explicit(&context->generation, memory_order_relaxed);
	event->timed = !(flags & CU_EVENT_DISABLE_TIMING);
	event->alive = true;
	pthread_mutex_unlock(&event->lock);
	*made = event;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
	CUresult refused = fake_enter();
	if (!refused)
		refused = lock_event(event);
	if (refused)
		return refused;
	struct fake_mark *mark = event->mark;
	event->alive = false;
	pthread_mutex_unlock(&event->lock);
	fake_mark_drop(mark);
	return CUDA_SUCCESS;
}

/* The event becomes this mark, or a place in the capture that the stream is in. */
static CUresult place_event(CUevent event, CUstream stream, struct fake_mark *mark, struct fake_mark **old,
                            bool *captured)
{
	CUresult refused = CUDA_SUCCESS;
	pthread_rwlock_rdlock(&fake_lock);
	if (lock_event(event)) {
		pthread_rwlock_unlock(&fake_lock);
		return CUDA_ERROR_INVALID_HANDLE;
	}
	*captured = stream->capture != NULL;
	if (event->context != stream->context) {
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
	pthread_mutex_unlock(&event->lock);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuEventRecord(CUevent event, CUstream given)
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

/* What the event was recorded as: a held mark, or nothing with *capture set. */
struct recorded {
	struct fake_mark *mark;
	CUgraph capture;
	uint64_t capture_id;
	uint32_t seen[FAKE_MOST_BRANCHES];
	CUcontext context;
};

static CUresult look_at(CUevent event, struct recorded *recorded)
{
	CUresult refused = lock_event(event);
	*recorded = (struct recorded){0};
	if (refused)
		return refused;
	recorded->context = event->context;
	recorded->mark = held(event->mark);
	recorded->capture = event->capture;
	recorded->capture_id = event->capture_id;
	memcpy(recorded->seen, event->seen, sizeof recorded->seen);
	pthread_mutex_unlock(&event->lock);
	return CUDA_SUCCESS;
}

struct fake_mark *fake_event_record(CUevent event)
{
	struct fake_mark *mark = calloc(1, sizeof *mark), *old = NULL;
	if (!mark || lock_event(event)) {
		free(mark);
		return NULL;
	}
	atomic_init(&mark->holders, 2); /* the event and the launch */
	old = event->mark;
	event->mark = mark;
	event->capture = NULL;
	pthread_mutex_unlock(&event->lock);
	fake_mark_drop(old);
	return mark;
}

bool fake_event_look(CUevent event, struct fake_mark **mark)
{
	struct recorded recorded;
	CUresult refused = look_at(event, &recorded);
	*mark = recorded.mark;
	return !refused;
}

/* The stream is captured, or the event is part of a capture. */
static CUresult wait_in_capture(CUstream stream, CUevent event, bool external, const struct recorded *recorded)
{
	CUresult refused = CUDA_SUCCESS;
	pthread_rwlock_wrlock(&fake_lock);
	if (external) {
		refused = stream->capture ? fake_capture_wait(stream, event) : CUDA_ERROR_INVALID_VALUE;
	} else if (recorded->capture) {
		refused = fake_capture_join(stream, recorded->capture, recorded->capture_id, recorded->seen);
	} else if (recorded->mark && stream->capture) {
		fake_capture_invalidate(stream->capture);
		refused = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuStreamWaitEvent(CUstream given, CUevent event, unsigned int flags)
{
	struct recorded recorded;
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	bool external = flags == CU_EVENT_WAIT_EXTERNAL;
	if (refused || flags & ~1u)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if ((refused = look_at(event, &recorded)))
		return refused;
	pthread_rwlock_rdlock(&fake_lock);
	bool captured = stream->capture || recorded.capture;
	pthread_rwlock_unlock(&fake_lock);
	if (captured || external) {
		refused = wait_in_capture(stream, event, external, &recorded);
		fake_mark_drop(recorded.mark);
		return refused;
	}
	if (!recorded.mark)
		return CUDA_SUCCESS;
	refused = fake_submit(given, &(struct fake_operation){.kind = FAKE_AWAIT_MARK, .mark = recorded.mark}, 1);
	if (refused)
		fake_mark_drop(recorded.mark);
	return refused;
}

/* A held mark of the event, NULL if it was not recorded. */
static CUresult take_mark(CUevent event, struct fake_mark **mark, CUcontext *context)
{
	struct recorded recorded;
	CUresult refused = fake_enter();
	*mark = NULL;
	if (!refused)
		refused = fake_unsafe_call();
	if (!refused)
		refused = look_at(event, &recorded);
	if (refused)
		return refused;
	*mark = recorded.mark;
	*context = recorded.context;
	if (recorded.capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	return (CUresult)atomic_load_explicit(&recorded.context->error, memory_order_relaxed);
}

/*
 * One that is not reached costs a nap: a GPU has engines of its own, the double's threads need a core to copy with. The
 * longer it is asked for, the longer: some suites hold a copy up for ten seconds.
 */
CUresult cuEventQuery(CUevent event)
{
	struct fake_mark *mark;
	CUcontext context;
	CUresult refused = take_mark(event, &mark, &context);
	if (!refused && mark && !atomic_load_explicit(&mark->reached, memory_order_acquire)) {
		unsigned asked = atomic_fetch_add_explicit(&mark->asked, 1, memory_order_relaxed);
		nanosleep(&(struct timespec){0, (long)NAP_NS << (asked / NAPS < 5 ? asked / NAPS : 5)}, NULL);
		refused = CUDA_ERROR_NOT_READY;
	}
	fake_mark_drop(mark);
	/* again: a stream whose context has failed meanwhile comes to its marks, and has done nothing before them */
	return refused ? refused : (CUresult)atomic_load_explicit(&context->error, memory_order_relaxed);
}

CUresult cuEventSynchronize(CUevent event)
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

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
	struct recorded from, to;
	CUresult refused = fake_enter();
	if (refused || !milliseconds)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if ((refused = look_at(start, &from)))
		return refused;
	if ((refused = look_at(end, &to))) {
		fake_mark_drop(from.mark);
		return refused;
	}
	if (!start->timed || !end->timed || !from.mark || !to.mark)
		refused = CUDA_ERROR_INVALID_HANDLE;
	else if (!atomic_load_explicit(&from.mark->reached, memory_order_acquire) ||
	         !atomic_load_explicit(&to.mark->reached, memory_order_acquire))
		refused = CUDA_ERROR_NOT_READY;
	else
		*milliseconds = (float)(to.mark->ns - from.mark->ns) / 1e6f;
	fake_mark_drop(from.mark);
	fake_mark_drop(to.mark);
	return refused;
}
