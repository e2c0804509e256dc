/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A call under way, as lanes see it: one rank's part of a collective, or a group of sends and receives. Its half for
 * each lane is that lane's alone; the rest is the D2H lane's, but for what is said at the fields. The caller that makes
 * a call (rank-lib: a rank with lanes of its own; router/engine/call_decoder.c: for a rank whose router moves the data)
 * fills it in, hands it to the lanes, and learns through `ops` when they release it.
 */
#ifndef FERRY_ROUTER_ENGINE_CALL_H
#define FERRY_ROUTER_ENGINE_CALL_H

#include "router/engine/steps.h"

struct ferry_call;
struct ferry_member;

/* A step of a call under way, or a message of a group. Owned by one lane. */
struct ferry_transfer {
	const struct ferry_step *step; /* NULL: point to point */
	char *user;                    /* the device's side */
	char *destination;             /* COPY; PUT: once it is known where the peer has its buffer */
	char *window, *source;         /* as the step's; in device memory of another rank once it is known where */
	int64_t process;               /* PUT, and what is pushed: as in struct ferry_put_target */
	void *hold;                    /* the same; of those into one buffer the first has it. NULL: released */
	bool aims;                     /* PUT: something was left of it when targets were found */
	uint64_t length;               /* bytes */
	uint64_t target_offset;        /* PUT: where in its target; WAIT_PUT, variable plans: in the receive buffer */
	uint32_t nslices;
	uint32_t issued, finished;     /* slices */
	uint32_t open;                 /* slices that the gates allow */
	/*
	 * variable plans: its length has been compared, or its part of the block is known; point to point: it is this
	 * message's turn
	 */
	bool current;
	/* variable plans: bytes of the whole block, of which `length` from `at` on go over this path */
	uint64_t whole, at;
	/* point to point */
	uint32_t peer;
	uint32_t slice;                /* bytes */
	uint64_t message;              /* number between these two ranks, from 1 */
	uint32_t type;
	uint64_t base;                 /* slices of earlier messages; known once it is this message's turn */
	uint64_t first;                /* number of the call's first message with that peer this way; named calls */
	bool last;                     /* with that peer this way, of its call; constant */
	bool puts;                     /* pushed into the destination's buffer, which is `put_target` there */
	bool published;                /* the same: its destination can see what is about to be pushed */
	struct ferry_buffer_name put_target;
};

/* One lane's half of a call. The lanes' halves lie apart: each is written for every slice. */
struct ferry_half {
	_Alignas(128) struct ferry_call *next;         /* in the inbox, then in the list, of its lane rank */
	struct ferry_transfer *transfers;              /* of the parity that the call runs in */
	uint32_t ntransfers, left, turn;               /* left: not finished; turn: the one to try first */
	uint32_t all;                                  /* transfers that a run has to finish; constant */
	uint64_t ended;                                /* captured: number of the last run whose half has ended */
	struct ferry_transfer *prepared[FERRY_PARITIES]; /* NULL for a parity that it will not run in */
};

enum ferry_call_stage {
	FERRY_CALL_MADE,     /* its stream has not reached it */
	FERRY_CALL_REACHED,  /* the stream waits; the call has no number yet, or its parity is not free */
	FERRY_CALL_SUBMITTED /* the other ranks and the routers know of it; slices move */
};

/* What the lanes need of the call's maker. Called by the lanes' threads. */
struct ferry_call_ops {
	/** Whether its stream is at it. */
	bool (*started)(const struct ferry_call *call);
	/** It may begin, and the other ranks do not know that yet. NULL: nothing is to be done. */
	void (*beginning)(struct ferry_call *call);
	/** It has all its data; its stream and its rank do not know that yet. NULL: nothing is to be done. */
	void (*ending)(struct ferry_call *call);
	/**
	 * It is over: the stream goes on. result: why it failed, with the member's message; a stream that is not at it
	 * yet goes on then, too, where it can.
	 */
	void (*finish)(struct ferry_call *call, ferryResult_t result, const char *message);
	/** A call that has failed may be finished before its stream is at it. */
	bool finish_early;
	/**
	 * For messages that are numbered as streams come to them. run: the name by which a router that takes this one's
	 * place knows the run, as in struct ferry_pair_turn. passed: all messages with that peer are over, before
	 * others with it begin. Both NULL: no router takes this one's place.
	 */
	uint64_t (*run)(const struct ferry_call *call);
	void (*passed)(const struct ferry_call *call, enum ferry_direction direction, uint32_t peer);
	/** Captured: no graph is left that could reach it again. */
	bool (*forgotten)(const struct ferry_call *call);
	/** The lanes use it no longer. */
	void (*release)(struct ferry_call *call);
};

/*
 * Which call is number n? As long as no call was captured into a graph: the n-th that was made, the same on every rank.
 * Replays of a graph are calls that the host never sees being made, so from the first capture on (which is made on all
 * ranks at the same place) rank 0 decides: its D2H lane gives numbers to calls as its streams reach them and tells each
 * one's name in the descriptor; the other ranks' D2H lanes begin the call that is named, once their streams have
 * reached it too. A name counts the calls made, so it is the same on all ranks; all replays of one call share it, and
 * follow one another.
 */
