/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The GPUs of a router: found by UUID, whatever numbers a rank or this process gives them, with one context each (about
 * 525 MiB of its memory), a copier, and what is mapped of other processes' memory. The driver is opened at the first
 * use. Built without cuda.h, or where there is no driver, all is refused, with the reason.
 *
 * Contexts are made, given up and mapped into by the mapper's thread alone (router/gpu/mapper.h): that takes up to a
 * second. Holding one again and dropping it is anybody's.
 */
#ifndef FERRY_ROUTER_GPU_GPUS_H
#define FERRY_ROUTER_GPU_GPUS_H

#include "ipc/attach.h"
#include "ipc/counters.h"
#include "ipc/export.h"
#include "router/copy/copy.h"

#include <pthread.h>

#define FERRY_GPU_IDLE_NS 10000000000ull /* a context that nobody holds is given up after so long */

struct ferry_gpu;

struct ferry_gpus {
	struct ferry_gpu *all;  /* the mapper's thread changes it under the lock; others read it under that */
	pthread_mutex_t lock;
	_Atomic uint32_t count; /* with a context; the same, read anywhere */
	/*
	 * The context on the GPU of that UUID is gone for good (router/copy/cuda_loss.h); `why` names GPU and error.
	 * Any thread that works in it, at any time but under `lock`; constant. NULL: nobody is told.
	 */
	void (*lost)(struct ferry_gpus *gpus, const uint8_t *uuid, const char *why);
};

/** What a GPU has mapped for this process. */
struct ferry_mapping {
	char *address;
	uint64_t bytes;
	uint32_t npieces; /* 0: opened by its handle */
	uint64_t *lengths;
};

/**
 * The GPU of that UUID, held for the caller. Errors: ferryInvalidUsage without a driver, or where none of its GPUs has
 * that UUID; the driver's, where it gives no context (exclusive mode, no memory).
 */
ferryResult_t ferry_gpus_hold(struct ferry_gpus *gpus, const uint8_t *uuid, struct ferry_gpu **gpu);

/** Whether copies of the one can go straight into the memory of the other. Any thread that holds both. */
bool ferry_gpu_reaches(const struct ferry_gpu *from, const struct ferry_gpu *to);

/** The same, to the GPU of that UUID, of which this process need have no context. False where it does not see it. */
bool ferry_gpu_reaches_uuid(const struct ferry_gpu *from, const uint8_t *uuid);

/**
 * How many bytes more may stay mapped there that have been idle for a second: all of them together hold no more than a
 * 32nd of the memory that is left, to whomever, as their owners may have freed it. Less than 0: so many too many do.
 * What stays, and no longer, is told by ferry_gpu_keep. Mapper's thread; it asks the driver, once a second at most.
 */
int64_t ferry_gpu_room(struct ferry_gpu *gpu, uint64_t now);
void ferry_gpu_keep(struct ferry_gpu *gpu, int64_t more);

/** For one more holder, who then may outlive the first. */
void ferry_gpu_hold(struct ferry_gpu *gpu);
void ferry_gpu_drop(struct ferry_gpu *gpu);

/** One of those with a context, by its place among them; false: there are no more. Any thread; asks no driver. */
bool ferry_gpus_describe(struct ferry_gpus *gpus, uint64_t place, struct ferry_gpu_counters *row);

/** For lanes: it stays where it is as long as the GPU is held. */
struct ferry_copier *ferry_gpu_copier(struct ferry_gpu *gpu);

/** Gives up the contexts that nobody has held for FERRY_GPU_IDLE_NS, or (all) for any time. Nanoseconds until there may
 * be another, or -1. */
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
