/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Ferry: collective communication for the GPUs and CPUs of a server, in NCCL's shape.
 *
 * A rank is one communicator handle. Calls are asynchronous and ordered by the stream they are given: they return at
 * once, start when the stream reaches them, and later work on that stream waits for them. Counts are elements, 64-bit.
 * Buffers may lie at any address: sums run in the routers' memory. Functions return a ferryResult_t;
 * ferryGetLastError() gives the message, with the values.
 *
 * All functions may be called from any thread. Calls on one communicator must be made in the same order on every rank.
 * No function may be left by longjmp from a signal handler, or by the end of its thread (pthread_cancel): it would keep
 * its locks, and the next call would wait for them for ever.
 */
#ifndef FERRY_H
#define FERRY_H

#include "ferry_types.h"

#ifdef __cplusplus
extern "C" {
#endif

/** @defgroup ferry_library The library
 * @{ */
/** The version of this header is MAJOR.MINOR.PATCH. */
#define FERRY_MAJOR 0
/** Until 1.0 a new MINOR may change the interface. */
#define FERRY_MINOR 1
/** A new PATCH never does. */
#define FERRY_PATCH 0
/** The version in one number, as ferryGetVersion() gives that of the library: 10000 MAJOR + 100 MINOR + PATCH. */
#define FERRY_VERSION_CODE (FERRY_MAJOR * 10000 + FERRY_MINOR * 100 + FERRY_PATCH)
/** @} */

#if defined(__GNUC__)
#define FERRY_API __attribute__((visibility("default")))
#else
#define FERRY_API
#endif

/** A rank's place in a communicator; made by one of ferryCommInit..., freed by ferryCommDestroy or ferryCommAbort. */
typedef struct ferryComm *ferryComm_t;
/**
 * A host stream, or a cudaStream_t cast to this type. NULL: on host devices the calling thread's own default stream of
 * the communicator's device; on GPUs CUDA's legacy default stream. All threads share that one, so all ranks must make
 * their calls in it in the same order, also those of different communicators.
 */
typedef struct ferryStream *ferryStream_t;
/** An event of host devices. */
typedef struct ferryEvent *ferryEvent_t;

/** Bytes of a ferryUniqueId. */
#define FERRY_UNIQUE_ID_BYTES 128
/**
 * Names a new communicator. One rank makes it and sends it to the others by any means (MPI_Bcast, a file, a socket).
 */
typedef struct {
	/** opaque */
	char internal[FERRY_UNIQUE_ID_BYTES];
} ferryUniqueId;

/**
 * How a communicator is made. Set it to FERRY_CONFIG_INITIALIZER, then change what you need. New releases may add
 * fields at its end. The library accepts it from programs built for an older release, and from programs built for a
 * newer one if all fields that it does not know are 0.
 */
typedef struct {
	/** bytes of this struct in the release that the program was built for */
	size_t size;
	/** "host" or "cuda"; NULL: FERRY_DEVICE, else cuda if the process has a CUDA device, else host */
	const char *device;
	/** which device; -1: local rank (host), the thread's current device (cuda) */
	int ordinal;
	/** the rank's domain; -1: from the layout */
	int domain;
	/** "auto": start routers where none answers; "required": fail then; NULL: FERRY_ROUTER, else auto */
	const char *router;
	/**
	 * bytes of staging per domain: so much, or the communicator is not made; 0: FERRY_STAGING, else half (host) or
	 * two thirds (cuda) of the domain's last-level cache, less where memory is short, and 256 KiB for one rank
	 */
	uint64_t staging;
	/**
	 * files and directories, separated by colons, of programs that replace built-in ones; "": none; NULL:
	 * FERRY_PROGRAM_PATH
	 */
	const char *programs;
	/** GPUs: bytes of each rank's memory for the caller's own kernels (ferryCommChannels), alike on all; 0: none */
	uint64_t channels;
} ferryConfig_t;
/** The defaults of a ferryConfig_t. */
#define FERRY_CONFIG_INITIALIZER {sizeof(ferryConfig_t), NULL, -1, -1, NULL, 0, NULL, 0}

/** @addtogroup ferry_library
 * @{ */
/** Returns the version of the library in *version, as FERRY_VERSION_CODE is that of the header. */
FERRY_API ferryResult_t ferryGetVersion(int *version);
/** Returns the text of a result code, constant and never NULL. */
FERRY_API const char *ferryGetErrorString(ferryResult_t result);
/**
 * Returns why comm has failed; if it has not, or is NULL, the message of the calling thread's last failure, or "". The
 * library owns the string, which is valid until the thread's next failure, or comm's end.
 */
FERRY_API const char *ferryGetLastError(ferryComm_t comm);

/** @} */

/** @defgroup ferry_communicators Communicators
 * @{ */
/** Makes a new id for a communicator, different from all others. One rank calls it and gives the id to the others. */
FERRY_API ferryResult_t ferryGetUniqueId(ferryUniqueId *id);
/**
 * Makes a communicator of 1 to FERRY_MAX_RANKS ranks, with the default configuration. Collective: blocks until all
 * ranks have called it. The caller ends *comm by ferryCommDestroy or ferryCommAbort. An error leaves *comm as it is:
 * ferryRemoteError if ranks or routers are missing after FERRY_ATTACH_TIMEOUT seconds, or die; ferryRefused by a
 * router; ferrySystemError; ferryUnhandledDeviceError.
 */
FERRY_API ferryResult_t ferryCommInitRank(ferryComm_t *comm, int nranks, ferryUniqueId id, int rank);
/** As ferryCommInitRank, with a configuration, which must not be NULL. */
FERRY_API ferryResult_t ferryCommInitRankConfig(ferryComm_t *comm, int nranks, ferryUniqueId id, int rank,
                                                const ferryConfig_t *config);
/**
 * As ferryCommInitRankConfig, with rank, number of ranks and id from the environment that the launcher has set
 * (ferryrun, MPI's PMI, Slurm, torchrun). The n-th call of each rank makes the n-th communicator. config may be NULL.
 * Error also: ferryInvalidUsage if the environment gives no rank, size and job.
 */
FERRY_API ferryResult_t ferryCommInitEnv(ferryComm_t *comm, const ferryConfig_t *config);
/**
 * Makes a communicator of ndevices ranks, all in this process: comms[i] is rank i's, on device devices[i]. Devices must
 * differ; devices may be NULL: 0 to ndevices - 1. Errors: those of ferryCommInitRank; no communicator is left then.
 */
FERRY_API ferryResult_t ferryCommInitAll(ferryComm_t *comms, int ndevices, const int *devices);
/** As a color for ferryCommSplit: the rank gets no communicator. */
#define FERRY_SPLIT_NOCOLOR (-1)
/**
 * Makes a communicator of all ranks of comm with the same color, at least 0, ordered by key, then by rank in comm.
 * Collective over comm: blocks until all its ranks have called it. *newcomm is NULL for FERRY_SPLIT_NOCOLOR. config may
 * be NULL; by default device, domain and routers are comm's. Errors: those of ferryCommInitRank; ferryRemoteError,
 * which ends comm, if a rank of comm has left or failed.
 */
FERRY_API ferryResult_t ferryCommSplit(ferryComm_t comm, int color, int key, ferryComm_t *newcomm,
                                       const ferryConfig_t *config);
/** Waits until every call made on comm has finished, and refuses later ones. Error: how comm has failed. */
FERRY_API ferryResult_t ferryCommFinalize(ferryComm_t comm);
/**
 * Finalizes and frees comm. Calls that this rank took part in complete on the other ranks. A call that it never made
 * ends there with ferryRemoteError, and so does their communicator. Frees comm and all that belongs to it, but no
 * buffer, stream or event of the caller's, also if it returns how the communicator has failed; ferryGetLastError(NULL)
 * then has the reason. Frees nothing if comm is NULL, no communicator or freed before (ferryInvalidArgument), or in a
 * process that was forked from the rank's (ferryInvalidUsage).
 */
FERRY_API ferryResult_t ferryCommDestroy(ferryComm_t comm);
/** Frees comm at once. Calls under way, here and on the other ranks, end with ferryRemoteError. Errors free nothing. */
FERRY_API ferryResult_t ferryCommAbort(ferryComm_t comm);
/** Returns in *error the error that has ended comm, ferrySuccess if none has. */
FERRY_API ferryResult_t ferryCommGetAsyncError(ferryComm_t comm, ferryResult_t *error);
/** Returns the number of ranks of comm in *count. */
FERRY_API ferryResult_t ferryCommCount(ferryComm_t comm, int *count);
/** Returns the caller's rank in comm, from 0, in *rank. */
FERRY_API ferryResult_t ferryCommUserRank(ferryComm_t comm, int *rank);
/** Returns the rank's domain, from 0, and the number of domains that the communicator spans. */
FERRY_API ferryResult_t ferryCommDomain(ferryComm_t comm, int *domain, int *ndomains);

/** @} */

/** @defgroup ferry_buffers Buffers
 * @{ */
/**
 * Maps a buffer of `bytes` bytes in the communicator's router before a call names it, until ferryCommDeregister of
 * *handle. This is optional: the first call with a buffer maps it, in 0.2 to 9 ms, and the router unmaps what no call
 * has named for a second. Device memory that is freed while the router has it mapped returns to the device when the
 * router has unmapped it. Buffers that are named at intervals of more than a second stay mapped for 20 s at most, up to
 * a 32nd of the memory that the GPU has left. On host devices, and for memory that cannot be exported, the function
 * checks the arguments and does nothing else. Not collective. Errors: ferryInvalidArgument if it is no buffer of the
 * communicator's device; the router's.
 */
FERRY_API ferryResult_t ferryCommRegister(ferryComm_t comm, const void *buffer, size_t bytes, void **handle);
/**
 * Ends a registration; to be called before the buffer is freed. The router unmaps the buffer once the calls that name
 * it have ended, unless another registration or a captured call still has it. Error: ferryInvalidArgument if
 * ferryCommRegister has not returned the handle on this communicator. Registrations that are left end with the
 * communicator.
 */
FERRY_API ferryResult_t ferryCommDeregister(ferryComm_t comm, void *handle);

/** @} */

/** @defgroup ferry_kernels Kernels of one's own
 * @{ */
/**
 * Fills in *channels, by which kernels of the caller's own communicate, with the functions of ferry_device.cuh
 * (docs/kernels.md). The memory, ferryConfig_t.channels bytes, is made and freed with the communicator: before that is
 * freed the kernels that use it must be over on all ranks. Set *channels to FERRY_CHANNELS_INITIALIZER first. Not
 * collective. Errors: ferryInvalidArgument if channels->size is another; ferryInvalidUsage if the communicator has no
 * such memory: no rank has asked for it, ranks have asked for different sizes, host memory has less, or the ranks have
 * no kernels at all (1 rank or more than 8, no GPUs, two processes on a GPU, FERRY_KERNELS=off). The message says
 * which.
 */
FERRY_API ferryResult_t ferryCommChannels(ferryComm_t comm, ferryChannels_t *channels);

/** @} */

/** @defgroup ferry_reductions Reductions of one's own
 * @{ */
/** Where a scalar lies: on the device, read when the stream reaches a call; or in host memory, read at once. */
typedef enum { ferryScalarDevice = 0, ferryScalarHostImmediate = 1 } ferryScalarResidence_t;
/**
 * Makes a reduction for calls on comm: the sum of scalar * input. Each rank may give its own scalar, an element of
 * `type`. ferryRedOpDestroy frees *op. Error: ferryInvalidUsage for more than 64 at a time.
 */
FERRY_API ferryResult_t ferryRedOpCreatePreMulSum(ferryRedOp_t *op, void *scalar, ferryDataType_t type,
                                                  ferryScalarResidence_t residence, ferryComm_t comm);
/** Frees a reduction that ferryRedOpCreatePreMulSum has made on comm. Calls already made keep it. */
FERRY_API ferryResult_t ferryRedOpDestroy(ferryRedOp_t op, ferryComm_t comm);

/** @} */

/**
 * @defgroup ferry_collectives Collectives
 * @details In what follows n is the number of ranks; "send" and "recv" say how many elements the two buffers have.
 * A call that is refused returns ferryInvalidArgument, ferryInvalidUsage or ferryProgramError, and on a communicator
 * that has failed, that failure. ferryCommGetAsyncError returns failures after the call.
 * @{
 */
/** send: count, recv: count elements. In place: sendbuff == recvbuff. */
FERRY_API ferryResult_t ferryAllReduce(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type,
                                       ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream);
/** send: sendcount, recv: n * sendcount. In place: sendbuff == recvbuff + rank * sendcount. */
FERRY_API ferryResult_t ferryAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ferryDataType_t type,
                                       ferryComm_t comm, ferryStream_t stream);
