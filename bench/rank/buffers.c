/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/rank/buffers.h"

#include "bench/rank/gpu.h"
#include "ipc/environment.h"
#include "ipc/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool good(ferryResult_t result)
{
	if (result)
		fprintf(stderr, "ferry-perf: %s\n", ferry_last_message());
	return !result;
}

const char *bench_buffers_kind(void)
{
	const char *chosen = ferry_env("FERRY_DEVICE");
	return chosen ? chosen : gpu_missing() && !ferry_env("FERRY_CUDA_LIBRARY") ? "host" : "cuda";
}

bool bench_buffers_open(struct bench_buffers *buffers, const char *kind, int local_rank)
{
	/* Any other kind: making the communicator reports the error. */
	*buffers = (struct bench_buffers){.kind = kind, .cuda = !strcmp(kind, "cuda")};
	if (!buffers->cuda)
		return true;
	const char *missing = gpu_missing();
	if (missing)
		fprintf(stderr, "ferry-perf: --device cuda: %s\n", missing);
	return !missing && good(gpu_open_stream(local_rank, &buffers->ordinal, (void **)&buffers->stream));
}

static char *take(struct bench_buffers *buffers)
{
	void *buffer = NULL;
	if (!buffers->cuda) {
		buffer = aligned_alloc(4096, buffers->room);
		return buffer ? memset(buffer, 0, buffers->room) : NULL;
	}
	if (!good(gpu_take(buffers->ordinal, buffers->room, &buffer)) ||
	    bench_buffers_zero(buffers, buffer, buffers->room))
		return buffer;
	gpu_give_back(buffer);
	return NULL;
}

bool bench_buffers_take(struct bench_buffers *buffers, size_t room)
{
	/* Other lengths are mapped in small pages by other processes: pushes then reach 225 GB/s, not 365. */
	size_t page = buffers->cuda ? 2u << 20 : 4096;
	buffers->room = (room + page - 1) / page * page;
	buffers->send = take(buffers);
	buffers->receive = buffers->send ? take(buffers) : NULL;
	return buffers->receive != NULL;
}

bool bench_buffers_zero(struct bench_buffers *buffers, char *buffer, size_t bytes)
{
	if (buffers->cuda)
		return good(gpu_zero(buffer, bytes, buffers->stream)) && bench_buffers_wait(buffers);
	return memset(buffer, 0, bytes) != NULL;
}

bool bench_buffers_copy(struct bench_buffers *buffers, char *to, const char *from, size_t bytes)
{
	/* Host memory here is pageable: such copies may return early, so this waits. */
	if (buffers->cuda)
		return !bytes || (good(gpu_copy(to, from, bytes, buffers->stream)) && bench_buffers_wait(buffers));
	return to == from || memcpy(to, from, bytes);
}

bool bench_buffers_wait(struct bench_buffers *buffers)
{
	if (buffers->cuda)
		return good(gpu_wait(buffers->stream));
	if (!ferryStreamSynchronize(buffers->stream))
		return true;
	fprintf(stderr, "ferry-perf: waiting for a call: %s\n", ferryGetLastError(NULL));
	return false;
}

void bench_buffers_close(struct bench_buffers *buffers)
{
	void (*give_back)(void *) = buffers->cuda ? gpu_give_back : free;
	give_back(buffers->send);
	give_back(buffers->receive);
	if (buffers->cuda)
		gpu_close_stream(buffers->ordinal, buffers->stream);
}
