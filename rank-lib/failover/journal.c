/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/failover/journal.h"

#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/wait.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SPARE_ROOM 512u /* bytes of a record whose entry is reused: a collective's, an alltoallv's of ten ranks */

static void *behind_entry(const struct ferry_journal_entry *entry)
{
	return (void *)(entry + 1);
}

static uint64_t until_of(const struct ferry_journal_entry *entry)
{
	return atomic_load_explicit(&entry->until, memory_order_relaxed);
}

static uint64_t over(const struct ferry_journal *journal)
{
	return journal->ring ? atomic_load_explicit(&journal->ring->over, memory_order_acquire) : 0;
}

void ferry_journal_init(struct ferry_journal *journal)
{
	*journal = (struct ferry_journal){.ring = NULL};
	journal->list.next = journal->list.before = journal->passed = &journal->list;
	pthread_mutex_init(&journal->lock, NULL);
}

void ferry_journal_open(struct ferry_journal *journal, struct ferry_ring *ring, uint32_t own, uint32_t others,
                        const struct ferry_export_cell *cells, bool (*is_forgotten)(uint32_t flag))
{
	journal->ring = ring;
	journal->own = own;
	journal->others = others;
	journal->cells = cells;
	journal->is_forgotten = is_forgotten;
}

/* ---- the list; under both locks ---- */

static struct ferry_journal_entry *entry_at(const struct ferry_journal_link *link)
{
	return (struct ferry_journal_entry *)link;
}

static void append(struct ferry_journal *journal, struct ferry_journal_entry *entry)
{
	entry->link = (struct ferry_journal_link){.next = &journal->list, .before = journal->list.before};
	journal->list.before->next = &entry->link;
	journal->list.before = &entry->link;
}

static struct ferry_journal_entry *make(enum ferry_journal_kind kind, uint32_t domains, uint64_t until, size_t bytes)
{
	struct ferry_journal_entry *entry = malloc(sizeof *entry + bytes);
	if (!entry)
		return NULL;
	*entry = (struct ferry_journal_entry){.kind = kind, .domains = domains, .until = until};
	return entry;
}

static void close_all(const int *descriptors, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		close(descriptors[i]);
}

static bool is_current(const struct ferry_journal *journal, const struct ferry_journal_entry *entry)
{
	const struct ferry_exported *exported = behind_entry(entry);
	return journal->exports[exported->index] == entry;
}

static void free_entry(struct ferry_journal *journal, struct ferry_journal_entry *entry)
{
	if (entry->kind == FERRY_JOURNAL_SUBMISSION && entry->submission.room) {
		entry->link.next = journal->spare ? &journal->spare->link : NULL;
		journal->spare = entry;
		return;
	}
	if (entry->kind == FERRY_JOURNAL_EXPORT) {
		const struct ferry_exported *exported = behind_entry(entry);
		close_all(entry->descriptors, exported->npieces);
		if (is_current(journal, entry))
			journal->exports[exported->index] = NULL;
	}
	free(entry);
}

static void drop(struct ferry_journal *journal, struct ferry_journal_entry *entry)
{
	if (journal->passed == &entry->link)
		journal->passed = entry->link.before;
	entry->link.before->next = entry->link.next;
	entry->link.next->before = entry->link.before;
	free_entry(journal, entry);
}

static bool is_mapped(const struct ferry_journal *journal, const struct ferry_journal_entry *entry)
{
	const struct ferry_exported *exported = behind_entry(entry);
	return entry->kind == FERRY_JOURNAL_EXPORT && is_current(journal, entry) &&
	       atomic_load_explicit(&journal->cells[exported->index].mapped, memory_order_relaxed) ==
	               exported->generation;
}

void ferry_journal_sweep(struct ferry_journal *journal, bool lives)
{
	pthread_mutex_lock(&journal->lock);
	uint64_t last = over(journal);
	for (struct ferry_journal_link *link = journal->list.next, *next; link != &journal->list; link = next) {
		next = link->next;
		if (until_of(entry_at(link)) <= last && !(lives && is_mapped(journal, entry_at(link))))
			drop(journal, entry_at(link));
	}
	pthread_mutex_unlock(&journal->lock);
}

void ferry_journal_end(struct ferry_journal *journal)
{
	while (journal->list.next != &journal->list)
		drop(journal, entry_at(journal->list.next));
	while (journal->spare) {
		struct ferry_journal_entry *spare = journal->spare;
		journal->spare = entry_at(spare->link.next);
		free(spare);
	}
	pthread_mutex_destroy(&journal->lock);
}

/* ---- plans ---- */

