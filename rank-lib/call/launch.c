/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/launch.h"

#include "rank-lib/call/comm.h"
#include "rank-lib/call/gpu_sums.h"
#include "rank-lib/kernels/kernel_launch.h"

#include <stdlib.h>

/*
 * Finds the plan of a built-in program, or of the user's program that replaces it (FERRY_PROGRAM_PATH). A user's
 * program may need more than there is, staging above all: all ranks then get that error, and take the built-in one.
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

/* The operation as plans and descriptors name it. */
static ferryRedOp_t redop_of(const struct ferry_request *request)
{
	if (!ferry_collective_reduces(request->collective) && !request->sums)
		return ferrySum;
	return request->op < ferryNumOps ? request->op : ferryNumOps;
}

static uint32_t shape_of(const struct ferry_request *request)
{
	return (uint32_t)request->collective | (uint32_t)request->type << 8 | (uint32_t)redop_of(request) << 16 |
	       (uint32_t)request->sums << 24;
}

/*
 * The key of the request's plan, without a user's program. If nothing is left out, `mirrored` does not count. captures:
 * its stream is captured. A kernel that adds beside a call knows the call's number, which a router gives it late in and
 * after captures.
 */
static struct ferry_plan_key key_of(const struct ferry_request *request, bool captures)
{
	enum ferry_collective collective = request->collective;
	struct ferry_plan_key key = {.collective = collective,
	                             .type = request->type,
	                             .count = collective == FERRY_ALLTOALLV ? 0 : request->count,
	                             .root = ferry_collective_has_root(collective) ? (uint32_t)request->root : 0};
	if (request->left_out.count)
		key.left_out = request->left_out;
	key.redop = request->sums ? ferrySum : redop_of(request);
	key.no_adds = ferry_collective_reduces(collective) &&
	              (captures || request->comm->numbers.fixed != UINT64_MAX || key.redop == ferryNumOps);
	return key;
}

/* All ranks refuse alike. */
static ferryResult_t check_adds(const struct ferry_plan *plan)
{
	for (uint32_t i = 0; i < plan->ninstrs; i++)
		if (ferry_plan_instrs(plan)[i].opcode == FERRY_ADD)
			return ferry_fail(ferryInvalidUsage, "a program with ADD on GPUs, in a call that is captured, "
			                  "comes after one that was, or is a premulsum");
	return ferrySuccess;
}

static ferryResult_t find_plan(const struct ferry_request *request, bool captures, struct ferry_plan_entry **entry)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = key_of(request, captures);
	if (request->program) {
		ferryResult_t result = ferry_user_programs_find(&comm->programs, &comm->topology, request->program,
		                                                &key.program);
		if (result)
			return result;
		if (key.program->collective != request->collective)
			return ferry_fail(ferryProgramError, "the program is for %s",
			                  ferry_collective_name(key.program->collective));
	}
	ferryResult_t result = key.program ? ferry_plans_find(&comm->plans, &key, entry)
	                                   : find_replaceable(comm, &key, entry);
	if (!result && key.no_adds && key.program && (result = check_adds((*entry)->plan)))
		ferry_plan_cache_give_back(&comm->plans.cache, *entry);
	return result;
}

/* Calls that are open in a stream at the same time get different stream ids, so that each has a flag. */
static ferryResult_t look_at_stream(const struct ferry_request *request, struct ferry_stream_state *state)
{
	struct ferry_device *device = request->comm->device;
	if (request->open && request->open->slot % FERRY_OPEN_CALLS == FERRY_OPEN_CALLS - 1)
		return ferry_fail(ferryInvalidArgument, "call %u that is open in a stream at the same time: at most %u",
		                  request->open->slot + 1, FERRY_OPEN_CALLS - 1);
	ferryResult_t result = device->ops->check_stream(device, request->stream, state);
	if (!result && request->open)
		state->id = ferry_open_call_stream(state->id, request->open->slot);
	return result;
}

static struct ferry_redop factor_of(const struct ferry_request *request)
{
	return request->kept ? request->factor : ferry_request_factor(request, &request->comm->redops);
}

static ferryResult_t launch_short(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_stream_state stream;
	ferryResult_t result = look_at_stream(request, &stream);
	if (result)
		return result;
	struct ferry_redop factor = factor_of(request);
	ferry_short_calls_settle(&comm->shorts);
	return ferry_short_calls_make(&comm->shorts, request, shape_of(request), &factor,
	                              ferry_numbering_next(&comm->numbers, false).seq, stream.stream);
}

