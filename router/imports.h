/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A mapped rank's exports as its router has them: a table from index to {generation, address, bytes}. A lane takes
 * what a submission names, copies, and releases it; that never maps and never waits. The mapper's thread
 * (router/mapper.h) maps (router/new_imports.h) and forgets, and the connection thread makes the table with the rank's
 * attaching and abandons it with the job. `lock` guards the table and what is in it; nothing is mapped or unmapped
 * under it.
 *
 * Forgotten is what the rank says is to be (FORGET), what another generation has replaced, and what nobody has used for
 * a second, or more where it is small (router/idle_imports.h): what its owner has freed gives nothing back as long as
 * it is mapped here. None of this while a lane holds it, or while a submission names it that has not ended, though no
 * lane may have seen that yet:
 *
 *   rank:    used = n;    fence;  m = mapped;  submit n, if m is the generation; else export it again, and look again
 *   router:  mapped = LEAVING;  fence;  u = used;  unmap, mapped = 0, if u <= ended; else mapped = generation again
 *
 * If the router's load does not see n, then its fence is before the rank's, which therefore sees LEAVING, or 0: the
 * rank exports again, over the socket, and submits n when it has the answer, by which time it is mapped anew (the same
 * generation, so that submissions that named it before find it as well). If the load sees n, then n > ended until the
 * lanes have ended n, and nothing is unmapped. `ended` is stored with release when no copy of submissions up to that
 * number is under way, so unmapping comes after those. What another generation has replaced waits so too: for the last
 * submission that `used` told of when it was replaced.
 *
 * A **guest** is a rank of another domain, into whose memory this router's GPUs put. It exports its receive buffers
 * here as well, under the same names, and they are mapped for those GPUs alone. The protocol is the same, over cells
 * in this router's arena; but as no submission comes here, `ended` is told by the guest's own router, in `over` of its
 * ring: a submission has ended here when its call is over. What is put for a call is put before that (LAND), or its job
 * has failed; and who puts holds the import. Once the guest has gone, all of its submissions have ended.
 */
#ifndef FERRY_ROUTER_IMPORTS_H
#define FERRY_ROUTER_IMPORTS_H

#include "ipc/arena.h"
#include "router/gpus.h"
#include "router/landing_maps.h"

#include <pthread.h>

struct ferry_later_export;

/** One mapped export. Lanes see no more of it than its name; its generation and mapping do not change. */
struct ferry_import {
	struct ferry_imports *owner;
	uint32_t index;
	uint64_t generation;
	struct ferry_mapping mapping;
	struct ferry_landing_map *landings; /* NULL: nobody puts into it yet; the mapper, under the lock, once */
	uint32_t nlandings;
	/* what maps it for others, once it is known which; NULL: nothing; mapper */
	struct ferry_later_export *later;
	uint32_t users;      /* under the lock */
	uint32_t takes;      /* since it was mapped, modulo 2^32; under the lock */
	uint32_t seen_takes; /* mapper, from here on: at its last look */
	uint64_t seen_used;
	uint64_t busy_ns;          /* when it was last seen to be used, */
	uint64_t idle_ns;          /* and for how long nobody may use it */
	uint64_t last;             /* retired: the last submission that may name it */
	bool leaves;               /* it has been taken out of the table, and its cell says so until it is unmapped */
	struct ferry_import *next; /* retired, or about to be unmapped */
};

/* What an index named when it was forgotten: the same generation may come back. */
struct ferry_import_past {
	uint64_t generation, busy_ns, idle_ns;
};

struct ferry_imports {
	pthread_mutex_t lock;
	uint32_t rank;
	uint8_t uuid[FERRY_GPU_BYTES];   /* of the rank's GPU */
	_Atomic(struct ferry_gpu *) gpu; /* NULL: not mapped (yet), or a guest; mapper, release */
	struct ferry_export_cell *cells; /* the rank's, in the arena; NULL once abandoned; under the lock */
	struct ferry_import *table[FERRY_MOST_EXPORTS]; /* under the lock */
	struct ferry_import_past past[FERRY_MOST_EXPORTS]; /* the mapper's */
	uint64_t kept; /* bytes that stay though they have been idle for a second, as the GPU was told; mapper */
	struct ferry_import *retired; /* replaced or to be forgotten, with users or submissions left; under the lock */
	uint32_t nretired;
	/* other GPUs of the job's ranks that reach this one's memory; who makes the job ready, before it says so */
	struct ferry_gpu *others[FERRY_MAX_RANKS];
	uint32_t nothers;
	bool awaits_others; /* they are not all known, and exports come already; before any does, then the mapper's */
	uint32_t later_pieces; /* that were kept meanwhile; mapper */
	uint32_t putting; /* takes by others that put, not released; under the lock */
	bool shut;        /* to those; under the lock */
	pthread_cond_t quiet; /* putting is 0 */
	bool guest;           /* constant */
	_Atomic uint64_t ended; /* submissions up to this one have ended: whoever ends them, release */
	/*
	 * a guest's: in its domain's arena, NULL: not ready; who makes the job ready, or has it come from another
	 * router, release. Then `ended`, by who ends it
	 */
	_Atomic(const _Atomic uint64_t *) over;
};

