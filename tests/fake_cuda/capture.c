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
			if (!stream || !stream->blocking || stream->context != context)
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

static bool records(const struct fake_body *body, CUevent event)
{
	bool found = false;
	for (unsigned i = 0; i < body->nbranches; i++)
		for (unsigned at = 0; at < body->branches[i].count; at++) {
			const struct fake_operation *operation = &body->branches[i].operations[at];
			found |= operation->kind == FAKE_EXTERNAL_RECORD && operation->event == event;
		}
	return found;
}

CUresult fake_capture_wait(CUstream stream, CUevent event)
{
	CUgraph graph = stream->capture;
	if (graph->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (records(&graph->body, event)) /* which of the two launches' it is, the driver does not say */
		fake_misused();
	return append(&graph->body.branches[stream->branch],
	              &(struct fake_operation){
	                      .kind = FAKE_EXTERNAL_WAIT, .event = event, .value = graph->body.nexternals++});
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

/* The branch goes on when all of that is done. */
static CUresult come_behind(CUgraph graph, unsigned branch, const uint32_t *seen)
{
	struct fake_branch *mine = &graph->body.branches[branch];
	CUresult refused = CUDA_SUCCESS;
	for (unsigned other = 0; !refused && other < graph->body.nbranches; other++) {
		if (other == branch || seen[other] <= mine->seen[other])
			continue;
		mine->seen[other] = seen[other];
		refused = append(mine, &(struct fake_operation){
		                               .kind = FAKE_AWAIT_BRANCH, .flags = other, .value = seen[other]});
	}
	return refused;
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
	return refused ? refused : come_behind(graph, stream->branch, seen);
}

/* ---- nodes ---- */

/* A node's handle: the graph's place in the array, which branch, and how many operations that has with it. */
#define NODE_BRANCH_SHIFT 24
#define NODE_GRAPH_SHIFT  32

static CUgraphNode node_of(CUgraph graph, unsigned branch, uint64_t position)
{
	uint64_t number = (uint64_t)fake_graph_place(graph) + 1;
	return (CUgraphNode)(uintptr_t)(number << NODE_GRAPH_SHIFT | (uint64_t)branch << NODE_BRANCH_SHIFT | position);
}

/* What has come before the end of that node. false: it is none of the graph's. */
static bool look_at_node(CUgraph graph, CUgraphNode node, unsigned *branch, uint32_t *seen)
{
	uint64_t number = (uint64_t)(uintptr_t)node, position = number & ((1u << NODE_BRANCH_SHIFT) - 1);
	*branch = number >> NODE_BRANCH_SHIFT & 0xff;
	if (number >> NODE_GRAPH_SHIFT != (uint64_t)fake_graph_place(graph) + 1 || *branch >= graph->body.nbranches ||
	    position > graph->body.branches[*branch].count)
		return false;
	for (uint64_t i = 0; i < position; i++) {
		const struct fake_operation *operation = &graph->body.branches[*branch].operations[i];
		if (operation->kind == FAKE_AWAIT_BRANCH && seen[operation->flags] < operation->value)
			seen[operation->flags] = (uint32_t)operation->value;
	}
	if (seen[*branch] < position)
		seen[*branch] = (uint32_t)position;
	return true;
}

static CUresult look_at_nodes(CUgraph graph, const CUgraphNode *nodes, size_t count, uint32_t *seen)
{
	unsigned branch;
	for (size_t i = 0; i < count; i++)
		if (!look_at_node(graph, nodes[i], &branch, seen) || !graph->body.branches[branch].stream)
			return CUDA_ERROR_INVALID_VALUE;
	return CUDA_SUCCESS;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream given, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                           size_t count, unsigned int flags)
{
	CUstream stream;
	uint32_t seen[FAKE_MOST_BRANCHES] = {0};
	CUresult refused = fake_stream_find(given, &stream);
	if (refused || edges || flags != CU_STREAM_ADD_CAPTURE_DEPENDENCIES)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	CUgraph graph = stream->capture;
	if (!graph || graph->invalid)
		refused = graph ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_ILLEGAL_STATE;
	else if (!(refused = look_at_nodes(graph, nodes, count, seen)))
		refused = come_behind(graph, stream->branch, seen);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

/* A branch of its own. */
CUresult cuGraphAddEventRecordNode(CUgraphNode *made, CUgraph graph, const CUgraphNode *before, size_t count,
                                   CUevent event)
{
	uint32_t seen[FAKE_MOST_BRANCHES] = {0};
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	unsigned branch = fake_graph_is(graph) ? graph->body.nbranches : 0;
	if (!fake_graph_is(graph) || branch == FAKE_MOST_BRANCHES)
		refused = CUDA_ERROR_INVALID_VALUE;
	else if (!(refused = look_at_nodes(graph, before, count, seen))) {
		graph->body.branches[graph->body.nbranches++] = (struct fake_branch){.stream = NULL};
		refused = come_behind(graph, branch, seen);
	}
	if (!refused)
		refused = append(&graph->body.branches[branch],
		                 &(struct fake_operation){.kind = FAKE_EXTERNAL_RECORD,
		                                          .event = event,
		                                          .value = graph->body.nexternals++});
	*made = refused ? NULL : node_of(graph, branch, 0);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

/* One more that comes before the lone node of a branch. */
static CUresult add_dependency(CUgraph graph, CUgraphNode from, CUgraphNode to)
{
	uint32_t seen[FAKE_MOST_BRANCHES] = {0}, unused[FAKE_MOST_BRANCHES] = {0};
	unsigned branch;
	if (!look_at_node(graph, to, &branch, unused) || graph->body.branches[branch].stream ||
	    look_at_nodes(graph, &from, 1, seen))
		return CUDA_ERROR_INVALID_VALUE;
	struct fake_branch *lone = &graph->body.branches[branch];
	struct fake_operation node = lone->operations[--lone->count];
	CUresult refused = come_behind(graph, branch, seen);
	return refused ? refused : append(lone, &node);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                const CUgraphEdgeData *edges, size_t count)
{
	CUresult refused = fake_enter();
	if (refused || edges)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (!fake_graph_is(graph))
		refused = CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; !refused && i < count; i++)
		refused = add_dependency(graph, from[i], to[i]);
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

static _Thread_local CUgraphNode tips[FAKE_MOST_BRANCHES]; /* what cuStreamGetCaptureInfo has told this thread */

/* What the stream's next operation comes behind: its last one and, or instead, what it has waited for since. */
static size_t find_tips(CUgraph graph, unsigned branch)
{
	const struct fake_branch *mine = &graph->body.branches[branch];
	size_t count = 0;
	unsigned at = mine->count;
	for (; at && mine->operations[at - 1].kind == FAKE_AWAIT_BRANCH; at--) {
		const struct fake_operation *wait = &mine->operations[at - 1];
		bool newer = true;
		for (unsigned later = at; later < mine->count; later++)
			newer &= mine->operations[later].flags != wait->flags;
		if (newer)
			tips[count++] = node_of(graph, wait->flags, wait->value);
	}
	if (at)
		tips[count++] = node_of(graph, branch, at);
	return count;
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
		if (branch->stream && body->branches[0].seen[i] < last)
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
		if (graph->body.branches[i].stream)
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
	if (dependencies && count)
		*count = active ? find_tips(capture, stream->branch) : 0;
	pthread_rwlock_unlock(&fake_lock);
	if (dependencies)
		*dependencies = tips;
	if (edges)
		*edges = NULL;
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