static ferryResult_t launch_by_plan(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_collective_call call = {.request = request};
	const bool mapped = ferry_comm_is_mapped(comm);
	ferryResult_t result = look_at_stream(request, &call.stream);
	if (!result)
		result = find_plan(request, call.stream.captures, &call.entry);
	if (result)
		return result;
	call.shape = shape_of(request);
	call.factor = factor_of(request);
	ferry_short_calls_settle(&comm->shorts);
	if (mapped && (result = ferry_mapped_name(&comm->mapped, &call))) {
		ferry_plan_cache_give_back(&comm->plans.cache, call.entry);
		return ferry_fail_context(result, "%s", ferry_collective_name(request->collective));
	}
	call.number = ferry_numbering_next(&comm->numbers, call.stream.captures);
	return mapped ? ferry_mapped_collective(&comm->mapped, &call) : ferry_direct_collective(&comm->direct, &call);
}

static ferryResult_t launch_one(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	if (ferry_kernels_carry(comm, request))
		return ferry_kernels_launch(request, 1);
	if (!ferry_comm_is_mapped(comm) && ferry_short_calls_fit(&comm->shorts, request))
		return launch_short(request);
	return launch_by_plan(request);
}

/* ---- sums that GPUs make ---- */

static struct ferry_open_call *open_step(struct ferry_gpu_sum *sum, uint32_t piece, enum ferry_sum_step which)
{
	return &sum->calls[2 * (piece % 2) + which];
}

/* What the rank sends of a sum that is in its stream's memory. */
static ferryResult_t find_sum(struct ferry_request *step)
{
	char *memory = ferry_mapped_room(&step->comm->mapped, step);
	if (!memory)
		return ferry_fail(ferryInternalError, "the memory that a sum was made in is not there");
	step->send = memory + step->sums_at;
	return ferrySuccess;
}

/* An error fails the rank, as other ranks wait for the step; at the first step it is returned, as for any call. */
static ferryResult_t begin_step(struct ferry_gpu_sum *sum, uint32_t piece, enum ferry_sum_step which)
{
	struct ferry_open_call *open = open_step(sum, piece, which);
	const uint32_t slot = sum->request.open ? sum->request.open->slot : 0, at = (uint32_t)(open - sum->calls);
	struct ferry_request step;
	if (!ferry_gpu_sums_step(&sum->request, piece, which, &step))
		return ferrySuccess;
	*open = (struct ferry_open_call){.slot = slot + FERRY_OPEN_CALLS * (1 + at)};
	step.open = open;
	ferryResult_t result = step.send ? ferrySuccess : find_sum(&step);
	if (!result)
		result = launch_one(&step);
	if (result && sum->begun)
		ferry_rank_fail_request(&step.comm->rank, result, ferry_last_message());
	return result;
}

static ferryResult_t begin_piece(struct ferry_gpu_sum *sum)
{
	if (sum->begun == ferry_gpu_sums_pieces(&sum->request))
		return ferrySuccess;
	ferryResult_t result = begin_step(sum, sum->begun, FERRY_SUM_SCATTERS);
	sum->begun += !result;
	return result;
}

static ferryResult_t begin_sum(struct ferry_gpu_sum *sum)
{
	const uint32_t under_way = ferry_gpu_sums_under_way(&sum->request);
	for (uint32_t i = 0; i < under_way && !sum->result; i++)
		sum->result = begin_piece(sum);
	return sum->result;
}

/* Finishes all open steps, whatever has failed: they are in the stream. */
static ferryResult_t end_steps(struct ferry_gpu_sum *sum, ferryResult_t result)
{
	for (uint32_t i = 0; i < sizeof sum->calls / sizeof *sum->calls; i++) {
		ferryResult_t finished = ferry_open_call_finish(&sum->calls[i]);
		result = result ? result : finished;
	}
	return result;
}

static ferryResult_t finish_sum(struct ferry_gpu_sum *sum)
{
	struct ferry_request rest;
	ferryResult_t result = sum->result;
	for (uint32_t piece = 0; piece < sum->begun && !result; piece++) {
		result = ferry_open_call_finish(open_step(sum, piece, FERRY_SUM_SCATTERS));
		if (!result)
			result = begin_step(sum, piece, FERRY_SUM_GATHERS);
		if (!result)
			result = begin_piece(sum);
		if (!result && piece)
			result = ferry_open_call_finish(open_step(sum, piece - 1, FERRY_SUM_GATHERS));
	}
	result = end_steps(sum, result);
	return !result && ferry_gpu_sums_rest(&sum->request, &rest) ? launch_one(&rest) : result;
}

