/* SPDX-License-Identifier: Apache-2.0 */
#include "router/copy/host.h"

#include "ipc/environment.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/reduce/reduce.h"

#include <stdlib.h>
#include <string.h>

#define STREAM_LEAST (2u << 20) /* bytes of a result from which on it is written past the cache */
#define SLOWEST_LINK 1e-6 /* GB/s */
#define FASTEST_LINK 1e5
#define PENDING 128 /* at least as many copies as a lane may have outstanding */

/* When each copy of a queue will have crossed the modelled link. */
struct host_queue {
	uint64_t due[PENDING];
	uint64_t finished;
};

static ferryResult_t register_memory(struct ferry_copier *copier, void *memory, size_t bytes)
{
	(void)copier, (void)memory, (void)bytes;
	return ferrySuccess;
}

static void unregister_memory(struct ferry_copier *copier, void *memory)
{
	(void)copier, (void)memory;
}

static ferryResult_t read_link(struct ferry_host_copier *copier)
{
	const char *text = ferry_env("FERRY_HOST_LINK"), *next = text;
	while (next) {
		char *end;
		int direction = !strncmp(next, "d2h=", 4) ? FERRY_UP : !strncmp(next, "h2d=", 4) ? FERRY_DOWN : -1;
		double speed = direction < 0 ? 0 : strtod(next + 4, &end);
		if (direction < 0 || end == next + 4 || !(speed >= SLOWEST_LINK && speed <= FASTEST_LINK) ||
		    (*end && *end != ',') || copier->seconds_per_byte[direction] > 0)
			return ferry_fail(ferryInvalidArgument,
			                  "FERRY_HOST_LINK=%s: expected d2h=GBPS,h2d=GBPS, each once and from %g to "
			                  "%g, at \"%s\"", text,
			                  SLOWEST_LINK, FASTEST_LINK, next);
		copier->seconds_per_byte[direction] = 1e-9 / speed;
		next = *end ? end + 1 : NULL;
	}
	return ferrySuccess;
}

static ferryResult_t queue_open(struct ferry_copier *copier, enum ferry_direction direction,
                                struct ferry_copy_queue *queue)
{
	struct host_queue *backend = calloc(1, sizeof *backend);
	if (!backend)
		return ferry_fail(ferrySystemError, "no memory for a copy queue");
	*queue = (struct ferry_copy_queue){copier, direction, 0, backend};
	return ferrySuccess;
}

static void queue_close(struct ferry_copy_queue *queue)
{
	free(queue->backend);
	queue->backend = NULL;
}

/* The link serves one copy after another: ours crosses once it is free. */
static uint64_t reserve_link(struct ferry_host_copier *copier, enum ferry_direction direction, size_t bytes)
{
	double cost = copier->seconds_per_byte[direction] * (double)bytes * 1e9;
	if (cost == 0)
		return 0;
	uint64_t now = ferry_now_ns(), due;
	uint64_t busy = atomic_load_explicit(&copier->busy_until[direction], memory_order_relaxed);
	do
		due = (busy > now ? busy : now) + (uint64_t)cost;
	while (!atomic_compare_exchange_weak_explicit(&copier->busy_until[direction], &busy, due, memory_order_relaxed,
	                                              memory_order_relaxed));
	return due;
}

static ferryResult_t copy(struct ferry_copy_queue *queue, void *destination, const void *source, size_t bytes,
                          uint64_t whole, bool crosses)
{
	struct ferry_host_copier *copier = (struct ferry_host_copier *)queue->copier;
	struct host_queue *backend = queue->backend;
	backend->due[queue->started++ % PENDING] = crosses ? reserve_link(copier, queue->direction, bytes) : 0;
	/*
	 * Up: staging is read again soon and should stay cached. Down and within: a large result leaves the cache
	 * before anybody reads it, so it goes past it, without first reading the lines that it overwrites
	 * (docs/lab/cpu-buffers.md).
	 */
	bool past_cache = queue->direction == FERRY_DOWN && whole >= STREAM_LEAST;
	ferry_copy(destination, source, bytes, past_cache ? FERRY_STORE_STREAM : FERRY_STORE_ORDINARY);
	return ferrySuccess;
}

static uint64_t finished(struct ferry_copy_queue *queue)
{
	struct host_queue *backend = queue->backend;
	uint64_t now = 0;
	while (backend->finished < queue->started) {
		uint64_t due = backend->due[backend->finished % PENDING];
		if (due && !now)
			now = ferry_now_ns();
		if (due > now)
			break;
		backend->finished++;
	}
	return backend->finished;
}

static int64_t wait_us(struct ferry_copy_queue *queue)
{
	struct host_queue *backend = queue->backend;
	uint64_t due = backend->due[backend->finished % PENDING], now = ferry_now_ns();
	return due > now + 1000 ? (int64_t)((due - now) / 1000) : 1;
}

static const struct ferry_copy_ops host_ops = {.kind = "host",
                                               .register_memory = register_memory,
                                               .unregister_memory = unregister_memory,
                                               .queue_open = queue_open,
                                               .queue_close = queue_close,
                                               .copy = copy,
                                               .finished = finished,
                                               .wait_us = wait_us};

ferryResult_t ferry_host_copier_open(struct ferry_host_copier *copier)
{
	*copier = (struct ferry_host_copier){.base.ops = &host_ops};
	return read_link(copier);
}
