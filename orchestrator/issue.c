/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/issue.h"

#include "orchestrator/real.h"

#define ISSUE(name, ...)                                                                                               \
	(c->config ? ferry_nccl_real_##name##Config(__VA_ARGS__, c->config) : ferry_nccl_real_##name(__VA_ARGS__))

static ncclResult_t issue_one(const struct ferry_nccl_call *c)
{
	switch (c->collective) {
	case FERRY_ALLREDUCE:
		return ISSUE(AllReduce, c->send, c->receive, c->count, c->type, c->op, c->handle, c->stream);
	case FERRY_ALLGATHER:
		return ISSUE(AllGather, c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_REDUCESCATTER:
		return ISSUE(ReduceScatter, c->send, c->receive, c->count, c->type, c->op, c->handle, c->stream);
	case FERRY_BROADCAST:
		if (c->legacy)
			return ferry_nccl_real_Bcast(c->receive, c->count, c->type, c->root, c->handle, c->stream);
		return ISSUE(Broadcast, c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_REDUCE_TO_ROOT:
		return ISSUE(Reduce, c->send, c->receive, c->count, c->type, c->op, c->root, c->handle, c->stream);
	case FERRY_ALLTOALL:
		return ISSUE(AlltoAll, c->send, c->receive, c->count, c->type, c->handle, c->stream);
	case FERRY_GATHER:
		return ISSUE(Gather, c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SCATTER:
		return ISSUE(Scatter, c->send, c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_SENDRECV: /* has no settings */
		if (c->sends)
			return ferry_nccl_real_Send(c->send, c->count, c->type, c->root, c->handle, c->stream);
		return ferry_nccl_real_Recv(c->receive, c->count, c->type, c->root, c->handle, c->stream);
	case FERRY_ALLTOALLV: /* NCCL has no such function */
		break;
	}
	return ncclInternalError;
}

/* ---- blocks with gaps between them ---- */

/* Makes a call for block `block` of the original one, or for one end of it. */
static ncclResult_t issue_as(const struct ferry_nccl_call *call, enum ferry_collective collective, const void *send,
                             void *receive, int root)
{
	struct ferry_nccl_call one = *call;
	one.collective = collective;
	one.send = send;
	one.receive = receive;
	one.root = root;
	one.sends = collective == FERRY_SENDRECV && send;
	return issue_one(&one);
}

/*
 * Makes the messages that NCCL itself makes of the call: the same senders and receivers. In place a rank sends itself
 * nothing.
 */
static ncclResult_t issue_messages(const struct ferry_nccl_call *call, const char *sent, char *received, int peer)
{
	int me = call->comm->rank;
	bool sends = call->collective == FERRY_ALLTOALL ||
	             (call->collective == FERRY_GATHER ? peer == call->root : me == call->root);
	bool receives = call->collective == FERRY_ALLTOALL ||
	                (call->collective == FERRY_GATHER ? me == call->root : peer == call->root);
	ncclResult_t result = ncclSuccess;
	if (peer == me && sent == received)
		return ncclSuccess;
	if (sends)
		result = issue_as(call, FERRY_SENDRECV, sent, NULL, peer);
	if (receives && ferry_nccl_is_fine(result))
		result = issue_as(call, FERRY_SENDRECV, NULL, received, peer);
	return result;
}

static ncclResult_t issue_block(const struct ferry_nccl_call *call, int block)
{
	size_t offset = (size_t)block * call->stride * ferry_type_size((ferryDataType_t)call->type);
	const char *send = call->send, *sent = send ? send + offset : NULL;
	char *receive = call->receive, *received = receive ? receive + offset : NULL;
	switch (call->collective) {
	case FERRY_ALLGATHER:
		return issue_as(call, FERRY_BROADCAST, send, received, block);
	case FERRY_REDUCESCATTER:
		return issue_as(call, FERRY_REDUCE_TO_ROOT, sent, receive, block);
	case FERRY_GATHER:
		return issue_messages(call, send, received, block);
	case FERRY_SCATTER:
		return issue_messages(call, sent, receive, block);
	case FERRY_ALLTOALL:
		return issue_messages(call, sent, received, block);
	case FERRY_ALLREDUCE:
	case FERRY_BROADCAST:
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV: /* calls without blocks, and one that NCCL does not have */
		break;
	}
	return ncclInternalError;
}

/*
 * An AllGather becomes Broadcasts and a ReduceScatter Reduces, not messages: so they keep their place in NCCL's order
 * of collectives, which has no messages, and NCCL needs no buffers for each peer.
 */
static ncclResult_t issue_blocks(const struct ferry_nccl_call *call)
{
	ncclResult_t result = ferry_nccl_real_GroupStart();
	if (result)
		return result;
	for (int block = 0; block < call->comm->nranks && ferry_nccl_is_fine(result); block++)
		result = issue_block(call, block);
	ncclResult_t ended = ferry_nccl_real_GroupEnd();
	return ferry_nccl_is_fine(result) ? ended : result;
}

static struct ferry_nccl_tuner *asked_tuner(const struct ferry_nccl_call *call)
{
	return call->comm && ferry_tuning_is_asked_for(call->collective) ? call->comm->tuner : NULL;
}

/* An AllGather in blocks is issued as Broadcasts, which have no candidates. */
static unsigned candidate_of(const struct ferry_nccl_call *call)
{
	if (!ferry_tuning_is_free(call->collective) || (call->collective == FERRY_ALLGATHER && call->stride))
		return 0;
	return call->candidate;
}

/*
 * The communicator may have been aborted while Ferry's part of the call waited for another rank: NCCL no longer knows
 * it then. Calls that wait inside NCCL end with the same error.
 */
ncclResult_t ferry_nccl_issue(const struct ferry_nccl_call *call)
{
	if (call->comm && atomic_load_explicit(&call->comm->aborted, memory_order_acquire))
		return ncclInternalError;
	struct ferry_nccl_tuner *tuner = asked_tuner(call);
	if (tuner)
		ferry_nccl_tuner_set(tuner, candidate_of(call));
	return call->stride ? issue_blocks(call) : issue_one(call);
}

/* ---- NCCL alone ---- */

/* NCCL asks its tuner once for a group: where candidates of a communicator differ, its calls get NCCL's own choice. */
static void settle_candidates(const struct ferry_nccl_call *calls, int n)
{
	for (int i = 0; i < n; i++) {
		struct ferry_nccl_tuner *tuner = asked_tuner(&calls[i]);
		if (tuner && ferry_nccl_tuner_candidate(tuner) != candidate_of(&calls[i]))
			ferry_nccl_tuner_set(tuner, 0);
	}
}

ncclResult_t ferry_nccl_issue_all(const struct ferry_nccl_call *calls, int n)
{
	if (n == 1)
		return ferry_nccl_issue(&calls[0]);
	ncclResult_t result = ferry_nccl_real_GroupStart();
	if (result)
		return result;
	for (int i = 0; i < n && ferry_nccl_is_fine(result); i++)
		result = ferry_nccl_issue(&calls[i]);
	settle_candidates(calls, n);
	ncclResult_t ended = ferry_nccl_real_GroupEnd();
	return ferry_nccl_is_fine(result) ? ended : result;
}
