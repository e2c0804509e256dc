/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What the parts of the double share. device.c: devices, and which calls are legal; context.c: their contexts;
 * machine.c: what processes share of a GPU; memory.c: regions; pointer.c: what is told of an address; ipc.c: memory of
 * other processes; vmm.c: addresses and memory apart; stream.c: streams and the threads that run them; operation.c:
 * what streams do; module.c: what is loaded; launch.c: Ferry's kernels; event.c; capture.c: what goes into a graph;
 * graph.c: graphs, launches and user objects.
 *
 * Handles are slots of static arrays that are used once, so a stale handle is always told. Memory and handles change
 * under the one lock for writing; to look something up it is held for reading, which orders no two readers: the
 * threads' sanitizer still sees races between those that only Ferry's own flags order.
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
#define FAKE_PATH 128
#define FAKE_MOST_STREAMS  4096
#define FAKE_MOST_BRANCHES 16
#define FAKE_QUEUES        32
#define FAKE_PRIORITIES    6 /* 0, the least, to -5 */

extern pthread_rwlock_t fake_lock;

/* ---- device.c ---- */

struct CUctx_st {
	int ordinal, physical;
	_Atomic int retained;
	_Atomic int error;           /* CUresult; sticky */
	_Atomic unsigned generation; /* how often it was made: what was made in an earlier one is gone */
	_Atomic unsigned peers;      /* by ordinal: whose memory it may copy to and from; gone with it */
	bool made;                   /* these three under the lock of context.c */
	int memory, claim;           /* files: what it takes of its GPU; that nobody else may have one. -1: none */
	CUstream legacy;             /* under the lock */
	pthread_rwlock_t frees;      /* to read: something is put into a stream; to write: memory is forgotten */
	/* With FAKE_CUDA_CONNECTIONS: by priority; under the lock. */
	struct fake_queue *queues[FAKE_PRIORITIES][FAKE_QUEUES];
	unsigned turn[FAKE_PRIORITIES];
};

/* What the environment says; written by cuInit alone. */
extern int fake_device_count, fake_connections, fake_flush, fake_exclusive, fake_shut, fake_push_ms, fake_endless;
extern char fake_stuck[FAKE_PATH], fake_held[FAKE_PATH], fake_told[FAKE_PATH];
extern struct CUctx_st fake_contexts[FAKE_MOST_DEVICES];
extern _Atomic unsigned fake_misuse_count;
extern _Thread_local bool fake_in_destructor;

/** The calling thread may call the driver at all. */
CUresult fake_enter(void);
/** Whether the one device, by its ordinal, may copy to and from the other's memory; its own: yes. */
bool fake_reaches(int from, int to);
/** Copies between the two do not arrive (FAKE_CUDA_ASTRAY, pairs), or with FAKE_CUDA_ENDLESS=1 do not end. */
bool fake_goes_astray(int from, int to);
CUresult fake_find_device(CUdevice device, CUcontext *context);
/** Sleeps longer from turn to turn; `turn` begins at 0. */
void fake_pause(unsigned *turn);
/** The environment's number; the other one where it has none. */
size_t fake_number(const char *name, size_t otherwise);
/** The number by which this process knows a GPU of the machine; -1: it does not see it. */
int fake_visible_ordinal(int physical);
void fake_misused(void);

/* ---- context.c ---- */

/** The calling thread may call the driver and has a current context, that works. */
CUresult fake_enter_context(CUcontext *context);
/** And no capture forbids it: for calls that are potentially unsafe. */
CUresult fake_enter_unsafe(CUcontext *context);
/** In a forked child, which has no part in what its parent has on its GPUs. */
void fake_contexts_forked(void);

/* ---- machine.c ---- */

/** The process's part of the machine, from the environment; once. */
void fake_machine_start(void);
/** A file that counts as memory in use of a GPU while any process has it open; -1: no room. */
int fake_machine_file(int physical, const char *what, size_t bytes);
/** Whether the file is one of this machine's for that use, of which GPU and how long. */
bool fake_machine_knows(int file, const char *what, int *physical, size_t *bytes);
/** The only claim on a GPU, kept until it is closed or the process ends; -1: another process has it. */
int fake_machine_claim(int physical);
extern size_t fake_machine_total, fake_machine_context;
size_t fake_machine_in_use(int physical);

