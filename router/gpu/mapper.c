/* SPDX-License-Identifier: Apache-2.0 */
#include "router/gpu/mapper.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "ipc/quarantine.h"
#include "ipc/wait.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEFT_NS  10000000 /* how soon the mapper checks whether the lanes have released the imports of an ended job */
#define CLEAR_NS 5000000  /* how long the mapper waits for lanes that are about to end a call */

#define RELEASE_NS      100000000 /* how long FORGET waits for lanes that hold the import; */
#define RELEASE_POLL_NS 100000    /* and how often it checks meanwhile */

#define MOST_AHEAD 64 /* so many FORGETs in a row go before a request that has waited for longer */

/* FORGOTTEN: a FORGET that is done, but whose answer waits until the memory is unmapped. */
enum request_kind { NOTHING, JOIN, EXPORT, FORGET, FORGOTTEN };

/* What a rank asks for, one thing at a time. */
struct request {
	enum request_kind kind;
	uint64_t number; /* among all ranks' requests */
	int client;      /* where the answer goes: a copy */
	uint32_t index;
	bool unmapped;  /* FORGET: the answer says that it is */
	uint64_t until; /* FORGOTTEN: when it is answered in any case */
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES]; /* exported.npieces many */
};

struct ferry_mapped_rank {
	struct ferry_imports imports; /* first */
	struct request request;    /* under the mapper's lock; one that the mapper works on is the mapper's alone */
	pthread_mutex_t welcoming; /* held while the job welcomes it, and by the thread that takes the job away */
	struct ferry_job *job;     /* NULL once that has ended; under `welcoming` */
	bool trusted;              /* its user is; constant */
	bool maps_targets;         /* its exports are to be mapped for other GPUs; under the lock */
	bool left;                 /* under the lock */
	struct ferry_mapped_rank *next;
};

static struct ferry_mapped_rank *rank_of(struct ferry_imports *imports)
{
	return (struct ferry_mapped_rank *)imports;
}

/* ---- the mapper's thread ---- */

/* Other threads add ranks at the head; this thread alone removes them, so it walks along them without the lock. */
static struct ferry_mapped_rank *first_rank(struct ferry_mapper *mapper)
{
	pthread_mutex_lock(&mapper->lock);
	struct ferry_mapped_rank *rank = mapper->ranks;
	pthread_mutex_unlock(&mapper->lock);
	return rank;
}

/* Unmaps all imports of all ranks that are not used. True if there were any. */
static bool clear_ranks(struct ferry_mapper *mapper)
{
	bool some = false;
	for (struct ferry_mapped_rank *rank = first_rank(mapper); rank; rank = rank->next)
		some |= ferry_imports_clear(&rank->imports);
	return some;
}

/*
 * The driver refuses to map memory in the place of memory that was freed and is still mapped here, for any job. No copy
 * uses the freed memory any more, but its lane may still be about to end the call: so this unmaps all that is unused,
 * and tries again.
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
	return ferry_imports_map(&rank->imports, &rank->request.exported, rank->request.descriptors);
}

static ferryResult_t map_later(struct ferry_mapped_rank *rank)
{
	return ferry_imports_land_later(&rank->imports);
}

static ferryResult_t do_request(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	struct request *request = &rank->request;
	if (request->kind == JOIN)
		return ferry_imports_open(&rank->imports, &mapper->gpus);
	if (request->kind == FORGET) {
		ferry_imports_forget(&rank->imports, request->index);
		return ferrySuccess;
	}
	ferryResult_t result = insist(mapper, rank, map_exported);
	ferry_quarantine_close(request->descriptors, request->exported.npieces);
	return result;
}

static void welcome(struct ferry_mapped_rank *rank, int client, ferryResult_t result)
{
	if (result)
		ferry_log(FERRY_LOG_INFO, "rank %u moves its data itself: %s", rank->imports.rank,
		          ferry_last_message());
	const char *why = result ? ferry_last_message() : "";
	pthread_mutex_lock(&rank->welcoming);
	if (rank->job)
		ferry_job_welcome(rank->job, rank->imports.rank, client, result ? 0 : FERRY_ATTACH_MAPPED, why);
	pthread_mutex_unlock(&rank->welcoming);
}

/* A rank that has the answer may send its next request at once: so the request is over before it is answered. */
static void answer(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank, ferryResult_t result)
{
	bool joins = rank->request.kind == JOIN;
	int client = rank->request.client;
	mapper->forgotten -= rank->request.kind == FORGOTTEN;
	pthread_mutex_lock(&mapper->lock);
	rank->request.kind = NOTHING;
	pthread_mutex_unlock(&mapper->lock);
	if (joins)
		welcome(rank, client, result);
	else
		ferry_attach_reply(client, result, result ? ferry_last_message() : "", -1);
	if (rank->trusted)
		close(client);
	else
		ferry_quarantine_close(&client, 1);
}

