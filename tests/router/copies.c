/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of copies between a GPU and the host: every length arrives whole, with nothing around it touched, and none
 * is given to the engine that runs kernels, where it would wait for other processes'. Over the double of the driver.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "ipc/error.h"
#include "router/copy/cuda.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <stdlib.h>
#include <string.h>

#define CU(call) assert_int_equal(call, CUDA_SUCCESS)
#define ROOM     (256u << 10)
#define EDGE     64 /* bytes on both sides of what is copied */

static const size_t lengths[] = {1,    2,     3,     4,     5,     7,     64,    255,   4096,  4099, 16383,
                                 8192, 16384, 24577, 32767, 32768, 65535, 65536, 65537, 131073};

static CUcontext context;
static struct ferry_cuda_copier copier;

static void copy_and_wait(struct ferry_copy_queue *queue, void *to, const void *from, size_t bytes)
{
	if (copier.base.ops->copy(queue, to, from, bytes, bytes, true))
		fail_msg("%s", ferry_last_message());
	while (copier.base.ops->finished(queue) < queue->started)
		;
}

/* Both ways, to and from odd addresses. */
static void every_length_arrives_whole_and_alone(void **state)
{
	struct ferry_copy_queue queues[2];
	CUdeviceptr memory;
	(void)state;
	unsigned char *host = aligned_alloc(4096, ROOM), *back = aligned_alloc(4096, ROOM);
	assert_non_null(host);
	assert_non_null(back);
	assert_int_equal(copier.base.ops->register_memory(&copier.base, host, ROOM), ferrySuccess);
	assert_int_equal(copier.base.ops->register_memory(&copier.base, back, ROOM), ferrySuccess);
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		assert_int_equal(copier.base.ops->queue_open(&copier.base, direction, &queues[direction]),
		                 ferrySuccess);
	CU(cuMemAlloc(&memory, ROOM));
	for (size_t i = 0; i < ROOM; i++)
		host[i] = (unsigned char)(1 + i * 7 % 251);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		size_t bytes = lengths[i], at = EDGE + i % 3;
		unsigned char *device = fake_cuda_reach(memory);
		memset(device, 0, ROOM);
		memset(back, 0, ROOM);
		copy_and_wait(&queues[FERRY_DIR_H2D], (void *)(uintptr_t)(memory + at), host + 3, bytes);
		copy_and_wait(&queues[FERRY_DIR_D2H], back + 1, (void *)(uintptr_t)(memory + at), bytes);
		for (size_t k = 0; k < bytes + 2 * EDGE; k++) {
			bool inside = k >= at && k < at + bytes;
			if (device[k] != (inside ? host[3 + k - at] : 0))
				fail_msg("%zu bytes to %zu: byte %zu is %d", bytes, at, k, device[k]);
		}
		assert_memory_equal(back + 1, host + 3, bytes);
		assert_int_equal(back[bytes + 1], 0);
	}
	CU(cuMemFree(memory));
	for (enum ferry_direction direction = FERRY_DIR_D2H; direction <= FERRY_DIR_H2D; direction++)
		copier.base.ops->queue_close(&queues[direction]);
	copier.base.ops->unregister_memory(&copier.base, host);
	copier.base.ops->unregister_memory(&copier.base, back);
	free(host);
	free(back);
}

static void no_copy_waits_for_kernels_of_other_processes(void **state)
{
	(void)state;
	unsigned of_one_byte = 1; /* which is no two rows */
	assert_int_equal(fake_cuda_inline_copies(), of_one_byte);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(every_length_arrives_whole_and_alone),
	        cmocka_unit_test(no_copy_waits_for_kernels_of_other_processes),
	};
	const struct ferry_cuda_driver *driver;
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	if (ferry_cuda_driver_open(&driver) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context) ||
	    ferry_cuda_copier_open(&copier, driver, context))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
