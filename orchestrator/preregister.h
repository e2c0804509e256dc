/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Gives Ferry's routers what they need ahead of calls. Exporting and mapping buffers takes up to 10 ms, making and
 * giving a plan up to 0.5 ms, and in a call all ranks would wait for a rank that does it. So a call whose buffers are
 * not mapped, or whose plan the routers have not got, is NCCL's, and a thread preregisters both meanwhile.
 * Preregistered buffers may be freed, and plans may be evicted by others: each call checks anew
 * (rank-lib/call/launch.h).
 *
 * Threads that make calls ask, one at a time; one thread preregisters.
 */
#ifndef FERRY_ORCHESTRATOR_PREREGISTER_H
#define FERRY_ORCHESTRATOR_PREREGISTER_H

#include "ipc/wait.h"
#include "rank-lib/call/launch.h"

#include <pthread.h>

#define FERRY_PREREGISTER_MOST    8  /* calls that wait to be preregistered; */
#define FERRY_PREREGISTER_REFUSED 64 /* and that could not be: as many as a step of training makes */

/* A call that may come. */
struct ferry_preregister_asked {
	struct ferry_request request; /* without stream; not checked */
	bool put_target;              /* other ranks push into what it receives */
	bool whole;                   /* the call is exactly this request, so its plan is known, if it has one */
	uint64_t kind;                /* names such calls on all ranks (shadow_comm.h) */
};

/* What cannot be preregistered: the call goes by a bounce buffer, or is none for Ferry. */
struct ferry_preregister_refused {
	struct ferry_preregister_asked asked;
	uint64_t until_ns; /* then it is tried again; 0: there is none */
	bool window;
};

struct ferry_preregister {
	struct ferry_doorbell bell; /* rung by the thread that asks for it or ends it */
	pthread_mutex_t lock;       /* of all below; held for moments */
	struct ferry_preregister_asked asked[FERRY_PREREGISTER_MOST]; /* the first is under way */
	uint32_t nasked, nrefused;
	struct ferry_preregister_refused
	        refused[FERRY_PREREGISTER_REFUSED]; /* the last so many, by nrefused mod that */
	pthread_cond_t registered;                  /* one of those that wait is preregistered, or is dropped */
};

void ferry_preregister_init(struct ferry_preregister *preregister);
void ferry_preregister_free(struct ferry_preregister *preregister);

/**
 * Whether the call would find its buffers mapped, or is known to go by a bounce buffer, and its plan with the routers;
 * well under 1 us. If not, asks the thread to preregister them. now: as in ferry_launch_has_preregistered.
 */
enum ferry_preregistered ferry_preregister_has(struct ferry_preregister *preregister,
                                               const struct ferry_preregister_asked *asked, bool now);

/** The same, after the thread has done it, or after so many microseconds. */
enum ferry_preregistered ferry_preregister_await(struct ferry_preregister *preregister,
                                                 const struct ferry_preregister_asked *asked, double most_us);

/*
 * The thread calls `registered` for a kind when the last call that was asked for of it is preregistered, or is known to
 * go by a bounce buffer.
 */
struct ferry_preregister_listener {
	void (*registered)(void *argument, uint64_t kind);
	void *argument;
};

/**
 * Preregisters what is asked for until *over; the thread that sets it rings after that. Runs in a thread of its own.
 */
void ferry_preregister_run(struct ferry_preregister *preregister, const _Atomic bool *over,
                           const struct ferry_preregister_listener *listener);

void ferry_preregister_ring(struct ferry_preregister *preregister);

#endif
