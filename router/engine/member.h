/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A member: one rank of one job, as the process that moves its data sees it. That process is the rank itself, where it
 * has lanes of its own (rank-lib), or the router of its domain. A member has a lane rank on each lane of its device:
 * what that lane keeps for it from call to call.
 *
 * The process that hosts the lanes makes a member, joins it to them (ferry_lanes_join), and implements `ops`. A lane
 * rank is its lane's thread's alone, but for what is said at the fields.
 */
#ifndef FERRY_ROUTER_ENGINE_MEMBER_H
#define FERRY_ROUTER_ENGINE_MEMBER_H

#include "ipc/deadline.h"
#include "router/engine/call.h"

#include <pthread.h>

/* What lanes need of the process that hosts them. Called by the lanes' threads. */
struct ferry_member_ops {
	/** Ends the job for all its ranks, with this code and message, unless it has ended before. */
	void (*fail)(struct ferry_member *member, ferryResult_t code, const char *message);
	/**
	 * D2H lane, for a call whose plan has PUTs: once in each run and for each rank that they go to. Finds where
	 * that rank's buffer is for this rank's pushes, and keeps `bytes` bytes of it mapped until `released`, whatever
	 * becomes of the other rank. Called for a message that is pushed, too. Errors fail the job.
	 */
	ferryResult_t (*hold_target)(struct ferry_member *member, uint32_t peer, const struct ferry_buffer_name *name,
	                             uint64_t bytes, struct ferry_put_target *put_target);
	/** D2H lane: releases put_target->hold, if `hold_target` has set it, once no push to it is under way. */
	void (*released)(struct ferry_member *member, void *hold);
	/**
	 * D2H lane, around each copy into another rank's memory, which the copier has made when it returns. enter:
	 * false: nothing may be put there any more. NULL: what `hold_target` holds is enough.
	 */
	bool (*enter)(struct ferry_member *member, uint32_t peer);
	void (*leave)(struct ferry_member *member, uint32_t peer);
	/**
	 * The lane of that direction, after the job has failed: true once no other rank puts into this rank's memory,
	 * nor will, so that its calls may end. A rank that still puts there rings both lanes when it has finished.
	 * NULL: no rank does.
	 */
	bool (*shut)(struct ferry_member *member, enum ferry_direction direction);
	/** Whether the job has failed. */
	bool (*failed)(struct ferry_member *member);
	/** The reason. *message stays as long as the member. */
	ferryResult_t (*error)(struct ferry_member *member, const char **message);
	/** Now and then, while calls are under way: whether all routers live; fails the job if not. */
	void (*check)(struct ferry_member *member);
	/** How long its calls may wait. NULL: for ever. */
	struct ferry_timeout (*timeout)(struct ferry_member *member);
	/** Calls of other communicators of the rank's process, on its device, that were made and are not over. */
	uint32_t (*beside)(struct ferry_member *member);
	/**
	 * D2H lane, in each round: hands calls that the rank has submitted through a ring, or that its callers have
	 * left, to the lanes; true if there were any.
	 */
	bool (*take)(struct ferry_member *member);
	/**
	 * begun: a stream has reached a captured call. ended: a call, or a run of a captured one, is over, and its
	 * stream goes on; NULL: the call's own `finish` is enough.
	 */
	void (*begun)(struct ferry_member *member);
	void (*ended)(struct ferry_member *member, const struct ferry_call *call);
};

struct ferry_lane_rank {
	struct ferry_member *member;
	enum ferry_direction direction;
	struct ferry_doorbell *bell;           /* in the rank's line of the arena */
	/* from others */
	pthread_mutex_t inbox_lock;
	struct ferry_call *inbox, **inbox_end; /* under inbox_lock */
	_Atomic uint32_t inbox_filled;         /* written under inbox_lock; the lane also reads it without */
	/* the lane's thread alone */
	struct ferry_call *calls, **calls_end;
	uint32_t out_of_line;                  /* messages in that list, and calls whose numbers rank 0 gives */
	uint32_t under_way;                    /* copies of its calls */
	bool moves;                            /* as in the rank's line */
	uint64_t message[FERRY_MAX_RANKS];     /* next message to or from each peer */
	uint64_t slices[FERRY_MAX_RANKS];      /* of finished messages */
	/* bit r: a message that has begun waits for rank r; relaxed: a lane reads it while a caller runs messages */
	_Atomic uint64_t blockers;
	uint64_t free_until[FERRY_MAX_RANKS];  /* D2H: slices below this one have free slots, as was last read */
	uint64_t idle_since;                   /* nanoseconds; 0: its last round found work */
	/* nanoseconds: when it last waited for its stream, or (H2D) for a rank that had not come */
	uint64_t excused_at;
	const struct ferry_call *watched;      /* the first call begun when it was last checked: to compare with */
	uint64_t watched_number;
	bool reported;                         /* that it has made no progress since then */
	/* the rank's line names the ranks that it waits for (router/engine/traffic.h) */
	bool awaiting;
	uint64_t checked;                      /* when the routers were last checked */
	/* under the lock of the lanes */
	bool leaves, left;                     /* left: the lane's thread will not touch it again */
};

/*
 * Which call has which number, and which message. The D2H lane's alone, but for the atomic fields: a thread that runs a
 * short call (rank-lib/call/short_call.h) writes them in the lane's place.
 */
struct ferry_order {
	/* numbers up to this one are in the order of making; UINT64_MAX: all. The thread that makes calls, release */
	_Atomic uint64_t fixed;
	/* number of the last call begun in each parity; relaxed: a call begins after an acquire of that one's end */
	_Atomic uint64_t last_seq[FERRY_PARITIES];
	uint64_t router_seq[FERRY_PARITIES][FERRY_MAX_DOMAINS]; /* last call with work for that router */
	uint64_t unheard[FERRY_PARITIES]; /* the parity's last call, if it ended before the others' was heard; else 0 */
	uint64_t messages[2][FERRY_MAX_RANKS]; /* the last number given here, by direction and peer */
	uint64_t runs;                         /* of named groups of messages */
};

struct ferry_member {
	const struct ferry_member_ops *ops;
	const struct ferry_job_arenas *shared; /* constant once the member has joined its lanes */
	uint32_t rank;
	bool awaits_quiet;                     /* constant: router/engine/put_targets.h */
	const _Atomic uint32_t *weight;        /* of its job's turns on lanes that several share; NULL: 1 */
	/* the rank's line says so; D2H lane, and the thread that takes it off the lanes */
	bool stopped;
	/* H2D lane: since when it waits for that, or UINT64_MAX: it has waited long enough */
	uint64_t unquiet_since;
	struct ferry_lanes *lanes;             /* written by ferry_lanes_join and _leave */
	struct ferry_member *next;             /* on the same lanes; under their lock */
	struct ferry_order order;
	struct ferry_lane_rank lane_ranks[2];
};

static inline uint32_t ferry_member_weight(const struct ferry_member *member)
{
	return member->weight ? atomic_load_explicit(member->weight, memory_order_relaxed) : 1;
}

/** Where host devices model links that they share (ipc/links.h). */
static inline _Atomic uint64_t *ferry_member_shared_links(const struct ferry_member *member)
{
	return member->shared->arenas[0].header->shared_busy_until;
}

static inline struct ferry_rank_line *ferry_member_line(const struct ferry_member *member)
{
	return ferry_rank_line(member->shared, member->rank);
}

#endif
