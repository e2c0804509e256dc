/* SPDX-License-Identifier: Apache-2.0 */
#include "router/mapper.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/wait.h"
#include "router/idle_imports.h"
#include "router/job_losses.h"
#include "router/new_imports.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEFT_NS  10000000 /* how soon it is looked whether the lanes have released what an ended job has left */
#define CLEAR_NS 5000000  /* for so long it is waited for lanes that are about to say that a call has ended */

#define LET_GO_NS  100000000 /* for so long it is waited for who holds what is to be forgotten; */
#define LET_GO_LOOK_NS 100000 /* and so often it is looked meanwhile */

#define MOST_AHEAD 64 /* so many FORGETs in a row go before what has waited for longer */

/* FORGOTTEN: but for the answer, which waits until it is unmapped. */
enum request_kind { NOTHING, JOIN, EXPORT, FORGET, FORGOTTEN };

/* A rank, and what it asks for: under the mapper's lock, but that the mapper alone may touch a request that it works
 * on. */
struct ferry_mapped_rank {
	struct ferry_imports *imports;
	enum request_kind kind;
	uint64_t number; /* of its request among all ranks' */
	int client;      /* where the answer goes: a copy */
	uint32_t index;
	bool unmapped;  /* FORGET: the answer says that it is */
	uint64_t until; /* FORGOTTEN: then it is given all the same */
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES]; /* exported.npieces many */
	pthread_mutex_t welcoming;          /* held while the job welcomes it, and by who takes the job away */
	struct ferry_job *job;              /* NULL once that has ended; under `welcoming` */
	bool lands;                         /* what it has exported is to be mapped for others; under the lock */
	bool left;                          /* under the lock */
	struct ferry_mapped_rank *next;
};

/* ---- the mapper's thread ---- */

/* Unmaps all of any rank that nobody uses. True if some was. Ranks are put in at the head and taken out here alone. */
static bool clear_ranks(struct ferry_mapper *mapper)
{
	bool some = false;
	pthread_mutex_lock(&mapper->lock);
	struct ferry_mapped_rank *rank = mapper->ranks;
	pthread_mutex_unlock(&mapper->lock);
	for (; rank; rank = rank->next)
		some |= ferry_idle_imports_clear(rank->imports);
	return some;
}

/*
 * The driver maps no memory beside what has been freed and was at its place, in whichever job that is mapped: nobody
 * uses that any more, though its lane may still be about to say so.
 */
static ferryResult_t insist(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank,
                            ferryResult_t (*map)(struct ferry_mapped_rank *rank))
{
	uint64_t until = ferry_now_ns() + CLEAR_NS;
	ferryResult_t result;
	while ((result = map(rank)) == ferryRefused && (clear_ranks(mapper) || ferry_now_ns() < until))
		sched_yield();
	return result;
}

static ferryResult_t map_exported(struct ferry_mapped_rank *rank)
{
	return ferry_new_imports_map(rank->imports, &rank->exported, rank->descriptors);
}

static ferryResult_t map_later(struct ferry_mapped_rank *rank)
{
	return ferry_new_imports_land_later(rank->imports);
}

static ferryResult_t map_export(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	ferryResult_t result = insist(mapper, rank, map_exported);
	for (uint32_t i = 0; i < rank->exported.npieces; i++)
		close(rank->descriptors[i]);
	return result;
}

static ferryResult_t do_request(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	if (rank->kind == EXPORT)
		return map_export(mapper, rank);
	if (rank->kind == JOIN)
		return ferry_imports_open(rank->imports, &mapper->gpus);
	ferry_imports_forget(rank->imports, rank->index);
	return ferrySuccess;
}

static void welcome(struct ferry_mapped_rank *rank, int client, ferryResult_t result)
{
	if (result)
		ferry_log(FERRY_LOG_INFO, "rank %u moves its data itself: %s", rank->imports->rank,
		          ferry_last_message());
	const char *why = result ? ferry_last_message() : "";
	pthread_mutex_lock(&rank->welcoming);
	if (rank->job)
		ferry_job_welcome(rank->job, rank->imports->rank, client, result ? 0 : FERRY_ATTACH_MAPPED, why);
	pthread_mutex_unlock(&rank->welcoming);
}

