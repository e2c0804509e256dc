/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers in other processes (rank-lib/device/export.h), over the double of the driver. This program owns the buffers;
 * the importer is a second process of it, which does what it is told over a socket, with the device's own copy queues.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "ipc/error.h"
#include "rank-lib/device/cuda.h"
#include "rank-lib/device/open.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_BYTES 256
#define ROOM       100003 /* of an allocation */
#define SLOTS      4
#define ITS_OWN    (-1) /* the device that the buffer is on */

#define CU(call) assert_int_equal((call), CUDA_SUCCESS)

enum order_kind { IMPORT, READ, WRITE, CLOSE };

struct order {
	enum order_kind kind;
	int slot, ordinal;
	size_t bytes, at; /* IMPORT: bytes wanted; READ, WRITE: of the buffer */
	struct ferry_export handle;
	unsigned char data[MOST_BYTES];
};

struct answer {
	ferryResult_t result;
	char message[512];
	int ordinal;    /* IMPORT: by which the importer knows the GPU */
	bool is_mapped; /* CLOSE: the allocation is still open */
	unsigned char data[MOST_BYTES];
};

/* ---- the importer ---- */

static struct opened {
	struct ferry_device *device;
	struct ferry_imported buffer;
	bool crosses; /* to the host in one copy: it is on the device itself */
} opened[SLOTS];

static ferryResult_t import_as_told(const struct order *order, struct opened *slot, struct answer *answer)
{
	int ordinal = order->ordinal;
	ferryResult_t result = ferry_cuda_exported_ordinal(&order->handle, &answer->ordinal);
	slot->crosses = ordinal == ITS_OWN || ordinal == answer->ordinal;
	if (!result || ordinal != ITS_OWN) /* else: import says it again, and shall */
		result = ferry_cuda_device_open(ordinal == ITS_OWN ? answer->ordinal : ordinal, 0, &slot->device);
	return result ? result : ferry_device_import(slot->device, &order->handle, order->bytes, &slot->buffer);
}

static ferryResult_t copy(struct ferry_device *device, enum ferry_direction direction, void *to, const void *from,
                          size_t bytes, bool crosses)
{
	struct ferry_copy_queue queue;
	ferryResult_t result = device->copier->ops->queue_open(device->copier, direction, &queue);
	if (result)
		return result;
	result = device->copier->ops->copy(&queue, to, from, bytes, bytes, crosses);
	while (!result && device->copier->ops->finished(&queue) < queue.started)
		result = device->copier->ops->queue_check(&queue);
	device->copier->ops->queue_close(&queue);
	return result;
}

/* Through memory of the device where the buffer is on another one. */
static ferryResult_t copy_as_told(const struct order *order, const struct opened *slot, unsigned char *host,
                                  CUdeviceptr own)
{
	char *buffer = (char *)slot->buffer.address + order->at;
	void *staging = (void *)(uintptr_t)own;
	bool reads = order->kind == READ;
	if (slot->crosses)
		return copy(slot->device, reads ? FERRY_UP : FERRY_DOWN, reads ? (void *)host : buffer,
		            reads ? buffer : (void *)host, order->bytes, true);
	ferryResult_t result = reads ? copy(slot->device, FERRY_DOWN, staging, buffer, order->bytes, false)
	                             : copy(slot->device, FERRY_DOWN, staging, host, order->bytes, true);
	if (!result)
		result = reads ? copy(slot->device, FERRY_UP, host, staging, order->bytes, true)
		               : copy(slot->device, FERRY_DOWN, buffer, staging, order->bytes, false);
	return result;
}

static ferryResult_t move(const struct order *order, const struct opened *slot, struct answer *answer)
{
	static unsigned char *host;
	CUdeviceptr own;
	if (!host) {
		host = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		slot->device->copier->ops->register_memory(slot->device->copier, host, 4096);
	}
	memcpy(host, order->data, MOST_BYTES);
	cuCtxPushCurrent(ferry_cuda_device(slot->device)->context);
	cuMemAlloc(&own, MOST_BYTES);
	ferryResult_t result = copy_as_told(order, slot, host, own);
	cuMemFree(own);
	cuCtxPopCurrent(NULL);
	memcpy(answer->data, host, MOST_BYTES);
	return result;
}

