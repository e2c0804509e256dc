/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The figures that `ferry-perf limits` and `ferry-perf tune` measure of this machine, the file that keeps them, and the
 * costs that the planner takes from them. Written by ferry-perf alone, into FERRY_LIMITS, else
 * $XDG_CACHE_HOME/ferry/limits.json, else ~/.cache/ferry/limits.json; read by communicators and by ferry-perf. The
 * tables in limits.c are the file's only schema, for reading and writing.
 *
 * GB/s = 1e9 bytes/s; fields that end in _us are in microseconds; 0: not measured.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_LIMITS_H
#define FERRY_RANK_LIB_PROGRAM_LIMITS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

#define FERRY_LIMITS_GPUS    16
#define FERRY_LIMITS_WINDOWS 48
#define FERRY_LIMITS_LINKS   (FERRY_LIMITS_GPUS * (FERRY_LIMITS_GPUS - 1))
#define FERRY_LIMITS_COLLECTIVES 384 /* of several settings and numbers of ranks, 45 each */

struct cJSON;

/** GB/s; both ways at once where both are set. */
struct ferry_limits_rates {
	double d2h, h2d;
};

struct ferry_limits_gpu {
	char name[96], pci[32];
	int numa_node; /* -1: not known */
	struct ferry_limits_rates alone, both;
	double push; /* GB/s into the memory of all GPUs that it reaches, while every GPU does so; 0: it reaches none */
};

/** Copies by one GPU into another's memory, of a pair with peer access by the driver's word. */
struct ferry_limits_link {
	int from, to;
	double alone, both; /* GB/s in this direction, alone and while the other direction is busy, too */
	double overhead_us; /* what a copy of 1 MiB takes besides its bytes at `alone` */
	bool pcie;          /* no NVLinks: the driver reports no atomics */
};

/** Rates of so many GPUs at work together, each over so much host memory. */
struct ferry_limits_window {
	int gpus;
	uint64_t bytes, copy_bytes;
	struct ferry_limits_rates alone;  /* all D2H; all H2D */
	struct ferry_limits_rates both;
};

/** Copies of one GPU, by least squares over sizes: us = overhead + bytes / rate. */
struct ferry_limits_copy {
	double d2h_overhead_us, h2d_overhead_us, d2h, h2d;
	double enqueue_us; /* the call that enqueues a copy */
};

/** Microseconds of a call in a row of many, as `ferry-perf tune` measures: by NCCL, and by Ferry under NCCL's API. */
struct ferry_limits_collective {
	char settings[20]; /* ferry_nccl_settings, 16 hex digits */
	int ranks;
	char collective[16];
	uint64_t bytes; /* of a rank's larger buffer */
	double nccl_us, nccl_16_channels_us, ferry_us;
};

struct ferry_limits {
	char command[32], date[32], units[80], cpu[128];
	char no_gpu[256];   /* why no GPU was measured; "" if any was */
	char no_links[200]; /* why no copies between GPUs were measured; "" if they were */
	bool astray;        /* a copy between GPUs with peer access did not end, or did not arrive */
	bool quick;
	double seconds;
	int cores, cpus, numa_nodes;
	int cuda_driver; /* CUDA version that the driver has, such as 13000 */
	struct ferry_limits_copy copy;
	/* GB/s by PCIe from all GPUs of a NUMA node into those of another at once, of the slowest pair; 0: no such */
	double crossing;
	int ngpus, nwindows, nlinks, ncollectives;
	struct ferry_limits_gpu gpus[FERRY_LIMITS_GPUS];
	struct ferry_limits_window windows[FERRY_LIMITS_WINDOWS];
	struct ferry_limits_link links[FERRY_LIMITS_LINKS];
	struct ferry_limits_collective collectives[FERRY_LIMITS_COLLECTIVES]; /* the latest last */
};

/** The cost of moving a slice by a copy engine, and the rates at which the fabrics move a message. */
struct ferry_costs {
	uint32_t issue_ns; /* cost of a slice besides its bytes: enqueuing the copy, its fixed part, the handover */
	uint32_t link;     /* bytes per ns (GB/s) of one copy; at least 1 */
	bool measured;     /* on this machine; else on the machine of docs/lab/README.md */
	bool astray;       /* as in struct ferry_limits: the peer fabric is not used */
	/*
	 * GB/s of the slowest GPU while all are at work, 0: not measured. push: copies into the memory of all others;
	 * host: to and from the host, both ways at once.
	 */
	double push, host;
	/*
	 * What PCIe carries from a GPU into one of another NUMA node, and from all GPUs of a node into those of
	 * another, as parts of what it carries between two of one node. 0: not measured.
	 */
	double across, crossing;
};

/** Returns the file's name. Error: ferryInvalidArgument if the environment names no place, or one too long. */
ferryResult_t ferry_limits_path(char *path, size_t bytes);

/**
 * Reads the file; all zero, *found = false and ferrySuccess if there is none. A value that is missing, or of another
 * type, is 0. Error: ferryInvalidArgument with the file's name if ferry-perf did not write it, or if
 * FERRY_LIMITS names a file that cannot be read.
 */
ferryResult_t ferry_limits_load(struct ferry_limits *limits, bool *found);

/** Writes settings as the rows have them. */
void ferry_limits_print_settings(uint64_t settings, char text[20]);

/**
 * Replaces the rows of these settings and this number of ranks, the same in all of `rows`. Drops the oldest rows if
 * there is no room.
 */
void ferry_limits_replace(struct ferry_limits *limits, const struct ferry_limits_collective *rows, int count);

/** Returns the file's content, which the caller frees by cJSON_Delete; NULL without memory. */
struct cJSON *ferry_limits_json(const struct ferry_limits *limits);

/** Reads the costs to plan with. All ranks of a job must read the same. Errors: those of ferry_limits_load. */
ferryResult_t ferry_costs_read(struct ferry_costs *costs);

#endif
