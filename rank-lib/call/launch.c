/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/launch.h"

#include "rank-lib/call/comm.h"
#include "rank-lib/kernels/kernel_launch.h"

/*
 * The plan of a built-in program, or of what FERRY_PROGRAM_PATH has in its place. That one may ask for more than there
 * is, of staging above all; every rank then sees it alike, and takes the built-in one.
 */
static ferryResult_t find_replaceable(struct ferryComm *comm, struct ferry_plan_key *key,
                                      struct ferry_plan_entry **entry)
{
	const struct ferry_user_call call = {.collective = key->collective,
	                                     .root = key->root,
	                                     .bytes = (key->count - key->left_out.count) * ferry_type_size(key->type),
	                                     .premulsum = key->redop == ferryNumOps};
	for (;;) {
		key->program =
		        ferry_user_programs_replacement(&comm->programs, &comm->topology, &call, !comm->rank.self);
		ferryResult_t result = ferry_plans_find(&comm->plans, key, entry);
		if (result != ferryProgramError || !key->program || ferry_rank_failed(&comm->rank) ||
		    !ferry_user_programs_refuse(&comm->programs, key->program, &call))
			return result;
	}
}

/* As plans and descriptors name it. */
static ferryRedOp_t redop_of(const struct ferry_request *request)
{
	if (!ferry_collective_reduces(request->collective))
		return ferrySum;
	return request->op < ferryNumOps ? request->op : ferryNumOps;
}

static uint32_t shape_of(const struct ferry_request *request)
{
	return (uint32_t)request->collective | (uint32_t)request->type << 8 | (uint32_t)redop_of(request) << 16;
}

/* The key of its plan, except for a program. If nothing is left out `mirrored` does not matter. */
static struct ferry_plan_key key_of(const struct ferry_request *request)
{
	enum ferry_collective collective = request->collective;
	struct ferry_plan_key key = {.collective = collective,
	                             .type = request->type,
	                             .count = collective == FERRY_ALLTOALLV ? 0 : request->count,
	                             .root = ferry_collective_has_root(collective) ? (uint32_t)request->root : 0};
	if (request->left_out.count)
		key.left_out = request->left_out;
	key.redop = redop_of(request);
	return key;
}

static ferryResult_t find_plan(const struct ferry_request *request, struct ferry_plan_entry **entry)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = key_of(request);
	if (request->program) {
		ferryResult_t result = ferry_user_programs_find(&comm->programs, &comm->topology, request->program,
		                                                &key.program);
		if (result)
			return result;
		if (key.program->collective != request->collective)
			return ferry_fail(ferryProgramError, "the program is for %s",
			                  ferry_collective_name(key.program->collective));
	}
	return key.program ? ferry_plans_find(&comm->plans, &key, entry) : find_replaceable(comm, &key, entry);
}

/* Calls that are open in a stream at the same time get different stream ids, so that each has a flag. */
static ferryResult_t look_at_stream(const struct ferry_request *request, struct ferry_stream_state *state)
{
	struct ferry_device *device = request->comm->device;
	if (request->open && request->open->slot >= FERRY_OPEN_CALLS)
		return ferry_fail(ferryInvalidArgument, "call %u that is open in a stream at the same time: at most %u",
		                  request->open->slot + 1, FERRY_OPEN_CALLS);
	ferryResult_t result = device->ops->check_stream(device, request->stream, state);
	if (!result && request->open)
		state->id += (uint64_t)request->open->slot << 48;
	return result;
}

static ferryResult_t launch_locked(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_collective_call call = {.request = request};
	if (ferry_kernels_carry(comm, request))
		return ferry_kernels_launch(request, 1);
	bool mapped = ferry_comm_is_mapped(comm), is_short = !mapped && ferry_short_calls_fit(&comm->shorts, request);
	ferryResult_t result = look_at_stream(request, &call.stream);
	if (!result && !is_short)
		result = find_plan(request, &call.entry);
	if (result)
		return result;
	call.shape = shape_of(request);
	call.factor = request->kept ? request->factor : ferry_request_factor(request, &comm->redops);
	ferry_short_calls_settle(&comm->shorts);
	if (is_short) {
		call.number = ferry_numbering_next(&comm->numbers, false);
		return ferry_short_calls_make(&comm->shorts, &call);
	}
	if (mapped && (result = ferry_mapped_name(&comm->mapped, &call))) {
		ferry_plan_cache_give_back(&comm->plans.cache, call.entry);
		return ferry_fail_context(result, "%s", ferry_collective_name(request->collective));
	}
	call.number = ferry_numbering_next(&comm->numbers, call.stream.captures);
	return mapped ? ferry_mapped_collective(&comm->mapped, &call) : ferry_direct_collective(&comm->direct, &call);
}

