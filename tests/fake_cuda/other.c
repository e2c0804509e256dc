/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/other.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the other process ---- */

static CUcontext its[4];
static unsigned char *byte; /* registered in each context, or what REGISTER brought */

static CUresult copy(const struct order *order, struct answer *answer)
{
	CUstream stream;
	CUresult refused = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	*byte = order->value;
	if (refused)
		return refused;
	refused = order->kind == READ ? cuMemcpyDtoHAsync(byte, order->at, 1, stream)
	                              : cuMemcpyHtoDAsync(order->at, byte, 1, stream);
	if (!refused)
		refused = cuStreamSynchronize(stream);
	cuStreamDestroy(stream);
	answer->value = *byte;
	return refused;
}

static CUresult map(const struct order *order, int file, struct answer *answer)
{
	CUmemAccessDesc access = {{.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = order->device},
	                          CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUmemGenericAllocationHandle handle;
	CUresult refused = cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)file,
	                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (refused)
		return refused;
	refused = cuMemAddressReserve(&answer->at, order->bytes, 0, 0, 0);
	if (!refused)
		refused = cuMemMap(answer->at, order->bytes, 0, handle, 0);
	if (!refused)
		refused = cuMemSetAccess(answer->at, order->bytes, &access, 1);
	cuMemRelease(handle);
	return refused;
}

static CUresult retain(int device, struct answer *answer)
{
	CUresult refused = cuDevicePrimaryCtxRetain(&its[device], device);
	int mode = -1;
	cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device);
	answer->number = (size_t)mode;
	return refused ? refused : cuCtxSetCurrent(its[device]);
}

/* The byte that copies go through lies in the shared memory from now on. */
static CUresult take_memory(int file)
{
	unsigned char *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory == MAP_FAILED)
		return CUDA_ERROR_OUT_OF_MEMORY;
	byte = memory + 100;
	return cuMemHostRegister(memory, 4096, 0);
}

static CUresult obey(const struct order *order, int file, struct answer *answer)
{
	CUresult refused = CUDA_SUCCESS;
	if (order->kind != RETAIN && order->kind != UUID && its[order->device])
		cuCtxSetCurrent(its[order->device]);
	switch (order->kind) {
	case RETAIN:
		return retain(order->device, answer);
	case RELEASE:
		return cuDevicePrimaryCtxRelease(order->device);
	case ALLOCATE:
		refused = cuMemAlloc(&answer->at, order->bytes);
		return refused ? refused : cuIpcGetMemHandle(&answer->handle, answer->at);
	case FREE:
		return cuMemFree(order->at);
	case OPEN:
		return cuIpcOpenMemHandle(&answer->at, order->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	case CLOSE:
		return cuIpcCloseMemHandle(order->at);
	case READ:
	case WRITE:
		return copy(order, answer);
	case MAP:
		return map(order, file, answer);
	case UNMAP:
		refused = cuMemUnmap(order->at, order->bytes);
		return refused ? refused : cuMemAddressFree(order->at, order->bytes);
	case LEFT:
		return cuMemGetInfo(&answer->number, &(size_t){0});
	case UUID:
		return cuDeviceGetUuid(&answer->uuid, order->device);
	case REGISTER:
		return take_memory(file);
	case MISUSES:
		answer->number = fake_cuda_misuses();
	}
	return CUDA_SUCCESS;
}

static bool receive(int channel, struct order *order, int *file)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec parts = {order, sizeof *order};
	struct msghdr message = {
	        .msg_iov = &parts, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
	*file = -1;
	if (recvmsg(channel, &message, 0) != sizeof *order)
		return false;
	if (order->has_file && CMSG_FIRSTHDR(&message))
		memcpy(file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof *file);
	return true;
}

int other_obeys(int channel)
{
	struct order order;
	int file;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	byte = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (cuInit(0))
		return 1;
	while (receive(channel, &order, &file)) {
		struct answer answer = {.result = CUDA_SUCCESS};
		if ((order.kind == READ || order.kind == WRITE) && !fake_cuda_reach((uintptr_t)byte))
			cuMemHostRegister(byte, 4096, 0);
		answer.result = obey(&order, file, &answer);
		if (file >= 0)
			close(file);
		if (send(channel, &answer, sizeof answer, MSG_NOSIGNAL) != sizeof answer)
			return 1;
	}
	return 0;
}

/* ---- this one ---- */

struct other other_start(const char *variable, const char *value)
{
	int sockets[2];
	char text[16];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
	snprintf(text, sizeof text, "%d", dup(sockets[1])); /* this one stays open over exec */
	pid_t pid = fork();
	if (!pid) {
		if (variable)
			setenv(variable, value, 1);
		execl("/proc/self/exe", "other", text, (char *)NULL);
		_exit(1);
	}
	close(sockets[1]);
	close(atoi(text));
	return (struct other){pid, sockets[0]};
}

void other_finish(struct other *other)
{
	close(other->channel);
	assert_int_equal(waitpid(other->pid, NULL, 0), other->pid);
}

struct answer other_tell_with(const struct other *other, struct order order, int file)
{
	struct answer answer;
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control = {.header = {.cmsg_len = CMSG_LEN(sizeof file), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	order.has_file = file >= 0;
	struct iovec parts = {&order, sizeof order};
	struct msghdr message = {.msg_iov = &parts, .msg_iovlen = 1};
	if (file >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof control;
		memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &file, sizeof file);
	}
	assert_int_equal(sendmsg(other->channel, &message, MSG_NOSIGNAL), sizeof order);
	if (recv(other->channel, &answer, sizeof answer, 0) != sizeof answer)
		fail_msg("the other process has ended");
	return answer;
}

struct answer other_tell(const struct other *other, struct order order)
{
	return other_tell_with(other, order, -1);
}

struct answer other_must(const struct other *other, struct order order)
{
	struct answer answer = other_tell(other, order);
	if (answer.result)
		fail_msg("order %d: CUDA error %d", (int)order.kind, (int)answer.result);
	return answer;
}
