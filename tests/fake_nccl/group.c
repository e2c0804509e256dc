/* SPDX-License-Identifier: Apache-2.0 */
/* The double's groups, of each thread: what takes all ranks to come waits for the end, and then goes on together. */
#include "tests/fake_nccl/comm.h"
#include "tests/fake_nccl/note.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local struct {
	int depth;
	ncclResult_t error;
	struct fake_op *ops;
	int nops;
	struct fake_job **jobs;
	int njobs;
} group;

/* Calls of one communicator and stream. */
struct batch {
	int n;
	pthread_t thread;
	bool threaded, captured;
	struct fake_op ops[];
};

static void run_batch(void *context)
{
	struct batch *batch = context;
	ncclComm_t comm = batch->ops[0].comm;
	fake_transfer(batch->ops, batch->n);
	if (batch->captured)
		return;
	fake_comm_drop(comm);
	free(batch);
}

static void forget_batch(void *context)
{
	struct batch *batch = context;
	ncclComm_t comm = batch->ops[0].comm;
	atomic_fetch_sub(&comm->graphs, 1);
	fake_comm_drop(comm);
	free(batch);
}

/* A communicator connects its ranks for what it is asked for the first time. */
static ncclResult_t connect_for(const struct fake_op *op)
{
	bool message = op->collective == FERRY_SENDRECV;
	uint32_t bit = 1u << (message ? 31 - 2 * op->root - op->sends : (int)op->collective);
	if (op->comm->connected & bit || !op->stream)
		return ncclSuccess;
	if (!fake_stream_connect())
		return ncclUnhandledCudaError;
	op->comm->connected |= bit;
	return ncclSuccess;
}

static void *run_batch_in_thread(void *context)
{
	struct batch *batch = context;
	fake_transfer(batch->ops, batch->n);
	fake_comm_drop(batch->ops[0].comm);
	return NULL;
}

/* Each call that is made holds its communicator, which another thread may abort meanwhile; then its batch does. */
static struct batch *next_batch(struct fake_op *ops, int n, int first)
{
	struct batch *batch = calloc(1, sizeof *batch + (size_t)n * sizeof *ops);
	struct fake_op like = ops[first];
	for (int i = first; i < n; i++)
		if (ops[i].comm && ops[i].comm == like.comm && ops[i].stream == like.stream) {
			if (batch->n)
				fake_comm_drop(like.comm);
			batch->ops[batch->n++] = ops[i];
			ops[i].comm = NULL;
		}
	return batch;
}

/* What a stream captures is the graph's. */
static bool keep(struct batch *batch)
{
	atomic_fetch_add(&batch->ops[0].comm->graphs, 1);
	batch->captured = true;
	if (fake_stream_keep(batch->ops[0].stream, forget_batch, batch))
		return true;
	batch->captured = false;
	atomic_fetch_sub(&batch->ops[0].comm->graphs, 1);
	return false;
}

static void forget(const struct fake_op *ops, int n)
{
	for (int i = 0; i < n; i++)
		fake_comm_drop(ops[i].comm);
}

static ncclResult_t launch(struct fake_op *ops, int n)
{
	struct batch **waiting = calloc((size_t)n, sizeof *waiting);
	ncclResult_t result = ncclSuccess;
	int nwaiting = 0;
	for (int i = 0; i < n && !result; i++)
		result = connect_for(&ops[i]);
	if (result) {
		forget(ops, n);
		free(waiting);
		return result;
	}
	fake_tuner_ask(ops, n);
	for (int i = 0; i < n; i++) {
		if (!ops[i].comm)
			continue;
		struct batch *batch = next_batch(ops, n, i);
		keep(batch);
		if (!fake_stream_run(batch->ops[0].stream, run_batch, batch))
			waiting[nwaiting++] = batch;
	}
	for (int i = 0; i < nwaiting; i++)
		waiting[i]->threaded = !pthread_create(&waiting[i]->thread, NULL, run_batch_in_thread, waiting[i]);
	for (int i = 0; i < nwaiting; i++) {
		if (waiting[i]->threaded)
			pthread_join(waiting[i]->thread, NULL);
		free(waiting[i]);
	}
	free(waiting);
	return ncclSuccess;
}

