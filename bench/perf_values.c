/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inputs that every rank can compute for every other, and what must come out. Values are small integers, exact in every type;
 * sums of 64 of them are exact down to float16, and for bfloat16 and the 8-bit floats the bound is one unit in the last place
 * per domain's pass (the sum is kept in float32, and rounded once per pass).
 */
#include "bench/perf.h"
#include "router/reduce_targets.h"

#include <math.h>
#include <string.h>

static double input(const struct perf_call *call, int rank, size_t i)
{
	if (call->op == ferryProd)
		return (double)((i + (size_t)rank * 3) % 7 == 0 ? 2 : 1);
	return (double)((i * 5 + (size_t)rank * 3) % 8) / (call->type == ferryFloat32 || call->type == ferryFloat64 ? 8 : 1);
}

static void put(ferryDataType_t type, char *base, size_t i, double value)
{
	float single = (float)value;
	uint32_t bits;
	memcpy(&bits, &single, sizeof bits);
	switch (type) {
	case ferryInt8:
	case ferryUint8:
		base[i] = (char)value;
		break;
	case ferryInt32:
	case ferryUint32:
		((int32_t *)(void *)base)[i] = (int32_t)value;
		break;
	case ferryInt64:
	case ferryUint64:
		((int64_t *)(void *)base)[i] = (int64_t)value;
		break;
	case ferryFloat16:
		((uint16_t *)(void *)base)[i] = ferry_float_to_half(single);
		break;
	case ferryBfloat16:
		((uint16_t *)(void *)base)[i] = (uint16_t)(bits >> 16);
		break;
	case ferryFloat64:
		((double *)(void *)base)[i] = value;
		break;
	case ferryFloat8e4m3:
		base[i] = (char)ferry_f8e4m3_round(single);
		break;
	case ferryFloat8e5m2:
		base[i] = (char)ferry_f8e5m2_round(single);
		break;
	default:
		((float *)(void *)base)[i] = single;
	}
}

static double get(ferryDataType_t type, const char *base, size_t i)
{
	float single;
	uint32_t bits;
	switch (type) {
	case ferryInt8:
		return ((const int8_t *)base)[i];
	case ferryUint8:
		return ((const uint8_t *)base)[i];
	case ferryInt32:
		return ((const int32_t *)(const void *)base)[i];
	case ferryUint32:
		return ((const uint32_t *)(const void *)base)[i];
	case ferryInt64:
		return (double)((const int64_t *)(const void *)base)[i];
	case ferryUint64:
		return (double)((const uint64_t *)(const void *)base)[i];
	case ferryFloat16:
		return ferry_half_to_float(((const uint16_t *)(const void *)base)[i]);
	case ferryBfloat16:
		bits = (uint32_t)((const uint16_t *)(const void *)base)[i] << 16;
		memcpy(&single, &bits, sizeof single);
		return single;
	case ferryFloat64:
		return ((const double *)(const void *)base)[i];
	case ferryFloat8e4m3:
		return ferry_f8e4m3_values[((const uint8_t *)base)[i]];
	case ferryFloat8e5m2:
		return ferry_f8e5m2_values[((const uint8_t *)base)[i]];
	default:
		return ((const float *)(const void *)base)[i];
	}
}

/* How far a result may be from the reference, relative to it: a rounding per pass, and at most 8 domains' passes and one more. */
static double bound(ferryDataType_t type)
{
	switch (type) {
	case ferryFloat16:
		return 9 * 0x1p-11;
	case ferryBfloat16:
		return 9 * 0x1p-8;
	case ferryFloat8e4m3:
		return 9 * 0x1p-4;
	case ferryFloat8e5m2:
		return 9 * 0x1p-3;
	case ferryFloat32:
		return 72 * 0x1p-24;
	case ferryFloat64:
		return 72 * 0x1p-53;
	default:
		return 0;
	}
}

static double reduced(const struct perf_call *call, size_t i)
{
	double result = input(call, 0, i);
	for (int rank = 1; rank < call->nranks; rank++) {
		double value = input(call, rank, i);
		if (call->op == ferryProd)
			result *= value;
		else if (call->op == ferryMax)
			result = value > result ? value : result;
		else if (call->op == ferryMin)
			result = value < result ? value : result;
		else
			result += value;
	}
	if (call->op == ferryAvg)
		result /= call->nranks;
	return result;
}

