/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and the threads that run them. A place in a stream is a number: how many operations it was given so far;
 * another stream waits for a place by looking at `completed`. That is how the legacy stream and the blocking ones wait
 * for each other.
 */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>

struct CUstream_st fake_streams[FAKE_MOST_STREAMS];
unsigned fake_stream_count;

static _Thread_local CUstream thread_streams[FAKE_MOST_DEVICES];

/* ---- queues ---- */

static void run_work(struct fake_work *work)
{
	fake_execute(work->stream->context, &work->operation);
	atomic_store_explicit(&work->stream->completed, work->position, memory_order_release);
	free(work);
}

static void append(struct fake_queue *queue, struct fake_work *work)
{
	work->next = NULL;
	if (queue->first)
		queue->last->next = work;
	else
		queue->first = work;
	queue->last = work;
}

static struct fake_work *take(struct fake_queue *queue)
{
	struct fake_work *work = queue->first;
	if (work)
		queue->first = work->next;
	return work;
}

/* What a stream of a shared queue has to do while a kernel waits in it: until nothing is left, then it is in the queue
 * again. */
static void *run_aside(void *argument)
{
	CUstream stream = argument;
	for (;;) {
		pthread_mutex_lock(&stream->own.lock);
		struct fake_work *work = take(&stream->own);
		stream->aside = work != NULL;
		pthread_mutex_unlock(&stream->own.lock);
		if (!work)
			return NULL;
		run_work(work);
	}
}

/* A kernel that waits holds no connection, nor does what is behind it in its stream. Whether the work was taken aside.
 */
static bool set_aside(struct fake_work *work)
{
	const struct fake_operation *operation = &work->operation;
	CUstream stream = work->stream;
	pthread_t thread;
	if (stream->queue == &stream->own)
		return false;
	bool spins = operation->kind == FAKE_SPIN || (operation->kind == FAKE_KERNEL && operation->flags) ||
	             (operation->kind == FAKE_GRAPH && fake_launch_spins(operation->launched));
	pthread_mutex_lock(&stream->own.lock);
	bool aside = stream->aside || spins;
	if (aside)
		append(&stream->own, work);
	if (aside && !stream->aside) {
		if (pthread_create(&thread, NULL, run_aside, stream))
			aside = take(&stream->own) == NULL;
		else
			pthread_detach(thread);
		stream->aside = aside;
	}
	pthread_mutex_unlock(&stream->own.lock);
	return aside;
}

static void *run_queue(void *argument)
{
	struct fake_queue *queue = argument;
	for (;;) {
		pthread_mutex_lock(&queue->lock);
		while (!queue->first && !queue->ends)
			pthread_cond_wait(&queue->filled, &queue->lock);
		struct fake_work *work = take(queue);
		pthread_mutex_unlock(&queue->lock);
		if (!work)
			return NULL;
		if (!set_aside(work))
			run_work(work);
	}
}

/* Under the queue's lock. */
static CUresult start_queue(struct fake_queue *queue)
{
	pthread_t thread;
	if (queue->running)
		return CUDA_SUCCESS;
	if (pthread_create(&thread, NULL, run_queue, queue))
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_detach(thread);
	queue->running = true;
	return CUDA_SUCCESS;
}

static CUresult push(CUstream stream, const struct fake_operation *operation)
{
	struct fake_queue *queue = stream->queue;
	struct fake_work *work = malloc(sizeof *work);
	if (!work)
		return CUDA_ERROR_OUT_OF_MEMORY;
	pthread_mutex_lock(&queue->lock);
	CUresult refused = start_queue(queue);
	if (refused) {
		free(work);
	} else {
		*work = (struct fake_work){.stream = stream, .operation = *operation};
		work->position = atomic_fetch_add_explicit(&stream->submitted, 1, memory_order_relaxed) + 1;
		append(queue, work);
		pthread_cond_signal(&queue->filled);
	}
	pthread_mutex_unlock(&queue->lock);
	return refused;
}

static void init_queue(struct fake_queue *queue)
{
	pthread_mutex_init(&queue->lock, NULL);
	pthread_cond_init(&queue->filled, NULL);
}

/* ---- streams ---- */

/* Where the streams of a priority share queues: the next one in turn. Under the lock. */
static struct fake_queue *connection(CUcontext context, int priority)
{
	unsigned level = (unsigned)-priority, turn = context->turn[level]++ % (unsigned)fake_connections;
	if (!context->queues[level][turn]) {
		struct fake_queue *queue = calloc(1, sizeof *queue);
		if (!queue)
			return NULL;
		init_queue(queue);
		context->queues[level][turn] = queue;
	}
	return context->queues[level][turn];
}

