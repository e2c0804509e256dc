/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of `ferry-perf limits`: what is measured, the clock that all of it shares, and who measures what. The command's
 * thread owns struct limits; measuring threads write to their own counts alone and are joined before those are read.
 *
 * Rates are bytes counted in a few equal intervals of one continuous run, all threads against one clock: nobody waits for
 * the slowest, nothing starts cold, and the median of the intervals is a median of repetitions.
 */
#ifndef FERRY_BENCH_LIMITS_RUN_H
#define FERRY_BENCH_LIMITS_RUN_H

#include "ipc/layout.h"
#include "router/reduce/reduce.h"

#define LIMITS_MAX_GPUS      16
#define LIMITS_MAX_WINDOWS   48 /* rows: up to 4 numbers of GPUs times windows */
#define LIMITS_MAX_SIZES     32
#define LIMITS_MAX_PASSES    48
#define LIMITS_MAX_INTERVALS 8
#define LIMITS_BUFFER        (256ull << 20) /* host memory of each GPU: more than caches hold, with several GPUs at least */

/** GB/s = 1e9 bytes/s; both ways at once where both are set. */
struct limits_rates {
	double d2h, h2d;
};

struct limits_gpu {
	char name[96], pci[32];
	int numa_node; /* -1: not known */
	struct limits_rates alone, both;
};

/** The first `gpus` GPUs at work together, each over so much host memory. */
struct limits_window {
	int gpus;
	uint64_t bytes, copy_bytes;
	struct limits_rates alone;  /* all D2H; all H2D */
	struct limits_rates both;   /* each GPU in its own window */
	struct limits_rates gather; /* H2D of what the other GPUs' D2H has just written, each written line read gpus - 1 times */
};

/** Copies of one size back to back on one GPU. */
struct limits_size {
	uint64_t bytes;
	int streams;            /* that the copies alternate over */
	double d2h_us, h2d_us;  /* per copy */
};

/** Least squares over the sizes on one stream: us = overhead + bytes / rate. */
struct limits_copy {
	double d2h_overhead_us, h2d_overhead_us, d2h_gbps, h2d_gbps;
	double enqueue_us;      /* the call that enqueues a copy */
};

struct limits_flags {
	double round_trip_us;   /* host writes, the GPU's wait ends, the GPU writes, the host sees it */
	double enqueue_us;      /* the call that enqueues one memory operation */
};

/** A pass of cores over memory. */
struct limits_pass {
	bool copy;              /* memcpy instead of the reduction of 4 f32 sources */
	enum ferry_store store;
	int threads;
	bool cached;
	uint64_t working_set;   /* bytes of all threads, sources and result */
	double gbps;            /* of result */
};

struct limits {
	bool quick;
	char date[32], cpu[128], no_gpu[256]; /* no_gpu: why none was measured; "" if they were */
	int cpus, cores, numa_nodes;
	int driver;             /* CUDA version that the driver has, such as 13000 */
	double seconds;
	struct ferry_layout layout;
	int ngpus, nwindows, nsizes, npasses;
	struct limits_gpu gpus[LIMITS_MAX_GPUS];
	struct limits_window windows[LIMITS_MAX_WINDOWS];
	struct limits_size sizes[LIMITS_MAX_SIZES];
	struct limits_pass passes[LIMITS_MAX_PASSES];
	struct limits_copy copy;
	struct limits_flags flags;
};

/* ---- the clock ---- */

struct limits_schedule {
	double begin_us, each_us; /* the first interval's start, and how long each is */
	int intervals;
};

struct limits_count {
	double bytes[LIMITS_MAX_INTERVALS]; /* completed in each */
};

/** From now on: a moment to warm up, then the intervals. */
struct limits_schedule limits_schedule_now(const struct limits *limits);
double limits_schedule_end_us(const struct limits_schedule *schedule);
void limits_count_add(struct limits_count *count, const struct limits_schedule *schedule, double now_us, double bytes);
/** Adds one count to another. */
void limits_count_join(struct limits_count *sum, const struct limits_count *count);
/** GB/s, the median of the intervals. */
double limits_rate(const struct limits_count *count, const struct limits_schedule *schedule);
double limits_median(double *values, int count);

/** limits.c: what is being measured now, on stderr if that is a terminal. */
void limits_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** limits_cpu.c: names and sizes of this machine, then memcpy and the reduction. */
ferryResult_t limits_find_machine(struct limits *limits);
ferryResult_t limits_measure_cpu(struct limits *limits);

/** limits_gpu.c: all about GPUs, at most `most` of them (0: all). Without a driver or a device: success, and no_gpu says why. */
ferryResult_t limits_measure_gpus(struct limits *limits, int most);

/** limits_output.c */
void limits_print(const struct limits *limits);
ferryResult_t limits_write(const struct limits *limits, const char *path);

#endif
