/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs of a router that was built without CUDA: none. */
#include "ipc/error.h"
#include "router/gpus.h"

static ferryResult_t refuse(void)
{
	return ferry_fail(ferryInvalidUsage, "this router was built without CUDA");
}

ferryResult_t ferry_gpus_hold(struct ferry_gpus *gpus, const uint8_t *uuid, struct ferry_gpu **gpu)
{
	(void)gpus, (void)uuid, (void)gpu;
	return refuse();
}

ferryResult_t ferry_gpus_see(uint32_t *count)
{
	(void)count;
	return refuse();
}

ferryResult_t ferry_gpus_find(uint32_t number, uint8_t *uuid)
{
	(void)number, (void)uuid;
	return refuse();
}

void ferry_gpus_move(struct ferry_gpus *from, struct ferry_gpus *to)
{
	(void)from, (void)to;
}

bool ferry_gpu_reaches(const struct ferry_gpu *from, const struct ferry_gpu *to)
{
	(void)from, (void)to;
	return false;
}

bool ferry_gpu_reaches_uuid(const struct ferry_gpu *from, const uint8_t *uuid)
{
	(void)from, (void)uuid;
	return false;
}

bool ferry_gpu_is_short(struct ferry_gpu *gpu)
{
	(void)gpu;
	return false;
}

void ferry_gpu_hold(struct ferry_gpu *gpu)
{
	(void)gpu;
}

void ferry_gpu_drop(struct ferry_gpu *gpu)
{
	(void)gpu;
}

bool ferry_gpus_tell(struct ferry_gpus *gpus, uint64_t place, struct ferry_gpu_told *told)
{
	(void)gpus, (void)place, (void)told;
	return false;
}

struct ferry_copier *ferry_gpu_copier(struct ferry_gpu *gpu)
{
	(void)gpu;
	return NULL;
}

int64_t ferry_gpus_rest(struct ferry_gpus *gpus, bool all)
{
	(void)gpus, (void)all;
	return -1;
}

ferryResult_t ferry_gpu_map(struct ferry_gpu *gpu, const struct ferry_exported *exported, const int *descriptors,
                            struct ferry_mapping *mapping)
{
	(void)gpu, (void)exported, (void)descriptors, (void)mapping;
	return refuse();
}

void ferry_gpu_unmap(struct ferry_gpu *gpu, struct ferry_mapping *mapping)
{
	(void)gpu, (void)mapping;
}