/* The communicator's lock and the device, for as long as a call is made. kernel: a kernel may carry it. */
static ferryResult_t enter(struct ferryComm *comm, enum ferry_collective collective, bool kernel,
                           struct ferry_device_visit *visit)
{
	ferryResult_t result = kernel ? ferry_comm_enter_kernels(comm) : ferry_comm_enter(comm);
	if (result)
		return result;
	if (atomic_load_explicit(&comm->finalized, memory_order_relaxed))
		result = ferry_fail(ferryInvalidUsage, "%s on a communicator that was finalized",
		                    ferry_collective_name(collective));
	else if (comm->device->ops->enter)
		result = comm->device->ops->enter(comm->device, visit);
	if (result)
		ferry_comm_exit(comm);
	else if (comm->mapped.exports)
		ferry_exports_begin(comm->mapped.exports);
	return result;
}

/* When the communicator has failed, errors of calls that gave up since give the reason of that failure. */
static ferryResult_t leave(struct ferryComm *comm, struct ferry_device_visit *visit, ferryResult_t result)
{
	if (comm->device->ops->leave)
		comm->device->ops->leave(visit);
	if (result == ferrySystemError && ferry_rank_failed(&comm->rank))
		result = ferry_rank_report_failure(&comm->rank);
	ferry_comm_exit(comm);
	return result;
}

static ferryResult_t check(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	ferryResult_t result = request->kept ? ferrySuccess
	                                     : ferry_request_check(request, &comm->rank, &comm->redops);
	if (!result && !request->kept)
		result = ferry_request_check_memory(request, &comm->rank, comm->device, comm->mapped.exports);
	if (result || !ferry_rank_failed(&comm->rank) || ferry_kernels_carry(comm, request))
		return result;
	return ferry_rank_report_failure(&comm->rank);
}

ferryResult_t ferry_launch_check(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_device_visit visit;
	struct ferry_stream_state state;
	ferryResult_t result = enter(comm, request->collective, true, &visit);
	if (result)
		return result;
	result = check(request);
	if (!result)
		result = comm->device->ops->check_stream(comm->device, request->stream, &state);
	return leave(comm, &visit, result);
}

ferryResult_t ferry_launch(const struct ferry_request *request)
{
	struct ferry_device_visit visit;
	if (request->collective == FERRY_SENDRECV)
		return ferry_launch_pairs(request, 1);
	ferryResult_t result = enter(request->comm, request->collective, true, &visit);
	if (result)
		return result;
	if (!(result = check(request)))
		result = launch_locked(request);
	return leave(request->comm, &visit, result);
}

ferryResult_t ferry_launch_kernels(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferry_device_visit visit;
	ferryResult_t result = enter(requests[0].comm, requests[0].collective, true, &visit);
	if (result)
		return result;
	return leave(requests[0].comm, &visit, ferry_kernels_launch(requests, nrequests));
}

ferryResult_t ferry_launch_exchange(const struct ferry_request *requests, uint32_t nrequests,
                                    enum ferry_kernels_step step)
{
	struct ferry_device_visit visit;
	ferryResult_t result = enter(requests[0].comm, requests[0].collective, true, &visit);
	if (result)
		return result;
	return leave(requests[0].comm, &visit, ferry_kernels_exchange(requests, nrequests, step));
}

static ferryResult_t launch_pairs_locked(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferryComm *comm = requests[0].comm;
	struct ferry_stream_state stream;
	bool puts;
	ferryResult_t result = look_at_stream(&requests[0], &stream);
	if (!result)
		result = ferry_fabrics_push(&comm->fabrics, &puts);
	if (result)
		return result;
	const struct ferry_fabrics *pushing = puts ? &comm->fabrics : NULL;
	comm->numbers.messages_named |= stream.captures;
	if (ferry_comm_is_mapped(comm))
		return ferry_mapped_pairs(&comm->mapped, requests, nrequests, pushing, &stream);
	ferry_short_calls_settle(&comm->shorts);
	return ferry_short_messages_fit(&comm->shorts, requests, nrequests, pushing)
	               ? ferry_short_messages_make(&comm->shorts, requests, nrequests, stream.stream, pushing)
	               : ferry_direct_pairs(&comm->direct, requests, nrequests, stream.stream, pushing);
}

ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferry_device_visit visit;
	ferryResult_t result = enter(requests[0].comm, FERRY_SENDRECV, false, &visit);
	if (result)
		return result;
	for (uint32_t i = 0; i < nrequests && !result; i++)
		result = check(&requests[i]);
	if (!result)
		result = launch_pairs_locked(requests, nrequests);
	return leave(requests[0].comm, &visit, result);
}

