/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/nccl/trial_call.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define HOST_TO_DEVICE 1
#define DEVICE_TO_HOST 2

static const struct {
	ncclDataType_t type;
	size_t bytes;
} types[] = {{ncclInt8, 1},    {ncclUint8, 1},   {ncclInt32, 4},   {ncclUint32, 4},  {ncclInt64, 8},
             {ncclUint64, 8},  {ncclFloat16, 2}, {ncclFloat32, 4}, {ncclFloat64, 8}, {ncclBfloat16, 2}};
#define TYPES (sizeof types / sizeof *types)

bool trial_names_find(struct trial_names *names)
{
	int version;
#define NCCL_VALUE(since, type, name, parameters, arguments) *(void **)&names->name = dlsym(RTLD_DEFAULT, "nccl" #name);
#include "orchestrator/functions.def"
	*(void **)&names->stream_begin_capture = dlsym(RTLD_DEFAULT, "cudaStreamBeginCapture");
	*(void **)&names->stream_end_capture = dlsym(RTLD_DEFAULT, "cudaStreamEndCapture");
	*(void **)&names->graph_instantiate = dlsym(RTLD_DEFAULT, "cudaGraphInstantiate");
	*(void **)&names->graph_launch = dlsym(RTLD_DEFAULT, "cudaGraphLaunch");
	*(void **)&names->graph_exec_destroy = dlsym(RTLD_DEFAULT, "cudaGraphExecDestroy");
	*(void **)&names->graph_destroy = dlsym(RTLD_DEFAULT, "cudaGraphDestroy");
	return names->GetVersion && !names->GetVersion(&version);
}

unsigned trial_draw(uint64_t *random, unsigned most)
{
	*random = *random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (unsigned)(*random >> 33) % most;
}

static size_t size_of(ncclDataType_t type)
{
	for (size_t i = 0; i < TYPES; i++)
		if (types[i].type == type)
			return types[i].bytes;
	return 0;
}

/* Short ones, and by powers of two up to a block. Not all NCCLs have AlltoAll, Gather and Scatter. */
void trial_call_draw(struct trial_call *call, uint64_t *random, size_t most)
{
	call->kind = (enum trial_kind)trial_draw(random, TRIAL_KINDS);
	call->type = types[trial_draw(random, TYPES)].type;
	call->op = (ncclRedOp_t)trial_draw(random, 5);
	call->premul = trial_draw(random, 6) == 0;
	call->root = (int)trial_draw(random, TRIAL_RANKS);
	size_t elements = most / size_of(call->type), range = elements >> trial_draw(random, 12);
	call->count = range ? 1 + trial_draw(random, (unsigned)range) : 1;
	if (trial_draw(random, 4) == 0)
		call->count = (call->count + 63) / 64 * 64 <= elements ? (call->count + 63) / 64 * 64 : call->count;
	call->salt = *random;
}

/* ---- values ---- */

static unsigned value(const struct trial_call *call, int world, size_t at)
{
	return 2 * (1 + (unsigned)((at * 5 + (size_t)world * 3 + call->salt % 97) % 7));
}

/* An integer below 2048 as a half. */
static uint16_t half_of(unsigned number)
{
	unsigned exponent = 0;
	if (!number)
		return 0;
	while (number >> (exponent + 1))
		exponent++;
	return (uint16_t)((exponent + 15) << 10 | ((number << (10 - exponent)) & 0x3ff));
}

static void put(void *where, size_t at, ncclDataType_t type, unsigned number)
{
	float single = (float)number;
	uint32_t bits;
	memcpy(&bits, &single, sizeof bits);
	switch (type) {
	case ncclInt8:
	case ncclUint8:
		((uint8_t *)where)[at] = (uint8_t)number;
		return;
	case ncclInt32:
	case ncclUint32:
		((uint32_t *)where)[at] = number;
		return;
	case ncclInt64:
	case ncclUint64:
		((uint64_t *)where)[at] = number;
		return;
	case ncclFloat16:
		((uint16_t *)where)[at] = half_of(number);
		return;
	case ncclBfloat16:
		((uint16_t *)where)[at] = (uint16_t)(bits >> 16);
		return;
	case ncclFloat32:
		((float *)where)[at] = single;
		return;
	default:
		((double *)where)[at] = (double)number;
		return;
	}
}

