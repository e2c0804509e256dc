/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The journal of a communicator: what the successor of a router needs from this rank, in one list, in the order in
 * which routers got it: plans, exported buffers, and copies of the submissions, as a router takes those out of the ring
 * before it acts on them. The ring itself cannot be the journal, as other ranks of the job may write over it.
 *
 * One rule says when an entry goes: each has the number of the last submission that needs it (`until`), and goes when
 * the ring says that all submissions up to that number are over (ferry_ring.over).
 *
 *   submission         its own number; that of a captured call: for good, until no graph has the call
 *   export             the last submission that names it, and its router has unmapped it, or its index names other
 *                      memory; for good while captured calls or the application pin it
 *   plan               for good while the rank's plan cache has it, since later calls name it without giving it again
 *
 * Submissions go with the next one that is written, the rest with ferry_journal_sweep, four times a second, because a
 * descriptor of physical memory keeps that memory after its owner has freed it. While the router has the memory mapped,
 * the descriptor keeps nothing that the mapping does not, and the driver takes 1 ms to make another one. A rank whose
 * lanes run in its own process has no ring: its journal has plans alone.
 *
 * Locks: entries are added and removed under both the communicator's lock and the journal's, so either is enough to
 * read them. `until` is atomic: application threads, under the communicator's lock, raise it for each call; the router
 * monitor, under the journal's, reads it while it replays. The journal's lock is taken last. The router monitor waits
 * for a router with the journal's lock and never for the communicator's, because a thread with that lock may wait for a
 * router.
 */
#ifndef FERRY_RANK_LIB_FAILOVER_JOURNAL_H
#define FERRY_RANK_LIB_FAILOVER_JOURNAL_H

#include "ipc/plan.h"
#include "ipc/submission.h"
#include "rank-lib/failover/rank.h"

#include <pthread.h>

#define FERRY_JOURNAL_FOR_GOOD UINT64_MAX /* `until` */

struct ferry_journal_link {
	struct ferry_journal_link *next, *before;
};

enum ferry_journal_kind { FERRY_JOURNAL_PLAN, FERRY_JOURNAL_EXPORT, FERRY_JOURNAL_SUBMISSION };

struct ferry_journal_entry {
	struct ferry_journal_link link; /* first */
	_Atomic uint64_t until;         /* the last submission that needs it */
	enum ferry_journal_kind kind;
	uint32_t domains; /* bit d: the router of domain d needs it */
	union {
		const struct ferry_plan *plan;
		int *descriptors; /* of an export, behind it */
		struct {
			uint64_t position; /* of the ring, behind the record */
			uint64_t number, calls; /* calls: before it */
			uint32_t flag, room;    /* room: bytes behind the entry, where it can be used again, else 0 */
		} submission;
	};
	/* behind it: struct ferry_exported and its descriptors; a submission's record */
};

struct ferry_journal {
	pthread_mutex_t lock;
	/* constant while a router moves the rank's data */
	struct ferry_ring *ring;             /* NULL: none does */
	uint32_t own, others; /* bit d: domain d's router. own: the rank's; others: put into its memory */
	const struct ferry_export_cell *cells; /* what the rank's own router has mapped */
	bool (*is_forgotten)(uint32_t flag); /* whether no graph holds the captured call of that stream flag */
	/* under both locks */
	struct ferry_journal_link list;      /* before the first entry and behind the last */
	struct ferry_journal_link *passed;   /* up to here there is no submission but those of captured calls */
	struct ferry_journal_entry *spare;   /* of submissions that are over, for later ones */
	struct ferry_journal_entry *exports[FERRY_MOST_EXPORTS]; /* what the index names now; NULL: nothing */
	uint64_t number;                     /* of the last submission */
	_Atomic uint64_t calls; /* in all submissions, captured ones apart; read without a lock, relaxed, too */
	uint64_t position;                   /* of the ring, behind the last submission */
};

void ferry_journal_init(struct ferry_journal *journal);

/** A router moves the rank's data from now on; NULL: none any more. The fields of the same names. */
void ferry_journal_open(struct ferry_journal *journal, struct ferry_ring *ring, uint32_t own, uint32_t others,
                        const struct ferry_export_cell *cells, bool (*is_forgotten)(uint32_t flag));

void ferry_journal_end(struct ferry_journal *journal);

/**
 * Adds a plan before routers are given it: of the domains in that mask. *entry: to remove it. Error: ferrySystemError.
 */
ferryResult_t ferry_journal_add_plan(struct ferry_journal *journal, const struct ferry_plan *plan, uint32_t domains,
                                     struct ferry_journal_entry **entry);

/**
 * To be called before the plan is taken back from routers, and before it is freed: after it no thread reads the plan.
 */
void ferry_journal_remove_plan(struct ferry_journal *journal, struct ferry_journal_entry *entry);

