/* SPDX-License-Identifier: Apache-2.0 */
/** ferry-perf's command line, as it was given. Written by options.c before anything is measured. */
#ifndef FERRY_BENCH_OPTIONS_H
#define FERRY_BENCH_OPTIONS_H

#include "bench/trial/skew.h"
#include "ipc/collective.h"

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
	char *program;       /* text, or NULL */
	const char *program_file;
	const char *json;    /* file name, or NULL */
	const char *peer;    /* "mpi", "nccl" or NULL */
	bool sweep;          /* NCCL's settings, as HyLink swept them; else its defaults alone */
	bool sweep_given;    /* the user said which */
	const char *skew_given; /* as the user wrote it, or NULL */
	const struct ferry_skew *skew; /* alltoallv; NULL: none; from main, which knows how many ranks there are */
	int ranks, domains;  /* without a launcher; 0: one per GPU or per CPU; ferryrun's default */
	const char *command; /* the command line, for the record */
};

/** Ends the process where the command line is wrong or asks for help. May shorten it. */
void perf_options_read(int *argc, char **argv, struct perf_options *parsed);

#endif