static ferryResult_t close_as_told(struct opened *slot, struct answer *answer)
{
	CUdeviceptr mapping = (CUdeviceptr)(uintptr_t)slot->buffer.mapping;
	ferry_device_import_close(slot->device, &slot->buffer);
	ferry_device_import_close(slot->device, &slot->buffer); /* nothing is open: nothing happens */
	answer->is_mapped = fake_cuda_reach(mapping) != NULL;
	return slot->buffer.address ? ferry_fail(ferryInternalError, "a closed import has an address") : ferrySuccess;
}

static int be_importer(int channel)
{
	static struct order order;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (recv(channel, &order, sizeof order, 0) == sizeof order) {
		struct opened *slot = &opened[order.slot];
		struct answer answer = {0};
		answer.result = order.kind == IMPORT ? import_as_told(&order, slot, &answer)
		                : order.kind == CLOSE ? close_as_told(slot, &answer)
		                                      : move(&order, slot, &answer);
		if (answer.result)
			snprintf(answer.message, sizeof answer.message, "%s", ferry_last_message());
		if (send(channel, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
			return 1;
	}
	return fake_cuda_misuses() > 0;
}

/* ---- the owner ---- */

struct importer {
	pid_t pid;
	int socket;
};

/* setting: "NAME=value" for its environment, or NULL. */
static struct importer start(const char *setting)
{
	struct importer importer;
	int ends[2];
	char channel[16];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
	snprintf(channel, sizeof channel, "%d", ends[1]);
	importer.pid = fork();
	if (!importer.pid) {
		if (setting)
			putenv((char *)(uintptr_t)setting);
		fcntl(ends[1], F_SETFD, 0);
		execl("/proc/self/exe", "cuda_export", channel, (char *)NULL);
		_exit(127);
	}
	close(ends[1]);
	importer.socket = ends[0];
	return importer;
}

static void finish(const struct importer *importer)
{
	int status = -1;
	close(importer->socket);
	assert_int_equal(waitpid(importer->pid, &status, 0), importer->pid);
	assert_int_equal(status, 0);
}

static struct answer tell(const struct importer *importer, const struct order *order)
{
	struct answer answer;
	assert_int_equal(send(importer->socket, order, sizeof *order, MSG_NOSIGNAL), sizeof *order);
	ssize_t got = recv(importer->socket, &answer, sizeof answer, 0);
	if (got != sizeof answer)
		fail_msg("the importer has ended");
	return answer;
}

static struct answer must(const struct importer *importer, const struct order *order)
{
	struct answer answer = tell(importer, order);
	if (answer.result)
		fail_msg("order %d: %s: %s", (int)order->kind, ferry_result_text(answer.result), answer.message);
	return answer;
}

static void expect(const char *call, ferryResult_t result, const char *message, ferryResult_t expected,
                   const char *words)
{
	if (result != expected || !strstr(message, words))
		fail_msg("%s: %s: \"%s\"; expected %s with \"%s\"", call, ferry_result_text(result), message,
		         ferry_result_text(expected), words);
}

#define REFUSED(expected, words, call)                                                                                 \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		expect(#call, result_, ferry_last_message(), expected, words);                                         \
	} while (0)

static struct ferry_device *device_of(int ordinal)
{
	struct ferry_device *device;
	if (ferry_cuda_device_open(ordinal, 0, &device))
		fail_msg("device %d: %s", ordinal, ferry_last_message());
	CU(cuCtxSetCurrent(ferry_cuda_device(device)->context));
	return device;
}

struct owned {
	struct ferry_device *device;
	CUdeviceptr memory;
	unsigned char *bytes; /* where this process finds them */
};

static unsigned char element(size_t i)
{
	return (unsigned char)(i * 31 + i / 251);
}

static struct owned own(int ordinal)
{
	struct owned owned = {.device = device_of(ordinal)};
	CU(cuMemAlloc(&owned.memory, ROOM));
	owned.bytes = fake_cuda_reach(owned.memory);
	for (size_t i = 0; i < ROOM; i++)
		owned.bytes[i] = element(i);
	return owned;
}

static void disown(struct owned *owned)
{
	CU(cuMemFree(owned->memory));
}

static struct ferry_export export_of(const struct owned *owned, size_t offset, size_t bytes)
{
	struct ferry_export handle;
	if (ferry_device_export(owned->device, (void *)(uintptr_t)(owned->memory + offset), bytes, &handle))
		fail_msg("%zu bytes at %zu: %s", bytes, offset, ferry_last_message());
	return handle;
}

static struct order import_order(const struct ferry_export *handle, int slot, int ordinal)
{
	return (struct order){.kind = IMPORT,
	                      .slot = slot,
	                      .ordinal = ordinal,
	                      .bytes = handle->bytes,
	                      .handle = *handle};
}

/* The bytes of the buffer in that slot are those of the allocation from `offset` on. */
static void must_read(const struct importer *importer, int slot, size_t at, size_t bytes, size_t offset)
{
	struct answer answer = must(importer, &(struct order){.kind = READ, .slot = slot, .at = at, .bytes = bytes});
	for (size_t i = 0; i < bytes; i++)
		if (answer.data[i] != element(offset + at + i))
			fail_msg("byte %zu of a buffer at %zu is %02x instead of %02x", at + i, offset, answer.data[i],
			         element(offset + at + i));
}

/* ---- tests ---- */

static void a_buffer_at_any_offset_is_read_and_written_in_another_process(void **state)
{
	(void)state;
	static const size_t offsets[] = {0, 1, 4096, 70001, ROOM - 300};
	struct importer importer = start(NULL);
	for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
		struct owned owned = own(2);
		size_t bytes = i % 2 ? ROOM - offsets[i] : 300; /* some end where the allocation does */
		struct ferry_export handle = export_of(&owned, offsets[i], bytes);
		struct order order = import_order(&handle, 0, ITS_OWN),
		             wrote = {.kind = WRITE, .at = bytes - 5, .bytes = 5};
		assert_int_equal(must(&importer, &order).ordinal, 2);
		must_read(&importer, 0, 0, MOST_BYTES, offsets[i]);
		must_read(&importer, 0, bytes - 3, 3, offsets[i]);
		memset(wrote.data, 0x5a, sizeof wrote.data);
		must(&importer, &wrote);
		for (size_t at = 0; at < ROOM; at++)
			assert_int_equal(owned.bytes[at], at - offsets[i] - (bytes - 5) < 5 ? 0x5a : element(at));
		assert_false(must(&importer, &(struct order){.kind = CLOSE}).is_mapped);
		disown(&owned);
	}
	finish(&importer);
}

