/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Ranks of one process on fake GPUs, each with a stream and buffers; for suites of the cuda device. A round is: a
 * kernel writes the input of the round, the collective runs, a kernel judges the output and goes on to the next round.
 * Nothing on the host stands between the three, so a call that starts early or ends late shows as wrong elements.
 *
 * The collective is an AllReduce; with FERRY_TEST_PUSHES an AllGather, which routers push from GPU to GPU; with
 * FERRY_TEST_REDUCES a Reduce to rank 1, the others without a receive buffer.
 */
#ifndef FERRY_TESTS_PLACES_H
#define FERRY_TESTS_PLACES_H

#include "tests/sanitized.h"
#include "tests/succeeds.h"
#include "tests/fake_cuda/fake_cuda.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define CU(call)                                                                                                       \
	do {                                                                                                           \
		CUresult refused_ = (call);                                                                            \
		const char *flags_ = "?";                                                                              \
		if (refused_) {                                                                                        \
			cuGetErrorString(refused_, &flags_);                                                           \
			fail_msg("%s: %s (CUDA error %d)", #call, flags_, (int)refused_);                              \
		}                                                                                                      \
	} while (0)

/** The call fails with this result, and the message holds the words. */
#define REFUSED(expected, flags, call)                                                                                 \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		if (result_ != (expected) || !strstr(ferryGetLastError(NULL), flags))                                  \
			fail_msg("%s: %s: \"%s\"; expected %s with \"%s\"", #call, ferryGetErrorString(result_),       \
			         ferryGetLastError(NULL), ferryGetErrorString(expected), flags);                       \
	} while (0)

#define MOST_PLACES 8

struct place {
	int device, rank, nranks;
	size_t count;
	CUstream stream;
	CUdeviceptr input, output; /* in the middle of allocations of their own */
	CUdeviceptr memory[2];
	int wait_ms;               /* before the input is written */
	uint32_t round;            /* the last two: the kernels' */
	size_t wrong;
};

struct gang {
	int nranks;
	const int *devices;
	ferryComm_t comms[MOST_PLACES];
};

void doze(int milliseconds);

/** A device address as Ferry's calls take it. */
void *pointer_of(CUdeviceptr address);

/** A kernel that runs until its argument, an _Atomic int, is 0. */
void hold(void *until_zero);

/** FERRY_TEST_DOMAINS, 1 or 2: so many at least there are, of which each has every other device. */
int domains_asked_for(void);

/**
 * Before communicators that gang_open does not make, and after them: so many domains, whose routers run meanwhile, with
 * the environment of the first of the test's gangs that are open at a time.
 */
void domains_open(int domains);
void domains_close(void);

/** Ranks over so many domains, one on each device of the list. */
void gang_open(struct gang *gang, int nranks, const int *devices, int domains);
void gang_close(struct gang *gang);

void place_open(struct place *place, int device, int rank, int nranks, size_t count);
void place_close(struct place *place);
/** A place for each rank of the gang: its context becomes the thread's while it is made. */
void places_open(struct place *places, const struct gang *gang, size_t count);
void places_close(struct place *places, const struct gang *gang);
/** Makes the place's device current. */
void place_enter(const struct place *place);

/** The kernels around a call, and the call (of uint32). */
void place_write(struct place *place);
void place_call(struct place *place, ferryComm_t comm);
ferryResult_t place_try(const struct place *place, ferryComm_t comm);
/** Whether the collective is an AllGather. */
bool places_gather(void);
/** Whether it is a Reduce. */
bool places_reduce(void);
void place_judge(struct place *place);
/** The three of them. */
void place_round(struct place *place, ferryComm_t comm);
/** In place of the round's: the output is the input of the rank before, around the ring. */
void place_judge_message(struct place *place);
void places_round(struct place *places, const struct gang *gang);

/** Waits for the streams; fails if something was wrong or the rounds are not so many. */
void places_settle(struct place *places, const struct gang *gang, uint32_t rounds);

/** A test ends without misuse of the driver that the double counted, and its routers end. Teardown of every test. */
int no_misuse(void **state);

/**
 * Before the first use of Ferry: the double is the driver. Routers are processes of their own
 * (tests/fake_cuda/routers.h). With FERRY_TEST_HOST ranks are on host devices, and their routers such processes
 * (routers) or in this one (here).
 */
void fake_is_the_driver(void);

#endif
