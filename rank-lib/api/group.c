/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups: calls between start and end are kept and launched together by the outermost end. All sends and receives of
 * one communicator and stream in a group become one call, so that they progress together; collectives stay calls of
 * their own. The state is the calling thread's alone.
 */
#include "rank-lib/api/group.h"

#include "rank-lib/call/comm.h"
#include "rank-lib/call/launch.h"

#include <stdlib.h>
#include <string.h>

struct kept {
	struct ferry_request request;
	size_t *counts; /* alltoallv: the four arrays, copied */
	char *program;
	bool launched;
};

static _Thread_local struct {
	int depth;
	ferryResult_t error; /* the first of the group's calls that was refused */
	char message[FERRY_MESSAGE_BYTES];
	struct kept *kept;
	uint32_t nkept, capacity;
} group;

static ferryResult_t copy_counts(struct kept *kept)
{
	struct ferry_request *request = &kept->request;
	size_t n = (size_t)request->comm->rank.nranks;
	if (request->collective != FERRY_ALLTOALLV)
		return ferrySuccess;
	kept->counts = malloc(4 * n * sizeof *kept->counts);
	if (!kept->counts)
		return ferry_fail(ferrySystemError, "no memory for the counts of an alltoallv");
	const size_t **arrays[4] = {&request->sendcounts, &request->senddispls, &request->recvcounts,
	                            &request->recvdispls};
	for (size_t i = 0; i < 4; i++) {
		memcpy(kept->counts + i * n, *arrays[i], n * sizeof *kept->counts);
		*arrays[i] = kept->counts + i * n;
	}
	return ferrySuccess;
}

static ferryResult_t keep(const struct ferry_request *request)
{
	ferryResult_t result = ferry_launch_check(request);
	if (result)
		return result;
	if (group.nkept == group.capacity) {
		uint32_t capacity = group.capacity ? 2 * group.capacity : 16;
		void *grown = realloc(group.kept, capacity * sizeof *group.kept);
		if (!grown)
			return ferry_fail(ferrySystemError, "no memory for %u calls in a group", capacity);
		group.kept = grown;
		group.capacity = capacity;
	}
	struct kept *kept = &group.kept[group.nkept];
	*kept = (struct kept){.request = *request};
	kept->request.kept = true;
	kept->request.factor = ferry_request_factor(request, &request->comm->redops);
	if (request->program) {
		kept->program = strdup(request->program);
		if (!kept->program)
			return ferry_fail(ferrySystemError, "no memory for a program");
		kept->request.program = kept->program;
	}
	if ((result = copy_counts(kept))) {
		free(kept->program);
		return result;
	}
	group.nkept++;
	ferry_holders_add(&request->comm->holders); /* until the group ends: another thread may end comm before */
	return ferrySuccess;
}

ferryResult_t ferry_group_refuse(ferryResult_t result)
{
	if (result && group.depth && !group.error) {
		group.error = result;
		snprintf(group.message, sizeof group.message, "%s", ferry_last_message());
	}
	return result;
}

ferryResult_t ferry_group_call(const struct ferry_request *request)
{
	ferryResult_t result = ferry_comm_hold(request->comm);
	if (result)
		return ferry_group_refuse(result);
	result = group.depth ? ferry_group_refuse(keep(request)) : ferry_launch(request);
	ferry_comm_release(request->comm);
	return result;
}

/* How many calls of the group before this one are open in the same stream and communicator. */
static uint32_t find_slot(const struct ferry_open_group *open, const struct ferry_request *request)
{
	uint32_t slot = 0;
	for (uint32_t i = 0; i < open->ncalls; i++)
		slot += open->calls[i].comm == request->comm && open->calls[i].asked == request->stream;
	return slot;
}

static bool has_sum(const struct ferry_open_group *open, ferryComm_t comm)
{
	bool any = false;
	for (uint32_t i = 0; i < open->ncalls; i++)
		any |= open->calls[i].comm == comm && open->calls[i].sum;
	return any;
}

/* Launches one call, of one or more requests with the same stream and communicator. open: NULL, or it stays open. */
static ferryResult_t launch(struct ferry_request *requests, uint32_t count, struct ferry_open_group *open)
{
	bool messages = requests[0].collective == FERRY_SENDRECV;
	if (!open)
		return messages ? ferry_launch_pairs(requests, count) : ferry_launch(requests);
	struct ferry_open_call *call = &open->calls[open->ncalls];
	call->slot = find_slot(open, &requests[0]);
	call->asked = requests[0].stream;
	call->follows = has_sum(open, requests[0].comm);
	requests[0].open = call;
	open->ncalls++;
	return ferry_launch_open(requests, count);
}

static ferryResult_t launch_pairs_like(uint32_t first, struct ferry_open_group *open)
{
	struct kept *like = &group.kept[first];
	struct ferry_request *requests = malloc((group.nkept - first) * sizeof *requests);
	uint32_t count = 0;
	if (!requests)
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", group.nkept - first);
	for (uint32_t i = first; i < group.nkept; i++) {
		struct kept *kept = &group.kept[i];
		if (kept->request.collective != FERRY_SENDRECV || kept->request.comm != like->request.comm ||
		    kept->request.stream != like->request.stream)
			continue;
		requests[count++] = kept->request;
		kept->launched = true;
	}
	ferryResult_t result = launch(requests, count, open);
	free(requests);
	return result;
}

ferryResult_t ferryGroupStart(void)
{
	if (!group.depth++)
		group.error = ferrySuccess;
	return ferrySuccess;
}

static ferryResult_t launch_all(struct ferry_open_group *open)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 0; i < group.nkept && !result; i++) /* the process may have forked since the group began */
		result = ferry_comm_check(group.kept[i].request.comm);
	if (!result && open && group.nkept && !(open->calls = calloc(group.nkept, sizeof *open->calls)))
		result = ferry_fail(ferrySystemError, "no memory for %u calls in a group", group.nkept);
	for (uint32_t i = 0; i < group.nkept && !result; i++)
		if (group.kept[i].request.collective != FERRY_SENDRECV)
			result = launch(&group.kept[i].request, 1, open);
		else if (!group.kept[i].launched)
			result = launch_pairs_like(i, open);
	return result;
}

static ferryResult_t end_group(struct ferry_open_group *open)
{
	ferryResult_t result = group.error;
	if (result)
		ferry_fail(result, "%s", group.message);
	else
		result = launch_all(open);
	for (uint32_t i = 0; i < group.nkept; i++) {
		free(group.kept[i].counts);
		free(group.kept[i].program);
		ferry_comm_release(group.kept[i].request.comm);
	}
	free(group.kept);
	group.kept = NULL;
	group.nkept = group.capacity = 0;
	return result;
}

ferryResult_t ferryGroupEnd(void)
{
	if (!group.depth)
		return ferry_fail(ferryInvalidUsage, "ferryGroupEnd without ferryGroupStart");
	return --group.depth ? ferrySuccess : end_group(NULL);
}

ferryResult_t ferry_group_end_open(struct ferry_open_group *open)
{
	open->calls = NULL;
	open->ncalls = 0;
	if (group.depth != 1)
		return ferry_fail(ferryInvalidUsage, "a group is ended open at depth %d", group.depth);
	group.depth = 0;
	return end_group(open);
}

ferryResult_t ferry_group_finish(struct ferry_open_group *open)
{
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 0; i < open->ncalls; i++) {
		ferryResult_t one = ferry_launch_finish(&open->calls[i]);
		if (!result)
			result = one;
	}
	free(open->calls);
	open->calls = NULL;
	open->ncalls = 0;
	return result;
}
