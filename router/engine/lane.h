/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A lane: a thread that moves slices in one direction between a device's buffers and staging as soon as the plans'
 * gates allow, for every member that has joined. It never blocks on one transfer while another is ready: it goes round
 * all transfers of all calls of all lane ranks, a few slices in flight each where several jobs share it, and sleeps
 * only when a whole round, made after it announced its sleep, found nothing to do. It does not care whether it runs in
 * the rank or in its router. Here are its state and its rounds; router/engine/lane_thread.h has the thread, of which
 * router/engine/lanes.c opens and closes the two of a device.
 */
#ifndef FERRY_ROUTER_ENGINE_LANE_H
#define FERRY_ROUTER_ENGINE_LANE_H

#include "ipc/wait.h"
#include "router/daemon/priority.h"
#include "router/engine/copies.h"
#include "router/engine/stall.h"

struct ferry_lane {
	struct ferry_lanes *lanes;
	enum ferry_direction direction;
	struct ferry_doorbell *bell; /* constant: rung for events that belong to no lane rank */
	pthread_t thread;
	struct ferry_copies copies;
	struct ferry_pushes pushes;     /* D2H */
	/* its thread alone, from here on */
	bool busy;                      /* it has calls at work */
	struct ferry_lane_rank **lane_ranks; /* as of `generation` */
	struct ferry_seen_bell *bells;  /* that it is about to sleep at, or to turn from */
	uint32_t nbells;
	uint32_t nlane_ranks, capacity, turn; /* turn: whose lane rank is first in a round */
	bool anybody_leaves;
	uint64_t generation;
	struct ferry_idle idle;
	uint64_t checked;               /* nanoseconds: when it last checked for a stall */
};

/** Both lanes of one device in one process (router/engine/lanes.h), as each of them sees it. */
struct ferry_lanes {
	struct ferry_copier *copier;     /* constant, as are the next two */
	struct ferry_spin spin;         /* how long they spin */
	struct ferry_priority *priority; /* of their threads; NULL: as they are */
	struct ferry_doorbell own_bells[2];
	struct ferry_lane lane[2];
	pthread_mutex_t lock;   /* of all below, and of `leaves` and `left` in lane ranks */
	pthread_cond_t changed; /* a lane rank has been left */
	struct ferry_member *members;
	_Atomic uint64_t generation;    /* of the list, written under the lock; the lanes also read it without */
	_Atomic bool stopping;          /* the same */
	uint32_t running;               /* threads; the thread that opens and closes the lanes */
};

/**
 * One round over all lane ranks, after copies that have finished were published. True: some transfer made progress. The
 * lane's thread.
 */
bool ferry_lane_round(struct ferry_lane *lane);

/**
 * Makes room for so many lane ranks, and their bells. False: no memory, and nothing has changed. The lane's thread, or
 * before it starts.
 */
bool ferry_lane_make_room(struct ferry_lane *lane, uint32_t nlane_ranks);
void ferry_lane_free_room(struct ferry_lane *lane);

/** Drops all calls of a lane rank that no lane uses: called by its lane's thread, or for one that has been left. */
void ferry_lane_drop_calls(struct ferry_lane_rank *lane_rank);

#endif