static void serve(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	struct request *request = &rank->request;
	ferryResult_t result = do_request(mapper, rank);
	if (request->kind != FORGET || !request->unmapped ||
	    !ferry_imports_unmap_pending(&rank->imports, request->index)) {
		answer(mapper, rank, result);
		return;
	}
	request->until = ferry_now_ns() + RELEASE_NS;
	pthread_mutex_lock(&mapper->lock);
	request->kind = FORGOTTEN;
	pthread_mutex_unlock(&mapper->lock);
	mapper->forgotten++;
}

static void map_targets(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	ferryResult_t result;
	while ((result = insist(mapper, rank, map_later)) && result != ferrySystemError &&
	       ferry_imports_do_without(&rank->imports))
		ferry_forget_message();
	pthread_mutex_lock(&rank->welcoming);
	if (result && rank->job)
		ferry_job_fail(rank->job, result, ferry_last_message());
	pthread_mutex_unlock(&rank->welcoming);
	pthread_mutex_lock(&mapper->lock);
	rank->maps_targets = false;
	pthread_cond_broadcast(&mapper->targets_mapped);
	pthread_mutex_unlock(&mapper->lock);
}

/* Under the lock: the rank that has waited longest, among FORGETs or among the other requests. */
static struct ferry_mapped_rank *longest_waiting(struct ferry_mapper *mapper, bool forgets)
{
	struct ferry_mapped_rank *first = NULL;
	for (struct ferry_mapped_rank *rank = mapper->ranks; rank; rank = rank->next) {
		enum request_kind kind = rank->request.kind;
		bool asks = forgets ? kind == FORGET : kind == JOIN || kind == EXPORT || rank->maps_targets;
		if (asks && (!first || rank->request.number < first->request.number))
			first = rank;
	}
	return first;
}

/*
 * Serves one request that a rank or thread waits for. Called under the lock, which it releases meanwhile. False: there
 * is none.
 *
 * FORGETs go first: a program waits for the answer in cudaFree, and other requests may take a second. No request waits
 * for ever behind them, as no more than MOST_AHEAD go in a row, of a fraction of a millisecond each. Of requests of one
 * kind the oldest is next; a rank has one at a time.
 */
static bool serve_next(struct ferry_mapper *mapper)
{
	struct ferry_mapped_rank *forgets = longest_waiting(mapper, true), *asks = longest_waiting(mapper, false);
	bool ahead = forgets && (!asks || mapper->ahead < MOST_AHEAD);
	bool maps_targets = !ahead && asks && asks->maps_targets;
	if (!forgets && !asks)
		return false;
	mapper->ahead = ahead && asks ? mapper->ahead + 1 : 0;
	pthread_mutex_unlock(&mapper->lock);
	if (maps_targets)
		map_targets(mapper, asks);
	else
		serve(mapper, ahead ? forgets : asks);
	pthread_mutex_lock(&mapper->lock);
	return true;
}

/* Its job has ended, and nothing of it is held any more. */
static void remove_rank(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	pthread_mutex_lock(&mapper->lock);
	struct ferry_mapped_rank **link = &mapper->ranks;
	while (*link != rank)
		link = &(*link)->next;
	*link = rank->next;
	pthread_mutex_unlock(&mapper->lock);
	pthread_mutex_destroy(&rank->welcoming);
	free(rank);
}

/*
 * Sweeps the rank's imports, or frees them if the rank is gone. Returns nanoseconds until the rank, which may be freed
 * now, is to be swept again; -1: not before its next request.
 */
static int64_t look_after_rank(struct ferry_mapper *mapper, struct ferry_mapped_rank *rank)
{
	pthread_mutex_lock(&mapper->lock);
	bool left = rank->left, waits = rank->request.kind == FORGOTTEN;
	bool asks = rank->request.kind != NOTHING && !waits; /* a rank that has left makes no request any more */
	pthread_mutex_unlock(&mapper->lock);
	uint64_t now = ferry_now_ns();
	int64_t due = left ? LEFT_NS : ferry_imports_sweep(&rank->imports, now);
	if (waits) {
		if (left || now >= rank->request.until ||
		    !ferry_imports_unmap_pending(&rank->imports, rank->request.index))
			answer(mapper, rank, ferrySuccess);
		else
			due = RELEASE_POLL_NS;
	}
	if (!left || asks || !ferry_imports_end(&rank->imports))
		return due;
	remove_rank(mapper, rank);
	return -1;
}

