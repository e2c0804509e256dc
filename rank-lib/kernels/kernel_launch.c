/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/kernel_launch.h"

#include "ipc/error.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/kernels/modules.h"
#include "router/reduce/reduce.h"

bool ferry_kernels_ready(const struct ferryComm *comm)
{
	return comm->mailboxes.ready;
}

static uint64_t block_bytes(const struct ferry_request *request)
{
	return request->count * ferry_type_size(request->type);
}

static struct ferry_kernel_choice choose(const struct ferry_mailboxes *mailboxes, const struct ferry_request *request)
{
	const struct ferry_kernel_facts facts = {.collective = request->collective,
	                                         .bytes = block_bytes(request),
	                                         .nranks = mailboxes->blank.nranks,
	                                         .peer = mailboxes->peer,
	                                         .box_bytes = mailboxes->blank.box_bytes,
	                                         .blocks = mailboxes->blocks};
	return ferry_kernel_choose(&facts);
}

/* A call with nothing to do is one that no kernel need carry, and that nobody else need. */
bool ferry_kernels_carry(const struct ferryComm *comm, const struct ferry_request *request)
{
	const struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	if (!mailboxes->ready || request->collective >= FERRY_ALLTOALLV || request->program || request->open ||
	    request->left_out.count || comm->programs.replace)
		return false;
	return !request->count || choose(mailboxes, request).kernel;
}

/* Who sends to whom, and where the blocks lie. */
static void fill_shape(const struct ferry_request *request, struct ferry_kernel_call *call)
{
	uint64_t bytes = block_bytes(request);
	uint32_t every = (1u << call->nranks) - 1, root = 1u << request->root;
	enum ferry_collective collective = request->collective;
	call->send = request->send;
	call->receive = request->receive;
	call->senders = collective == FERRY_BROADCAST || collective == FERRY_SCATTER ? root : every;
	call->receivers = collective == FERRY_REDUCE_TO_ROOT || collective == FERRY_GATHER ? root : every;
	call->reduces = ferry_collective_reduces(collective);
	if (ferry_collective_sends_blocks(collective))
		call->send_stride = bytes;
	if (ferry_collective_receives_blocks(collective))
		call->receive_stride = bytes;
	call->count = call->reduces ? request->count : bytes;
}

/* As the routers reduce (router/engine/parts.c). */
static void fill_operation(const struct ferry_request *request, const struct ferry_redop *factor,
                           struct ferry_kernel_call *call)
{
	call->divisor = 1;
	if (!call->reduces)
		return;
	call->op = request->op < ferryNumOps ? request->op : ferryNumOps;
	if (request->op >= ferryNumOps) {
		call->scaled = 1;
		call->factor = factor->scalar;
		call->factor_at = factor->device_scalar;
	} else if (request->op == ferryAvg) {
		call->factor = ferry_reduce_reciprocal(request->type, call->nranks);
		call->scaled = call->factor ? 2 : 0;
		call->divisor = call->factor ? 1 : call->nranks;
	}
}

ferryResult_t ferry_kernels_launch(const struct ferry_request *request)
{
	struct ferryComm *comm = request->comm;
	struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	struct ferry_device *device = mailboxes->device;
	struct ferry_kernel_call call = mailboxes->blank;
	if (!request->count)
		return ferrySuccess;
	struct ferry_kernel_choice choice = choose(mailboxes, request);
	struct ferry_redop factor = {0};
	if (request->op >= ferryNumOps)
		factor = request->kept ? request->factor : ferry_request_factor(request, &comm->redops);
	fill_shape(request, &call);
	fill_operation(request, &factor, &call);
	call.chunk = choice.chunk;
	call.two_phases = choice.two_phases;
	ferryDataType_t type = call.reduces ? request->type : ferryUint8;
	struct ferry_box *box = mailboxes->box;
	ferryResult_t result = device->ops->kernels->launch(device, ferry_modules_function(device, type, choice.kernel),
	                                                    choice.blocks, choice.threads, request->stream, &box->order,
	                                                    &call, ferry_box_hold, ferry_box_drop, box);
	if (!result)
		ferry_mailboxes_count(mailboxes);
	else if (result == ferryUnhandledDeviceError) /* it may be in the stream, and the other ranks wait for it */
		ferry_rank_fail(&comm->rank, result, ferry_last_message());
	return result ? ferry_fail_context(result, "%s", ferry_collective_name(request->collective)) : ferrySuccess;
}
