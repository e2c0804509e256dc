/* SPDX-License-Identifier: Apache-2.0 */
/* What the double promises of GPUs that several processes use. */
#include "tests/fake_cuda/other.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOM  100003
#define UNIT  ((size_t)2 << 20)
#define TOTAL ((size_t)4 << 30)

static void must_read(const struct other *other, int device, CUdeviceptr at, unsigned char value)
{
	assert_int_equal(other_must(other, (struct order){.kind = READ, .device = device, .at = at}).value, value);
}

static CUdeviceptr must_open(const struct other *other, int device, const CUipcMemHandle *handle)
{
	return other_must(other, (struct order){.kind = OPEN, .device = device, .handle = *handle}).at;
}

static CUcontext contexts[4];

struct owned {
	CUdeviceptr at;
	unsigned char *bytes;
	CUipcMemHandle handle;
};

static struct owned own(int device)
{
	struct owned owned;
	CU(cuCtxSetCurrent(contexts[device]));
	CU(cuMemAlloc(&owned.at, ROOM));
	owned.bytes = fake_cuda_reach(owned.at);
	memset(owned.bytes, 11, ROOM);
	CU(cuIpcGetMemHandle(&owned.handle, owned.at));
	return owned;
}

static size_t left(int device)
{
	size_t bytes, total;
	CU(cuCtxSetCurrent(contexts[device]));
	CU(cuMemGetInfo(&bytes, &total));
	assert_int_equal(total, TOTAL);
	return bytes;
}

/* ---- mappings ---- */

