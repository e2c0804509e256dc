/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank on a GPU, whose router moves its data: it names its buffers, submits its calls through shared memory, and has
 * no lanes. All but opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_MAPPED_H
#define FERRY_RANK_LIB_CALL_MAPPED_H

#include "rank-lib/attach/handover.h"
#include "rank-lib/call/bounce_buffers.h"
#include "rank-lib/call/captures.h"
#include "rank-lib/call/collective_call.h"
#include "rank-lib/call/fabrics.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/call/submissions.h"
#include "rank-lib/failover/copy_quiesce.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/router_monitor.h"
#include "rank-lib/failover/watchdog.h"

/* A router that the router monitor watches. */
struct ferry_watched {
	struct ferry_kept kept; /* first */
	struct ferry_mapped *mapped;
	uint32_t domain;
	bool added;
};

struct ferry_mapped {
	/* constant, from who makes the communicator */
	struct ferry_rank *rank;
	struct ferry_device *device;
	struct ferry_stream_flag_table *flags;
	struct ferry_plan_cache *plans;
	struct ferry_numbering *numbers;
	struct ferry_journal *journal;
	struct ferry_holders *holders;
	pthread_mutex_t *lock; /* the communicator's */

	uint8_t gpu[FERRY_GPU_BYTES]; /* its UUID, and the block of words: what a router is told of the rank */
	int flags_descriptor;
	bool handed_over;             /* where its router dies, it is to the next; while it is open */

	struct ferry_watched watched[FERRY_MAX_DOMAINS];
	struct ferry_copy_quiesce movers[FERRY_MAX_DOMAINS]; /* each domain's router */
	struct ferry_router_watchdog watchdog;               /* of the rank's own; router monitor */
	/* by its routers, as far as the router monitor knows: its streams are released; router monitor */
	bool released;
	struct ferry_exports *exports; /* what its routers map for it; NULL: nothing */
	struct ferry_submissions submissions;
	struct ferry_captures captures;
	struct ferry_bounce_buffers windows;
};

/**
 * Before the rank attaches: *wanted: it is on a GPU, so that its router has to move its data; finds out what it then
 * hands over. Errors: ferryInvalidUsage with embedded routers, the device's, ferrySystemError.
 */
ferryResult_t ferry_mapped_prepare(struct ferry_mapped *mapped, bool embedded, bool *wanted);

/** ferryInvalidUsage, for a rank whose router cannot map its memory: with the rank, why, and what would help. */
ferryResult_t ferry_mapped_refuse(const struct ferry_mapped *mapped, const char *why);

/**
 * All have attached, and its router has said that it will. Errors: ferry_mapped_close is to be called all the same
 * where the rank has a ring. handed_over: who tells of its router's end is not the router monitor, but calls its
 * `closed` (rank-lib/failover/takeover.h).
 */
ferryResult_t ferry_mapped_open(struct ferry_mapped *mapped);

/**
 * Tries it with a buffer: in a container of its own, say, the router can have the same GPU and not open its memory.
 * Who takes routers' places is there already: one that dies in the middle of this has not said that it cannot. Errors:
 * ferryInvalidUsage if it does not work; the rank's, ferryRemoteError.
 */
ferryResult_t ferry_mapped_try(struct ferry_mapped *mapped);

/** Whether its routers may have successors, as things are when it has attached: it sees the end of each router. */
bool ferry_mapped_may_be_handed_over(const struct ferry_mapped *mapped);

/** With ferry_mapped as context. */
extern const struct ferry_handover_ops ferry_mapped_handover;

/** No more calls. The connections are still open. */
void ferry_mapped_close(struct ferry_mapped *mapped);

/**
 * The connections are closed: returns when no router copies anything for this rank, or into its memory, any more, so
 * that its streams may go on and its memory be freed. No longer than 10 seconds; says so then, in a line of the log.
 */
void ferry_mapped_end(struct ferry_mapped *mapped);

/**
 * Wakes the routers that have work, `domains`, and the rank's own, and puts the submitted call into the request's
 * stream; where it is open, what is left goes to request->open. An error is the rank's: the router has the call, or the
 * other ranks wait for it, and there is no way back.
 */
ferryResult_t ferry_mapped_enqueue(struct ferry_mapped *mapped, uint32_t domains, const struct ferry_request *request,
                                   struct ferry_stream_call *in_stream);

/* mapped_collective.c */
/** Names the buffers of a collective; before it gets its place among the calls, as this may fail. */
ferryResult_t ferry_mapped_name(struct ferry_mapped *mapped, struct ferry_collective_call *collective);
ferryResult_t ferry_mapped_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective);

/* mapped_messages.c */
/** fabrics: by which messages are pushed; NULL: none is. */
ferryResult_t ferry_mapped_pairs(struct ferry_mapped *mapped, const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_fabrics *fabrics, const struct ferry_stream_state *stream);

#endif