ferryResult_t ferry_journal_add_plan(struct ferry_journal *journal, const struct ferry_plan *plan, uint32_t domains,
                                     struct ferry_journal_entry **made)
{
	struct ferry_journal_entry *entry = make(FERRY_JOURNAL_PLAN, domains, FERRY_JOURNAL_FOR_GOOD, 0);
	if (!entry)
		return ferry_fail(ferrySystemError, "no memory to keep a plan for the next router");
	entry->plan = plan;
	pthread_mutex_lock(&journal->lock);
	append(journal, entry);
	pthread_mutex_unlock(&journal->lock);
	*made = entry;
	return ferrySuccess;
}

void ferry_journal_remove_plan(struct ferry_journal *journal, struct ferry_journal_entry *entry)
{
	pthread_mutex_lock(&journal->lock);
	drop(journal, entry);
	pthread_mutex_unlock(&journal->lock);
}

/* ---- exports ---- */

static uint32_t domains_of(const struct ferry_journal *journal, const struct ferry_exported *exported)
{
	return journal->own | (exported->put_target ? journal->others : 0);
}

static struct ferry_journal_entry *make_export(const struct ferry_journal *journal,
                                               const struct ferry_exported *exported, const int *descriptors,
                                               uint64_t until)
{
	size_t bytes = exported->npieces * sizeof *descriptors;
	struct ferry_journal_entry *entry = make(FERRY_JOURNAL_EXPORT, domains_of(journal, exported), until,
	                                         sizeof *exported + bytes);
	if (!entry)
		return NULL;
	memcpy(behind_entry(entry), exported, ferry_exported_size(exported));
	entry->descriptors = (int *)((struct ferry_exported *)behind_entry(entry) + 1);
	if (bytes)
		memcpy(entry->descriptors, descriptors, bytes);
	return entry;
}

void ferry_journal_add_export(struct ferry_journal *journal, const struct ferry_exported *exported,
                              const int *descriptors, uint64_t until)
{
	pthread_mutex_lock(&journal->lock);
	struct ferry_journal_entry *entry = journal->exports[exported->index];
	struct ferry_exported *there = entry ? behind_entry(entry) : NULL;
	if (there && there->generation == exported->generation) {
		there->put_target |= exported->put_target;
		entry->domains = domains_of(journal, there);
		close_all(descriptors, exported->npieces);
	} else if ((entry = make_export(journal, exported, descriptors, until))) {
		append(journal, entry);
		journal->exports[exported->index] = entry;
	} else {
		close_all(descriptors, exported->npieces);
	}
	pthread_mutex_unlock(&journal->lock);
}

void ferry_journal_retire_export(struct ferry_journal *journal, uint32_t index, uint64_t last)
{
	struct ferry_journal_entry *entry = journal->exports[index];
	if (!entry)
		return;
	pthread_mutex_lock(&journal->lock);
	journal->exports[index] = NULL;
	atomic_store_explicit(&entry->until, last, memory_order_relaxed);
	if (last <= over(journal))
		drop(journal, entry);
	pthread_mutex_unlock(&journal->lock);
}

/* ---- submissions ---- */

static const struct ferry_submission *head_of(const struct ferry_journal_entry *entry)
{
	return behind_entry(entry);
}

/* Each entry is passed once: submissions are over in the order of their numbers. */
static void drop_over(struct ferry_journal *journal)
{
	uint64_t last = over(journal);
	for (struct ferry_journal_link *link; (link = journal->passed->next) != &journal->list;) {
		struct ferry_journal_entry *entry = entry_at(link);
		uint64_t until = until_of(entry);
		if (entry->kind != FERRY_JOURNAL_SUBMISSION || until == FERRY_JOURNAL_FOR_GOOD)
			journal->passed = link;
		else if (until <= last)
			drop(journal, entry);
		else
			return;
	}
}

/* Under the lock. */
static ferryResult_t check(const struct ferry_journal *journal)
{
	uint64_t written = atomic_load_explicit(&journal->ring->written, memory_order_relaxed);
	if (written == journal->position)
		return ferrySuccess;
	return ferry_fail(ferryInternalError,
	                  "the arena says that the rank has submitted %llu bytes, where it has submitted %llu",
	                  (unsigned long long)written, (unsigned long long)journal->position);
}

ferryResult_t ferry_journal_check(struct ferry_journal *journal)
{
	if (pthread_mutex_trylock(&journal->lock))
		return ferrySuccess;
	ferryResult_t result = check(journal);
	pthread_mutex_unlock(&journal->lock);
	return result;
}

/* Takes an entry with room for such a record. NULL: no memory. */
static struct ferry_journal_entry *take_spare(struct ferry_journal *journal, size_t bytes)
{
	struct ferry_journal_entry *entry = journal->spare;
	uint32_t room = bytes <= SPARE_ROOM ? SPARE_ROOM : 0;
	if (room && entry) {
		journal->spare = entry_at(entry->link.next);
		return entry;
	}
	entry = make(FERRY_JOURNAL_SUBMISSION, journal->own, 0, room ? room : FERRY_SUBMISSION_MOST);
	if (entry)
		entry->submission.room = room;
	return entry;
}

