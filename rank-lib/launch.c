/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/launch.h"

#include "rank-lib/direct.h"
#include "rank-lib/mapped.h"

static ferryResult_t find_plan(const struct ferry_request *request, struct ferry_plan_entry **entry)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = {.collective = request->collective,
	                             .type = request->type,
	                             .root = (uint32_t)request->root};
	if (request->program) {
		ferryResult_t result = ferry_user_programs_find(&comm->programs, &comm->topology, request->program,
		                                                &key.program);
		if (result)
			return result;
		if (key.program->collective != request->collective)
			return ferry_fail(ferryProgramError, "the program is for %s",
			                  ferry_collective_name(key.program->collective));
	}
	key.count = key.collective == FERRY_ALLTOALLV ? 0 : request->count;
	if (!ferry_collective_has_root(key.collective))
		key.root = 0;
	key.redop = !ferry_collective_reduces(key.collective) ? ferrySum
	            : request->op < ferryNumOps               ? request->op
	                                                      : ferryNumOps;
	if (!key.program)
		key.program = ferry_user_programs_replacement(&comm->programs, &comm->topology, key.collective,
		                                              key.root, key.count * ferry_type_size(key.type));
	return ferry_comm_plan(comm, &key, entry);
}

/* As long as nothing was captured the n-th call made is number n; from then on rank 0 decides (router/call.h). */
static void place(struct ferryComm *comm, struct ferry_collective_call *call)
{
	struct ferry_order *order = &comm->member.order;
	bool alone = call->entry->plan->flags & FERRY_PLAN_ALONE;
	if (call->stream.captures && atomic_load_explicit(&order->fixed, memory_order_relaxed) == UINT64_MAX) {
		order->fixed_alone = comm->made_alone;
		atomic_store_explicit(&order->fixed, comm->made, memory_order_release);
	}
	uint64_t made = ++comm->made;
	if (made <= atomic_load_explicit(&order->fixed, memory_order_relaxed)) {
		call->seq = made;
		call->after = alone || comm->made_alone ? made - 1 : 0;
	} else {
		call->name = made;
	}
	comm->made_alone = alone;
}

static ferryResult_t launch_locked(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_collective_call call = {.request = request};
	ferryResult_t result = comm->device->ops->check_stream(comm->device, request->stream, &call.stream);
	if (!result)
		result = find_plan(request, &call.entry);
	if (result)
		return result;
	const struct ferry_plan_key *key = &call.entry->key;
	call.shape = (uint32_t)key->collective | (uint32_t)request->type << 8 | (uint32_t)key->redop << 16;
	call.factor = request->kept ? request->factor : ferry_request_factor(request, true);
	if (comm->mapped && (result = ferry_mapped_name(&call))) {
		ferry_plan_cache_give_back(&comm->plans, call.entry);
		return ferry_fail_context(result, "%s", ferry_collective_name(key->collective));
	}
	place(comm, &call);
	return comm->mapped ? ferry_mapped_collective(&call) : ferry_direct_collective(&call);
}

ferryResult_t ferry_launch(const struct ferry_request *request)
{
	if (request->collective == FERRY_SENDRECV)
		return ferry_launch_pairs(request, 1);
	pthread_mutex_lock(&request->comm->lock);
	ferryResult_t result = launch_locked(request);
	pthread_mutex_unlock(&request->comm->lock);
	return result;
}

ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferryComm *comm = requests[0].comm;
	struct ferry_stream_state stream;
	pthread_mutex_lock(&comm->lock);
	ferryResult_t result = comm->device->ops->check_stream(comm->device, requests[0].stream, &stream);
	comm->messages_named |= !result && stream.captures;
	if (!result)
		result = comm->mapped ? ferry_mapped_pairs(requests, nrequests, &stream)
		                      : ferry_direct_pairs(requests, nrequests, &stream);
	pthread_mutex_unlock(&comm->lock);
	return result;
}
