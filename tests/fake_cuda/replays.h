/* SPDX-License-Identifier: Apache-2.0 */
/** Graphs of the ranks' calls (places.h): captured, replayed, destroyed. */
#ifndef FERRY_TESTS_FAKE_CUDA_REPLAYS_H
#define FERRY_TESTS_FAKE_CUDA_REPLAYS_H

#include "tests/fake_cuda/places.h"

#define COUNT 3011

static const int devices[] = {0, 1, 2, 3};

static inline void begin(struct place *place, CUstreamCaptureMode mode)
{
	place_enter(place);
	CU(cuStreamBeginCapture(place->stream, mode));
}

static inline CUgraphExec end(struct place *place)
{
	CUgraph captured;
	CUgraphExec executable;
	place_enter(place);
	CU(cuStreamEndCapture(place->stream, &captured));
	CU(cuGraphInstantiateWithFlags(&executable, captured, 0));
	CU(cuGraphDestroy(captured));
	return executable;
}

/** A graph of each rank: input, so many calls, judgement. */
static inline void capture_round(struct place *places, const struct gang *gang, int calls, CUstreamCaptureMode mode,
                          CUgraphExec *graphs)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		begin(&places[rank], mode);
		place_write(&places[rank]);
		for (int i = 0; i < calls; i++)
			place_call(&places[rank], gang->comms[rank]);
		place_judge(&places[rank]);
		graphs[rank] = end(&places[rank]);
	}
}

static inline void replay(struct place *places, const struct gang *gang, CUgraphExec *graphs)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		place_enter(&places[rank]);
		CU(cuGraphLaunch(graphs[rank], places[rank].stream));
	}
}

static inline void forget(const struct gang *gang, CUgraphExec *graphs)
{
	for (int rank = 0; rank < gang->nranks; rank++)
		CU(cuGraphExecDestroy(graphs[rank]));
}

#endif