/* Keeps a copy of the record, which has been written to the ring. */
static void keep(struct ferry_journal *journal, const struct ferry_submission *head, const void *behind, size_t more,
                 struct ferry_journal_entry *entry)
{
	char *record = behind_entry(entry);
	bool captured = head->flags & FERRY_SUBMIT_CAPTURED;
	uint64_t calls = atomic_load_explicit(&journal->calls, memory_order_relaxed);
	journal->position = atomic_load_explicit(&journal->ring->written, memory_order_relaxed);
	journal->number = head->number;
	entry->submission.position = journal->position;
	entry->submission.number = head->number;
	entry->submission.calls = calls;
	entry->submission.flag = head->flag;
	atomic_store_explicit(&entry->until, captured ? FERRY_JOURNAL_FOR_GOOD : head->number, memory_order_relaxed);
	memcpy(record, head, sizeof *head);
	if (more)
		memcpy(record + sizeof *head, behind, more);
	memset(record + sizeof *head + more, 0, head->bytes - sizeof *head - more);
	calls += !(head->flags & (FERRY_SUBMIT_MORE | FERRY_SUBMIT_CAPTURED));
	atomic_store_explicit(&journal->calls, calls, memory_order_relaxed);
	append(journal, entry);
}

ferryResult_t ferry_journal_write(struct ferry_journal *journal, struct ferry_submission *head, const void *behind,
                                  size_t more, bool *written)
{
	*written = false;
	pthread_mutex_lock(&journal->lock);
	drop_over(journal);
	struct ferry_journal_entry *entry = take_spare(journal, sizeof *head + more + 64);
	ferryResult_t result = entry ? check(journal)
	                             : ferry_fail(ferrySystemError, "no memory for a submission's copy");
	*written = !result && ferry_ring_write(journal->ring, head, behind, more);
	if (*written)
		keep(journal, head, behind, more, entry);
	else if (entry)
		free_entry(journal, entry);
	pthread_mutex_unlock(&journal->lock);
	return result;
}

void ferry_journal_forget(struct ferry_journal *journal, uint32_t flag)
{
	pthread_mutex_lock(&journal->lock);
	for (struct ferry_journal_link *link = journal->list.next; link != &journal->list; link = link->next) {
		struct ferry_journal_entry *entry = entry_at(link);
		if (entry->kind == FERRY_JOURNAL_SUBMISSION && entry->submission.flag == flag &&
		    head_of(entry)->flags & FERRY_SUBMIT_CAPTURED)
			atomic_store_explicit(&entry->until, entry->submission.number, memory_order_relaxed);
	}
	pthread_mutex_unlock(&journal->lock);
}

/* ---- replay ---- */

struct replay {
	struct ferry_journal *journal;
	const struct ferry_journal_reader *reader;
	void *context;
	uint64_t over, ended; /* ended: bytes of the ring that have been taken */
	char *records;        /* room for FERRY_RESUBMIT_MOST bytes */
	size_t bytes;         /* of records that the reader has not got yet */
	const struct ferry_journal_entry *before; /* the submission that was read last */
};

/* A router gets all records of a group of captured messages, or none, even if the graph ends meanwhile. */
static bool is_wanted(const struct replay *replay, const struct ferry_journal_entry *entry)
{
	if (!(head_of(entry)->flags & FERRY_SUBMIT_CAPTURED) ||
	    (replay->before && head_of(replay->before)->flags & FERRY_SUBMIT_MORE))
		return true;
	return until_of(entry) == FERRY_JOURNAL_FOR_GOOD && !replay->journal->is_forgotten(entry->submission.flag);
}

static ferryResult_t flush(struct replay *replay)
{
	size_t bytes = replay->bytes;
	replay->bytes = 0;
	return bytes ? replay->reader->submissions(replay->context, replay->records, bytes) : ferrySuccess;
}

static ferryResult_t read_submission(struct replay *replay, const struct ferry_journal_entry *entry)
{
	const struct ferry_submission *head = head_of(entry);
	ferryResult_t result = ferrySuccess;
	if (entry->submission.position > replay->ended || !is_wanted(replay, entry))
		return ferrySuccess;
	replay->before = entry;
	if (replay->bytes + head->bytes > FERRY_RESUBMIT_MOST)
		result = flush(replay);
	memcpy(replay->records + replay->bytes, head, head->bytes);
	replay->bytes += head->bytes;
	return result;
}

