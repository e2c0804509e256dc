/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host streams: queues of operations that run in order, one at a time. A thread that synchronizes with the stream runs
 * them, or the stream's own thread, which is made when an operation first needs it. A call that is put into an idle
 * stream starts at once, in the caller; it needs no thread as long as no work follows it.
 *
 * `lock` guards everything in a stream. `busy`: a thread runs the operation at the head, outside the lock.
 */
#include "rank-lib/device/host_stream.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/wait.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_MAGIC 0x73747265616d2121ull
#define EVENT_MAGIC 0x6576656e74212121ull

enum operation_kind { RUN_FUNCTION, RUN_COPY, RUN_CALL, RECORD_EVENT, WAIT_EVENT };

/* The point that a ferryEventRecord marks; held by the event, the stream that reaches it, and all that wait for it. */
struct record {
	_Atomic uint32_t holders;
	const struct ferryStream *stream; /* constant: where it was recorded; compared only, as it may be freed */
	_Atomic uint32_t reached; /* futex word; the thread that runs the stream writes it after time_ns, release */
	uint64_t time_ns;
};

struct operation {
	enum operation_kind kind;
	struct operation *next;
	union {
		struct { void (*function)(void *); void *argument; } call_back;
		struct { void *destination; const void *source; size_t bytes; } copy;
		struct { struct ferry_ticket *ticket; bool started; } call;
		struct record *record;
	};
};

struct ferryStream {
	uint64_t magic;
	int ordinal;
	uint32_t forks;              /* constant: when it was made */
	pthread_mutex_t lock;
	pthread_cond_t changed;      /* the queue became empty, work for the thread, stop */
	struct operation *head, **end;
	struct operation *spare;     /* memory for the next call, or NULL */
	uint64_t appended, retired;  /* operations since the stream was made */
	uint32_t waiters;            /* threads in synchronize that wait while another thread runs operations */
	bool busy, wanted, stop, has_thread;
	pthread_t thread;
	_Atomic bool quiet;          /* no operation, no error; written under lock, release */
	ferryResult_t error;         /* of the first call that failed since the last synchronize */
	char message[512];
};

struct ferryEvent {
	uint64_t magic;
	uint32_t forks;              /* constant: when it was made */
	pthread_mutex_t lock;
	struct record *record;       /* of the last ferryEventRecord; NULL: never recorded */
};

/* A host function of the stream that runs in this thread; nested if it synchronizes with another stream. */
struct running {
	const struct ferryStream *stream;
	const struct running *outer;
};

static _Thread_local const struct running *running;
/* from the process that loaded the library to this one; written while a child has one thread */
static uint32_t forks;

/* ---- records ---- */

static void record_drop(struct record *record)
{
	if (record && atomic_fetch_sub_explicit(&record->holders, 1, memory_order_acq_rel) == 1)
		free(record);
}

static void record_reach(struct record *record)
{
	record->time_ns = ferry_now_ns();
	atomic_store_explicit(&record->reached, 1, memory_order_release);
	ferry_futex_wake(&record->reached, -1, false);
}

static bool record_reached(struct record *record)
{
	return atomic_load_explicit(&record->reached, memory_order_acquire);
}

static void record_wait(struct record *record)
{
	while (!record_reached(record))
		ferry_futex_wait(&record->reached, 0, -1, false);
}

/* ---- running the queue ---- */

/* Called when `head` or `error` has changed. Under lock. */
static void note(struct ferryStream *stream)
{
	atomic_store_explicit(&stream->quiet, !stream->head && !stream->error, memory_order_release);
}

static void keep_error(struct ferryStream *stream, struct ferry_ticket *ticket)
{
	if (!ticket->result || stream->error)
		return;
	stream->error = ticket->result;
	snprintf(stream->message, sizeof stream->message, "a call in this stream failed: %.400s", ticket->message);
	note(stream);
}

static void run_function(const struct ferryStream *stream, const struct operation *operation)
{
	struct running frame = {.stream = stream, .outer = running};
	running = &frame;
	operation->call_back.function(operation->call_back.argument);
	running = frame.outer;
}

