/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The GPUs that a process of bench/ sees, by the driver's own calls: the only file here that knows Ferry's way to the
 * driver and to exported buffers. gpu_missing opens the driver: whoever uses a GPU calls it first, in one thread. In a
 * build without cuda.h it finds no GPU, and the other functions are not called.
 */
#ifndef FERRY_BENCH_GPU_H
#define FERRY_BENCH_GPU_H

#include "ipc/ferry_types.h"

struct ferry_export;

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

/** Names a buffer on a GPU to other processes. */
ferryResult_t gpu_share(int ordinal, const void *buffer, size_t bytes, struct ferry_export *handle);
/** Opens a buffer that another process has shared; it stays open. *ordinal: the GPU that it is on. */
ferryResult_t gpu_reach(const struct ferry_export *handle, int *ordinal, char **address);
/** The GPU of a shared buffer as CUDA_VISIBLE_DEVICES takes it; "" if the handle is bad. Before the first call of CUDA,
 * too. */
void gpu_name(const struct ferry_export *handle, char name[48]);

#ifdef FERRY_PERF_CUDA
#include "router/copy/cuda_driver.h"

extern const struct ferry_cuda_driver *gpu_driver;

/** The driver's result as Ferry's, with a message of what was tried. */
ferryResult_t gpu_good(CUresult refused, const char *tried);

/** Makes the GPU's primary context current in this thread. Give it back by gpu_leave. */
ferryResult_t gpu_enter(int ordinal, CUcontext *context);
void gpu_leave(int ordinal);
#endif

#endif
