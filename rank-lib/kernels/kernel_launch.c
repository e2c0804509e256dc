/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/kernel_launch.h"

#include "ipc/error.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/kernels/modules.h"
#include "router/reduce/reduce.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

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
	                                   .blocks = mailboxes->blocks,
	                                   .line_blocks = mailboxes->line_blocks};
}

static struct ferry_kernel_choice choose(const struct ferry_mailboxes *mailboxes, const struct ferry_request *request)
{
	const struct ferry_kernel_facts facts = facts_of(mailboxes, request);
	return ferry_kernel_choose(&facts);
}

/* A call of no elements counts as carried: nothing has to run. */
bool ferry_kernels_carry(const struct ferryComm *comm, const struct ferry_request *request)
{
	const struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	if (!mailboxes->ready || request->collective >= FERRY_ALLTOALLV || request->program || request->open ||
	    request->shared || request->sums || request->left_out.count || comm->programs.replace)
		return false;
	return !request->count || choose(mailboxes, request).kernel;
}

/* The senders and receivers, and where the blocks lie. */
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
void ferry_kernels_fill_operation(const struct ferry_request *request, const struct ferry_redop *factor,
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
	ferry_kernels_fill_operation(request, &factor, call);
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

/* Fills in the calls of the batch. Returns kernel, blocks and threads for all of them. */
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

/* Whether no request before it has the same stream. */
static bool is_new(const struct ferry_request *requests, uint32_t which)
{
	uint32_t i = 0;
	while (i < which && requests[i].stream != requests[which].stream)
		i++;
	return i == which;
}

/* To join one that captures and one that does not would end the capture, or capture both. NCCL refuses them, too. */
static ferryResult_t check_captures(struct ferry_device *device, ferryStream_t stream, ferryStream_t other)
{
	struct ferry_stream_state one = {0}, two = {0};
	ferryResult_t result = device->ops->check_stream(device, stream, &one);
	if (!result)
		result = device->ops->check_stream(device, other, &two);
	if (result || one.captures == two.captures)
		return result;
	return ferry_fail(ferryInvalidUsage, "streams %p and %p of one group and communicator: one of them captures",
	                  (void *)stream, (void *)other);
}

/* behind: the calls' streams wait for `stream`; else it waits for them. */
static ferryResult_t join_streams(const struct ferry_request *requests, uint32_t nrequests, ferryStream_t stream,
                                  bool behind)
{
	struct ferry_mailboxes *mailboxes = &requests[0].comm->mailboxes;
	struct ferry_device *device = mailboxes->device;
	enum ferry_box_line line = requests[0].collective == FERRY_SENDRECV ? FERRY_BOX_MESSAGES : FERRY_BOX_CALLS;
	ferryResult_t result = ferrySuccess;
	for (uint32_t i = 1; i < nrequests && !behind && !result; i++)
		if (is_new(requests, i))
			result = check_captures(device, requests[0].stream, requests[i].stream);
	for (uint32_t i = 0; i < nrequests && !result; i++) {
		ferryStream_t other = requests[i].stream;
		if (is_new(requests, i))
			result = device->ops->kernels->follow(device, &mailboxes->box->orders[line],
			                                      behind ? other : stream, behind ? stream : other);
	}
	return result;
}

/* call: the kernel's argument. */
static ferryResult_t put(struct ferryComm *comm, enum ferry_box_line line, void *function, uint32_t blocks,
                         uint32_t threads, ferryStream_t stream, struct ferry_kernel_call *call)
{
	struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	struct ferry_device *device = mailboxes->device;
	struct ferry_box *box = mailboxes->box;
	call->state = &box->states[line];
	ferryResult_t result = device->ops->kernels->launch(device, function, blocks, threads, stream,
	                                                    &box->orders[line], call, ferry_box_hold, ferry_box_drop,
	                                                    box);
	if (!result)
		ferry_mailboxes_count(mailboxes);
	return result;
}

static ferryResult_t end(ferryResult_t result, const struct ferry_request *request)
{
	if (result == ferryUnhandledDeviceError) /* it may be in the stream, and the other ranks wait for it */
		ferry_rank_fail(&request->comm->rank, result, ferry_last_message());
	return result ? ferry_fail_context(result, "%s", ferry_collective_name(request->collective)) : ferrySuccess;
}

static ferryResult_t launch(struct batch *batch, struct ferryComm *comm)
{
	struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	const struct ferry_kernel_choice choice = complete(batch, mailboxes);
	ferryStream_t stream = batch->requests[0].stream;
	ferryResult_t result = join_streams(batch->requests, batch->count, stream, false);
	if (!result)
		result = put(comm, FERRY_BOX_CALLS,
		             ferry_modules_function(mailboxes->device, batch->type, choice.kernel), choice.blocks,
		             choice.threads, stream, &batch->group.calls[0]);
	if (!result)
		result = join_streams(batch->requests, batch->count, stream, true);
	return end(result, &batch->requests[0]);
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

/* ---- messages ---- */

#define OWN_OF_BLOCK (32u << 10)

_Static_assert(sizeof(struct ferry_kernel_messages) <= 4096, "a kernel's argument");

bool ferry_kernels_carry_message(const struct ferryComm *comm, uint64_t bytes)
{
	const struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	return mailboxes->ready && bytes <= ferry_kernel_message_most(mailboxes->blank.nranks, mailboxes->peer);
}

static uint32_t way_of(const struct ferry_request *request)
{
	return (uint32_t)request->root + (request->direction == FERRY_DIR_D2H ? 0 : FERRY_KERNEL_RANKS);
}

/* Lists the messages by ways, those of no bytes aside, which are nothing at both ends. Returns how many there are. */
static uint32_t list(const struct ferry_request *requests, uint32_t nrequests, struct ferry_kernel_messages *all,
                     struct ferry_kernel_message *messages)
{
	const struct ferry_mailboxes *mailboxes = &requests[0].comm->mailboxes;
	uint32_t next[FERRY_MESSAGE_WAYS + 1] = {0}, most = FERRY_MESSAGE_STRANDS(!mailboxes->peer);
	all->call = mailboxes->blank;
	memset(&all->table, 0, sizeof *all - offsetof(struct ferry_kernel_messages, table));
	for (uint32_t i = 0; i < nrequests; i++)
		next[way_of(&requests[i]) + 1] += !!block_bytes(&requests[i]);
	for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++) {
		all->first[way] = (uint16_t)next[way];
		next[way + 1] += next[way];
	}
	for (uint32_t i = 0; i < nrequests; i++) {
		const struct ferry_request *request = &requests[i];
		uint64_t bytes = block_bytes(request);
		uint32_t way = way_of(request), piece = ferry_kernel_message_piece(bytes, mailboxes->peer);
		char *buffer = way < FERRY_KERNEL_RANKS ? (char *)(uintptr_t)request->send : request->receive;
		if (!bytes)
			continue;
		messages[next[way]++] = (struct ferry_kernel_message){buffer, (uint32_t)bytes, piece};
		all->pieces[way] += (uint32_t)((bytes + piece - 1) / piece);
	}
	all->pieces[mailboxes->blank.rank] = all->pieces[FERRY_KERNEL_RANKS + mailboxes->blank.rank] = 0;
	for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++)
		all->items[way + 1] = (uint16_t)(all->items[way] + (all->pieces[way] < most ? all->pieces[way] : most));
	return next[FERRY_MESSAGE_WAYS];
}

