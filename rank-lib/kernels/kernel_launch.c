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

static struct ferry_kernel_facts facts_of(const struct ferry_mailboxes *mailboxes, const struct ferry_request *request)
{
	return (struct ferry_kernel_facts){.collective = request->collective,
	                                   .bytes = block_bytes(request),
	                                   .nranks = mailboxes->blank.nranks,
	                                   .peer = mailboxes->peer,
	                                   .box_bytes = mailboxes->blank.box_bytes,
	                                   .blocks = mailboxes->blocks};
}

static struct ferry_kernel_choice choose(const struct ferry_mailboxes *mailboxes, const struct ferry_request *request)
{
	const struct ferry_kernel_facts facts = facts_of(mailboxes, request);
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
	call->bytes = bytes;
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

static void fill(const struct ferry_request *request, const struct ferry_kernel_choice *choice,
                 struct ferry_kernel_call *call)
{
	struct ferryComm *comm = request->comm;
	struct ferry_redop factor = {0};
	if (request->op >= ferryNumOps)
		factor = request->kept ? request->factor : ferry_request_factor(request, &comm->redops);
	*call = comm->mailboxes.blank;
	fill_shape(request, call);
	fill_operation(request, &factor, call);
	call->chunk = choice->chunk;
	call->two_phases = choice->two_phases;
}

/* Calls in a row that one kernel carries. */
struct batch {
	const struct ferry_request *requests;
	uint32_t count;
	bool sums;            /* some of them; */
	ferryDataType_t type; /* all of one type; uint8 if there is none */
	struct ferry_kernel_choice choices[FERRY_KERNEL_GROUP];
	uint64_t bytes[FERRY_KERNEL_GROUP], packets;
	struct ferry_kernel_group group;
};

/* The call joins the batch, if it can; the first one does. The same on all ranks. */
static bool join(struct batch *batch, const struct ferry_mailboxes *mailboxes, const struct ferry_request *request)
{
	const struct ferry_kernel_facts facts = facts_of(mailboxes, request);
	const struct ferry_kernel_choice choice = ferry_kernel_choose(&facts);
	const uint64_t packets = ferry_kernel_packets(&facts);
	const bool sums = ferry_collective_reduces(request->collective);
	const bool fits = !batch->count ||
	            (batch->count < FERRY_KERNEL_GROUP && batch->count < mailboxes->blocks &&
	             choice.kernel == FERRY_KERNEL_LL && batch->choices[0].kernel == FERRY_KERNEL_LL &&
	             batch->packets + packets <= FERRY_BOX_LL_BYTES &&
	             (!sums || !batch->sums || request->type == batch->type));
	if (!fits)
		return false;
	batch->type = sums ? request->type : batch->type;
	batch->sums |= sums;
	batch->choices[batch->count] = choice;
	batch->bytes[batch->count] = facts.bytes;
	batch->group.calls[batch->count].place = (uint32_t)batch->packets;
	batch->packets += packets;
	batch->count++;
	return true;
}

/* As one that stands for all: its kernel, blocks and threads. */
static struct ferry_kernel_choice complete(struct batch *batch, const struct ferry_mailboxes *mailboxes)
{
	struct ferry_kernel_choice whole = batch->choices[0];
	uint32_t blocks = 0;
	if (batch->count > 1) {
		whole.kernel = FERRY_KERNEL_LL_GROUP;
		ferry_kernel_share_blocks(batch->choices, batch->bytes, batch->count, mailboxes->blocks,
		                          &whole.threads);
	}
	for (uint32_t i = 0; i < batch->count; i++) {
		struct ferry_kernel_call *call = &batch->group.calls[i];
		uint32_t place = call->place;
		fill(&batch->requests[i], &batch->choices[i], call);
		call->place = place;
		call->first = blocks;
		call->blocks = batch->choices[i].blocks;
		blocks += call->blocks;
	}
	batch->group.count = batch->count;
	whole.blocks = blocks;
	return whole;
}

/* Whether the stream is that of none of the batch's calls before. */
static bool is_new(const struct batch *batch, uint32_t which)
{
	uint32_t i = 0;
	while (i < which && batch->requests[i].stream != batch->requests[which].stream)
		i++;
	return i == which;
}

/* behind: the other streams come behind the first one's, else it behind them. */
static ferryResult_t join_streams(const struct batch *batch, struct ferry_mailboxes *mailboxes, bool behind)
{
	struct ferry_device *device = mailboxes->device;
	ferryStream_t first = batch->requests[0].stream;
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 1; i < batch->count && !result; i++) {
		ferryStream_t other = batch->requests[i].stream;
		if (is_new(batch, i))
			result = device->ops->kernels->follow(device, &mailboxes->box->order, behind ? other : first,
			                                      behind ? first : other);
	}
	return result;
}

static ferryResult_t launch(struct batch *batch, struct ferryComm *comm)
{
	struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	struct ferry_device *device = mailboxes->device;
	struct ferry_box *box = mailboxes->box;
	const struct ferry_kernel_choice choice = complete(batch, mailboxes);
	ferryResult_t result = join_streams(batch, mailboxes, false);
	if (!result)
		result = device->ops->kernels->launch(
		        device, ferry_modules_function(device, batch->type, choice.kernel), choice.blocks,
		        choice.threads, batch->requests[0].stream, &box->order, &batch->group.calls[0], ferry_box_hold,
		        ferry_box_drop, box);
	if (!result) {
		ferry_mailboxes_count(mailboxes);
		result = join_streams(batch, mailboxes, true);
	}
	if (result == ferryUnhandledDeviceError) /* it may be in the stream, and the other ranks wait for it */
		ferry_rank_fail(&comm->rank, result, ferry_last_message());
	return result ? ferry_fail_context(result, "%s", ferry_collective_name(batch->requests[0].collective))
	              : ferrySuccess;
}

ferryResult_t ferry_kernels_launch(const struct ferry_request *requests, uint32_t nrequests)
{
	struct ferryComm *comm = requests[0].comm;
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 0; i < nrequests;) {
		struct batch batch;
		batch.requests = &requests[i];
		batch.count = 0;
		batch.packets = 0;
		batch.sums = false;
		batch.type = ferryUint8;
		while (i < nrequests && requests[i].count && join(&batch, &comm->mailboxes, &requests[i]))
			i++;
		i += !batch.count; /* it has nothing to do */
		ferryResult_t launched = batch.count ? launch(&batch, comm) : ferrySuccess;
		result = result ? result : launched;
	}
	return result;
}