/* Under the lock. NULL: no slot is left. */
static CUstream make_stream(CUcontext context, bool blocking, int priority, bool shares)
{
	if (fake_stream_count == FAKE_MOST_STREAMS)
		return NULL;
	CUstream stream = &fake_streams[fake_stream_count];
	stream->context = context;
	stream->blocking = blocking;
	stream->priority = priority;
	init_queue(&stream->own);
	stream->queue = shares && fake_connections ? connection(context, priority) : &stream->own;
	if (!stream->queue)
		return NULL;
	stream->alive = true;
	fake_stream_count++;
	return stream;
}

static CUstream default_stream(CUcontext context, bool per_thread)
{
	CUstream *slot = per_thread ? &thread_streams[context->ordinal] : &context->legacy;
	pthread_rwlock_rdlock(&fake_lock);
	CUstream stream = *slot && (*slot)->alive ? *slot : NULL;
	pthread_rwlock_unlock(&fake_lock);
	if (stream)
		return stream;
	pthread_rwlock_wrlock(&fake_lock);
	if ((!*slot || !(*slot)->alive) && (*slot = make_stream(context, per_thread, 0, false)))
		(*slot)->legacy = !per_thread;
	stream = *slot;
	pthread_rwlock_unlock(&fake_lock);
	return stream;
}

CUresult fake_stream_find(CUstream given, CUstream *stream)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused)
		return refused;
	if (!given || given == CU_STREAM_LEGACY || given == CU_STREAM_PER_THREAD) {
		*stream = default_stream(context, given == CU_STREAM_PER_THREAD);
		return *stream ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
	}
	size_t offset = (size_t)((char *)given - (char *)fake_streams);
	if (offset >= sizeof fake_streams || offset % sizeof *fake_streams)
		return CUDA_ERROR_INVALID_HANDLE;
	pthread_rwlock_rdlock(&fake_lock);
	bool alive = given->alive && !given->legacy, ended = given->ended;
	pthread_rwlock_unlock(&fake_lock);
	*stream = given;
	if (ended) /* the driver crashes */
		fake_misused();
	if (!alive)
		return CUDA_ERROR_INVALID_HANDLE;
	return (CUresult)atomic_load_explicit(&given->context->error, memory_order_relaxed);
}

/* What the legacy stream and the blocking streams owe each other, before the next operation. Under the lock, for
 * reading. */
static CUresult push_implicit_waits(CUstream stream)
{
	CUresult refused = CUDA_SUCCESS;
	for (unsigned i = 0; !refused && i < fake_stream_count; i++) {
		CUstream other = &fake_streams[i];
		bool waits = other->context == stream->context &&
		             ((stream->legacy && other->blocking) || (other->legacy && stream->blocking));
		uint64_t submitted = atomic_load_explicit(&other->submitted, memory_order_relaxed);
		if (waits && atomic_load_explicit(&other->completed, memory_order_relaxed) < submitted)
			refused = push(stream, &(struct fake_operation){
			                               .kind = FAKE_AWAIT_STREAM, .stream = other, .value = submitted});
	}
	return refused;
}

static CUresult record(CUstream stream, const struct fake_operation *operations, unsigned count)
{
	CUresult refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (stream->capture)
		refused = fake_capture_record(stream, operations, count);
	else if (stream->legacy && fake_captures_blocking(stream->context, true))
		refused = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	else
		refused = CUDA_ERROR_UNKNOWN; /* another thread ended the capture meanwhile */
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult fake_submit(CUstream given, const struct fake_operation *operations, unsigned count)
{
	CUstream stream;
	CUcontext current;
	CUresult refused = fake_enter_context(&current);
	if (!refused)
		refused = fake_stream_find(given, &stream);
	if (!refused && stream->context != current)
		refused = CUDA_ERROR_INVALID_HANDLE;
	for (unsigned i = 0; !refused && i < count; i++)
		refused = fake_operation_check(current, &operations[i]);
	if (refused)
		return refused;
	pthread_rwlock_rdlock(&current->frees);
	pthread_rwlock_rdlock(&fake_lock);
	bool captured = stream->capture || (stream->legacy && fake_captures_blocking(current, false));
	if (!captured && count && (stream->blocking || stream->legacy))
		refused = push_implicit_waits(stream);
	for (unsigned i = 0; !captured && !refused && i < count; i++)
		refused = push(stream, &operations[i]);
	pthread_rwlock_unlock(&fake_lock);
	pthread_rwlock_unlock(&current->frees);
	return captured ? record(stream, operations, count) : refused;
}

void fake_drain(CUstream stream)
{
	unsigned turn = 0;
	uint64_t given = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
	while (atomic_load_explicit(&stream->completed, memory_order_acquire) < given)
		fake_pause(&turn);
}

void fake_drain_context(CUcontext context)
{
	pthread_rwlock_wrlock(&context->frees);
	pthread_rwlock_rdlock(&fake_lock);
	unsigned count = fake_stream_count;
	pthread_rwlock_unlock(&fake_lock);
	for (unsigned i = 0; i < count; i++)
		if (fake_streams[i].context == context)
			fake_drain(&fake_streams[i]);
	pthread_rwlock_unlock(&context->frees);
}

/* ---- the driver's names ---- */

CUresult cuStreamCreateWithPriority(CUstream *made, unsigned int flags, int priority)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !made || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	priority = priority > 0 ? 0 : priority <= -FAKE_PRIORITIES ? 1 - FAKE_PRIORITIES : priority;
	pthread_rwlock_wrlock(&fake_lock);
	*made = make_stream(context, !(flags & CU_STREAM_NON_BLOCKING), priority, true);
	pthread_rwlock_unlock(&fake_lock);
	return *made ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *made, unsigned int flags)
{
	return cuStreamCreateWithPriority(made, flags, 0);
}