static ferryResult_t put_messages(struct ferryComm *comm, uint32_t blocks, uint32_t threads, ferryStream_t stream,
                                  struct ferry_kernel_messages *all)
{
	void *function = ferry_modules_function(comm->mailboxes.device, ferryUint8, FERRY_KERNEL_MESSAGES);
	return put(comm, FERRY_BOX_MESSAGES, function, blocks, threads, stream, &all->call);
}

/* Fills the table, by kernels that each have a part of it in their argument. */
static ferryResult_t fill_table(struct ferryComm *comm, const struct ferry_kernel_message *messages, uint32_t count,
                                ferryStream_t stream, struct ferry_kernel_messages *all)
{
	const struct ferry_mailboxes *mailboxes = &comm->mailboxes;
	struct ferry_kernel_messages part = {.call = mailboxes->blank};
	ferryResult_t result = ferrySuccess;
	if (count > FERRY_MESSAGES_TABLE)
		return ferry_fail(ferryInvalidUsage, "%u messages of a group: %u at most", count, FERRY_MESSAGES_TABLE);
	part.table = all->table = (void *)((char *)mailboxes->box->states + FERRY_BOX_TABLE);
	for (uint32_t at = 0; at < count && !result; at += part.puts) {
		part.puts_at = (uint16_t)at;
		part.puts = (uint16_t)(count - at < FERRY_MESSAGES_MOST ? count - at : FERRY_MESSAGES_MOST);
		memcpy(part.messages, messages + at, part.puts * sizeof *messages);
		result = put_messages(comm, 1, FERRY_MESSAGES_MOST, stream, &part);
	}
	return result;
}

