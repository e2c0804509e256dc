/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Functions that make, change and end communicators and reductions, and that free memory of NCCL's. NCCL does the work;
 * Ferry notes the result. The new handle exists when the call returns, even if the communicator is not ready; those of
 * ncclCommSplit, ncclCommShrink and ncclCommGrow may come later (pending_comms.h).
 */
#include "orchestrator/child_keys.h"
#include "orchestrator/communicators.h"
#include "orchestrator/config.h"
#include "orchestrator/groups.h"
#include "orchestrator/pending_comms.h"
#include "orchestrator/real.h"
#include "orchestrator/redops.h"
#include "orchestrator/tuner_offer.h"
#include "orchestrator/watch.h"
#include "rank-lib/api/freed.h"

#include <stdlib.h>
#include <sys/random.h>

/* Called before NCCL makes a communicator, for which it may load its tuner. */
static void begin(struct ferry_nccl_pending_comm *pending_comm, int device, const ncclConfig_t *config)
{
	ferry_nccl_tuner_settle(config);
	pending_comm->tuner = ferry_nccl_tuner_begin(device);
}

/* Called when NCCL has returned. A creation outside a group is one of its own. */
static ncclResult_t end_own_group(ncclResult_t result)
{
	if (!ferry_nccl_group_is_open())
		ferry_nccl_pending_comms_group_ended(result);
	return result;
}

static struct ferry_nccl_pending_comm born_of(const void *ids, size_t bytes, const ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = {.key = ferry_nccl_key(NULL, ids, bytes),
	                                               .has_key = true,
	                                               .copies = ferry_nccl_config_copies(config)};
	begin(&pending_comm, FERRY_NCCL_CURRENT_DEVICE, config);
	return pending_comm;
}

/* In a group, or if the call is nonblocking, NCCL has not made the communicator yet. */
static void note(const ncclComm_t *comm, struct ferry_nccl_pending_comm *pending_comm, ncclResult_t result)
{
	if (!ferry_nccl_is_fine(result)) {
		ferry_nccl_pending_comm_over(pending_comm);
		return;
	}
	ferry_nccl_comm_add(*comm, pending_comm);
	ferry_nccl_pending_comm_expect(*comm, NULL, pending_comm);
}

static ncclResult_t note_made(const ncclComm_t *comm, struct ferry_nccl_pending_comm *pending_comm, ncclResult_t result)
{
	note(comm, pending_comm, result);
	return end_own_group(result);
}

ncclResult_t ferry_nccl_CommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	struct ferry_nccl_pending_comm pending_comm = born_of(&id, sizeof id, NULL);
	return note_made(comm, &pending_comm, ferry_nccl_real_CommInitRank(comm, nranks, id, rank));
}

ncclResult_t ferry_nccl_CommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                           ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = born_of(&id, sizeof id, config);
	return note_made(comm, &pending_comm, ferry_nccl_real_CommInitRankConfig(comm, nranks, id, rank, config));
}

ncclResult_t ferry_nccl_CommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids, ncclUniqueId *ids,
                                             ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = born_of(ids, nids > 0 && ids ? (size_t)nids * sizeof *ids : 0,
	                                                      config);
	return note_made(comm, &pending_comm,
	                 ferry_nccl_real_CommInitRankScalable(comm, nranks, rank, nids, ids, config));
}

ncclResult_t ferry_nccl_CommInitAll(ncclComm_t *comms, int ndevices, const int *devices)
{
	struct ferry_nccl_pending_comm pending_comm = {.has_key = true};
	struct ferry_nccl_tuner **tuners = ndevices > 0 ? calloc((size_t)ndevices, sizeof *tuners) : NULL;
	for (int i = 0; tuners && i < ndevices; i++) {
		begin(&pending_comm, devices ? devices[i] : i, NULL);
		tuners[i] = pending_comm.tuner;
	}
	ncclResult_t result = ferry_nccl_real_CommInitAll(comms, ndevices, devices);
	pending_comm.has_key = getrandom(&pending_comm.key, sizeof pending_comm.key, 0) == sizeof pending_comm.key;
	for (int i = 0; i < ndevices; i++) {
		pending_comm.tuner = tuners ? tuners[i] : NULL;
		note(ferry_nccl_is_fine(result) ? &comms[i] : NULL, &pending_comm, result);
	}
	free(tuners);
	return end_own_group(result);
}

