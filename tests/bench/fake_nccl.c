/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NCCL whose ranks do not meet, and that fills the receive buffer with a number per function, for the tests of
 * ferry-perf's NCCL children, over the double of the driver. It refuses trees as NCCL refuses settings, and buffers
 * that are not on the current GPU; it dies of NCCL_PROTO=LL128, which stands for any crash.
 */
#include "orchestrator/nccl_types.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NCCL_VALUE(since, type, name, parameters, arguments) type nccl##name parameters;
#include "orchestrator/functions.def"

struct ncclComm {
	int nranks;
};

/* At once, and again in the stream. */
static ncclResult_t fill(void *receive, size_t bytes, int value, CUstream stream)
{
	const char *algorithm = getenv("NCCL_ALGO");
	CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
	CUdeviceptr buffer = (CUdeviceptr)(uintptr_t)receive;
	CUdevice current = -1;
	int ordinal = -2;
	void *values[] = {&ordinal};
	if (!receive) /* a reduction of another root */
		return ncclSuccess;
	if (cuCtxGetDevice(&current) || cuPointerGetAttributes(1, &wanted, values, buffer) || ordinal != current)
		return ncclInvalidArgument;
	if (algorithm && !strcmp(algorithm, "Tree"))
		return ncclInvalidUsage;
	memset(fake_cuda_reach(buffer), value, bytes);
	return cuMemsetD8Async(buffer, (unsigned char)value, bytes, stream) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclGetVersion(int *version)
{
	*version = 22809;
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	memset(id, 'i', sizeof *id);
	return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	return result == ncclInvalidUsage ? "invalid usage" : "error";
}

const char *ncclGetLastError(ncclComm_t comm)
{
	(void)comm;
	return "no tree here";
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	const char *protocol = getenv("NCCL_PROTO");
	if (protocol && !strcmp(protocol, "LL128"))
		abort();
	if (id.internal[0] != 'i' || rank < 0 || rank >= nranks)
		return ncclInvalidArgument;
	printf("NCCL prints to standard output\n");
	*comm = malloc(sizeof **comm);
	(*comm)->nranks = nranks;
	return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	(void)comm;
	*error = ncclSuccess;
	return ncclSuccess;
}

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
	(void)scalar, (void)type, (void)residence, (void)comm;
	*op = (ncclRedOp_t)ncclNumOps;
	return ncclSuccess;
}

ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)type, (void)comm;
	return fill(receive, count * 4, op == ncclMax ? 1 : 2, (CUstream)stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream)
{
	(void)send, (void)type, (void)comm;
	return fill(receive, count * 4, 3, (CUstream)stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)type, (void)op, (void)comm;
	return fill(receive, count * 4, 4, (CUstream)stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)type, (void)root, (void)comm;
	return fill(receive, count * 4, 5, (CUstream)stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
	(void)send, (void)type, (void)op, (void)root, (void)comm;
	return fill(receive, count * 4, 6, (CUstream)stream);
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
	(void)send, (void)count, (void)type, (void)stream;
	return peer < comm->nranks ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclRecv(void *receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)
{
	(void)type;
	return peer < comm->nranks ? fill(receive, count * 4, 7, (CUstream)stream) : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart(void)
{
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	return ncclSuccess;
}
