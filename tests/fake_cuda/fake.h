/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the parts of the double share. device.c: contexts, and who may call what; memory.c: regions; stream.c: streams and the
 * threads that run them; operation.c: what streams do; event.c; capture.c: what goes into a graph; graph.c: graphs, launches
 * and user objects.
 *
 * Handles are slots of static arrays that are used once, so a stale handle is always told. Memory and handles change under
 * the one lock for writing; to look something up it is held for reading, which orders no two readers: the threads' sanitizer
 * still sees races between those whom only Ferry's own words order.
 */
#ifndef FERRY_TESTS_FAKE_H
#define FERRY_TESTS_FAKE_H

#include "tests/fake_cuda/fake_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(hidden)

#define FAKE_MOST_DEVICES  16
#define FAKE_MOST_STREAMS  4096
#define FAKE_MOST_BRANCHES 16
#define FAKE_QUEUES        32
#define FAKE_PRIORITIES    6 /* 0, the least, to -5 */

extern pthread_rwlock_t fake_lock;

/* ---- device.c ---- */

struct CUctx_st {
	int ordinal, physical;
	_Atomic int retained;
	_Atomic int error; /* CUresult; sticky */
	CUstream legacy;   /* set once, under the lock */
	pthread_rwlock_t frees; /* for reading while something is put into a stream; for writing while memory is forgotten */
	struct fake_queue *queues[FAKE_PRIORITIES][FAKE_QUEUES]; /* with FAKE_CUDA_CONNECTIONS: by priority; under the lock */
	unsigned turn[FAKE_PRIORITIES];
};

extern int fake_device_count, fake_connections, fake_peers;
extern struct CUctx_st fake_contexts[FAKE_MOST_DEVICES];
extern _Atomic unsigned fake_misuse_count;
extern _Thread_local bool fake_in_destructor;

/** The calling thread may call the driver at all. */
CUresult fake_enter(void);
/** And has a current context, that works. */
CUresult fake_enter_context(CUcontext *context);
/** Sleeps longer from turn to turn; `turn` begins at 0. */
void fake_pause(unsigned *turn);

/* ---- memory.c ---- */

enum fake_memory { FAKE_DEVICE, FAKE_POOL, FAKE_IMPORTED, FAKE_MANAGED, FAKE_PINNED, FAKE_REGISTERED };

struct fake_region {
	uintptr_t start;
	size_t bytes, mapped;
	enum fake_memory kind;
	int ordinal, file; /* file: of device memory, -1 */
	char *reach;       /* where the process sees `start` */
	uint64_t id;
	_Atomic unsigned busy; /* pins; memory goes when there is none */
	unsigned opens;        /* FAKE_IMPORTED: by cuIpcOpenMemHandle, less the closes; under import_lock of memory.c */
	uint64_t inode;        /* FAKE_IMPORTED: of the exporter's file */
};

static inline bool fake_on_device(const struct fake_region *region)
{
	return region->kind <= FAKE_IMPORTED;
}

/** The region that holds all these bytes, kept until unpinned; NULL if there is none. */
struct fake_region *fake_pin(uintptr_t address, size_t bytes);
void fake_unpin(struct fake_region *region);
static inline char *fake_at(const struct fake_region *region, uintptr_t address)
{
	return region->reach + (address - region->start);
}
/** Forgets and frees memory of these kinds; an error if `address` is not its start. */
CUresult fake_memory_free(uintptr_t address, unsigned kinds);

/* ---- operation.c ---- */

enum fake_operation_kind {
	FAKE_COPY, FAKE_SET, FAKE_WRITE, FAKE_WAIT, FAKE_KERNEL, FAKE_MARK, FAKE_AWAIT_MARK, FAKE_AWAIT_STREAM, FAKE_AWAIT_BRANCH,
	FAKE_GRAPH, FAKE_FREE
};

/* A moment in a stream, for events; counted. */
struct fake_mark {
	_Atomic unsigned holders;
	_Atomic int reached;
	int64_t ns; /* CLOCK_MONOTONIC, before reached */
};

