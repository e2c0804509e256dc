/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The inside of a communicator: one rank of one job. What each thread may touch:
 *   application threads  everything under `lock`: plans, sequence numbers, operations; they hand calls to the lanes' inboxes
 *   D2H lane, H2D lane   the calls in their lists; their own half of each call; this rank's line in shared memory
 *   any of them          `failed` and `error`, through ferry_comm_fail, which holds `error_lock`
 */
#ifndef FERRY_RANK_LIB_COMM_H
#define FERRY_RANK_LIB_COMM_H

#include "ferry.h"
#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/publish.h"
#include "ipc/spin.h"
#include "rank-lib/device/device.h"
#include "rank-lib/plan_cache.h"
#include "rank-lib/program/program.h"
#include "rank-lib/user_programs.h"

#include <pthread.h>

/* One D2H, H2D or COPY of this rank, with its pointers found for one bank. */
struct ferry_step {
	const struct ferry_instr *instr;
	struct ferry_counter *counter;
	char *window;
	struct ferry_gate *gates;
	uint32_t ngates;
	struct ferry_counter *producer; /* variable plans, H2D: whose length must equal ours */
	uint32_t producer_rank;
	bool only_passes_on; /* D2H: copy engines alone read the window, and each slot waits for them */
};

/* ---- calls ---- */

/* A step of a call under way. Owned by one lane. */
struct ferry_transfer {
	const struct ferry_step *step; /* NULL: point to point */
	char *user;                    /* the device's side */
	char *destination;             /* COPY only */
	uint64_t length;
	uint32_t nslices;
	uint32_t issued, finished;     /* slices */
	uint32_t open;                 /* slices that the gates allow */
	/* point to point */
	uint32_t peer;
	uint32_t slice;                /* bytes */
	uint64_t message;              /* number between these two ranks, from 1 */
	uint32_t type;
	uint64_t base;                 /* slices of earlier messages; known once it is this message's turn */
	bool current;
};

/*
 * Which call is number n? As long as no call was captured into a graph: the n-th that was made, the same on every rank.
 * Replays of a graph are calls that the host never sees being made, so from the first capture on (which is made on all ranks at
 * the same place) rank 0 decides: its D2H lane gives numbers to calls as its streams reach them and tells each one's name in
 * the descriptor; the other ranks' D2H lanes begin the call that is named, once their streams have reached it too.
 * A name counts the calls made, so it is the same on all ranks; all replays of one call share it, and follow one another.
 */
struct ferry_call {
	struct ferry_ticket ticket; /* first: the stream's view of the call */
	struct ferryComm *comm;
	bool point_to_point;
	/* collectives */
	uint64_t name;              /* 0: its number was known when it was made */
	_Atomic uint64_t seq;       /* its number; 0: not begun (again). D2H lane, release; who ends the call puts it back to 0 */
	uint64_t after;             /* number of the call that must be over everywhere before this one begins; 0: none; set with its own number */
	uint64_t ended[2];          /* repeats: number of the run whose half each lane has ended; that lane alone */
	uint32_t bank;
	struct ferry_plan_entry *entry; /* with a reference */
	uint64_t count;
	uint32_t shape, root;
	uint64_t scalar;
	const void *device_scalar; /* premulsum: read when the stream reaches the call */
	bool noticed, submitted;   /* D2H lane */
	/* both */
	_Atomic uint32_t lanes;    /* that have not finished their half: set by who begins the call, each lane takes itself away */
	uint32_t ntransfers[2], left[2], turn[2], all_left[2];
	struct ferry_transfer *transfers[2];              /* of the bank that it runs in */
	struct ferry_transfer *prepared[FERRY_BANKS][2];  /* NULL for a bank that it will not run in */
	struct ferry_call *next[2]; /* in the inbox or the list of each lane */
};

struct ferry_outstanding {
	struct ferry_call *call;
	struct ferry_transfer *transfer;
	uint64_t ticket; /* the copy's number in the queue */
};

#define FERRY_OUTSTANDING 64 /* copies that a lane may have started and not finished */

