/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What Ferry's routers need is shown to them ahead of calls: exporting and mapping buffers takes up to 10 ms, making
 * and giving a plan up to 0.5 ms, and all ranks wait for who does that in a call. So a call whose buffers are not
 * mapped, or whose plan the routers have not got, is NCCL's, and a thread shows them meanwhile. What has been shown may
 * be freed, or make room for other plans: it is looked for anew in each call (rank-lib/call/launch.h).
 *
 * Of a call that is divided each share is a plan. While it is shown the call has what its size had before.
 *
 * Calls' threads ask, one at a time; one thread shows.
 */
#ifndef FERRY_ORCHESTRATOR_PREREGISTER_H
#define FERRY_ORCHESTRATOR_PREREGISTER_H

#include "ipc/wait.h"
#include "rank-lib/call/launch.h"

#include <pthread.h>

#define FERRY_PREREGISTER_MOST    8  /* calls that wait to be shown; */
#define FERRY_PREREGISTER_REFUSED 64 /* and that could not be: as many as a step of training makes */

/* A call that may come. */
struct ferry_preregister_asked {
	struct ferry_request request; /* without stream; not checked */
	bool put_target;              /* others push into what it receives */
	bool whole;                   /* it is this request to the element, so its plan is known, if it has one */
	uint64_t kind;                /* names such calls on all ranks (partner.h) */
};

/* What cannot be shown: the call goes by a window, or is none for Ferry. */
struct ferry_preregister_refused {
	struct ferry_preregister_asked asked;
	uint64_t until_ns; /* then it is tried again; 0: there is none */
	bool window;
};

struct ferry_preregister {
	struct ferry_doorbell bell; /* rung by who asks or ends it */
	pthread_mutex_t lock;       /* of all below; held for moments */
	struct ferry_preregister_asked asked[FERRY_PREREGISTER_MOST]; /* the first is under way */
	uint32_t nasked, nrefused;
	struct ferry_preregister_refused
	        refused[FERRY_PREREGISTER_REFUSED]; /* the last so many, by nrefused mod that */
	pthread_cond_t shown; /* one of those that wait is shown, or is not to be */
};

void ferry_preregister_init(struct ferry_preregister *preregister);
void ferry_preregister_free(struct ferry_preregister *preregister);

/**
 * Whether the call would find its buffers mapped, or knows that it goes by a window, and its plan with the routers;
 * well under 1 us. If not, has them shown.
 */
enum ferry_shown ferry_preregister_has(struct ferry_preregister *preregister,
                                       const struct ferry_preregister_asked *asked);

/** The same, after it has been shown, or after so many microseconds. */
enum ferry_shown ferry_preregister_await(struct ferry_preregister *preregister,
                                         const struct ferry_preregister_asked *asked, double most_us);

/* Whom the thread tells that calls of a kind find all of that now: of the last one that was asked for. */
struct ferry_preregister_listener {
	void (*shown)(void *argument, uint64_t kind);
	void *argument;
};

/** Shows what is asked for until *over, after which whoever has set that rings. By a thread of its own. */
void ferry_preregister_run(struct ferry_preregister *preregister, const _Atomic bool *over,
                           const struct ferry_preregister_listener *listener);

void ferry_preregister_ring(struct ferry_preregister *preregister);

#endif