/* Who has the answer may ask for the next thing at once: the request is over before it is given. */
static void serve(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	bool joins = rank->kind == JOIN;
	int client = rank->client;
	ferryResult_t result = do_request(mapper, rank);
	bool waits = rank->kind == FORGET && rank->unmapped && ferry_imports_keep(rank->imports, rank->index);
	pthread_mutex_lock(&mapper->lock);
	rank->until = ferry_now_ns() + LET_GO_NS;
	rank->kind = waits ? FORGOTTEN : NOTHING;
	pthread_mutex_unlock(&mapper->lock);
	if (waits)
		return;
	if (joins)
		welcome(rank, client, result);
	else
		ferry_attach_reply(client, result, result ? ferry_last_message() : "", -1);
	close(client);
}

static void land(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	ferryResult_t result;
	while ((result = insist(mapper, rank, map_later)) && result != ferrySystemError &&
	       ferry_new_imports_do_without(rank->imports))
		ferry_forget_message();
	pthread_mutex_lock(&rank->welcoming);
	if (result && rank->job)
		ferry_job_fail(rank->job, result, ferry_last_message());
	pthread_mutex_unlock(&rank->welcoming);
	pthread_mutex_lock(&mapper->lock);
	rank->lands = false;
	pthread_cond_broadcast(&mapper->landed);
	pthread_mutex_unlock(&mapper->lock);
}

/* Under the lock. */
static struct ferry_mapped_rank *next_landing(struct ferry_mapper *mapper)
{
	struct ferry_mapped_rank *rank = mapper->ranks;
	while (rank && !rank->lands)
		rank = rank->next;
	return rank;
}

/* Under the lock: who has waited longest, of those that FORGET or of the others. */
static struct ferry_mapped_rank *longest_waiting(struct ferry_mapper *mapper, bool forgets)
{
	struct ferry_mapped_rank *first = NULL;
	for (struct ferry_mapped_rank *rank = mapper->ranks; rank; rank = rank->next) {
		bool asks = forgets ? rank->kind == FORGET : rank->kind == JOIN || rank->kind == EXPORT;
		if (asks && (!first || rank->number < first->number))
			first = rank;
	}
	return first;
}

static int64_t sooner(int64_t a, int64_t b)
{
	return a < 0 ? b : b < 0 || a < b ? a : b;
}

/* FORGOTTEN: when to look again at what the rank waits for; -1: it has its answer. */
static int64_t answer_forgotten(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank, bool left)
{
	if (!left && ferry_imports_keep(rank->imports, rank->index) && ferry_now_ns() < rank->until)
		return LET_GO_LOOK_NS;
	int client = rank->client;
	pthread_mutex_lock(&mapper->lock);
	rank->kind = NOTHING;
	pthread_mutex_unlock(&mapper->lock);
	ferry_attach_reply(client, ferrySuccess, "", -1);
	close(client);
	return -1;
}

/* Under the lock, which it lets go of: the ranks stay in the list meanwhile, as the mapper alone takes them out. */
static int64_t look_after_ranks(struct ferry_mapper *mapper)
{
	int64_t next = -1;
	for (struct ferry_mapped_rank **link = &mapper->ranks; *link;) {
		struct ferry_mapped_rank *rank = *link;
		bool left = rank->left, waits = rank->kind == FORGOTTEN;
		pthread_mutex_unlock(&mapper->lock);
		int64_t due = left ? LEFT_NS : ferry_idle_imports_sweep(rank->imports);
		if (waits)
			due = sooner(due, answer_forgotten(mapper, rank, left));
		bool gone = left && ferry_imports_free(rank->imports);
		if (gone)
			due = -1;
		pthread_mutex_lock(&mapper->lock);
		next = sooner(next, due);
		if (!gone) {
			link = &rank->next;
			continue;
		}
		/* New ones are put in at the head, so the link to this one may have moved. */
		for (link = &mapper->ranks; *link != rank;)
			link = &(*link)->next;
		*link = rank->next;
		pthread_mutex_destroy(&rank->welcoming);
		free(rank);
	}
	return next;
}

static void wait_until_asked(struct ferry_mapper *mapper, int64_t nanoseconds)
{
	if (nanoseconds < 0) {
		pthread_cond_wait(&mapper->asked, &mapper->lock);
		return;
	}
	struct timespec until;
	clock_gettime(CLOCK_MONOTONIC, &until);
	uint64_t total = (uint64_t)until.tv_nsec + (uint64_t)nanoseconds;
	until.tv_sec += (time_t)(total / 1000000000u);
	until.tv_nsec = (long)(total % 1000000000u);
	pthread_cond_timedwait(&mapper->asked, &mapper->lock, &until);
}

