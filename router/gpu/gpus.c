/* SPDX-License-Identifier: Apache-2.0 */
#include "router/gpu/gpus.h"

#include "ipc/arena.h"
#include "ipc/error.h"
#include "ipc/gpu_links.h"
#include "ipc/nvml.h"
#include "ipc/wait.h"
#include "router/copy/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(CUuuid) == FERRY_GPU_BYTES, "UUIDs travel as bytes");
_Static_assert(sizeof(CUipcMemHandle) == sizeof((struct ferry_exported *)0)->handle, "IPC handles travel as bytes");

#define MOST_DEVICES FERRY_MAX_RANKS /* whose links are kept */
#define ASK_NS 1000000000ull         /* how often the driver is asked for the memory that is left, at most */
#define KEPT_PART 32                 /* 1 / KEPT_PART of that memory may stay mapped though it is idle */

/* The link to the device of that number; constant. */
struct link {
	bool reaches, atomics;
	uint8_t nvlinks; /* ipc/gpu_links.h */
	int rank;
};

struct ferry_gpu {
	struct ferry_cuda_owner owner; /* first */
	struct ferry_cuda_copier copier;
	const struct ferry_cuda_driver *driver;
	CUdevice device;
	CUcontext context; /* the primary one, held once */
	uint8_t uuid[FERRY_GPU_BYTES];
	struct link links[MOST_DEVICES]; /* constant */
	_Atomic uint32_t holders;    /* holding adds one, dropping subtracts one */
	_Atomic uint64_t idle_since; /* the thread that drops the last holder, before it does; ferry_now_ns */
	uint64_t asked_ns;           /* mapper: when the driver was asked how much memory is left; */
	size_t left;                 /* and its answer */
	int64_t kept;                /* mapper: bytes that stay mapped though they have been idle for a second */
	struct ferry_gpus *gpus;
	struct ferry_gpu *next;
};

/* ---- contexts ---- */

static ferryResult_t find_device(const struct ferry_cuda_driver *driver, const uint8_t *uuid, CUdevice *device)
{
	int count = 0;
	CUuuid found;
	CUresult refused = driver->DeviceGetCount(&count);
	if (refused)
		return ferry_cuda_failed(driver, refused, "counting the GPUs");
	for (int ordinal = 0; ordinal < count; ordinal++)
		if (!driver->DeviceGet(device, ordinal) && !driver->DeviceGetUuid(&found, *device) &&
		    !memcmp(&found, uuid, sizeof found))
			return ferrySuccess;
	return ferry_fail(
	        ferryInvalidUsage,
	        "none of the %d GPUs that the router sees has the UUID %02x%02x%02x%02x... (CUDA_VISIBLE_DEVICES?)",
	        count, uuid[0], uuid[1], uuid[2], uuid[3]);
}

/* NVML counts 0 for links to a switch, or where it knows nothing. Without atomics, which PCIe lacks, 0 is none. */
static void count_nvlinks(struct ferry_gpu *gpu, CUdevice to)
{
	struct link *link = &gpu->links[to];
	char uuid[FERRY_GPU_TEXT], other_uuid[FERRY_GPU_TEXT];
	CUuuid other;
	if (!gpu->driver->DeviceGetUuid(&other, to))
		link->nvlinks = ferry_nvml_count_links(
		        ferry_gpu_uuid_print(gpu->uuid, uuid),
		        ferry_gpu_uuid_print((const uint8_t *)other.bytes, other_uuid));
	if (!link->nvlinks && !link->atomics)
		link->nvlinks = FERRY_NVLINKS_NONE;
}

/* Reads them once: the thread that reports them later does not wait for the driver. */
static void find_links(struct ferry_gpu *gpu)
{
	const struct ferry_cuda_driver *driver = gpu->driver;
	int count = 0;
	if (driver->DeviceGetCount(&count))
		return;
	for (int device = 0; device < count && device < (int)MOST_DEVICES; device++) {
		struct link *link = &gpu->links[device];
		int reaches = 0, atomics = 0;
		if (device == gpu->device ||
		    driver->DeviceGetP2PAttribute(&reaches, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, gpu->device,
		                                  device) ||
		    driver->DeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
		                                  gpu->device, device) ||
		    driver->DeviceGetP2PAttribute(&link->rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, gpu->device,
		                                  device))
			continue;
		link->reaches = reaches;
		link->atomics = atomics;
		if (count > 2 && reaches)
			count_nvlinks(gpu, device);
	}
}

