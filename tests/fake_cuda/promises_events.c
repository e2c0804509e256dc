/* SPDX-License-Identifier: Apache-2.0 */
/* What the double of the CUDA driver promises of events that graphs wait for and record as they are launched. */
#include "tests/fake_cuda/promises.h"

#include <stdatomic.h>

static _Atomic int log_of[8], logged;

static void note(void *argument)
{
	log_of[atomic_fetch_add(&logged, 1) & 7] = *(const int *)argument;
}

static void note_late(void *argument)
{
	doze(30);
	note(argument);
}

static int use_first_device(void **state)
{
	CUcontext context;
	(void)state;
	CU(cuInit(0));
	CU(cuDevicePrimaryCtxRetain(&context, 0));
	return cuCtxSetCurrent(context);
}

/* A graph: wait for the event, the two kernels in two branches, and the event's record behind both. */
static CUgraphExec capture(CUstream stream, CUstream other, CUevent event, int *first, int *second)
{
	CUstreamCaptureStatus status;
	const CUgraphNode *tips;
	const CUgraphEdgeData *edges;
	CUgraphNode kernel, record;
	CUgraph graph;
	CUgraphExec executable;
	CUevent fork;
	size_t count;
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CU(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
	CU(fake_cuda_launch(stream, note, first));
	CU(cuStreamGetCaptureInfo(stream, &status, NULL, &graph, &tips, &edges, &count));
	assert_int_equal(count, 1);
	kernel = tips[0];
	CU(cuGraphAddEventRecordNode(&record, graph, &kernel, 1, event));
	CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	CU(cuEventRecord(fork, stream));
	CU(cuStreamWaitEvent(other, fork, 0));
	CU(fake_cuda_launch(other, note_late, second));
	CU(cuStreamGetCaptureInfo(other, &status, NULL, &graph, &tips, &edges, &count));
	assert_int_equal(count, 1);
	kernel = tips[0];
	CU(cuGraphAddDependencies(graph, &kernel, &record, NULL, 1));
	CU(cuStreamUpdateCaptureDependencies(stream, &kernel, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	CU(cuStreamEndCapture(stream, &graph));
	CU(cuEventDestroy(fork));
	CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CU(cuGraphDestroy(graph));
	return executable;
}

static void graphs_wait_for_the_event_as_it_is_at_their_launch(void **state)
{
	(void)state;
	int numbers[] = {0, 1, 2, 3, 4};
	CUstream streams[3] = {open_stream(), open_stream(), open_stream()};
	CUevent event;
	CUgraphExec graphs[2];
	CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	assert_int_equal(cuStreamWaitEvent(streams[0], event, CU_EVENT_WAIT_EXTERNAL), CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 2; i++)
		graphs[i] = capture(streams[i], streams[2], event, &numbers[2 * i + 1], &numbers[2 * i + 2]);
	for (int i = 0; i < 20; i++) {
		int first = i % 2;
		atomic_store(&logged, 0);
		CU(fake_cuda_launch(streams[2], note_late, &numbers[0]));
		CU(cuEventRecord(event, streams[2]));
		CU(cuGraphLaunch(graphs[first], streams[first]));
		CU(cuGraphLaunch(graphs[!first], streams[!first]));
		CU(cuEventSynchronize(event)); /* as the second one has recorded it */
		assert_int_equal(atomic_load(&logged), 5);
		for (int at = 0; at < 5; at++)
			assert_int_equal(atomic_load(&log_of[at]),
			                 at && first ? numbers[(at + 1) % 4 + 1] : numbers[at]);
	}
	for (int i = 0; i < 3; i++)
		CU(cuStreamSynchronize(streams[i]));
	CU(cuEventDestroy(event));
	assert_int_equal(fake_cuda_misuses(), 0);
	assert_int_equal(cuGraphLaunch(graphs[0], streams[0]), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(fake_cuda_misuses(), 1);
	for (int i = 0; i < 2; i++)
		CU(cuGraphExecDestroy(graphs[i]));
	for (int i = 0; i < 3; i++)
		CU(cuStreamDestroy(streams[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(graphs_wait_for_the_event_as_it_is_at_their_launch, use_first_device),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
