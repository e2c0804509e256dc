/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the double promises of contexts that come and go, of what names memory and streams for good, and of the kernel
 * that waits. All streams of a priority share one connection here.
 */
#include "tests/fake_cuda/promises.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char wait_for_zero[] = ".version 7.0\n.target sm_50\n.address_size 64\n"
                                    ".visible .entry ferry_wait(\n\t.param .u64 word\n)\n{\n\tret;\n}\n";
static CUcontext context;

static int retain_device(void **state)
{
	(void)state;
	CUresult refused = cuDevicePrimaryCtxRetain(&context, 0);
	return refused ? refused : cuCtxSetCurrent(context);
}

static int release_device(void **state)
{
	(void)state;
	return cuDevicePrimaryCtxRelease(0);
}

/* ---- names for good ---- */

static uint64_t buffer_id(CUdeviceptr at)
{
	uint64_t id;
	CUpointer_attribute wanted = CU_POINTER_ATTRIBUTE_BUFFER_ID;
	void *value = &id;
	CU(cuPointerGetAttributes(1, &wanted, &value, at));
	return id;
}

static void memory_at_the_address_of_freed_memory_has_another_id(void **state)
{
	(void)state;
	CUdeviceptr memory, again, other, start;
	uint64_t seen[100];
	size_t bytes;
	CU(cuMemAlloc(&other, 10000));
	for (int i = 0; i < 100; i++) {
		CU(cuMemAlloc(&memory, 50000));
		if (i)
			assert_int_equal(memory, again);
		again = memory;
		seen[i] = buffer_id(memory + 49999);
		for (int before = 0; before < i; before++)
			assert_int_not_equal(seen[i], seen[before]);
		assert_int_equal(*(char *)fake_cuda_reach(memory), 0); /* nothing of the freed one */
		*(char *)fake_cuda_reach(memory) = 1;
		CU(cuMemFree(memory));
		assert_int_equal(buffer_id(memory), 0);
	}
	CU(cuMemGetAddressRange(&start, &bytes, other + 9999));
	assert_int_equal(start, other);
	assert_int_equal(bytes, 10000);
	assert_int_equal(cuMemGetAddressRange(&start, &bytes, memory), CUDA_ERROR_NOT_FOUND);
	CU(cuMemFree(other));
}

static unsigned long long stream_id(CUstream stream)
{
	unsigned long long id;
	CU(cuStreamGetId(stream, &id));
	return id;
}

static void a_stream_has_an_id_that_none_ever_has_again(void **state)
{
	(void)state;
	unsigned long long seen[64], id;
	int count = 0;
	seen[count++] = stream_id(CU_STREAM_LEGACY);
	seen[count++] = stream_id(CU_STREAM_PER_THREAD);
	assert_int_equal(stream_id(NULL), seen[0]);
	while (count < 64) {
		CUstream stream = open_stream();
		seen[count++] = stream_id(stream);
		CU(cuStreamDestroy(stream));
		assert_int_equal(cuStreamGetId(stream, &id), CUDA_ERROR_INVALID_HANDLE);
	}
	for (int i = 0; i < 64; i++)
		for (int other = 0; other < i; other++)
			assert_int_not_equal(seen[i], seen[other]);
	assert_int_equal(stream_id(CU_STREAM_LEGACY), seen[0]);
}

static void the_flush_flag_is_taken_where_the_device_has_it(void **state)
{
	(void)state;
	CUstream stream = open_stream();
	uint32_t *words = open_words();
	int can = 0;
	CU(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0));
	assert_int_equal(can, 1);
	CU(cuStreamWaitValue32(stream, (uintptr_t)words, 0, CU_STREAM_WAIT_VALUE_EQ | CU_STREAM_WAIT_VALUE_FLUSH));
	CU(cuStreamSynchronize(stream));
	CU(cuStreamDestroy(stream));
	CU(cuMemFreeHost(words));
}

/* ---- contexts ---- */