struct ferry_lane {
	struct ferryComm *comm;
	enum ferry_direction direction;
	pthread_t thread;
	bool running;
	struct ferry_doorbell *bell; /* in shared memory */
	struct ferry_copy_queue queue;
	pthread_mutex_t inbox_lock;
	struct ferry_call *inbox, **inbox_end; /* under inbox_lock */
	_Atomic uint32_t inbox_filled;         /* written under inbox_lock; its thread also looks without */
	_Atomic uint32_t announced;            /* calls that are about to come; callers, under comm->lock */
	_Atomic bool stopping;                 /* written under inbox_lock; its thread also looks without */
	_Atomic uint32_t driving;              /* its thread: one more before and after each call of the device; the other lane looks */
	struct ferry_call *calls, **calls_end; /* this lane's thread alone, from here on */
	uint32_t heard;                        /* of those announced */
	struct ferry_outstanding outstanding[FERRY_OUTSTANDING];
	uint32_t head, tail;
	uint64_t message[FERRY_MAX_RANKS];     /* next message to or from each peer */
	uint64_t slices[FERRY_MAX_RANKS];      /* slices of finished messages */
	struct ferry_looker looker;
	uint64_t idle_since;                   /* nanoseconds; 0: the last round found work */
	uint64_t awaited_until;                /* nanoseconds: when it last waited for its stream, or (H2D) for a rank that had not come */
	bool reported;                         /* that it has not got on since then */
	uint32_t other_driving;                /* the other lane's `driving` at other_since, and until now */
	uint64_t other_since;
	uint64_t checked;                      /* when the routers and the device were last looked at */
	uint64_t last_seq[FERRY_BANKS];        /* D2H: number of the last call begun in each bank */
	bool named_alone;                      /* D2H: the last call begun under a number of rank 0's must be alone */
};

/* ---- the communicator ---- */

struct ferry_redop {
	bool used;
	ferryDataType_t type;
	uint64_t scalar;
	const void *device_scalar;
};

#define FERRY_MAX_REDOPS 64

struct ferryComm {
	uint64_t magic;
	int rank, nranks;
	uint32_t domain, ndomains;
	uint8_t key[FERRY_KEY_BYTES];
	char prefix[48], directory[64]; /* of the routers' sockets */
	bool embedded;                  /* routers live in one of the ranks */
	char router_mode[12];
	uint64_t staging;               /* bytes per domain to ask the routers for; 0: what they choose */
	struct ferry_device *device;
	void *gate;                     /* the device's own: ferry_device_ops.gate_open */
	char device_kind[8];
	struct ferry_topology topology;
	struct ferry_job_arenas shared;
	int sockets[FERRY_MAX_DOMAINS];
	bool forked;                    /* this is a child that the rank forked; set there, before fork returns */
	struct ferryComm *next_attached; /* bootstrap.c */
	struct ferry_spin spin;      /* how long its lanes look */
	struct ferry_lane lanes[2];

	pthread_mutex_t lock;
	uint64_t seq;                       /* calls made */
	bool made_alone;                    /* the last call made must be alone */
	_Atomic uint64_t fixed;             /* numbers up to this one are in the order of making; UINT64_MAX: all */
	bool fixed_alone;                   /* the last of them must be alone; before `fixed` is stored */
	bool registered[FERRY_MAX_DOMAINS]; /* arenas that the device knows */
	uint64_t router_seq[FERRY_BANKS][FERRY_MAX_DOMAINS]; /* last call with work for that router; D2H lane alone */
	uint64_t splits;
	struct ferry_plan_cache plans;
	uint64_t messages[2][FERRY_MAX_RANKS]; /* numbers given out, by direction and peer */
	struct ferry_redop redops[FERRY_MAX_REDOPS];
	struct ferry_user_programs programs;
	uint64_t slice, window;             /* overrides; 0: chosen */
	struct ferry_costs costs;           /* of copies by the device */
	uint64_t stall_ns;                  /* a lane without progress for so long says so; 0: never */
	uint64_t core_cache;                /* bytes of a core's private cache, the least of the domains; 0: unknown */
	bool show_plans;                    /* FERRY_DEBUG=plan */
	bool finalized;
	_Atomic uint32_t holders;           /* its handle and calls: whoever makes one adds, whoever lets go takes away; the last one frees */

