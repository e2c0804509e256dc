/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h in a build without cuda.h: no GPU, and functions that nobody gets to call. */
#include "bench/rank/gpu.h"

#include "ipc/error.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define NONE { return ferry_fail(ferryInvalidUsage, "%s", gpu_missing()); }

const char *gpu_missing(void)
{
	return "this build of ferry-perf found no cuda.h";
}

void gpu_describe(struct gpu_facts *facts)
{
	*facts = (struct gpu_facts){0};
}

ferryResult_t gpu_open_stream(int local_rank, int *ordinal, void **stream) NONE
ferryResult_t gpu_take(int ordinal, size_t bytes, void **buffer) NONE
ferryResult_t gpu_take_host(size_t bytes, void **buffer) NONE
ferryResult_t gpu_zero(void *buffer, size_t bytes, void *stream) NONE
ferryResult_t gpu_copy(void *to, const void *from, size_t bytes, void *stream) NONE
ferryResult_t gpu_wait(void *stream) NONE
ferryResult_t gpu_share(int ordinal, const void *buffer, struct gpu_shared *shared) NONE
void gpu_close_stream(int ordinal, void *stream) {}
void gpu_give_back(void *buffer) {}
