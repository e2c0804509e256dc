/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as everybody showing a chunk to all, messages as pieces through a box per pair. */
#include "router/reduce/reduce.h"
#include "tests/fake_nccl/comm.h"
#include "tests/sanitized.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* Bytes that a rank shows, and those of its output. */
static size_t shown_bytes(const struct fake_op *op)
{
	size_t bytes = op->count * ferry_type_size((ferryDataType_t)op->type), n = (size_t)op->comm->nranks;
	bool root = op->comm->rank == op->root;
	switch (op->collective) {
	case FERRY_REDUCESCATTER:
	case FERRY_ALLTOALL:
		return bytes * n;
	case FERRY_SCATTER:
		return root ? bytes * n : 0;
	case FERRY_BROADCAST:
		return root ? bytes : 0;
	default:
		return bytes;
	}
}

static void reduce(const struct fake_op *op, void *output, const void *const *sources, size_t elements,
                   const uint64_t *scalars)
{
	int n = op->comm->nranks;
	struct ferry_reduction reduction = {.type = (ferryDataType_t)op->type,
	                                    .op = op->redop.made ? ferryNumOps : (ferryRedOp_t)op->op,
	                                    .divisor = op->op == ncclAvg ? (uint32_t)n : 1,
	                                    .scalars = op->redop.made ? scalars : NULL,
	                                    .scaled = op->redop.made ? (UINT64_C(1) << n) - 1 : 0};
	ferry_reduce(output, sources, (uint32_t)n, elements, &reduction);
}

/* Puts bytes [at, at + length) of what rank `from` shows to where they belong here. */
static void place(const struct fake_op *op, int from, const unsigned char *chunk, size_t at, size_t length)
{
	size_t bytes = op->count * ferry_type_size((ferryDataType_t)op->type), rank = (size_t)op->comm->rank;
	unsigned char *output = fake_stream_reach(op->receive);
	size_t start = 0, end = bytes, base = (size_t)from * bytes;
	if (op->collective == FERRY_ALLTOALL || op->collective == FERRY_SCATTER) {
		start = rank * bytes;
		end = start + bytes;
	}
	if (op->collective == FERRY_SCATTER || op->collective == FERRY_BROADCAST) {
		if (from != op->root)
			return;
		base = 0;
	}
	if (op->collective == FERRY_GATHER && (int)rank != op->root)
		return;
	size_t low = at > start ? at : start, high = at + length < end ? at + length : end;
	if (low < high)
		sampled_copy(output + base + (low - start), chunk + (low - at), high - low);
}

static void sum(const struct fake_op *op, size_t at, size_t length, const uint64_t *scalars)
{
	struct clique *clique = op->comm->clique;
	const void *sources[CLIQUE_RANKS];
	size_t element = ferry_type_size((ferryDataType_t)op->type), bytes = op->count * element;
	size_t start = op->collective == FERRY_REDUCESCATTER ? (size_t)op->comm->rank * bytes : 0;
	size_t low = at > start ? at : start, high = at + length < start + bytes ? at + length : start + bytes;
	if (low >= high || (op->collective == FERRY_REDUCE_TO_ROOT && op->comm->rank != op->root))
		return;
	for (int rank = 0; rank < op->comm->nranks; rank++)
		sources[rank] = clique->chunks[rank] + (low - at);
	reduce(op, (char *)fake_stream_reach(op->receive) + (low - start), sources, (high - low) / element, scalars);
}

