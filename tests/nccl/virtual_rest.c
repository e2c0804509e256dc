/* SPDX-License-Identifier: Apache-2.0 */
/* What ranks whose time is made (virtual.h) never come to, but for nothing ever failing. */
#include "orchestrator/redops.h"
#include "rank-lib/api/comm_init.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/gpu_sums.h"
#include "rank-lib/kernels/kernel_launch.h"
#include "rank-lib/program/shares.h"

#include <stdio.h>
#include <stdlib.h>

void ferry_rank_adopt_failure(struct ferry_rank *rank)
{
	(void)rank;
}

bool ferry_rank_ends_kernels(struct ferry_rank *rank)
{
	(void)rank;
	return false;
}

#define NEVER(type, name, parameters)                                                                                  \
	type name parameters                                                                                           \
	{                                                                                                              \
		fprintf(stderr, "%s is called\n", #name);                                                              \
		abort();                                                                                               \
	}

#pragma GCC diagnostic ignored "-Wunused-parameter"
NEVER(bool, ferry_kernels_ready, (const struct ferryComm * comm))
NEVER(bool, ferry_gpu_sums_push, (const struct ferryComm * comm, enum ferry_collective collective))
NEVER(bool, ferry_kernels_carry, (const struct ferryComm * comm, const struct ferry_request *request))
NEVER(ferryResult_t, ferry_launch_kernels, (const struct ferry_request * requests, uint32_t nrequests))
NEVER(bool, ferry_kernels_carry_message, (const struct ferryComm * comm, uint64_t bytes))
NEVER(ferryResult_t, ferry_launch_exchange,
      (const struct ferry_request * requests, uint32_t nrequests, enum ferry_kernels_step step))
NEVER(void, ferry_rank_fail_request, (struct ferry_rank * rank, ferryResult_t code, const char *message))
NEVER(void, ferry_rank_abort, (struct ferry_rank * rank, const char *message))
NEVER(ferryResult_t, ferryCommAbort, (ferryComm_t comm))
NEVER(ferryResult_t, ferryCommDestroy, (ferryComm_t comm))
NEVER(const char *, ferryGetLastError, (ferryComm_t comm))
NEVER(bool, ferry_nccl_redop_find, (struct ferry_nccl_comm * comm, ncclRedOp_t op, struct ferry_nccl_redop *redop))
NEVER(ferryResult_t, ferry_fabrics_push, (struct ferry_fabrics * fabrics, bool *puts))
NEVER(ferryResult_t, ferry_comm_make,
      (ferryComm_t * comm, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
       const struct ferry_routers *routers, const struct ferry_maker *maker))
NEVER(bool, ferry_comm_is_mapped, (const struct ferryComm *comm))
NEVER(ferryResult_t, ferry_comm_enter, (struct ferryComm * comm))
NEVER(void, ferry_comm_exit, (struct ferryComm * comm))
NEVER(ferryResult_t, ferryRedOpDestroy, (ferryRedOp_t op, ferryComm_t comm))
NEVER(ferryResult_t, ferryRedOpCreatePreMulSum,
      (ferryRedOp_t * op, void *scalar, ferryDataType_t type, ferryScalarResidence_t residence, ferryComm_t comm))
NEVER(ferryResult_t, ferrySend,
      (const void *send, size_t count, ferryDataType_t type, int peer, ferryComm_t comm, ferryStream_t stream))
NEVER(ferryResult_t, ferryRecv,
      (void *receive, size_t count, ferryDataType_t type, int peer, ferryComm_t comm, ferryStream_t stream))
NEVER(ferryResult_t, ferryReduce,
      (const void *send, void *receive, size_t count, ferryDataType_t type, ferryRedOp_t op, int root,
       ferryComm_t comm, ferryStream_t stream))
NEVER(ferryResult_t, ferryGather,
      (const void *send, void *receive, size_t count, ferryDataType_t type, int root, ferryComm_t comm,
       ferryStream_t stream))
NEVER(ferryResult_t, ferryScatter,
      (const void *send, void *receive, size_t count, ferryDataType_t type, int root, ferryComm_t comm,
       ferryStream_t stream))
NEVER(ferryResult_t, ferryAllToAll,
      (const void *send, void *receive, size_t count, ferryDataType_t type, ferryComm_t comm, ferryStream_t stream))
