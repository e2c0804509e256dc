/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of ferry-perf: options, one row's measurement, its output, and the peer to compare with. One thread per process.
 */
#ifndef FERRY_BENCH_PERF_H
#define FERRY_BENCH_PERF_H

#include "bench/trial.h"

#include <stdio.h>

struct perf_options {
	enum ferry_collective collective;
	uint64_t least, most; /* bytes, as nccl-tests counts them */
	uint32_t factor;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root;
	uint32_t iterations; /* 0: as many as fit about half a second, 5 to 200 */
	uint32_t warmups;
	bool check;
	char *program;       /* text, or NULL */
	const char *json;    /* file name, or NULL */
	const char *peer;    /* "mpi", or NULL */
	int ranks, domains;  /* without a launcher; 0: ferryrun's default */
};

/** What one collective call needs, in elements of the type. */
struct perf_call {
	enum ferry_collective collective;
	const void *send;
	void *receive;
	size_t count; /* as the API counts */
	const size_t *sendcounts, *senddispls, *recvcounts, *recvdispls;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root, rank, nranks;
};

/** Another library that does the same work on the same buffers, blocking. */
struct perf_peer {
	const char *name;
	/** NULL on success, else why not. */
	const char *(*open)(int *rank, int *nranks);
	const char *(*supports)(const struct perf_call *call);
	void (*run)(const struct perf_call *call);
	void (*close)(void);
};

struct perf_timing {
	double median_us, low_us, high_us; /* quartiles */
};

struct perf_row {
	uint64_t bytes, count; /* what nccl-tests prints: bytes of the larger buffer, elements as the API counts */
	bool in_place;
	struct perf_timing time, peer_time;
	double algbw, busbw; /* GB/s = 1e9 bytes/s */
	long long wrong;     /* elements; -1: not checked */
};

struct perf_run {
	const struct perf_options *options;
	ferryComm_t comm;
	int rank, nranks, ndomains;
	ferryRedOp_t op; /* options->op, or the reduction created for premulsum */
	const struct perf_peer *peer;
	char *send, *receive; /* room for the largest size of any collective */
};

/** perf_measure.c: one row of about so many bytes; false (with a message printed) if a call failed. */
bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row);
/** Bytes that either buffer may need. */
size_t perf_room(const struct perf_options *options, int nranks);
/** Why the peer cannot do this row's work; NULL if it can. */
const char *perf_peer_refuses(const struct perf_run *run);

/** perf_output.c */
void perf_print_head(const struct perf_run *run);
void perf_print_rows(const struct perf_run *run, const struct perf_row *out_of_place, const struct perf_row *in_place);
bool perf_write_json(const struct perf_run *run, const struct perf_row *rows, size_t count);
void perf_progress(const struct perf_run *run, uint64_t bytes, uint32_t done, uint32_t all);

/** reduce_bench.c: `ferry-perf reduce`. Returns the exit code. */
int ferry_bench_reduce(int argc, char **argv);

/** Sorts values; median and quartiles. */
struct perf_timing perf_summarize(double *values, size_t count);
double perf_now_us(void);

#endif