/*
 * On its parent's device; without a configuration it inherits its parent's. way: NULL if new ranks come, which know
 * nothing of the parent, so that the ranks have no common key; or if NCCL refuses the call.
 */
static struct ferry_nccl_pending_comm born_of_parent(ncclComm_t handle, const struct ferry_nccl_key *way, int color,
                                                     const ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = {.copies = ferry_nccl_config_copies(config), .child = true};
	struct ferry_nccl_comm *parent = ferry_nccl_comm_take(handle);
	begin(&pending_comm, parent && parent->tuner ? parent->tuner->device : FERRY_NCCL_ANY_DEVICE, config);
	if (!parent)
		return pending_comm;
	pending_comm.has_key = way && ferry_nccl_child_keys_count(parent, way, color, &pending_comm.key) &&
	                       parent->has_key;
	pending_comm.copies |= !config && parent->copies;
	ferry_nccl_comm_release(parent);
	return pending_comm;
}

/*
 * NCCL sets *where to NULL first: so a handle there, now or once the creation has ended, is the new one. If the call is
 * over and left none, none will come, and the place is the program's again. where: NULL if none is to come at all.
 */
static void note_child(ncclComm_t parent, ncclComm_t *where, struct ferry_nccl_pending_comm *pending_comm,
                       ncclResult_t result)
{
	if (!where || !ferry_nccl_is_fine(result)) {
		ferry_nccl_pending_comm_over(pending_comm);
		return;
	}
	ncclComm_t there = __atomic_load_n(where, __ATOMIC_ACQUIRE);
	ferry_nccl_comm_add(there, pending_comm);
	ferry_nccl_pending_comm_expect(there ? there : parent, there ? NULL : where, pending_comm);
	end_own_group(result);
}

/* Uncounts a refused call, as other ranks count only the call that replaces it. */
static void take_back(ncclComm_t handle, const struct ferry_nccl_key *way)
{
	struct ferry_nccl_comm *parent = ferry_nccl_comm_take(handle);
	if (parent && way)
		ferry_nccl_child_keys_uncount(parent, way);
	ferry_nccl_comm_release(parent);
}

/* Takes back the state bits that a refused call has set: other ranks still look calls up, and so must this one. */
static ncclResult_t keep_unless_refused(ncclComm_t comm, unsigned set, ncclResult_t result)
{
	if (!ferry_nccl_is_fine(result))
		ferry_nccl_comm_change(comm, 0, set);
	return result;
}

ncclResult_t ferry_nccl_CommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = born_of_parent(comm, &ferry_nccl_child_keys_split, color, config);
	ncclResult_t result = ferry_nccl_real_CommSplit(comm, color, key, newcomm, config);
	if (!ferry_nccl_is_fine(result))
		take_back(comm, &ferry_nccl_child_keys_split);
	note_child(comm, color == NCCL_SPLIT_NOCOLOR ? NULL : newcomm, &pending_comm, result);
	return result;
}

ncclResult_t ferry_nccl_CommShrink(ncclComm_t comm, int *excluded, int nexcluded, ncclComm_t *newcomm,
                                   ncclConfig_t *config, int flags)
{
	struct ferry_nccl_key key;
	const struct ferry_nccl_key *way = ferry_nccl_child_keys_shrink(excluded, nexcluded, &key) ? &key : NULL;
	struct ferry_nccl_pending_comm pending_comm = born_of_parent(comm, way, 0, config);
	unsigned set = flags & NCCL_SHRINK_ABORT ? ferry_nccl_comm_revoke(comm) : 0;
	ncclResult_t result = ferry_nccl_real_CommShrink(comm, excluded, nexcluded, newcomm, config, flags);
	if (!ferry_nccl_is_fine(result))
		take_back(comm, way);
	note_child(comm, newcomm, &pending_comm, result);
	return keep_unless_refused(comm, set, result);
}

ncclResult_t ferry_nccl_CommGrow(ncclComm_t comm, int nranks, const ncclUniqueId *id, int rank, ncclComm_t *newcomm,
                                 ncclConfig_t *config)
{
	struct ferry_nccl_pending_comm pending_comm = born_of_parent(comm, NULL, 0, config);
	ncclResult_t result = ferry_nccl_real_CommGrow(comm, nranks, id, rank, newcomm, config);
	note_child(comm, newcomm, &pending_comm, result);
	return result;
}