/**
 * Adds an export that the rank's router has mapped; a put target goes to other domains' routers, too. The journal
 * closes the descriptors of its pieces: at once if it has that generation already, which may become a put target, or if
 * there is no memory. until: the last submission that names it, or FERRY_JOURNAL_FOR_GOOD.
 */
void ferry_journal_add_export(struct ferry_journal *journal, const struct ferry_exported *exported,
                              const int *descriptors, uint64_t until);

/** Whether the journal has what the index names now. The caller holds the communicator's lock. */
static inline bool ferry_journal_has_export(const struct ferry_journal *journal, uint32_t index)
{
	return journal->exports[index];
}

/** Notes that submissions up to `until` need what the index names now; does nothing if the journal has not got it. */
static inline void ferry_journal_use_export(struct ferry_journal *journal, uint32_t index, uint64_t until)
{
	struct ferry_journal_entry *entry = journal->exports[index];
	if (entry)
		atomic_store_explicit(&entry->until, until, memory_order_relaxed);
}

/** The index names something else from now on, or nothing; submission `last` was the last one to name it. */
void ferry_journal_retire_export(struct ferry_journal *journal, uint32_t index, uint64_t last);

/**
 * Does ferry_ring_write, and keeps a copy of the record. *written: false: the ring has no room. Errors:
 * ferrySystemError, those of ferry_journal_check; then it is not written.
 */
ferryResult_t ferry_journal_write(struct ferry_journal *journal, struct ferry_submission *head, const void *behind,
                                  size_t more, bool *written);

/** No graph holds the captured call of that stream flag any more, so no router gets the call again. */
void ferry_journal_forget(struct ferry_journal *journal, uint32_t flag);

/**
 * Removes all entries that no successor needs any more. lives: the rank has not failed, so the export cells say what
 * its router has mapped. The caller holds the communicator's lock.
 */
void ferry_journal_sweep(struct ferry_journal *journal, bool lives);

/**
 * Whether the ring's own counter agrees with what was written: if another rank of the job has stored less, the router
 * never sees the last calls. Returns ferryInternalError, with the values, if not; ferrySuccess while another thread has
 * the journal's lock.
 */
ferryResult_t ferry_journal_check(struct ferry_journal *journal);

/* What the ended router had taken out of the ring. */
struct ferry_journal_taken {
	uint64_t number; /* of the last submission */
	uint64_t calls;  /* in all up to there, captured ones apart */
};

/* What a journal is replayed to. A result that is not ferrySuccess ends the replay. */
struct ferry_journal_reader {
	ferryResult_t (*plan)(void *context, const struct ferry_plan *plan);
	/* pinned: captured calls or the application name it; the application may have freed it unnoticed */
	ferryResult_t (*exported)(void *context, const struct ferry_exported *exported, const int *descriptors,
	                          bool pinned);
	/* a few records in a row, FERRY_RESUBMIT_MOST bytes at most */
	ferryResult_t (*submissions)(void *context, const void *records, size_t bytes);
};

/**
 * Gives the reader all that the router of that domain needs: plans, then exports, older generations of an index first,
 * then the submissions that were taken out of the ring and are not over. taken: filled in for the router of the rank's
 * domain, else 0. That router must have cleared what it had mapped (ferry_export_cell.mapped) before. When a graph is
 * destroyed from here on, its calls count as released. Calls no driver. Returns the reader's result, or
 * ferrySystemError without memory.
 */
ferryResult_t ferry_journal_replay(struct ferry_journal *journal, uint32_t domain,
                                   const struct ferry_journal_reader *reader, void *context,
                                   struct ferry_journal_taken *taken);

/* What a rank has submitted to the router that moves its data, and how much of it is over. */
struct ferry_submissions {
	struct ferry_ring *ring;       /* NULL: no router moves its data */
	struct ferry_journal *journal; /* constant; has copies of the records, and counts them */
};

/**
 * Writes a record to the ring as soon as that has room. The router takes submissions before their streams come to them,
 * so that is soon. fixed: as in the record. behind: `more` bytes that follow the head. Under the communicator's lock.
 * Error: the rank's, if it fails meanwhile.
 */
ferryResult_t ferry_submissions_write(struct ferry_submissions *submissions, struct ferry_rank *rank,
                                      uint64_t fixed, struct ferry_submission *head, const void *behind,
                                      size_t more);

/** Whether all that was submitted is over; captured calls do not count. */
bool ferry_submissions_idle(const struct ferry_submissions *submissions);

/** Whether the router has taken all that was submitted. */
bool ferry_submissions_taken(const struct ferry_submissions *submissions);

/** Returns when they are idle, or the rank has failed. */
void ferry_submissions_wait(const struct ferry_submissions *submissions, struct ferry_rank *rank);

#endif
