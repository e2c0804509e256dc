/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/request.h"

#include "rank-lib/program/chunks.h"

void ferry_request_extents(const struct ferry_request *request, const struct ferry_rank *rank, uint64_t *sends,
                           uint64_t *receives)
{
	uint32_t send_blocks, receive_blocks;
	uint64_t block = request->count * ferry_type_size(request->type);
	if (request->collective == FERRY_SENDRECV) {
		*sends = request->direction == FERRY_DIR_D2H ? block : 0;
		*receives = request->direction == FERRY_DIR_H2D ? block : 0;
		return;
	}
	if (request->collective == FERRY_ALLTOALLV) {
		*sends = *receives = 0;
		for (int peer = 0; peer < rank->nranks; peer++) {
			*sends += request->sendcounts[peer] * ferry_type_size(request->type);
			*receives += request->recvcounts[peer] * ferry_type_size(request->type);
		}
		return;
	}
	ferry_collective_chunks(request->collective, (uint32_t)rank->nranks, 1, (uint32_t)request->root,
	                        (uint32_t)rank->self, &send_blocks, &receive_blocks);
	const uint64_t left = request->left_out.mirrored ? 0 : request->left_out.count * ferry_type_size(request->type);
	*sends = send_blocks ? send_blocks * block - left : 0;
	*receives = receive_blocks && !request->sums ? receive_blocks * block - left : 0;
}

/* Where the send buffer must be for the call to be in place; NULL if the collective has no such form here. */
static const char *in_place_send(const struct ferry_request *request, const struct ferry_rank *rank)
{
	uint64_t block = request->count * ferry_type_size(request->type) * (uint64_t)rank->self;
	switch (request->collective) {
	case FERRY_ALLGATHER:
	case FERRY_GATHER:
		return (const char *)request->receive + block;
	case FERRY_REDUCESCATTER:
	case FERRY_SCATTER:
		return (const char *)request->receive - block;
	case FERRY_ALLREDUCE:
	case FERRY_BROADCAST:
	case FERRY_REDUCE_TO_ROOT:
	case FERRY_ALLTOALL:
		return request->receive;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV: /* a rank sends or receives: it has one buffer */
		return NULL;
	}
	return NULL;
}

static ferryResult_t check_counts(const struct ferry_request *request, const struct ferry_rank *rank)
{
	const char *name = ferry_collective_name(request->collective);
	bool blocks = request->collective != FERRY_SENDRECV && request->collective != FERRY_ALLTOALLV;
	if (request->left_out.count > (blocks ? request->count : 0))
		return ferry_fail(ferryInvalidArgument, "%s: %llu elements of blocks of %llu are left out", name,
		                  (unsigned long long)request->left_out.count, (unsigned long long)request->count);
	const uint64_t most = 1ull << 46; /* among all ranks; a division takes as long as half a check */
	if (request->count > most || request->count * (uint64_t)rank->nranks > most)
		return ferry_fail(ferryInvalidArgument, "%s: count %llu: at most %llu among %d ranks", name,
		                  (unsigned long long)request->count,
		                  (unsigned long long)most / (unsigned long long)rank->nranks, rank->nranks);
	return ferrySuccess;
}

static ferryResult_t check_buffers(const struct ferry_request *request, const struct ferry_rank *rank, uint64_t sends,
                                   uint64_t receives)
{
	const char *name = ferry_collective_name(request->collective);
	if ((sends && !request->send) || (receives && !request->receive))
		return ferry_fail(ferryInvalidArgument, "%s: %s is NULL, and %llu bytes are to be %s", name,
		                  sends && !request->send ? "sendbuff" : "recvbuff",
		                  (unsigned long long)(sends && !request->send ? sends : receives),
		                  sends && !request->send ? "sent" : "received");
	const char *send = request->send, *receive = request->receive;
	if (request->collective == FERRY_ALLTOALLV || !sends || !receives || send == in_place_send(request, rank))
		return ferrySuccess;
	if (send < receive + receives && receive < send + sends)
		return ferry_fail(ferryInvalidArgument,
		                  "%s: sendbuff %p (%llu bytes) and recvbuff %p (%llu bytes) overlap and are not in "
		                  "place",
		                  name, request->send, (unsigned long long)sends, request->receive,
		                  (unsigned long long)receives);
	return ferrySuccess;
}

/* No part that is sent may be written by one that is received. */
static ferryResult_t check_variable_overlap(const struct ferry_request *request, const struct ferry_rank *rank)
{
	uintptr_t send = (uintptr_t)request->send, receive = (uintptr_t)request->receive;
	size_t element = ferry_type_size(request->type);
	for (int to = 0; to < rank->nranks; to++)
		for (int from = 0; from < rank->nranks; from++) {
			uintptr_t out = send + request->senddispls[to] * element,
			          in = receive + request->recvdispls[from] * element;
			uint64_t sent = request->sendcounts[to] * element,
			         received = request->recvcounts[from] * element;
			if (sent && received && out < in + received && in < out + sent)
				return ferry_fail(ferryInvalidArgument,
				                  "alltoallv: the part of sendbuff %p for rank %d and the part of "
				                  "recvbuff %p from rank %d overlap; it has no in-place form",
				                  request->send, to, request->receive, from);
		}
	return ferrySuccess;
}

