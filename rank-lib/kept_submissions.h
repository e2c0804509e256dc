/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Copies of the submissions that are not over, as a router takes them out of the ring before it acts on them: should it
 * die, the next one gets them again (router/resumed.h). Written under the communicator's lock, read by the keeper; what
 * is over goes with the next that comes. Those of captured calls stay until no graph has them, and lie by themselves.
 */
#ifndef FERRY_RANK_LIB_KEPT_SUBMISSIONS_H
#define FERRY_RANK_LIB_KEPT_SUBMISSIONS_H

#include "ipc/submission.h"

#include <pthread.h>

struct ferry_kept_submissions {
	/* constant: whether no graph has the call of that word; it is let go of then */
	bool (*forgotten)(uint32_t word);
	pthread_mutex_t lock; /* of all else, and held while a record goes into the ring */
	char *memory;         /* from `first` to `end`: records, each behind where it ends in the ring */
	size_t first, end, capacity;
	struct ferry_kept_capture *captures, **captures_end; /* in the order of their numbers */
	uint64_t number;      /* of the last record there was */
	uint64_t calls;       /* that are in all records there were, captured ones apart */
	uint64_t position;    /* of the ring, behind the last of them */
};

void ferry_kept_submissions_init(struct ferry_kept_submissions *kept, bool (*forgotten)(uint32_t word));
void ferry_kept_submissions_end(struct ferry_kept_submissions *kept);

/**
 * ferry_ring_write, and keeps a copy. *written: false: there is no room in the ring. Errors: ferrySystemError,
 * those of ferry_kept_submissions_check, and it is not written.
 */
ferryResult_t ferry_kept_submissions_write(struct ferry_kept_submissions *kept, struct ferry_ring *ring,
                                           struct ferry_submission *head, const void *behind, size_t more,
                                           bool *written);

/**
 * Whether the ring says how much is in it: where another rank of the job has written less, the router never sees the
 * last calls. ferryInternalError, with the values. Not while somebody is writing.
 */
ferryResult_t ferry_kept_submissions_check(struct ferry_kept_submissions *kept, const struct ferry_ring *ring);

/** The captured call of that word is not given to a router any more. */
void ferry_kept_submissions_forget(struct ferry_kept_submissions *kept, uint32_t word);

/* What a router that has ended had taken. */
struct ferry_kept_taken {
	uint64_t number; /* of the last record */
	uint64_t calls;  /* up to there */
};

/**
 * Calls `give` with all records that were taken out of the ring and are not over, in order, a few at a time. No router
 * has the ring: so who destroys a graph meanwhile hears from here that its calls are let go of. The result is that of
 * the first call that fails.
 */
ferryResult_t ferry_kept_submissions_give(struct ferry_kept_submissions *kept, const struct ferry_ring *ring,
                                          ferryResult_t (*give)(void *context, const void *records, size_t bytes),
                                          void *context, struct ferry_kept_taken *taken);

#endif