static ncclResult_t refuse(ncclResult_t result)
{
	if (group.depth && result && !group.error)
		group.error = result;
	return result;
}

static ncclResult_t check(const struct fake_op *op)
{
	bool has_root = ferry_collective_has_root(op->collective) || op->collective == FERRY_SENDRECV;
	if (op->comm && atomic_load(&op->comm->ended))
		fake_comm_misused();
	if (!op->comm || !ferry_type_size((ferryDataType_t)op->type) ||
	    (has_root && (op->root < 0 || op->root >= op->comm->nranks)))
		return ncclInvalidArgument;
	if (op->op >= ncclNumOps && (op->op - ncclNumOps >= COMM_REDOPS || !op->comm->redops[op->op - ncclNumOps].made))
		return ncclInvalidArgument;
	if (op->count > SIZE_MAX >> 16)
		return ncclInvalidArgument;
	return op->comm->error == ncclInProgress ? ncclInvalidArgument : (ncclResult_t)op->comm->error;
}

ncclResult_t fake_group_op(const struct fake_op *op)
{
	ncclResult_t result = check(op);
	struct fake_op made = *op;
	if (result)
		return refuse(result);
	if (op->op >= ncclNumOps)
		made.redop = op->comm->redops[op->op - ncclNumOps];
	fake_comm_hold(op->comm);
	if (!group.depth)
		return launch(&made, 1);
	group.ops = realloc(group.ops, (size_t)(group.nops + 1) * sizeof *group.ops);
	group.ops[group.nops++] = made;
	return ncclSuccess;
}

ncclResult_t fake_group_job(struct fake_job *job)
{
	if (!group.depth) {
		ncclResult_t result = job->run(job);
		free(job);
		return result;
	}
	group.jobs = realloc(group.jobs, (size_t)(group.njobs + 1) * sizeof *group.jobs);
	group.jobs[group.njobs++] = job;
	return ncclSuccess;
}

static void *run_job(void *context)
{
	struct fake_job *job = context;
	return (void *)(intptr_t)job->run(job);
}

static ncclResult_t run_jobs(void)
{
	ncclResult_t first = ncclSuccess;
	pthread_t *threads = calloc((size_t)group.njobs + 1, sizeof *threads);
	for (int i = 0; i < group.njobs; i++)
		pthread_create(&threads[i], NULL, run_job, group.jobs[i]);
	for (int i = 0; i < group.njobs; i++) {
		void *result;
		pthread_join(threads[i], &result);
		first = first && first != ncclInProgress ? first : (ncclResult_t)(intptr_t)result;
		free(group.jobs[i]);
	}
	free(threads);
	return first;
}

static ncclResult_t end(bool simulate)
{
	if (!group.depth)
		return ncclInvalidUsage;
	if (--group.depth)
		return ncclSuccess;
	ncclResult_t result = group.error ? group.error : run_jobs();
	for (int i = 0; group.error && i < group.njobs; i++)
		free(group.jobs[i]);
	ncclResult_t launched = ncclSuccess;
	if ((!result || result == ncclInProgress) && group.nops && !simulate)
		launched = launch(group.ops, group.nops);
	else
		forget(group.ops, group.nops);
	free(group.ops);
	free(group.jobs);
	memset(&group, 0, sizeof group);
	return launched ? launched : result;
}

ncclResult_t fake_nccl_act_GroupStart(void)
{
	group.depth++;
	return ncclSuccess;
}

ncclResult_t fake_nccl_act_GroupEnd(void)
{
	return end(false);
}

/* The "time" is how many calls the group had. */
ncclResult_t fake_nccl_act_GroupSimulateEnd(ncclSimInfo_t *info)
{
	if (info)
		info->version = (unsigned)group.nops;
	return end(true);
}