/* Whether this thread runs a host function of the stream: later work then starts only once that has returned. */
static bool is_inside(const struct ferryStream *stream)
{
	const struct running *frame = running;
	while (frame && frame->stream != stream)
		frame = frame->outer;
	return frame;
}

static ferryResult_t report_inside(const char *function, const char *what, const void *which)
{
	return ferry_fail(ferryInvalidUsage,
	                  "%s inside a host function of the same stream: %s %p waits for the function to return",
	                  function, what, which);
}

static void run(const struct ferryStream *stream, struct operation *operation)
{
	switch (operation->kind) {
	case RUN_FUNCTION:
		run_function(stream, operation);
		break;
	case RUN_COPY:
		memmove(operation->copy.destination, operation->copy.source, operation->copy.bytes);
		break;
	case RUN_CALL:
		if (!operation->call.started && !ferry_ticket_finished(operation->call.ticket))
			ferry_ticket_start(operation->call.ticket);
		operation->call.started = true;
		ferry_ticket_wait(operation->call.ticket);
		break;
	case RECORD_EVENT:
		record_reach(operation->record);
		break;
	case WAIT_EVENT:
		record_wait(operation->record);
		break;
	}
}

/* Takes the finished operation off the queue. Under lock. */
static void retire(struct ferryStream *stream, struct operation *operation)
{
	stream->head = operation->next;
	stream->retired++;
	if (!stream->head)
		stream->end = &stream->head;
	if (stream->waiters)
		pthread_cond_broadcast(&stream->changed);
	if (operation->kind == RUN_CALL) {
		keep_error(stream, operation->call.ticket);
		ferry_ticket_drop(operation->call.ticket);
	} else if (operation->kind == RECORD_EVENT || operation->kind == WAIT_EVENT) {
		record_drop(operation->record);
	}
	free(stream->spare);
	stream->spare = operation;
	note(stream);
}

/* Runs operations until `retired` is `target`. Under lock, which is free while one runs. */
static void drain(struct ferryStream *stream, uint64_t target)
{
	while (stream->retired < target && stream->head && !stream->busy) {
		struct operation *operation = stream->head;
		stream->busy = true;
		pthread_mutex_unlock(&stream->lock);
		run(stream, operation);
		pthread_mutex_lock(&stream->lock);
		stream->busy = false;
		retire(stream, operation);
	}
}

static void *stream_main(void *argument)
{
	struct ferryStream *stream = argument;
	pthread_mutex_lock(&stream->lock);
	while (1) {
		while (!stream->stop && (!stream->wanted || stream->busy))
			pthread_cond_wait(&stream->changed, &stream->lock);
		if (stream->stop)
			break;
		stream->wanted = false;
		drain(stream, UINT64_MAX);
	}
	pthread_mutex_unlock(&stream->lock);
	return NULL;
}

/* Under lock: makes sure that a thread runs the queue even if no thread synchronizes. */
static ferryResult_t want_thread(struct ferryStream *stream)
{
	if (!stream->has_thread) {
		int refused = pthread_create(&stream->thread, NULL, stream_main, stream);
		if (refused)
			return ferry_fail(ferrySystemError, "a thread for a stream: %s%s", strerror(refused),
			                  ferry_ulimit_threads_hint(refused));
		stream->has_thread = true;
	}
	stream->wanted = true;
	pthread_cond_broadcast(&stream->changed);
	return ferrySuccess;
}

static void append(struct ferryStream *stream, struct operation *operation)
{
	operation->next = NULL;
	*stream->end = operation;
	stream->end = &operation->next;
	stream->appended++;
	note(stream);
}

/* Under lock. Drops finished calls at the head, so that a stream whose work is over counts as idle. */
static void retire_finished(struct ferryStream *stream)
{
	while (stream->head && !stream->busy && stream->head->kind == RUN_CALL && stream->head->call.started &&
	       ferry_ticket_finished(stream->head->call.ticket))
		retire(stream, stream->head);
}

ferryResult_t ferry_host_check_stream(ferryStream_t stream)
{
	if (stream && !((uintptr_t)stream % _Alignof(struct ferryStream)) && stream->magic == STREAM_MAGIC)
		return stream->forks == forks
		               ? ferrySuccess
		               : ferry_fail(ferryInvalidUsage,
		                            "stream %p belongs to the process that forked this one, with its thread",
		                            (void *)stream);
	return ferry_fail(ferryInvalidArgument, "stream %p is NULL, destroyed or not a host stream", (void *)stream);
}

