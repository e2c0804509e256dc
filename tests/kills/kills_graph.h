/* SPDX-License-Identifier: Apache-2.0 */
/**
 * CUDA graphs of router_kills: what one stream was given between two calls, to be replayed. By a rank's one thread, on
 * whose GPU that is.
 */
#ifndef FERRY_TESTS_KILLS_GRAPH_H
#define FERRY_TESTS_KILLS_GRAPH_H

#include "ferry.h"

/** From here on the stream's calls are captured, */
ferryResult_t kills_graph_begin(ferryStream_t stream);
/** to here. *graph is the caller's. */
ferryResult_t kills_graph_end(ferryStream_t stream, void **graph);

ferryResult_t kills_graph_replay(void *graph, ferryStream_t stream);

/** NULL: nothing. Behind its last replay. */
void kills_graph_destroy(void *graph);

#endif