ncclResult_t ferry_nccl_CommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	ncclResult_t result = ferry_nccl_real_CommGetAsyncError(comm, error);
	if (!result && *error != ncclInProgress)
		ferry_nccl_pending_comms_ready(comm);
	if (!result && !*error && ferry_nccl_comm_lost(comm))
		*error = ncclRemoteError;
	return result;
}

ncclResult_t ferry_nccl_CommFinalize(ncclComm_t comm)
{
	if (ferry_nccl_group_defers_end(comm, ferry_nccl_CommFinalize))
		return ncclSuccess;
	unsigned set = ferry_nccl_comm_change(comm, FERRY_NCCL_FINALIZED, 0);
	return keep_unless_refused(comm, set, ferry_nccl_real_CommFinalize(comm));
}

ncclResult_t ferry_nccl_CommDestroy(ncclComm_t comm)
{
	if (ferry_nccl_group_defers_end(comm, ferry_nccl_CommDestroy))
		return ncclSuccess;
	ferry_nccl_pending_comms_ready(comm);
	ferry_nccl_comm_remove(comm);
	return ferry_nccl_real_CommDestroy(comm);
}

ncclResult_t ferry_nccl_CommAbort(ncclComm_t comm)
{
	ferry_nccl_group_drop(comm);
	ferry_nccl_pending_comms_ready(comm);
	/*
	 * Ferry's first, as streams wait for it. A thread that makes it may wait for streams behind NCCL: joined last.
	 */
	struct ferry_nccl_comm *making = ferry_nccl_comm_give_up(comm);
	ferry_nccl_comm_remove(comm);
	ncclResult_t result = ferry_nccl_real_CommAbort(comm);
	ferry_nccl_comm_release(making);
	return result;
}

/* If NCCL refuses, calls that Ferry has given up by then are reported as lost. */
ncclResult_t ferry_nccl_CommRevoke(ncclComm_t comm, int flags)
{
	unsigned set = ferry_nccl_comm_revoke(comm);
	return keep_unless_refused(comm, set, ferry_nccl_real_CommRevoke(comm, flags));
}

ncclResult_t ferry_nccl_CommSuspend(ncclComm_t comm, int flags)
{
	unsigned set = ferry_nccl_comm_change(comm, FERRY_NCCL_SUSPENDED, 0);
	return keep_unless_refused(comm, set, ferry_nccl_real_CommSuspend(comm, flags));
}

ncclResult_t ferry_nccl_CommResume(ncclComm_t comm)
{
	ncclResult_t result = ferry_nccl_real_CommResume(comm);
	if (ferry_nccl_is_fine(result))
		ferry_nccl_comm_change(comm, 0, FERRY_NCCL_SUSPENDED);
	return result;
}

ncclResult_t ferry_nccl_RedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                             ncclScalarResidence_t residence, ncclComm_t comm)
{
	struct ferry_nccl_comm *known = ferry_nccl_comm_take(comm);
	ncclResult_t result = ferry_nccl_real_RedOpCreatePreMulSum(op, scalar, type, residence, comm);
	if (known && ferry_nccl_is_fine(result))
		ferry_nccl_redop_add(known, *op, scalar, type, residence);
	ferry_nccl_comm_release(known);
	return result;
}

ncclResult_t ferry_nccl_RedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
	if (ferry_nccl_group_defers(op, comm, ferry_nccl_RedOpDestroy))
		return ncclSuccess;
	struct ferry_nccl_comm *known = ferry_nccl_comm_take(comm);
	ncclResult_t result = ferry_nccl_real_RedOpDestroy(op, comm);
	if (known && ferry_nccl_is_fine(result))
		ferry_nccl_redop_remove(known, op);
	ferry_nccl_comm_release(known);
	return result;
}

/* Memory that calls under way still use is unmapped once it is idle: NCCL does not wait for those calls. */
ncclResult_t ferry_nccl_MemFree(void *memory)
{
	ferry_freed_before(memory, 1);
	return ferry_nccl_real_MemFree(memory);
}
