/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The messages between ferry-perf (nccl.c) and its NCCL children (nccl_child.c): over a SOCK_SEQPACKET socket, one
 * order, one answer. Both are of one build and on one machine. A child ends when the socket closes.
 */
#ifndef FERRY_BENCH_NCCL_ORDER_H
#define FERRY_BENCH_NCCL_ORDER_H

#include "bench/peers/peer.h"
#include "bench/rank/gpu.h"

enum nccl_order_kind {
	NCCL_OPEN,    /* opens NCCL, the GPU and the buffers */
	NCCL_MAKE_ID, /* rank 0's: names a communicator */
	NCCL_JOIN,    /* joins it */
	NCCL_RUN      /* calls and waits */
};

enum { NCCL_NO_BUFFER, NCCL_SEND_BUFFER, NCCL_RECEIVE_BUFFER };

/* A place in the parent's buffers. */
struct nccl_place {
	uint32_t buffer;
	uint64_t offset;
};

struct nccl_order {
	uint32_t kind;
	int32_t rank, nranks;                          /* NCCL_OPEN */
	struct gpu_shared send_buffer, receive_buffer; /* NCCL_OPEN; on the GPU that the child is to use */
	char id[128];                                  /* NCCL_JOIN */
	uint32_t collective, type, op, root;           /* NCCL_RUN, in Ferry's values; op ferryNumOps: premulsum */
	uint64_t count, scalar;
	struct peer_sampling how;
	struct nccl_place send, receive;
	struct ferry_trial_counts counts; /* alltoallv, in elements */
};

struct nccl_answer {
	uint32_t failed;
	char message[252]; /* why */
	char id[128];      /* NCCL_MAKE_ID */
	int32_t version;   /* NCCL_OPEN */
	double us;         /* NCCL_RUN: per timed call */
};

#endif