/* Called by the thread that finds the loss: this process cannot use the context any more, and nor can its jobs. */
static void on_lost(const struct ferry_cuda_owner *owner, const char *why)
{
	const struct ferry_gpu *gpu = (const struct ferry_gpu *)owner;
	char text[FERRY_LOSS_BYTES], name[FERRY_GPU_TEXT];
	snprintf(text, sizeof text, "GPU %d (%s): %s", (int)gpu->device, ferry_gpu_uuid_print(gpu->uuid, name), why);
	gpu->gpus->lost(gpu->gpus, gpu->uuid, text);
}

static ferryResult_t open_context(struct ferry_gpu *gpu)
{
	CUresult refused = gpu->driver->DevicePrimaryCtxRetain(&gpu->context, gpu->device);
	if (refused)
		return ferry_cuda_failed(gpu->driver, refused, "making a context on the GPU");
	ferryResult_t result = ferry_cuda_copier_open(&gpu->copier, gpu->driver, gpu->context);
	gpu->owner.lost = on_lost;
	gpu->copier.owner = gpu->gpus->lost ? &gpu->owner : NULL;
	if (result)
		gpu->driver->DevicePrimaryCtxRelease(gpu->device);
	return result;
}

static ferryResult_t gpu_open(struct ferry_gpus *gpus, const uint8_t *uuid, struct ferry_gpu **opened)
{
	const struct ferry_cuda_driver *driver;
	CUdevice device = 0;
	ferryResult_t result = ferry_cuda_driver_open(&driver);
	if (!result)
		result = find_device(driver, uuid, &device);
	if (result)
		return result;
	struct ferry_gpu *gpu = calloc(1, sizeof *gpu);
	if (!gpu)
		return ferry_fail(ferrySystemError, "no memory for a GPU");
	gpu->gpus = gpus;
	gpu->driver = driver;
	gpu->device = device;
	memcpy(gpu->uuid, uuid, sizeof gpu->uuid);
	find_links(gpu);
	if ((result = open_context(gpu)))
		free(gpu);
	else
		*opened = gpu;
	return result;
}

ferryResult_t ferry_gpus_hold(struct ferry_gpus *gpus, const uint8_t *uuid, struct ferry_gpu **held)
{
	struct ferry_gpu *gpu;
	for (gpu = gpus->all; gpu; gpu = gpu->next)
		if (!memcmp(gpu->uuid, uuid, sizeof gpu->uuid))
			break;
	if (!gpu) {
		ferryResult_t result = gpu_open(gpus, uuid, &gpu);
		if (result)
			return result;
		gpu->next = gpus->all;
		pthread_mutex_lock(&gpus->lock);
		gpus->all = gpu;
		pthread_mutex_unlock(&gpus->lock);
		atomic_fetch_add_explicit(&gpus->count, 1, memory_order_relaxed);
		ferry_log(FERRY_LOG_INFO, "a context on GPU %d, for ranks whose buffers the router reaches",
		          (int)gpu->device);
	}
	ferry_gpu_hold(gpu);
	*held = gpu;
	return ferrySuccess;
}

bool ferry_gpu_reaches(const struct ferry_gpu *from, const struct ferry_gpu *to)
{
	int can = 0;
	return from == to ||
	       (!from->driver->DeviceCanAccessPeer(&can, from->device, to->device) && can);
}

bool ferry_gpu_reaches_uuid(const struct ferry_gpu *from, const uint8_t *uuid)
{
	CUdevice to;
	int can = 0;
	if (find_device(from->driver, uuid, &to)) {
		ferry_forget_message(); /* it is no failure */
		return false;
	}
	return from->device == to || (!from->driver->DeviceCanAccessPeer(&can, from->device, to) && can);
}

uint8_t ferry_gpu_nvlinks(const struct ferry_gpu *from, const uint8_t *uuid)
{
	CUdevice to;
	if (find_device(from->driver, uuid, &to)) {
		ferry_forget_message();
		return FERRY_NVLINKS_UNKNOWN;
	}
	return to < (int)MOST_DEVICES ? from->links[to].nvlinks : FERRY_NVLINKS_UNKNOWN;
}

void ferry_gpu_hold(struct ferry_gpu *gpu)
{
	atomic_fetch_add_explicit(&gpu->holders, 1, memory_order_relaxed);
}

void ferry_gpu_drop(struct ferry_gpu *gpu)
{
	atomic_store_explicit(&gpu->idle_since, ferry_now_ns(), memory_order_relaxed);
	atomic_fetch_sub_explicit(&gpu->holders, 1, memory_order_release);
}

