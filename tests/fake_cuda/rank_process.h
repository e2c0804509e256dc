/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A rank in a process of its own, over the double: the same program, started again, with a place (places.h), a
 * communicator and a graph at a time. It does what it is ordered to over a socket. Suites' main gives a lone argument
 * to rank_process_main.
 */
#ifndef FERRY_TESTS_RANK_PROCESS_H
#define FERRY_TESTS_RANK_PROCESS_H

#include "tests/fake_cuda/places.h"

#include <stdbool.h>
#include <sys/types.h>

enum rank_order {
	RANK_JOIN,    /* communicator and place */
	RANK_ROUNDS,  /* so many into the stream */
	RANK_GATHER,  /* one of the inputs to rank 0, without kernels around it */
	RANK_RING,    /* so many rounds of messages to the next rank, and from the one before */
	RANK_MESSAGE, /* rank 0's input to rank 1, without kernels around it */
	RANK_HOLD,    /* a kernel that runs until RANK_RELEASE */
	RANK_RELEASE,
	RANK_SETTLE, /* waits so many ms for the stream, then for an error of the communicator if `wanted` */
	/* a graph of so many calls, and the kernels around them; `wanted`: without those, which touch the buffers */
	RANK_CAPTURE,
	RANK_REPLAY,  /* so many times into the stream */
	RANK_FORGET,  /* destroys the graph */
	RANK_MOVE,    /* frees the place's buffers, and has others; a graph still names the first */
	RANK_THREADS, /* `number`: of this process, and `monitors`: of them Ferry's one */
	/* waits until its lanes sleep, and, if `wanted`, have copied from it what they had not before RANK_ROUNDS */
	RANK_REST,
	RANK_GUARD,    /* zeroes the output, and looks at it for so many ms: `wrong`, bytes that somebody writes */
	RANK_FOLLOW,   /* waits until it has handed over to the second router of that domain */
	RANK_REGISTER, /* the input, as long as the communicator is there */
	RANK_CHANNELS, /* so many rounds of channel_round into the stream; JOIN had `channels` */
	RANK_HEARD,    /* waits for the stream; `number`: such rounds, and `wrong`: 1 if any was */
	RANK_KERNELS,  /* `number`: calls that kernels have carried; -1: it has none */
	RANK_DESTROY,  /* the communicator; the place stays */
	RANK_ABORT,
	RANK_LEAVE /* the place, and whether all was used as the driver wants it: `number`, misuses */
};

struct rank_ordered {
	enum rank_order order;
	int number;
	bool wanted;
	/* JOIN */
	int rank, nranks, ordinal;
	size_t count;
	uint64_t channels; /* bytes */
	ferryUniqueId id;
};

struct rank_answer {
	ferryResult_t result; /* of the communicator's function */
	ferryResult_t error;  /* SETTLE: the communicator's */
	int number, monitors, milliseconds;
	bool settled;
	uint32_t round; /* SETTLE, settled: the place's */
	size_t wrong;
	char message[400];
};

struct rank_process {
	pid_t pid;
	int channel;
};

/** Starts one with these variables beside ours: "NAME=value ...", or NULL. */
struct rank_process rank_start(const char *variables);
/** Gives an order; rank_heard waits for its answer. Several ranks may be at work so. */
void rank_order(const struct rank_process *rank, struct rank_ordered order);
struct rank_answer rank_heard(const struct rank_process *rank);
struct rank_answer rank_tell(const struct rank_process *rank, struct rank_ordered order);
/** SIGKILL, and it is gone. */
void rank_kill(struct rank_process *rank);
/** LEAVE, without misuses, and its end. */
void rank_finish(struct rank_process *rank);

/** All of them: a communicator on these devices, a place each. */
void ranks_join(const struct rank_process *ranks, int nranks, const int *ordinals, size_t count);
/** The same order to all, and the answers: all must have succeeded. */
void ranks_tell(const struct rank_process *ranks, int nranks, struct rank_ordered order, struct rank_answer *answers);
/** So many rounds at each, which are right: as many in all as `total`. */
void ranks_round(const struct rank_process *ranks, int nranks, int rounds, uint32_t total);

int rank_process_main(int channel);

/** The stream goes on within a second, and the communicator says why, in these words among others. */
void rank_released(const struct rank_process *rank, const char *flags);

#endif