static void run_collective(const struct fake_op *op)
{
	struct clique *clique = op->comm->clique;
	uint64_t mine[CLIQUE_WORDS] = {shown_bytes(op)}, all[CLIQUE_RANKS][CLIQUE_WORDS], scalars[CLIQUE_RANKS];
	struct fake_choice other;
	size_t most = 0;
	if (op->redop.made && op->redop.residence == ncclScalarDevice)
		memcpy(&mine[1], fake_stream_reach(op->redop.scalar), ferry_type_size((ferryDataType_t)op->type));
	else
		mine[1] = op->redop.bits;
	memcpy(&mine[2], &op->choice, sizeof op->choice);
	/* A copy of the input, as the output may lie in it. */
	unsigned char *input = malloc(mine[0] + 1);
	sampled_copy(input, fake_stream_reach(op->send ? op->send : ""), mine[0]);
	if (!clique_exchange(clique, op->comm->rank, mine, all)) {
		free(input);
		return;
	}
	for (int rank = 0; rank < op->comm->nranks; rank++) {
		most = all[rank][0] > most ? all[rank][0] : most;
		scalars[rank] = all[rank][1];
		memcpy(&other, &all[rank][2], sizeof other);
		fake_tuner_compare(&op->choice, &other);
	}
	for (size_t at = 0; at < most; at += CLIQUE_CHUNK) {
		size_t left = mine[0] > at ? mine[0] - at : 0;
		sampled_copy(clique->chunks[op->comm->rank], input + at, left < CLIQUE_CHUNK ? left : CLIQUE_CHUNK);
		if (!clique_meet(clique, op->comm->rank))
			break;
		for (int rank = 0; rank < op->comm->nranks && !ferry_collective_reduces(op->collective); rank++) {
			left = all[rank][0] > at ? all[rank][0] - at : 0;
			place(op, rank, clique->chunks[rank], at, left < CLIQUE_CHUNK ? left : CLIQUE_CHUNK);
		}
		if (ferry_collective_reduces(op->collective))
			sum(op, at, most - at < CLIQUE_CHUNK ? most - at : CLIQUE_CHUNK, scalars);
		if (!clique_meet(clique, op->comm->rank))
			break;
	}
	free(input);
}

/* One piece of one message, if it can be moved now. Under the lock. */
static bool move(const struct fake_op *op, size_t *done)
{
	struct clique *clique = op->comm->clique;
	int from = op->sends ? op->comm->rank : op->root, to = op->sends ? op->root : op->comm->rank;
	struct clique_pair *pair = &clique->pairs[from][to];
	size_t left = op->count * ferry_type_size((ferryDataType_t)op->type) - *done;
	size_t bytes = left < CLIQUE_PIECE ? left : CLIQUE_PIECE;
	if (!left || !pair->bytes != op->sends)
		return false;
	if (op->sends)
		sampled_copy(pair->piece, (char *)fake_stream_reach(op->send) + *done, bytes);
	else
		sampled_copy((char *)fake_stream_reach(op->receive) + *done, pair->piece, bytes);
	pair->bytes = op->sends ? bytes : 0;
	*done += bytes;
	clique_moved(clique);
	return true;
}

/* All messages progress together; of those of one pair and direction the first goes first. */
static void run_messages(const struct fake_op *const *ops, int n)
{
	struct clique *clique = ops[0]->comm->clique;
	size_t *done = calloc((size_t)n, sizeof *done);
	int left = n;
	clique_lock(clique);
	while (left && !clique->gone[ops[0]->comm->rank]) {
		bool busy[2][CLIQUE_RANKS] = {{false}}, moved = false;
		left = 0;
		for (int i = 0; i < n; i++) {
			bool over = done[i] == ops[i]->count * ferry_type_size((ferryDataType_t)ops[i]->type);
			bool *line = &busy[ops[i]->sends][ops[i]->root];
			if (over || *line) {
				left += !over;
				continue;
			}
			*line = true;
			left++;
			moved |= move(ops[i], &done[i]);
		}
		if (left && !moved)
			clique_wait(clique);
	}
	clique_unlock(clique);
	free(done);
}

static void take_time(const struct fake_op *ops, int n, double since)
{
	const char *rate = getenv("FAKE_NCCL_GBPS");
	double bytes = 0;
	for (int i = 0; rate && i < n; i++)
		bytes += (double)(ops[i].collective == FERRY_SENDRECV
		                          ? ops[i].count * ferry_type_size((ferryDataType_t)ops[i].type)
		                          : shown_bytes(&ops[i]));
	double left = rate ? bytes / (atof(rate) * 1e9) - (seconds() - since) : 0;
	struct timespec rest = {(time_t)left, (long)((left - (double)(time_t)left) * 1e9)};
	if (left > 0)
		nanosleep(&rest, NULL);
}

void fake_transfer(const struct fake_op *ops, int n)
{
	const struct fake_op **messages = calloc((size_t)n, sizeof *messages);
	double since = seconds();
	int nmessages = 0;
	for (int i = 0; i < n; i++)
		if (ops[i].collective == FERRY_SENDRECV)
			messages[nmessages++] = &ops[i];
		else
			run_collective(&ops[i]);
	if (nmessages)
		run_messages(messages, nmessages);
	free(messages);
	take_time(ops, n, since);
}
