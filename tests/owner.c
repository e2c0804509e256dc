/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "tests/owner.h"

#include "ipc/attach.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int owner; /* the socket to it */

static void must(int failed)
{
	if (failed)
		_exit(70 + failed % 50);
}

/* Byte k * PIECE of what it owns is k + 1. */
static void mark(CUdeviceptr at, uint64_t bytes)
{
	for (uint64_t k = 0; k * PIECE < bytes; k++)
		must(cuMemsetD8Async(at + k * PIECE, (unsigned char)(k + 1), 1, NULL));
	must(cuStreamSynchronize(NULL));
}

static void create_pieces(struct answer *answer, uint32_t npieces)
{
	CUmemAllocationProp wanted = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	                              .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	                              .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
	CUmemAccessDesc access = {wanted.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	struct ferry_exported *exported = &answer->exported;
	exported->kind = FERRY_EXPORTED_VMM;
	exported->npieces = npieces;
	for (uint32_t i = 0; i < npieces; i++)
		exported->bytes += exported->lengths[i] = (i % 2 + 1) * PIECE;
	must(cuMemAddressReserve(&answer->at, exported->bytes, 0, 0, 0));
	CUdeviceptr next = answer->at;
	for (uint32_t i = 0; i < npieces; i++) {
		CUmemGenericAllocationHandle handle;
		must(cuMemCreate(&handle, exported->lengths[i], &wanted, 0));
		must(cuMemMap(next, exported->lengths[i], 0, handle, 0));
		must(cuMemExportToShareableHandle(&answer->descriptors[i], handle,
		                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
		must(cuMemRelease(handle));
		next += exported->lengths[i];
	}
	must(cuMemSetAccess(answer->at, exported->bytes, &access, 1));
	mark(answer->at, exported->bytes);
}

static void obey(const struct order *order, struct answer *answer)
{
	CUuuid uuid;
	CUipcMemHandle handle;
	size_t left, total;
	must(cuDeviceGetUuid(&uuid, 0));
	memcpy(answer->exported.gpu, &uuid, sizeof uuid);
	switch (order->kind) {
	case ALLOCATE:
		answer->exported.kind = FERRY_EXPORTED_IPC;
		answer->exported.bytes = ROOM;
		must(cuMemAlloc(&answer->at, ROOM));
		mark(answer->at, ROOM);
		must(cuIpcGetMemHandle(&handle, answer->at));
		memcpy(answer->exported.handle, &handle, sizeof handle);
		break;
	case FREE:
		must(cuMemFree(order->at));
		break;
	case CREATE:
		create_pieces(answer, order->npieces);
		break;
	case UNMAP:
		for (uint32_t i = 0; i < order->npieces; i++)
			must(cuMemUnmap(order->at + i / 2 * 3 * PIECE + i % 2 * PIECE, (i % 2 + 1) * PIECE));
		break;
	case LEFT:
		break;
	}
	must(cuMemGetInfo(&left, &total));
	answer->left = left;
}

static void obey_until_closed(int channel)
{
	struct order order;
	CUcontext context;
	CUdevice device;
	must(cuInit(0));
	must(cuDeviceGet(&device, 0));
	must(cuDevicePrimaryCtxRetain(&context, device));
	must(cuCtxSetCurrent(context));
	while (recv(channel, &order, sizeof order, MSG_WAITALL) == (ssize_t)sizeof order) {
		static struct answer answer;
		memset(&answer, 0, sizeof answer);
		obey(&order, &answer);
		_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof answer.descriptors)] = {0};
		struct iovec part = {&answer, sizeof answer};
		struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
		size_t bytes = answer.exported.npieces * sizeof(int);
		if (bytes) {
			message.msg_control = control;
			message.msg_controllen = CMSG_SPACE(bytes);
			struct cmsghdr *head = CMSG_FIRSTHDR(&message);
			*head = (struct cmsghdr){CMSG_LEN(bytes), SOL_SOCKET, SCM_RIGHTS};
			memcpy(CMSG_DATA(head), answer.descriptors, bytes);
		}
		must(sendmsg(channel, &message, 0) != (ssize_t)sizeof answer);
		for (uint32_t i = 0; i < answer.exported.npieces; i++)
			close(answer.descriptors[i]);
	}
}

struct answer owner_tell(struct order order)
{
	static struct ferry_attach_received received;
	struct answer answer;
	assert_int_equal(send(owner, &order, sizeof order, MSG_NOSIGNAL), sizeof order);
	uint32_t ndescriptors = 0;
	size_t have = 0;
	int descriptors[FERRY_MOST_PIECES];
	while (have < sizeof answer) {
		ferry_attach_receive(owner, (char *)&answer + have, sizeof answer - have, &received);
		if (received.bytes == 0)
			fail_msg("the owner has ended");
		if (received.bytes < 0) {
			struct pollfd entry = {owner, POLLIN, 0};
			poll(&entry, 1, -1);
			continue;
		}
		for (uint32_t i = 0; i < received.ndescriptors; i++)
			descriptors[ndescriptors++] = received.descriptors[i];
		have += (size_t)received.bytes;
	}
	assert_int_equal(ndescriptors, answer.exported.npieces);
	memcpy(answer.descriptors, descriptors, ndescriptors * sizeof(int));
	return answer;
}

void owner_drop_descriptors(struct answer *answer)
{
	for (uint32_t i = 0; i < answer->exported.npieces; i++)
		close(answer->descriptors[i]);
}

struct answer owner_allocate(uint32_t index, uint64_t generation)
{
	struct answer answer = owner_tell((struct order){.kind = ALLOCATE});
	answer.exported.index = index;
	answer.exported.generation = generation;
	return answer;
}

uint64_t owner_memory_left(void)
{
	return owner_tell((struct order){.kind = LEFT}).left;
}

bool owner_start(const char *machine, unsigned long long memory)
{
	char name[64], bytes[24];
	int channels[2];
	snprintf(name, sizeof name, "%s-%d", machine, (int)getpid());
	snprintf(bytes, sizeof bytes, "%llu", memory);
	setenv("FAKE_CUDA_MACHINE", name, 1);
	setenv("FERRY_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
	if (memory) {
		setenv("FAKE_CUDA_MEMORY", bytes, 1);
		setenv("FAKE_CUDA_CONTEXT_MEMORY", "1048576", 1);
	}
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels))
		return false;
	pid_t child = fork();
	if (!child) {
		close(channels[0]);
		obey_until_closed(channels[1]);
		_exit(0);
	}
	close(channels[1]);
	owner = channels[0];
	return child > 0;
}

void owner_end(void)
{
	close(owner);
}
