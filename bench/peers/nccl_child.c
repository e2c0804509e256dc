/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ferry-perf-nccl: the child that makes NCCL's calls for one rank of `ferry-perf --vs nccl`, with one setting of NCCL,
 * on the GPU buffers of its parent. Arguments: the socket to the parent, the parent's process id, and the setting as
 * NAME=value, which it puts into its environment before it opens NCCL. It does what the socket orders, and ends with
 * it.
 */
#include "bench/command/sample.h"
#include "bench/peers/nccl_library.h"
#include "bench/peers/nccl_order.h"
#include "bench/rank/gpu.h"
#include "ipc/error.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

_Static_assert(sizeof(ncclUniqueId) == sizeof((struct nccl_order *)0)->id, "ids travel as bytes");
_Static_assert((int)ncclFloat32 == (int)ferryFloat32 && (int)ncclBfloat16 == (int)ferryBfloat16 &&
                       (int)ncclFloat8e5m2 == (int)ferryFloat8e5m2 && (int)ncclAvg == (int)ferryAvg,
               "Ferry's types and reductions have NCCL's values");

struct peer {
	struct nccl_library nccl;
	ncclComm_t comm;
	CUstream stream;
	CUevent first, last; /* around the timed calls of a row */
	char *send, *receive; /* the parent's buffers */
	int rank, nranks;
	ncclRedOp_t scaled; /* premulsum, once made */
	bool has_scaled;
};

__attribute__((format(printf, 2, 3))) static bool fail(struct nccl_answer *answer, const char *format, ...)
{
	va_list values;
	va_start(values, format);
	vsnprintf(answer->message, sizeof answer->message, format, values);
	va_end(values);
	answer->failed = 1;
	return false;
}

static bool cuda_good(CUresult result, const char *tried, struct nccl_answer *answer)
{
	return !gpu_good(result, tried) || fail(answer, "%s", ferry_last_message());
}

static bool nccl_good(const struct peer *peer, ncclResult_t result, const char *tried, struct nccl_answer *answer)
{
	if (!result)
		return true;
	return fail(answer, "%s: %s (NCCL result %d): %s", tried, peer->nccl.GetErrorString(result), (int)result,
	            peer->nccl.GetLastError(peer->comm));
}

/* ---- start ---- */

/*
 * Without P2P NCCL has no use for the other ranks' GPUs, and a process that sees one alone starts in half the time. To
 * be called before the first call of CUDA.
 */
static void see_own_gpu(const struct gpu_shared *buffer)
{
	const char *apart = getenv("NCCL_P2P_DISABLE");
	char name[48];
	if (!apart || strtol(apart, NULL, 0) != 1) /* as NCCL reads it */
		return;
	gpu_name(buffer, name);
	setenv("CUDA_VISIBLE_DEVICES", name, 1);
}

static bool open_all(struct peer *peer, const struct nccl_order *order, struct nccl_answer *answer)
{
	CUcontext context;
	int ordinal;
	see_own_gpu(&order->send_buffer);
	const char *refused = nccl_library_open(&peer->nccl);
	if (!refused)
		refused = gpu_missing();
	if (refused)
		return fail(answer, "%s", refused);
	/* The GPU that the rank's buffers are on, and the buffers. */
	if (gpu_find(&order->send_buffer, &ordinal) || gpu_enter(ordinal, &context) ||
	    gpu_reach(&order->send_buffer, &peer->send) || gpu_reach(&order->receive_buffer, &peer->receive))
		return fail(answer, "%s", ferry_last_message());
	peer->rank = order->rank;
	peer->nranks = order->nranks;
	return cuda_good(gpu_driver->StreamCreate(&peer->stream, CU_STREAM_NON_BLOCKING), "making a stream", answer) &&
	       cuda_good(gpu_driver->EventCreate(&peer->first, CU_EVENT_DEFAULT), "making an event", answer) &&
	       cuda_good(gpu_driver->EventCreate(&peer->last, CU_EVENT_DEFAULT), "making an event", answer) &&
	       nccl_good(peer, peer->nccl.GetVersion(&answer->version), "ncclGetVersion", answer);
}

static bool make_id(struct peer *peer, struct nccl_answer *answer)
{
	ncclUniqueId id;
	if (!nccl_good(peer, peer->nccl.GetUniqueId(&id), "ncclGetUniqueId", answer))
		return false;
	memcpy(answer->id, &id, sizeof id);
	return true;
}

static bool join(struct peer *peer, const struct nccl_order *order, struct nccl_answer *answer)
{
	ncclUniqueId id;
	memcpy(&id, order->id, sizeof id);
	return nccl_good(peer, peer->nccl.CommInitRank(&peer->comm, peer->nranks, id, peer->rank), "ncclCommInitRank",
	                 answer);
}

