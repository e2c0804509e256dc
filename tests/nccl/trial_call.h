/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One call of a random program (nccl_trials): drawn from numbers that all ranks share, its input written, issued by the
 * names that come first in the process, and its output compared with what arithmetic says. All values are small even
 * integers, so that sums, products and averages of two are exact in every type, whichever fabric adds them up.
 */
#ifndef FERRY_TESTS_TRIAL_CALL_H
#define FERRY_TESTS_TRIAL_CALL_H

#include "tests/fake_cuda/runtime.h"

#include <stdbool.h>
#include <stdint.h>

#define TRIAL_RANKS 2

enum trial_kind { /* in the order in which they are drawn */
	TRIAL_ALLREDUCE, TRIAL_ALLGATHER, TRIAL_REDUCESCATTER, TRIAL_BROADCAST, TRIAL_REDUCE, TRIAL_ALLTOALL,
	TRIAL_GATHER, TRIAL_SCATTER, TRIAL_MESSAGES, TRIAL_KINDS
};

/** NCCL's functions, and the runtime's that its double has not got (NULL). */
struct trial_names {
#define NCCL_VALUE(since, type, name, parameters, arguments) type(*name) parameters;
#include "orchestrator/functions.def"
	int (*stream_begin_capture)(cudaStream_t stream, int mode);
	int (*stream_end_capture)(cudaStream_t stream, void **graph);
	int (*graph_instantiate)(void **executable, void *graph, unsigned long long flags);
	int (*graph_launch)(void *executable, cudaStream_t stream);
	int (*graph_exec_destroy)(void *executable);
	int (*graph_destroy)(void *graph);
};

/** Fills it in. False: there is no NCCL. */
bool trial_names_find(struct trial_names *names);

/** A communicator as a rank has it: which of the world's ranks are its members. */
struct trial_comm {
	ncclComm_t handle;
	int rank;
	int members[TRIAL_RANKS];
};

/** What all ranks draw alike, and a rank's buffers for it: each of TRIAL_RANKS blocks of `most` bytes. */
struct trial_call {
	enum trial_kind kind;
	ncclDataType_t type;
	ncclRedOp_t op; /* one of NCCL's own, or drawn as premulsum: */
	bool premul;
	int root;
	size_t count;
	uint64_t salt;
	void *in, *out; /* on the device */
	bool pending;   /* issued, and not compared yet */
	const struct trial_comm *comm;
	struct trial_comm as_made; /* the communicator, should it end before the comparison */
};

unsigned trial_draw(uint64_t *random, unsigned most);

void trial_call_draw(struct trial_call *call, uint64_t *random, size_t most);

/** Writes the input. A CUDA error, or 0. scratch: of the host, as long as a buffer. */
int trial_call_fill(const struct trial_call *call, void *scratch, size_t most);

/** Issues it. Into another buffer than its own: what is replayed does the same again. */
ncclResult_t trial_call_issue(const struct trial_names *names, struct trial_call *call, cudaStream_t stream);

/** What it is, for people. */
void trial_call_print(const struct trial_call *call, char *text, size_t bytes);

/** After its stream has come to the end. "" or what is wrong. */
const char *trial_call_compare(const struct trial_call *call, void *scratch, size_t most);

#endif
