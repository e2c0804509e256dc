/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What ferry-perf (perf_nccl.c) and its NCCL children (nccl_peer.c) say to each other: over a SOCK_SEQPACKET socket, one
 * order, one answer. Both are of one build and on one machine. A child ends when the socket closes.
 */
#ifndef FERRY_BENCH_NCCL_ORDER_H
#define FERRY_BENCH_NCCL_ORDER_H

#include "ipc/collective.h"
#include "rank-lib/device/export.h"

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
	int32_t rank, nranks;                                /* NCCL_OPEN */
	struct ferry_export send_buffer, receive_buffer;     /* NCCL_OPEN; on the GPU that the child is to use */
	char id[128];                                        /* NCCL_JOIN */
	uint32_t collective, type, op, root;                 /* NCCL_RUN, in Ferry's values; op ferryNumOps: premulsum */
	uint32_t lead, pause_us, calls;                      /* as struct perf_sampling has them */
	uint64_t count, scalar;
	struct nccl_place send, receive;
	uint64_t sendcounts[FERRY_MAX_RANKS], senddispls[FERRY_MAX_RANKS]; /* alltoallv, in elements */
	uint64_t recvcounts[FERRY_MAX_RANKS], recvdispls[FERRY_MAX_RANKS];
};

struct nccl_answer {
	uint32_t failed;
	char message[252]; /* why */
	char id[128];      /* NCCL_MAKE_ID */
	int32_t version;   /* NCCL_OPEN */
	double us;         /* NCCL_RUN: per timed call */
};

#endif