static struct operation *operation_new(enum operation_kind kind)
{
	struct operation *operation = calloc(1, sizeof *operation);
	if (operation)
		operation->kind = kind;
	else
		ferry_fail(ferrySystemError, "no memory for a stream operation");
	return operation;
}

/* Memory for a call. Under lock. */
static struct operation *take_spare(struct ferryStream *stream)
{
	struct operation *operation = stream->spare;
	if (!operation)
		return operation_new(RUN_CALL);
	stream->spare = NULL;
	*operation = (struct operation){.kind = RUN_CALL};
	return operation;
}

/* Appends an operation that needs a thread to run it. Without one the operation is dropped: its memory may go. */
static ferryResult_t enqueue(ferryStream_t stream, struct operation *operation)
{
	pthread_mutex_lock(&stream->lock);
	ferryResult_t result = want_thread(stream);
	if (!result)
		append(stream, operation);
	pthread_mutex_unlock(&stream->lock);
	if (!result)
		return ferrySuccess;
	if (operation->kind == RECORD_EVENT || operation->kind == WAIT_EVENT)
		record_drop(operation->record);
	free(operation);
	return result;
}

ferryResult_t ferry_host_enqueue(ferryStream_t stream, struct ferry_ticket *ticket)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&stream->lock);
	retire_finished(stream);
	bool first = !stream->head, enters = ticket->enter;
	struct operation *operation = take_spare(stream);
	if (enters && ticket->enter(ticket, first && operation)) {
		keep_error(stream, ticket);
		stream->spare = operation;
		pthread_mutex_unlock(&stream->lock);
		return ferrySuccess;
	}
	/*
	 * One reference for the stream, one for this thread: a started call may end, and all others drop the ticket,
	 * while ferry_ticket_start still runs here.
	 */
	if (!enters)
		atomic_fetch_add_explicit(&ticket->holders, 2, memory_order_relaxed);
	if (operation) {
		operation->call.ticket = ticket;
		operation->call.started = first;
		append(stream, operation);
		if (!first)
			result = want_thread(stream);
	}
	pthread_mutex_unlock(&stream->lock);
	if (operation && first && !enters)
		ferry_ticket_start(ticket);
	if (!operation)
		ferry_ticket_drop(ticket);
	if (!enters)
		ferry_ticket_drop(ticket);
	return operation ? result : ferrySystemError;
}

/* ---- streams ---- */

ferryResult_t ferryStreamCreate(ferryStream_t *made, int ordinal)
{
	if (!made || ordinal < 0 || ordinal >= FERRY_HOST_DEVICES)
		return ferry_fail(ferryInvalidArgument, "ferryStreamCreate: stream %p, host device %d (0 to %d)",
		                  (void *)made, ordinal, FERRY_HOST_DEVICES - 1);
	struct ferryStream *stream = calloc(1, sizeof *stream);
	if (!stream)
		return ferry_fail(ferrySystemError, "no memory for a stream");
	stream->magic = STREAM_MAGIC;
	stream->ordinal = ordinal;
	stream->forks = forks;
	stream->end = &stream->head;
	note(stream);
	pthread_mutex_init(&stream->lock, NULL);
	pthread_cond_init(&stream->changed, NULL);
	*made = stream;
	return ferrySuccess;
}

void ferry_host_leave_stream(ferryStream_t stream)
{
	pthread_mutex_lock(&stream->lock);
	retire_finished(stream);
	if (stream->head && want_thread(stream))
		ferry_forget_message(); /* the next thread that takes the stream runs what is left */
	pthread_mutex_unlock(&stream->lock);
}

bool ferry_host_take_stream(ferryStream_t stream)
{
	pthread_mutex_lock(&stream->lock);
	retire_finished(stream);
	bool idle = !stream->head;
	if (idle) {
		stream->error = ferrySuccess;
		note(stream);
	}
	pthread_mutex_unlock(&stream->lock);
	return idle;
}

void ferry_host_streams_forked(void)
{
	forks++;
	running = NULL;
}