static void exporting_needs_no_context_and_leaves_none(void **state)
{
	(void)state;
	struct owned owned = own(1);
	CUcontext context;
	CU(cuCtxSetCurrent(NULL));
	struct ferry_export handle = export_of(&owned, 10, 20);
	CU(cuCtxGetCurrent(&context));
	assert_null(context);
	assert_int_equal(handle.offset, 10);
	assert_int_equal(handle.bytes, 20);
	assert_int_equal(handle.allocation, ROOM);
	assert_int_equal(handle.process, getpid());
	device_of(1);
	disown(&owned);
}

static void the_gpu_is_found_under_another_numbering_or_refused_by_name(void **state)
{
	(void)state;
	struct importer importer = start("CUDA_VISIBLE_DEVICES=3,1");
	static const int owners[] = {1, 3, 2}, expected[] = {1, 0, -1};
	for (int i = 0; i < 3; i++) {
		struct owned owned = own(owners[i]);
		struct ferry_export handle = export_of(&owned, 77, 500);
		struct order order = import_order(&handle, 0, expected[i] < 0 ? 0 : ITS_OWN);
		struct answer answer = tell(&importer, &order);
		if (expected[i] < 0) {
			expect("a hidden GPU", answer.result, answer.message, ferryInvalidArgument,
			       "GPU-dadbd8d9-dedf-dcdd-d2d3-d0d1d6d7d4d5");
			expect("a hidden GPU", answer.result, answer.message, ferryInvalidArgument,
			       "CUDA_VISIBLE_DEVICES");
		} else {
			assert_int_equal(answer.result, ferrySuccess);
			assert_int_equal(answer.ordinal, expected[i]);
			must_read(&importer, 0, 0, 100, 77);
			must(&importer, &(struct order){.kind = CLOSE});
		}
		disown(&owned);
	}
	finish(&importer);
}