static void all_that_was_made_in_a_context_goes_with_it(void **state)
{
	(void)state;
	CUcontext again;
	CUdeviceptr memory, other;
	CUstream stream = open_stream();
	uint32_t *words = open_words();
	CUevent event;
	size_t before, left, total;
	unsigned misuses = fake_cuda_misuses();
	CU(cuMemGetInfo(&before, &total));
	CU(cuMemAlloc(&memory, 1 << 20));
	CU(cuEventCreate(&event, 0));
	CU(cuStreamWaitValue32(stream, (uintptr_t)words, 1, 0)); /* nobody writes it: it ends with the context */
	CU(cuDevicePrimaryCtxRelease(0));
	assert_int_equal(cuMemAlloc(&other, 100), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CU(cuCtxSetCurrent(context));
	assert_int_equal(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	assert_int_equal(cuDevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
	CU(cuDevicePrimaryCtxRetain(&again, 0));
	assert_ptr_equal(again, context);
	CU(cuCtxSetCurrent(again));
	CU(cuMemGetInfo(&left, &total));
	assert_int_equal(left, before);
	assert_null(fake_cuda_reach(memory));
	assert_int_equal(cuMemFree(memory), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(fake_cuda_misuses(), misuses);
	assert_int_equal(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(fake_cuda_misuses(), misuses + 1);
	CU(cuStreamSynchronize(NULL));
	CU(cuStreamSynchronize(CU_STREAM_PER_THREAD));
}

static void a_context_stays_while_somebody_retains_it(void **state)
{
	(void)state;
	CUcontext again;
	CUdeviceptr memory;
	CU(cuMemAlloc(&memory, 100));
	CU(cuDevicePrimaryCtxRetain(&again, 0));
	CU(cuDevicePrimaryCtxRelease(0));
	CU(cuMemFree(memory));
}

static void a_reset_takes_what_is_there_and_leaves_who_retains(void **state)
{
	(void)state;
	CUcontext again;
	CUdeviceptr memory;
	CU(cuMemAlloc(&memory, 100));
	CU(cuDevicePrimaryCtxReset(0));
	assert_int_equal(cuMemFree(memory), CUDA_ERROR_CONTEXT_IS_DESTROYED);
	CU(cuDevicePrimaryCtxRetain(&again, 0));
	CU(cuMemAlloc(&memory, 100));
	CU(cuDevicePrimaryCtxRelease(0));
	CU(cuMemFree(memory)); /* it was retained before the reset, and is */
}

static void a_context_takes_memory_of_its_device(void **state)
{
	(void)state;
	CUcontext other;
	size_t before, left, total;
	CU(cuDevicePrimaryCtxRetain(&other, 1));
	CU(cuCtxPushCurrent(other));
	CU(cuMemGetInfo(&before, &total));
	CU(cuCtxPopCurrent(NULL));
	CU(cuDevicePrimaryCtxRelease(1));
	assert_int_equal(total - before, 525 << 20);
	CU(cuMemGetInfo(&left, &total)); /* of device 0 */
	assert_int_equal(left, before);
}

/* ---- the kernel that waits ---- */

static CUresult launch_wait(CUfunction function, CUstream stream, const uint32_t *word)
{
	CUdeviceptr at = (uintptr_t)word;
	void *parameters[] = {&at};
	return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void ends_within(CUstream stream, int milliseconds)
{
	CUresult state = CUDA_ERROR_NOT_READY;
	for (int i = 0; i < milliseconds && (state = cuStreamQuery(stream)) == CUDA_ERROR_NOT_READY; i++)
		doze(1);
	CU(state);
}

static void modules_have_the_kernels_of_their_text(void **state)
{
	(void)state;
	static const char other[] = ".version 7.0\n.target sm_50\n.visible .entry ferry_wait_long() { ret; }\n";
	CUmodule module;
	CUfunction function;
	assert_int_equal(cuModuleLoadData(&module, "no PTX at all"), CUDA_ERROR_INVALID_IMAGE);
	CU(cuModuleLoadData(&module, other));
	assert_int_equal(cuModuleGetFunction(&function, module, "ferry_wait"), CUDA_ERROR_NOT_FOUND);
	CU(cuModuleUnload(module));
	CU(cuModuleLoadData(&module, wait_for_zero));
	assert_int_equal(cuModuleGetFunction(&function, module, "ferry_waits"), CUDA_ERROR_NOT_FOUND);
	CU(cuModuleGetFunction(&function, module, "ferry_wait"));
	CU(cuModuleUnload(module));
	assert_int_equal(cuModuleUnload(module), CUDA_ERROR_INVALID_HANDLE);
	assert_int_equal(launch_wait(function, NULL, NULL), CUDA_ERROR_INVALID_HANDLE);
}

static void a_kernel_that_waits_holds_its_own_stream_alone(void **state)
{
	(void)state;
	CUstream waits = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CUmodule module;
	CUfunction function;
	CU(cuModuleLoadData(&module, wait_for_zero));
	CU(cuModuleGetFunction(&function, module, "ferry_wait"));
	for (uint32_t round = 1; round <= 20; round++) {
		__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
		CU(launch_wait(function, waits, &words[0]));
		CU(cuStreamWriteValue32(waits, (uintptr_t)&words[1], round, 0));
		CU(cuStreamWriteValue32(other, (uintptr_t)&words[2], round, 0));
		ends_within(other, 5000);
		assert_int_equal(__atomic_load_n(&words[2], __ATOMIC_ACQUIRE), round);
		assert_int_equal(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
		assert_int_equal(__atomic_load_n(&words[1], __ATOMIC_ACQUIRE), round - 1);
		__atomic_store_n(&words[0], 0, __ATOMIC_RELEASE);
		ends_within(waits, 5000);
		assert_int_equal(__atomic_load_n(&words[1], __ATOMIC_ACQUIRE), round);
	}
	CU(cuModuleUnload(module));
	CU(cuStreamDestroy(waits));
	CU(cuStreamDestroy(other));
	CU(cuMemFreeHost(words));
}

static void a_memory_operation_that_waits_holds_its_connection(void **state)
{
	(void)state;
	CUstream waits = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CU(cuStreamWaitValue32(waits, (uintptr_t)&words[0], 1, 0));
	CU(cuStreamWriteValue32(other, (uintptr_t)&words[1], 1, 0));
	doze(20);
	assert_int_equal(cuStreamQuery(other), CUDA_ERROR_NOT_READY);
	__atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
	ends_within(other, 5000);
	CU(cuStreamDestroy(waits));
	CU(cuStreamDestroy(other));
	CU(cuMemFreeHost(words));
}

static void a_kernel_that_waits_is_captured(void **state)
{
	(void)state;
	CUstream waits = open_stream(), other = open_stream();
	uint32_t *words = open_words();
	CUmodule module;
	CUfunction function;
	CUgraph graph;
	CUgraphExec executable;
	CU(cuModuleLoadData(&module, wait_for_zero));
	CU(cuModuleGetFunction(&function, module, "ferry_wait"));
	CU(cuStreamBeginCapture(waits, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CU(cuStreamWriteValue32(waits, (uintptr_t)&words[0], 1, 0));
	CU(launch_wait(function, waits, &words[0]));
	CU(cuStreamEndCapture(waits, &graph));
	CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
	for (int i = 0; i < 5; i++) {
		CU(cuGraphLaunch(executable, waits));
		CU(cuStreamWriteValue32(other, (uintptr_t)&words[1], 1, 0));
		ends_within(other, 5000);
		for (int tries = 0; tries < 5000 && !__atomic_load_n(&words[0], __ATOMIC_ACQUIRE); tries++)
			doze(1);
		assert_int_equal(cuStreamQuery(waits), CUDA_ERROR_NOT_READY);
		__atomic_store_n(&words[0], 0, __ATOMIC_RELEASE);
		ends_within(waits, 5000);
	}
	CU(cuGraphExecDestroy(executable));
	CU(cuGraphDestroy(graph));
	CU(cuModuleUnload(module));
	CU(cuStreamDestroy(waits));
	CU(cuStreamDestroy(other));
	CU(cuMemFreeHost(words));
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, retain_device, release_device)

int main(void)
{
	const struct CMUnitTest tests[] = {
	        TEST(memory_at_the_address_of_freed_memory_has_another_id),
	        TEST(a_stream_has_an_id_that_none_ever_has_again),
	        TEST(the_flush_flag_is_taken_where_the_device_has_it),
	        TEST(all_that_was_made_in_a_context_goes_with_it),
	        TEST(a_context_stays_while_somebody_retains_it),
	        TEST(a_reset_takes_what_is_there_and_leaves_who_retains),
	        TEST(a_context_takes_memory_of_its_device),
	        TEST(modules_have_the_kernels_of_their_text),
	        TEST(a_kernel_that_waits_holds_its_own_stream_alone),
	        TEST(a_memory_operation_that_waits_holds_its_connection),
	        TEST(a_kernel_that_waits_is_captured),
	};
	char machine[32];
	snprintf(machine, sizeof machine, "contexts %d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	setenv("FAKE_CUDA_CONNECTIONS", "1", 1);
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
