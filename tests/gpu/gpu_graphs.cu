/* SPDX-License-Identifier: Apache-2.0 */
/* Calls captured into CUDA graphs: each replay is a new call, with whatever the buffers hold then. */
#include "tests/gpu/data.cuh"

#define COUNT 30011

/*
 * The captured kernels write the input of the round that `round` names, judge the output and go on to the next round.
 */
static int capture_round(struct place *place, ferryComm_t comm, int calls, cudaStreamCaptureMode mode,
                         cudaGraphExec_t *graph)
{
	cudaGraph_t captured;
	CUDA(cudaSetDevice(place->device));
	CUDA(cudaStreamBeginCapture(place->stream, mode));
	write_input_of<<<GRID, 0, place->stream>>>(place->input, place->count, place->rank, place->round);
	for (int i = 0; i < calls; i++)
		TRY(place_call(place, comm));
	count_wrong_of<<<GRID, 0, place->stream>>>(place->output, place->count, place->nranks, place->round,
	                                           place->wrong);
	next_round<<<1, 1, 0, place->stream>>>(place->round);
	CUDA(cudaStreamEndCapture(place->stream, &captured));
	CUDA(cudaGraphInstantiate(graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	return 0;
}

static int replay(struct place *places, const struct gang *gang, cudaGraphExec_t *graphs)
{
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaGraphLaunch(graphs[i], places[i].stream));
	}
	return 0;
}

/* The same by hand, in the place's stream. */
static int eager_round(struct place *places, const struct gang *gang)
{
	for (int i = 0; i < gang->nlocal; i++) {
		struct place *place = &places[i];
		CUDA(cudaSetDevice(place->device));
		write_input_of<<<GRID, 0, place->stream>>>(place->input, place->count, place->rank, place->round);
		TRY(place_call(place, gang->comm[i]));
		count_wrong_of<<<GRID, 0, place->stream>>>(place->output, place->count, place->nranks, place->round,
		                                           place->wrong);
		next_round<<<1, 1, 0, place->stream>>>(place->round);
		CUDA(cudaGetLastError());
	}
	return 0;
}

static int require_rounds(struct place *places, const struct gang *gang, uint32_t expected, const char *when)
{
	TRY(places_settle(places, gang, when));
	for (int i = 0; i < gang->nlocal; i++) {
		uint32_t rounds = 0;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaMemcpy(&rounds, places[i].round, sizeof rounds, cudaMemcpyDeviceToHost));
		REQUIRE(rounds == expected, "%s: %u rounds instead of %u", when, rounds, expected);
	}
	return 0;
}

static int forget(struct place *places, const struct gang *gang, cudaGraphExec_t *graphs)
{
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaGraphExecDestroy(graphs[i]));
	}
	return 0;
}

static int captured_call_is_replayed_a_thousand_times_with_changing_inputs(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++)
		TRY(capture_round(&places[i], gang.comm[i], 1, cudaStreamCaptureModeGlobal, &graphs[i]));
	for (int round = 0; round < 1000; round++)
		TRY(replay(places, &gang, graphs));
	TRY(require_rounds(places, &gang, 1000, "a thousand replays"));
	TRY(forget(places, &gang, graphs));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int several_calls_of_one_graph_and_eager_calls_between_replays(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < 5; i++)
		TRY(eager_round(places, &gang));
	for (int i = 0; i < gang.nlocal; i++)
		TRY(capture_round(&places[i], gang.comm[i], 3, cudaStreamCaptureModeGlobal, &graphs[i]));
	for (int i = 0; i < 100; i++) {
		TRY(replay(places, &gang, graphs));
		if (i % 3 == 0)
			TRY(eager_round(places, &gang));
	}
	TRY(require_rounds(places, &gang, 5 + 100 + 34, "replays and eager calls"));
	TRY(forget(places, &gang, graphs));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* The ranks' streams reach the two in any order; rank 0 decides. */