static void a_device_imports_what_another_one_has_if_it_can_reach_it(void **state)
{
	(void)state;
	struct owned owned = own(1);
	struct ferry_export handle = export_of(&owned, 4097, 500);
	struct order order = import_order(&handle, 0, 3),
	             wrote = {.kind = WRITE, .at = 499, .bytes = 1, .data = {0x5a}};
	struct importer importer = start(NULL), cut_off = start("FAKE_CUDA_PEERS=0");
	must(&importer, &order);
	must_read(&importer, 0, 0, 100, 4097);
	must(&importer, &wrote);
	assert_int_equal(owned.bytes[4097 + 499], 0x5a);
	must(&importer, &(struct order){.kind = CLOSE});
	struct answer answer = tell(&cut_off, &order);
	expect("a GPU apart", answer.result, answer.message, ferryInvalidUsage,
	       "CUDA device 1, whose memory device 3 cannot reach");
	order = import_order(&handle, 0, ITS_OWN);
	must(&cut_off, &order);
	must(&cut_off, &(struct order){.kind = CLOSE});
	disown(&owned);
	finish(&importer);
	finish(&cut_off);
}

static void an_allocation_that_is_imported_twice_stays_until_both_are_closed(void **state)
{
	(void)state;
	struct owned owned = own(0);
	struct ferry_export one = export_of(&owned, 100, 300), other = export_of(&owned, 50000, 300);
	struct importer importer = start(NULL);
	struct order first = import_order(&one, 0, ITS_OWN), second = import_order(&other, 1, ITS_OWN);
	for (int i = 0; i < 2; i++) {
		must(&importer, &first);
		must(&importer, &second);
		assert_true(must(&importer, &(struct order){.kind = CLOSE, .slot = i}).is_mapped);
		must_read(&importer, 1 - i, 0, 100, i ? 100 : 50000);
		assert_false(must(&importer, &(struct order){.kind = CLOSE, .slot = 1 - i}).is_mapped);
	}
	disown(&owned);
	finish(&importer);
}

static void the_process_that_exported_is_told_to_use_its_own_address(void **state)
{
	(void)state;
	struct owned owned = own(0);
	struct ferry_export handle = export_of(&owned, 100, 300);
	struct ferry_imported imported = {&owned, &owned};
	REFUSED(ferryInvalidUsage, "itself", ferry_device_import(owned.device, &handle, 300, &imported));
	assert_null(imported.address);
	assert_null(imported.mapping);
	disown(&owned);
}

