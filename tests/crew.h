/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks on host devices in processes of their own, which do as they are told over a socket; for suites in which ranks
 * and routers are stopped and killed. A member of the crew has a number that stays, whatever rank it is; its input to a
 * sum is 1 << number, so that a sum says which members were in it. Routers are processes too
 * (tests/fake_cuda/routers.h).
 */
#ifndef FERRY_TESTS_CREW_H
#define FERRY_TESTS_CREW_H

#include "ferry.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <cmocka.h>

#define CREW_MOST 8

enum crew_order_kind {
	CREW_JOIN,   /* a communicator: id, rank, nranks; slow: what it receives takes a second for each 200 KB */
	CREW_CALL,   /* so many AllReduces of `count`, and waits for them; `told`: answers once more, before the first
	                is over, when its first element is there */
	CREW_SEND,   /* `count` elements to rank `rank`, and waits until it is sent */
	CREW_RECV,   /* the same from there */
	CREW_SPLIT,  /* a communicator of all, of one color, which takes the place of the old one, which is destroyed */
	CREW_ABORT,  /* the communicator, and no answer's message */
	CREW_DESTROY,
	CREW_ERROR   /* waits until the communicator has an error */
};

struct crew_order {
	enum crew_order_kind kind;
	int rank, nranks, calls;
	bool logged, slow;
	bool last; /* once it has answered that it is well done, the member exits, without a word to its communicator */
	size_t count;
	ferryUniqueId id;
};

struct crew_answer {
	ferryResult_t result;
	int rank, nranks;   /* of the communicator now */
	double seconds;     /* that it took */
	bool middle;        /* the answer that `told` asked for */
	size_t wrong;       /* elements of sums that are not `sum`, the first one */
	uint32_t sum;
	char message[400];
};

struct crew {
	int size;
	pid_t pids[CREW_MOST]; /* 0: it is gone */
	int channels[CREW_MOST];
};

/** Starts them, with the environment as it is now. Before this process uses Ferry. */
void crew_start(struct crew *crew, int size);

void crew_order(const struct crew *crew, int member, struct crew_order order);
/** The member's next answer; it fails the test if none comes for a minute. */
struct crew_answer crew_heard(const struct crew *crew, int member);

/** All that are there get the order; then their answers. NULL: they are to be successes. */
void crew_tell(const struct crew *crew, struct crew_order order, struct crew_answer *answers);

/** A communicator of all that are there, numbered in order. */
void crew_join(const struct crew *crew);

/** All that are there call; every sum is right, and of them all. */
void crew_sums(const struct crew *crew, size_t count, int calls);

/** SIGKILL, and it is gone. */
void crew_kill(struct crew *crew, int member);
/** SIGSTOP, and it has stopped. */
void crew_stop(const struct crew *crew, int member);
void crew_continue(const struct crew *crew, int member);

/** The others end by themselves, well; their channels are closed. */
void crew_end(struct crew *crew);

double crew_now(void);

#endif
