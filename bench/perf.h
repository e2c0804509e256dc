/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The parts of ferry-perf: options, one row's measurement, its output, and what to compare with: MPI, or NCCL in one or many
 * settings. One thread per process.
 */
#ifndef FERRY_BENCH_PERF_H
#define FERRY_BENCH_PERF_H

#include "bench/perf_cpu.h"
#include "bench/perf_memory.h"
#include "bench/trial.h"

#include <stdio.h>

#define PERF_MOST_SETTINGS 16
#define PERF_EXIT_USAGE    64
#define PERF_TYPES         "i8 u8 i32 u32 i64 u64 f16 bf16 f32 f64 f8e4m3 f8e5m2" /* what -d takes */

struct perf_options {
	enum ferry_collective collective;
	uint64_t least, most; /* bytes, as nccl-tests counts them */
	uint32_t factor;
	ferryDataType_t type;
	ferryRedOp_t op;
	int root;
	const char *op_given, *root_given; /* as the user wrote them; NULL: the defaults */
	uint32_t iterations; /* samples per row; 0: as many as fit about a quarter of a second */
	uint32_t warmups;
	uint32_t pause_us;   /* before each timed call, which is then alone in its sample; 0: none */
	bool check;
	bool cpu;            /* print the cores used */
	char *program;       /* text, or NULL */
	const char *program_file;
	const char *json;    /* file name, or NULL */
	const char *peer;    /* "mpi", "nccl" or NULL */
	bool sweep;          /* NCCL's settings, as HyLink swept them; else its defaults alone */
	bool sweep_given;    /* the user said which */
	int ranks, domains;  /* without a launcher; 0: one per GPU or 4; ferryrun's default */
	const char *command; /* the command line, for the record */
};

/** What a row's samples are, of any side; the same on all ranks. */
struct perf_sampling {
	uint32_t lead;     /* calls that are not timed, waited for */
	uint32_t pause_us; /* then all sides' callers compute for so long, and make no call */
	uint32_t calls;    /* timed, put into the stream back to back and waited for once */
	uint32_t rounds;   /* so many samples */
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
	/** NULL if it can do such a call, else why not; before open, too. */
	const char *(*supports)(const struct perf_call *call);
	void (*run)(const struct perf_call *call);
	void (*close)(void);
};

struct perf_timing {
	double median_us, low_us, high_us; /* quartiles; all 0: not measured */
};

struct perf_row {
	uint64_t bytes, count; /* what nccl-tests prints: bytes of the larger buffer, elements as the API counts */
	bool in_place;
	uint32_t calls, samples; /* calls per sample, samples of Ferry */
	struct perf_timing time;
	struct perf_timing others[PERF_MOST_SETTINGS]; /* the other library's, a setting each */
	uint32_t other_samples[PERF_MOST_SETTINGS];
	int best;                   /* of the others; -1: none */
	double algbw, busbw;        /* GB/s = 1e9 bytes/s */
	double limit_algbw;         /* 0: unknown */
	double cores, engine_cores; /* busy during Ferry's samples; the second without the ranks' calling threads */
	double workers;             /* of routers, at work while a call was under way; negative: unknown */
	long long wrong;            /* elements; -1: not checked */
};

struct perf_nccl;

struct perf_run {
	const struct perf_options *options;
	ferryComm_t comm;    /* what is measured */
	ferryComm_t control; /* of the same ranks, on the host: meetings, and figures over the ranks */
	int rank, nranks, ndomains;
	ferryRedOp_t op; /* options->op, or the reduction created for premulsum */
	struct perf_memory memory;
	const struct perf_peer *peer; /* MPI, or NULL */
	struct perf_nccl *nccl;       /* NCCL, or NULL */
	struct perf_routers routers;
	char *send, *receive; /* room for the largest size of any collective */
	size_t room;
	bool failed_alone; /* the other ranks may be waiting for something else than this rank */
};

/** perf_options.c: the command line; ends the process where it is wrong or asks for help. May shorten it. */
void perf_options_read(int *argc, char **argv, struct perf_options *parsed);

/** perf_measure.c: one row of about so many bytes; false (with a message printed) if a call failed. */
bool perf_measure(struct perf_run *run, uint64_t bytes, bool in_place, struct perf_row *row);
/** Element-wise maximum or sum over the ranks; with one element also a barrier. */
bool perf_over_ranks(struct perf_run *run, double *values, size_t count, ferryRedOp_t op);
/** How many settings of another library are measured beside Ferry. */
unsigned perf_others(const struct perf_run *run);

/** perf_work.c: bytes that either buffer may need. */
size_t perf_room(const struct perf_options *options, int nranks);
/** The smallest size, in bytes, that has an element for everybody. */
uint64_t perf_work_least(const struct perf_options *options, int nranks);
/** Why the peer cannot do the work of the options' largest row with run->nranks ranks; NULL if it can. Needs no buffers. */
const char *perf_peer_refuses(const struct perf_run *run);

/** perf_output.c */
void perf_print_head(const struct perf_run *run);
void perf_print_rows(const struct perf_run *run, const struct perf_row *out_of_place, const struct perf_row *in_place);
void perf_print_refusals(const struct perf_run *run);
/** Standard output so far, for who reads along. */
void perf_flush(void);
/** Whether all that was printed has arrived; false with a message printed. For the end of a command of this name. */
bool perf_printed(const char *command);
void perf_progress(const struct perf_run *run, uint64_t bytes, const char *what, uint32_t done, uint32_t all);

/** perf_json.c. Whether a file of this name ("-": standard output) can be written, asked before the measurement and not after
 * it; else errno says why. */
bool perf_can_write(const char *name);
/** Where the record ("-") goes to standard output, what is printed goes to standard error from here on. false: errno says why. */
bool perf_print_beside(const char *json);
/**
 * Puts text and a newline into the file, which has the old text or the new one whole at any time, also when this process is
 * killed. A device, a pipe or "-" (after perf_print_beside) gets the last text alone. false: errno says why.
 */
bool perf_write_file(const char *name, const char *text, bool last);
/** The record of the rows so far; false (with a message printed) if it could not be written. */
bool perf_write_json(const struct perf_run *run, const struct perf_row *rows, size_t count, bool complete);

/** reduce_bench.c: `ferry-perf reduce`. Returns the exit code. */
int ferry_bench_reduce(int argc, char **argv);

/** Keeps this thread busy for so long, as an application that computes. */
void perf_pause(uint32_t us);

/** Sorts values; median and quartiles. */
struct perf_timing perf_summarize(double *values, size_t count);
double perf_now_us(void);

#endif