/* ---- memory.c ---- */

enum fake_memory { FAKE_DEVICE, FAKE_POOL, FAKE_IMPORTED, FAKE_MAPPED, FAKE_MANAGED, FAKE_PINNED, FAKE_REGISTERED };

struct fake_region {
	uintptr_t start;
	size_t bytes, mapped;
	enum fake_memory kind;
	int ordinal, file; /* file: of device memory, -1 */
	CUcontext context; /* with which it goes; NULL: with none */
	char *reach;       /* where the process sees `start` */
	uint64_t id;
	_Atomic unsigned busy; /* pins; memory goes when there is none */
	unsigned opens;        /* FAKE_IMPORTED: by cuIpcOpenMemHandle, less the closes; under import_lock of ipc.c */
	uint64_t inode;        /* FAKE_IMPORTED: of the exporter's file, */
	pid_t owner;           /* its process, */
	uint64_t there;        /* and where it has it */
	struct fake_backing *backing;         /* the last three FAKE_MAPPED: what is mapped, */
	struct fake_reservation *reservation; /* where, */
	unsigned access;                      /* and by which devices it may be used; under the lock */
	struct fake_region **pieces; /* of what several neighbours were pinned for; NULL: this is a region of its own */
	size_t npieces;
};

static inline bool fake_on_device(const struct fake_region *region)
{
	return region->kind <= FAKE_MAPPED;
}

/** What holds all these bytes, kept until unpinned; NULL if there is nothing. */
struct fake_region *fake_pin(uintptr_t address, size_t bytes);
void fake_unpin(struct fake_region *region);
static inline char *fake_at(const struct fake_region *region, uintptr_t address)
{
	return region->reach + (address - region->start);
}
/** Calls `see` for each region, under the lock for reading, until it says that this was the one. */
struct fake_region *fake_region_find(bool (*see)(const struct fake_region *region, const void *argument),
                                     const void *argument);
/** The process knows this from now on; gives it an id. An error if something is there. */
CUresult fake_region_add(struct fake_region made);
/** Maps the file for the process and, out of its reach, for the device; owns the file, also on an error. */
CUresult fake_map_device(struct fake_region *region);
/** Forgets and frees memory of these kinds when nobody pins it; an error if `address` is not its start. */
CUresult fake_memory_free(uintptr_t address, unsigned kinds);
/** The same, but waits for the device, as the driver does except for memory of pools. */
CUresult fake_memory_free_now(uintptr_t address, unsigned kinds);
/** Forgets all that goes with the context. */
void fake_memory_end(CUcontext context);
/** Something was mapped there from another process and is closed. */
bool fake_memory_was_mapped(uintptr_t address);
size_t fake_whole_pages(size_t bytes);

/* ---- vmm.c ---- */

/** The reservation that the address is in, mapped or not. */
bool fake_reserved(uintptr_t address, uintptr_t *start, size_t *bytes);
/** Nothing is mapped there any more. */
void fake_backing_unmap(const struct fake_region *region);
bool fake_backing_is_shareable(const struct fake_region *region);
/** In a forked child. */
void fake_backings_forked(void);

/* ---- fault.c ---- */

/** The environment's faults; once. */
void fake_fault_start(void);
/** One more copy, or memory to register, is asked for: the error of that call alone. */
CUresult fake_fault_of_call(CUcontext context);
/** One more is done: whether that was too many, and nothing works in the context any more. */
bool fake_fault_of_context(CUcontext context);

/* ---- operation.c ---- */

/* FAKE_SPIN: a kernel that waits for a word. */
enum fake_operation_kind {
	FAKE_COPY, FAKE_SET, FAKE_WRITE, FAKE_WAIT, FAKE_SPIN, FAKE_KERNEL, FAKE_MARK, FAKE_AWAIT_MARK,
	FAKE_AWAIT_STREAM, FAKE_AWAIT_BRANCH, FAKE_EXTERNAL_RECORD, FAKE_EXTERNAL_WAIT, FAKE_GRAPH, FAKE_FREE
};

