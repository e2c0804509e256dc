/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Buffers that are shown to Ferry's routers ahead of calls: exporting and mapping takes up to 10 ms, and all ranks wait
 * for who does that in a call. So a call whose buffers are not mapped is NCCL's, and a thread shows them meanwhile.
 * What has been shown may be freed: it is looked for anew in each call (rank-lib/exports.h).
 *
 * Calls' threads ask, one at a time; one thread shows.
 */
#ifndef FERRY_ORCHESTRATOR_SHOWING_H
#define FERRY_ORCHESTRATOR_SHOWING_H

#include "ipc/wait.h"
#include "rank-lib/request.h"

#include <pthread.h>

#define FERRY_SHOWING_MOST 8 /* calls that wait to be shown; and that could not be */

struct ferry_showing_asked {
	struct ferry_request request;
	bool landing;
};

/* What cannot be shown: the call goes by a window, or is none for Ferry. */
struct ferry_showing_refused {
	const void *send, *receive; /* both NULL: none */
	uint64_t count, until_ns;
	bool window;
};

struct ferry_showing {
	struct ferry_doorbell bell; /* rung by who asks or ends it */
	pthread_mutex_t lock;       /* of all below; held for moments */
	struct ferry_showing_asked asked[FERRY_SHOWING_MOST]; /* the first is under way */
	uint32_t nasked, nrefused;
	struct ferry_showing_refused refused[FERRY_SHOWING_MOST]; /* the last so many, by nrefused mod that */
};

void ferry_showing_init(struct ferry_showing *showing);
void ferry_showing_free(struct ferry_showing *showing);

/**
 * Whether a call would find its buffers mapped, or knows that it goes by a window; well under 1 us. If not, has them
 * shown. The request without stream; landing: others push into what it receives.
 */
bool ferry_showing_has(struct ferry_showing *showing, const struct ferry_request *request, bool landing);

/** Shows what is asked for until *over, after which whoever has set that rings. By a thread of its own. */
void ferry_showing_run(struct ferry_showing *showing, const _Atomic bool *over);

void ferry_showing_ring(struct ferry_showing *showing);

#endif
