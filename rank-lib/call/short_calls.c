/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/short_calls.h"

#include "ipc/environment.h"

/* By a lane, which another rank has woken that waits for messages of this one. False: it has nothing to do. */
static bool settle_left(struct ferry_direct *direct)
{
	struct ferry_short_calls *shorts = direct->shorts;
	if (pthread_mutex_trylock(shorts->lock))
		return true; /* a call is made, which settles that one, or may itself be left: again */
	ferry_short_calls_settle(shorts);
	pthread_mutex_unlock(shorts->lock);
	return true;
}

ferryResult_t ferry_short_calls_open(struct ferry_short_calls *shorts)
{
	const struct ferry_job_arenas *shared = &shorts->direct->rank->shared;
	ferryResult_t result = ferry_env_bytes("FERRY_SHORT", 0, 1ull << 30, 1ull << 20, &shorts->most);
	shorts->place = UINT64_MAX;
	for (uint32_t domain = 0; domain < shared->ndomains; domain++) {
		uint64_t place = shared->arenas[domain].staging_bytes / shared->nranks / 128 * 128;
		shorts->place = place < shorts->place ? place : shorts->place;
	}
	shorts->most = shorts->most < shorts->place ? shorts->most : shorts->place;
	shorts->plan.hash = FERRY_SHORT_CALL;
	shorts->steps.plan = &shorts->plan;
	shorts->direct->shorts = shorts;
	shorts->direct->settle = settle_left;
	return result;
}

/* ---- collectives ---- */

bool ferry_short_calls_fit(const struct ferry_short_calls *shorts, const struct ferry_request *request)
{
	uint32_t nranks = shorts->direct->member.shared->nranks;
	uint64_t most = shorts->most / ferry_type_size(request->type);
	if (request->collective == FERRY_ALLTOALLV || request->program || request->left_out.count)
		return false;
	if (ferry_collective_sends_blocks(request->collective) && nranks > 2)
		most /= nranks - 1;
	return shorts->most && request->count <= most;
}

ferryResult_t ferry_short_calls_make(struct ferry_short_calls *shorts, const struct ferry_collective_call *asked)
{
	const struct ferry_request *request = asked->request;
	struct ferry_short_call *made = ferry_short_call_new(shorts);
	if (!made)
		return ferry_fail(ferrySystemError, "no memory for a call");
	struct ferry_call *call = &made->call;
	made->parts = (struct ferry_short_parts){request->send, request->receive, shorts->place};
	call->steps = &shorts->steps;
	call->count = request->count;
	call->root = ferry_collective_has_root(request->collective) ? (uint32_t)request->root : 0;
	call->shape = asked->shape;
	call->scalar = asked->factor.scalar;
	call->device_scalar = asked->factor.device_scalar;
	call->parity = asked->number.seq % FERRY_PARITIES;
	atomic_store_explicit(&call->lanes, 1, memory_order_relaxed);
	atomic_store_explicit(&call->seq, asked->number.seq, memory_order_relaxed);
	return ferry_short_call_start(made, request->stream);
}

/* ---- messages ---- */

bool ferry_short_messages_fit(const struct ferry_short_calls *shorts, const struct ferry_request *requests,
                              uint32_t nrequests, const struct ferry_fabrics *fabrics)
{
	if (!shorts->most || fabrics ||
	    atomic_load_explicit(&shorts->direct->lane_messages, memory_order_acquire))
		return false;
	for (uint32_t i = 0; i < nrequests; i++)
		if (requests[i].count > shorts->most / ferry_type_size(requests[i].type))
			return false;
	return true;
}

ferryResult_t ferry_short_messages_make(struct ferry_short_calls *shorts, const struct ferry_request *requests,
                                        uint32_t nrequests, const struct ferry_fabrics *fabrics)
{
	struct ferry_short_call *made = ferry_short_call_new(shorts);
	if (!made || !ferry_short_call_messages(made, nrequests))
		return ferry_fail(ferrySystemError, "no memory for %u sends and receives", nrequests);
	struct ferry_call *call = &made->call;
	for (uint32_t i = 0; i < nrequests; i++) {
		struct ferry_half *half = &call->halves[requests[i].direction];
		ferry_direct_fill_message(shorts->direct, &requests[i], fabrics,
		                          &half->prepared[0][half->ntransfers++]);
		half->all++;
	}
	ferry_call_arm(call, 0);
	atomic_store_explicit(&call->lanes, 1 + ferry_call_descends(call), memory_order_relaxed);
	return ferry_short_call_start(made, requests[0].stream);
}
