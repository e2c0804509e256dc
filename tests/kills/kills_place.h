/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where a rank's buffers lie, and its streams: ordinary memory, or a GPU's, to which what a call sends is copied before
 * it, and from which all that it may write comes back behind it. By the rank's one thread.
 */
#ifndef FERRY_TESTS_KILLS_PLACE_H
#define FERRY_TESTS_KILLS_PLACE_H

#include "tests/trial_run.h"

struct kills_place {
	bool gpu;
	int ordinals[2];
	ferryStream_t streams[2];
};

/** A call's two areas (trial_run.h) there; host memory: themselves. pinned: by way of these. */
struct kills_buffers {
	struct trial_buffers *host;
	char *areas[2], *pinned[2];
	void *memory[2]; /* that the areas lie in */
};

ferryResult_t kills_place_open(struct kills_place *place, int rank, bool gpu);
/** Behind its last call. */
void kills_place_close(struct kills_place *place);

ferryResult_t kills_place_take(const struct kills_place *place, struct trial_buffers *host,
                               struct kills_buffers *buffers);

void kills_place_give_back(const struct kills_place *place, struct kills_buffers *buffers);

/** Of an address in the host's areas, or NULL: that there. */
char *kills_place_at(const struct kills_buffers *buffers, const char *host);

/** All goes there, in that stream; it comes back: by then the stream has been waited for. */
ferryResult_t kills_place_send(const struct kills_place *place, const struct kills_buffers *buffers, int stream);
ferryResult_t kills_place_fetch(const struct kills_place *place, const struct kills_buffers *buffers, int stream);

ferryResult_t kills_place_wait(const struct kills_place *place, int stream);

#endif
