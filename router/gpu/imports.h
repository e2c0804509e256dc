/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The table of imports: what a mapped rank exports, as its router has it mapped, from index to {generation, address,
 * bytes}. A lane takes what a submission names, copies, and releases it; that never maps and never waits. The mapper's
 * thread (router/gpu/mapper.h) maps and unmaps. The connection thread makes the table when the rank attaches and
 * abandons it with the job. `lock` guards the table and its imports; nothing is mapped or unmapped under it.
 *
 * An import is in one of three states; only `step` in imports.c ends a state:
 *   MAPPED    its index names it. It becomes REPLACED when the rank exports another generation or sends FORGET, LEAVING
 *             when it is idle or another import needs its place.
 *   REPLACED  submissions made before may still name it. It is unmapped when they have ended and no lane holds it.
 *   LEAVING   no submission names it, nor will one: it is unmapped at once, and its cell says LEAVING until it is.
 *
 * An import that no call has used for a second is idle: as long as it is mapped here, its owner gets no memory back by
 * freeing it. So it is unmapped, with one exception: an import that its rank has exported again after it was idle, a
 * buffer that a program comes back to every few seconds. That one stays for 20 s, but all of them on a GPU together
 * take no more than a 32nd of the memory that the GPU has left, the last used first. Captured calls and registered
 * buffers are pinned, so never idle.
 *
 * No import is LEAVING while a lane holds it, or while a submission names it that has not ended, even if no lane has
 * seen that submission yet:
 *
 * rank:    used = n;    fence;  m = mapped;  submit n, if m is the generation; else export it again, and check again
 * router:  mapped = LEAVING;  fence;  u = used;  unmap, mapped = 0, if u <= ended; else mapped = generation again
 *
 * If the router's load does not see n, then its fence is before the rank's, which therefore sees LEAVING, or 0. The
 * rank then exports again, over the socket, and submits n when it has the answer. By then the import is mapped anew,
 * with the same generation, so that submissions that named it before find it as well. If the load sees n, then n >
 * ended until the lanes have ended n, and nothing is unmapped. `ended` is stored with release when no copy of
 * submissions up to that number is under way, so unmapping comes after those copies. A REPLACED import waits for the
 * last submission that `used` named when it was replaced.
 *
 * A **foreign rank** is a rank of another domain, into whose memory this router's GPUs put. It exports its receive
 * buffers here as well, under the same names, and they are mapped for those GPUs alone. The protocol is the same, over
 * cells in this router's arena. But no submission comes here, so the foreign rank's own router stores `ended`, in
 * `over` of its ring: a submission has ended here when its call is over. All that is put for a call is put before that
 * (WAIT_PUT), or its job has failed; and the lane that puts holds the import. Once the foreign rank has gone, all of
 * its submissions have ended.
 */
#ifndef FERRY_ROUTER_GPU_IMPORTS_H
#define FERRY_ROUTER_GPU_IMPORTS_H

#include "ipc/arena.h"
#include "router/gpu/gpus.h"

#include <pthread.h>

/* Descriptors that are kept for a rank's exports until all ranks have come, at most: other jobs need some, too. */
#define FERRY_MOST_LATER_PIECES 2048u

enum ferry_import_state { FERRY_IMPORT_MAPPED, FERRY_IMPORT_REPLACED, FERRY_IMPORT_LEAVING };

/* The same memory, mapped for another GPU, which puts there. By the owner's mapping its copies take the host. */
struct ferry_put_target_map {
	struct ferry_gpu *gpu; /* held */
	struct ferry_mapping mapping;
};