/** For a rank that attaches with that GPU. The cells stay until it is abandoned. NULL: no memory. */
struct ferry_imports *ferry_imports_new(uint32_t rank, const uint8_t *uuid, struct ferry_export_cell *cells);

/** The same for a guest. */
struct ferry_imports *ferry_imports_new_guest(uint32_t rank, const uint8_t *uuid, struct ferry_export_cell *cells);

/**
 * A guest's: from now on it may export. All other GPUs are known, or it awaits them. Who makes the job ready, or has
 * the guest come from another router; who ends the guest's part has it follow `ended`.
 */
void ferry_imports_follow(struct ferry_imports *imports, const _Atomic uint64_t *over);

/** Whether the rank may export. Any thread. */
static inline bool ferry_imports_are_open(const struct ferry_imports *imports)
{
	return imports->guest ? atomic_load_explicit(&imports->over, memory_order_acquire) != NULL
	                      : atomic_load_explicit(&imports->gpu, memory_order_acquire) != NULL;
}

/** Finds the GPU. Mapper's thread. Errors as ferry_gpus_hold: the rank is then not mapped. */
ferryResult_t ferry_imports_open(struct ferry_imports *imports, struct ferry_gpus *gpus);

/** The rank's GPU, or NULL where the rank moves its data itself. Once the rank has had the reply to its attaching it
 * does not change. */
static inline struct ferry_gpu *ferry_imports_gpu(const struct ferry_imports *imports)
{
	return atomic_load_explicit(&imports->gpu, memory_order_acquire);
}

/**
 * `bytes` bytes from where the name points, mapped until the import is released. Any thread; never waits for a mapping.
 * ferryInvalidUsage, with the values: no such index, another generation, or it reaches beyond what was exported.
 */
ferryResult_t ferry_imports_take(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 char **address, struct ferry_import **held);

/** That GPU reaches the rank's memory: what the rank exports as a landing is mapped for it, too. Before the rank
 * exports anything, or where the table awaits others. */
void ferry_imports_other(struct ferry_imports *imports, struct ferry_gpu *gpu);

/**
 * The rank comes from another router, and exports at once: what it has exported as landings is mapped for others when
 * all ranks have come, by ferry_new_imports_land_later. Before it exports anything.
 */
void ferry_imports_await_others(struct ferry_imports *imports);

/** No copy of it is under way any more. */
void ferry_imports_release(struct ferry_import *held);

/**
 * The same for another rank's lane, whose GPU is `gpu`, which puts into it; ferry_imports_let_go releases it.
 * ferryInvalidUsage also where it has not been exported for that GPU; ferryRemoteError once it is shut.
 */
ferryResult_t ferry_imports_land(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 const struct ferry_gpu *gpu, char **address, struct ferry_import **held);
void ferry_imports_let_go(struct ferry_import *held);

/**
 * The rank leaves, or its job has failed: from now on nobody puts into its memory. Returns when who did has let go,
 * which takes as long as the copies under way. By who ends the rank's part.
 */
void ferry_imports_shut(struct ferry_imports *imports);

/** The rank's submissions up to this number have ended, and released what they held. One thread at a time; never less
 * than before. */
static inline void ferry_imports_ended(struct ferry_imports *imports, uint64_t submission)
{
	atomic_store_explicit(&imports->ended, submission, memory_order_release);
}

/** Forgets what the index names, as soon as nobody uses it. Mapper's thread. Nothing happens where it names nothing. */
void ferry_imports_forget(struct ferry_imports *imports, uint32_t index);

/** Whether something that the index has named is to be forgotten and used still. Mapper's thread. */
bool ferry_imports_keep(struct ferry_imports *imports, uint32_t index);

/* ---- for router/new_imports.c and router/idle_imports.c: the mapper's thread; all but the last under the lock ---- */

/** The cell's words. Not abandoned. */
uint64_t ferry_imports_used(const struct ferry_imports *imports, uint32_t index);
void ferry_imports_say_mapped(const struct ferry_imports *imports, uint32_t index, uint64_t generation);

/** The last submission that has ended, with all before it. */
uint64_t ferry_imports_last_ended(const struct ferry_imports *imports);

/** It is named no more: stays mapped for who may use it. */
void ferry_imports_retire(struct ferry_imports *imports, struct ferry_import *import);

/** Puts those retired that are not in use before the list's: the new list, to be unmapped. */
struct ferry_import *ferry_imports_reap(struct ferry_imports *imports, struct ferry_import *list);

/** Unmaps a list of what is in no table, and says so in the cells. */
void ferry_imports_unmap(struct ferry_imports *imports, struct ferry_import *list);

/* ---- the end ---- */

/** The arena goes, and no lane takes any more: from now on the cells are not touched. What users hold stays mapped
 * until they release it. */
void ferry_imports_abandon(struct ferry_imports *imports);

/** Abandoned: unmaps everything and frees; false while there are users. Mapper's thread. */
bool ferry_imports_free(struct ferry_imports *imports);

#endif