static ferryResult_t launch_sum(const struct ferry_request *request)
{
	struct ferry_gpu_sum *sum = calloc(1, sizeof *sum);
	if (!sum)
		return ferry_fail(ferrySystemError, "no memory for a call in steps");
	sum->request = *request;
	if (request->open) {
		request->open->sum = sum;
		return begin_sum(sum);
	}
	begin_sum(sum);
	ferryResult_t result = finish_sum(sum);
	free(sum);
	return result;
}

/*
 * GPUs do not make the sums of a captured call (gpu_sums.h): each graph would need memory of its own. All ranks decide
 * alike, as all ranks capture a call or none does.
 */
static ferryResult_t launch_locked(const struct ferry_request *request)
{
	struct ferry_stream_state stream;
	if (ferry_kernels_carry(request->comm, request) || !ferry_gpu_sums_carry(request->comm, request))
		return launch_one(request);
	ferryResult_t result = look_at_stream(request, &stream);
	return result ? result : stream.captures ? launch_one(request) : launch_sum(request);
}

/* Takes the communicator's lock and enters the device, until `leave`. kernel: a kernel may carry the call. */
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

/* A call that gave up because the communicator has failed returns the reason of that failure. */
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
	                                     : ferry_request_check(request, &comm->rank, &comm->redops, comm->device,
	                                                           comm->mapped.exports);
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

/*
 * Leaves the call to the second step: then ranks number a sum's steps and later calls alike, however they group. The
 * group frees its counts and its program's name before that step. Calls with either are made by ferry.h alone, whose
 * groups have no open calls (ferryGroupEnd).
 */
static ferryResult_t put_off(struct ferry_open_call *open, const struct ferry_request *request)
{
	if (request->sendcounts || request->program)
		return ferry_fail(ferryInternalError, "a call with counts or a program of its own is left open");
	if (!(open->later = malloc(sizeof *open->later)))
		return ferry_fail(ferrySystemError, "no memory for a call behind a sum");
	*open->later = *request;
	open->later->open = NULL;
	return ferrySuccess;
}

ferryResult_t ferry_launch_open(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferry_open_call *open = requests[0].open;
	*open = (struct ferry_open_call){.slot = open->slot, .asked = open->asked, .follows = open->follows};
	ferryResult_t result = ferry_comm_hold(requests[0].comm);
	if (result)
		return result;
	open->comm = requests[0].comm;
	if (requests[0].collective == FERRY_SENDRECV)
		return ferry_launch_pairs(requests, nrequests);
	return open->follows ? put_off(open, &requests[0]) : ferry_launch(&requests[0]);
}

/* Makes the sum's other steps. */
static ferryResult_t finish_steps(struct ferry_gpu_sum *sum)
{
	struct ferryComm *comm = sum->request.comm;
	struct ferry_device_visit visit;
	ferryResult_t result = enter(comm, sum->request.collective, false, &visit);
	return result ? end_steps(sum, result) : leave(comm, &visit, finish_sum(sum));
}

ferryResult_t ferry_launch_finish(struct ferry_open_call *open)
{
	ferryResult_t result = ferry_open_call_finish(open);
	if (open->sum)
		result = finish_steps(open->sum);
	else if (open->later)
		result = ferry_launch(open->later);
	free(open->sum);
	free(open->later);
	open->sum = NULL;
	open->later = NULL;
	if (open->comm)
		ferry_comm_release(open->comm);
	open->comm = NULL;
	return result;
}

/* ---- ahead of calls ---- */

/*
 * Whether the call's plan can be made ahead. Under the lock. Not if there are users' programs: a program that does not
 * compile is refused from then on, and all ranks must refuse it at the same call, which a thread beside the calls
 * cannot ensure.
 */
static bool is_planned(const struct ferry_request *request)
{
	return request->collective != FERRY_SENDRECV && !request->comm->programs.count;
}

