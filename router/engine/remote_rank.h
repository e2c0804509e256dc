/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank whose data this router moves, and its calls that are under way. The thread of its D2H lane makes such calls of
 * what it submits (router/engine/call_decoder.h); any lane ends them.
 */
#ifndef FERRY_ROUTER_ENGINE_REMOTE_RANK_H
#define FERRY_ROUTER_ENGINE_REMOTE_RANK_H

#include "ipc/stream_flag.h"
#include "ipc/submission.h"
#include "router/daemon/job.h"
#include "router/engine/member.h"
#include "router/failover/recovery.h"
#include "router/gpu/imports.h"

#include <stddef.h>

struct ferry_remote_rank {
	struct ferry_member member;
	struct ferry_job *job;
	struct ferry_imports *imports;
	struct ferry_ring *ring;
	struct ferry_ending ending;    /* with the three below: connection thread, when the rank leaves; the reaper */
	int client;                    /* to be closed; -1: none */
	bool answer, in_order;
	struct ferry_stream_flag *flags; /* of the rank's process; FERRY_STREAM_FLAGS */
	uint64_t process;              /* constant: its number; no other process with stream flags here has it */
	pthread_mutex_t over_lock;     /* of `over` in its ring, and of these two */
	struct ferry_mapped_call *first, *last; /* calls under way, captured ones apart, in the order of submissions */
	uint64_t listed;               /* number of the last submission whose call is in the list, or over */
	_Atomic uint32_t calls;        /* under way: the D2H lane adds, the lanes take away */
	/* D2H lane */
	uint64_t taken;                /* of the ring */
	uint64_t number;               /* of the last submission taken */
	struct ferry_call_decoder_message *messages; /* of a call whose records have not all come */
	uint32_t nmessages;
	bool refused;                  /* one of its submissions: the rest is taken and ignored */
	bool broken;                   /* the rank's submissions are not trusted any more */
	struct ferry_recovery *recovery; /* taken again, before what is in the ring; NULL: nothing (any more) */
	bool resumes;                  /* the record that is taken is of a call that may be under way */
	/*
	 * By direction and peer, as its remote rank was opened: which message it was the turn of, and its slices there.
	 * first, call: as in struct ferry_pair_turn.
	 */
	struct {
		uint64_t message, slices, first, call;
	} turns[2][FERRY_MAX_RANKS];
};

struct ferry_mapped_call {
	struct ferry_call call; /* first */
	struct ferry_remote_rank *remote_rank;
	struct ferry_job_plan *plan; /* held; NULL: point to point */
	struct ferry_stream_flag *flag;
	uint64_t number;             /* of its last submission */
	struct ferry_mapped_call *before, *after; /* in the remote rank's list */
	/*
	 * turn: captured: of the run that it is in, or comes to next; the lane that ends one, before its number is 0
	 * again
	 */
	uint32_t turn, nimports;
	bool lost; /* captured: only its stream flag is known; constant */
	struct ferry_import *imports[]; /* held: its own buffers */
};

static inline struct ferry_remote_rank *ferry_remote_rank_of(struct ferry_member *member)
{
	return (struct ferry_remote_rank *)((char *)member - offsetof(struct ferry_remote_rank, member));
}

/** A run of named messages as struct ferry_pair_turn has it. */
static inline uint64_t ferry_remote_rank_run(uint32_t flag, uint32_t turn)
{
	return (uint64_t)(flag + 1) << 32 | turn;
}

/**
 * A call under way, of so many transfers each way and these parities, with room for what it holds of the rank's
 * buffers; in the list, unless it is captured: what such a one names is pinned. NULL: no memory.
 */
struct ferry_mapped_call *ferry_mapped_call_new(struct ferry_remote_rank *remote_rank,
                                                const struct ferry_submission *head, uint32_t imports, uint32_t ups,
                                                uint32_t downs, uint32_t parities);

/** Releases all that it holds. A lane calls it for the calls that it was given. */
void ferry_mapped_call_free(struct ferry_mapped_call *mapped);

/** One more call that is not captured is over: counts it in the rank's ring. Any lane. */
void ferry_remote_rank_count_ended(struct ferry_remote_rank *remote_rank);

/** All calls of the submissions up to this one are in the list, or over. */
void ferry_remote_rank_listed(struct ferry_remote_rank *remote_rank, uint64_t number);

#endif
