/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL, opened at run time: one struct of the entry points that the child of `ferry-perf --vs nccl` calls.
 */
#ifndef FERRY_BENCH_NCCL_LIBRARY_H
#define FERRY_BENCH_NCCL_LIBRARY_H

#include <nccl.h>
#include <stdbool.h>

#define NCCL_FUNCTIONS(F) \
	F(GetVersion) F(GetUniqueId) F(GetErrorString) F(GetLastError) F(CommInitRank) F(CommGetAsyncError) \
	F(RedOpCreatePreMulSum) F(AllReduce) F(AllGather) F(ReduceScatter) F(Broadcast) F(Reduce) F(Send) F(Recv) \
	F(GroupStart) F(GroupEnd)

struct nccl_library {
#define NCCL_MEMBER(name) __typeof__(nccl##name) *name;
	NCCL_FUNCTIONS(NCCL_MEMBER)
#undef NCCL_MEMBER
	/* NCCL 2.28 has them; NULL in older ones. Declared here, so that older headers will do. */
	ncclResult_t (*AlltoAll)(const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,
	                         cudaStream_t stream);
	ncclResult_t (*Gather)(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
	                       ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*Scatter)(const void *send, void *receive, size_t count, ncclDataType_t type, int root,
	                        ncclComm_t comm, cudaStream_t stream);
};

/**
 * Opens FERRY_NCCL_LIBRARY, else libnccl.so.2, else the one that pip installed for python3. NULL on success, else why
 * not (lives until the next call).
 */
const char *nccl_library_open(struct nccl_library *nccl);

#endif