struct fake_operation {
	enum fake_operation_kind kind;
	uintptr_t to, from;  /* to: also the address that is written, waited for or freed */
	size_t bytes;        /* of a word: 4 or 8 */
	uint64_t value;      /* also a position, of a stream or branch */
	unsigned flags;      /* of waits and writes; which branch */
	void (*kernel)(void *argument);
	void *argument;
	struct fake_mark *mark;
	CUstream stream;
	CUgraphExec launched;
};

/** Runs one operation on the calling thread; does nothing if the context has failed. */
void fake_execute(CUcontext context, const struct fake_operation *operation);
/** What `execute` will need is there now. */
CUresult fake_operation_check(CUcontext context, const struct fake_operation *operation);
void fake_mark_drop(struct fake_mark *mark);

/* ---- stream.c ---- */

struct fake_work {
	struct fake_work *next;
	CUstream stream;
	uint64_t position;
	struct fake_operation operation;
};

/* What one thread runs, in order: the work of one stream, or of the several that share a connection. */
struct fake_queue {
	pthread_mutex_t lock;
	pthread_cond_t filled;
	struct fake_work *first, *last;
	bool running, ends;
};

struct CUstream_st {
	CUcontext context;
	bool alive;    /* under the lock */
	bool legacy, blocking; /* blocking: waits for the legacy stream and is waited for by it */
	int priority;
	struct fake_queue *queue, own;
	_Atomic uint64_t submitted, completed;
	CUgraph capture; /* under the lock */
	unsigned branch; /* of the capture */
};

extern struct CUstream_st fake_streams[FAKE_MOST_STREAMS];
extern unsigned fake_stream_count; /* slots ever used; under the lock */

/** The stream behind a handle, with the current context in force for NULL and its like. */
CUresult fake_stream_find(CUstream given, CUstream *stream);
/** Puts the operations into the stream, or into the graph that it captures. Takes the lock. */
CUresult fake_submit(CUstream given, const struct fake_operation *operations, unsigned count);
/** Blocks until the stream has done what it was given so far. */
void fake_drain(CUstream stream);
/** Blocks until all streams of the context have; meanwhile, as with the driver, nothing else gets into them. */
void fake_drain_context(CUcontext context);

/* ---- capture.c; all under the lock for writing unless it says so ---- */

/** If the calling thread may make a potentially unsafe call now; else the captures that forbid it end. Takes the lock. */
CUresult fake_unsafe_call(void);
/** Blocking streams of the context are captured, so its legacy stream may not be used. */
bool fake_captures_blocking(CUcontext context, bool invalidate);
void fake_capture_invalidate(CUgraph graph);
CUresult fake_capture_record(CUstream stream, const struct fake_operation *operations, unsigned count);
/** An event recorded in a capture: which branches were seen how far. */
void fake_capture_look(CUstream stream, uint32_t *seen);
CUresult fake_capture_join(CUstream stream, CUgraph graph, uint64_t id, const uint32_t *seen);

/* ---- graph.c ---- */

struct fake_branch {
	CUstream stream; /* while captured */
	struct fake_operation *operations;
	unsigned count, capacity;
	uint32_t seen[FAKE_MOST_BRANCHES]; /* operations of other branches that come before the next of this one */
};

struct fake_body {
	struct fake_branch branches[FAKE_MOST_BRANCHES];
	unsigned nbranches;
	CUuserObject *objects; /* one entry per reference */
	unsigned nobjects;
};

struct CUgraph_st {
	bool alive, captures, invalid;
	struct fake_body body;
	uint64_t id;
	CUstream origin;
	CUstreamCaptureMode mode;
	const void *thread;
};

/** A new empty graph; NULL if there is no slot left. */
CUgraph fake_graph_new(void);
void fake_graph_end(CUgraph graph);
bool fake_graph_is(CUgraph graph);
void fake_launch_run(CUcontext context, const struct fake_operation *operation);

#pragma GCC visibility pop

#endif
