/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/groups.h"

#include "orchestrator/config.h"
#include "orchestrator/issue.h"
#include "orchestrator/launch.h"
#include "orchestrator/pending_comms.h"
#include "orchestrator/real.h"
#include "orchestrator/watch.h"

#include <stdlib.h>

/* What the program has ended in the group: a communicator by `end`, or, if that is NULL, a reduction of it. */
struct deferred {
	ncclComm_t comm;
	ncclResult_t (*end)(ncclComm_t comm);
	ncclRedOp_t op;
	ncclResult_t (*destroy)(ncclRedOp_t op, ncclComm_t comm);
};

static _Thread_local struct {
	int depth;
	struct ferry_nccl_call *calls;
	int ncalls, capacity;
	struct deferred *deferred;
	int ndeferred;
} group;

bool ferry_nccl_group_is_open(void)
{
	return group.depth;
}

static bool make_room(void)
{
	if (group.ncalls < group.capacity)
		return true;
	int capacity = group.capacity ? 2 * group.capacity : 16;
	struct ferry_nccl_call *grown = realloc(group.calls, (size_t)capacity * sizeof *grown);
	if (!grown)
		return false;
	group.calls = grown;
	group.capacity = capacity;
	return true;
}

bool ferry_nccl_group_keep(const struct ferry_nccl_call *call)
{
	ncclCollConfig_t *config = call->config ? ferry_nccl_config_copy(call->config) : NULL;
	if ((call->config && !config) || !make_room()) {
		free(config);
		return false;
	}
	group.calls[group.ncalls] = *call;
	group.calls[group.ncalls++].config = config;
	ferry_nccl_comm_hold(call->comm);
	return true;
}

static bool defer(struct deferred one)
{
	struct deferred *grown = realloc(group.deferred, (size_t)(group.ndeferred + 1) * sizeof *grown);
	if (!grown)
		return false;
	group.deferred = grown;
	grown[group.ndeferred++] = one;
	return true;
}

bool ferry_nccl_group_defers(ncclRedOp_t op, ncclComm_t comm, ncclResult_t (*destroy)(ncclRedOp_t op, ncclComm_t comm))
{
	int i = 0;
	while (i < group.ncalls && (group.calls[i].op != op || group.calls[i].handle != comm))
		i++;
	if (i == group.ncalls)
		return false;
	/* without memory it stays with NCCL until the communicator goes */
	defer((struct deferred){.comm = comm, .op = op, .destroy = destroy});
	return true;
}

bool ferry_nccl_group_defers_end(ncclComm_t comm, ncclResult_t (*end)(ncclComm_t comm))
{
	return group.ncalls && defer((struct deferred){.comm = comm, .end = end});
}

static void drop(const struct ferry_nccl_call *call)
{
	free((void *)(uintptr_t)call->config);
	ferry_nccl_comm_release(call->comm);
}

/* Once the communicator's calls are not kept any more. */
static ncclResult_t end(const struct deferred *deferred)
{
	return deferred->end ? deferred->end(deferred->comm) : deferred->destroy(deferred->op, deferred->comm);
}

/*
 * Frees the thread's kept calls. Then ends in one group, as the program did, what it has ended meanwhile. Returns
 * NCCL's first error.
 */
static ncclResult_t finish(void)
{
	struct deferred *deferred = group.deferred;
	int n = group.ndeferred;
	for (int i = 0; i < group.ncalls; i++)
		drop(&group.calls[i]);
	free(group.calls);
	group.calls = NULL;
	group.deferred = NULL;
	group.ncalls = group.capacity = group.ndeferred = 0;
	ncclResult_t result = n ? ferry_nccl_real_GroupStart() : ncclSuccess;
	for (int i = 0; i < n; i++) {
		ncclResult_t one = end(&deferred[i]);
		result = ferry_nccl_is_fine(result) && one ? one : result;
	}
	ncclResult_t all = n ? ferry_nccl_real_GroupEnd() : ncclSuccess;
	free(deferred);
	return ferry_nccl_is_fine(result) && all ? all : result;
}

void ferry_nccl_group_drop(ncclComm_t handle)
{
	int calls = 0, deferred = 0;
	for (int i = 0; i < group.ncalls; i++) {
		if (group.calls[i].handle != handle)
			group.calls[calls++] = group.calls[i];
		else
			drop(&group.calls[i]);
	}
	group.ncalls = calls;
	for (int i = 0; i < group.ndeferred; i++) {
		if (group.deferred[i].comm != handle)
			group.deferred[deferred++] = group.deferred[i];
		else if (!group.deferred[i].end)
			end(&group.deferred[i]);
	}
	group.ndeferred = deferred;
}

/* Returns NCCL's first error. */
static ncclResult_t give_back_all(void)
{
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < group.ncalls && ferry_nccl_is_fine(result); i++)
		result = ferry_nccl_issue(&group.calls[i]);
	ncclResult_t ended = finish();
	return ferry_nccl_is_fine(result) && ended ? ended : result;
}

ncclResult_t ferry_nccl_GroupStart(void)
{
	ncclResult_t result = ferry_nccl_real_GroupStart();
	group.depth += !result;
	return result;
}

ncclResult_t ferry_nccl_GroupEnd(void)
{
	ncclResult_t result = ferry_nccl_real_GroupEnd();
	if (!group.depth || --group.depth)
		return result;
	ferry_nccl_pending_comms_group_ended(result);
	if (!group.calls)
		return result;
	if (ferry_nccl_is_fine(result) && group.ncalls) {
		ncclResult_t launched = ferry_nccl_launch(group.calls, group.ncalls);
		result = launched ? launched : result;
	}
	ncclResult_t ended = finish();
	return ferry_nccl_is_fine(result) && ended ? ended : result;
}

/* Nothing of the group runs: NCCL gets all of its calls, to estimate them. */
ncclResult_t ferry_nccl_GroupSimulateEnd(ncclSimInfo_t *info)
{
	ncclResult_t given = group.depth == 1 ? give_back_all() : ncclSuccess;
	ncclResult_t result = ferry_nccl_real_GroupSimulateEnd(info);
	if (group.depth && !--group.depth)
		ferry_nccl_pending_comms_group_ended(ncclInvalidUsage); /* nothing was made */
	return ferry_nccl_is_fine(given) ? result : given;
}
