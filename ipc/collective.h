/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The collectives by name, and the properties of element types that ranks and routers need. Used by the program
 * language, the compiled plan and the API; all of it is constant.
 */
#ifndef FERRY_IPC_COLLECTIVE_H
#define FERRY_IPC_COLLECTIVE_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stddef.h>

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

/** The collective of that name, or FERRY_NUM_COLLECTIVES. */
enum ferry_collective ferry_collective_parse(const char *name);

/* What is inline below reads these in a few instructions, several times a call. */
extern const struct ferry_collective_facts {
	const char *name;
	bool reduces, has_root, sends_blocks, receives_blocks;
} ferry_collectives[]; /* a row for each; collective.c asserts it */
extern const struct ferry_type_facts {
	const char *name, *alias;
	size_t size;
} ferry_types[ferryNumTypes];

static inline bool ferry_collective_is_valid(enum ferry_collective collective)
{
	return (unsigned)collective < FERRY_NUM_COLLECTIVES;
}

/** "allreduce", "allgather", ...; NULL for a value out of range. */
static inline const char *ferry_collective_name(enum ferry_collective collective)
{
	return ferry_collective_is_valid(collective) ? ferry_collectives[collective].name : NULL;
}

/** True for allreduce, reduce-scatter and reduce. */
static inline bool ferry_collective_reduces(enum ferry_collective collective)
{
	return ferry_collective_is_valid(collective) && ferry_collectives[collective].reduces;
}

/** True for broadcast, reduce, gather and scatter. */
static inline bool ferry_collective_has_root(enum ferry_collective collective)
{
	return ferry_collective_is_valid(collective) && ferry_collectives[collective].has_root;
}

/** Whether a rank's send buffer, its receive buffer, or either has a block for each rank. */
static inline bool ferry_collective_sends_blocks(enum ferry_collective collective)
{
	return ferry_collective_is_valid(collective) && ferry_collectives[collective].sends_blocks;
}
static inline bool ferry_collective_receives_blocks(enum ferry_collective collective)
{
	return ferry_collective_is_valid(collective) && ferry_collectives[collective].receives_blocks;
}
static inline bool ferry_collective_has_blocks(enum ferry_collective collective)
{
	return ferry_collective_sends_blocks(collective) || ferry_collective_receives_blocks(collective);
}

/** Bytes of one element; 0 for a value out of range. */
static inline size_t ferry_type_size(ferryDataType_t type)
{
	return (unsigned)type < ferryNumTypes ? ferry_types[type].size : 0;
}

/** "f32", "bf16", "i8", "f8e4m3", ...; NULL for a value out of range. */
const char *ferry_type_name(ferryDataType_t type);

/** The type of that name (nccl-tests' spellings "float", "half", ... too), or ferryNumTypes. */
ferryDataType_t ferry_type_parse(const char *name);

/** "sum", "prod", "max", "min", "avg", and "premulsum" for every created operation. */
const char *ferry_redop_name(ferryRedOp_t op);

/** The operation of that name; "premulsum" gives ferryNumOps; ferryMaxRedOp if there is none. */
ferryRedOp_t ferry_redop_parse(const char *name);

#endif