static ferryResult_t read_entry(struct replay *replay, const struct ferry_journal_entry *entry)
{
	uint64_t until = until_of(entry);
	if (until <= replay->over)
		return ferrySuccess;
	switch (entry->kind) {
	case FERRY_JOURNAL_PLAN:
		return replay->reader->plan(replay->context, entry->plan);
	case FERRY_JOURNAL_EXPORT:
		return replay->reader->exported(replay->context, behind_entry(entry), entry->descriptors,
		                                until == FERRY_JOURNAL_FOR_GOOD);
	default:
		return read_submission(replay, entry);
	}
}

/* Under the journal's lock. */
static void find_taken(const struct ferry_journal *journal, uint64_t ended, struct ferry_journal_taken *taken)
{
	*taken = (struct ferry_journal_taken){.number = journal->number,
	                                      .calls = atomic_load_explicit(&journal->calls, memory_order_relaxed)};
	for (struct ferry_journal_link *link = journal->list.next; link != &journal->list; link = link->next) {
		const struct ferry_journal_entry *entry = entry_at(link);
		if (entry->kind != FERRY_JOURNAL_SUBMISSION || entry->submission.position <= ended)
			continue;
		*taken = (struct ferry_journal_taken){.number = entry->submission.number - 1,
		                                      .calls = entry->submission.calls};
		return;
	}
}

static ferryResult_t read_all(struct replay *replay, uint32_t domain)
{
	struct ferry_journal *journal = replay->journal;
	ferryResult_t result = ferrySuccess;
	/* the order in which routers get them */
	for (enum ferry_journal_kind kind = FERRY_JOURNAL_PLAN; kind <= FERRY_JOURNAL_SUBMISSION; kind++)
		for (struct ferry_journal_link *link = journal->list.next; link != &journal->list && !result;
		     link = link->next)
			if (entry_at(link)->kind == kind && entry_at(link)->domains >> domain & 1)
				result = read_entry(replay, entry_at(link));
	return result ? result : flush(replay);
}

ferryResult_t ferry_journal_replay(struct ferry_journal *journal, uint32_t domain,
                                   const struct ferry_journal_reader *reader, void *context,
                                   struct ferry_journal_taken *taken)
{
	struct replay replay = {.journal = journal, .reader = reader, .context = context};
	bool own = journal->ring && journal->own >> domain & 1;
	*taken = (struct ferry_journal_taken){.number = 0};
	if (own && !(replay.records = malloc(FERRY_RESUBMIT_MOST)))
		return ferry_fail(ferrySystemError, "no memory to hand submissions over");
	pthread_mutex_lock(&journal->lock);
	/* either a thread that names an export sees the cleared cells, or this one sees its `until` */
	ferry_full_fence();
	replay.over = over(journal);
	if (own) {
		replay.ended = atomic_load_explicit(&journal->ring->taken, memory_order_acquire);
		find_taken(journal, replay.ended, taken);
	}
	ferryResult_t result = read_all(&replay, domain);
	pthread_mutex_unlock(&journal->lock);
	free(replay.records);
	return result;
}

/* ---- the rank's side of the ring ---- */

bool ferry_submissions_idle(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->ended, memory_order_acquire) ==
	       atomic_load_explicit(&submissions->journal->calls, memory_order_relaxed);
}

bool ferry_submissions_taken(const struct ferry_submissions *submissions)
{
	return atomic_load_explicit(&submissions->ring->taken, memory_order_acquire) ==
	       atomic_load_explicit(&submissions->ring->written, memory_order_relaxed);
}

ferryResult_t ferry_submissions_write(struct ferry_submissions *submissions, struct ferry_rank *rank,
                                      uint64_t fixed, struct ferry_submission *head, const void *behind,
                                      size_t more)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	head->number = submissions->journal->number + 1;
	head->fixed = fixed;
	bool written;
	ferryResult_t result;
	while (!(result = ferry_journal_write(submissions->journal, head, behind, more, &written)) && !written) {
		ferry_wake(&rank->shared, 1ull << rank->self, 0, 0); /* the router's thread that makes room may be
		                                                        asleep */
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_rank_failed(rank)) {
			ferry_doorbell_cancel(bell);
			return ferry_rank_report_failure(rank);
		}
		if (ferry_submissions_taken(submissions))
			ferry_doorbell_cancel(bell);
		else
			ferry_doorbell_wait(bell, ticket, 100000);
	}
	return result;
}

void ferry_submissions_wait(const struct ferry_submissions *submissions, struct ferry_rank *rank)
{
	struct ferry_doorbell *bell = &ferry_rank_line(&rank->shared, (uint32_t)rank->self)->app;
	while (1) {
		uint32_t ticket = ferry_doorbell_prepare(bell);
		if (ferry_submissions_idle(submissions) || ferry_rank_failed(rank)) {
			ferry_doorbell_cancel(bell);
			return;
		}
		ferry_doorbell_wait(bell, ticket, 100000);
	}
}
