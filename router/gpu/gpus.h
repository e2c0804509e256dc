/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The GPUs of a router: found by UUID, whatever numbers a rank or this process gives them, with one context each (about
 * 525 MiB of its memory), a copier, and the mapped memory of other processes. The driver is opened at the first use.
 * Where there is no driver, all requests are refused, with the reason.
 *
 * Only the mapper's thread (router/gpu/mapper.h) makes contexts, gives them up, and maps into them: that takes up to a
 * second. Any thread may hold one once more, and drop it.
 */
#ifndef FERRY_ROUTER_GPU_GPUS_H
#define FERRY_ROUTER_GPU_GPUS_H

#include "ipc/attach.h"
#include "ipc/counters.h"
#include "ipc/export.h"
#include "router/copy/copy.h"

#include <pthread.h>

#define FERRY_GPU_IDLE_NS 10000000000ull /* a context without holders is given up after so long */

struct ferry_gpu;

struct ferry_gpus {
	struct ferry_gpu *all;  /* the mapper's thread changes it under the lock; others read it under that */
	pthread_mutex_t lock;
	_Atomic uint32_t count; /* GPUs with a context; the mapper writes it, any thread reads it */
	/*
	 * The context on the GPU of that UUID is gone for good (router/copy/cuda_loss.h); `why` names GPU and error.
	 * Called by any thread that works in it, at any time but under `lock`; constant. NULL: losses are not reported.
	 */
	void (*lost)(struct ferry_gpus *gpus, const uint8_t *uuid, const char *why);
};

/** Memory that a GPU has mapped for this process. */
struct ferry_mapping {
	char *address;
	uint64_t bytes;
	uint32_t npieces; /* 0: opened by its handle */
	uint64_t *lengths;
};

/**
 * Finds the GPU of that UUID and holds it for the caller, which drops it with ferry_gpu_drop. Errors: ferryInvalidUsage
 * without a driver, or where none of its GPUs has that UUID; the driver's, where it gives no context (exclusive mode,
 * no memory).
 */
ferryResult_t ferry_gpus_hold(struct ferry_gpus *gpus, const uint8_t *uuid, struct ferry_gpu **gpu);

/** Whether copies of the first can go straight into the memory of the second. Any thread that holds both. */
bool ferry_gpu_reaches(const struct ferry_gpu *from, const struct ferry_gpu *to);

/**
 * As ferry_gpu_reaches, for the GPU of that UUID, on which this process needs no context. False where it does not see
 * it.
 */
bool ferry_gpu_reaches_uuid(const struct ferry_gpu *from, const uint8_t *uuid);

/**
 * Returns how many NVLinks lead straight to the GPU of that UUID, FERRY_NVLINKS_NONE or FERRY_NVLINKS_UNKNOWN: always
 * unknown where there are only two GPUs, as there is no other pair to compare with. Any thread that holds the first.
 */
uint8_t ferry_gpu_nvlinks(const struct ferry_gpu *from, const uint8_t *uuid);

/**
 * Returns how many bytes more may stay mapped on this GPU although they have been idle for a second; negative: that
 * many are too many. All idle bytes together take no more than a 32nd of the memory that is left on the GPU, as their
 * owners may have freed them. ferry_gpu_keep records bytes that stay, or (negative) stay no longer. Mapper's thread; it
 * asks the driver, once a second at most.
 */
int64_t ferry_gpu_room(struct ferry_gpu *gpu, uint64_t now);
void ferry_gpu_keep(struct ferry_gpu *gpu, int64_t more);

/** Adds a holder, which may outlive the first; ferry_gpu_drop removes one. */
void ferry_gpu_hold(struct ferry_gpu *gpu);
void ferry_gpu_drop(struct ferry_gpu *gpu);

/** Describes the GPU at that place among those with a context; false: there are no more. Any thread; asks no driver. */
bool ferry_gpus_describe(struct ferry_gpus *gpus, uint64_t place, struct ferry_gpu_counters *row);

/** The GPU's copier, for lanes; valid as long as the GPU is held. */
struct ferry_copier *ferry_gpu_copier(struct ferry_gpu *gpu);

/**
 * Gives up the contexts that had no holder for FERRY_GPU_IDLE_NS, or (all) have none. Returns nanoseconds until there
 * may be another, or -1.
 */
int64_t ferry_gpus_rest(struct ferry_gpus *gpus, bool all);

/**
 * Maps what a rank exports into the GPU's context. The descriptors stay the caller's and are of no use afterwards: the
 * mapping alone keeps the memory. Errors: ferryInvalidArgument where there is less than it says, ferryRefused while
 * memory that was freed and had this place is mapped, the driver's. Nothing is then mapped.
 */
ferryResult_t ferry_gpu_map(struct ferry_gpu *gpu, const struct ferry_exported *exported, const int *descriptors,
                            struct ferry_mapping *mapping);
void ferry_gpu_unmap(struct ferry_gpu *gpu, struct ferry_mapping *mapping);

#endif