static int two_graphs_on_two_streams_of_one_communicator_are_replayed_side_by_side(void)
{
	struct gang gang;
	struct place places[2][GANG_MOST];
	cudaGraphExec_t graphs[2][GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	for (int which = 0; which < 2; which++) {
		TRY(places_open(places[which], &gang, COUNT + 1000 * which));
		for (int i = 0; i < gang.nlocal; i++)
			TRY(capture_round(&places[which][i], gang.comm[i], 1 + which, cudaStreamCaptureModeThreadLocal,
			                  &graphs[which][i]));
	}
	for (int i = 0; i < 200; i++)
		for (int which = 0; which < 2; which++)
			TRY(replay(places[(which + i) % 2], &gang, graphs[(which + i) % 2]));
	for (int which = 0; which < 2; which++) {
		TRY(require_rounds(places[which], &gang, 200, "two graphs"));
		TRY(forget(places[which], &gang, graphs[which]));
	}
	TRY(gang_close(&gang));
	for (int which = 0; which < 2; which++)
		TRY(places_close(places[which], &gang));
	return 0;
}

static int every_capture_mode_will_do(void)
{
	static const cudaStreamCaptureMode modes[] = {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
	                                              cudaStreamCaptureModeRelaxed};
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (uint32_t mode = 0; mode < 3; mode++) {
		for (int i = 0; i < gang.nlocal; i++)
			TRY(capture_round(&places[i], gang.comm[i], 1, modes[mode], &graphs[i]));
		for (int i = 0; i < 10; i++)
			TRY(replay(places, &gang, graphs));
		TRY(require_rounds(places, &gang, 10 * (mode + 1), "ten replays"));
		TRY(forget(places, &gang, graphs));
	}
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int a_refused_call_leaves_the_capture_valid(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	uint32_t host = 0;
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		cudaGraph_t captured;
		ferryStream_t stream = (ferryStream_t)places[i].stream;
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaStreamBeginCapture(places[i].stream, cudaStreamCaptureModeGlobal));
		write_input_of<<<GRID, 0, places[i].stream>>>(places[i].input, COUNT, places[i].rank, places[i].round);
		REFUSED(ferryInvalidArgument, "host memory",
		        ferryAllReduce(&host, &host, 1, ferryUint32, ferrySum, gang.comm[i], stream));
		TRY(place_call(&places[i], gang.comm[i]));
		count_wrong_of<<<GRID, 0, places[i].stream>>>(places[i].output, COUNT, gang.nranks, places[i].round,
		                                              places[i].wrong);
		next_round<<<1, 1, 0, places[i].stream>>>(places[i].round);
		CUDA(cudaStreamEndCapture(places[i].stream, &captured));
		CUDA(cudaGraphInstantiate(&graphs[i], captured, 0));
		CUDA(cudaGraphDestroy(captured));
	}
	for (int i = 0; i < 10; i++)
		TRY(replay(places, &gang, graphs));
	TRY(require_rounds(places, &gang, 10, "after refused calls"));
	TRY(forget(places, &gang, graphs));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* Round after round each rank sends its input to the right and receives the left one's. */
static __global__ void count_wrong_from(const uint32_t *output, size_t count, int rank, const uint32_t *round,
                                        unsigned long long *wrong)
{
	unsigned long long mine = 0;
	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < count; i += (size_t)gridDim.x * blockDim.x)
		mine += output[i] != data_value(rank, *round, i);
	if (mine)
		atomicAdd(wrong, mine);
}

