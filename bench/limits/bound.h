/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The rate that no host path can exceed, from what `ferry-perf limits` has measured of this machine. Printed by
 * ferry-perf beside a collective's rate; used in one thread.
 *
 * A collective over host memory moves `up` bytes from GPUs to the host and `down` bytes back. With S the size that
 * nccl-tests prints and n GPUs (a rank each), and the busiest GPU's own share behind it:
 *
 *                      up           down         busiest GPU: up, down
 *   allreduce          n S          n S          S, S
 *   allgather          S            (n-1) S      S/n, (n-1) S/n        (its own block is copied on the GPU)
 *   reducescatter      n S          S            S, S/n
 *   broadcast          S            (n-1) S      S or S                (the root sends, the others receive)
 *   reduce             n S          S            S, S
 *   gather             (n-1) S/n    (n-1) S/n    - or (n-1) S/n        (only the root receives)
 *   scatter            (n-1) S/n    (n-1) S/n    (n-1) S/n or -
 *   alltoall           (n-1) S      (n-1) S      (n-1) S/n, (n-1) S/n
 *   sendrecv (a ring)  n S          n S          S, S
 *
 * Data cannot flow faster than the copy engines together, the memory behind them or the busiest link:
 *
 *   flow = max(up / D, down / H, (up + down) / B, link up / d, link down / h, (link up + link down) / b)
 *
 * D: all n GPUs copying to the host; H: from the host, the faster of reading lines that nobody wrote and lines that D2H
 * has just written (those are still in the cache); B: both ways at once, in whatever mix was faster. Each is the best
 * over the windows of host memory measured, since staging that stays in the cache is up to twice as fast. d, h, b: the
 * same of one GPU alone: the slowest of them where all do the same, the fastest for a root, which may be any.
 *
 * Before the first byte moves the stream must reach the host and a copy must start; after the last one a copy must end
 * and the host must reach the stream. That is serial with the flow and costs at least a round trip of flags and the
 * fixed part of one copy each way:
 *
 *   time >= round trip + D2H overhead + H2D overhead + flow,    algorithm bandwidth = S / time
 *
 * What the bound leaves out: the sum on the CPU, the fill and drain of the pipeline, waking threads. And it is made of
 * medians: a run on a quieter machine may exceed it by a few percent.
 */
#ifndef FERRY_BENCH_BOUND_H
#define FERRY_BENCH_BOUND_H

#include "ipc/collective.h"

/**
 * The bound on algorithm bandwidth in GB/s = 1e9 bytes/s of `bytes` (S above) on nranks GPUs. The file is read at the
 * first call. 0 where nothing is known: no such file, fewer GPUs measured than ranks, one rank, alltoallv.
 * Where only more GPUs were measured than ranks are used, their sums serve: the bound stays one.
 */
double bound_algbw(enum ferry_collective collective, int nranks, uint64_t bytes);

/** Forgets what was read, so that the next bound_algbw reads the file again. For tests. */
void bound_forget(void);

#endif