/** send: n * recvcount, recv: recvcount. In place: recvbuff == sendbuff + rank * recvcount. */
FERRY_API ferryResult_t ferryReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ferryDataType_t type,
                                           ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream);
/** send: count at root (ignored elsewhere), recv: count. In place: sendbuff == recvbuff. */
FERRY_API ferryResult_t ferryBroadcast(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type,
                                       int root, ferryComm_t comm, ferryStream_t stream);
/** send: count, recv: count at root (ignored elsewhere). In place: sendbuff == recvbuff. */
FERRY_API ferryResult_t ferryReduce(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type,
                                    ferryRedOp_t op, int root, ferryComm_t comm, ferryStream_t stream);
/** send: count, recv: n * count at root. In place at root: sendbuff == recvbuff + root * count. */
FERRY_API ferryResult_t ferryGather(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, int root,
                                    ferryComm_t comm, ferryStream_t stream);
/** send: n * count at root, recv: count. In place at root: recvbuff == sendbuff + root * count. */
FERRY_API ferryResult_t ferryScatter(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type, int root,
                                     ferryComm_t comm, ferryStream_t stream);
/** send: n * count, recv: n * count. In place: sendbuff == recvbuff. */
FERRY_API ferryResult_t ferryAllToAll(const void *sendbuff, void *recvbuff, size_t count, ferryDataType_t type,
                                      ferryComm_t comm, ferryStream_t stream);