/* ---- calls ---- */

static char *place_of(const struct peer *peer, const struct nccl_place *place)
{
	char *buffer = place->buffer == NCCL_SEND_BUFFER ? peer->send : peer->receive;
	return place->buffer == NCCL_NO_BUFFER ? NULL : buffer + place->offset;
}

/* A block to and from every peer, as sends and receives of one group; counts of zero send nothing. */
static ncclResult_t exchange(const struct peer *peer, const struct nccl_order *order, const char *send, char *receive)
{
	const struct nccl_library *nccl = &peer->nccl;
	const struct ferry_trial_counts *counts = &order->counts;
	ncclDataType_t type = (ncclDataType_t)order->type;
	size_t size = ferry_type_size((ferryDataType_t)order->type);
	ncclResult_t result = nccl->GroupStart(), ended;
	for (int other = 0; other < peer->nranks && !result; other++) {
		if (counts->sendcounts[other])
			result = nccl->Send(send + counts->senddispls[other] * size, counts->sendcounts[other], type,
			                    other, peer->comm, peer->stream);
		if (!result && counts->recvcounts[other])
			result = nccl->Recv(receive + counts->recvdispls[other] * size, counts->recvcounts[other], type,
			                    other, peer->comm, peer->stream);
	}
	ended = nccl->GroupEnd();
	return result ? result : ended;
}

/* What the collectives without an NCCL function exchange, in the form of alltoallv's counts. */
static void make_counts(const struct peer *peer, struct nccl_order *order)
{
	struct ferry_trial_counts *counts = &order->counts;
	bool gathers = order->collective == FERRY_GATHER, scatters = order->collective == FERRY_SCATTER;
	bool ring = order->collective == FERRY_SENDRECV, all = order->collective == FERRY_ALLTOALL;
	int n = peer->nranks, rank = peer->rank, root = (int)order->root;
	if (order->collective == FERRY_ALLTOALLV)
		return;
	for (int other = 0; other < n; other++) {
		bool to = ring ? other == (rank + 1) % n : gathers ? other == root : !scatters || rank == root;
		bool from = ring ? other == (rank + n - 1) % n : scatters ? other == root : !gathers || rank == root;
		counts->sendcounts[other] = to ? order->count : 0;
		counts->recvcounts[other] = from ? order->count : 0;
		counts->senddispls[other] = scatters || all ? (size_t)other * order->count : 0;
		counts->recvdispls[other] = gathers || all ? (size_t)other * order->count : 0;
	}
}

static ncclResult_t call(const struct peer *peer, const struct nccl_order *order)
{
	const struct nccl_library *nccl = &peer->nccl;
	const char *send = place_of(peer, &order->send);
	char *receive = place_of(peer, &order->receive);
	size_t count = order->count;
	ncclDataType_t type = (ncclDataType_t)order->type;
	ncclRedOp_t op = order->op < ferryNumOps ? (ncclRedOp_t)order->op : peer->scaled;
	int root = (int)order->root;
	ncclComm_t comm = peer->comm;
	cudaStream_t stream = peer->stream;
	switch ((enum ferry_collective)order->collective) {
	case FERRY_ALLREDUCE:
		return nccl->AllReduce(send, receive, count, type, op, comm, stream);
	case FERRY_ALLGATHER:
		return nccl->AllGather(send, receive, count, type, comm, stream);
	case FERRY_REDUCESCATTER:
		return nccl->ReduceScatter(send, receive, count, type, op, comm, stream);
	case FERRY_BROADCAST:
		return nccl->Broadcast(send, receive, count, type, root, comm, stream);
	case FERRY_REDUCE_TO_ROOT:
		return nccl->Reduce(send, receive, count, type, op, root, comm, stream);
	case FERRY_ALLTOALL:
		if (nccl->AlltoAll)
			return nccl->AlltoAll(send, receive, count, type, comm, stream);
		break;
	case FERRY_GATHER:
		if (nccl->Gather)
			return nccl->Gather(send, receive, count, type, root, comm, stream);
		break;
	case FERRY_SCATTER:
		if (nccl->Scatter)
			return nccl->Scatter(send, receive, count, type, root, comm, stream);
		break;
	case FERRY_ALLTOALLV:
	case FERRY_SENDRECV:
		break;
	}
	return exchange(peer, order, send, receive);
}

static void name_call(const struct nccl_order *order, char tried[64])
{
	snprintf(tried, 64, "%s of %llu elements", ferry_collective_name((enum ferry_collective)order->collective),
	         (unsigned long long)order->count);
}