/** One mapped export. Lanes see no more of it than its name; its generation and mapping do not change. */
struct ferry_import {
	struct ferry_imports *owner;
	uint32_t index;
	uint64_t generation;
	struct ferry_mapping mapping;
	/* NULL: no other GPU puts into it yet; the mapper, under the lock, once */
	struct ferry_put_target_map *put_targets;
	uint32_t nput_targets;
	/* descriptors to map it for other GPUs, once those are known; NULL: none; mapper */
	struct ferry_later_export *later;
	enum ferry_import_state state;    /* under the lock, like all that follows */
	uint32_t users;                   /* lanes' copies */
	uint64_t last;                    /* REPLACED: the last submission that may name it */
	bool taken;                       /* taken by a lane or exported, since the last sweep */
	bool comes_back;                  /* the rank has exported it again after it was idle; constant */
	uint64_t seen_used, used_ns;      /* `used` of its cell at the last sweep; when a sweep last saw it used */
	struct ferry_import *next;        /* in the list; or about to be unmapped */
};

struct ferry_imports {
	pthread_mutex_t lock;
	uint32_t rank;                 /* constant, like `uuid` and `foreign_rank` */
	uint8_t uuid[FERRY_GPU_BYTES]; /* of the rank's GPU */
	bool foreign_rank;
	_Atomic(struct ferry_gpu *) gpu; /* NULL: not mapped (yet), or a foreign rank; mapper, release */
	struct ferry_export_cell *cells; /* the rank's, in the arena; NULL once abandoned; under the lock */
	struct ferry_import *table[FERRY_MOST_EXPORTS]; /* the MAPPED ones; under the lock */
	struct ferry_import *list; /* all but LEAVING ones, by their last use, the latest first; under the lock */
	uint32_t nreplaced;        /* under the lock */
	uint64_t idled[FERRY_MOST_EXPORTS]; /* the generation of that index that was last idle; mapper */
	uint64_t kept;                      /* idle bytes that stay, as ferry_gpu_keep counts them; mapper */
	/*
	 * other GPUs of the job's ranks that reach this one's memory; the thread that makes the job ready, before
	 * `ready`
	 */
	struct ferry_gpu *others[FERRY_MAX_RANKS];
	uint32_t nothers;
	/* exports come before all other GPUs are known; set before any comes, then the mapper's */
	bool awaits_others;
	uint32_t later_pieces;  /* that were kept meanwhile; mapper */
	uint32_t users;         /* of all its imports; under the lock */
	bool shut;              /* no lane may take one any more; under the lock */
	pthread_cond_t quiet;   /* no lane holds one */
	_Atomic uint64_t ended; /* submissions up to this one have ended; the lane that ends them, release */
	/*
	 * a foreign rank's: `over` in its domain's arena; NULL: not ready. Stored with release by the thread that makes
	 * the job ready, or adopts it. At the end `ended`, by the thread that ends the foreign rank
	 */
	_Atomic(const _Atomic uint64_t *) over;
};

/**
 * Initializes the table of a rank that attaches with that GPU, or of a foreign rank. The cells stay until it is
 * abandoned.
 */
void ferry_imports_init(struct ferry_imports *imports, uint32_t rank, const uint8_t *uuid,
                        struct ferry_export_cell *cells, bool foreign_rank);

/**
 * From now on a foreign rank may export: all other GPUs are known, or the table awaits them. Called by the thread that
 * makes the job ready, or adopts it. The thread that ends the foreign rank passes `ended`.
 */
static inline void ferry_imports_follow(struct ferry_imports *imports, const _Atomic uint64_t *over)
{
	atomic_store_explicit(&imports->over, over, memory_order_release);
}

/** The rank's GPU; NULL: the rank moves its data itself. Constant once the rank's attach has been answered. */
static inline struct ferry_gpu *ferry_imports_gpu(const struct ferry_imports *imports)
{
	return atomic_load_explicit(&imports->gpu, memory_order_acquire);
}

/** Whether the rank may export. Any thread. */
static inline bool ferry_imports_are_open(const struct ferry_imports *imports)
{
	return imports->foreign_rank ? atomic_load_explicit(&imports->over, memory_order_acquire) != NULL
	                             : ferry_imports_gpu(imports) != NULL;
}

/** That GPU reaches the rank's memory: what the rank exports as a put target is mapped for it, too. Before the rank
 * exports anything, or where the table awaits others. */
void ferry_imports_other(struct ferry_imports *imports, struct ferry_gpu *gpu);