/*
 * Waits for the work that is there now. Work that other threads append meanwhile may depend on the caller's next call.
 */
ferryResult_t ferry_host_synchronize(ferryStream_t stream, const char *function)
{
	if (atomic_load_explicit(&stream->quiet, memory_order_acquire))
		return ferrySuccess;
	if (is_inside(stream))
		return report_inside(function, "stream", stream);
	pthread_mutex_lock(&stream->lock);
	uint64_t target = stream->appended;
	while (stream->retired < target) {
		if (!stream->busy) {
			drain(stream, target);
			continue;
		}
		stream->waiters++;
		pthread_cond_wait(&stream->changed, &stream->lock);
		stream->waiters--;
	}
	if (stream->head && !stream->busy) {
		stream->wanted = stream->has_thread; /* the stream's thread must run what is left */
		pthread_cond_broadcast(&stream->changed);
	}
	ferryResult_t result = stream->error;
	if (result)
		ferry_fail(result, "%s", stream->message);
	stream->error = ferrySuccess;
	note(stream);
	pthread_mutex_unlock(&stream->lock);
	return result;
}

ferryResult_t ferryStreamDestroy(ferryStream_t stream)
{
	ferryResult_t result = ferry_host_check_stream(stream);
	if (result)
		return result;
	if (is_inside(stream))
		return report_inside("ferryStreamDestroy", "stream", stream);
	result = ferry_host_synchronize(stream, "ferryStreamDestroy");
	pthread_mutex_lock(&stream->lock);
	stream->stop = true;
	pthread_cond_broadcast(&stream->changed);
	pthread_mutex_unlock(&stream->lock);
	if (stream->has_thread)
		pthread_join(stream->thread, NULL);
	pthread_cond_destroy(&stream->changed);
	pthread_mutex_destroy(&stream->lock);
	stream->magic = 0;
	free(stream->spare);
	free(stream);
	return result;
}

ferryResult_t ferryStreamQuery(ferryStream_t stream)
{
	ferryResult_t result = ferry_host_check_stream(stream);
	if (result)
		return result;
	pthread_mutex_lock(&stream->lock);
	retire_finished(stream);
	result = stream->head ? ferryInProgress : stream->error;
	if (result)
		ferry_fail(result, "%s", result == ferryInProgress ? "the stream has work left" : stream->message);
	pthread_mutex_unlock(&stream->lock);
	return result;
}

ferryResult_t ferryMemcpyAsync(void *destination, const void *source, size_t bytes, ferryStream_t stream)
{
	ferryResult_t result = ferry_host_check_stream(stream);
	if (result)
		return result;
	if (bytes && (!destination || !source))
		return ferry_fail(ferryInvalidArgument, "ferryMemcpyAsync of %zu bytes from %p to %p", bytes, source,
		                  destination);
	struct operation *operation = operation_new(RUN_COPY);
	if (!operation)
		return ferrySystemError;
	operation->copy.destination = destination;
	operation->copy.source = source;
	operation->copy.bytes = bytes;
	return enqueue(stream, operation);
}

ferryResult_t ferryLaunchHostFunc(ferryStream_t stream, void (*function)(void *), void *argument)
{
	ferryResult_t result = ferry_host_check_stream(stream);
	if (result)
		return result;
	if (!function)
		return ferry_fail(ferryInvalidArgument, "ferryLaunchHostFunc: function is NULL");
	struct operation *operation = operation_new(RUN_FUNCTION);
	if (!operation)
		return ferrySystemError;
	operation->call_back.function = function;
	operation->call_back.argument = argument;
	return enqueue(stream, operation);
}

/* ---- events ---- */

static ferryResult_t check_event(ferryEvent_t event)
{
	if (event && !((uintptr_t)event % _Alignof(struct ferryEvent)) && event->magic == EVENT_MAGIC)
		return event->forks == forks
		               ? ferrySuccess
		               : ferry_fail(ferryInvalidUsage,
		                            "event %p belongs to the process that forked this one, with its streams",
		                            (void *)event);
	return ferry_fail(ferryInvalidArgument, "event %p is NULL, destroyed or not Ferry's", (void *)event);
}

