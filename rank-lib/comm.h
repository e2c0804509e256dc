/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The inside of a communicator: one rank of one job. What each thread may touch:
 *   application threads  everything under `lock`: plans, numbers, operations
 *   lanes                the member's seats (router/member.h); this rank's line in shared memory
 *   any of them          `failed` and `error`, through ferry_comm_fail, which holds `error_lock`
 */
#ifndef FERRY_RANK_LIB_COMM_H
#define FERRY_RANK_LIB_COMM_H

#include "ferry.h"
#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/publish.h"
#include "rank-lib/device/device.h"
#include "rank-lib/keeper.h"
#include "rank-lib/plan_cache.h"
#include "rank-lib/program/program.h"
#include "rank-lib/user_programs.h"
#include "rank-lib/windows.h"
#include "rank-lib/words.h"
#include "router/lanes.h"

#include <pthread.h>

struct ferry_redop {
	bool used;
	ferryDataType_t type;
	uint64_t scalar;
	const void *device_scalar;
};

#define FERRY_MAX_REDOPS 64

/* A router that the keeper watches. */
struct ferry_watched {
	struct ferry_kept kept; /* first */
	struct ferryComm *comm;
	uint32_t domain;
	bool added;
};

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
	char device_kind[8];
	struct ferry_topology topology;
	struct ferry_job_arenas shared;
	int sockets[FERRY_MAX_DOMAINS];
	bool forked;                    /* this is a child that the rank forked; set there, before fork returns */
	struct ferryComm *next_attached; /* bootstrap.c */
	struct ferry_lanes lanes;       /* of its own */
	struct ferry_member member;     /* its seats on them; `order.fixed` is for all */
	struct ferry_word_table words;
	bool may_map;                   /* its router has said that it could */
	bool mapped;                    /* its router moves its data */
	struct ferry_watched watched[FERRY_MAX_DOMAINS]; /* mapped: by the keeper */

	pthread_mutex_t lock;
	uint64_t made;                      /* calls */
	bool made_alone;                    /* the last call made must be alone */
	bool registered[FERRY_MAX_DOMAINS]; /* arenas that the device knows */
	uint64_t splits;
	struct ferry_plan_cache plans;
	uint64_t messages[2][FERRY_MAX_RANKS]; /* numbers given out, by direction and peer */
	/* some messages were captured: those made from then on are numbered as streams come to them */
	bool messages_named;
	struct ferry_exports *exports;      /* what its router maps for it; NULL: nothing, its lanes are here */
	struct ferry_ring *ring;            /* mapped: where it submits */
	uint64_t submissions, calls;        /* mapped: records written, and calls in them but for captured ones */
	struct ferry_capture *captures;     /* mapped: calls that graphs have */
	uint32_t forgets_seen;
	struct ferry_registration *registrations;
	struct ferry_windows windows;
	struct ferry_redop redops[FERRY_MAX_REDOPS];
	struct ferry_user_programs programs;
	uint64_t slice, window;             /* overrides; 0: chosen */
	struct ferry_costs costs;           /* of copies by the device */
	uint64_t stall_ns;                  /* a lane without progress for so long says so; 0: never */
	uint64_t core_cache;                /* bytes of a core's private cache, the least of the domains; 0: unknown */
	bool show_plans;                    /* FERRY_DEBUG=plan */
	bool finalized;
	/* its handle and calls: whoever makes one adds, whoever lets go takes away; the last one frees */
	_Atomic uint32_t holders;

	/* calls not finished: whoever makes one adds, the lane that ends it takes away; futex word for finalize */
	_Atomic uint32_t inflight;
	_Atomic uint32_t failed;            /* 1 once error is set; release */
	pthread_mutex_t error_lock;
	ferryResult_t error;
	char error_message[FERRY_MESSAGE_BYTES];
};

#define FERRY_COMM_MAGIC 0x6665727279436f6dull

/** ferryInvalidArgument unless comm is a live communicator. */
ferryResult_t ferry_comm_check(struct ferryComm *comm);

/**
 * Ends the communicator here and, through shared memory, on every rank. The first error stays. In a forked child it
 * does nothing.
 */
void ferry_comm_fail(struct ferryComm *comm, ferryResult_t code, const char *message);

/** Looks whether a router or another rank has ended the job; true if the communicator has failed. */
bool ferry_comm_failed(struct ferryComm *comm);

/** Whether a router's socket has closed; fails the communicator then. Costs a system call per domain. */
void ferry_comm_check_sockets(struct ferryComm *comm);

/** A communicator is freed when its handle and all calls that name it are gone. */
void ferry_comm_hold(struct ferryComm *comm);
void ferry_comm_drop(struct ferryComm *comm);

/**
 * bootstrap.c: routers found or started, all domains attached, everybody present; or an error and nothing left open.
 */
ferryResult_t ferry_comm_attach(struct ferryComm *comm);
void ferry_comm_detach(struct ferryComm *comm, bool abort);

/**
 * plans.c: the plan for this key, with a reference for the caller to give back: kept, or compiled and given to the
 * routers (by rank 0) now. Under comm->lock; waits for no call.
 */
ferryResult_t ferry_comm_plan(struct ferryComm *comm, const struct ferry_plan_key *key,
                              struct ferry_plan_entry **entry);
void ferry_comm_free_plans(struct ferryComm *comm);

/** registration.c: forgets the registrations that are left, and what was exported. */
void ferry_comm_free_registrations(struct ferryComm *comm);

/**
 * Returns when no call is under way. Where the communicator has failed, calls that their streams have not reached count
 * only where they end by that.
 */
void ferry_comm_wait(struct ferryComm *comm);

/**
 * No more calls: its lanes end, or its router is not watched any more. While the caller still is an ordinary thread of
 * the application.
 */
void ferry_comm_close_data(struct ferryComm *comm);

#endif
