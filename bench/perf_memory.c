/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/perf_memory.h"

#include "ipc/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *take(struct perf_memory *memory, size_t bytes)
{
	size_t room = (bytes + 4095) / 4096 * 4096;
	(void)memory;
	char *buffer = aligned_alloc(4096, room);
	return buffer ? memset(buffer, 0, room) : NULL;
}

static void give_back(char *buffer)
{
	free(buffer);
}

static bool zero(struct perf_memory *memory, char *buffer, size_t bytes)
{
	(void)memory;
	memset(buffer, 0, bytes);
	return true;
}

static bool copy(struct perf_memory *memory, char *to, const char *from, size_t bytes)
{
	(void)memory;
	if (to != from)
		memcpy(to, from, bytes);
	return true;
}

static bool synchronize(struct perf_memory *memory)
{
	if (!ferryStreamSynchronize(memory->stream))
		return true;
	fprintf(stderr, "ferry-perf: waiting for a call: %s\n", ferryGetLastError(NULL));
	return false;
}

static void close_memory(struct perf_memory *memory)
{
	(void)memory;
}

const char *perf_memory_kind(void)
{
	const char *chosen = ferry_env("FERRY_DEVICE");
	if (chosen)
		return chosen;
	return perf_cuda_missing() && !ferry_env("FERRY_CUDA_LIBRARY") ? "host" : "cuda";
}

bool perf_memory_open(struct perf_memory *memory, const char *kind, int local_rank)
{
	/* Any other kind: making the communicator says what is wrong with it. */
	*memory = (struct perf_memory){.kind = kind,
	                               .take = take,
	                               .give_back = give_back,
	                               .zero = zero,
	                               .upload = copy,
	                               .download = copy,
	                               .synchronize = synchronize,
	                               .close = close_memory};
	return strcmp(kind, "cuda") ? true : perf_cuda_open(memory, local_rank);
}

#ifndef FERRY_PERF_CUDA
const char *perf_cuda_missing(void)
{
	return "this build of ferry-perf found no cuda.h";
}

void perf_cuda_describe(struct perf_gpus *gpus)
{
	memset(gpus, 0, sizeof *gpus);
}

bool perf_cuda_open(struct perf_memory *memory, int local_rank)
{
	(void)memory;
	(void)local_rank;
	fprintf(stderr, "ferry-perf: --device cuda: %s\n", perf_cuda_missing());
	return false;
}
#endif