/* Under the lock. */
static void notify(const struct ferry_gpus *gpus, const struct ferry_gpu *gpu, struct ferry_gpu_counters *row)
{
	memcpy(row->uuid, gpu->uuid, sizeof row->uuid);
	row->nlinks = 0;
	for (const struct ferry_gpu *other = gpus->all; other; other = other->next) {
		if (other->device >= (int)MOST_DEVICES || !gpu->links[other->device].reaches)
			continue;
		struct ferry_gpu_link *link = &row->links[row->nlinks++];
		memcpy(link->to, other->uuid, sizeof link->to);
		link->rank = gpu->links[other->device].rank;
		link->atomics = gpu->links[other->device].atomics;
	}
}

bool ferry_gpus_describe(struct ferry_gpus *gpus, uint64_t place, struct ferry_gpu_counters *row)
{
	pthread_mutex_lock(&gpus->lock);
	const struct ferry_gpu *gpu = gpus->all;
	for (; gpu && place; place--)
		gpu = gpu->next;
	if (gpu)
		notify(gpus, gpu, row);
	pthread_mutex_unlock(&gpus->lock);
	return gpu;
}

struct ferry_copier *ferry_gpu_copier(struct ferry_gpu *gpu)
{
	return &gpu->copier.base;
}

int64_t ferry_gpus_rest(struct ferry_gpus *gpus, bool all)
{
	uint64_t now = ferry_now_ns();
	int64_t next = -1;
	for (struct ferry_gpu **link = &gpus->all; *link;) {
		struct ferry_gpu *gpu = *link;
		/* Without a holder no other thread takes hold again: only a holder may. */
		bool held = atomic_load_explicit(&gpu->holders, memory_order_acquire) > 0;
		uint64_t due = atomic_load_explicit(&gpu->idle_since, memory_order_relaxed) + FERRY_GPU_IDLE_NS;
		if (held || (!all && now < due)) {
			int64_t left = held ? -1 : (int64_t)(due - now);
			next = left >= 0 && (next < 0 || left < next) ? left : next;
			link = &gpu->next;
			continue;
		}
		pthread_mutex_lock(&gpus->lock);
		*link = gpu->next;
		pthread_mutex_unlock(&gpus->lock);
		gpu->driver->DevicePrimaryCtxRelease(gpu->device);
		atomic_fetch_sub_explicit(&gpus->count, 1, memory_order_relaxed);
		ferry_log(FERRY_LOG_INFO, "the context on GPU %d is given up", (int)gpu->device);
		free(gpu);
	}
	return next;
}

/* ---- mapping ---- */

static ferryResult_t gpu_failed(const struct ferry_gpu *gpu, CUresult result, const char *tried)
{
	return ferry_cuda_copier_failed(&gpu->copier, result, tried);
}

static ferryResult_t open_handle(struct ferry_gpu *gpu, const struct ferry_exported *exported,
                                 struct ferry_mapping *mapping)
{
	const struct ferry_cuda_driver *driver = gpu->driver;
	CUdeviceptr address;
	uint64_t bytes;
	CUresult refused = ferry_cuda_open_handle(driver, exported->handle, &address, &bytes);
	if (refused) {
		gpu_failed(gpu, refused, "opening a rank's allocation (cuIpcOpenMemHandle)");
		return refused == CUDA_ERROR_ALREADY_MAPPED ? ferryRefused : ferryUnhandledDeviceError;
	}
	if (exported->bytes > bytes) {
		driver->IpcCloseMemHandle(address);
		return ferry_fail(ferryInvalidArgument, "an export of %llu bytes, of which the driver has mapped %llu",
		                  (unsigned long long)exported->bytes, (unsigned long long)bytes);
	}
	mapping->address = (char *)(uintptr_t)address;
	return ferrySuccess;
}

static void unmap_pieces(struct ferry_gpu *gpu, CUdeviceptr base, const uint64_t *lengths, uint32_t npieces)
{
	for (uint32_t i = 0; i < npieces; i++) {
		gpu->driver->MemUnmap(base, lengths[i]);
		base += lengths[i];
	}
}