static void what_cannot_be_exported_is_refused_by_what_it_is(void **state)
{
	(void)state;
	struct owned owned = own(0), neighbour = own(0), foreign = own(1);
	struct ferry_device *device = device_of(0), *host;
	const struct owned *low = owned.memory < neighbour.memory ? &owned : &neighbour;
	size_t apart = (size_t)((low == &owned ? neighbour.memory : owned.memory) - low->memory);
	struct ferry_export handle;
	CUdeviceptr pooled, managed;
	void *pinned, *good = (void *)(uintptr_t)owned.memory;
	char ordinary[8];
	CU(cuMemAllocAsync(&pooled, 4096, NULL));
	CU(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
	CU(cuMemHostAlloc(&pinned, 4096, 0));
	REFUSED(ferryInvalidArgument, "pool", ferry_device_export(device, (void *)(uintptr_t)(pooled + 8), 8, &handle));
	REFUSED(ferryInvalidArgument, "managed", ferry_device_export(device, (void *)(uintptr_t)managed, 8, &handle));
	REFUSED(ferryInvalidArgument, "pinned", ferry_device_export(device, pinned, 8, &handle));
	REFUSED(ferryInvalidArgument, "ordinary host memory", ferry_device_export(device, ordinary, 8, &handle));
	REFUSED(ferryInvalidArgument, "CUDA device 1",
	        ferry_device_export(device, (void *)(uintptr_t)foreign.memory, 8, &handle));
	REFUSED(ferryInvalidArgument, "beyond its allocation", ferry_device_export(device, good, ROOM + 1, &handle));
	/* It ends in memory of this device too, but in another allocation. */
	REFUSED(ferryInvalidArgument, "beyond its allocation of 100003",
	        ferry_device_export(device, (void *)(uintptr_t)low->memory, apart + 8, &handle));
	REFUSED(ferryInvalidArgument, "0 bytes", ferry_device_export(device, good, 0, &handle));
	assert_int_equal(ferry_device_open("host", 0, 0, &host), ferrySuccess);
	REFUSED(ferryInvalidUsage, "host device cannot be exported", ferry_device_export(host, ordinary, 8, &handle));
	ferry_device_close(host);
	CU(cuMemFree(pooled));
	CU(cuMemFree(managed));
	CU(cuMemFreeHost(pinned));
	disown(&owned);
	disown(&neighbour);
	disown(&foreign);
}

static void each_damaged_byte_of_a_handle_is_noticed(void **state)
{
	(void)state;
	struct owned owned = own(0);
	struct ferry_export handle = export_of(&owned, 100, 300);
	struct ferry_imported imported;
	for (size_t i = 0; i < sizeof handle; i++)
		for (int bit = 0; bit < 8; bit++) {
			struct ferry_export damaged = handle;
			int ordinal;
			((unsigned char *)&damaged)[i] ^= (unsigned char)(1 << bit);
			REFUSED(ferryInvalidArgument, "damaged",
			        ferry_device_import(owned.device, &damaged, 300, &imported));
			REFUSED(ferryInvalidArgument, "damaged", ferry_cuda_exported_ordinal(&damaged, &ordinal));
		}
	disown(&owned);
}

static void refuses(const struct importer *importer, struct ferry_export handle, size_t wanted, ferryResult_t expected,
                    const char *words)
{
	ferry_export_seal(&handle);
	struct order order = import_order(&handle, 0, 0);
	order.bytes = wanted;
	struct answer answer = tell(importer, &order);
	expect("a forged handle", answer.result, answer.message, expected, words);
}

/* Handles whose check is right all the same. */
static void forged_handles_are_refused_and_harm_nobody(void **state)
{
	(void)state;
	struct owned owned = own(0);
	struct ferry_export good = export_of(&owned, 100, 300), bad = good;
	struct importer importer = start(NULL);
	struct ferry_imported imported;
	struct ferry_device *host;
	refuses(&importer, good, 301, ferryInvalidArgument,
	        "301 bytes of an exported buffer are wanted; its handle is of 300");
	memcpy(bad.kind, "host", 5);
	refuses(&importer, bad, 300, ferryInvalidArgument, "of a host device; this device is cuda");
	memset(bad.kind, 'x', sizeof bad.kind);
	refuses(&importer, bad, 300, ferryInvalidArgument, "of a xxxxxxxx device");
	const uint64_t shapes[][3] = {{ROOM, 100, 0}, {ROOM, ROOM, 1}, {ROOM, 100, ROOM - 99}, {ROOM, ROOM + 1, 1},
	                              {ROOM, UINT64_MAX - 5, 10}, {ROOM, 10, UINT64_MAX - 5}};
	for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
		bad = good;
		bad.allocation = shapes[i][0], bad.offset = shapes[i][1], bad.bytes = shapes[i][2];
		refuses(&importer, bad, 0, ferryInvalidArgument, "of an allocation of 100003");
	}
	bad = good;
	bad.allocation = UINT64_MAX, bad.offset = UINT64_MAX - 300;
	refuses(&importer, bad, 300, ferryInvalidArgument, "allocation has 100003");
	bad.allocation = ROOM + 1, bad.offset = 101, bad.bytes = ROOM - 100;
	refuses(&importer, bad, 1, ferryInvalidArgument, "allocation has 100003");
	bad = good;
	bad.device[15] ^= 1;
	refuses(&importer, bad, 300, ferryInvalidArgument, "none of the 4");
	bad = good;
	memset(bad.name, 0x77, sizeof bad.name);
	refuses(&importer, bad, 300, ferryUnhandledDeviceError, "cuIpcOpenMemHandle");
	memset(bad.name, 0, sizeof bad.name);
	refuses(&importer, bad, 300, ferryUnhandledDeviceError, "cuIpcOpenMemHandle");
	assert_int_equal(ferry_device_open("host", 0, 0, &host), ferrySuccess);
	REFUSED(ferryInvalidArgument, "of a cuda device; this device is host",
	        ferry_device_import(host, &good, 300, &imported));
	memcpy(bad.kind, "host", 5);
	ferry_export_seal(&bad);
	REFUSED(ferryInvalidUsage, "a host device cannot import", ferry_device_import(host, &bad, 300, &imported));
	ferry_device_close(host);
	struct order order = import_order(&good, 0, 0);
	must(&importer, &order);
	must_read(&importer, 0, 0, 100, 100);
	/* nothing that was refused is still open */
	assert_false(must(&importer, &(struct order){.kind = CLOSE}).is_mapped);
	disown(&owned);
	refuses(&importer, good, 300, ferryUnhandledDeviceError, "cuIpcOpenMemHandle"); /* it is gone, */
	owned = own(0);
	/* and the next one is another */
	refuses(&importer, good, 300, ferryUnhandledDeviceError, "cuIpcOpenMemHandle");
	disown(&owned);
	finish(&importer);
}