/* Of two ranks. An 8-bit product wraps around, as in any machine. */
static unsigned reduced(const struct trial_call *call, size_t at)
{
	unsigned a = value(call, 0, at), b = value(call, 1, at);
	if (call->premul)
		return 2 * (a + b);
	switch (call->op) {
	case ncclSum:
		return a + b;
	case ncclProd:
		return a * b;
	case ncclMax:
		return a > b ? a : b;
	case ncclMin:
		return a < b ? a : b;
	default:
		return (a + b) / 2;
	}
}

static bool sums(const struct trial_call *call)
{
	return call->kind == TRIAL_ALLREDUCE || call->kind == TRIAL_REDUCESCATTER || call->kind == TRIAL_REDUCE;
}

/* Blocks of a rank's input, and of its output. */
static int blocks_in(const struct trial_call *call)
{
	return call->kind == TRIAL_REDUCESCATTER || call->kind == TRIAL_ALLTOALL || call->kind == TRIAL_SCATTER ? 2 : 1;
}

static int blocks_out(const struct trial_call *call)
{
	return call->kind == TRIAL_ALLGATHER || call->kind == TRIAL_ALLTOALL || call->kind == TRIAL_GATHER ? 2 : 1;
}

static bool has_output(const struct trial_call *call)
{
	bool to_root = call->kind == TRIAL_REDUCE || call->kind == TRIAL_GATHER;
	return !to_root || call->root == call->as_made.rank;
}

int trial_call_fill(const struct trial_call *call, void *scratch, size_t most)
{
	size_t count = call->count * (size_t)blocks_in(call);
	int world = call->as_made.members[call->as_made.rank];
	for (size_t i = 0; i < count; i++)
		put(scratch, i, call->type, value(call, world, i));
	int refused = cudaMemcpy(call->in, scratch, count * size_of(call->type), HOST_TO_DEVICE);
	memset(scratch, 0xee, TRIAL_RANKS * most);
	return refused ? refused : cudaMemcpy(call->out, scratch, TRIAL_RANKS * most, HOST_TO_DEVICE);
}

/* ---- the call ---- */

static ncclResult_t messages(const struct trial_names *n, const struct trial_call *c, cudaStream_t stream)
{
	int peer = 1 - c->comm->rank;
	ncclResult_t result = n->GroupStart();
	if (!result)
		result = n->Send(c->in, c->count, c->type, peer, c->comm->handle, stream);
	if (!result)
		result = n->Recv(c->out, c->count, c->type, peer, c->comm->handle, stream);
	ncclResult_t ended = n->GroupEnd();
	return result ? result : ended;
}

static ncclResult_t issue(const struct trial_names *n, const struct trial_call *c, ncclRedOp_t op, cudaStream_t stream)
{
	ncclComm_t comm = c->comm->handle;
	switch (c->kind) {
	case TRIAL_ALLREDUCE:
		return n->AllReduce(c->in, c->out, c->count, c->type, op, comm, stream);
	case TRIAL_ALLGATHER:
		return n->AllGather(c->in, c->out, c->count, c->type, comm, stream);
	case TRIAL_REDUCESCATTER:
		return n->ReduceScatter(c->in, c->out, c->count, c->type, op, comm, stream);
	case TRIAL_BROADCAST:
		return n->Broadcast(c->in, c->out, c->count, c->type, c->root, comm, stream);
	case TRIAL_REDUCE:
		return n->Reduce(c->in, c->out, c->count, c->type, op, c->root, comm, stream);
	case TRIAL_ALLTOALL:
		return n->AlltoAll(c->in, c->out, c->count, c->type, comm, stream);
	case TRIAL_GATHER:
		return n->Gather(c->in, c->out, c->count, c->type, c->root, comm, stream);
	case TRIAL_SCATTER:
		return n->Scatter(c->in, c->out, c->count, c->type, c->root, comm, stream);
	default:
		return messages(n, c, stream);
	}
}