/* 8- and 32-bit integers wrap, and averages of integers are truncated. */
static double as_stored(ferryDataType_t type, double value)
{
	switch (type) {
	case ferryInt8:
		return (double)(int8_t)(int64_t)value;
	case ferryUint8:
		return (double)(uint8_t)(int64_t)value;
	case ferryInt32:
		return (double)(int32_t)(int64_t)value;
	case ferryUint32:
		return (double)(uint32_t)(int64_t)value;
	case ferryInt64:
	case ferryUint64:
		return (double)(int64_t)value;
	case ferryFloat8e4m3:
		return fmin(value, 448);
	case ferryFloat8e5m2:
		return fmin(value, 57344);
	default:
		return value;
	}
}

static void fill_from(const struct perf_call *call, char *send, int rank, size_t elements)
{
	for (size_t i = 0; i < elements; i++)
		put(call->type, send, i, input(call, rank, i));
}

static size_t total(const struct perf_call *call, const size_t *counts)
{
	size_t sum = 0;
	for (int peer = 0; peer < call->nranks; peer++)
		sum += counts[peer];
	return sum;
}

static size_t sends(const struct perf_call *call)
{
	size_t n = (size_t)call->nranks;
	switch (call->collective) {
	case FERRY_REDUCESCATTER:
	case FERRY_ALLTOALL:
		return n * call->count;
	case FERRY_SCATTER:
		return call->rank == call->root ? n * call->count : 0;
	case FERRY_BROADCAST:
		return call->rank == call->root ? call->count : 0;
	case FERRY_ALLTOALLV:
		return total(call, call->sendcounts);
	default:
		return call->count;
	}
}

void perf_fill(const struct perf_call *call, char *send)
{
	fill_from(call, send, call->rank, sends(call));
}

static long long count_block(const struct perf_call *call, const char *receive, size_t at, size_t count, int source, size_t from)
{
	long long wrong = 0;
	bool reduces = source < 0;
	for (size_t i = 0; i < count; i++) {
		double wanted = reduces ? as_stored(call->type, reduced(call, from + i)) : input(call, source, from + i);
		double slack = reduces ? bound(call->type) * fabs(wanted) : 0;
		wrong += !(fabs(get(call->type, receive, at + i) - wanted) <= slack);
	}
	return wrong;
}

/* alltoallv: where in its send buffer rank `source` keeps what it sends to this rank. */
static size_t variable_offset(const struct perf_call *call, int source)
{
	size_t offset = 0;
	for (int peer = 0; peer < call->rank; peer++)
		offset += call->count * (1 + (size_t)(source + peer) % 3) / 3;
	return offset;
}

long long perf_count_wrong(const struct perf_call *call, const char *receive)
{
	size_t count = call->count, rank = (size_t)call->rank;
	bool at_root = call->rank == call->root;
	long long wrong = 0;
	switch (call->collective) {
	case FERRY_ALLREDUCE:
		return count_block(call, receive, 0, count, -1, 0);
	case FERRY_REDUCE_TO_ROOT:
		return at_root ? count_block(call, receive, 0, count, -1, 0) : 0;
	case FERRY_REDUCESCATTER:
		return count_block(call, receive, 0, count, -1, rank * count);
	case FERRY_BROADCAST:
		return count_block(call, receive, 0, count, call->root, 0);
	case FERRY_SCATTER:
		return count_block(call, receive, 0, count, call->root, rank * count);
	case FERRY_SENDRECV:
		return count_block(call, receive, 0, count, (call->rank + call->nranks - 1) % call->nranks, 0);
	default:
		break;
	}
	for (int source = 0; source < call->nranks; source++) {
		size_t block = (size_t)source * count;
		if (call->collective == FERRY_ALLGATHER || (call->collective == FERRY_GATHER && at_root))
			wrong += count_block(call, receive, block, count, source, 0);
		else if (call->collective == FERRY_ALLTOALL)
			wrong += count_block(call, receive, block, count, source, rank * count);
		else if (call->collective == FERRY_ALLTOALLV)
			wrong += count_block(call, receive, call->recvdispls[source], call->recvcounts[source], source,
			                     variable_offset(call, source));
	}
	return wrong;
}