static bool enqueue(const struct peer *peer, const struct nccl_order *order, uint32_t calls, struct nccl_answer *answer)
{
	char tried[64];
	name_call(order, tried);
	for (uint32_t i = 0; i < calls; i++)
		if (!nccl_good(peer, call(peer, order), tried, answer))
			return false;
	return true;
}

static bool settle(const struct peer *peer, const struct nccl_order *order, struct nccl_answer *answer)
{
	char tried[64];
	ncclResult_t error = ncclSuccess;
	name_call(order, tried);
	return cuda_good(gpu_driver->StreamSynchronize(peer->stream), tried, answer) &&
	       nccl_good(peer, peer->nccl.CommGetAsyncError(peer->comm, &error), tried, answer) &&
	       nccl_good(peer, error, tried, answer);
}

static bool repeat(const struct peer *peer, const struct nccl_order *order, uint32_t calls, struct nccl_answer *answer)
{
	return enqueue(peer, order, calls, answer) && settle(peer, order, answer);
}

static bool time_row(const struct peer *peer, const struct nccl_order *order, struct nccl_answer *answer)
{
	float ms = 0;
	bool fine = enqueue(peer, order, order->how.lead, answer) &&
	            cuda_good(gpu_driver->EventRecord(peer->first, peer->stream), "recording an event", answer) &&
	            enqueue(peer, order, order->how.calls, answer) &&
	            cuda_good(gpu_driver->EventRecord(peer->last, peer->stream), "recording an event", answer) &&
	            settle(peer, order, answer) &&
	            cuda_good(gpu_driver->EventElapsedTime(&ms, peer->first, peer->last), "timing calls", answer);
	answer->us = ms * 1e3 / order->how.calls;
	return fine;
}

static bool run(struct peer *peer, struct nccl_order *order, struct nccl_answer *answer)
{
	if (!peer->comm)
		return fail(answer, "ordered to call before it has joined a communicator");
	if (order->op >= ferryNumOps && !peer->has_scaled) {
		if (!nccl_good(peer,
		               peer->nccl.RedOpCreatePreMulSum(&peer->scaled, &order->scalar,
		                                               (ncclDataType_t)order->type, ncclScalarHostImmediate,
		                                               peer->comm),
		               "ncclRedOpCreatePreMulSum", answer))
			return false;
		peer->has_scaled = true;
	}
	make_counts(peer, order);
	if (order->how.row)
		return time_row(peer, order, answer);
	if (order->how.lead && !repeat(peer, order, order->how.lead, answer))
		return false;
	sample_pause(order->how.pause_us);
	double before = sample_now_us();
	if (!repeat(peer, order, order->how.calls, answer))
		return false;
	answer->us = (sample_now_us() - before) / order->how.calls;
	return true;
}

static bool obey(struct peer *peer, struct nccl_order *order, struct nccl_answer *answer)
{
	switch (order->kind) {
	case NCCL_OPEN:
		return open_all(peer, order, answer);
	case NCCL_MAKE_ID:
		return make_id(peer, answer);
	case NCCL_JOIN:
		return join(peer, order, answer);
	case NCCL_RUN:
		return run(peer, order, answer);
	default:
		return fail(answer, "unknown order %u", order->kind);
	}
}

int main(int argc, char **argv)
{
	static struct nccl_order order;
	struct peer peer = {0};
	long parent = argc > 2 ? strtol(argv[2], NULL, 10) : 0;
	int channel = argc > 2 ? (int)strtol(argv[1], NULL, 10) : -1;
	ssize_t got;
	if (parent < 1 || channel < 0) {
		fprintf(stderr, "ferry-perf-nccl: started by ferry-perf --vs nccl; not a command of its own\n");
		return 64;
	}
	for (int i = 3; i < argc; i++)
		putenv(argv[i]);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* it died before the line above */
		return 1;
	/* What NCCL prints must not get into ferry-perf's table. */
	dup2(STDERR_FILENO, STDOUT_FILENO);
	while ((got = recv(channel, &order, sizeof order, 0)) != 0) {
		struct nccl_answer answer = {0};
		if (got < 0 && errno == EINTR)
			continue;
		if (got != sizeof order) {
			fprintf(stderr, "ferry-perf-nccl: an order of %zd bytes instead of %zu: %s\n", got,
			        sizeof order, got < 0 ? strerror(errno) : "another build?");
			_exit(1);
		}
		obey(&peer, &order, &answer);
		if (send(channel, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
			break;
	}
	/* The other ranks' children may be gone already: ncclCommDestroy would wait for them. The kernel frees all. */
	_exit(0);
}