/* Under the lock, which it lets go of meanwhile. Until when there is nothing to be done unasked; UINT64_MAX: for ever.
 */
static uint64_t look_after(struct ferry_mapper *mapper)
{
	uint64_t now = ferry_now_ns();
	mapper->changed = false;
	int64_t next = look_after_ranks(mapper);
	pthread_mutex_unlock(&mapper->lock);
	next = sooner(next, ferry_gpus_rest(&mapper->gpus, false));
	pthread_mutex_lock(&mapper->lock);
	return next < 0 ? UINT64_MAX : now + (uint64_t)next;
}

/*
 * Under the lock, which it lets go of: one thing that somebody waits for. False: there is none.
 *
 * FORGETs go first: a program waits for the answer in cudaFree, and what else there is may take a second. Nobody waits
 * for ever behind them, as no more than MOST_AHEAD go in a row, of a fraction of a millisecond each; and of requests of
 * one kind the oldest is next, of which a rank has one at a time.
 */
static bool serve_next(struct ferry_mapper *mapper)
{
	struct ferry_mapped_rank *forgets = longest_waiting(mapper, true), *asks = longest_waiting(mapper, false);
	struct ferry_mapped_rank *lands = next_landing(mapper);
	bool others = asks || lands, ahead = forgets && (!others || mapper->ahead < MOST_AHEAD);
	if (!forgets && !others)
		return false;
	mapper->ahead = ahead && others ? mapper->ahead + 1 : 0;
	pthread_mutex_unlock(&mapper->lock);
	if (ahead)
		serve(mapper, forgets);
	else if (asks)
		serve(mapper, asks);
	else
		land(mapper, lands);
	pthread_mutex_lock(&mapper->lock);
	return true;
}

/* Under the lock: whether a rank waits for what was in use. */
static bool is_one_forgotten(const struct ferry_mapper *mapper)
{
	const struct ferry_mapped_rank *rank = mapper->ranks;
	while (rank && rank->kind != FORGOTTEN)
		rank = rank->next;
	return rank;
}

static void *mapper_main(void *argument)
{
	struct ferry_mapper *mapper = argument;
	uint64_t due = 0;
	pthread_mutex_lock(&mapper->lock);
	while (!mapper->stopping || mapper->ranks) {
		bool served = serve_next(mapper);
		if (served && !is_one_forgotten(mapper)) {
			due = 0;
			continue;
		}
		uint64_t now = ferry_now_ns();
		if (served || mapper->changed || now >= due)
			due = look_after(mapper);
		else
			wait_until_asked(mapper, due == UINT64_MAX ? -1 : (int64_t)(due - now));
	}
	pthread_mutex_unlock(&mapper->lock);
	ferry_gpus_rest(&mapper->gpus, true);
	return NULL;
}

/* ---- contexts that are gone ---- */

/*
 * By whoever works in the context, a lane or the mapper: with no lock of the mapper's, as nobody asks a driver under
 * one. Others that find it wait here for the end of the process.
 */
static void on_lost(struct ferry_gpus *gpus, const uint8_t *uuid, const char *why)
{
	struct ferry_mapper *mapper = (struct ferry_mapper *)((char *)gpus - offsetof(struct ferry_mapper, gpus));
	pthread_mutex_lock(&mapper->losing);
	pthread_mutex_lock(&mapper->lock);
	for (struct ferry_mapped_rank *rank = mapper->ranks; rank; rank = rank->next) {
		const struct ferry_imports *imports = rank->imports;
		/* of one that has left the imports may be about to be freed */
		if (rank->left || imports->guest || memcmp(imports->uuid, uuid, sizeof imports->uuid))
			continue;
		pthread_mutex_lock(&rank->welcoming);
		if (rank->job)
			ferry_job_losses_add(rank->job, imports->rank, why);
		pthread_mutex_unlock(&rank->welcoming);
	}
	mapper->lost(why);
}

/* ---- the connection thread ---- */

void ferry_mapper_init(struct ferry_mapper *mapper, void (*lost)(const char *why))
{
	pthread_condattr_t monotonic;
	*mapper = (struct ferry_mapper){.gpus.lost = lost ? on_lost : NULL, .lost = lost};
	pthread_mutex_init(&mapper->losing, NULL);
	pthread_mutex_init(&mapper->lock, NULL);
	pthread_mutex_init(&mapper->gpus.lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&mapper->asked, &monotonic);
	pthread_cond_init(&mapper->landed, NULL);
	pthread_condattr_destroy(&monotonic);
}