/**
 * Each rank sends sendcounts[r] elements from sendbuff + sdispls[r] to rank r. The four arrays have n entries, which
 * are read before the call returns. The two ranks must agree on each count. Not in place.
 */
FERRY_API ferryResult_t ferryAllToAllv(const void *sendbuff, const size_t *sendcounts, const size_t *sdispls,
                                       void *recvbuff, const size_t *recvcounts, const size_t *rdispls,
                                       ferryDataType_t type, ferryComm_t comm, ferryStream_t stream);
/**
 * Sends count elements to rank `peer`. Sends and receives of one group progress together. Counts and types of the two
 * ends must agree. A send may be over before its receive begins: ferryCommGetAsyncError then reports a disagreement.
 */
FERRY_API ferryResult_t ferrySend(const void *sendbuff, size_t count, ferryDataType_t type, int peer, ferryComm_t comm,
                                  ferryStream_t stream);
/** Receives count elements that rank `peer` sends by ferrySend. */
FERRY_API ferryResult_t ferryRecv(void *recvbuff, size_t count, ferryDataType_t type, int peer, ferryComm_t comm,
                                  ferryStream_t stream);
/**
 * Runs a user's program (docs/program-language.md), checked and compiled on first use. `program` is its text,
 * NUL-terminated. Buffers and count are those of the collective that the program names; a program that does not reduce
 * ignores op. Errors: ferryProgramError with the line; ferryInvalidUsage for a 65th program of the communicator, with
 * those of FERRY_PROGRAM_PATH.
 */
