/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Lanes: a thread per device and direction that moves slices between the device's buffers and staging as soon as the
 * plans' gates allow, for every member that has joined. A lane never blocks on one transfer while another is ready: it
 * goes round all transfers of all calls of all seats, a few slices in flight each where several jobs share it, and
 * sleeps only when a whole round, made after it announced its sleep, found nothing to do. It does not care whether it
 * runs in the rank or in its router.
 */
#ifndef FERRY_ROUTER_LANE_H
#define FERRY_ROUTER_LANE_H

#include "ipc/spin.h"
#include "router/watch.h"

struct ferry_lane {
	struct ferry_lanes *lanes;
	enum ferry_direction direction;
	struct ferry_doorbell *bell;    /* constant: where it is rung for what is no seat's */
	pthread_t thread;
	struct ferry_copies copies;
	_Atomic bool busy;              /* its thread: it has calls; the other lane looks */
	/* its thread alone, from here on */
	struct ferry_seat **seats;      /* as of `generation` */
	struct ferry_bell_ticket *tickets;
	uint32_t nseats, capacity, turn; /* turn: whose seat is first in a round */
	bool anybody_leaves;
	uint64_t generation;
	struct ferry_looker looker;
	struct ferry_watch watch;
	uint64_t idle_since;            /* nanoseconds; 0: the last round found work */
};

/** Both lanes of one device in one process. */
struct ferry_lanes {
	struct ferry_copier *copier;    /* constant */
	struct ferry_spin spin;         /* how long they look */
	/* constant: a lane that is so long in the driver is told of by the other; 0: never */
	uint64_t stall_ns;
	struct ferry_doorbell own_bells[2];
	struct ferry_lane lane[2];
	pthread_mutex_t lock;           /* of all below, and of `leaves` and `left` in seats */
	pthread_cond_t changed;         /* a seat has been left */
	struct ferry_member *members;
	_Atomic uint64_t generation;    /* of the list, written under the lock; the lanes also look without */
	_Atomic bool stopping;          /* the same */
	uint32_t running;               /* threads; who opens and closes */
};

struct ferry_lanes_options {
	struct ferry_copier *copier;
	uint64_t stall_ns;
	uint64_t spin_ns;                /* how long they look for what is about to come */
	struct ferry_doorbell *bells[2]; /* of the only member that will ever join; NULL: several may */
};

/** Opens the queues and starts the threads. Errors: the copier's, ferrySystemError; nothing is left then. */
ferryResult_t ferry_lanes_open(struct ferry_lanes *lanes, const struct ferry_lanes_options *options);

/** All members have left. */
void ferry_lanes_close(struct ferry_lanes *lanes);

/**
 * From now on the lanes run the member's calls. The caller has filled in ops, shared, rank, stall_ns, and zeroed the
 * rest.
 */
void ferry_lanes_join(struct ferry_lanes *lanes, struct ferry_member *member);

/**
 * Returns when the lanes have let go of the member: at once where its calls are over, else (the job has failed) when
 * the copies under way are. Calls that are left are released, their streams not told.
 */
void ferry_lanes_leave(struct ferry_member *member);

/** Hands a call to the lanes. One thread at a time per member. */
void ferry_lanes_submit(struct ferry_member *member, struct ferry_call *call);

/**
 * Wakes the lanes and routers that a call will need, before it is put into a stream; `seq`: how many calls have been
 * made. As submit.
 */
void ferry_lanes_announce(struct ferry_member *member, const struct ferry_call *call, uint64_t seq);

#endif
