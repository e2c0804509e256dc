/* SPDX-License-Identifier: Apache-2.0 */
/**
 * NCCL's types as far as its callers' and its own binary interface need them, so that Ferry builds without nccl.h and
 * CUDA. Structs that Ferry only passes on are opaque: a newer NCCL may have more fields. Not to be included beside
 * nccl.h; tests/nccl/nccl_values.c compares the two.
 */
#ifndef FERRY_ORCHESTRATOR_NCCL_TYPES_H
#define FERRY_ORCHESTRATOR_NCCL_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ncclComm *ncclComm_t;
typedef struct ncclWindow_vidmem *ncclWindow_t;
typedef struct ncclParamHandle *ncclParamHandle_t;
typedef struct CUstream_st *cudaStream_t;

typedef struct {
	char internal[128];
} ncclUniqueId;

typedef enum {
	ncclSuccess = 0,
	ncclUnhandledCudaError = 1,
	ncclSystemError = 2,
	ncclInternalError = 3,
	ncclInvalidArgument = 4,
	ncclInvalidUsage = 5,
	ncclRemoteError = 6,
	ncclInProgress = 7
} ncclResult_t;

/** Whether NCCL has done what it was called for, or is at it. */
static inline bool ferry_nccl_is_fine(ncclResult_t result)
{
	return !result || result == ncclInProgress;
}

typedef enum {
	ncclSum = 0,
	ncclProd = 1,
	ncclMax = 2,
	ncclMin = 3,
	ncclAvg = 4,
	ncclNumOps = 5, /* the first of those that ncclRedOpCreatePreMulSum gives */
	ncclMaxRedOp = 0x7fffffff
} ncclRedOp_t;

typedef enum {
	ncclInt8 = 0,
	ncclUint8 = 1,
	ncclInt32 = 2,
	ncclUint32 = 3,
	ncclInt64 = 4,
	ncclUint64 = 5,
	ncclFloat16 = 6,
	ncclFloat32 = 7,
	ncclFloat64 = 8,
	ncclBfloat16 = 9,
	ncclFloat8e4m3 = 10, /* this and the next since 2.24 */
	ncclFloat8e5m2 = 11
} ncclDataType_t;

typedef enum { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 } ncclScalarResidence_t;
typedef enum { ncclStatGpuMemTotal = 3 } ncclCommMemStat_t;
typedef enum { NCCL_CFT_TEAM_FLAT = 0 } ncclCftTeamMode_t;

/* Passed by value, so their sizes count. */
typedef struct ncclTeam {
	int nRanks, rank, stride;
} ncclTeam_t;
typedef struct ncclMultimemHandle {
	void *mcBasePtr;
} ncclMultimemHandle_t;

/**
 * How every configuration of NCCL begins: with its own size. What Ferry reads of one lies at offsets that NCCL never
 * moves, and only where the size says that it is there (config.h).
 */
typedef struct {
	size_t size;
	unsigned magic, version;
} ncclConfig_t, ncclCollConfig_t, ncclSimInfo_t, ncclEncryptionConfig_t;

typedef struct ncclWaitSignalDesc ncclWaitSignalDesc_t;
typedef struct ncclCommProperties ncclCommProperties_t;
typedef struct ncclDevCommRequirements ncclDevCommRequirements_t;
typedef struct ncclDevComm ncclDevComm_t;
struct ncclDevResourceRequirements;
struct ncclLsaBarrierHandle;
struct ncclGinBarrierHandle;
struct ncclLLA2AHandle;
struct ncclGinOutboxHandle;
struct ncclGinInboxA2AHandle;

#define NCCL_UNDEFINED_INT   ((int)0x80000000)
#define NCCL_SPLIT_NOCOLOR   (-1)
#define NCCL_SHRINK_ABORT    1
#define NCCL_CTA_POLICY_ZERO 2

#endif
