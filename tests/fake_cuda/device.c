/* SPDX-License-Identifier: Apache-2.0 */
/* Devices, what the environment says of them, and the words for errors. */
#include "tests/fake_cuda/fake.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

pthread_rwlock_t fake_lock = PTHREAD_RWLOCK_INITIALIZER;
int fake_device_count, fake_connections, fake_flush, fake_exclusive, fake_shut, fake_push_ms, fake_endless;
static int fake_nodes; /* FAKE_CUDA_NODES: GPU k is in node k mod so many; 0: both kinds of answers occur */
char fake_stuck[FAKE_PATH], fake_held[FAKE_PATH], fake_told[FAKE_PATH];
struct CUctx_st fake_contexts[FAKE_MOST_DEVICES];
_Atomic unsigned fake_misuse_count;
_Thread_local bool fake_in_destructor;

/* By physical numbers: bit t of peers[f], f reaches t; of nvlinks[f], it does so by NVLink. Written by cuInit. */
static unsigned peers[FAKE_MOST_DEVICES], nvlinks[FAKE_MOST_DEVICES], astray[FAKE_MOST_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Atomic int initialized;

size_t fake_number(const char *name, size_t otherwise)
{
	const char *text = getenv(name);
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

/* 0, 1, or pairs as 0-1,1-2, both ways. */
static void read_pairs(const char *name, const char *otherwise, unsigned *all)
{
	const char *given = getenv(name), *text = given && *given ? given : otherwise;
	bool pairs = strchr(text, '-');
	for (int i = 0; !pairs && i < FAKE_MOST_DEVICES; i++)
		all[i] = strtoul(text, NULL, 0) ? ~0u : 0;
	while (pairs && text) {
		int one, other;
		if (sscanf(text, "%d-%d", &one, &other) == 2 && one >= 0 && other >= 0 && one < FAKE_MOST_DEVICES &&
		    other < FAKE_MOST_DEVICES) {
			all[one] |= 1u << other;
			all[other] |= 1u << one;
		}
		text = strchr(text, ',');
		text += text != NULL;
	}
}

bool fake_reaches(int from, int to)
{
	int one = fake_contexts[from].physical, other = fake_contexts[to].physical;
	return one == other || peers[one] >> other & 1;
}

bool fake_goes_astray(int from, int to)
{
	int one = fake_contexts[from].physical, other = fake_contexts[to].physical;
	return one != other && astray[one] >> other & 1;
}

static unsigned char uuid_byte(int physical, size_t i)
{
	return (unsigned char)(0xfa ^ (size_t)physical << 4 ^ i);
}

/* A number, or a UUID as nvidia-smi -L writes it. -1: neither. */
static int next_visible(const char **visible, int physical)
{
	char *end;
	long number = strtol(*visible, &end, 10);
	if (end == *visible && !strncmp(*visible, "GPU-", 4)) {
		unsigned value, i = 0;
		const char *at = *visible + 4;
		for (number = 0; i < 16 && sscanf(at, "%2x", &value) == 1; i++) {
			if (!i)
				while (number < physical && uuid_byte((int)number, 0) != value)
					number++;
			if (uuid_byte((int)number, i) != value)
				return -1;
			at += 2 + (at[2] == '-');
		}
		if (i < 16)
			return -1;
		end = (char *)(uintptr_t)at;
	}
	if (end == *visible || number < 0 || number >= physical)
		return -1;
	*visible = *end == ',' ? end + 1 : "";
	return (int)number;
}

/* FAKE_CUDA_END_MB. Linux closes what a process that is killed has open from its last descriptor to its first. */
static void end_late(size_t bytes)
{
	static char page[1 << 16];
	bool router = bytes && !strncmp(program_invocation_short_name, "ferry-router", 12);
	int file = router ? memfd_create("end", MFD_CLOEXEC) : -1;
	for (size_t at = 0; file >= 0 && at < bytes; at += sizeof page)
		if (pwrite(file, page, sizeof page, (off_t)at) < 0)
			return;
}

static void initialize(void)
{
	int physical = (int)fake_number("FAKE_CUDA_DEVICES", 4);
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	if (physical > FAKE_MOST_DEVICES)
		physical = FAKE_MOST_DEVICES;
	fake_connections = (int)fake_number("FAKE_CUDA_CONNECTIONS", 0);
	if (fake_connections > FAKE_QUEUES)
		fake_connections = FAKE_QUEUES;
	read_pairs("FAKE_CUDA_PEERS", "1", peers);
	read_pairs("FAKE_CUDA_ASTRAY", "0", astray);
	fake_endless = (int)fake_number("FAKE_CUDA_ENDLESS", 0);
	read_pairs("FAKE_CUDA_NVLINKS", "0-1,2-3,4-5,6-7,8-9,10-11,12-13,14-15", nvlinks);
	fake_flush = (int)fake_number("FAKE_CUDA_FLUSH", 1);
	fake_exclusive = (int)fake_number("FAKE_CUDA_EXCLUSIVE", 0);
	fake_shut = (int)fake_number("FAKE_CUDA_NO_IPC", 0);
	fake_push_ms = (int)fake_number("FAKE_CUDA_PUSH_MS", 0);
	fake_nodes = (int)fake_number("FAKE_CUDA_NODES", 0);
	snprintf(fake_stuck, sizeof fake_stuck, "%s", getenv("FAKE_CUDA_STUCK") ? getenv("FAKE_CUDA_STUCK") : "");
	snprintf(fake_held, sizeof fake_held, "%s", getenv("FAKE_CUDA_HELD") ? getenv("FAKE_CUDA_HELD") : "");
	snprintf(fake_told, sizeof fake_told, "%s", getenv("FAKE_CUDA_TOLD") ? getenv("FAKE_CUDA_TOLD") : "");
	end_late((size_t)fake_number("FAKE_CUDA_END_MB", 0) << 20);
	fake_machine_start();
	fake_fault_start();
	for (int i = 0; !visible && i < physical; i++)
		fake_contexts[fake_device_count++] = (struct CUctx_st){.ordinal = i, .physical = i};
	while (visible && *visible && fake_device_count < FAKE_MOST_DEVICES) {
		int number = next_visible(&visible, physical);
		if (number < 0) /* as the driver: what follows is not seen */
			break;
		fake_contexts[fake_device_count] = (struct CUctx_st){.ordinal = fake_device_count, .physical = number};
		fake_device_count++;
	}
	for (int i = 0; i < fake_device_count; i++) {
		pthread_rwlock_init(&fake_contexts[i].frees, NULL);
		fake_contexts[i].memory = fake_contexts[i].claim = -1;
	}
	atomic_store_explicit(&initialized, 1, memory_order_release);
}

CUresult fake_enter(void)
{
	if (fake_in_destructor) {
		fake_misused();
		return CUDA_ERROR_NOT_PERMITTED;
	}
	return atomic_load_explicit(&initialized, memory_order_acquire) ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

void fake_pause(unsigned *turn)
{
	long ns = 2000l << (*turn < 10 ? *turn : 10);
	(*turn)++;
	nanosleep(&(struct timespec){0, ns}, NULL);
}

void fake_misused(void)
{
	atomic_fetch_add_explicit(&fake_misuse_count, 1, memory_order_relaxed);
}

int fake_visible_ordinal(int physical)
{
	for (int i = 0; i < fake_device_count; i++)
		if (fake_contexts[i].physical == physical)
			return i;
	return -1;
}

unsigned fake_cuda_misuses(void)
{
	return atomic_load_explicit(&fake_misuse_count, memory_order_relaxed);
}

CUresult fake_cuda_break(CUdevice device, CUresult error)
{
	if (device < 0 || device >= fake_device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	atomic_store_explicit(&fake_contexts[device].error, (int)error, memory_order_relaxed);
	return CUDA_SUCCESS;
}

/* ---- the driver's names ---- */

CUresult cuInit(unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_once(&once, initialize);
	return fake_device_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuGetErrorString(CUresult error, const char **words)
{
	static const struct {
		CUresult error;
		const char *words;
	} known[] = {
	        {CUDA_SUCCESS, "no error"},
	        {CUDA_ERROR_INVALID_VALUE, "invalid argument"},
	        {CUDA_ERROR_OUT_OF_MEMORY, "out of memory"},
	        {CUDA_ERROR_NOT_INITIALIZED, "initialization error"},
	        {CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"},
	        {CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"},
	        {CUDA_ERROR_INVALID_CONTEXT, "invalid device context"},
	        {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA-capable device(s) is/are busy or unavailable"},
	        {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"},
	        {CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"},
	        {CUDA_ERROR_NOT_FOUND, "named symbol not found"},
	        {CUDA_ERROR_NOT_SUPPORTED, "operation not supported"},
	        {CUDA_ERROR_UNKNOWN, "unknown error"},
	        {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "peer access is not supported between these two devices"},
	        {CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"},
	        {CUDA_ERROR_NOT_READY, "device not ready"},
	        {CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"},
	        {CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
	         "part or all of the requested memory range is already mapped"},
	        {CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, "pointer does not correspond to a registered memory region"},
	        {CUDA_ERROR_NOT_PERMITTED, "operation not permitted"},
	        {CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "operation not permitted when stream is capturing"},
	        {CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "operation failed due to a previous error during capture"},
	        {CUDA_ERROR_STREAM_CAPTURE_MERGE, "operation would result in a merge of separate capture sequences"},
	        {CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, "capture was not ended in the same stream as it began"},
	        {CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "capturing stream has unjoined work"},
	        {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "dependency created on uncaptured work in another stream"},
	        {CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
	         "operation would make the legacy stream depend on a capturing blocking stream"},
	        {CUDA_ERROR_CAPTURED_EVENT, "operation not permitted on an event last recorded in a capturing stream"},
	        {CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
	         "attempt to terminate a thread-local capture sequence from another thread"}};
	if (!words)
		return CUDA_ERROR_INVALID_VALUE;
	*words = NULL;
	for (size_t i = 0; i < sizeof known / sizeof *known; i++)
		if (known[i].error == error)
			*words = known[i].words;
	return *words ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fake_find_device(CUdevice device, CUcontext *context)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	if (device < 0 || device >= fake_device_count)
		return CUDA_ERROR_INVALID_DEVICE;
	*context = &fake_contexts[device];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUcontext context;
	CUresult refused = fake_find_device(ordinal, &context);
	if (refused || !device)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult refused = fake_enter();
	if (refused || !count)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*count = fake_device_count;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused || !name || length <= 0)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)length, "fake GPU %d", context->physical);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetPCIBusId(char *bus, int length, CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused || !bus || length < 13)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	snprintf(bus, (size_t)length, "FACE:%02X:00.0", (unsigned)context->physical & 0xff);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *bus)
{
	char name[16];
	CUresult refused = fake_enter();
	if (refused || !device || !bus)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < fake_device_count; i++)
		if (!cuDeviceGetPCIBusId(name, sizeof name, i) && !strcasecmp(name, bus)) {
			*device = i;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_VALUE;
}

/* The same in every process, whatever the device's number there. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused || !uuid)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < sizeof uuid->bytes; i++)
		uuid->bytes[i] = (char)uuid_byte(context->physical, i);
	return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
	CUcontext one, other;
	CUresult refused = fake_find_device(device, &one);
	if (!refused)
		refused = fake_find_device(peer, &other);
	if (refused || !can)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*can = one != other && fake_reaches(device, peer);
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attribute, CUdevice device, CUdevice peer)
{
	CUcontext one, other;
	CUresult refused = fake_find_device(device, &one);
	if (!refused)
		refused = fake_find_device(peer, &other);
	if (refused || !value || one == other)
		return refused ? refused : value ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
	bool linked = nvlinks[one->physical] >> other->physical & 1;
	switch (attribute) {
	case CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK:
		*value = !linked;
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED:
		*value = fake_reaches(device, peer);
		return CUDA_SUCCESS;
	case CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED:
		*value = fake_reaches(device, peer) && linked;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused || !value || (int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
	case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
	case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
		*value = 1;
		break;
	case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
		*value = fake_flush;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
		*value = fake_exclusive ? CU_COMPUTEMODE_EXCLUSIVE_PROCESS : CU_COMPUTEMODE_DEFAULT;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 132;
		break;
	case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
		*value = 3;
		break;
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		*value = fake_nodes ? context->physical % fake_nodes : context->physical % 2 ? -1 : 0;
		break;
	default:
		*value = 0;
	}
	return CUDA_SUCCESS;
}