/*
 * A lane for each packet, or part of a line, of the largest piece. A block for each strand, or for each 32 KiB that the
 * rank sends to itself where those are more, up to the blocks that a kernel may have.
 */
static ferryResult_t launch_messages(const struct ferry_request *requests, uint32_t nrequests, ferryStream_t stream)
{
	struct ferryComm *comm = requests[0].comm;
	struct ferry_kernel_messages all;
	struct ferry_kernel_message *messages = nrequests > FERRY_MESSAGES_MOST ? malloc(nrequests * sizeof *messages)
	                                                                        : all.messages;
	const uint32_t self = comm->mailboxes.blank.rank;
	uint32_t piece = 0;
	uint64_t own = 0;
	ferryResult_t result = ferrySuccess;
	if (!messages)
		return ferry_fail(ferrySystemError, "no memory for %u messages", nrequests);
	uint32_t count = list(requests, nrequests, &all, messages), blocks = all.items[FERRY_MESSAGE_WAYS];
	for (uint32_t i = 0; i < count; i++)
		piece = messages[i].piece > piece ? messages[i].piece : piece;
	for (uint32_t i = all.first[self]; i < all.first[self + 1]; i++)
		own += messages[i].bytes;
	if (blocks < (own + OWN_OF_BLOCK - 1) / OWN_OF_BLOCK)
		blocks = (uint32_t)((own + OWN_OF_BLOCK - 1) / OWN_OF_BLOCK);
	if (messages != all.messages)
		result = fill_table(comm, messages, count, stream, &all);
	if (blocks && !result)
		result = put_messages(comm, blocks < comm->mailboxes.blocks ? blocks : comm->mailboxes.blocks,
		                      piece == FERRY_MESSAGE_LINES ? FERRY_MESSAGE_SLOT / 16 : piece / 8, stream, &all);
	if (messages != all.messages)
		free(messages);
	return result;
}

ferryResult_t ferry_kernels_exchange(const struct ferry_request *requests, uint32_t nrequests,
                                     enum ferry_kernels_step step)
{
	struct ferry_mailboxes *mailboxes = &requests[0].comm->mailboxes;
	struct ferry_device *device = mailboxes->device;
	ferryStream_t stream = requests[0].stream;
	ferryResult_t result = ferrySuccess;
	if (step != FERRY_KERNELS_WHOLE)
		result = device->ops->kernels->stream_beside(device, &mailboxes->box->orders[FERRY_BOX_MESSAGES],
		                                             &stream);
	if (!result && step != FERRY_KERNELS_END)
		result = join_streams(requests, nrequests, stream, false);
	if (!result && step != FERRY_KERNELS_END)
		result = launch_messages(requests, nrequests, stream);
	if (!result && step != FERRY_KERNELS_BEGIN)
		result = join_streams(requests, nrequests, stream, true);
	return end(result, &requests[0]);
}
