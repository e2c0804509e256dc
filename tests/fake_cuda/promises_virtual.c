/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the double promises of addresses and memory apart from each other, in one process; between processes:
 * promises_shared.c. The answers are those of driver 580 on an H100.
 */
#include "tests/fake_cuda/promises.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define UNIT ((size_t)2 << 20)

static CUcontext contexts[2];
static const CUmemAllocationProp shareable = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static int use_first_device(void **state)
{
	(void)state;
	return cuCtxSetCurrent(contexts[0]);
}

static CUresult allow(CUdeviceptr at, size_t bytes, int device)
{
	CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
	                          CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	return cuMemSetAccess(at, bytes, &access, 1);
}

struct logged {
	CUdeviceptr start;
	size_t bytes;
	uint64_t id;
	unsigned has_ipc, type, mapped;
	CUcontext context;
	int ordinal;
};

static struct logged notify(CUdeviceptr at)
{
	struct logged logged;
	CUpointer_attribute wanted[] = {
	        CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
	        CU_POINTER_ATTRIBUTE_BUFFER_ID,        CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
	        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,      CU_POINTER_ATTRIBUTE_MAPPED,
	        CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
	void *values[] = {&logged.start, &logged.bytes,  &logged.id,      &logged.has_ipc,
	                  &logged.type,  &logged.mapped, &logged.context, &logged.ordinal};
	CU(cuPointerGetAttributes(8, wanted, values, at));
	return logged;
}

static void assert_range(CUdeviceptr at, CUdeviceptr expected, size_t expected_bytes)
{
	CUdeviceptr start;
	size_t bytes;
	CU(cuMemGetAddressRange(&start, &bytes, at));
	assert_int_equal(start, expected);
	assert_int_equal(bytes, expected_bytes);
}

/* 16 MiB of addresses, with 2 and 4 MiB of memory at their begin. */
struct two {
	CUdeviceptr at;
	CUmemGenericAllocationHandle small, large;
};

static struct two open_two(void)
{
	struct two two;
	CU(cuMemCreate(&two.small, UNIT, &shareable, 0));
	CU(cuMemCreate(&two.large, 2 * UNIT, &shareable, 0));
	CU(cuMemAddressReserve(&two.at, 8 * UNIT, 0, 0, 0));
	CU(cuMemMap(two.at, UNIT, 0, two.small, 0));
	CU(cuMemMap(two.at + UNIT, 2 * UNIT, 0, two.large, 0));
	return two;
}

static void close_two(struct two *two)
{
	CU(cuMemUnmap(two->at, 3 * UNIT));
	CU(cuMemAddressFree(two->at, 8 * UNIT));
	CU(cuMemRelease(two->small));
	CU(cuMemRelease(two->large));
}

static void sizes_are_multiples_of_the_granularity(void **state)
{
	(void)state;
	size_t unit = 0;
	CUmemGenericAllocationHandle handle;
	CUmemAllocationProp elsewhere = shareable;
	CUdeviceptr at;
	CU(cuMemGetAllocationGranularity(&unit, &shareable, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	assert_int_equal(unit, UNIT);
	assert_int_equal(cuMemCreate(&handle, UNIT / 2, &shareable, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemAddressReserve(&at, UNIT / 2, 0, 0, 0), CUDA_ERROR_INVALID_VALUE);
	elsewhere.location.id = 77;
	assert_int_equal(cuMemCreate(&handle, UNIT, &elsewhere, 0), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemAddressReserve(&at, UNIT, 8 * UNIT, 0, 0));
	assert_int_equal(at % (8 * UNIT), 0);
	CU(cuMemAddressFree(at, UNIT));
}

static void copies_cross_from_one_mapping_into_the_next(void **state)
{
	(void)state;
	struct two two = open_two();
	CUstream stream = open_stream();
	char *host;
	CU(cuMemHostAlloc((void **)&host, 2 * UNIT, 0));
	for (size_t i = 0; i < 2 * UNIT; i++)
		host[i] = (char)(i * 7 + i / 1000);
	CU(allow(two.at, 3 * UNIT, 0));
	CU(cuMemcpyHtoDAsync(two.at + UNIT / 2, host, 2 * UNIT, stream));
	CU(cuMemcpyDtoDAsync(two.at, two.at + UNIT / 2, 2 * UNIT, stream));
	CU(cuStreamSynchronize(stream));
	memset(host, 0, 2 * UNIT);
	CU(cuMemcpyDtoHAsync(host, two.at, 2 * UNIT, stream));
	CU(cuStreamSynchronize(stream));
	for (size_t i = 0; i < 2 * UNIT; i++)
		if (host[i] != (char)(i * 7 + i / 1000))
			fail_msg("byte %zu is %d", i, host[i]);
	assert_int_equal(cuMemcpyDtoHAsync(host, two.at + 2 * UNIT, UNIT + 1, stream), CUDA_ERROR_INVALID_VALUE);
	CU(cuStreamDestroy(stream));
	CU(cuMemFreeHost(host));
	close_two(&two);
}

static void memory_is_used_by_the_devices_that_may(void **state)
{
	(void)state;
	struct two two = open_two();
	CUstream stream = open_stream(), other;
	char *host;
	CU(cuMemHostAlloc((void **)&host, 4096, 0));
	CU(cuCtxPushCurrent(contexts[1]));
	other = open_stream();
	CU(cuCtxPopCurrent(NULL));
	assert_int_equal(cuMemcpyDtoHAsync(host, two.at, 8, stream), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(allow(two.at, 4 * UNIT, 0), CUDA_ERROR_INVALID_VALUE); /* some of it is not mapped */
	CU(allow(two.at, UNIT, 0));
	CU(cuMemcpyDtoHAsync(host, two.at, 8, stream));
	assert_int_equal(cuMemcpyDtoHAsync(host, two.at + UNIT - 4, 8, stream), CUDA_ERROR_INVALID_VALUE);
	CU(cuStreamSynchronize(stream));
	CU(cuCtxSetCurrent(contexts[1]));
	assert_int_equal(cuMemcpyDtoHAsync(host, two.at, 8, other), CUDA_ERROR_INVALID_VALUE);
	CU(allow(two.at, 3 * UNIT, 1));
	CU(cuMemcpyDtoHAsync(host, two.at + UNIT - 4, 8, other));
	CU(cuStreamSynchronize(other));
	CU(cuStreamDestroy(other));
	CU(cuCtxSetCurrent(contexts[0]));
	CU(cuStreamDestroy(stream));
	CU(cuMemFreeHost(host));
	close_two(&two);
}

static void attributes_tell_the_reservation_and_ranges_the_mapping(void **state)
{
	(void)state;
	struct two two = open_two();
	CUdeviceptr start;
	CUipcMemHandle ipc;
	size_t bytes;
	struct logged first = notify(two.at + 5), second = notify(two.at + UNIT + 5), hole = notify(two.at + 5 * UNIT);
	assert_int_equal(cuMemGetAddressRange(&start, &bytes, two.at),
	                 CUDA_ERROR_NOT_FOUND); /* nobody may use it yet */
	CU(allow(two.at, 3 * UNIT, 0));
	for (const struct logged *logged = &first; logged; logged = logged == &first ? &second : NULL) {
		assert_int_equal(logged->start, two.at);
		assert_int_equal(logged->bytes, 8 * UNIT);
		assert_int_equal(logged->type, CU_MEMORYTYPE_DEVICE);
		assert_int_equal(logged->has_ipc, 0);
		assert_int_equal(logged->mapped, 1);
		assert_null(logged->context);
		assert_int_equal(logged->ordinal, 0);
		assert_int_not_equal(logged->id, 0);
	}
	assert_int_not_equal(first.id, second.id);
	assert_int_equal(hole.start, two.at);
	assert_int_equal(hole.bytes, 8 * UNIT);
	assert_int_equal(hole.id, 0);
	assert_int_equal(hole.type, 0);
	assert_int_equal(hole.ordinal, CU_DEVICE_INVALID);
	assert_range(two.at + 5, two.at, UNIT);
	assert_range(two.at + UNIT + 5, two.at + UNIT, 2 * UNIT);
	assert_int_equal(cuMemGetAddressRange(&start, &bytes, two.at + 5 * UNIT), CUDA_ERROR_NOT_FOUND);
	assert_int_equal(cuIpcGetMemHandle(&ipc, two.at), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemFree(two.at), CUDA_ERROR_INVALID_VALUE);
	close_two(&two);
	assert_int_equal(notify(two.at).bytes, 0);
}

static void mappings_come_and_go_whole(void **state)
{
	(void)state;
	struct two two = open_two();
	uint64_t id = notify(two.at).id;
	assert_int_equal(cuMemMap(two.at + 2 * UNIT, 2 * UNIT, 0, two.large, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemMap(two.at + 4 * UNIT, UNIT, UNIT, two.large, 0), CUDA_ERROR_NOT_SUPPORTED);
	assert_int_equal(cuMemMap(two.at + 4 * UNIT, UNIT, 0, two.large, 0), CUDA_ERROR_NOT_SUPPORTED);
	assert_int_equal(cuMemMap(two.at + 7 * UNIT, 2 * UNIT, 0, two.large, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemMap(two.at + 4 * UNIT, UNIT, 0, 12345, 0), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemUnmap(two.at + UNIT, UNIT), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemUnmap(two.at + UNIT / 2, UNIT), CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(cuMemAddressFree(two.at, 8 * UNIT), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemUnmap(two.at, UNIT));
	CU(cuMemUnmap(two.at, UNIT)); /* the driver's answer too */
	assert_int_equal(notify(two.at).id, 0);
	assert_int_not_equal(notify(two.at + UNIT).id, 0);
	CU(cuMemMap(two.at, UNIT, 0, two.small, 0));
	assert_int_not_equal(notify(two.at).id, id);
	assert_int_equal(cuMemAddressFree(two.at, UNIT), CUDA_ERROR_INVALID_VALUE);
	close_two(&two);
}

static void a_copy_that_comes_after_its_mapping_is_gone_fails_the_device(void **state)
{
	(void)state;
	struct two two = open_two();
	CUstream stream = open_stream();
	uint32_t *words = open_words();
	unsigned misuses = fake_cuda_misuses();
	CU(allow(two.at, 3 * UNIT, 0));
	CU(cuStreamWaitValue32(stream, (uintptr_t)words, 1, 0));
	CU(cuMemsetD8Async(two.at, 1, 100, stream));
	CU(cuMemUnmap(two.at, UNIT));
	__atomic_store_n(words, 1, __ATOMIC_RELEASE);
	assert_int_equal(cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
	assert_int_equal(fake_cuda_misuses(), misuses + 1);
	CU(fake_cuda_break(0, CUDA_SUCCESS));
	CU(cuStreamDestroy(stream));
	CU(cuMemFreeHost(words));
	close_two(&two);
}

static void memory_stays_until_it_has_neither_handle_nor_mapping(void **state)
{
	(void)state;
	struct two two = open_two();
	CUmemGenericAllocationHandle again, none;
	CUdeviceptr plain;
	size_t before, left, total;
	CU(allow(two.at, 3 * UNIT, 0));
	CU(cuMemsetD8Async(two.at + UNIT, 9, 2 * UNIT, NULL));
	CU(cuStreamSynchronize(NULL));
	CU(cuMemGetInfo(&before, &total));
	CU(cuMemRelease(two.large));
	assert_int_equal(cuMemRelease(two.large), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(two.at + UNIT + 77)));
	assert_int_equal(again, two.large);
	CU(cuMemUnmap(two.at + UNIT, 2 * UNIT));
	CU(cuMemGetInfo(&left, &total));
	assert_int_equal(left, before);
	CU(cuMemMap(two.at + UNIT, 2 * UNIT, 0, again, 0));
	assert_int_equal(*(char *)fake_cuda_reach(two.at + 3 * UNIT - 1), 9);
	CU(cuMemRelease(again));
	CU(cuMemUnmap(two.at + UNIT, 2 * UNIT));
	CU(cuMemGetInfo(&left, &total));
	assert_int_equal(left, before + 2 * UNIT);
	CU(cuMemAlloc(&plain, 100));
	assert_int_equal(cuMemRetainAllocationHandle(&none, (void *)(uintptr_t)plain), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemFree(plain));
	CU(cuMemUnmap(two.at, UNIT));
	CU(cuMemAddressFree(two.at, 8 * UNIT));
	CU(cuMemRelease(two.small));
}

static void only_what_was_made_for_it_is_exported(void **state)
{
	(void)state;
	struct two two = open_two();
	CUmemAllocationProp mine = shareable, found;
	CUmemGenericAllocationHandle plain, imported;
	const CUmemAllocationHandleType descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	int file = -1, null = open("/dev/null", O_RDWR);
	mine.requestedHandleTypes = CU_MEM_HANDLE_TYPE_NONE;
	CU(cuMemCreate(&plain, UNIT, &mine, 0));
	assert_int_equal(cuMemExportToShareableHandle(&file, plain, descriptor, 0), CUDA_ERROR_INVALID_VALUE);
	CU(cuMemGetAllocationPropertiesFromHandle(&found, plain));
	assert_int_equal(found.requestedHandleTypes, CU_MEM_HANDLE_TYPE_NONE);
	CU(cuMemGetAllocationPropertiesFromHandle(&found, two.large));
	assert_int_equal(found.requestedHandleTypes, descriptor);
	assert_int_equal(found.location.id, 0);
	CU(cuMemExportToShareableHandle(&file, two.large, descriptor, 0));
	CU(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)file, descriptor));
	assert_int_not_equal(imported, two.large);
	close(file);
	CU(cuMemMap(two.at + 4 * UNIT, 2 * UNIT, 0, imported, 0));
	*(char *)fake_cuda_reach(two.at + UNIT) = 55;
	assert_int_equal(*(char *)fake_cuda_reach(two.at + 4 * UNIT), 55);
	CU(cuMemUnmap(two.at + 4 * UNIT, 2 * UNIT));
	CU(cuMemRelease(imported));
	assert_int_equal(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)null, descriptor),
	                 CUDA_ERROR_UNKNOWN);
	assert_int_equal(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)999, descriptor),
	                 CUDA_ERROR_UNKNOWN);
	close(null);
	CU(cuMemRelease(plain));
	close_two(&two);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_setup(sizes_are_multiples_of_the_granularity, use_first_device),
	        cmocka_unit_test_setup(copies_cross_from_one_mapping_into_the_next, use_first_device),
	        cmocka_unit_test_setup(memory_is_used_by_the_devices_that_may, use_first_device),
	        cmocka_unit_test_setup(attributes_tell_the_reservation_and_ranges_the_mapping, use_first_device),
	        cmocka_unit_test_setup(mappings_come_and_go_whole, use_first_device),
	        cmocka_unit_test_setup(a_copy_that_comes_after_its_mapping_is_gone_fails_the_device, use_first_device),
	        cmocka_unit_test_setup(memory_stays_until_it_has_neither_handle_nor_mapping, use_first_device),
	        cmocka_unit_test_setup(only_what_was_made_for_it_is_exported, use_first_device),
	};
	char machine[32];
	snprintf(machine, sizeof machine, "virtual %d", (int)getpid());
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		return 1;
	for (int i = 0; i < 2; i++)
		if (cuDevicePrimaryCtxRetain(&contexts[i], i))
			return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
