/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/collective.h"

#include <string.h>
#include <strings.h>

const struct ferry_collective_facts ferry_collectives[] = {
	[FERRY_ALLREDUCE] = {"allreduce", true, false, false, false},
	[FERRY_ALLGATHER] = {"allgather", false, false, false, true},
	[FERRY_REDUCESCATTER] = {"reducescatter", true, false, true, false},
	[FERRY_BROADCAST] = {"broadcast", false, true, false, false},
	[FERRY_REDUCE_TO_ROOT] = {"reduce", true, true, false, false},
	[FERRY_GATHER] = {"gather", false, true, false, true},
	[FERRY_SCATTER] = {"scatter", false, true, true, false},
	[FERRY_ALLTOALL] = {"alltoall", false, false, true, true},
	[FERRY_ALLTOALLV] = {"alltoallv", false, false, true, true},
	[FERRY_SENDRECV] = {"sendrecv", false, false, false, false},
};
_Static_assert(sizeof ferry_collectives / sizeof *ferry_collectives == FERRY_NUM_COLLECTIVES,
               "each collective has a row");

const struct ferry_type_facts ferry_types[ferryNumTypes] = {
	[ferryInt8] = {"i8", "int8", 1},           [ferryUint8] = {"u8", "uint8", 1},
	[ferryInt32] = {"i32", "int32", 4},        [ferryUint32] = {"u32", "uint32", 4},
	[ferryInt64] = {"i64", "int64", 8},        [ferryUint64] = {"u64", "uint64", 8},
	[ferryFloat16] = {"f16", "half", 2},       [ferryFloat32] = {"f32", "float", 4},
	[ferryFloat64] = {"f64", "double", 8},     [ferryBfloat16] = {"bf16", "bfloat16", 2},
	[ferryFloat8e4m3] = {"f8e4m3", "fp8_e4m3", 1}, [ferryFloat8e5m2] = {"f8e5m2", "fp8_e5m2", 1},
};

static const char *const redop_names[] = {"sum", "prod", "max", "min", "avg", "premulsum"};

enum ferry_collective ferry_collective_parse(const char *name)
{
	unsigned i = 0;
	while (i < FERRY_NUM_COLLECTIVES && strcmp(ferry_collectives[i].name, name))
		i++;
	return (enum ferry_collective)i;
}

const char *ferry_type_name(ferryDataType_t type)
{
	return (unsigned)type < ferryNumTypes ? ferry_types[type].name : NULL;
}

ferryDataType_t ferry_type_parse(const char *name)
{
	unsigned i = 0;
	while (i < ferryNumTypes && strcasecmp(ferry_types[i].name, name) && strcasecmp(ferry_types[i].alias, name))
		i++;
	return (ferryDataType_t)i;
}

const char *ferry_redop_name(ferryRedOp_t op)
{
	return redop_names[(unsigned)op < ferryNumOps ? (unsigned)op : ferryNumOps];
}

ferryRedOp_t ferry_redop_parse(const char *name)
{
	for (unsigned i = 0; i <= ferryNumOps; i++)
		if (!strcasecmp(redop_names[i], name))
			return (ferryRedOp_t)i;
	return ferryMaxRedOp;
}
