/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * The value types of Ferry's public interface: result codes, element types, reductions, limits.
 * Installed beside ferry.h, which includes it; every folder of Ferry uses these same definitions.
 */
#ifndef FERRY_TYPES_H
#define FERRY_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Ranks that one communicator can have. */
#define FERRY_MAX_RANKS 64
/** Domains (NUMA nodes with a router each) that it can span. */
#define FERRY_MAX_DOMAINS 8

/** What a call reports. The first eight values are NCCL's. ferryGetLastError() has the message with the values. */
typedef enum {
	ferrySuccess = 0,
	ferryUnhandledDeviceError = 1, /**< the device (CUDA) reported an error */
	ferrySystemError = 2,          /**< the operating system refused something: memory, a socket, a file */
	ferryInternalError = 3,        /**< a bug in Ferry, or shared memory that another process corrupted */
	ferryInvalidArgument = 4,      /**< an argument has a value that no call accepts */
	ferryInvalidUsage = 5, /**< the arguments are valid alone but not together or not now; ranks that disagree */
	ferryRemoteError = 6,  /**< another rank or a router died, aborted or failed */
	ferryInProgress = 7,   /**< the operation has not finished yet */
	ferryProgramError = 8, /**< a program does not parse, does not pass the check, or does not fit the call */
	ferryRefused = 9,      /**< a router refused: wrong key or user, other ABI version, over quota, shutting down */
	ferryNumResults = 10
} ferryResult_t;

/** Element types. Values and spelling follow NCCL. */
typedef enum {
	ferryInt8 = 0,
	ferryChar = 0,
	ferryUint8 = 1,
	ferryInt32 = 2,
	ferryInt = 2,
	ferryUint32 = 3,
	ferryInt64 = 4,
	ferryUint64 = 5,
	ferryFloat16 = 6,
	ferryHalf = 6,
	ferryFloat32 = 7,
	ferryFloat = 7,
	ferryFloat64 = 8,
	ferryDouble = 8,
	ferryBfloat16 = 9,
	ferryFloat8e4m3 = 10,
	ferryFloat8e5m2 = 11,
	ferryNumTypes = 12
} ferryDataType_t;

/**
 * Reductions. ferryRedOpCreatePreMulSum() returns values from ferryNumOps up; they belong to one communicator.
 * Special values are treated as by NCCL. ferryAvg multiplies each float by 1 / n, rounded to the type, before it adds,
 * so that no sum overflows; sums of integers, which wrap, are divided by n, truncated towards zero. Min and max of a
 * number and a NaN are the number, and -0 is less than +0. Products with a factor of ferryRedOpCreatePreMulSum() are
 * rounded to the type. 8-bit floats saturate.
 */
typedef enum {
	ferrySum = 0,
	ferryProd = 1,
	ferryMax = 2,
	ferryMin = 3,
	ferryAvg = 4,
	ferryNumOps = 5,
	ferryMaxRedOp = 0x7fffffff
} ferryRedOp_t;

/** Ranks of a communicator that kernels of one's own can communicate in. */
#define FERRY_CHANNEL_RANKS 8
/** Channels between each two of them. A channel is used by one block of a rank's kernel at a time. */
#define FERRY_CHANNELS 64

/**
 * What a kernel communicates by, as ferryCommChannels() gives it: passed to the kernel by value, used there by the
 * functions of ferry_device.cuh. Constant as long as the communicator lives.
 */
typedef struct {
	/** of this struct in the release that the program was built for */
	size_t size;
	/** this rank, and how many there are */
	int rank, nranks;
	/** 1: the memory is the host's; 0: that of the ranks' GPUs */
	int host;
	int reserved;
	/** of each rank's memory, which begins as zeroes */
	uint64_t bytes;
	/** memory[r]: rank r's, at the address that this rank's kernels use; all ranks read and write all of it */
	char *memory[FERRY_CHANNEL_RANKS];
	/** signals[r]: those that rank r waits for, a word for each sender and channel */
	uint32_t *signals[FERRY_CHANNEL_RANKS];
	/** in this rank's device memory, for its kernels alone: how often they have signalled and waited */
	uint32_t *counters;
	/** 1: the communicator has failed or was ended, so nobody waits any more */
	const uint32_t *abort;
	/** all ranks' memory at once, by the switch; NULL: there is none, as in this release */
	char *multicast;
} ferryChannels_t;
/** What a ferryChannels_t is before ferryCommChannels() fills it in. */
#define FERRY_CHANNELS_INITIALIZER {sizeof(ferryChannels_t), 0, 0, 0, 0, 0, {0}, {0}, 0, 0, 0}

#ifdef __cplusplus
}
#endif
#endif
