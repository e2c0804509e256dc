/* SPDX-License-Identifier: Apache-2.0 */
/* The double's communicators: made by ids, out of others, and ended. */
#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/note.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define VERSION 23203
#define SHRUNK 1000000 /* the color of ranks that stay */

static _Thread_local int next_device = -1; /* -1: the one that is current */

ncclResult_t fake_nccl_act_GetVersion(int *version)
{
	const char *asked = getenv("FAKE_NCCL_VERSION");
	*version = asked ? atoi(asked) : VERSION;
	return ncclSuccess;
}

const char *fake_nccl_act_GetErrorString(ncclResult_t result)
{
	return result ? "an error of the double's" : "no error";
}

const char *fake_nccl_act_GetLastError(ncclComm_t comm)
{
	(void)comm;
	return "the double's last error";
}

ncclResult_t fake_nccl_act_MemAlloc(void **memory, size_t bytes)
{
	*memory = malloc(bytes);
	return *memory ? ncclSuccess : ncclSystemError;
}

ncclResult_t fake_nccl_act_MemFree(void *memory)
{
	free(memory);
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_GetUniqueId(ncclUniqueId *id)
{
	return clique_make(id->internal) ? ncclSuccess : ncclSystemError;
}

/* "NAME=value", which stays where it is the environment's already. */
static void read_file(void)
{
	const char *line = getenv("FAKE_NCCL_CONF"), *equals = line ? strchr(line, '=') : NULL;
	char name[64];
	if (!equals || equals - line >= (long)sizeof name)
		return;
	memcpy(name, line, (size_t)(equals - line));
	name[equals - line] = '\0';
	setenv(name, equals + 1, 0);
}

static ncclComm_t new_comm(const char *id, int nranks, int rank, int device, bool blocking)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	ncclComm_t comm = calloc(1, sizeof *comm);
	pthread_once(&once, read_file);
	comm->clique = clique_open(id);
	comm->users = 1;
	comm->nranks = nranks;
	comm->rank = rank;
	comm->device = device;
	comm->blocking = blocking;
	comm->error = ncclInProgress;
	if (comm->clique)
		return comm;
	free(comm);
	return NULL;
}

/* ncclConfig_t's first field behind its head. */
static bool blocks(const ncclConfig_t *config)
{
	int blocking = NCCL_UNDEFINED_INT;
	if (config && config->size >= sizeof *config + sizeof blocking)
		memcpy(&blocking, config + 1, sizeof blocking);
	return blocking != 0;
}

struct join_job {
	struct fake_job job;
	ncclComm_t comm;
};

static ncclResult_t run_join(struct fake_job *job)
{
	ncclComm_t comm = ((struct join_job *)job)->comm;
	ncclResult_t result = clique_join(comm->clique, comm->rank, comm->nranks) ? ncclSuccess : ncclInternalError;
	fake_tuner_open(comm);
	atomic_store(&comm->error, result);
	return result;
}

static void *join_alone(void *job)
{
	run_join(job);
	free(job);
	return NULL;
}

static ncclResult_t join(ncclComm_t comm)
{
	struct join_job *job = malloc(sizeof *job);
	pthread_t thread;
	*job = (struct join_job){{run_join}, comm};
	if (comm->blocking)
		return fake_group_job(&job->job);
	if (pthread_create(&thread, NULL, join_alone, job))
		return ncclSystemError;
	pthread_detach(thread);
	return ncclInProgress;
}

ncclResult_t fake_nccl_act_CommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                              ncclConfig_t *config)
{
	if (!comm || nranks < 1 || nranks > CLIQUE_RANKS || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	int device = next_device < 0 ? fake_stream_device() : next_device;
	*comm = new_comm(id.internal, nranks, rank, device, blocks(config));
	return *comm ? join(*comm) : ncclInvalidArgument;
}

ncclResult_t fake_nccl_act_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return fake_nccl_act_CommInitRankConfig(comm, nranks, id, rank, NULL);
}

ncclResult_t fake_nccl_act_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                                ncclConfig_t *config)
{
	return nids < 1 ? ncclInvalidArgument : fake_nccl_act_CommInitRankConfig(comm, nranks, ids[0], rank, config);
}

ncclResult_t fake_nccl_act_CommInitAll(ncclComm_t *comms, int ndevices, const int *devices)
{
	ncclUniqueId id;
	ncclResult_t result = fake_nccl_act_GetUniqueId(&id);
	fake_nccl_act_GroupStart();
	for (int i = 0; i < ndevices && !result; i++) {
		next_device = devices ? devices[i] : i;
		result = fake_nccl_act_CommInitRankConfig(&comms[i], ndevices, id, i, NULL);
	}
	next_device = -1;
	ncclResult_t ended = fake_nccl_act_GroupEnd();
	return result ? result : ended;
}

struct split_job {
	struct fake_job job;
	ncclComm_t parent, *where;
	int color, key;
};

/* The ranks of this color, by key and rank: how many, and which of them this one is. */
static int place_among(const uint64_t all[CLIQUE_RANKS][CLIQUE_WORDS], int n, int rank, int *first, int *mine)
{
	int count = 0;
	*mine = 0;
	*first = -1;
	for (int i = 0; i < n; i++) {
		if (all[i][0] != all[rank][0])
			continue;
		count++;
		*first = *first < 0 ? i : *first;
		*mine += (int64_t)all[i][1] < (int64_t)all[rank][1] || (all[i][1] == all[rank][1] && i < rank);
	}
	return count;
}