static int no_misuse(void **state)
{
	(void)state;
	assert_int_equal(fake_cuda_misuses(), 0);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test_teardown(a_buffer_at_any_offset_is_read_and_written_in_another_process, no_misuse),
	        cmocka_unit_test_teardown(exporting_needs_no_context_and_leaves_none, no_misuse),
	        cmocka_unit_test_teardown(the_gpu_is_found_under_another_numbering_or_refused_by_name, no_misuse),
	        cmocka_unit_test_teardown(a_device_imports_what_another_one_has_if_it_can_reach_it, no_misuse),
	        cmocka_unit_test_teardown(an_allocation_that_is_imported_twice_stays_until_both_are_closed, no_misuse),
	        cmocka_unit_test_teardown(the_process_that_exported_is_told_to_use_its_own_address, no_misuse),
	        cmocka_unit_test_teardown(what_cannot_be_exported_is_refused_by_what_it_is, no_misuse),
	        cmocka_unit_test_teardown(each_damaged_byte_of_a_handle_is_noticed, no_misuse),
	        cmocka_unit_test_teardown(forged_handles_are_refused_and_harm_nobody, no_misuse),
	};
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	if (argc == 2)
		return be_importer(atoi(argv[1]));
	unsetenv("CUDA_VISIBLE_DEVICES");
	if (cuInit(0))
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