/**
 * The rank comes from another router, and exports at once: its put targets are mapped for other GPUs when all ranks
 * have come, by ferry_imports_land_later. To be called before it exports anything.
 */
static inline void ferry_imports_await_others(struct ferry_imports *imports)
{
	imports->awaits_others = true;
}

/* ---- lanes: any thread ---- */

/**
 * Finds `bytes` bytes from where the name points, mapped until the import is released, for copies of the rank's own
 * lanes (gpu: NULL) or for pushes of that GPU. Never waits for a mapping. ferryInvalidUsage, with the values: no such
 * index, another generation, it reaches beyond the exported bytes, or it has not been exported as a put target for that
 * GPU. ferryRemoteError once the table is shut.
 */
ferryResult_t ferry_imports_take(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 const struct ferry_gpu *gpu, char **address, struct ferry_import **held);

/** No copy of it is under way any more. */
void ferry_imports_release(struct ferry_import *held);

/**
 * The rank has left its lanes, as it leaves or its job has failed: from now on no lane may put into its memory either.
 * Returns when all lanes that did have released it, which takes as long as the copies under way. Called by the thread
 * that ends the rank.
 */
void ferry_imports_shut(struct ferry_imports *imports);

/** The rank's submissions up to this number have ended, and released what they held. One thread at a time; never less
 * than before. */
static inline void ferry_imports_ended(struct ferry_imports *imports, uint64_t submission)
{
	atomic_store_explicit(&imports->ended, submission, memory_order_release);
}

/* ---- the mapper's thread ---- */

/** Finds the GPU. Errors as ferry_gpus_hold: the rank is then not mapped. */
ferryResult_t ferry_imports_open(struct ferry_imports *imports, struct ferry_gpus *gpus);

/**
 * Maps what the rank exports, in the place of an older generation of that index. The same generation again only tells
 * the rank that it is mapped, and, if it is now exported as a put target, maps it for the other GPUs, too. Descriptors
 * that are kept become -1. Errors: ferryInvalidArgument (an older generation, another GPU, the same generation with
 * other bytes), ferryRefused (too many replaced ones are still in use), those of ferry_gpu_map. After an error the
 * index names what it named before.
 */
ferryResult_t ferry_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported, int *descriptors);

/**
 * All ranks have come: maps for the other GPUs all that has been exported as a put target, older generations too, and
 * from now on at once. Errors: those of ferry_gpu_map; another call maps the rest.
 */
ferryResult_t ferry_imports_land_later(struct ferry_imports *imports);

/**
 * After ferry_imports_land_later has failed for a foreign rank: forgets the import that could not be mapped; another
 * call may map the rest. The foreign rank's calls go on meanwhile, by its own router, and it may have freed that
 * memory, which may be the reason. `used` does not say whether a submission still names it: other memory may have the
 * index by now. A lane that does name it finds nothing to put into. Returns false if the rank is no foreign rank.
 */
bool ferry_imports_do_without(struct ferry_imports *imports);

/** Unmaps what the index names, as soon as it is not used. Does nothing where it names nothing. */
void ferry_imports_forget(struct ferry_imports *imports, uint32_t index);

/** Whether an import that the index has named is to be unmapped, and still used. */
bool ferry_imports_unmap_pending(struct ferry_imports *imports, uint32_t index);

/**
 * Unmaps REPLACED imports that are not used any more, and imports that are idle at that time (ferry_now_ns). Returns
 * nanoseconds until it should be called again, -1: not before something is mapped.
 */
int64_t ferry_imports_sweep(struct ferry_imports *imports, uint64_t now);

/**
 * Unmaps all imports that no lane uses, idle or not: the rank exports them again when it needs them. True if there were
 * any.
 */
bool ferry_imports_clear(struct ferry_imports *imports);

/**
 * The arena goes, and no lane takes any more: from now on the cells are not touched. What users hold stays mapped
 * until they release it. Any thread, once.
 */
void ferry_imports_abandon(struct ferry_imports *imports);

/** Abandoned: unmaps everything; false while there are users, and it has not ended. */
bool ferry_imports_end(struct ferry_imports *imports);

#endif
