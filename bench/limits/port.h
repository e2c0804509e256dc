/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A GPU as `ferry-perf limits` drives it: its own thread while something runs, two streams each way, and host memory of
 * the kind that Ferry's arenas are made of. gpu.c runs patterns of copies over ports; copies.c measures what a
 * copy costs on one of them, links.c what each pushes into the memory of others.
 */
#ifndef FERRY_BENCH_PORT_H
#define FERRY_BENCH_PORT_H

#include "bench/limits/rate.h"
#include "bench/rank/gpu.h"
#include "rank-lib/program/limits.h"

#define PORT_STREAMS 2
#define PORT_DEPTH   4 /* copies that a stream holds: it never runs dry while the thread looks at the others */
#define PORT_BUFFER  (256ull << 20) /* host memory of each GPU: more than caches hold, with several GPUs at least */

/* One direction of one GPU. Only the port's thread touches it; the command reads `count` after joining that. */
struct port_way {
	CUstream streams[PORT_STREAMS];
	CUevent events[PORT_STREAMS][PORT_DEPTH];
	CUdeviceptr memory;                              /* PORT_BUFFER on the GPU */
	uint64_t issued;                                 /* copies of all streams */
	uint64_t put[PORT_STREAMS], taken[PORT_STREAMS]; /* copies of each: begun, seen completed */
	struct rate_count count;
};

struct port {
	int index;
	CUcontext context; /* NULL: not opened */
	bool registered;
	bool stuck;      /* a copy of it has not ended: it is not closed, as that would wait for it */
	char *host;              /* PORT_BUFFER of shared memory */
	struct port_way d2h, h2d; /* D2H, H2D */
	uint32_t peers, pcie;     /* bit p: its copies reach port p's memory directly; by PCIe. links.c writes both */
	struct ferry_limits_gpu *facts;
	ferryResult_t result; /* of the port's thread */
	char message[512];
};

/** Opens the port, in a thread of its own, which it binds to the GPU's node. What it has made stays after an error. */
ferryResult_t port_open(struct port *port);

/** Gives back whatever port_open reached. The process ends soon: what the driver says to this no longer matters. */
void port_close(struct port *port);

/** Makes the port's context current in the calling thread. */
ferryResult_t port_enter(struct port *port);

/**
 * Opens the way from one port into the other's memory, both of them open. *reached: there is one, by what the driver
 * says; *atomics: and it has atomics, which PCIe has not. Leaves the port's context current.
 */
ferryResult_t port_reach(struct port *from, const struct port *to, bool *reached, bool *atomics);

/** A copy of `bytes`, D2H (up) or not, asynchronous. */
CUresult port_copy(const struct port *port, bool d2h, CUstream stream, char *host, uint64_t offset, uint64_t bytes);

#endif