/* A moment in a stream, for events; counted. */
struct fake_mark {
	_Atomic unsigned holders;
	_Atomic int reached;
	_Atomic unsigned asked; /* queries before that */
	int64_t ns; /* CLOCK_MONOTONIC, before reached */
};

struct fake_operation {
	enum fake_operation_kind kind;
	uintptr_t to, from; /* to: also the address that is written, waited for or freed */
	size_t bytes;       /* of a word: 4 or 8 */
	uint64_t value;     /* also a position, of a stream or branch; which of its graph's externals */
	unsigned flags;     /* of waits and writes; which branch; FAKE_KERNEL: 1, it may wait */
	void (*kernel)(void *argument);
	void *argument;
	struct fake_mark *mark;
	CUstream stream;
	CUgraphExec launched; /* with `argument` a fake_externals */
	CUevent event;        /* of an external */
};

/** The context works no more: something in it has met what is not there. */
void fake_fail_context(CUcontext context);
/** The device of the context may use this memory; crosses: by a copy over the link to the host. */
bool fake_may_use(CUcontext context, const struct fake_region *region, bool crosses);
/** Runs one operation on the calling thread; does nothing if the context has failed. */
void fake_execute(CUcontext context, const struct fake_operation *operation);
/** What `execute` will need is there now. */
CUresult fake_operation_check(CUcontext context, const struct fake_operation *operation);
void fake_mark_drop(struct fake_mark *mark);

/* ---- launch.c ---- */

/** Puts a kernel of Ferry's calls (rank-lib/kernels/) into the stream. */
CUresult fake_kernel_launch(CUstream stream, const char *name, const void *call, unsigned blocks, unsigned threads);

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
	bool alive;            /* under the lock */
	bool ended;            /* with its context; under the lock */
	bool legacy, blocking; /* blocking: waits for the legacy stream and is waited for by it */
	int priority;
	struct fake_queue *queue, own;
	bool aside; /* what it is given goes through `own`, for a kernel waits in it; under the lock of `own` */
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

/** The streams of a context are no more. */
void fake_streams_end(CUcontext context);

/* ---- capture.c; all under the lock for writing unless it says so ---- */

/** If the calling thread may make a potentially unsafe call now; else what forbids it ends. Takes the lock. */
CUresult fake_unsafe_call(void);
/** Blocking streams of the context are captured, so its legacy stream may not be used. */
bool fake_captures_blocking(CUcontext context, bool invalidate);
void fake_capture_invalidate(CUgraph graph);
CUresult fake_capture_record(CUstream stream, const struct fake_operation *operations, unsigned count);
/** The stream's part of the graph waits for what the event is recorded as when the graph is launched. */
CUresult fake_capture_wait(CUstream stream, CUevent event);
/** An event recorded in a capture: which branches were seen how far. */
void fake_capture_look(CUstream stream, uint32_t *seen);
CUresult fake_capture_join(CUstream stream, CUgraph graph, uint64_t id, const uint32_t *seen);

/* ---- event.c ---- */

/** The event is recorded by a launch now: the mark, held twice, that it will reach. NULL: there is no such event. */
struct fake_mark *fake_event_record(CUevent event);
/** What the event was recorded as last, held; NULL: nothing. false: there is no such event. */
bool fake_event_look(CUevent event, struct fake_mark **mark);
void fake_mark_reach(struct fake_mark *mark);

/* ---- graph.c ---- */

struct fake_branch {
	CUstream stream; /* NULL: made of one node that no stream put there */
	struct fake_operation *operations;
	unsigned count, capacity;
	uint32_t seen[FAKE_MOST_BRANCHES]; /* operations of other branches that come before the next of this one */
};

struct fake_body {
	struct fake_branch branches[FAKE_MOST_BRANCHES];
	unsigned nbranches;
	CUuserObject *objects; /* one entry per reference */
	unsigned nobjects;
	unsigned nexternals; /* waits for and records of events whose moments lie out of the graph */
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
unsigned fake_graph_place(CUgraph graph);
void fake_launch_run(CUcontext context, const struct fake_operation *operation);
/** A kernel waits in it, and no memory operation. */
bool fake_launch_spins(CUgraphExec executable);

#pragma GCC visibility pop

#endif
