/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank on a GPU, whose router moves its data: it names its buffers, submits its calls through shared memory, and has
 * no lanes. Everything but opening and closing happens under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_MAPPED_H
#define FERRY_RANK_LIB_CALL_MAPPED_H

#include "rank-lib/attach/handover.h"
#include "rank-lib/call/bounce_buffers.h"
#include "rank-lib/call/captures.h"
#include "rank-lib/call/collective_call.h"
#include "rank-lib/call/fabrics.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/copy_quiesce.h"
#include "rank-lib/failover/journal.h"
#include "rank-lib/failover/router_monitor.h"
#include "rank-lib/failover/watchdog.h"

/* A router that the router monitor watches. */
struct ferry_watched {
	struct ferry_monitor_entry entry; /* first */
	struct ferry_mapped *mapped;
	uint32_t domain;
	bool added;
};

struct ferry_mapped {
	/* constant, set by the maker of the communicator */
	struct ferry_rank *rank;
	struct ferry_device *device;
	struct ferry_stream_flag_table *flags;
	struct ferry_plan_cache *plans;
	struct ferry_numbering *numbers;
	struct ferry_journal *journal;
	struct ferry_holders *holders;
	pthread_mutex_t *lock; /* the communicator's */

	uint8_t gpu[FERRY_GPU_BYTES]; /* its UUID, and the stream flags' descriptor: what a router gets of the rank */
	int flags_descriptor;
	bool handed_over;             /* if its router dies, the rank goes to the next one; constant while it is open */

	struct ferry_watched watched[FERRY_MAX_DOMAINS];
	struct ferry_copy_quiesce copy_quiesces[FERRY_MAX_DOMAINS]; /* each domain's router */
	struct ferry_router_watchdog watchdog;                      /* of the rank's own; router monitor */
	/* whether its streams are released, as far as the router monitor knows; router monitor */
	bool released;
	struct ferry_exports *exports; /* what its routers map for it; NULL: nothing */
	struct ferry_submissions submissions;
	struct ferry_captures captures;
	struct ferry_bounce_buffers bounces;
	uint64_t sums_stream; /* id of the stream for which a sum last looked for its memory; 0: none */
};

/**
 * To be called before the rank attaches. *wanted: the rank is on a GPU, so a router has to move its data; finds the
 * UUID and opens the stream flags for it. Errors: the device's; ferrySystemError.
 */
ferryResult_t ferry_mapped_prepare(struct ferry_mapped *mapped, bool *wanted);

/**
 * Returns ferryInvalidUsage for a rank whose router cannot map its memory: with the rank, the reason and the remedy.
 */
ferryResult_t ferry_mapped_refuse(const struct ferry_mapped *mapped, const char *why);

/**
 * To be called when all ranks have attached and the router has agreed to move this rank's data. On an error
 * ferry_mapped_close must be called, too, if the rank has a ring. handed_over: the takeover, instead of the router
 * monitor's own watch, notices the router's end and calls `closed` (rank-lib/failover/takeover.h).
 */
ferryResult_t ferry_mapped_open(struct ferry_mapped *mapped);

/**
 * Tries a mapping with a buffer: a router in a container of its own, say, may have the same GPU and not be able to open
 * the rank's memory. The takeover is already open, so a router that dies during the test does not count as a refusal.
 * Errors: ferryInvalidUsage if it does not work; the rank's; ferryRemoteError.
 */
ferryResult_t ferry_mapped_try(struct ferry_mapped *mapped);

/** Whether its routers may have successors: the rank, once attached, can see the end of each router's process. */
bool ferry_mapped_may_be_handed_over(const struct ferry_mapped *mapped);

/** With ferry_mapped as context. */
extern const struct ferry_handover_ops ferry_mapped_handover;

/** Ends the rank's calls. The connections are still open. */
void ferry_mapped_close(struct ferry_mapped *mapped);

/**
 * To be called after the connections are closed: returns when no router copies for this rank, or into its memory, any
 * more, so that its streams may go on and its memory be freed. Waits for 10 seconds at most, then logs that.
 */
void ferry_mapped_end(struct ferry_mapped *mapped);

/**
 * Wakes the routers of `domains`, which have work, and the router of the rank's domain, and puts the submitted call
 * into the request's stream; if the call is open, the rest goes to request->open. An error fails the rank: the router
 * has the call, or the other ranks wait for it, so it cannot be undone.
 */
ferryResult_t ferry_mapped_enqueue(struct ferry_mapped *mapped, uint32_t domains, const struct ferry_request *request,
                                   struct ferry_stream_call *in_stream);

/* mapped_collective.c */
/**
 * Names the buffers of a collective and takes its stream flag; a captured call's names and plan are then kept. To be
 * called before the call gets its number, as this may fail.
 */
ferryResult_t ferry_mapped_name(struct ferry_mapped *mapped, struct ferry_collective_call *collective);
ferryResult_t ferry_mapped_collective(struct ferry_mapped *mapped, const struct ferry_collective_call *collective);
/**
 * Makes the memory into which blocks of such calls come (gpu_sums.h) and has the routers map it, for the stream that
 * ferry_mapped_has_room was last asked about. Does nothing without such a stream. Errors: the driver's; the
 * router's; ferryInternalError if as many streams as may have such memory.
 */
ferryResult_t ferry_mapped_make_room(struct ferry_mapped *mapped, const struct ferry_request *step, bool put_target);
bool ferry_mapped_has_room(struct ferry_mapped *mapped, const struct ferry_request *step, bool put_target);
/** The memory of the step's stream; NULL: it has none as large as the step's. */
char *ferry_mapped_room(struct ferry_mapped *mapped, const struct ferry_request *step);
/** Frees all copies of the call: of the rank's own block, and to and from bounce buffers. */
void ferry_mapped_free_copies(const struct ferry_stream_call *call);

/* mapped_messages.c */
/** fabrics: by which messages are pushed; NULL: none is. */
ferryResult_t ferry_mapped_pairs(struct ferry_mapped *mapped, const struct ferry_request *requests, uint32_t nrequests,
                                 const struct ferry_fabrics *fabrics, const struct ferry_stream_state *stream);

#endif