FERRY_API ferryResult_t ferryRunProgram(const char *program, const void *sendbuff, void *recvbuff, size_t count,
                                        ferryDataType_t type, ferryRedOp_t op, ferryComm_t comm, ferryStream_t stream);

/** Begins a group, or one within another: calls are checked at once, and kept until the outermost group ends. */
FERRY_API ferryResult_t ferryGroupStart(void);
/**
 * Ends a group. The end of the outermost one launches all kept calls together, or none if a call was refused, and
 * returns the first error. Error: ferryInvalidUsage without a group.
 */
FERRY_API ferryResult_t ferryGroupEnd(void);
/** @} */

/**
 * @defgroup ferry_streams Streams of host devices
 * @details Streams, events and copies in the manner of CUDA's, for buffers in host memory. On GPUs they are CUDA's own.
 * All functions return ferryInvalidArgument for a handle of another kind, and for a NULL stream, which only
 * ferryStreamSynchronize accepts.
 * @{
 */
/** Makes a stream of host device `ordinal`; freed by ferryStreamDestroy. */
FERRY_API ferryResult_t ferryStreamCreate(ferryStream_t *stream, int ordinal);
/** Waits for the stream's work, then frees the stream. Returns the first error of the calls waited for. */
FERRY_API ferryResult_t ferryStreamDestroy(ferryStream_t stream);
/**
 * Waits for the work that is in the stream now. NULL: for what the calling thread has put into default streams (of any
 * host device). Returns the first error of the calls waited for. Error: ferryInvalidUsage inside a host function of
 * that stream, which would wait for itself; so do ferryStreamDestroy, and ferryEventSynchronize of an event behind the
 * host function.
 */