ferryResult_t ferry_launch_open(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferry_open_call *open = requests[0].open;
	*open = (struct ferry_open_call){.slot = open->slot, .asked = open->asked};
	ferryResult_t result = ferry_comm_hold(requests[0].comm);
	if (result)
		return result;
	open->comm = requests[0].comm;
	return requests[0].collective == FERRY_SENDRECV ? ferry_launch_pairs(requests, nrequests)
	                                                : ferry_launch(&requests[0]);
}

ferryResult_t ferry_launch_finish(struct ferry_open_call *open)
{
	ferryResult_t result = ferry_open_call_finish(open);
	if (open->comm)
		ferry_comm_release(open->comm);
	open->comm = NULL;
	return result;
}

/* ---- ahead of calls ---- */

/*
 * Whether the call has a plan that can be made before it. Under the lock. Not if there are users' programs: one that
 * does not compile is refused from then on. All ranks must do that in the same order of calls, which a thread beside
 * the calls does not keep.
 */
static bool is_planned(const struct ferry_request *request)
{
	return request->collective != FERRY_SENDRECV && !request->comm->programs.count;
}

/* *put_target: other ranks push into the receive buffer, as the plan has PUTs. */
static ferryResult_t prepare_plan(const struct ferry_request *request, bool *put_target)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = key_of(request);
	struct ferry_device_visit visit;
	ferryResult_t result = enter(comm, request->collective, false, &visit);
	if (result)
		return result;
	if (is_planned(request) && !(result = ferry_plans_prepare(&comm->plans, &key)))
		*put_target = ferry_plan_cache_look(&comm->plans.cache, &key)->plan->flags & FERRY_PLAN_PUTS;
	return leave(comm, &visit, result);
}

static ferryResult_t show_buffers(const struct ferry_request *request, bool put_target)
{
	struct ferryComm *comm = request->comm;
	struct ferry_exports *exports = comm->mapped.exports;
	struct ferry_device_visit visit;
	struct ferry_buffer_name name;
	uint64_t sends, receives;
	ferryResult_t result = enter(comm, request->collective, false, &visit);
	if (result)
		return result;
	ferry_request_extents(request, &comm->rank, &sends, &receives);
	if (sends)
		result = ferry_exports_name(exports, request->send, sends, 0, false, false, &name);
	if (!result && receives)
		result = ferry_exports_name(exports, request->receive, receives, 0, false, put_target, &name);
	return leave(comm, &visit, result);
}

/* The lock is given back between the two. */
ferryResult_t ferry_launch_show(const struct ferry_request *request, bool put_target, bool whole)
{
	if (!request->comm->mapped.exports)
		return ferrySuccess;
	ferryResult_t result = whole ? prepare_plan(request, &put_target) : ferrySuccess;
	if (ferry_exports_refused(result))
		result = ferryInternalError; /* of a plan: no window helps */
	return result ? result : show_buffers(request, put_target);
}

/* Under the lock. */
static bool has_plan(const struct ferry_request *request, bool *put_target)
{
	struct ferry_plan_key key = key_of(request);
	const struct ferry_plan_entry *entry = ferry_plan_cache_look(&request->comm->plans.cache, &key);
	if (entry)
		*put_target = entry->plan->flags & FERRY_PLAN_PUTS;
	return entry;
}

enum ferry_shown ferry_launch_has_shown(const struct ferry_request *request, bool put_target, bool whole, bool now)
{
	struct ferryComm *comm = request->comm;
	struct ferry_exports *exports = comm->mapped.exports;
	uint64_t sends, receives;
	if (!exports)
		return FERRY_SHOWN;
	if (!ferry_comm_try_enter(comm))
		return FERRY_SHOWN_UNKNOWN;
	if (now)
		ferry_exports_begin(exports);
	ferry_request_extents(request, &comm->rank, &sends, &receives);
	bool shown = (!whole || !is_planned(request) || has_plan(request, &put_target)) &&
	             (!sends || ferry_exports_have(exports, request->send, sends, false)) &&
	             (!receives || ferry_exports_have(exports, request->receive, receives, put_target));
	ferry_comm_exit(comm);
	return shown ? FERRY_SHOWN : FERRY_SHOWN_NOT;
}