/* Returns the event's record, held; NULL if the event was never recorded. */
static struct record *record_of(ferryEvent_t event)
{
	pthread_mutex_lock(&event->lock);
	struct record *record = event->record;
	if (record)
		atomic_fetch_add_explicit(&record->holders, 1, memory_order_relaxed);
	pthread_mutex_unlock(&event->lock);
	return record;
}

ferryResult_t ferryEventCreate(ferryEvent_t *made)
{
	if (!made)
		return ferry_fail(ferryInvalidArgument, "ferryEventCreate: event is NULL");
	struct ferryEvent *event = calloc(1, sizeof *event);
	if (!event)
		return ferry_fail(ferrySystemError, "no memory for an event");
	event->magic = EVENT_MAGIC;
	event->forks = forks;
	pthread_mutex_init(&event->lock, NULL);
	*made = event;
	return ferrySuccess;
}

ferryResult_t ferryEventDestroy(ferryEvent_t event)
{
	ferryResult_t result = check_event(event);
	if (result)
		return result;
	record_drop(event->record);
	pthread_mutex_destroy(&event->lock);
	event->magic = 0;
	free(event);
	return ferrySuccess;
}

ferryResult_t ferryEventRecord(ferryEvent_t event, ferryStream_t stream)
{
	ferryResult_t result = check_event(event);
	if (result || (result = ferry_host_check_stream(stream)))
		return result;
	struct operation *operation = operation_new(RECORD_EVENT);
	struct record *record = calloc(1, sizeof *record);
	if (!operation || !record) {
		free(operation);
		free(record);
		return ferry_fail(ferrySystemError, "no memory for an event record");
	}
	atomic_store(&record->holders, 2);
	record->stream = stream;
	operation->record = record;
	ferryResult_t refused = enqueue(stream, operation);
	if (refused) { /* nothing reaches the record */
		record_drop(record);
		return refused;
	}
	pthread_mutex_lock(&event->lock);
	struct record *before = event->record;
	event->record = record;
	pthread_mutex_unlock(&event->lock);
	record_drop(before);
	return ferrySuccess;
}

ferryResult_t ferryStreamWaitEvent(ferryStream_t stream, ferryEvent_t event)
{
	ferryResult_t result = check_event(event);
	if (result || (result = ferry_host_check_stream(stream)))
		return result;
	struct record *record = record_of(event);
	if (!record)
		return ferrySuccess; /* as in CUDA */
	struct operation *operation = operation_new(WAIT_EVENT);
	if (!operation) {
		record_drop(record);
		return ferrySystemError;
	}
	operation->record = record;
	return enqueue(stream, operation);
}

ferryResult_t ferryEventSynchronize(ferryEvent_t event)
{
	ferryResult_t result = check_event(event);
	if (result)
		return result;
	struct record *record = record_of(event);
	if (record && !record_reached(record) && is_inside(record->stream))
		result = report_inside("ferryEventSynchronize", "event", event);
	else if (record)
		record_wait(record);
	record_drop(record);
	return result;
}

ferryResult_t ferryEventQuery(ferryEvent_t event)
{
	ferryResult_t result = check_event(event);
	if (result)
		return result;
	struct record *record = record_of(event);
	bool reached = !record || record_reached(record);
	record_drop(record);
	return reached ? ferrySuccess : ferry_fail(ferryInProgress, "the event has not been reached");
}

ferryResult_t ferryEventElapsedTime(double *microseconds, ferryEvent_t start, ferryEvent_t end)
{
	ferryResult_t result = check_event(start);
	if (result || (result = check_event(end)))
		return result;
	if (!microseconds)
		return ferry_fail(ferryInvalidArgument, "ferryEventElapsedTime: microseconds is NULL");
	struct record *first = record_of(start), *last = record_of(end);
	if (!first || !last)
		result = ferry_fail(ferryInvalidUsage, "ferryEventElapsedTime: the %s event was never recorded",
		                    first ? "end" : "start");
	else if (!record_reached(first) || !record_reached(last))
		result = ferry_fail(ferryInProgress, "the %s event has not been reached",
		                    record_reached(first) ? "end" : "start");
	else
		*microseconds = ((double)last->time_ns - (double)first->time_ns) / 1e3;
	record_drop(first);
	record_drop(last);
	return result;
}