FERRY_API ferryResult_t ferryStreamSynchronize(ferryStream_t stream);
/** Returns ferryInProgress while the stream has work; then ferrySuccess, or the first error of its calls. */
FERRY_API ferryResult_t ferryStreamQuery(ferryStream_t stream);
/** Work that is put into the stream from now on waits for the event. An event that was never recorded is reached. */
FERRY_API ferryResult_t ferryStreamWaitEvent(ferryStream_t stream, ferryEvent_t event);
/** Copies `bytes` bytes in the order of the stream, as memcpy. */
FERRY_API ferryResult_t ferryMemcpyAsync(void *destination, const void *source, size_t bytes, ferryStream_t stream);
/**
 * Calls function(argument) when the stream reaches it, in a thread of Ferry's or in one that synchronizes with the
 * stream. The stream must not be NULL: default streams take collectives, sends and receives alone.
 */
FERRY_API ferryResult_t ferryLaunchHostFunc(ferryStream_t stream, void (*function)(void *), void *argument);
/** Makes an event, not recorded yet; freed by ferryEventDestroy. */
FERRY_API ferryResult_t ferryEventCreate(ferryEvent_t *event);
/** Frees an event, also if it has not been reached. */
FERRY_API ferryResult_t ferryEventDestroy(ferryEvent_t event);
/** Records the event: it is reached when what is in the stream now is done. A later record replaces an earlier one. */
FERRY_API ferryResult_t ferryEventRecord(ferryEvent_t event, ferryStream_t stream);
/** Waits until the event has been reached; not if it was never recorded. */
FERRY_API ferryResult_t ferryEventSynchronize(ferryEvent_t event);
/** Returns ferrySuccess if the event has been reached, ferryInProgress if not. */
FERRY_API ferryResult_t ferryEventQuery(ferryEvent_t event);
/**
 * Returns the time from `start` to `end` in *microseconds. Errors: ferryInvalidUsage if one was never recorded,
 * ferryInProgress if one has not been reached.
 */
FERRY_API ferryResult_t ferryEventElapsedTime(double *microseconds, ferryEvent_t start, ferryEvent_t end);
/** @} */

#ifdef __cplusplus
}
#endif
#endif
