/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_place.h"

#include "bench/rank/gpu.h"
#include "ipc/error.h"

#include <string.h>

ferryResult_t kills_place_open(struct kills_place *place, int rank, bool gpu)
{
	ferryResult_t result = ferrySuccess;
	*place = (struct kills_place){.gpu = gpu};
	if (gpu && gpu_missing())
		return ferry_fail(ferryUnhandledDeviceError, "no GPU: %s", gpu_missing());
	for (int i = 0; i < 2 && !result; i++)
		result = gpu ? gpu_open_stream(rank, &place->ordinals[i], (void **)&place->streams[i])
		             : ferryStreamCreate(&place->streams[i], rank);
	return result;
}

void kills_place_close(struct kills_place *place)
{
	for (int i = 0; i < 2; i++)
		if (place->streams[i] && place->gpu)
			gpu_close_stream(place->ordinals[i], place->streams[i]);
		else if (place->streams[i])
			ferryStreamDestroy(place->streams[i]);
}

/* Host memory that copy engines reach; for as long as the process lives. */
static ferryResult_t take_pinned(size_t bytes, char **buffer)
{
	return gpu_good(gpu_driver->MemHostAlloc((void **)buffer, bytes, CU_MEMHOSTALLOC_PORTABLE),
	                "allocating host memory for a GPU");
}

ferryResult_t kills_place_take(const struct kills_place *place, struct trial_buffers *host,
                               struct kills_buffers *buffers)
{
	ferryResult_t result = ferrySuccess;
	*buffers = (struct kills_buffers){.host = host, .areas = {host->area[0], host->area[1]}};
	for (int i = 0; i < 2 && !result && place->gpu; i++) {
		void *memory = NULL;
		size_t off = (size_t)(uintptr_t)host->area[i] % 64; /* as far off a line as the host's */
		result = gpu_take(place->ordinals[0], host->bytes[i] + 128, &memory);
		buffers->memory[i] = memory;
		buffers->areas[i] = (char *)memory + off;
		if (!result)
			result = take_pinned(host->bytes[i] + 1, &buffers->pinned[i]);
	}
	return result;
}

void kills_place_give_back(const struct kills_place *place, struct kills_buffers *buffers)
{
	for (int i = 0; i < 2 && place->gpu; i++)
		gpu_give_back(buffers->memory[i]);
	*buffers = (struct kills_buffers){0};
}

char *kills_place_at(const struct kills_buffers *buffers, const char *host)
{
	const struct trial_buffers *areas = buffers->host;
	for (int i = 0; i < 2 && host; i++)
		if (host >= areas->area[i] && host <= areas->area[i] + areas->bytes[i] && areas->bytes[i])
			return buffers->areas[i] + (host - areas->area[i]);
	return host ? buffers->areas[1] : NULL; /* of a call of nothing */
}

ferryResult_t kills_place_send(const struct kills_place *place, const struct kills_buffers *buffers, int stream)
{
	const struct trial_buffers *host = buffers->host;
	ferryResult_t result = ferrySuccess;
	for (int i = 0; i < 2 && !result && place->gpu; i++) {
		if (!host->bytes[i])
			continue;
		memcpy(buffers->pinned[i], host->area[i], host->bytes[i]);
		result = gpu_copy(buffers->areas[i], buffers->pinned[i], host->bytes[i], place->streams[stream]);
	}
	return result;
}

ferryResult_t kills_place_fetch(const struct kills_place *place, const struct kills_buffers *buffers, int stream)
{
	const struct trial_buffers *host = buffers->host;
	if (!place->gpu || !host->bytes[1])
		return ferrySuccess;
	ferryResult_t result = gpu_copy(buffers->pinned[1], buffers->areas[1], host->bytes[1], place->streams[stream]);
	if (!result)
		result = gpu_wait(place->streams[stream]);
	memcpy(host->area[1], buffers->pinned[1], host->bytes[1]);
	return result;
}

ferryResult_t kills_place_wait(const struct kills_place *place, int stream)
{
	return place->gpu ? gpu_wait(place->streams[stream]) : ferryStreamSynchronize(place->streams[stream]);
}
