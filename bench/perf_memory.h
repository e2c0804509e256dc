/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The buffers that ferry-perf measures on, and the stream that it gives to Ferry, behind one struct of functions: ordinary
 * memory (perf_memory.c) or a GPU's (perf_cuda.c, where the build found cuda.h). One per process, used by its one thread.
 * What fails prints its reason, with the values, and returns false or NULL; host memory that there is not needs none.
 */
#ifndef FERRY_BENCH_PERF_MEMORY_H
#define FERRY_BENCH_PERF_MEMORY_H

#include "ferry.h"
#include "rank-lib/device/export.h"

#include <stdbool.h>

struct perf_memory {
	const char *kind; /* as ferryConfig_t.device takes it */
	int ordinal;      /* the GPU's; 0 for host memory */
	ferryStream_t stream;
	/** Bytes of zeros; NULL if there is no room. */
	char *(*take)(struct perf_memory *memory, size_t bytes);
	void (*give_back)(char *buffer);
	bool (*zero)(struct perf_memory *memory, char *buffer, size_t bytes);
	/** Copies between a buffer and host memory; nothing to do where both are the same address. Blocking. */
	bool (*upload)(struct perf_memory *memory, char *buffer, const char *host, size_t bytes);
	bool (*download)(struct perf_memory *memory, char *host, const char *buffer, size_t bytes);
	/** Waits for what is in the stream. */
	bool (*synchronize)(struct perf_memory *memory);
	/** Names a buffer to other processes; NULL: this kind cannot. */
	bool (*share)(const struct perf_memory *memory, const char *buffer, size_t bytes, struct ferry_export *handle);
	void (*close)(struct perf_memory *memory);
};

/** What there is of GPUs, for the record. */
struct perf_gpus {
	int count;
	char name[256];
	int cuda_version; /* 13000 is 13.0 */
};

/** FERRY_DEVICE, else "cuda" where the process has a CUDA device, else "host". */
const char *perf_memory_kind(void);
/** Opens that kind; "cuda": makes the primary context of device (local rank mod number of devices) current. */
bool perf_memory_open(struct perf_memory *memory, const char *kind, int local_rank);
/** NULL if this process has a CUDA device, else why not. */
const char *perf_cuda_missing(void);
/** Zeros where there are none. */
void perf_cuda_describe(struct perf_gpus *gpus);
bool perf_cuda_open(struct perf_memory *memory, int local_rank);

#endif
