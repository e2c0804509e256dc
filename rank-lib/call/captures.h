/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Captured calls that graphs may still hold, of a rank whose router moves its data, and what they need: their stream
 * flags, plans, exported buffers, bounce buffers and submissions. Under the communicator's lock.
 */
#ifndef FERRY_RANK_LIB_CALL_CAPTURES_H
#define FERRY_RANK_LIB_CALL_CAPTURES_H

#include "rank-lib/call/bounce_buffers.h"
#include "rank-lib/call/exports.h"
#include "rank-lib/call/plan_cache.h"
#include "rank-lib/call/stream_flags.h"
#include "rank-lib/failover/journal.h"

struct ferry_capture;

struct ferry_captures {
	/* constant, set by the maker of the communicator; exports: once they are open */
	struct ferry_stream_flag_table *flags;
	struct ferry_plan_cache *plans;
	struct ferry_exports *exports;
	struct ferry_journal *journal; /* holds their submissions */
	struct ferry_bounce_buffers *bounces;
	struct ferry_capture *all;
	uint32_t forgets_seen;
};

/**
 * Gives a captured call a stream flag, which the head gets with its turn, and keeps what the call needs until no graph
 * holds it any more. entry: with a reference, which this takes over; NULL: messages. names: already pinned; those of
 * generation 0 are unused. Errors: those of ferry_stream_flag_for_capture, ferrySystemError.
 */
ferryResult_t ferry_captures_keep(struct ferry_captures *captures, struct ferry_plan_entry *entry,
                                  const struct ferry_buffer_name *names, uint32_t nnames, struct ferry_submission *head,
                                  struct ferry_stream_call *in_stream);

/** Releases the names and bounce buffers of a call that ferry_captures_keep has not got, as the call has failed. */
void ferry_captures_undo(struct ferry_captures *captures, const struct ferry_buffer_name *names, uint32_t nnames);

/** Releases what only graphs that are gone have needed. */
void ferry_captures_sweep(struct ferry_captures *captures);

/** Releases everything: no graph will be replayed any more. */
void ferry_captures_free(struct ferry_captures *captures);

#endif