static int64_t sooner(int64_t a, int64_t b)
{
	return a < 0 ? b : b < 0 || a < b ? a : b;
}

/* Called under the lock, which it releases meanwhile. Returns until when the mapper may sleep; UINT64_MAX: for ever. */
static uint64_t look_after(struct ferry_mapper *mapper)
{
	uint64_t now = ferry_now_ns();
	struct ferry_mapped_rank *rank = mapper->ranks;
	int64_t next = -1;
	mapper->changed = false;
	pthread_mutex_unlock(&mapper->lock);
	while (rank) {
		struct ferry_mapped_rank *following = rank->next;
		next = sooner(next, look_after_rank(mapper, rank));
		rank = following;
	}
	next = sooner(next, ferry_gpus_rest(&mapper->gpus, false));
	pthread_mutex_lock(&mapper->lock);
	return next < 0 ? UINT64_MAX : now + (uint64_t)next;
}

/* Under the lock. `due`: as look_after says. */
static void wait_until_asked(struct ferry_mapper *mapper, uint64_t due)
{
	struct timespec until = {(time_t)(due / 1000000000u), (long)(due % 1000000000u)};
	if (due == UINT64_MAX)
		pthread_cond_wait(&mapper->asked, &mapper->lock);
	else
		pthread_cond_timedwait(&mapper->asked, &mapper->lock, &until);
}

static void *mapper_main(void *argument)
{
	struct ferry_mapper *mapper = argument;
	uint64_t due = 0;
	pthread_mutex_lock(&mapper->lock);
	while (!mapper->stopping || mapper->ranks) {
		bool served = serve_next(mapper);
		if (served && !mapper->forgotten)
			due = 0;
		else if (served || mapper->changed || ferry_now_ns() >= due)
			due = look_after(mapper);
		else
			wait_until_asked(mapper, due);
	}
	pthread_mutex_unlock(&mapper->lock);
	ferry_gpus_rest(&mapper->gpus, true);
	return NULL;
}

/* ---- contexts that are gone ---- */

/*
 * Called by the thread that works in the context, a lane or the mapper, without the mapper's locks, as no thread calls
 * the driver under one. Other threads that find the loss wait here for the end of the process.
 */