/* Releases the handle: the mapping holds the memory. */
static ferryResult_t map_piece(struct ferry_gpu *gpu, CUdeviceptr address, uint64_t bytes, int descriptor)
{
	const struct ferry_cuda_driver *driver = gpu->driver;
	CUmemGenericAllocationHandle handle;
	CUresult refused = driver->MemImportFromShareableHandle(&handle, (void *)(uintptr_t)descriptor,
	                                                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (refused)
		return gpu_failed(gpu, refused, "importing a piece of a rank's memory");
	refused = driver->MemMap(address, bytes, 0, handle, 0);
	driver->MemRelease(handle);
	return refused ? gpu_failed(gpu, refused, "mapping a piece of a rank's memory") : ferrySuccess;
}

static ferryResult_t map_pieces(struct ferry_gpu *gpu, CUdeviceptr base, const struct ferry_exported *exported,
                                const int *descriptors)
{
	CUmemAccessDesc access = {.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->device},
	                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	CUdeviceptr next = base;
	ferryResult_t result = ferrySuccess;
	uint32_t mapped = 0;
	for (; !result && mapped < exported->npieces; mapped++) {
		if ((result = map_piece(gpu, next, exported->lengths[mapped], descriptors[mapped])))
			break;
		next += exported->lengths[mapped];
	}
	CUresult refused = result ? CUDA_SUCCESS : gpu->driver->MemSetAccess(base, exported->bytes, &access, 1);
	if (refused)
		result = gpu_failed(gpu, refused, "access to a rank's memory");
	if (result)
		unmap_pieces(gpu, base, exported->lengths, mapped);
	return result;
}

static ferryResult_t reserve_and_map(struct ferry_gpu *gpu, const struct ferry_exported *exported,
                                     const int *descriptors, struct ferry_mapping *mapping)
{
	size_t size = exported->npieces * sizeof(uint64_t);
	CUdeviceptr base;
	uint64_t *lengths = malloc(size);
	if (!lengths)
		return ferry_fail(ferrySystemError, "no memory for %u pieces", exported->npieces);
	CUresult refused = gpu->driver->MemAddressReserve(&base, exported->bytes, 0, 0, 0);
	ferryResult_t result = refused ? gpu_failed(gpu, refused, "addresses for a rank's memory")
	                               : map_pieces(gpu, base, exported, descriptors);
	if (result) {
		if (!refused)
			gpu->driver->MemAddressFree(base, exported->bytes);
		free(lengths);
		return result;
	}
	memcpy(lengths, exported->lengths, size);
	*mapping = (struct ferry_mapping){
	        .address = (char *)(uintptr_t)base, .npieces = exported->npieces, .lengths = lengths};
	return ferrySuccess;
}

ferryResult_t ferry_gpu_map(struct ferry_gpu *gpu, const struct ferry_exported *exported, const int *descriptors,
                            struct ferry_mapping *mapping)
{
	struct ferry_cuda_visit visit;
	*mapping = (struct ferry_mapping){0};
	ferryResult_t result = ferry_cuda_visit(gpu->driver, gpu->context, &visit);
	if (result)
		return result;
	result = exported->kind == FERRY_EXPORTED_IPC ? open_handle(gpu, exported, mapping)
	                                              : reserve_and_map(gpu, exported, descriptors, mapping);
	ferry_cuda_visit_end(&visit);
	mapping->bytes = exported->bytes;
	return result;
}

/* Bytes that are free on the GPU; 0: the driver does not say. */
static size_t ask_left(const struct ferry_gpu *gpu)
{
	struct ferry_cuda_visit visit;
	size_t left, total;
	if (ferry_cuda_visit(gpu->driver, gpu->context, &visit))
		return 0;
	CUresult refused = gpu->driver->MemGetInfo(&left, &total);
	ferry_cuda_visit_end(&visit);
	return refused ? 0 : left;
}

int64_t ferry_gpu_room(struct ferry_gpu *gpu, uint64_t now)
{
	if (now - gpu->asked_ns >= ASK_NS || !gpu->asked_ns) {
		gpu->left = ask_left(gpu);
		gpu->asked_ns = now;
	}
	return (int64_t)(gpu->left / KEPT_PART) - gpu->kept;
}

void ferry_gpu_keep(struct ferry_gpu *gpu, int64_t more)
{
	gpu->kept += more;
}

void ferry_gpu_unmap(struct ferry_gpu *gpu, struct ferry_mapping *mapping)
{
	struct ferry_cuda_visit visit;
	CUdeviceptr base = (CUdeviceptr)(uintptr_t)mapping->address;
	if (!ferry_cuda_visit(gpu->driver, gpu->context, &visit)) {
		if (!mapping->npieces) {
			gpu->driver->IpcCloseMemHandle(base);
		} else {
			unmap_pieces(gpu, base, mapping->lengths, mapping->npieces);
			gpu->driver->MemAddressFree(base, mapping->bytes);
		}
		ferry_cuda_visit_end(&visit);
	}
	free(mapping->lengths);
	*mapping = (struct ferry_mapping){0};
}
