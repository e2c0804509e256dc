/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The collectives by name, and the properties of element types that ranks and routers need. Used by the program
 * language, the compiled plan and the API; all of it is constant.
 */
#ifndef FERRY_IPC_COLLECTIVE_H
#define FERRY_IPC_COLLECTIVE_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

enum ferry_collective {
	FERRY_ALLREDUCE,
	FERRY_ALLGATHER,
	FERRY_REDUCESCATTER,
	FERRY_BROADCAST,
	FERRY_REDUCE_TO_ROOT, /* spelled "reduce" in programs */
	FERRY_GATHER,
	FERRY_SCATTER,
	FERRY_ALLTOALL,
	FERRY_ALLTOALLV,
	FERRY_SENDRECV, /* two ranks: rank 0 sends, rank 1 receives */
};

/*
 * No member of the enum: a switch without `default:` needs no case for it, so -Wswitch names the collectives that the
 * switch lacks. A new collective goes to the end, as plans and descriptors hold the numbers.
 */
#define FERRY_NUM_COLLECTIVES (FERRY_SENDRECV + 1)

/* All names, for messages. */
#define FERRY_COLLECTIVE_NAMES \
	"allreduce, allgather, reducescatter, broadcast, reduce, gather, scatter, alltoall, alltoallv, sendrecv"

/** "allreduce", "allgather", ...; NULL for a value out of range. */
const char *ferry_collective_name(enum ferry_collective collective);

/** The collective of that name, or FERRY_NUM_COLLECTIVES. */
enum ferry_collective ferry_collective_parse(const char *name);

/** True for allreduce, reduce-scatter and reduce. */
bool ferry_collective_reduces(enum ferry_collective collective);

/** True for broadcast, reduce, gather and scatter. */
bool ferry_collective_has_root(enum ferry_collective collective);

/** Whether a rank's send buffer, its receive buffer, or either has a block for each rank. */
bool ferry_collective_sends_blocks(enum ferry_collective collective);
bool ferry_collective_receives_blocks(enum ferry_collective collective);
bool ferry_collective_has_blocks(enum ferry_collective collective);

/** Bytes of one element; 0 for a value out of range. */
size_t ferry_type_size(ferryDataType_t type);

/** "f32", "bf16", "i8", "f8e4m3", ...; NULL for a value out of range. */
const char *ferry_type_name(ferryDataType_t type);

/** The type of that name (nccl-tests' spellings "float", "half", ... too), or ferryNumTypes. */
ferryDataType_t ferry_type_parse(const char *name);

/** "sum", "prod", "max", "min", "avg", and "premulsum" for every created operation. */
const char *ferry_redop_name(ferryRedOp_t op);

/** The operation of that name; "premulsum" gives ferryNumOps; ferryMaxRedOp if there is none. */
ferryRedOp_t ferry_redop_parse(const char *name);

#endif