/*
 * Sends and receives are numbered between each two ranks in the order in which they are made, too, until some are
 * captured: from then on the D2H lane numbers them as its streams reach them. Such calls have a name, and a number that
 * is of no use to other ranks.
 */
struct ferry_call {
	const struct ferry_call_ops *ops;
	struct ferry_member *member;
	struct ferry_buffer_name
	        /* its receive buffer and memory, as the descriptor names them to ranks that put there */
	        put_target, memory;
	/*
	 * host devices: what the D2H lane copies before it tells the other ranks, so that they may put where it was; or
	 * NULL
	 */
	char *aside;
	const char *aside_from;
	uint64_t aside_bytes;
	uint64_t targets_found;     /* D2H lane: number of the last run whose PUTs have found their targets */
	struct ferry_steps *steps;  /* NULL: point to point */
	bool captured;
	uint64_t name;              /* 0: its number was known when it was made */
	/* its number; 0: not begun (again). D2H lane, release; the lane that ends a captured run stores 0 */
	_Atomic uint64_t seq;
	uint32_t parity;
	uint64_t count;             /* elements */
	uint32_t shape, root;       /* as in the descriptor */
	uint64_t scalar;            /* premulsum: this rank's factor */
	const void *device_scalar;  /* where it is read when the stream reaches the call; NULL: it is in `scalar` */
	enum ferry_call_stage stage;
	/* a router before this one may have announced the run that it is in; D2H lane, until it has begun */
	bool recovery;
	/* lanes that have not finished their half of it: set as the call begins, each lane subtracts itself */
	_Atomic uint32_t lanes;
	/* lanes that have it in their lists; set by ferry_lanes_submit, each lane subtracts itself */
	_Atomic uint32_t holders;
	struct ferry_half halves[2];
};

/** Whether the H2D lane has something to do in it. */
static inline bool ferry_call_descends(const struct ferry_call *call)
{
	return call->halves[FERRY_DIR_H2D].all > 0;
}

/** The number of the run that the call is in; 0: none (a call whose number rank 0 decides). */
static inline uint64_t ferry_call_number(const struct ferry_call *call)
{
	return atomic_load_explicit(&call->seq, memory_order_relaxed);
}

/**
 * Whether the lane is in a run of the call: the stream has reached it and, where rank 0 decides, it has its number. Its
 * parity and transfers then stay as they are until this lane, too, has ended its half. Where it has ended its half of a
 * captured call, the D2H lane may begin the next run meanwhile.
 */
static inline bool ferry_call_is_in_run(const struct ferry_call *call, enum ferry_direction direction)
{
	if (!call->name)
		return call->ops->started(call);
	uint64_t seq = atomic_load_explicit(&call->seq, memory_order_acquire);
	return seq && seq != call->halves[direction].ended;
}

/** A lane is done with it; the last lane releases it. */
static inline void ferry_call_drop(struct ferry_call *call)
{
	if (atomic_fetch_sub_explicit(&call->holders, 1, memory_order_acq_rel) == 1)
		call->ops->release(call);
}

/** The buffers that a rank names, in the addresses of the process that moves its data. */
struct ferry_call_buffers {
	char *send, *receive;
	char *aside; /* what PUTs read in place of the send buffer; NULL: that itself */
	char *memory; /* the rank's device memory: FERRY_PARITIES halves; NULL: the plan has no windows there */
	/* alltoallv: bytes from the start of the buffers, for each peer; else NULL */
	const uint64_t *send_lengths, *send_offsets, *receive_lengths, *receive_offsets;
	bool stream_copies; /* the rank's stream copies within the device what waits for nothing */
};

/** Memory for the halves' transfers; parities: bit b: the call may run in parity b. False: there is none. */
bool ferry_call_prepare(struct ferry_call *call, uint32_t ups, uint32_t downs, uint32_t parities);
void ferry_call_unprepare(struct ferry_call *call);

/** Fills the prepared parities with what call->steps and the buffers say. */
void ferry_call_fill(struct ferry_call *call, const struct ferry_call_buffers *buffers);

/**
 * Whether other ranks put into bytes of the send buffer that this rank still has to push, as in an AllToAll in place.
 * If so it has to push from a copy, which is made before the call tells the other ranks that it is ready.
 */
bool ferry_call_puts_cross(const struct ferry_steps *steps, const struct ferry_call_buffers *buffers);

/** Fills in the transfer of one step in a call; length 0: nothing to move, or it is in place. */
void ferry_call_fill_transfer(const struct ferry_plan *plan, const struct ferry_call_buffers *buffers,
                              const struct ferry_step *step, struct ferry_transfer *transfer);

/** Whether a rank's stream itself makes this step's copy. */
bool ferry_call_stream_copies(const struct ferry_call_buffers *buffers, const struct ferry_step *step);

/**
 * Readies the call for its run in this parity. Called by the call's maker, or by the D2H lane while the H2D lane is in
 * no run of it.
 */
void ferry_call_arm(struct ferry_call *call, uint32_t parity);

/**
 * Armed for its number: the halves go on behind what their counters say, as a router that has ended may have begun
 * them. Slices that had been copied and not published are copied again: no reader has read them, and their source is
 * not written over before the counter says that they were read. The stream of a rank that was pushed to waits too
 * (WAIT_PUT): its buffer is still the call's.
 */
void ferry_call_resume(struct ferry_call *call);

#endif
