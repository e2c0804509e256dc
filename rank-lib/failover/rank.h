/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a rank is in its job: its number, the arenas it shares with the others, its connections to the routers, and why
 * the job has ended, if it has. Every part that works for a rank takes this. Lanes and the router monitor use it beside
 * the application's threads: a field is constant once the rank has attached, unless its comment names a writer.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_RANK_H
#define FERRY_RANK_LIB_FAILOVER_RANK_H

#include "ipc/attach.h"
#include "ipc/deadline.h"
#include "ipc/error.h"
#include "ipc/publish.h"
#include "rank-lib/failover/link.h"

#include <pthread.h>

#define FERRY_RANK_LOSS (FERRY_LOSS_BYTES + 32) /* bytes of a text about one loss */

/* What makes a communicator, and may give that up before it is made. */
struct ferry_maker {
	bool (*gives_up)(const struct ferry_maker *maker); /* asked now and then by the thread that waits */
};

struct ferry_rank {
	int self, nranks;
	uint32_t domain, ndomains;
	uint8_t key[FERRY_KEY_BYTES];
	struct ferry_job_arenas shared;
	struct ferry_timeout timeout; /* for how long calls may wait */
	/* to each domain's router; attach/ closes them, also in a child that the rank forks */
	struct ferry_link links[FERRY_MAX_DOMAINS];
	/* while it attaches; NULL: it is never given up */
	const struct ferry_maker *maker;
	/* this is a child that the rank forked; set there, before fork returns */
	bool forked;
	struct ferry_rank *next_attached; /* attach/forks.c's */
	/* 1 once the error is set, which then stays; under error_lock, release */
	_Atomic uint32_t failed;
	pthread_mutex_t error_lock;
	ferryResult_t error;
	char error_message[FERRY_MESSAGE_BYTES];
};

/** A rank that has attached to nothing yet. */
void ferry_rank_init(struct ferry_rank *rank, int self, int nranks, const uint8_t *key);

/** Unmaps the arenas. */
void ferry_rank_end(struct ferry_rank *rank);

/**
 * To be called once the arenas are mapped: publishes for how long the rank's calls may wait, for the router or lanes
 * that move its data.
 */
void ferry_rank_publish_timeout(const struct ferry_rank *rank);

/**
 * Ends the job here and, through shared memory, on every rank. The first error stays. In a forked child it does
 * nothing. Any thread.
 */
void ferry_rank_fail(struct ferry_rank *rank, ferryResult_t code, const char *message);

/**
 * As ferry_rank_fail, with ferryRemoteError. If the job has ended already, ends only calls by kernels: the other ranks
 * have an earlier reason.
 */
void ferry_rank_abort(struct ferry_rank *rank, const char *message);

/**
 * As ferry_rank_fail, because no router of a domain moves data any more; but calls by kernels, which need no router, go
 * on. If a rank's process is in another namespace they end, too, as no rank would notice that process's death.
 */
void ferry_rank_lose_router(struct ferry_rank *rank, const char *message);

/**
 * As ferry_rank_fail, for a request that a router has not done, unless the rank has failed. If a router is lost, that
 * becomes the reason (ferry_rank_check_sockets).
 */
void ferry_rank_fail_request(struct ferry_rank *rank, ferryResult_t code, const char *message);

/** `failed` was raised in an arena: finds out by which rank or router, and why. Any thread. */
void ferry_rank_adopt_failure(struct ferry_rank *rank);

/** Looks whether a router or another rank has ended the job; true if it has ended. Any thread. */
static inline bool ferry_rank_failed(struct ferry_rank *rank)
{
	bool failed = atomic_load_explicit(&rank->failed, memory_order_acquire);
	for (uint32_t domain = 0; domain < rank->ndomains && !failed; domain++)
		if ((failed = atomic_load_explicit(&rank->shared.arenas[domain].header->failed, memory_order_acquire)))
			ferry_rank_adopt_failure(rank);
	return failed;
}

/** Whether the job has ended so that calls by kernels end, too (compare ferry_rank_lose_router). Any thread. */
bool ferry_rank_ends_kernels(struct ferry_rank *rank);

/** Whether all ranks know each other's processes by the same numbers. All have published their processes. */
bool ferry_ranks_are_near(const struct ferry_rank *rank);

/**
 * Whether that rank's process has ended. Returns false, too, if that is unknown, as the process is in another
 * namespace.
 */
bool ferry_rank_has_ended(const struct ferry_rank *rank, uint32_t other);

/** The rank has published something that others may await: wakes those that do. */
void ferry_rank_tell(const struct ferry_rank *rank);

/**
 * Waits until `untold` returns 0. Bit r of its result: rank r has not yet published what this rank waits for. Errors:
 * the job has failed; it fails, too, when `until` has passed (ferry_now_ns) or the rank's maker gives up.
 */
ferryResult_t ferry_rank_await(struct ferry_rank *rank, uint64_t until, uint64_t (*untold)(const struct ferry_rank *));

/** Returns when the last router of that domain died with its context on a GPU; 0: none did. text: NULL, or as below. */
uint64_t ferry_rank_last_loss(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANK_LOSS]);

/**
 * Returns what the last router that died with its context on a GPU of that domain said, after "; ", as the end of a
 * message; "" if none did.
 */
const char *ferry_rank_report_loss(const struct ferry_rank *rank, uint32_t domain, char text[FERRY_RANK_LOSS]);

/** The error of a rank that has failed, as ferry_fail gives it. */
ferryResult_t ferry_rank_report_failure(const struct ferry_rank *rank);

/**
 * Fails the rank if a router has closed its connection and no other router takes its place. Costs a system call for
 * each domain whose router no other will replace (FERRY_LINK_ALONE). Any thread.
 */
void ferry_rank_check_sockets(struct ferry_rank *rank);

#endif
