/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A job inside a router: its arenas, the plans it was handed, and the calls under way, one per bank.
 *
 * Written by: the router's connection thread (attach, plans), the job's attendant thread (peers), and workers (calls).
 * The comments at the fields say which and under what. Everything here is private to the router; what comes out of
 * shared memory is copied and checked first.
 */
#ifndef FERRY_ROUTER_JOB_H
#define FERRY_ROUTER_JOB_H

#include "ipc/attach.h"
#include "ipc/publish.h"
#include "router/attendant.h"
#include "router/reduce/reduce.h"
#include "router/steps.h"

#include <pthread.h>

/* bytes: what one core writes and others look at again and again; caches fetch lines in pairs */
#define FERRY_APART 128

/*
 * A share of the parts of each slice. Where a plan names its workers each has one, so that they do not meet at one
 * cache line for every part that they claim; who has nothing to do for a while takes from the others' (`steal` below).
 * Of long parts, who has a newer slice than another's queue takes from that one first: a slice is published when all of
 * it is done, and a core that another thread shares, or whose clock is low, may take twice as long.
 */
struct ferry_queue {
	_Alignas(FERRY_APART) _Atomic uint64_t next; /* call tag << 32 | parts claimed; workers, by compare-and-swap */
	/* call tag << 32 | slices known to be runnable: what the gates said; workers, release/acquire. One may store less than
	   another has: they look again */
	_Atomic uint64_t ready;
};

struct ferry_slot {
	/* parts finished; workers, by fetch-add; reset by the publisher */
	_Alignas(FERRY_APART / 2) _Atomic uint32_t done;
};

/* One REDUCE or H2H of a plan that this router runs, with every pointer found, for one bank. */
struct ferry_work {
	const struct ferry_instr *instr;
	struct ferry_counter *counter;
	char *window;
	const char **sources;        /* nsources windows */
	struct ferry_gate *gates;    /* nedges */
	struct ferry_queue *queues;
	struct ferry_slot *slots;    /* of the window */
	uint32_t nqueues;
	uint32_t share;              /* parts of a slice in each queue: queue q has those from q * share on */
	bool oldest_first;           /* parts are long enough to look at all queues before each */
	/* lock of `published` and of the counter: whoever holds it is the one writer */
	_Alignas(FERRY_APART) _Atomic uint32_t publishing;
	uint32_t published;          /* slices */
};

static inline uint32_t ferry_parts_of(const struct ferry_work *work)
{
	return work->nqueues * work->share;
}

struct ferry_job_plan {
	struct ferry_plan *plan;                /* a private copy, validated */
	uint32_t nworks;                        /* of this domain */
	struct ferry_work *works[FERRY_BANKS];
	void *memory;                           /* that the arrays lie in */
	/* of ranks whose data this router moves, and that hold it; connection thread, before the rank hears that it is kept */
	struct ferry_steps *steps[FERRY_MAX_RANKS];
	/* of those ranks, under way: who takes one adds, under the table's lock, who ends it takes away */
	_Atomic uint32_t calls;
	uint64_t holders;                       /* bit r: rank r has given it and not dropped it; connection thread */
	struct ferry_job_plan *next;            /* in its bucket: under the table's lock; or among the retired */
};

/*
 * A job's plans, by their hashes. The connection thread alone puts them in and takes them out: it holds the lock while
 * it changes the array or a link in it, and looks without. Who admits a call holds the lock while he looks its plan up,
 * once per call, and may keep the pointer for as long as he is inside the job: a plan that was taken out is freed when
 * nobody is, and by then either a run names it, and it stays, or no run ever will.
 */
struct ferry_job_plans {
	pthread_mutex_t lock;
	struct ferry_job_plan **buckets;        /* nbuckets, a power of two; NULL: none yet */
	uint32_t nbuckets, count;
	/* without holders; connection thread; freed when no worker is inside and no call uses it */
	struct ferry_job_plan *retired;
};

/* The call that a bank runs. seq is released last when a call is admitted and zeroed first when it ends. */
struct ferry_run {
	_Alignas(FERRY_APART) _Atomic uint64_t seq; /* 0: idle */
	_Atomic(struct ferry_job_plan *) plan;  /* written under admit before seq */
	_Atomic uint64_t last;                  /* last call seen in this bank; written under admit */
	uint64_t scalars[FERRY_MAX_RANKS];      /* premulsum factors of the call; written under admit before seq */
	uint64_t began_ns;                      /* when it was admitted; the same */
	/* slice parts whose worker has not come out of publishing (docs/models/publish.pml) */
	_Alignas(FERRY_APART) _Atomic uint64_t left;
	/* that workers have spent on those that have; each adds before it lowers `left` */
	_Atomic uint64_t working_ns;
};

struct ferry_gpu;
struct ferry_gpu_lanes;
struct ferry_imports;
struct ferry_intake;

