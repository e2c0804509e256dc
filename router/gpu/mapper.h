/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The mapper: a router's thread that makes contexts on GPUs, maps what ranks export, and unmaps it. That takes from a
 * fifth of a millisecond to a second, for which neither the connection thread nor a lane may wait. Started with the
 * first rank that asks to be mapped. A rank's requests come from the connection thread, one at a time; the mapper
 * itself answers them: requests to forget an export before others, else in the order in which they come.
 *
 * Where a context on a GPU is gone for good, the router ends, and its jobs go on with the next one (struct ferry_loss
 * in ipc/arena.h).
 *
 * `lock` guards the list of its ranks and their requests; nothing is mapped under it.
 */
#ifndef FERRY_ROUTER_GPU_MAPPER_H
#define FERRY_ROUTER_GPU_MAPPER_H

#include "router/daemon/job.h"
#include "router/gpu/imports.h"

struct ferry_mapped_rank;

struct ferry_mapper {
	pthread_mutex_t lock;
	pthread_cond_t asked;
	pthread_t thread;
	bool running;                    /* connection thread */
	pthread_cond_t targets_mapped;           /* a rank's put targets are mapped */
	bool stopping, changed;          /* under the lock; changed: a rank has left */
	struct ferry_mapped_rank *ranks; /* under the lock: the connection thread adds, the mapper removes */
	uint64_t requests;               /* ranks' so far; under the lock: the connection thread */
	uint32_t ahead;                  /* FORGETs in a row that went before other requests; mapper */
	uint32_t forgotten;              /* ranks whose FORGET waits until the memory is unmapped; mapper */
	struct ferry_gpus gpus;          /* mapper */
	void (*lost)(const char *why);   /* as in struct ferry_router_options; constant */
	pthread_mutex_t losing;          /* locked for good, by the thread that first finds a context gone */
};

void ferry_mapper_init(struct ferry_mapper *mapper, void (*lost)(const char *why));

/** All jobs are gone, and all imports have been released: unmaps everything, joins the thread. */
void ferry_mapper_stop(struct ferry_mapper *mapper);

/** A context may have lost its last holder: the mapper checks when to give it up. Any thread. */
void ferry_mapper_look(struct ferry_mapper *mapper);

/**
 * Rank `message->rank` of the job attaches and asks to be mapped: finds its GPU, then welcomes it on a copy of `client`
 * (router/daemon/job.h). A rank of another domain (a foreign rank: router/gpu/imports.h) has no client here (-1), and
 * is not welcomed. The job's table of its imports exists at once, until ferry_mapper_leave. Connection thread. Error:
 * ferrySystemError; nothing has happened then.
 */
ferryResult_t ferry_mapper_join(struct ferry_mapper *mapper, struct ferry_job *job,
                                const struct ferry_attach_message *message, int client);

/**
 * Hand a rank's request to the mapper. EXPORT: of what ferry_exported_read has read, with its descriptors, which are
 * the mapper's from then on (and -1 here). FORGET: with `unmapped` it is answered when the memory is unmapped, or 100
 * ms later. The mapper answers on a copy of `client`. Connection thread. Errors, to be answered by the caller:
 * ferryInvalidUsage while the rank's request before this one is not answered, or if it is not mapped; ferrySystemError.
 */
ferryResult_t ferry_mapper_export(struct ferry_mapper *mapper, struct ferry_imports *imports,
                                  const struct ferry_exported *exported, int *descriptors, int client);
ferryResult_t ferry_mapper_forget(struct ferry_mapper *mapper, struct ferry_imports *imports, uint32_t index,
                                  bool unmapped, int client);

/**
 * All ranks of an adopted job have come, and the reach of their GPUs is known. When this returns, all their exported
 * put targets are mapped, or the job has failed. Job thread.
 */
void ferry_mapper_map_put_targets(struct ferry_mapper *mapper, const struct ferry_job *job);

/**
 * The job ends: the mapper does not touch it and its arena from here on. Its tables become the mapper's, which unmaps
 * and frees them later. No lane takes from them any more. The reaper's thread, or the connection thread without one.
 */
void ferry_mapper_leave(struct ferry_mapper *mapper, struct ferry_job *job);

#endif