void ferry_mapper_stop(struct ferry_mapper *mapper)
{
	if (mapper->running) {
		pthread_mutex_lock(&mapper->lock);
		mapper->stopping = true;
		pthread_cond_signal(&mapper->asked);
		pthread_mutex_unlock(&mapper->lock);
		pthread_join(mapper->thread, NULL);
	}
	pthread_cond_destroy(&mapper->landed);
	pthread_cond_destroy(&mapper->asked);
	pthread_mutex_destroy(&mapper->gpus.lock);
	pthread_mutex_destroy(&mapper->losing);
	pthread_mutex_destroy(&mapper->lock);
}

static ferryResult_t start(struct ferry_mapper *mapper)
{
	if (mapper->running)
		return ferrySuccess;
	int refused = pthread_create(&mapper->thread, NULL, mapper_main, mapper);
	if (refused)
		return ferry_fail(ferrySystemError, "a thread that maps ranks' buffers: %s%s", strerror(refused),
		                  ferry_ulimit_threads_hint(refused));
	mapper->running = true;
	return ferrySuccess;
}

static ferryResult_t copy_client(int client, int *copy)
{
	*copy = fcntl(client, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	return *copy >= 0 ? ferrySuccess
	                  : ferry_fail(ferrySystemError, "a descriptor to answer a rank with: %s", strerror(errno));
}

/* kind: JOIN, to be answered on `client`; or NOTHING, of a guest. */
static struct ferry_mapped_rank *rank_new(struct ferry_job *job, const struct ferry_attach_message *message,
                                          enum request_kind kind, int client)
{
	struct ferry_mapped_rank *rank = calloc(1, sizeof *rank);
	struct ferry_export_cell *cells =
	        job->shared.arenas[job->domain].export_cells + (size_t)message->rank * FERRY_MOST_EXPORTS;
	if (rank)
		rank->imports = kind == JOIN ? ferry_imports_new(message->rank, message->gpu, cells)
		                             : ferry_imports_new_guest(message->rank, message->gpu, cells);
	if (!rank || !rank->imports) {
		free(rank);
		return NULL;
	}
	/*
	 * What the router before this one had mapped. Before the rank is answered, which exports again what it needs.
	 */
	for (uint32_t i = 0; job->brought && i < FERRY_MOST_EXPORTS; i++)
		atomic_store_explicit(&cells[i].mapped, 0, memory_order_relaxed);
	if (job->brought)
		ferry_imports_await_others(rank->imports);
	if (job->brought && kind == NOTHING) /* it exports before the job is ready: what that router put into */
		ferry_imports_follow(rank->imports, &ferry_rank_ring(&job->shared, message->rank)->over);
	ferry_full_fence(); /* before who is answered looks at what is used */
	rank->kind = kind;
	rank->client = client;
	rank->job = job;
	pthread_mutex_init(&rank->welcoming, NULL);
	return rank;
}

static ferryResult_t add(struct ferry_mapper *mapper, struct ferry_job *job,
                         const struct ferry_attach_message *message, enum request_kind kind, int client)
{
	struct ferry_mapped_rank *rank = rank_new(job, message, kind, client);
	if (!rank)
		return ferry_fail(ferrySystemError, "no memory for what rank %u exports", message->rank);
	job->imports[message->rank] = rank->imports;
	pthread_mutex_lock(&mapper->lock);
	rank->number = ++mapper->requests;
	rank->next = mapper->ranks;
	mapper->ranks = rank;
	pthread_cond_signal(&mapper->asked);
	pthread_mutex_unlock(&mapper->lock);
	return ferrySuccess;
}

void ferry_mapper_look(struct ferry_mapper *mapper)
{
	pthread_mutex_lock(&mapper->lock);
	mapper->changed = true;
	pthread_cond_signal(&mapper->asked);
	pthread_mutex_unlock(&mapper->lock);
}

ferryResult_t ferry_mapper_join(struct ferry_mapper *mapper, struct ferry_job *job,
                                const struct ferry_attach_message *message, int client)
{
	int copy;
	ferryResult_t result = start(mapper);
	if (!result)
		result = copy_client(client, &copy);
	if (!result && (result = add(mapper, job, message, JOIN, copy)))
		close(copy);
	return result;
}

ferryResult_t ferry_mapper_join_guest(struct ferry_mapper *mapper, struct ferry_job *job,
                                      const struct ferry_attach_message *message)
{
	ferryResult_t result = start(mapper);
	return result ? result : add(mapper, job, message, NOTHING, -1);
}

/* Under the lock. */
static ferryResult_t find_free(struct ferry_mapper *mapper, const struct ferry_imports *imports,
                               struct ferry_mapped_rank **found)
{
	struct ferry_mapped_rank *rank = imports ? mapper->ranks : NULL;
	while (rank && rank->imports != imports)
		rank = rank->next;
	if (rank && rank->kind != NOTHING)
		return ferry_fail(ferryInvalidUsage, "rank %u asks for more before it is answered", imports->rank);
	if (!rank || !ferry_imports_are_open(imports))
		return ferry_fail(ferryInvalidUsage, "EXPORT or FORGET of a rank that has not attached as mapped");
	*found = rank;
	return ferrySuccess;
}

ferryResult_t ferry_mapper_export(struct ferry_mapper *mapper, struct ferry_imports *imports,
                                  const struct ferry_exported *exported, int *descriptors, int client)
{
	struct ferry_mapped_rank *rank = NULL;
	int copy;
	ferryResult_t result = copy_client(client, &copy);
	if (result)
		return result;
	pthread_mutex_lock(&mapper->lock);
	if (!(result = find_free(mapper, imports, &rank))) {
		rank->exported = *exported;
		for (uint32_t i = 0; i < exported->npieces; i++) {
			rank->descriptors[i] = descriptors[i];
			descriptors[i] = -1;
		}
		rank->client = copy;
		rank->kind = EXPORT;
		rank->number = ++mapper->requests;
		pthread_cond_signal(&mapper->asked);
	}
	pthread_mutex_unlock(&mapper->lock);
	if (result)
		close(copy);
	return result;
}

ferryResult_t ferry_mapper_forget(struct ferry_mapper *mapper, struct ferry_imports *imports, uint32_t index,
                                  bool unmapped, int client)
{
	struct ferry_mapped_rank *rank = NULL;
	int copy;
	ferryResult_t result = copy_client(client, &copy);
	if (result)
		return result;
	pthread_mutex_lock(&mapper->lock);
	if (!(result = find_free(mapper, imports, &rank))) {
		rank->index = index;
		rank->unmapped = unmapped;
		rank->client = copy;
		rank->kind = FORGET;
		rank->number = ++mapper->requests;
		pthread_cond_signal(&mapper->asked);
	}
	pthread_mutex_unlock(&mapper->lock);
	if (result)
		close(copy);
	return result;
}

/* Under the lock: whether something of the job's is to be mapped for others. ask: so it is. */
static bool lands(struct ferry_mapper *mapper, const struct ferry_job *job, bool ask)
{
	bool any = false;
	for (struct ferry_mapped_rank *rank = mapper->ranks; rank; rank = rank->next) {
		if (rank->left || job->imports[rank->imports->rank] != rank->imports)
			continue;
		rank->lands |= ask;
		any |= rank->lands;
	}
	return any;
}

void ferry_mapper_land(struct ferry_mapper *mapper, const struct ferry_job *job)
{
	pthread_mutex_lock(&mapper->lock);
	lands(mapper, job, true);
	pthread_cond_signal(&mapper->asked);
	while (lands(mapper, job, false))
		pthread_cond_wait(&mapper->landed, &mapper->lock);
	pthread_mutex_unlock(&mapper->lock);
}

static void leave(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	pthread_mutex_lock(&rank->welcoming);
	rank->job = NULL;
	pthread_mutex_unlock(&rank->welcoming);
	ferry_imports_abandon(rank->imports);
	pthread_mutex_lock(&mapper->lock);
	rank->left = true; /* last: from here on the mapper may free it */
	mapper->changed = true;
	pthread_cond_signal(&mapper->asked);
	pthread_mutex_unlock(&mapper->lock);
}

void ferry_mapper_leave(struct ferry_mapper *mapper, struct ferry_job *job)
{
	for (uint32_t number = 0; number < job->shared.nranks; number++) {
		struct ferry_imports *imports = job->imports[number];
		job->imports[number] = NULL;
		if (!imports)
			continue;
		pthread_mutex_lock(&mapper->lock);
		struct ferry_mapped_rank *rank = mapper->ranks;
		while (rank->imports != imports) /* it is there: who has not left is not removed */
			rank = rank->next;
		pthread_mutex_unlock(&mapper->lock);
		leave(mapper, rank);
	}
}