static int capture_messages(struct place *place, ferryComm_t comm, cudaGraphExec_t *graph)
{
	ferryStream_t stream = (ferryStream_t)place->stream;
	int right = (place->rank + 1) % place->nranks, left = (place->rank + place->nranks - 1) % place->nranks;
	cudaGraph_t captured;
	CUDA(cudaSetDevice(place->device));
	CUDA(cudaStreamBeginCapture(place->stream, cudaStreamCaptureModeGlobal));
	write_input_of<<<GRID, 0, place->stream>>>(place->input, place->count, place->rank, place->round);
	FERRY(ferryGroupStart());
	FERRY(ferrySend(place->input, place->count, ferryUint32, right, comm, stream));
	FERRY(ferryRecv(place->output, place->count, ferryUint32, left, comm, stream));
	FERRY(ferryGroupEnd());
	count_wrong_from<<<GRID, 0, place->stream>>>(place->output, place->count, left, place->round, place->wrong);
	next_round<<<1, 1, 0, place->stream>>>(place->round);
	CUDA(cudaStreamEndCapture(place->stream, &captured));
	CUDA(cudaGraphInstantiate(graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	return 0;
}

static int captured_sends_and_receives_are_replayed(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++)
		TRY(capture_messages(&places[i], gang.comm[i], &graphs[i]));
	for (int i = 0; i < 200; i++)
		TRY(replay(places, &gang, graphs));
	TRY(require_rounds(places, &gang, 200, "sends and receives"));
	TRY(forget(places, &gang, graphs));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int begin_captures(struct place *places, const struct gang *gang)
{
	for (int i = 0; i < gang->nlocal; i++) {
		struct place *place = &places[i];
		CUDA(cudaSetDevice(place->device));
		CUDA(cudaStreamBeginCapture(place->stream, cudaStreamCaptureModeGlobal));
		write_input_of<<<GRID, 0, place->stream>>>(place->input, place->count, place->rank, place->round);
	}
	return 0;
}

/* All of them end before the first is instantiated: that is not allowed while this thread has a capture open. */
static int end_captures(struct place *places, const struct gang *gang, cudaGraphExec_t *graphs)
{
	cudaGraph_t captured[GANG_MOST];
	for (int i = 0; i < gang->nlocal; i++) {
		struct place *place = &places[i];
		CUDA(cudaSetDevice(place->device));
		count_wrong_of<<<GRID, 0, place->stream>>>(place->output, place->count, place->nranks, place->round,
		                                           place->wrong);
		next_round<<<1, 1, 0, place->stream>>>(place->round);
		CUDA(cudaStreamEndCapture(place->stream, &captured[i]));
	}
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaGraphInstantiate(&graphs[i], captured[i], 0));
		CUDA(cudaGraphDestroy(captured[i]));
	}
	return 0;
}

static int calls_of_all_gpus_in_one_group(struct place *places, const struct gang *gang)
{
	FERRY(ferryGroupStart());
	for (int i = 0; i < gang->nlocal; i++)
		TRY(place_call(&places[i], gang->comm[i]));
	FERRY(ferryGroupEnd());
	return 0;
}

