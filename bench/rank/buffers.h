/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The two buffers that a rank is measured on, in ordinary memory or a GPU's, and the stream that it gives to Ferry. One
 * pair per process, used by its one thread. What fails prints its reason, with the values, and returns false; but
 * missing host memory prints nothing.
 */
#ifndef FERRY_BENCH_BUFFERS_H
#define FERRY_BENCH_BUFFERS_H

#include "ferry.h"

#include <stdbool.h>

struct bench_buffers {
	const char *kind; /* as ferryConfig_t.device takes it */
	bool cuda;
	int ordinal; /* the GPU's */
	ferryStream_t stream;
	char *send, *receive; /* of `room` bytes each, once taken; NULL before */
	size_t room;
};

/** FERRY_DEVICE, else "cuda" where the process has a CUDA device, else "host". */
const char *bench_buffers_kind(void);

/** Opens that kind; "cuda": makes the primary context of device (local rank mod number of devices) current. */
bool bench_buffers_open(struct bench_buffers *buffers, const char *kind, int local_rank);

/** Takes two buffers of zeros; false if there is no room. */
bool bench_buffers_take(struct bench_buffers *buffers, size_t room);

bool bench_buffers_zero(struct bench_buffers *buffers, char *buffer, size_t bytes);

/** To or from host memory; nothing to do where both are the same address. Blocking. */
bool bench_buffers_copy(struct bench_buffers *buffers, char *to, const char *from, size_t bytes);

/** Waits for what is in the stream. */
bool bench_buffers_wait(struct bench_buffers *buffers);

/** Gives all back. */
void bench_buffers_close(struct bench_buffers *buffers);

#endif