	_Atomic uint32_t inflight;          /* calls not finished: whoever makes one adds, the lane that ends it takes away; futex word for finalize */
	_Atomic uint32_t failed;            /* 1 once error is set; release */
	pthread_mutex_t error_lock;
	ferryResult_t error;
	char error_message[FERRY_MESSAGE_BYTES];
};

#define FERRY_COMM_MAGIC 0x6665727279436f6dull

/** ferryInvalidArgument unless comm is a live communicator. */
ferryResult_t ferry_comm_check(struct ferryComm *comm);

/** Ends the communicator here and, through shared memory, on every rank. The first error stays. In a forked child it does nothing. */
void ferry_comm_fail(struct ferryComm *comm, ferryResult_t code, const char *message);

/** Looks whether a router or another rank has ended the job; true if the communicator has failed. */
bool ferry_comm_failed(struct ferryComm *comm);

/** Whether a router's socket has closed; fails the communicator then. Costs a system call per domain. */
void ferry_comm_check_sockets(struct ferryComm *comm);

/** A communicator is freed when its handle and all calls that name it are gone. */
void ferry_comm_hold(struct ferryComm *comm);
void ferry_comm_drop(struct ferryComm *comm);

/** Of the device: the gate and what was registered. While the caller still is an ordinary thread: the last hold may be let go where CUDA takes no calls. */
void ferry_comm_close_device(struct ferryComm *comm);

/** bootstrap.c: routers found or started, all domains attached, everybody present; or an error and nothing left open. */
ferryResult_t ferry_comm_attach(struct ferryComm *comm);
void ferry_comm_detach(struct ferryComm *comm, bool abort);

/**
 * plans.c: the plan for this key, with a reference for the caller to give back: kept, or compiled and given to the
 * routers (by rank 0) now. Under comm->lock; waits for no call.
 */
ferryResult_t ferry_comm_plan(struct ferryComm *comm, const struct ferry_plan_key *key, struct ferry_plan_entry **entry);
void ferry_comm_free_plans(struct ferryComm *comm);

/** lane.c */
ferryResult_t ferry_lanes_start(struct ferryComm *comm);
void ferry_lanes_stop(struct ferryComm *comm);
void ferry_lanes_submit(struct ferryComm *comm, struct ferry_call *call);
/** Wakes the lanes and routers that the call will need. For devices that are polled, before it is put into the stream. Under comm->lock. */
void ferry_lanes_announce(struct ferryComm *comm, const struct ferry_call *call);

/** call.c: what an API function asks for; checked, then launched or, inside a group, kept until its end. */
struct ferry_request {
	enum ferry_collective collective;
	const void *send;
	void *receive;
	uint64_t count;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root;                                             /* or the peer of FERRY_SENDRECV */
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls; /* alltoallv; copied before the call returns */
	const char *program;                                  /* RunProgram */
	struct ferryComm *comm;
	ferryStream_t stream;
	enum ferry_direction direction;                       /* SENDRECV: FERRY_UP sends */
	bool kept;                                            /* in a group: `factor` is from when the call was made */
	struct ferry_redop factor;                            /* premulsum: the operation may be destroyed before the group ends */
};

ferryResult_t ferry_launch(const struct ferry_request *request);
/** Starts sends and receives of one communicator and stream as one call. */
ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests);
/** group.c: keeps the request if a group is open. */
bool ferry_group_keep(const struct ferry_request *request, ferryResult_t *result);
ferryResult_t ferry_request_check(const struct ferry_request *request);
/** The created reduction that the request names; unused for the built-in ones. Takes comm->lock unless `locked`. */
struct ferry_redop ferry_request_factor(const struct ferry_request *request, bool locked);

#endif