static bool is_named(CUstream given)
{
	return given && given != CU_STREAM_LEGACY && given != CU_STREAM_PER_THREAD;
}

/* What the stream was given is still done. Under the lock. */
static void end_stream(CUstream stream)
{
	stream->alive = false;
	if (stream->capture)
		fake_capture_invalidate(stream->capture);
	if (stream->queue == &stream->own) {
		pthread_mutex_lock(&stream->own.lock);
		stream->own.ends = true;
		pthread_cond_signal(&stream->own.filled);
		pthread_mutex_unlock(&stream->own.lock);
	}
}

void fake_streams_end(CUcontext context)
{
	pthread_rwlock_wrlock(&fake_lock);
	for (unsigned i = 0; i < fake_stream_count; i++)
		if (fake_streams[i].context == context && fake_streams[i].alive) {
			end_stream(&fake_streams[i]);
			fake_streams[i].ended = true;
		}
	context->legacy = NULL;
	pthread_rwlock_unlock(&fake_lock);
}

CUresult cuStreamDestroy(CUstream given)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || !is_named(given))
		return refused ? refused : CUDA_ERROR_INVALID_HANDLE;
	pthread_rwlock_wrlock(&fake_lock);
	bool mine = stream->alive;
	if (mine)
		end_stream(stream);
	pthread_rwlock_unlock(&fake_lock);
	return mine ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

/* Looking at a stream from the host: not while it is captured, nor while this is unsafe for another capture. */
static CUresult find_settled(CUstream given, CUstream *stream)
{
	CUresult refused = fake_stream_find(given, stream);
	if (refused)
		return refused;
	pthread_rwlock_rdlock(&fake_lock);
	bool captured = (*stream)->capture != NULL;
	bool implicit = (*stream)->legacy && fake_captures_blocking((*stream)->context, false);
	pthread_rwlock_unlock(&fake_lock);
	if (!captured && !implicit)
		return fake_unsafe_call();
	pthread_rwlock_wrlock(&fake_lock);
	if ((*stream)->capture)
		fake_capture_invalidate((*stream)->capture);
	else
		fake_captures_blocking((*stream)->context, true);
	pthread_rwlock_unlock(&fake_lock);
	return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult cuStreamSynchronize(CUstream given)
{
	CUstream stream;
	CUresult refused = find_settled(given, &stream);
	if (refused)
		return refused;
	if (stream->legacy) { /* as if an empty operation were put into it */
		pthread_rwlock_rdlock(&fake_lock);
		refused = push_implicit_waits(stream);
		pthread_rwlock_unlock(&fake_lock);
	}
	fake_drain(stream);
	return refused ? refused : (CUresult)atomic_load_explicit(&stream->context->error, memory_order_relaxed);
}

CUresult cuStreamQuery(CUstream given)
{
	CUstream stream;
	CUresult refused = find_settled(given, &stream);
	if (refused)
		return refused;
	uint64_t submitted = atomic_load_explicit(&stream->submitted, memory_order_relaxed);
	if (atomic_load_explicit(&stream->completed, memory_order_acquire) < submitted)
		return CUDA_ERROR_NOT_READY;
	/* again: it may have failed meanwhile, and come to its end without having done what was submitted */
	return (CUresult)atomic_load_explicit(&stream->context->error, memory_order_relaxed);
}

CUresult cuStreamGetCtx(CUstream given, CUcontext *context)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || !context)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*context = stream->context;
	return CUDA_SUCCESS;
}

/* A slot is used once, so its place is a number for life. */
CUresult cuStreamGetId(CUstream given, unsigned long long *id)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || !id)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	*id = 7 + (unsigned long long)(stream - fake_streams);
	return CUDA_SUCCESS;
}