/* One thread, a capture open on every GPU at once; and eager calls under way while they are. */
static int a_group_is_captured_over_all_gpus_beside_calls_under_way(void)
{
	struct gang gang, other;
	struct place places[GANG_MOST], under_way[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(gang_open(&other, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	TRY(places_open(under_way, &other, COUNT * 10));
	for (uint32_t round = 1; round <= 20; round++)
		TRY(places_round(under_way, &other, round, 1000000));
	TRY(begin_captures(places, &gang));
	TRY(calls_of_all_gpus_in_one_group(places, &gang));
	usleep(20000); /* the captures stay open while the other communicator's lanes work: that must not end them */
	TRY(end_captures(places, &gang, graphs));
	for (int i = 0; i < 50; i++)
		TRY(replay(places, &gang, graphs));
	TRY(require_rounds(places, &gang, 50, "a group of all GPUs"));
	TRY(places_settle(under_way, &other, "calls under way beside captures"));
	TRY(forget(places, &gang, graphs));
	TRY(gang_close(&gang));
	TRY(gang_close(&other));
	TRY(places_close(places, &gang));
	return places_close(under_way, &other);
}

/* The streams of the other GPUs are led into the capture of the first one's, and back, by events. */
static int lead(struct place *places, const struct gang *gang, cudaEvent_t *events, bool back)
{
	for (int i = 1; i < gang->nlocal; i++) {
		int from = back ? i : 0, to = back ? 0 : i;
		CUDA(cudaSetDevice(places[from].device));
		CUDA(cudaEventRecord(events[from], places[from].stream));
		CUDA(cudaSetDevice(places[to].device));
		CUDA(cudaStreamWaitEvent(places[to].stream, events[from], 0));
	}
	return 0;
}

static int capture_all_as_one(struct place *places, const struct gang *gang, cudaEvent_t *events, cudaGraph_t *captured)
{
	CUDA(cudaSetDevice(places[0].device));
	CUDA(cudaStreamBeginCapture(places[0].stream, cudaStreamCaptureModeGlobal));
	TRY(lead(places, gang, events, false));
	for (int i = 0; i < gang->nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		write_input_of<<<GRID, 0, places[i].stream>>>(places[i].input, COUNT, places[i].rank, places[i].round);
	}
	TRY(calls_of_all_gpus_in_one_group(places, gang));
	for (int i = 0; i < gang->nlocal; i++) {
		struct place *place = &places[i];
		CUDA(cudaSetDevice(place->device));
		count_wrong_of<<<GRID, 0, place->stream>>>(place->output, COUNT, place->nranks, place->round,
		                                           place->wrong);
		next_round<<<1, 1, 0, place->stream>>>(place->round);
	}
	TRY(lead(places, gang, events, true));
	CUDA(cudaSetDevice(places[0].device));
	CUDA(cudaStreamEndCapture(places[0].stream, captured));
	return 0;
}

static int one_graph_spans_all_gpus(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaEvent_t events[GANG_MOST];
	cudaGraph_t captured;
	cudaGraphExec_t graph;
	TRY(gang_shape(&gang));
	if (gang.nlocal < 2 || gang.nlocal > gang_devices())
		SKIP("needs two GPUs in one process");
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (int i = 0; i < gang.nlocal; i++) {
		CUDA(cudaSetDevice(places[i].device));
		CUDA(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
	}
	TRY(capture_all_as_one(places, &gang, events, &captured));
	CUDA(cudaGraphInstantiate(&graph, captured, 0));
	CUDA(cudaGraphDestroy(captured));
	for (int i = 0; i < 100; i++)
		CUDA(cudaGraphLaunch(graph, places[0].stream));
	CUDA(cudaStreamSynchronize(places[0].stream));
	TRY(require_rounds(places, &gang, 100, "one graph of all GPUs"));
	CUDA(cudaGraphExecDestroy(graph));
	for (int i = 0; i < gang.nlocal; i++)
		CUDA(cudaEventDestroy(events[i]));
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

/* Nothing of it ever ran, and nobody else must miss it. */
static int a_graph_that_was_never_replayed_is_forgotten(void)
{
	struct gang gang;
	struct place places[GANG_MOST];
	cudaGraphExec_t graphs[GANG_MOST];
	TRY(gang_open(&gang, "cuda"));
	TRY(places_open(places, &gang, COUNT));
	for (uint32_t turn = 1; turn <= 3; turn++) {
		for (int i = 0; i < gang.nlocal; i++)
			TRY(capture_round(&places[i], gang.comm[i], 2, cudaStreamCaptureModeThreadLocal, &graphs[i]));
		TRY(forget(places, &gang, graphs));
		TRY(eager_round(places, &gang));
		TRY(require_rounds(places, &gang, turn, "after a graph that was not replayed"));
	}
	TRY(gang_close(&gang));
	return places_close(places, &gang);
}

static int graph_and_communicator_may_be_destroyed_in_either_order(void)
{
	for (int graph_first = 0; graph_first < 2; graph_first++) {
		struct gang gang;
		struct place places[GANG_MOST];
		cudaGraphExec_t graphs[GANG_MOST];
		TRY(gang_open(&gang, "cuda"));
		TRY(places_open(places, &gang, COUNT));
		for (int i = 0; i < gang.nlocal; i++)
			TRY(capture_round(&places[i], gang.comm[i], 1, cudaStreamCaptureModeGlobal, &graphs[i]));
		for (int i = 0; i < 5; i++)
			TRY(replay(places, &gang, graphs));
		TRY(require_rounds(places, &gang, 5, "before the end"));
		if (graph_first) {
			TRY(forget(places, &gang, graphs));
			TRY(eager_round(places, &gang)); /* the communicator goes on */
			TRY(require_rounds(places, &gang, 6, "after the graph"));
		}
		TRY(gang_close(&gang));
		if (!graph_first)
			TRY(forget(places, &gang, graphs));
		TRY(places_close(places, &gang));
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct check_test tests[] = {
	        TEST(captured_call_is_replayed_a_thousand_times_with_changing_inputs),
	        TEST(several_calls_of_one_graph_and_eager_calls_between_replays),
	        TEST(two_graphs_on_two_streams_of_one_communicator_are_replayed_side_by_side),
	        TEST(every_capture_mode_will_do),
	        TEST(a_refused_call_leaves_the_capture_valid),
	        TEST(captured_sends_and_receives_are_replayed),
	        TEST(graph_and_communicator_may_be_destroyed_in_either_order),
	        TEST(a_graph_that_was_never_replayed_is_forgotten),
	        TEST(a_group_is_captured_over_all_gpus_beside_calls_under_way),
	        TEST(one_graph_spans_all_gpus),
	};
	return check_main(argc, argv, tests, sizeof tests / sizeof tests[0]);
}