/* *put_target: other ranks push into the receive buffer, as the plan has PUTs. */
static ferryResult_t prepare_plan(const struct ferry_request *request, bool *put_target)
{
	struct ferryComm *comm = request->comm;
	struct ferry_plan_key key = key_of(request, false);
	struct ferry_device_visit visit;
	ferryResult_t result = enter(comm, request->collective, false, &visit);
	if (result)
		return result;
	if (is_planned(request) && !(result = ferry_plans_prepare(&comm->plans, &key)))
		*put_target = ferry_plan_cache_look(&comm->plans.cache, &key)->plan->flags & FERRY_PLAN_PUTS;
	return leave(comm, &visit, result);
}

static ferryResult_t preregister_buffers(const struct ferry_request *request, bool put_target)
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
	if (sends && request->send) /* else a sum: its memory is named by the step that makes it */
		result = ferry_exports_name(exports, request->send, sends, 0, false, false, &name);
	if (!result && receives)
		result = ferry_exports_name(exports, request->receive, receives, 0, false, put_target, &name);
	if (!result && ferry_gpu_sums_add(request))
		result = ferry_mapped_make_room(&comm->mapped, request, put_target);
	return leave(comm, &visit, result);
}

/* The lock is free between the two steps. */
static ferryResult_t preregister(const struct ferry_request *request, bool put_target, bool whole)
{
	ferryResult_t result = whole ? prepare_plan(request, &put_target) : ferrySuccess;
	if (ferry_exports_refused(result))
		result = ferryInternalError; /* the plan cannot be made: no bounce buffer helps */
	return result ? result : preregister_buffers(request, put_target);
}

/* The calls that routers get for the request; of a sum, the steps of its first and of its last piece. */
static bool part_of(const struct ferry_request *request, bool whole, uint32_t which, struct ferry_request *part)
{
	if (whole && ferry_gpu_sums_carry(request->comm, request)) {
		uint32_t last = ferry_gpu_sums_pieces(request) - 1;
		return which < 4 && ferry_gpu_sums_step(request, which % 2 ? last : 0,
		                                        which < 2 ? FERRY_SUM_SCATTERS : FERRY_SUM_GATHERS, part);
	}
	*part = *request;
	return !which;
}

ferryResult_t ferry_launch_preregister(const struct ferry_request *request, bool put_target, bool whole)
{
	struct ferry_request part;
	ferryResult_t result = ferrySuccess;
	if (!request->comm->mapped.exports)
		return ferrySuccess;
	for (uint32_t which = 0; !result && part_of(request, whole, which, &part); which++)
		result = preregister(&part, put_target, whole);
	return result;
}

/* Under the lock. */
static bool has_plan(const struct ferry_request *request, bool *put_target)
{
	struct ferry_plan_key key = key_of(request, false);
	const struct ferry_plan_entry *entry = ferry_plan_cache_look(&request->comm->plans.cache, &key);
	if (entry)
		*put_target = entry->plan->flags & FERRY_PLAN_PUTS;
	return entry;
}

/* Under the lock. */
static bool has_preregistered(const struct ferry_request *request, bool put_target, bool whole)
{
	struct ferryComm *comm = request->comm;
	struct ferry_exports *exports = comm->mapped.exports;
	uint64_t sends, receives;
	ferry_request_extents(request, &comm->rank, &sends, &receives);
	bool planned = !whole || !is_planned(request) || has_plan(request, &put_target);
	/* ferry_mapped_has_room first: it notes for which stream room is to be made */
	return (!ferry_gpu_sums_add(request) || ferry_mapped_has_room(&comm->mapped, request, put_target)) && planned &&
	       (!sends || !request->send || ferry_exports_have(exports, request->send, sends, false)) &&
	       (!receives || ferry_exports_have(exports, request->receive, receives, put_target));
}

enum ferry_preregistered ferry_launch_has_preregistered(const struct ferry_request *request, bool put_target,
                                                        bool whole, bool now)
{
	struct ferryComm *comm = request->comm;
	struct ferry_request part;
	bool all = true;
	if (!comm->mapped.exports)
		return FERRY_PREREGISTERED;
	if (!ferry_comm_try_enter(comm))
		return FERRY_PREREGISTERED_UNKNOWN;
	if (now)
		ferry_exports_begin(comm->mapped.exports);
	for (uint32_t which = 0; all && part_of(request, whole, which, &part); which++)
		all = has_preregistered(&part, put_target, whole);
	ferry_comm_exit(comm);
	return all ? FERRY_PREREGISTERED : FERRY_PREREGISTERED_NOT;
}