static ferryResult_t check_variable(const struct ferry_request *request, const struct ferry_rank *rank)
{
	if (!request->sendcounts || !request->senddispls || !request->recvcounts || !request->recvdispls)
		return ferry_fail(ferryInvalidArgument,
		                  "alltoallv: sendcounts %p, sdispls %p, recvcounts %p, rdispls %p: none may be NULL",
		                  (const void *)request->sendcounts, (const void *)request->senddispls,
		                  (const void *)request->recvcounts, (const void *)request->recvdispls);
	uint64_t most = 1ull << 46, self = (uint64_t)rank->self;
	for (int peer = 0; peer < rank->nranks; peer++)
		if (request->sendcounts[peer] > most || request->senddispls[peer] > most ||
		    request->recvcounts[peer] > most || request->recvdispls[peer] > most)
			return ferry_fail(ferryInvalidArgument,
			                  "alltoallv: a count or displacement for peer %d is over %llu", peer,
			                  (unsigned long long)most);
	if (request->sendcounts[self] != request->recvcounts[self])
		return ferry_fail(ferryInvalidUsage, "alltoallv: rank %d sends %zu elements to itself and receives %zu",
		                  rank->self, request->sendcounts[self], request->recvcounts[self]);
	return check_variable_overlap(request, rank);
}

static ferryResult_t check_redop(const struct ferry_request *request, struct ferry_redops *redops)
{
	const char *name = ferry_collective_name(request->collective);
	if (!ferry_collective_reduces(request->collective) || (request->op >= 0 && request->op < ferryNumOps))
		return ferrySuccess;
	struct ferry_redop created = ferry_redops_find(redops, request->op);
	if (!created.used)
		return ferry_fail(ferryInvalidArgument,
		                  "%s: reduction %d: 0 to %d, or one created on this communicator", name,
		                  (int)request->op, ferryNumOps - 1);
	if (created.type != request->type)
		return ferry_fail(ferryInvalidUsage, "%s of %s with a reduction created for %s", name,
		                  ferry_type_name(request->type), ferry_type_name(created.type));
	return ferrySuccess;
}

/* Bytes from the start of the buffer to the last one that the call touches. */
static uint64_t reach(const struct ferry_request *request, const struct ferry_rank *rank, const size_t *counts,
                      const size_t *displacements, uint64_t bytes)
{
	uint64_t end = 0;
	if (request->collective != FERRY_ALLTOALLV)
		return bytes;
	for (int peer = 0; peer < rank->nranks; peer++)
		if (counts[peer] && displacements[peer] + counts[peer] > end)
			end = displacements[peer] + counts[peer];
	return end * ferry_type_size(request->type);
}

static ferryResult_t check_side(struct ferry_device *device, struct ferry_exports *exports, const void *buffer,
                                uint64_t bytes, const char *what)
{
	if (exports && ferry_exports_hold(exports, buffer, bytes))
		return ferrySuccess;
	return device->ops->check_buffer(device, buffer, bytes, what);
}

static ferryResult_t check_memory(const struct ferry_request *request, const struct ferry_rank *rank,
                                  struct ferry_device *device, struct ferry_exports *exports, uint64_t sends,
                                  uint64_t receives)
{
	uint64_t sent = reach(request, rank, request->sendcounts, request->senddispls, sends),
	         received = reach(request, rank, request->recvcounts, request->recvdispls, receives);
	ferryResult_t result = check_side(device, exports, request->send, sent, "sendbuff");
	if (!result && (request->receive != request->send || receives > sends))
		result = check_side(device, exports, request->receive, received, "recvbuff");
	return result ? ferry_fail_context(result, "%s", ferry_collective_name(request->collective)) : result;
}

ferryResult_t ferry_request_check(const struct ferry_request *request, const struct ferry_rank *rank,
                                  struct ferry_redops *redops, struct ferry_device *device,
                                  struct ferry_exports *exports)
{
	uint64_t sends, receives;
	const char *name = ferry_collective_name(request->collective);
	if (!ferry_type_size(request->type))
		return ferry_fail(ferryInvalidArgument, "%s: type %d: 0 to %d", name, (int)request->type,
		                  ferryNumTypes - 1);
	if (request->root < 0 || request->root >= rank->nranks)
		return ferry_fail(ferryInvalidArgument, "%s: %s %d: 0 to %d", name,
		                  request->collective == FERRY_SENDRECV ? "peer" : "root", request->root,
		                  rank->nranks - 1);
	ferryResult_t result = check_redop(request, redops);
	if (!result && request->collective == FERRY_ALLTOALLV)
		result = check_variable(request, rank);
	if (result || (result = check_counts(request, rank)))
		return result;
	ferry_request_extents(request, rank, &sends, &receives);
	result = check_buffers(request, rank, sends, receives);
	return result ? result : check_memory(request, rank, device, exports, sends, receives);
}

struct ferry_redop ferry_request_factor(const struct ferry_request *request, struct ferry_redops *redops)
{
	if (!ferry_collective_reduces(request->collective))
		return (struct ferry_redop){0};
	return ferry_redops_find(redops, request->op);
}

void ferry_request_buffers(const struct ferry_request *request, const struct ferry_rank *rank,
                           const struct ferry_device *device, struct ferry_request_parts *parts,
                           struct ferry_call_buffers *buffers)
{
	size_t element = ferry_type_size(request->type);
	*buffers = (struct ferry_call_buffers){.send = (char *)request->send,
	                                       .receive = request->sums ? NULL : request->receive,
	                                       .stream_copies = device->ops->enqueue_flag};
	if (request->collective != FERRY_ALLTOALLV)
		return;
	for (int peer = 0; peer < rank->nranks; peer++) {
		parts->send_lengths[peer] = request->sendcounts[peer] * element;
		parts->send_offsets[peer] = request->senddispls[peer] * element;
		parts->receive_lengths[peer] = request->recvcounts[peer] * element;
		parts->receive_offsets[peer] = request->recvdispls[peer] * element;
	}
	buffers->send_lengths = parts->send_lengths;
	buffers->send_offsets = parts->send_offsets;
	buffers->receive_lengths = parts->receive_lengths;
	buffers->receive_offsets = parts->receive_offsets;
}
