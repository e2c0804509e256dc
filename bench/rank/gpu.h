/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The GPUs that a process of bench/ sees, by the driver's own calls: the only file here that knows Ferry's way to the
 * driver. gpu_missing opens the driver: a program calls it before the others, in one thread, and calls the others only
 * if a GPU is there.
 */
#ifndef FERRY_BENCH_GPU_H
#define FERRY_BENCH_GPU_H

#include "ipc/ferry_types.h"
#include "router/copy/cuda_driver.h"

/** What there is, for the record; zeros where there are none. */
struct gpu_facts {
	int count;
	char name[256];
	int cuda_version; /* 13000 is 13.0 */
};

/** NULL if this process has a CUDA device, else why not. */
const char *gpu_missing(void);
void gpu_describe(struct gpu_facts *facts);

/** Makes the context of a rank's GPU current, and a stream on it. */
ferryResult_t gpu_open_stream(int local_rank, int *ordinal, void **stream);
void gpu_close_stream(int ordinal, void *stream);
ferryResult_t gpu_take(int ordinal, size_t bytes, void **buffer);
void gpu_give_back(void *buffer);
/** In the stream, which gpu_wait waits for. */
ferryResult_t gpu_zero(void *buffer, size_t bytes, void *stream);
ferryResult_t gpu_copy(void *to, const void *from, size_t bytes, void *stream);
ferryResult_t gpu_wait(void *stream);

/** A buffer as the process that has it names it to others: the GPU's UUID, CUDA's IPC handle of the allocation. */
struct gpu_shared {
	unsigned char gpu[16], allocation[64];
	uint64_t offset;
};

/** Returns by which name other processes open a buffer of gpu_take. The calling thread is in the context of its GPU. */
ferryResult_t gpu_share(int ordinal, const void *buffer, struct gpu_shared *shared);
/** Finds the GPU of a shared buffer, as this process counts. */
ferryResult_t gpu_find(const struct gpu_shared *shared, int *ordinal);
/** Opens a buffer that another process shares. The calling thread has entered its GPU. It stays open. */
ferryResult_t gpu_reach(const struct gpu_shared *shared, char **address);
/** The GPU as CUDA_VISIBLE_DEVICES takes it. Before the first call of CUDA, too. */
void gpu_name(const struct gpu_shared *shared, char name[48]);

extern const struct ferry_cuda_driver *gpu_driver;

/** The driver's result as Ferry's, with a message of what was tried. */
ferryResult_t gpu_good(CUresult refused, const char *tried);

/** Makes the GPU's primary context current in this thread. Give it back by gpu_leave. */
ferryResult_t gpu_enter(int ordinal, CUcontext *context);
void gpu_leave(int ordinal);

#endif
