/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures: each stream in one is a branch, a list of operations in the order in which they came. What a branch has
 * seen of the others is a vector; waiting for an event raises it and leaves an operation that waits for that branch at
 * replay.
 */
#include "tests/fake_cuda/fake.h"

#include <stdlib.h>
#include <string.h>

#define MOST_CAPTURES 64

/* Under the lock. */
static CUgraph captures[MOST_CAPTURES];
static unsigned ncaptures;
static uint64_t next_capture = 1;

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
static _Thread_local char self; /* its address names the thread */

/* ---- rules ---- */

/* The capture forbids potentially unsafe calls of this thread. */
static bool forbids(const struct CUgraph_st *capture)
{
	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	if (capture->thread == &self)
		return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
	return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult fake_unsafe_call(void)
{
	bool forbidden = false;
	pthread_rwlock_rdlock(&fake_lock);
	for (unsigned i = 0; i < ncaptures; i++)
		forbidden |= forbids(captures[i]);
	pthread_rwlock_unlock(&fake_lock);
	if (!forbidden)
		return CUDA_SUCCESS;
	pthread_rwlock_wrlock(&fake_lock);
	for (unsigned i = 0; i < ncaptures; i++)
		captures[i]->invalid |= forbids(captures[i]);
	pthread_rwlock_unlock(&fake_lock);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

bool fake_captures_blocking(CUcontext context, bool invalidate)
{
	bool found = false;
	for (unsigned i = 0; i < ncaptures; i++)
		for (unsigned branch = 0; branch < captures[i]->body.nbranches; branch++) {
			CUstream stream = captures[i]->body.branches[branch].stream;
			if (!stream->blocking || stream->context != context)
				continue;
			found = true;
			if (invalidate)
				captures[i]->invalid = true;
		}
	return found;
}

void fake_capture_invalidate(CUgraph graph)
{
	graph->invalid = true;
}

/* ---- recording ---- */

static CUresult append(struct fake_branch *branch, const struct fake_operation *operation)
{
	if (branch->count == branch->capacity) {
		unsigned capacity = branch->capacity ? 2 * branch->capacity : 16;
		struct fake_operation *larger = realloc(branch->operations, capacity * sizeof *larger);
		if (!larger)
			return CUDA_ERROR_OUT_OF_MEMORY;
		branch->operations = larger;
		branch->capacity = capacity;
	}
	branch->operations[branch->count++] = *operation;
	return CUDA_SUCCESS;
}

static bool can_be_captured(const struct fake_operation *operation)
{
	return operation->kind <= FAKE_KERNEL;
}

CUresult fake_capture_record(CUstream stream, const struct fake_operation *operations, unsigned count)
{
	CUgraph graph = stream->capture;
	CUresult refused = CUDA_SUCCESS;
	if (graph->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (unsigned i = 0; !refused && i < count; i++)
		refused = can_be_captured(&operations[i])
		                  ? append(&graph->body.branches[stream->branch], &operations[i])
		                  : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (refused)
		graph->invalid = true;
	return refused;
}

void fake_capture_look(CUstream stream, uint32_t *seen)
{
	const struct fake_branch *branch = &stream->capture->body.branches[stream->branch];
	memcpy(seen, branch->seen, sizeof branch->seen);
	seen[stream->branch] = branch->count;
}

static CUresult add_branch(CUgraph graph, CUstream stream)
{
	if (stream->legacy || graph->body.nbranches == FAKE_MOST_BRANCHES) {
		graph->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	stream->capture = graph;
	stream->branch = graph->body.nbranches++;
	graph->body.branches[stream->branch] = (struct fake_branch){.stream = stream};
	return CUDA_SUCCESS;
}

CUresult fake_capture_join(CUstream stream, CUgraph graph, uint64_t id, const uint32_t *seen)
{
	CUresult refused = CUDA_SUCCESS;
	if (!graph->captures || graph->id != id)
		return CUDA_ERROR_CAPTURED_EVENT;
	if (graph->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (stream->capture && stream->capture != graph) {
		stream->capture->invalid = graph->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!stream->capture)
		refused = add_branch(graph, stream);
	struct fake_branch *mine = refused ? NULL : &graph->body.branches[stream->branch];
	for (unsigned other = 0; !refused && other < graph->body.nbranches; other++) {
		if (other == stream->branch || seen[other] <= mine->seen[other])
			continue;
		mine->seen[other] = seen[other];
		refused = append(mine, &(struct fake_operation){
		                               .kind = FAKE_AWAIT_BRANCH, .flags = other, .value = seen[other]});
	}
	return refused;
}

/* ---- begin and end ---- */

static CUresult begin(CUstream stream, CUstreamCaptureMode mode)
{
	if (stream->capture || ncaptures == MOST_CAPTURES)
		return CUDA_ERROR_ILLEGAL_STATE;
	CUgraph graph = fake_graph_new();
	if (!graph)
		return CUDA_ERROR_OUT_OF_MEMORY;
	graph->captures = true;
	graph->id = next_capture++;
	graph->origin = stream;
	graph->mode = mode;
	graph->thread = &self;
	captures[ncaptures++] = graph;
	return add_branch(graph, stream);
}

CUresult cuStreamBeginCapture(CUstream given, CUstreamCaptureMode mode)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || (int)mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (stream->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_rwlock_wrlock(&fake_lock);
	refused = begin(stream, mode);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

/* Every branch's last work has been waited for, by way of whatever branch, by the stream that began. */
static bool is_joined(const struct fake_body *body)
{
	for (unsigned i = 1; i < body->nbranches; i++) {
		const struct fake_branch *branch = &body->branches[i];
		unsigned last = branch->count;
		while (last && branch->operations[last - 1].kind == FAKE_AWAIT_BRANCH)
			last--;
		if (body->branches[0].seen[i] < last)
			return false;
	}
	return true;
}

static CUresult end(CUstream stream, CUgraph *ended)
{
	CUgraph graph = stream->capture;
	CUresult refused = CUDA_SUCCESS;
	unsigned at = 0;
	if (!graph)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (graph->mode != CU_STREAM_CAPTURE_MODE_RELAXED && graph->thread != &self)
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (graph->origin != stream) {
		graph->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (graph->invalid)
		refused = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!is_joined(&graph->body))
		refused = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	for (unsigned i = 0; i < graph->body.nbranches; i++)
		graph->body.branches[i].stream->capture = NULL;
	while (captures[at] != graph)
		at++;
	captures[at] = captures[--ncaptures];
	graph->captures = false;
	if (refused)
		fake_graph_end(graph);
	*ended = refused ? NULL : graph;
	return refused;
}

CUresult cuStreamEndCapture(CUstream given, CUgraph *ended)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || !ended)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*ended = NULL;
	pthread_rwlock_wrlock(&fake_lock);
	refused = end(stream, ended);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuStreamGetCaptureInfo(CUstream given, CUstreamCaptureStatus *status, uint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
	CUstream stream;
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || !status)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_lock);
	CUgraph capture = stream->capture;
	if (stream->legacy && fake_captures_blocking(stream->context, false))
		refused = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
	          : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
	                             : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	bool active = *status == CU_STREAM_CAPTURE_STATUS_ACTIVE;
	if (id)
		*id = active ? capture->id : 0;
	if (graph)
		*graph = active ? capture : NULL;
	pthread_rwlock_unlock(&fake_lock);
	if (dependencies)
		*dependencies = NULL;
	if (edges)
		*edges = NULL;
	if (count)
		*count = 0;
	return refused;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	return cuStreamGetCaptureInfo(stream, status, NULL, NULL, NULL, NULL, NULL);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUresult refused = fake_enter();
	if (refused || !mode || (int)*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	CUstreamCaptureMode before = thread_mode;
	thread_mode = *mode;
	*mode = before;
	return CUDA_SUCCESS;
}