ncclResult_t trial_call_issue(const struct trial_names *names, struct trial_call *call, cudaStream_t stream)
{
	ncclRedOp_t op = call->op;
	unsigned char factor[8];
	put(factor, 0, call->type, 2);
	if (sums(call) && call->premul) {
		ncclResult_t result = names->RedOpCreatePreMulSum(&op, factor, call->type, ncclScalarHostImmediate,
		                                                  call->comm->handle);
		if (result)
			return result;
	}
	ncclResult_t result = issue(names, call, op, stream);
	if (sums(call) && call->premul) {
		ncclResult_t ended = names->RedOpDestroy(op, call->comm->handle);
		result = result ? result : ended;
	}
	call->pending = !result;
	return result;
}

/* ---- the comparison ---- */

static unsigned expected(const struct trial_call *call, size_t at)
{
	const struct trial_comm *comm = &call->as_made;
	size_t n = call->count, block = at / n, offset = at % n, mine = (size_t)comm->rank * n;
	switch (call->kind) {
	case TRIAL_ALLREDUCE:
	case TRIAL_REDUCE:
		return reduced(call, at);
	case TRIAL_REDUCESCATTER:
		return reduced(call, mine + at);
	case TRIAL_ALLGATHER:
	case TRIAL_GATHER:
		return value(call, comm->members[block], offset);
	case TRIAL_BROADCAST:
		return value(call, comm->members[call->root], at);
	case TRIAL_ALLTOALL:
		return value(call, comm->members[block], mine + offset);
	case TRIAL_SCATTER:
		return value(call, comm->members[call->root], mine + at);
	default:
		return value(call, comm->members[1 - comm->rank], at);
	}
}

void trial_call_print(const struct trial_call *call, char *text, size_t bytes)
{
	static const char *const kinds[] = {"allreduce", "allgather", "reducescatter", "broadcast", "reduce",
	                                    "alltoall",  "gather",    "scatter",       "messages"};
	snprintf(text, bytes, "%s of %zu elements of type %d, op %d%s, root %d", kinds[call->kind], call->count,
	         (int)call->type, (int)call->op, call->premul ? " premul" : "", call->root);
}

const char *trial_call_compare(const struct trial_call *call, void *scratch, size_t most)
{
	static _Thread_local char text[200];
	size_t bytes = size_of(call->type), count = has_output(call) ? call->count * (size_t)blocks_out(call) : 0;
	unsigned char wanted[8], nothing[8];
	int refused = cudaMemcpy(scratch, call->out, TRIAL_RANKS * most, DEVICE_TO_HOST);
	if (refused) {
		snprintf(text, sizeof text, "CUDA's error %d", refused);
		return text;
	}
	memset(nothing, 0xee, sizeof nothing);
	for (size_t i = 0; i < TRIAL_RANKS * most / bytes; i++) {
		/* Behind the output nothing is written; a rank that has none may use its buffer. */
		if (i >= count && (!count || i >= count + 64))
			break;
		put(wanted, 0, call->type, i < count ? expected(call, i) : 0);
		const unsigned char *got = (const unsigned char *)scratch + i * bytes;
		if (!memcmp(got, i < count ? wanted : nothing, bytes))
			continue;
		trial_call_print(call, text, sizeof text);
		size_t length = strlen(text);
		snprintf(text + length, sizeof text - length, ": element %zu %s", i,
		         i < count ? "is wrong" : "behind the output was written");
		return text;
	}
	return "";
}
