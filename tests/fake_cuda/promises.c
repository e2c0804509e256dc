/* SPDX-License-Identifier: Apache-2.0 */
/* What the double of the CUDA driver promises to the suites over it. */
#include "tests/fake_cuda/promises.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define COUNT 1000

static CUcontext contexts[2];

static int use_first_device(void **state)
{
	(void)state;
	return cuCtxSetCurrent(contexts[0]);
}

/* ---- kernels ---- */

struct numbers {
	CUdeviceptr at;
	int add, wait_ms;
};

static void add_slowly(void *argument)
{
	const struct numbers *numbers = argument;
	int *at = fake_cuda_reach(numbers->at);
	doze(numbers->wait_ms);
	for (int i = 0; i < COUNT; i++)
		at[i] += numbers->add;
}

static CUdeviceptr zeroed(size_t bytes)
{
	CUdeviceptr memory;
	CU(cuMemAlloc(&memory, bytes));
	CU(cuMemsetD8Async(memory, 0, bytes, NULL));
	CU(cuStreamSynchronize(NULL));
	return memory;
}

static int first_of(CUdeviceptr memory)
{
	int value;
	CU(cuMemcpy((uintptr_t)&value, memory, sizeof value));
	return value;
}

/* ---- streams ---- */

static void a_stream_does_its_work_in_order(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	CUdeviceptr a = zeroed(COUNT * sizeof(int)), b = zeroed(COUNT * sizeof(int));
	struct numbers slow = {a, 5, 30};
	int *result;
	CU(cuMemHostAlloc((void **)&result, COUNT * sizeof(int), 0));
	CU(fake_cuda_launch(stream, add_slowly, &slow));
	CU(cuMemcpyDtoDAsync(b, a, COUNT * sizeof(int), stream));
	CU(fake_cuda_launch(stream, add_slowly, &slow));
	CU(cuMemcpyDtoHAsync(result, b, COUNT * sizeof(int), stream));
	assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
	CU(cuStreamSynchronize(stream));
	CU(cuStreamQuery(stream));
	assert_int_equal(result[COUNT - 1], 5);
	assert_int_equal(first_of(a), 10);
	CU(cuStreamDestroy(stream));
	assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	CU(cuMemFreeHost(result));
	CU(cuMemFree(a));
	CU(cuMemFree(b));
	assert_int_equal(cuMemFree(b), CUDA_ERROR_INVALID_VALUE);
}

static void words_are_written_and_waited_for(void **state)
{
	(void)state;
	CUstream one = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CUstreamBatchMemOpParams batch[2] = {
	        {.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, (uintptr_t)&words[0], {.value = 7}, 0, 0}},
	        {.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32,
	                       (uintptr_t)&words[1],
	                       {.value = 3},
	                       CU_STREAM_WAIT_VALUE_EQ,
	                       0}}};
	CU(cuStreamBatchMemOp(one, 2, batch, 0));
	CU(cuStreamWriteValue32(one, (uintptr_t)&words[2], 1, 0));
	CU(cuStreamWaitValue32(other, (uintptr_t)&words[0], 7, CU_STREAM_WAIT_VALUE_GEQ));
	CU(cuStreamSynchronize(other));
	doze(10);
	assert_int_equal(cuStreamQuery(one), CUDA_ERROR_NOT_READY);
	__atomic_store_n(&words[1], 4, __ATOMIC_RELEASE);
	doze(10);
	assert_int_equal(__atomic_load_n(&words[2], __ATOMIC_ACQUIRE), 0);
	__atomic_store_n(&words[1], 3, __ATOMIC_RELEASE);
	CU(cuStreamSynchronize(one));
	assert_int_equal(words[2], 1);
	assert_int_equal(cuStreamWriteValue32(one, (uintptr_t)words + 2, 1, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuStreamWriteValue32(one, (uintptr_t)words + 4096, 1, 0), CUDA_ERROR_INVALID_VALUE);
	CU(cuStreamDestroy(one));
	CU(cuStreamDestroy(other));
	CU(cuMemFreeHost(words));
}