static ncclResult_t run_split(struct fake_job *job)
{
	struct split_job *split = (struct split_job *)job;
	ncclComm_t parent = split->parent, child = NULL;
	uint64_t mine[CLIQUE_WORDS] = {(uint64_t)split->color, (uint64_t)split->key};
	uint64_t all[CLIQUE_RANKS][CLIQUE_WORDS], ids[CLIQUE_RANKS][CLIQUE_WORDS];
	char id[128] = "";
	int first, rank;
	if (!clique_exchange(parent->clique, parent->rank, mine, all))
		return ncclInternalError;
	int count = place_among(all, parent->nranks, parent->rank, &first, &rank);
	if (first == parent->rank && split->color >= 0)
		clique_make(id);
	memcpy(mine, id, sizeof mine); /* what matters of an id is in its beginning */
	if (!clique_exchange(parent->clique, parent->rank, mine, ids))
		return ncclInternalError;
	if (split->color >= 0) {
		memcpy(id, ids[first], sizeof mine);
		child = new_comm(id, count, rank, parent->device, parent->blocking);
		if (!clique_join(child->clique, rank, count))
			return ncclInternalError;
		fake_tuner_open(child);
		child->error = ncclSuccess;
	}
	if (getenv("FAKE_NCCL_SPLIT_LATE")) {
		parent->late_child = child;
		parent->late_where = split->where;
		parent->late = 2;
		return ncclInProgress;
	}
	__atomic_store_n(split->where, child, __ATOMIC_RELEASE);
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct split_job *job = malloc(sizeof *job);
	(void)config;
	*newcomm = NULL;
	*job = (struct split_job){{run_split}, comm, newcomm, color, key};
	return fake_group_job(&job->job);
}

/* The double's ranks that leave do not come, so those that stay meet without them. */
ncclResult_t fake_nccl_act_CommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm,
                                      ncclConfig_t *config, int flags)
{
	(void)excluded, (void)flags;
	clique_lock(comm->clique);
	if (comm->clique->nranks == comm->nranks)
		comm->clique->nranks -= nexcluded;
	clique_unlock(comm->clique);
	return fake_nccl_act_CommSplit(comm, SHRUNK, comm->rank, newcomm, config);
}

/* Ranks that are in it already and new ones meet by the id. */
ncclResult_t fake_nccl_act_CommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                    ncclConfig_t *config)
{
	return id ? fake_nccl_act_CommInitRankConfig(newcomm, nranks, *id, comm ? comm->rank : rank, config)
	          : ncclInvalidArgument;
}

ncclResult_t fake_nccl_act_CommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	if (!comm)
		return ncclInvalidArgument;
	*error = (ncclResult_t)atomic_load(&comm->error);
	if (atomic_load(&comm->late)) {
		*error = ncclInProgress;
		if (atomic_fetch_sub(&comm->late, 1) == 1) {
			__atomic_store_n(comm->late_where, comm->late_child, __ATOMIC_RELEASE);
			*error = ncclSuccess;
		}
	}
	return ncclSuccess;
}

static ncclResult_t answer(ncclComm_t comm, int *value, int what)
{
	if (!comm || comm->error)
		return ncclInvalidArgument;
	*value = what;
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_CommCount(ncclComm_t comm, int *count)
{
	return answer(comm, count, comm ? comm->nranks : 0);
}

ncclResult_t fake_nccl_act_CommUserRank(ncclComm_t comm, int *rank)
{
	return answer(comm, rank, comm ? comm->rank : 0);
}

ncclResult_t fake_nccl_act_CommCuDevice(ncclComm_t comm, int *device)
{
	return answer(comm, device, comm ? comm->device : 0);
}

/* Their memory stays, so that a call on one is seen. */
static struct ncclComm *_Atomic dead;

void fake_comm_misused(void)
{
	fprintf(stderr, "the double of NCCL: a call on a communicator that has ended\n");
	abort();
}

void fake_comm_hold(ncclComm_t comm)
{
	atomic_fetch_add(&comm->users, 1);
}

void fake_comm_drop(ncclComm_t comm)
{
	if (atomic_fetch_sub(&comm->users, 1) > 1)
		return;
	fake_tuner_close(comm);
	clique_close(comm->clique);
	comm->next_dead = atomic_load(&dead);
	while (!atomic_compare_exchange_weak(&dead, &comm->next_dead, comm))
		;
}

/* Real ones wait as well until all graphs are gone that have calls of theirs. */
static ncclResult_t end(ncclComm_t comm)
{
	if (atomic_exchange(&comm->ended, true))
		fake_comm_misused();
	while (atomic_load(&comm->graphs))
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	fake_comm_drop(comm);
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_CommDestroy(ncclComm_t comm)
{
	return comm ? end(comm) : ncclInvalidArgument;
}

ncclResult_t fake_nccl_act_CommAbort(ncclComm_t comm)
{
	if (!comm)
		return ncclInvalidArgument;
	clique_abort(comm->clique, comm->rank);
	return end(comm);
}