static void memory_is_mapped_in_each_context_at_an_address_of_its_own(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	struct owned owned = own(1);
	CUdeviceptr at[2];
	for (int device = 0; device < 2; device++) {
		other_must(&other, (struct order){.kind = RETAIN, .device = device});
		at[device] = must_open(&other, device, &owned.handle);
	}
	assert_int_not_equal(at[0], at[1]);
	for (int device = 0; device < 2; device++) {
		must_read(&other, device, at[device] + ROOM - 1, 11);
		other_must(&other, (struct order){.kind = WRITE,
		                                  .device = device,
		                                  .at = at[device] + 5,
		                                  .value = (unsigned char)(50 + device)});
		assert_int_equal(owned.bytes[5], 50 + device);
		assert_int_equal(
		        other_tell(&other, (struct order){.kind = READ, .device = device, .at = at[1 - device]}).result,
		        CUDA_ERROR_INVALID_VALUE); /* stricter than real: it would go through the host */
	}
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

static void memory_of_another_device_needs_peers(void **state)
{
	(void)state;
	struct other other = other_start("FAKE_CUDA_PEERS", "0");
	struct owned owned = own(1);
	for (int device = 0; device < 2; device++)
		other_must(&other, (struct order){.kind = RETAIN, .device = device});
	struct answer answer = other_tell(&other, (struct order){.kind = OPEN, .device = 0, .handle = owned.handle});
	assert_int_equal(answer.result, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
	must_read(&other, 1, must_open(&other, 1, &owned.handle), 11);
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

static void memory_that_is_opened_twice_stays_until_it_is_closed_twice(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	struct owned owned = own(0);
	other_must(&other, (struct order){.kind = RETAIN});
	CUdeviceptr at = must_open(&other, 0, &owned.handle);
	assert_int_equal(must_open(&other, 0, &owned.handle), at);
	other_must(&other, (struct order){.kind = CLOSE, .at = at});
	must_read(&other, 0, at, 11);
	other_must(&other, (struct order){.kind = CLOSE, .at = at});
	assert_int_equal(other_must(&other, (struct order){.kind = MISUSES}).number, 0);
	assert_int_equal(other_tell(&other, (struct order){.kind = READ, .at = at + 7}).result,
	                 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(other_must(&other, (struct order){.kind = MISUSES}).number, 1);
	assert_int_equal(other_tell(&other, (struct order){.kind = CLOSE, .at = at}).result, CUDA_ERROR_INVALID_VALUE);
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

static void a_mapping_goes_with_its_context(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	struct owned owned = own(0);
	CUdeviceptr at[2];
	for (int device = 0; device < 2; device++) {
		other_must(&other, (struct order){.kind = RETAIN, .device = device});
		at[device] = must_open(&other, device, &owned.handle);
	}
	other_must(&other, (struct order){.kind = RELEASE, .device = 1});
	other_must(&other, (struct order){.kind = RETAIN, .device = 1});
	assert_int_equal(other_tell(&other, (struct order){.kind = READ, .device = 1, .at = at[1]}).result,
	                 CUDA_ERROR_INVALID_VALUE);
	assert_int_equal(other_must(&other, (struct order){.kind = MISUSES}).number, 1);
	must_read(&other, 0, at[0], 11);
	must_read(&other, 1, must_open(&other, 1, &owned.handle), 11);
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

/* ---- memory that outlives its owner ---- */

static void freed_memory_comes_back_when_the_last_mapping_is_closed(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL), late = other_start(NULL, NULL);
	other_must(&other, (struct order){.kind = RETAIN});
	other_must(&late, (struct order){.kind = RETAIN});
	size_t before = left(0), taken = (ROOM + 4095) / 4096 * 4096;
	struct owned owned = own(0);
	CUdeviceptr at = must_open(&other, 0, &owned.handle);
	assert_int_equal(left(0), before - taken);
	CU(cuMemFree(owned.at));
	assert_int_equal(left(0), before - taken);
	assert_int_equal(other_must(&late, (struct order){.kind = LEFT}).number, before - taken);
	must_read(&other, 0, at, 11);
	assert_int_equal(must_open(&other, 0, &owned.handle),
	                 at); /* it is open there already: the driver's answer too */
	assert_int_equal(other_tell(&late, (struct order){.kind = OPEN, .handle = owned.handle}).result,
	                 CUDA_ERROR_INVALID_HANDLE);
	struct owned next = own(0);
	assert_int_equal(next.at, owned.at);
	next.bytes[0] = 77;
	must_read(&other, 0, at, 11); /* what is mapped is the freed memory */
	/* Nor is another one opened that has its place: the driver's answer too. */
	struct order open_next = {.kind = OPEN, .handle = next.handle};
	assert_int_equal(other_tell(&other, open_next).result, CUDA_ERROR_ALREADY_MAPPED);
	other_must(&other, (struct order){.kind = CLOSE, .at = at});
	other_must(&other, (struct order){.kind = CLOSE, .at = at});
	must_read(&other, 0, must_open(&other, 0, &next.handle), 77);
	CU(cuMemFree(next.at));
	assert_int_equal(left(0), before - taken); /* of the second one */
	other_finish(&late);
	other_finish(&other);
	assert_int_equal(left(0), before + 2 * (525 << 20));
}

static void a_mapping_outlives_the_process_that_owned_the_memory(void **state)
{
	(void)state;
	struct other owner = other_start(NULL, NULL), other = other_start(NULL, NULL);
	other_must(&owner, (struct order){.kind = RETAIN});
	other_must(&other, (struct order){.kind = RETAIN});
	size_t before = left(0);
	struct answer made = other_must(&owner, (struct order){.kind = ALLOCATE, .bytes = 1 << 20});
	other_must(&owner, (struct order){.kind = WRITE, .at = made.at + 9, .value = 33});
	CUdeviceptr at = must_open(&other, 0, &made.handle);
	kill(owner.pid, SIGKILL);
	other_finish(&owner);
	must_read(&other, 0, at + 9, 33);
	assert_int_equal(left(0), before - (1 << 20) + (525 << 20)); /* its context is gone */
	other_must(&other, (struct order){.kind = CLOSE, .at = at});
	assert_int_equal(left(0), before + (525 << 20));
	other_finish(&other);
}

static void a_device_has_no_more_memory_than_it_has(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	other_must(&other, (struct order){.kind = RETAIN, .device = 2});
	size_t room = other_must(&other, (struct order){.kind = LEFT, .device = 2}).number;
	CUdeviceptr memory;
	CU(cuCtxSetCurrent(contexts[2]));
	assert_int_equal(cuMemAlloc(&memory, room + 4096), CUDA_ERROR_OUT_OF_MEMORY);
	struct answer made = other_must(&other, (struct order){.kind = ALLOCATE, .device = 2, .bytes = room});
	assert_int_equal(left(2), 0);
	assert_int_equal(cuMemAlloc(&memory, 4096), CUDA_ERROR_OUT_OF_MEMORY);
	other_must(&other, (struct order){.kind = FREE, .device = 2, .at = made.at});
	CU(cuMemAlloc(&memory, room));
	CU(cuMemFree(memory));
	other_finish(&other);
}

static void a_forked_child_holds_nothing_of_its_parents_memory(void **state)
{
	(void)state;
	int hold[2];
	size_t before = left(0);
	struct owned owned = own(0);
	assert_int_equal(pipe(hold), 0);
	pid_t child = fork();
	if (!child) {
		char none;
		close(hold[1]);
		_exit((int)read(hold[0], &none, 1));
	}
	CU(cuMemFree(owned.at));
	/* Its files are closed by the child itself, a moment after the fork. */
	for (int i = 0; i < 5000 && left(0) != before; i++)
		doze(1);
	assert_int_equal(left(0), before);
	close(hold[0]);
	close(hold[1]);
	assert_int_equal(waitpid(child, NULL, 0), child);
}

/* ---- descriptors ---- */

static void memory_is_mapped_by_its_descriptor_in_another_process(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at;
	int file;
	other_must(&other, (struct order){.kind = RETAIN, .device = 0});
	size_t before = left(1);
	CU(cuMemCreate(&handle, 2 * UNIT, &wanted, 0));
	CU(cuMemAddressReserve(&at, 2 * UNIT, 0, 0, 0));
	CU(cuMemMap(at, 2 * UNIT, 0, handle, 0));
	*(char *)fake_cuda_reach(at + UNIT) = 66;
	CU(cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
	struct answer mapped =
	        other_tell_with(&other, (struct order){.kind = MAP, .device = 0, .bytes = 2 * UNIT}, file);
	CU(mapped.result);
	close(file);
	must_read(&other, 0, mapped.at + UNIT, 66);
	CU(cuMemUnmap(at, 2 * UNIT));
	CU(cuMemAddressFree(at, 2 * UNIT));
	CU(cuMemRelease(handle));
	assert_int_equal(left(1), before - 2 * UNIT);
	must_read(&other, 0, mapped.at + UNIT, 66);
	other_must(&other, (struct order){.kind = UNMAP, .at = mapped.at, .bytes = 2 * UNIT});
	assert_int_equal(left(1), before);
	other_finish(&other);
}

/* ---- devices ---- */

static void a_device_has_one_name_whatever_its_number(void **state)
{
	(void)state;
	struct other other = other_start("CUDA_VISIBLE_DEVICES", "3,1");
	static const int known_here[] = {3, 1};
	char bus[16];
	for (int device = 0; device < 2; device++) {
		CUuuid uuid;
		struct answer answer = other_must(&other, (struct order){.kind = UUID, .device = device});
		CU(cuDeviceGetUuid(&uuid, known_here[device]));
		assert_memory_equal(&answer.uuid, &uuid, sizeof uuid);
	}
	CUdevice found = -1;
	CU(cuDeviceGetPCIBusId(bus, sizeof bus, 3));
	CU(cuDeviceGetByPCIBusId(&found, bus));
	assert_int_equal(found, 3);
	assert_int_equal(cuDeviceGetByPCIBusId(&found, "0000:99:00.0"), CUDA_ERROR_INVALID_VALUE);
	struct owned owned = own(3);
	other_must(&other, (struct order){.kind = RETAIN, .device = 0});
	must_read(&other, 0, must_open(&other, 0, &owned.handle), 11);
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

static void a_device_can_refuse_to_be_mapped(void **state)
{
	(void)state;
	struct other other = other_start("FAKE_CUDA_NO_IPC", "1");
	struct owned owned = own(0);
	other_must(&other, (struct order){.kind = RETAIN});
	assert_int_equal(other_tell(&other, (struct order){.kind = OPEN, .handle = owned.handle}).result,
	                 CUDA_ERROR_NOT_SUPPORTED);
	CU(cuMemFree(owned.at));
	other_finish(&other);
}

static void an_exclusive_device_is_one_process_s(void **state)
{
	(void)state;
	struct other first = other_start("FAKE_CUDA_EXCLUSIVE", "1"), second = other_start("FAKE_CUDA_EXCLUSIVE", "1");
	struct order retain_it = {.kind = RETAIN, .device = 1};
	assert_int_equal(other_must(&first, retain_it).number, CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
	other_must(&first, retain_it);
	assert_int_equal(other_tell(&second, retain_it).result, CUDA_ERROR_DEVICE_UNAVAILABLE);
	other_must(&second, (struct order){.kind = RETAIN, .device = 0});
	other_must(&first, (struct order){.kind = RELEASE, .device = 1});
	assert_int_equal(other_tell(&second, retain_it).result, CUDA_ERROR_DEVICE_UNAVAILABLE);
	other_must(&first, (struct order){.kind = RELEASE, .device = 1});
	other_must(&second, retain_it);
	kill(second.pid, SIGKILL);
	other_finish(&second);
	other_must(&first, retain_it);
	other_finish(&first);
}

static void shared_memory_is_registered_in_each_process(void **state)
{
	(void)state;
	struct other other = other_start(NULL, NULL);
	int file = memfd_create("shared", MFD_CLOEXEC);
	assert_int_equal(ftruncate(file, 4096), 0);
	unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	struct owned owned = own(0);
	CUstream stream = open_stream();
	other_must(&other, (struct order){.kind = RETAIN});
	CU(other_tell_with(&other, (struct order){.kind = REGISTER}, file).result);
	CUdeviceptr at = must_open(&other, 0, &owned.handle);
	assert_int_equal(cuMemcpyDtoHAsync(memory, owned.at, 1, stream),
	                 CUDA_ERROR_INVALID_VALUE); /* registered there alone */
	CU(cuMemHostRegister(memory, 4096, 0));
	must_read(&other, 0, at, 11);
	assert_int_equal(memory[100], 11);
	CU(cuMemcpyHtoDAsync(owned.at + 1, memory + 100, 1, stream));
	CU(cuStreamSynchronize(stream));
	must_read(&other, 0, at + 1, 11);
	CU(cuMemHostUnregister(memory));
	CU(cuStreamDestroy(stream));
	CU(cuMemFree(owned.at));
	munmap(memory, 4096);
	close(file);
	other_finish(&other);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(memory_is_mapped_in_each_context_at_an_address_of_its_own),
	        cmocka_unit_test(memory_of_another_device_needs_peers),
	        cmocka_unit_test(memory_that_is_opened_twice_stays_until_it_is_closed_twice),
	        cmocka_unit_test(a_mapping_goes_with_its_context),
	        cmocka_unit_test(freed_memory_comes_back_when_the_last_mapping_is_closed),
	        cmocka_unit_test(a_mapping_outlives_the_process_that_owned_the_memory),
	        cmocka_unit_test(a_device_has_no_more_memory_than_it_has),
	        cmocka_unit_test(a_forked_child_holds_nothing_of_its_parents_memory),
	        cmocka_unit_test(memory_is_mapped_by_its_descriptor_in_another_process),
	        cmocka_unit_test(a_device_has_one_name_whatever_its_number),
	        cmocka_unit_test(a_device_can_refuse_to_be_mapped),
	        cmocka_unit_test(an_exclusive_device_is_one_process_s),
	        cmocka_unit_test(shared_memory_is_registered_in_each_process),
	};
	char machine[32], total[32];
	if (argc == 2)
		return other_obeys(atoi(argv[1]));
	snprintf(machine, sizeof machine, "shared %d", (int)getpid());
	snprintf(total, sizeof total, "%zu", TOTAL);
	setenv("FAKE_CUDA_MACHINE", machine, 1);
	setenv("FAKE_CUDA_MEMORY", total, 1);
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		return 1;
	for (int i = 0; i < 4; i++)
		if (cuDevicePrimaryCtxRetain(&contexts[i], i))
			return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