static void events_order_streams_and_measure(void **state)
{
	(void)state;
	CUstream one = open_stream(), other = open_stream();
	CUdeviceptr a = zeroed(COUNT * sizeof(int));
	struct numbers slow = {a, 1, 40};
	CUevent before, after;
	float milliseconds = 0;
	CU(cuEventCreate(&before, 0));
	CU(cuEventCreate(&after, 0));
	CU(cuEventRecord(before, one));
	CU(fake_cuda_launch(one, add_slowly, &slow));
	CU(cuEventRecord(after, one));
	CU(cuStreamWaitEvent(other, after, 0));
	assert_int_equal(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
	CU(cuStreamSynchronize(other));
	CU(cuEventQuery(after));
	CU(cuEventSynchronize(after));
	CU(cuEventElapsedTime(&milliseconds, before, after));
	assert_true(milliseconds >= 39);
	CU(cuEventDestroy(before));
	CU(cuEventDestroy(after));
	assert_int_equal(cuEventQuery(after), CUDA_ERROR_INVALID_HANDLE);
	CU(cuStreamDestroy(one));
	CU(cuStreamDestroy(other));
	CU(cuMemFree(a));
}

static void the_legacy_stream_waits_for_blocking_streams_alone(void **state)
{
	(void)state;
	CUstream blocking, free_one = open_stream();
	uint32_t *words = open_words();
	CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	CU(cuStreamWaitValue32(free_one, (uintptr_t)&words[0], 1, 0));
	CU(cuStreamSynchronize(NULL));
	CU(cuStreamWaitValue32(blocking, (uintptr_t)&words[1], 1, 0));
	CU(cuStreamWriteValue32(NULL, (uintptr_t)&words[2], 1, 0));
	doze(20);
	assert_int_equal(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
	assert_int_equal(__atomic_load_n(&words[2], __ATOMIC_ACQUIRE), 0);
	__atomic_store_n(&words[1], 1, __ATOMIC_RELEASE);
	CU(cuStreamSynchronize(NULL));
	assert_int_equal(words[2], 1);
	assert_int_equal(cuStreamQuery(free_one), CUDA_ERROR_NOT_READY);
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	CU(cuStreamSynchronize(free_one));
	CU(cuStreamDestroy(blocking));
	CU(cuStreamDestroy(free_one));
	CU(cuMemFreeHost(words));
}

/* ---- memory ---- */

static void pointers_say_what_they_are(void **state)
{
	(void)state;
	CUdeviceptr device, managed, pooled, other;
	unsigned type, is_managed;
	int ordinal;
	void *pinned, *values[] = {&type, &is_managed, &ordinal};
	CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
	                                CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	CU(cuMemAlloc(&device, 10000));
	CU(cuMemAllocManaged(&managed, 10000, CU_MEM_ATTACH_GLOBAL));
	CU(cuMemAllocAsync(&pooled, 10000, NULL));
	CU(cuMemHostAlloc(&pinned, 10000, 0));
	CU(cuCtxPushCurrent(contexts[1]));
	CU(cuMemAlloc(&other, 10000));
	CU(cuCtxPopCurrent(NULL));
	const struct {
		CUdeviceptr at;
		unsigned type, managed;
		int ordinal;
	} cases[] = {{device + 9999, CU_MEMORYTYPE_DEVICE, 0, 0},       {device + 10000, 0, 0, CU_DEVICE_INVALID},
	             {managed + 5, CU_MEMORYTYPE_DEVICE, 1, 0},         {pooled + 5, CU_MEMORYTYPE_DEVICE, 0, 0},
	             {(uintptr_t)pinned + 5, CU_MEMORYTYPE_HOST, 0, 0}, {other + 5, CU_MEMORYTYPE_DEVICE, 0, 1},
	             {(uintptr_t)&type, 0, 0, CU_DEVICE_INVALID}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		CU(cuPointerGetAttributes(3, wanted, values, cases[i].at));
		assert_int_equal(type, cases[i].type);
		assert_int_equal(is_managed, cases[i].managed);
		assert_int_equal(ordinal, cases[i].ordinal);
	}
	CU(cuMemFreeAsync(pooled, NULL));
	CU(cuMemFree(device));
	CU(cuMemFree(managed));
	CU(cuMemFree(other));
	CU(cuMemFreeHost(pinned));
}

static int start_of(CUdeviceptr at, CUdeviceptr *start, size_t *bytes)
{
	unsigned has_ipc;
	CUpointer_attribute wanted[] = {CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	                                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE};
	void *values[] = {start, bytes, &has_ipc};
	CU(cuPointerGetAttributes(3, wanted, values, at));
	return (int)has_ipc;
}

/* Opened in another process: promises_shared.c. */
static void an_ipc_handle_names_a_whole_allocation_to_other_processes(void **state)
{
	(void)state;
	CUdeviceptr device = zeroed(10000), pooled, start, opened;
	CUipcMemHandle one, other;
	CUuuid uuids[2];
	size_t bytes;
	int can = -1;
	CU(cuMemAllocAsync(&pooled, 10000, NULL));
	assert_int_equal(start_of(device + 9999, &start, &bytes), 1);
	assert_int_equal(start, device);
	assert_int_equal(bytes, 10000);
	assert_int_equal(start_of(pooled + 5, &start, &bytes), 0);
	assert_int_equal(start, pooled);
	assert_int_equal(start_of((uintptr_t)&bytes, &start, &bytes), 0);
	assert_int_equal(bytes, 0);
	CU(cuIpcGetMemHandle(&one, device));
	CU(cuIpcGetMemHandle(&other, device + 9999));
	assert_memory_equal(&one, &other, sizeof one);
	assert_int_equal(cuIpcGetMemHandle(&other, pooled), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuIpcOpenMemHandle(&opened, one, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuIpcOpenMemHandle(&opened, one, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
	                 CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(cuIpcCloseMemHandle(device), CUDA_ERROR_INVALID_VALUE);
	for (int i = 0; i < 2; i++)
		CU(cuDeviceGetUuid(&uuids[i], i));
	assert_memory_not_equal(&uuids[0], &uuids[1], sizeof uuids[0]);
	CU(cuDeviceCanAccessPeer(&can, 0, 1));
	assert_int_equal(can, 1);
	CU(cuDeviceCanAccessPeer(&can, 1, 1));
	assert_int_equal(can, 0);
	CU(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 1, 0));
	assert_int_equal(can, 1);
	CU(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 1, 0)); /* the machine's 1 and 2 */
	assert_int_equal(can, 1);
	CU(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1, 0));
	assert_int_equal(can, 0);
	assert_int_equal(cuDeviceGetP2PAttribute(&can, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, 1, 1),
	                 CUDA_ERROR_INVALID_DEVICE);
	CU(cuMemFreeAsync(pooled, NULL));
	CU(cuMemFree(device));
}

static void copies_to_another_device_need_access_to_it(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	CUdeviceptr here = zeroed(100), there;
	CU(cuCtxSetCurrent(contexts[1]));
	CU(cuMemAlloc(&there, 100));
	CU(cuCtxSetCurrent(contexts[0]));
	assert_int_equal(cuMemcpyDtoDAsync(there, here, 100, stream), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuCtxEnablePeerAccess(contexts[0], 0), CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	assert_int_equal(cuCtxEnablePeerAccess(contexts[1], 1), CUDA_ERROR_INVALID_VALUE);
	CU(cuCtxEnablePeerAccess(contexts[1], 0));
	assert_int_equal(cuCtxEnablePeerAccess(contexts[1], 0), CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	*(char *)fake_cuda_reach(here + 99) = 7;
	CU(cuMemcpyDtoDAsync(there, here, 100, stream));
	CU(cuStreamSynchronize(stream));
	assert_int_equal(*(char *)fake_cuda_reach(there + 99), 7);
	CU(cuStreamDestroy(stream));
	CU(cuMemFree(here));
	CU(cuMemFree(there));
}

static void copies_beyond_memory_or_from_unregistered_memory_are_refused(void **state)
{
	(void)state;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	CUstream stream = open_stream();
	CUdeviceptr device = zeroed(page);
	char *host = aligned_alloc(page, 2 * page);
	memset(host, 0, 2 * page);
	assert_int_equal(cuMemcpyHtoDAsync(device, host, 8, stream), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemHostRegister(host + 8, page, 0), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemHostRegister(host, page, 0));
	assert_int_equal(cuMemHostRegister(host, 2 * page, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
	CU(cuMemcpyHtoDAsync(device, host, page, stream));
	assert_int_equal(cuMemcpyHtoDAsync(device, host + page - 4, 8, stream), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemcpyDtoHAsync(host, device + page - 4, 8, stream), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemcpyDtoDAsync(device, device + page, 8, stream), CUDA_ERROR_INVALID_VALUE);
	CU(cuStreamSynchronize(stream));
	CU(cuMemHostUnregister(host));
	assert_int_equal(cuMemHostUnregister(host), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
	CU(cuStreamDestroy(stream));
	CU(cuMemFree(device));
	free(host);
}

struct freer {
	CUdeviceptr memory;
	_Atomic int done;
};

static void *free_memory(void *argument)
{
	struct freer *freer = argument;
	cuCtxSetCurrent(contexts[0]);
	cuMemFree(freer->memory);
	atomic_store(&freer->done, 1);
	return NULL;
}

static void freeing_memory_waits_for_the_device(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	uint32_t *words = open_words();
	struct freer freer = {zeroed(100), 0};
	pthread_t thread;
	CU(cuStreamWaitValue32(stream, (uintptr_t)words, 1, 0));
	pthread_create(&thread, NULL, free_memory, &freer);
	doze(20);
	assert_int_equal(atomic_load(&freer.done), 0);
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	assert_null(fake_cuda_reach(freer.memory));
	CU(cuStreamDestroy(stream));
	CU(cuMemFreeHost(words));
}

/* Memory of a pool goes where its stream is; a copy in another stream that comes later finds it gone. */
static void memory_that_goes_before_its_copy_fails_the_device(void **state)
{
	(void)state;
	CUstream one = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CUdeviceptr pooled;
	unsigned misuses = fake_cuda_misuses();
	CU(cuMemAllocAsync(&pooled, 100, one));
	CU(cuStreamWaitValue32(other, (uintptr_t)words, 1, 0));
	CU(cuMemsetD8Async(pooled, 1, 100, other));
	CU(cuMemFreeAsync(pooled, one));
	CU(cuStreamSynchronize(one));
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	assert_int_equal(cuStreamSynchronize(other), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(cuStreamQuery(other), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(fake_cuda_misuses(), misuses + 1);
	CU(fake_cuda_break(0, CUDA_SUCCESS));
	CU(cuStreamDestroy(one));
	CU(cuStreamDestroy(other));
	CU(cuMemFreeHost(words));
}

/* ---- graphs ---- */

static _Atomic int destroyed;

static void count_destruction(void *argument)
{
	atomic_fetch_add((_Atomic int *)argument, 1);
}

static void await_destruction(int count)
{
	for (int i = 0; i < 2000 && atomic_load(&destroyed) < count; i++)
		doze(1);
	assert_int_equal(atomic_load(&destroyed), count);
}

static void a_graph_is_replayed_and_its_objects_die_with_its_last_launch(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	CUdeviceptr a = zeroed(COUNT * sizeof(int)), b = zeroed(COUNT * sizeof(int));
	uint32_t *words = open_words();
	struct numbers add = {a, 1, 0};
	CUstreamCaptureStatus status;
	CUgraph graph;
	CUgraphExec executable;
	CUuserObject object;
	uint64_t id;
	atomic_store(&destroyed, 0);
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CU(cuStreamGetCaptureInfo(stream, &status, &id, &graph, NULL, NULL, NULL));
	assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CU(cuUserObjectCreate(&object, &destroyed, count_destruction, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	CU(cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
	CU(fake_cuda_launch(stream, add_slowly, &add));
	CU(cuStreamWaitValue32(stream, (uintptr_t)words, 1, 0));
	CU(cuMemcpyDtoDAsync(b, a, COUNT * sizeof(int), stream));
	CU(cuStreamEndCapture(stream, &graph));
	CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
	CU(cuGraphDestroy(graph));
	assert_int_equal(first_of(a), 0);
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < 100; i++)
		CU(cuGraphLaunch(executable, stream));
	CU(cuStreamSynchronize(stream));
	assert_int_equal(first_of(b), 100);
	__atomic_store_n(words, 0, __ATOMIC_RELEASE);
	CU(cuGraphLaunch(executable, stream));
	CU(cuGraphExecDestroy(executable));
	assert_int_equal(cuGraphLaunch(executable, stream), CUDA_ERROR_INVALID_VALUE);
	doze(20);
	assert_int_equal(atomic_load(&destroyed), 0);
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	CU(cuStreamSynchronize(stream));
	await_destruction(1);
	assert_int_equal(first_of(b), 101);
	CU(cuStreamDestroy(stream));
	CU(cuMemFree(a));
	CU(cuMemFree(b));
	CU(cuMemFreeHost(words));
}

/* The first branch waits for what the second one writes: they run side by side, and the forked work is joined. */
static void forked_streams_are_captured_as_branches(void **state)
{
	(void)state;
	CUstream one = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CUdeviceptr a = zeroed(COUNT * sizeof(int));
	struct numbers add = {a, 1, 10};
	CUevent fork, join;
	CUgraph graph;
	CUgraphExec executable;
	CU(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	CU(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	CU(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CU(cuEventRecord(fork, one));
	CU(cuStreamWaitEvent(other, fork, 0));
	CU(cuStreamWaitValue32(one, (uintptr_t)words, 1, CU_STREAM_WAIT_VALUE_EQ));
	CU(fake_cuda_launch(other, add_slowly, &add));
	CU(cuStreamWriteValue32(other, (uintptr_t)words, 1, 0));
	CU(cuEventRecord(join, other));
	CU(cuStreamWaitEvent(one, join, 0));
	CU(cuStreamWriteValue32(one, (uintptr_t)words, 0, 0));
	CU(cuStreamEndCapture(one, &graph));
	assert_int_equal(cuEventQuery(join), CUDA_ERROR_CAPTURED_EVENT);
	CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (int i = 0; i < 10; i++)
		CU(cuGraphLaunch(executable, one));
	CU(cuStreamSynchronize(one));
	assert_int_equal(first_of(a), 10);
	CU(cuGraphExecDestroy(executable));
	CU(cuGraphDestroy(graph));
	CU(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CU(cuEventRecord(fork, one));
	CU(cuStreamWaitEvent(other, fork, 0));
	CU(fake_cuda_launch(other, add_slowly, &add));
	assert_int_equal(cuStreamEndCapture(one, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	CU(cuEventDestroy(fork));
	CU(cuEventDestroy(join));
	CU(cuStreamDestroy(one));
	CU(cuStreamDestroy(other));
	CU(cuMemFree(a));
	CU(cuMemFreeHost(words));
}

static void *allocate_elsewhere(void *argument)
{
	CUdeviceptr memory;
	CUresult *result = argument;
	cuCtxSetCurrent(contexts[0]);
	*result = cuMemAlloc(&memory, 100);
	if (!*result)
		cuMemFree(memory);
	return NULL;
}

static CUresult capture_while_another_thread_allocates(CUstream stream, CUstreamCaptureMode mode, CUresult *other)
{
	pthread_t thread;
	CUgraph graph;
	CU(cuStreamBeginCapture(stream, mode));
	pthread_create(&thread, NULL, allocate_elsewhere, other);
	pthread_join(thread, NULL);
	CUresult ended = cuStreamEndCapture(stream, &graph);
	if (!ended)
		CU(cuGraphDestroy(graph));
	return ended;
}

static void unsafe_calls_end_a_capture_unless_relaxed(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult other;
	CUdeviceptr memory;
	CUgraph graph;
	assert_int_equal(capture_while_another_thread_allocates(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, &other),
	                 CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	assert_int_equal(other, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	CU(capture_while_another_thread_allocates(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, &other));
	CU(other);
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	CU(cuThreadExchangeStreamCaptureMode(&mode));
	CU(cuMemAlloc(&memory, 100));
	CU(cuMemFree(memory));
	CU(cuThreadExchangeStreamCaptureMode(&mode));
	assert_int_equal(cuMemAlloc(&memory, 100), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(cuStreamWriteValue32(stream, 8, 1, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
	assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	assert_int_equal(cuStreamEndCapture(stream, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	CU(cuStreamDestroy(stream));
}

static void call_the_driver(void *argument)
{
	int count;
	*(CUresult *)argument = cuDeviceGetCount(&count);
	atomic_store(&destroyed, 1);
}

static void destructors_may_not_call_the_driver(void **state)
{
	(void)state;
	static CUresult result;
	CUuserObject object;
	unsigned misuses = fake_cuda_misuses();
	atomic_store(&destroyed, 0);
	CU(cuUserObjectCreate(&object, &result, call_the_driver, 2, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC));
	assert_int_equal(cuUserObjectRelease(object, 3), CUDA_ERROR_INVALID_VALUE);
	CU(cuUserObjectRelease(object, 2));
	await_destruction(1);
	assert_int_equal(result, CUDA_ERROR_NOT_PERMITTED);
	assert_int_equal(fake_cuda_misuses(), misuses + 1);
}

static void calls_without_a_context_are_refused(void **state)
{
	(void)state;
	CUdeviceptr memory;
	CU(cuCtxSetCurrent(NULL));
	assert_int_equal(cuMemAlloc(&memory, 8), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(cuCtxPopCurrent(NULL), CUDA_ERROR_INVALID_CONTEXT);
	assert_int_equal(cuStreamSynchronize((CUstream)&memory), CUDA_ERROR_INVALID_CONTEXT);
	CU(cuCtxSetCurrent(contexts[0]));
	assert_int_equal(cuStreamSynchronize((CUstream)&memory), CUDA_ERROR_INVALID_HANDLE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(a_stream_does_its_work_in_order, use_first_device),
	        cmocka_unit_test_setup(words_are_written_and_waited_for, use_first_device),
	        cmocka_unit_test_setup(events_order_streams_and_measure, use_first_device),
	        cmocka_unit_test_setup(the_legacy_stream_waits_for_blocking_streams_alone, use_first_device),
	        cmocka_unit_test_setup(pointers_say_what_they_are, use_first_device),
	        cmocka_unit_test_setup(an_ipc_handle_names_a_whole_allocation_to_other_processes, use_first_device),
	        cmocka_unit_test_setup(copies_to_another_device_need_access_to_it, use_first_device),
	        cmocka_unit_test_setup(copies_beyond_memory_or_from_unregistered_memory_are_refused, use_first_device),
	        cmocka_unit_test_setup(freeing_memory_waits_for_the_device, use_first_device),
	        cmocka_unit_test_setup(memory_that_goes_before_its_copy_fails_the_device, use_first_device),
	        cmocka_unit_test_setup(a_graph_is_replayed_and_its_objects_die_with_its_last_launch, use_first_device),
	        cmocka_unit_test_setup(forked_streams_are_captured_as_branches, use_first_device),
	        cmocka_unit_test_setup(unsafe_calls_end_a_capture_unless_relaxed, use_first_device),
	        cmocka_unit_test_setup(destructors_may_not_call_the_driver, use_first_device),
	        cmocka_unit_test_setup(calls_without_a_context_are_refused, use_first_device),
	};
	CUdevice device;
	setenv("CUDA_VISIBLE_DEVICES", "2,1", 1);
	if (cuDeviceGet(&device, 0) != CUDA_ERROR_NOT_INITIALIZED || cuInit(0))
		return 1;
	for (int i = 0; i < 2; i++)
		if (cuDeviceGet(&device, i) || cuDevicePrimaryCtxRetain(&contexts[i], device))
			return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
