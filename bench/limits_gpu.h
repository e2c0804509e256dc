/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A GPU as `ferry-perf limits` drives it: its own thread while something runs, two streams each way, and host memory of the
 * kind that Ferry's arenas are made of. limits_gpu.c opens and closes ports and runs patterns of copies over them;
 * limits_latency.c measures fixed costs on one of them.
 */
#ifndef FERRY_BENCH_LIMITS_GPU_H
#define FERRY_BENCH_LIMITS_GPU_H

#include "bench/limits_run.h"
#include "router/copy/cuda_driver.h"

#include <stdatomic.h>

#define LIMITS_STREAMS 2
#define LIMITS_DEPTH   4 /* copies that a stream holds: it never runs dry while the thread looks at the others */

/* One direction of one GPU. Only the port's thread touches it; the command reads `count` after joining that. */
struct limits_way {
	CUstream streams[LIMITS_STREAMS];
	CUevent events[LIMITS_STREAMS][LIMITS_DEPTH];
	CUdeviceptr memory;                     /* LIMITS_BUFFER on the GPU */
	uint64_t issued;                        /* copies of all streams */
	uint64_t put[LIMITS_STREAMS], taken[LIMITS_STREAMS]; /* copies of each: begun, seen completed */
	struct limits_count count;
};

struct limits_port {
	int index;
	const struct ferry_cuda_driver *cuda;
	CUdevice device;
	CUcontext context;
	bool retained, registered;
	char *host;                             /* LIMITS_BUFFER of shared memory */
	struct limits_port *ports;              /* all of them, for what crosses */
	struct limits_way up, down;             /* D2H, H2D */
	struct limits_gpu *facts;
	ferryResult_t result;                   /* of the port's thread */
	char message[512];
};

/** limits_latency.c: fills limits->sizes, copy and flags from one GPU, in the caller's thread. */
ferryResult_t limits_measure_latency(struct limits_port *port, struct limits *limits);

/** Makes the port's context current in the calling thread. */
ferryResult_t limits_port_enter(struct limits_port *port);

/** A copy of `bytes`, D2H (up) or not, asynchronous. */
CUresult limits_port_copy(const struct limits_port *port, bool up, CUstream stream, char *host, uint64_t offset, uint64_t bytes);

#endif
