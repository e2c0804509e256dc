/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/groups.h"

#include "orchestrator/config.h"
#include "orchestrator/issue.h"
#include "orchestrator/launch.h"
#include "orchestrator/pending_comms.h"
#include "orchestrator/real.h"
#include "orchestrator/redops.h"
#include "orchestrator/watch.h"

#include <stdlib.h>

struct destroyed {
	ncclRedOp_t op;
	ncclComm_t comm;
};

struct ended {
	ncclComm_t comm;
	ncclResult_t (*end)(ncclComm_t comm);
};

static _Thread_local struct {
	int depth;
	struct ferry_nccl_call *calls;
	int ncalls, capacity;
	struct destroyed *destroyed;
	int ndestroyed;
	struct ended *ended;
	int nended;
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

bool ferry_nccl_group_defers(ncclRedOp_t op, ncclComm_t comm)
{
	int i = 0;
	while (i < group.ncalls && (group.calls[i].op != op || group.calls[i].handle != comm))
		i++;
	if (i == group.ncalls)
		return false;
	struct destroyed *grown = realloc(group.destroyed, (size_t)(group.ndestroyed + 1) * sizeof *grown);
	if (!grown)
		return true; /* it stays with NCCL until the communicator goes */
	group.destroyed = grown;
	grown[group.ndestroyed++] = (struct destroyed){op, comm};
	return true;
}

static void drop(const struct ferry_nccl_call *call)
{
	free((void *)(uintptr_t)call->config);
	ferry_nccl_comm_release(call->comm);
}

static void destroy(const struct destroyed *destroyed)
{
	struct ferry_nccl_comm *comm = ferry_nccl_comm_take(destroyed->comm);
	ferry_nccl_real_RedOpDestroy(destroyed->op, destroyed->comm);
	if (comm)
		ferry_nccl_redop_remove(comm, destroyed->op);
	ferry_nccl_comm_release(comm);
}

/* Frees the thread's kept calls. */
static void forget(void)
{
	for (int i = 0; i < group.ncalls; i++)
		drop(&group.calls[i]);
	for (int i = 0; i < group.ndestroyed; i++)
		destroy(&group.destroyed[i]);
	free(group.calls);
	free(group.destroyed);
	group.calls = NULL;
	group.destroyed = NULL;
	group.ncalls = group.capacity = group.ndestroyed = 0;
}

bool ferry_nccl_group_defers_end(ncclComm_t comm, ncclResult_t (*end)(ncclComm_t comm))
{
	struct ended *grown = group.ncalls ? realloc(group.ended, (size_t)(group.nended + 1) * sizeof *grown) : NULL;
	if (!grown)
		return false;
	group.ended = grown;
	grown[group.nended++] = (struct ended){comm, end};
	return true;
}

/* Ends the communicators in one group, as the program did, once no calls are kept. Returns NCCL's first error. */
static ncclResult_t end_all(void)
{
	struct ended *ended = group.ended;
	int n = group.nended;
	group.ended = NULL;
	group.nended = 0;
	ncclResult_t result = n ? ferry_nccl_real_GroupStart() : ncclSuccess;
	for (int i = 0; i < n; i++) {
		ncclResult_t one = ended[i].end(ended[i].comm);
		result = ferry_nccl_is_fine(result) && one ? one : result;
	}
	ncclResult_t all = n ? ferry_nccl_real_GroupEnd() : ncclSuccess;
	free(ended);
	return ferry_nccl_is_fine(result) && all ? all : result;
}

void ferry_nccl_group_drop(ncclComm_t handle)
{
	int calls = 0, redops = 0, ends = 0;
	for (int i = 0; i < group.ncalls; i++) {
		if (group.calls[i].handle != handle) {
			group.calls[calls++] = group.calls[i];
			continue;
		}
		drop(&group.calls[i]);
	}
	group.ncalls = calls;
	for (int i = 0; i < group.ndestroyed; i++) {
		if (group.destroyed[i].comm == handle)
			destroy(&group.destroyed[i]);
		else
			group.destroyed[redops++] = group.destroyed[i];
	}
	group.ndestroyed = redops;
	for (int i = 0; i < group.nended; i++)
		if (group.ended[i].comm != handle)
			group.ended[ends++] = group.ended[i];
	group.nended = ends;
}

/* Returns NCCL's first error. */
static ncclResult_t give_back_all(void)
{
	ncclResult_t result = ncclSuccess;
	for (int i = 0; i < group.ncalls && ferry_nccl_is_fine(result); i++)
		result = ferry_nccl_issue(&group.calls[i]);
	forget();
	ncclResult_t ended = end_all();
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
	ferry_nccl_tuner_group_ended(result);
	ferry_nccl_pending_comms_group_ended(result);
	if (!group.calls)
		return result;
	if (ferry_nccl_is_fine(result) && group.ncalls) {
		ncclResult_t launched = ferry_nccl_launch(group.calls, group.ncalls);
		result = launched ? launched : result;
	}
	forget();
	ncclResult_t ended = end_all();
	return ferry_nccl_is_fine(result) && ended ? ended : result;
}

/* Nothing of the group runs: NCCL gets all of its calls, to estimate them. */
ncclResult_t ferry_nccl_GroupSimulateEnd(ncclSimInfo_t *info)
{
	ncclResult_t given = group.depth == 1 ? give_back_all() : ncclSuccess;
	ncclResult_t result = ferry_nccl_real_GroupSimulateEnd(info);
	if (group.depth && !--group.depth) {
		ferry_nccl_tuner_group_ended(ncclInvalidUsage);
		ferry_nccl_pending_comms_group_ended(ncclInvalidUsage); /* nothing was made */
	}
	return ferry_nccl_is_fine(given) ? result : given;
}
