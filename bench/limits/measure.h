/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of `ferry-perf limits`, and the file that measures each. The command's thread owns the figures, which are
 * those of the file (rank-lib/program/limits.h); on a failure those measured before it stay.
 */
#ifndef FERRY_BENCH_LIMITS_MEASURE_H
#define FERRY_BENCH_LIMITS_MEASURE_H

#include "rank-lib/program/limits.h"

struct port;

/** machine.c: names and sizes of this machine. */
ferryResult_t limits_find_machine(struct ferry_limits *limits);

/** gpu.c: all about GPUs, at most `most` of them (0: all). Without a driver or a device: success, and no_gpu says why.
 */
ferryResult_t limits_measure_gpus(struct ferry_limits *limits, int most);

/** copies.c: fills limits->copy from one GPU, in the caller's thread. */
ferryResult_t limits_measure_copies(struct port *port, struct ferry_limits *limits);

/**
 * links.c: fills limits->links and the GPUs' `push`, from open ports. One GPU, or none that reaches another: nothing to
 * measure.
 */
ferryResult_t limits_measure_links(struct port *ports, struct ferry_limits *limits);

#endif