static void on_lost(struct ferry_gpus *gpus, const uint8_t *uuid, const char *why)
{
	struct ferry_mapper *mapper = (struct ferry_mapper *)((char *)gpus - offsetof(struct ferry_mapper, gpus));
	pthread_mutex_lock(&mapper->losing);
	pthread_mutex_lock(&mapper->lock);
	for (struct ferry_mapped_rank *rank = mapper->ranks; rank; rank = rank->next) {
		const struct ferry_imports *imports = &rank->imports;
		/* imports of a rank that has left may be about to be freed */
		if (rank->left || imports->foreign_rank || memcmp(imports->uuid, uuid, sizeof imports->uuid))
			continue;
		pthread_mutex_lock(&rank->welcoming);
		if (rank->job)
			ferry_loss_set(&rank->job->shared.arenas[rank->job->domain].rank_lines[imports->rank].loss,
			               ferry_now_ns(), why);
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
	pthread_cond_init(&mapper->targets_mapped, NULL);
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
	pthread_cond_destroy(&mapper->targets_mapped);
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

static void start_imports(struct ferry_mapped_rank *rank, struct ferry_job *job,
                          const struct ferry_attach_message *message, bool foreign_rank)
{
	struct ferry_export_cell *cells = job->shared.arenas[job->domain].export_cells +
	                                  (size_t)message->rank * FERRY_MOST_EXPORTS;
	ferry_imports_init(&rank->imports, message->rank, message->gpu, cells, foreign_rank);
	if (job->imported_arena) {
		/*
		 * Clears what the router before this one had mapped, before the rank is answered: the rank exports
		 * again what it needs.
		 */
		for (uint32_t i = 0; i < FERRY_MOST_EXPORTS; i++)
			atomic_store_explicit(&cells[i].mapped, 0, memory_order_relaxed);
		ferry_imports_await_others(&rank->imports);
		if (foreign_rank) /* before the job is ready it exports again what that router put into */
			ferry_imports_follow(&rank->imports, &ferry_rank_ring(&job->shared, message->rank)->over);
	}
	ferry_full_fence(); /* before a rank that is answered reads `used` */
}

/* client: -1: of a foreign rank. */
static ferryResult_t add(struct ferry_mapper *mapper, struct ferry_job *job, const struct ferry_attach_message *message,
                         int client)
{
	struct ferry_mapped_rank *rank = calloc(1, sizeof *rank);
	if (!rank)
		return ferry_fail(ferrySystemError, "no memory for what rank %u exports", message->rank);
	start_imports(rank, job, message, client < 0);
	rank->request.kind = client < 0 ? NOTHING : JOIN;
	rank->request.client = client;
	rank->job = job;
	rank->trusted = !job->owner;
	pthread_mutex_init(&rank->welcoming, NULL);
	job->imports[message->rank] = &rank->imports;
	pthread_mutex_lock(&mapper->lock);
	rank->request.number = ++mapper->requests;
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
	int copy = -1;
	ferryResult_t result = start(mapper);
	if (!result && client >= 0)
		result = copy_client(client, &copy);
	if (!result && (result = add(mapper, job, message, copy)))
		ferry_quarantine_close(&copy, 1);
	return result;
}

static ferryResult_t ask(struct ferry_mapper *mapper, struct ferry_imports *imports, struct request *request,
                         int client)
{
	if (!imports || !ferry_imports_are_open(imports))
		return ferry_fail(ferryInvalidUsage, "EXPORT or FORGET of a rank that has not attached as mapped");
	struct ferry_mapped_rank *rank = rank_of(imports);
	ferryResult_t result = copy_client(client, &request->client);
	if (result)
		return result;
	pthread_mutex_lock(&mapper->lock);
	bool busy = rank->request.kind != NOTHING;
	if (!busy) {
		request->number = ++mapper->requests;
		rank->request = *request;
		pthread_cond_signal(&mapper->asked);
	}
	pthread_mutex_unlock(&mapper->lock);
	if (busy)
		ferry_quarantine_close(&request->client, 1);
	return busy ? ferry_fail(ferryInvalidUsage, "rank %u asks for more before it is answered", imports->rank)
	            : ferrySuccess;
}

ferryResult_t ferry_mapper_export(struct ferry_mapper *mapper, struct ferry_imports *imports,
                                  const struct ferry_exported *exported, int *descriptors, int client)
{
	struct request request = {.kind = EXPORT, .exported = *exported};
	for (uint32_t i = 0; i < exported->npieces; i++)
		request.descriptors[i] = descriptors[i];
	ferryResult_t result = ask(mapper, imports, &request, client);
	for (uint32_t i = 0; !result && i < exported->npieces; i++)
		descriptors[i] = -1;
	return result;
}

ferryResult_t ferry_mapper_forget(struct ferry_mapper *mapper, struct ferry_imports *imports, uint32_t index,
                                  bool unmapped, int client)
{
	struct request request = {.kind = FORGET, .index = index, .unmapped = unmapped};
	return ask(mapper, imports, &request, client);
}

void ferry_mapper_map_put_targets(struct ferry_mapper *mapper, const struct ferry_job *job)
{
	pthread_mutex_lock(&mapper->lock);
	for (uint32_t number = 0; number < job->shared.nranks; number++)
		if (job->imports[number])
			rank_of(job->imports[number])->maps_targets = true;
	pthread_cond_signal(&mapper->asked);
	for (uint32_t number = 0; number < job->shared.nranks; number++)
		while (job->imports[number] && rank_of(job->imports[number])->maps_targets)
			pthread_cond_wait(&mapper->targets_mapped, &mapper->lock);
	pthread_mutex_unlock(&mapper->lock);
}

void ferry_mapper_leave(struct ferry_mapper *mapper, struct ferry_job *job)
{
	for (uint32_t number = 0; number < job->shared.nranks; number++) {
		struct ferry_mapped_rank *rank = rank_of(job->imports[number]);
		job->imports[number] = NULL;
		if (!rank)
			continue;
		pthread_mutex_lock(&rank->welcoming);
		rank->job = NULL;
		pthread_mutex_unlock(&rank->welcoming);
		ferry_imports_abandon(&rank->imports);
		pthread_mutex_lock(&mapper->lock);
		rank->left = true; /* last: from here on the mapper may free it */
		mapper->changed = true;
		pthread_cond_signal(&mapper->asked);
		pthread_mutex_unlock(&mapper->lock);
	}
}