struct ferry_job {
	uint8_t key[FERRY_KEY_BYTES];
	struct ferry_job_arenas shared;
	uint32_t domain;
	uint64_t attached, detached;            /* bit masks of ranks; connection thread */
	/* of those that are mapped; attendant thread, once the job is ready */
	struct ferry_intake *intakes[FERRY_MAX_RANKS];
	struct ferry_gpu_lanes *gpu_lanes;      /* the router's */
	struct ferry_gpu *registrar;            /* has the arenas registered; NULL: none has. Attendant thread */
	bool registered[FERRY_MAX_DOMAINS];
	/* of ranks that have asked to be mapped (router/imports.h); connection thread, before the rank is welcomed, and once
	   nobody works for the job any more */
	struct ferry_imports *imports[FERRY_MAX_RANKS];
	int words_descriptor[FERRY_MAX_RANKS];  /* the block of words of each of those; -1: none; the same */
	/* 1 once the other domains' arenas are mapped; attendant thread, release */
	_Atomic uint32_t ready;
	/* 1: failed or going away: workers leave it alone; never 0 again, whoever stores it */
	_Atomic uint32_t dead;
	enum ferry_store store;                 /* for plans whose windows copy engines use */
	enum ferry_store cached_store;          /* for all others */
	uint32_t workers;                       /* that the router has */
	struct ferry_job_plans plans;
	struct ferry_run runs[FERRY_BANKS];
	uint64_t announced;                     /* the most that a rank has; attendant thread */
	pthread_mutex_t failing;                /* whoever fails the job writes its arena's failure under this */
	_Alignas(FERRY_APART) pthread_mutex_t admit; /* one worker at a time starts calls */
	_Atomic uint64_t slices, bytes;         /* published for this job, for ferry-stat */
	/* length of its calls here, and what workers have spent on their parts; the same */
	_Atomic uint64_t calls_ns, working_ns;

	uint32_t users;                         /* workers inside; under the router's lock */
	bool closed;                            /* nobody may enter for the moment; under the router's lock */
	struct ferry_attendant attendant;
	struct ferry_job *next;
};

/**
 * Keeps a plan under its hash, after checking it against the job's arenas, until no rank holds it; from now on `rank`
 * does. The blob is copied. One that is there already, to the byte, gets another holder. Connection thread. Errors:
 * ferryProgramError for a plan that is not valid here; ferryRefused, with the numbers, for one too many, or for another
 * plan of the same hash.
 */
ferryResult_t ferry_job_add_plan(struct ferry_job *job, uint32_t rank, const void *blob, uint64_t bytes);

/**
 * The rank holds the plan no longer: it names it in no call that is not over here. Without holders a plan retires;
 * ferry_workers_free_retired comes next. Connection thread. Error: ferryInvalidUsage if the rank does not hold it.
 */
ferryResult_t ferry_job_drop_plan(struct ferry_job *job, uint32_t rank, uint64_t hash);

/** The plan of that hash, or NULL. It stays for as long as the caller is inside the job. Takes the table's lock. */
struct ferry_job_plan *ferry_job_find_plan(struct ferry_job *job, uint64_t hash);

/**
 * The same for a call of a rank whose data this router moves: it stays until it is released. *steps: the rank's. NULL:
 * the rank does not hold it. Any thread.
 */
struct ferry_job_plan *ferry_job_hold_plan(struct ferry_job *job, uint64_t hash, uint32_t rank,
                                           struct ferry_steps **steps);
void ferry_job_release_plan(struct ferry_job_plan *plan);

/** Frees retired plans that no run uses. Only while no worker is inside. Connection thread. */
void ferry_job_free_retired(struct ferry_job *job);

/** Frees all plans. Only while no worker is inside. */
void ferry_job_free_plans(struct ferry_job *job);

/** Starts every call whose descriptors have all come. A disagreement between ranks fails the job, naming them. */
void ferry_job_admit(struct ferry_job *job);

/** True if a call could be admitted or a slice run now. */
bool ferry_job_has_work(struct ferry_job *job);

/** True once for each call that a rank has announced: it is about to come. By the attendant thread, inside the job. */
bool ferry_job_expects(struct ferry_job *job);

/**
 * Admits calls and runs up to `most` slice parts (0: none); returns how many. *wanted: how many workers should be
 * awake: all that the plan takes while parts are ready that nobody has, and while a call of copy engines is under way,
 * whose slices come too fast for waking somebody for each. Only ever raised. `worker` is the caller's number: a plan
 * that takes few workers always takes the first ones, because only their private caches should fill with what copy
 * engines use. steal: from the others' queues too, if its own have nothing; who has not looked there has not seen all
 * that is ready.
 */
uint32_t ferry_job_work(struct ferry_job *job, uint32_t worker, uint32_t most, bool steal, uint32_t *wanted);

/**
 * A rank has attached, as far as this router goes: counts it in the arena's header, so that the others may go on, and
 * replies to it with the arena. flags: FERRY_ATTACH_MAPPED, or 0 and, where it has asked for that, why not. Connection
 * thread, or the mapper's.
 */
void ferry_job_welcome(struct ferry_job *job, uint32_t rank, int client, uint32_t flags, const char *why);

/** Ends the job for all its ranks with this code and message, unless it has failed before. Any thread of the router. */
void ferry_job_fail(struct ferry_job *job, ferryResult_t code, const char *message);

/** The job is dead: ferryRemoteError with the reason, for a rank that cannot hear it through the arena yet. */
ferryResult_t ferry_job_failure(struct ferry_job *job);

#endif
