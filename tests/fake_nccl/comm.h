/* SPDX-License-Identifier: Apache-2.0 */
/** The double's communicators and the work of groups. */
#ifndef FERRY_TESTS_FAKE_NCCL_COMM_H
#define FERRY_TESTS_FAKE_NCCL_COMM_H

#include "ipc/collective.h"
#include "orchestrator/nccl_types.h"
#include "tests/fake_nccl/clique.h"

#define COMM_REDOPS 16

struct fake_redop {
	bool made;
	ncclDataType_t type;
	ncclScalarResidence_t residence;
	void *scalar;
	uint64_t bits;
};

/* How a collective runs. */
struct fake_choice {
	int algorithm, protocol, channels; /* 0 channels: not asked for yet */
};

struct ncclComm {
	struct clique *clique;
	_Atomic int users; /* its handle, and work in streams, which outlives an abort */
	int rank, nranks, device;
	_Atomic int error; /* ncclCommGetAsyncError's */
	bool blocking;
	_Atomic bool ended; /* its handle is gone: it is used no more */
	struct ncclComm *next_dead;
	struct fake_redop redops[COMM_REDOPS];
	uint32_t connected; /* its collectives, and messages to and from each rank; by the thread that makes calls */
	_Atomic int graphs; /* calls in graphs that are not gone */
	_Atomic int late; /* FAKE_NCCL_SPLIT_LATE: how often it has been asked since a split */
	struct ncclComm *late_child, **late_where;
	bool tuned; /* a plugin has made `tuner` for it */
	void *tuner;
	struct fake_choice choice; /* of its last call; of the thread that makes calls */
};

/** One call, with what its reduction was when it was made. */
struct fake_op {
	enum ferry_collective collective;
	bool sends;
	const void *send;
	void *receive;
	size_t count;
	ncclDataType_t type;
	ncclRedOp_t op;
	struct fake_redop redop;
	int root;
	ncclComm_t comm;
	cudaStream_t stream;
	struct fake_choice choice;
};

/** For calls on a communicator that has ended: ends the process. */
void fake_comm_misused(void);

void fake_comm_hold(ncclComm_t comm);
/** The last one frees it. */
void fake_comm_drop(ncclComm_t comm);

/** Something that takes all ranks to come, run in a thread of its own at the group's end, or at once outside one. */
struct fake_job {
	ncclResult_t (*run)(struct fake_job *job);
};

/** Runs the job; it is freed. In a group its result is the group's. */
ncclResult_t fake_group_job(struct fake_job *job);

/** Runs the call, or keeps it for the group. */
ncclResult_t fake_group_op(const struct fake_op *op);

/** Does the calls of one communicator, in their order, the messages last and together. In any thread. */
void fake_transfer(const struct fake_op *ops, int n);

/** A tuner's context for a communicator that is joined, and its end. */
void fake_tuner_open(ncclComm_t comm);
void fake_tuner_close(ncclComm_t comm);

/** Asks how the calls of a group run; on a thread of its own if a communicator does not block. */
void fake_tuner_ask(struct fake_op *ops, int n);

/** Ends the process, loudly, where another rank's answer is different. */
void fake_tuner_compare(const struct fake_choice *mine, const struct fake_choice *other);

/** Puts function(argument) into the stream; false: the process has no such streams, so the caller has to run it. */
bool fake_stream_run(cudaStream_t stream, void (*function)(void *), void *argument);

/**
 * In a capture: `forget` comes when its graph is gone, and the function may run any number of times until then. False:
 * the stream is not captured.
 */
bool fake_stream_keep(cudaStream_t stream, void (*forget)(void *), void *argument);

/** As the real one connects GPUs, by calls that a capture of this thread forbids, and that end it. */
bool fake_stream_connect(void);

/** The device that is current in this thread. */
int fake_stream_device(void);

/** Where this process reaches what is at an address of its device. */
void *fake_stream_reach(const void *address);

#endif
