/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums that GPUs make (rank-lib/call/gpu_sums.h), over the double of the driver: what comes, of groups too, and what
 * ranks and their buffers have where a step fails.
 */
#include "tests/fake_cuda/places.h"
#include "tests/fake_cuda/routers.h"

#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"
#include "rank-lib/call/launch.h"

#include <stdlib.h>
#include <string.h>

#define MIB  (1024u * 1024)
#define MOST 4 /* ranks, and calls of a group */

static const int devices[] = {0, 1, 2, 3};

struct buffer {
	CUdeviceptr send, receive;
	CUstream stream;
};

static uint32_t value_at(int call, int rank, size_t i)
{
	return (uint32_t)(i * 2654435761u >> 7) * (uint32_t)(rank + 1) + (uint32_t)call;
}

static void gang_of(struct gang *gang, int nranks, const char *fabric)
{
	setenv("FERRY_KERNELS", "on", 1);
	setenv("FERRY_FABRICS", fabric, 1);
	gang_open(gang, nranks, devices, 1);
	unsetenv("FERRY_FABRICS");
}

static void enter(const struct gang *gang, int rank)
{
	place_enter(&(struct place){.device = gang->devices[rank]});
}

static void open_buffers(const struct gang *gang, int call, struct buffer *buffers, size_t sends, size_t receives,
                         bool in_place, const struct buffer *like)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		struct buffer *mine = &buffers[rank];
		enter(gang, rank);
		CU(cuMemAlloc(&mine->send, 4 * sends));
		mine->receive = mine->send + (in_place ? receives < sends ? 4 * receives * (size_t)rank : 0 : 0);
		if (!in_place)
			CU(cuMemAlloc(&mine->receive, 4 * receives));
		if (like)
			mine->stream = like[rank].stream;
		else
			CU(cuStreamCreate(&mine->stream, CU_STREAM_NON_BLOCKING));
		uint32_t *in = fake_cuda_reach(mine->send);
		for (size_t i = 0; i < sends; i++)
			in[i] = value_at(call, rank, i);
	}
}

static void close_buffers(const struct gang *gang, struct buffer *buffers, bool in_place, bool streams)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		if (!in_place)
			CU(cuMemFree(buffers[rank].receive));
		CU(cuMemFree(buffers[rank].send));
		if (streams)
			CU(cuStreamDestroy(buffers[rank].stream));
	}
}

static void make(const struct gang *gang, const struct buffer *mine, int rank, bool scatters, size_t count)
{
	enter(gang, rank);
	if (scatters)
		OK(ferryReduceScatter(pointer_of(mine->send), pointer_of(mine->receive), count, ferryUint32, ferrySum,
		                      gang->comms[rank], (ferryStream_t)mine->stream));
	else
		OK(ferryAllReduce(pointer_of(mine->send), pointer_of(mine->receive), count, ferryUint32, ferrySum,
		                  gang->comms[rank], (ferryStream_t)mine->stream));
}

static void judge(const struct gang *gang, int call, const struct buffer *buffers, bool scatters, size_t count)
{
	for (int rank = 0; rank < gang->nranks; rank++) {
		enter(gang, rank);
		CU(cuStreamSynchronize(buffers[rank].stream));
		const uint32_t *out = fake_cuda_reach(buffers[rank].receive);
		const size_t from = scatters ? count * (size_t)rank : 0;
		for (size_t i = 0; i < count; i++) {
			uint32_t sum = 0;
			for (int r = 0; r < gang->nranks; r++)
				sum += value_at(call, r, from + i);
			if (out[i] != sum)
				fail_msg("%d ranks, %zu elements%s: element %zu of rank %d", gang->nranks, count,
				         scatters ? " of each block" : "", i, rank);
		}
	}
}

static void check(const struct gang *gang, bool scatters, size_t count, bool in_place)
{
	struct buffer buffers[MOST];
	const size_t n = (size_t)gang->nranks;
	open_buffers(gang, 0, buffers, scatters ? n * count : count, count, in_place, NULL);
	for (int rank = 0; rank < gang->nranks; rank++)
		make(gang, &buffers[rank], rank, scatters, count);
	judge(gang, 0, buffers, scatters, count);
	close_buffers(gang, buffers, in_place, true);
}

static void check_all(int nranks, const char *fabric)
{
	static const size_t counts[] = {700001, 4 * MIB + 77, 6 * MIB / 4 * 7 + 3};
	struct gang gang;
	gang_of(&gang, nranks, fabric);
	for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
		for (int kind = 0; kind < 4; kind++)
			check(&gang, kind & 1, kind & 1 ? counts[i] / 2 : counts[i], kind & 2);
	gang_close(&gang);
}

static void sums_are_right(void **state)
{
	(void)state;
	for (int nranks = 2; nranks <= MOST; nranks++)
		check_all(nranks, "peer");
	check_all(2, "host");
}

/* Of memory for blocks, at a rank. */
static uint32_t rooms_of(const struct ferryComm *comm)
{
	uint32_t rooms = 0;
	for (const struct ferry_bounce_buffer *bounce = comm->mapped.bounces.all; bounce; bounce = bounce->next)
		rooms += bounce->stream == ferry_open_call_sums(bounce->stream);
	return rooms;
}

/* In one group, each open while the others are, in one stream; rank 2 has a stream for each. */
static void sums_of_a_group_are_right(void **state)
{
	enum { CALLS = 3, COUNT = 3 * MIB + 5 };
	struct gang gang;
	struct buffer buffers[CALLS][MOST];
	(void)state;
	gang_of(&gang, 3, "peer");
	for (int call = 0; call < CALLS; call++)
		open_buffers(&gang, call, buffers[call], COUNT, COUNT, call % 2, call ? buffers[0] : NULL);
	for (int call = 1; call < CALLS; call++) {
		enter(&gang, 2);
		CU(cuStreamCreate(&buffers[call][2].stream, CU_STREAM_NON_BLOCKING));
	}
	struct ferry_open_group open[MOST];
	for (int rank = 0; rank < gang.nranks; rank++) {
		OK(ferryGroupStart());
		for (int call = 0; call < CALLS; call++)
			make(&gang, &buffers[call][rank], rank, false, COUNT);
		OK(ferry_group_end_open(&open[rank]));
	}
	for (int rank = 0; rank < gang.nranks; rank++) {
		enter(&gang, rank);
		OK(ferry_group_finish(&open[rank]));
	}
	for (int call = 0; call < CALLS; call++)
		judge(&gang, call, buffers[call], false, COUNT);
	assert_int_equal(rooms_of(gang.comms[0]), 1);
	assert_int_equal(rooms_of(gang.comms[2]), CALLS);
	for (int call = 1; call < CALLS; call++) {
		enter(&gang, 2);
		CU(cuStreamDestroy(buffers[call][2].stream));
	}
	for (int call = CALLS; call-- > 0;)
		close_buffers(&gang, buffers[call], call % 2, !call);
	gang_close(&gang);
}

static struct ferry_request request_of(const struct buffer *mine, ferryComm_t comm, CUstream stream, size_t count)
{
	return (struct ferry_request){.collective = FERRY_ALLREDUCE,
	                              .send = pointer_of(mine->send),
	                              .receive = pointer_of(mine->receive),
	                              .count = count,
	                              .type = ferryUint32,
	                              .op = ferrySum,
	                              .comm = comm,
	                              .stream = (ferryStream_t)stream,
	                              .shared = true};
}

/* Their memory stays: streams that come and go must not take all of it. */
static void few_streams_have_memory_before_their_calls(void **state)
{
	enum { COUNT = 2 * MIB, STREAMS = 9 };
	struct gang gang;
	struct buffer buffers[MOST];
	(void)state;
	gang_of(&gang, 2, "peer");
	open_buffers(&gang, 0, buffers, COUNT, COUNT, false, NULL);
	enter(&gang, 0);
	for (int i = 0; i < STREAMS; i++) {
		CUstream stream;
		CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
		const struct ferry_request request = request_of(&buffers[0], gang.comms[0], stream, COUNT);
		assert_int_equal(ferry_launch_has_shown(&request, true, true, true), FERRY_SHOWN_NOT);
		if (i + 1 < STREAMS)
			OK(ferry_launch_show(&request, true, true));
		else
			REFUSED(ferryInternalError, "8 streams", ferry_launch_show(&request, true, true));
		CU(cuStreamDestroy(stream));
	}
	assert_int_equal(rooms_of(gang.comms[0]), STREAMS - 1);
	close_buffers(&gang, buffers, false, true);
	gang_close(&gang);
}

/* What a call needs is asked for, and made, and there. */
static void what_a_sum_needs_can_be_made_before_it(void **state)
{
	enum { COUNT = 6 * MIB };
	struct gang gang;
	struct buffer buffers[MOST];
	(void)state;
	gang_of(&gang, 2, "peer");
	open_buffers(&gang, 0, buffers, COUNT, COUNT, false, NULL);
	for (int rank = 0; rank < 2; rank++) {
		const struct ferry_request request =
		        request_of(&buffers[rank], gang.comms[rank], buffers[rank].stream, COUNT);
		enter(&gang, rank);
		OK(ferry_launch_show(&request, true, true)); /* of no stream yet */
		assert_int_equal(ferry_launch_has_shown(&request, true, true, true), FERRY_SHOWN_NOT);
		OK(ferry_launch_show(&request, true, true));
		assert_int_equal(ferry_launch_has_shown(&request, true, true, true), FERRY_SHOWN);
	}
	close_buffers(&gang, buffers, false, true);
	gang_close(&gang);
}

/* One rank groups the calls, and the other one makes them singly. */
static void ranks_group_sums_differently(void **state)
{
	enum { CALLS = 3, COUNT = 5 * MIB + 5 };
	struct gang gang;
	struct buffer buffers[CALLS][MOST];
	struct ferry_open_group open;
	(void)state;
	gang_of(&gang, 2, "peer");
	for (int call = 0; call < CALLS; call++)
		open_buffers(&gang, call, buffers[call], COUNT, COUNT, false, call ? buffers[0] : NULL);
	OK(ferryGroupStart());
	for (int call = 0; call < CALLS; call++) {
		make(&gang, &buffers[call][0], 0, false, COUNT);
		OK(ferryBroadcast(NULL, pointer_of(buffers[call][0].send), COUNT, ferryUint32, 1, gang.comms[0],
		                  (ferryStream_t)buffers[call][0].stream));
	}
	OK(ferry_group_end_open(&open));
	OK(ferry_group_finish(&open));
	for (int call = 0; call < CALLS; call++) {
		make(&gang, &buffers[call][1], 1, false, COUNT);
		OK(ferryBroadcast(pointer_of(buffers[call][1].send), pointer_of(buffers[call][1].send), COUNT,
		                  ferryUint32, 1, gang.comms[1], (ferryStream_t)buffers[call][1].stream));
	}
	for (int call = 0; call < CALLS; call++)
		judge(&gang, call, buffers[call], false, COUNT);
	for (int call = CALLS; call--;)
		close_buffers(&gang, buffers[call], false, !call);
	gang_close(&gang);
}

/* ---- failures ---- */

/* Another router goes on with the steps that are under way: the second half of the ranks' calls comes behind it. */
static void sums_outlive_their_router(void **state)
{
	enum { COUNT = 8 * MIB + 3, CALLS = 4, KILLS = REPEATS(6, 3) };
	(void)state;
	for (int kill = 0; kill < KILLS; kill++) {
		struct gang gang;
		struct buffer buffers[CALLS][MOST];
		gang_of(&gang, 2, "peer");
		const pid_t spare = routers_open_spare(0);
		for (int call = 0; call < CALLS; call++)
			open_buffers(&gang, call, buffers[call], COUNT, COUNT, call % 2, call ? buffers[0] : NULL);
		for (int call = 0; call < CALLS; call++)
			for (int rank = 0; rank < 2; rank++)
				make(&gang, &buffers[call][rank], rank, false, COUNT);
		doze(2 + 5 * kill);
		routers_kill(0);
		routers_follow(0, spare);
		for (int call = 0; call < CALLS; call++)
			judge(&gang, call, buffers[call], false, COUNT);
		for (int call = CALLS; call-- > 0;)
			close_buffers(&gang, buffers[call], call % 2, !call);
		gang_close(&gang);
	}
}

static ferryResult_t refuse(struct ferry_device *device, uint64_t bytes, void **memory)
{
	(void)device, (void)bytes, (void)memory;
	return ferry_fail(ferrySystemError, "there is no memory");
}

static struct ferry_device_ops ops[MOST];
static struct ferry_pieces_ops pieces[MOST];

static const struct ferry_device_ops *refuse_memory(struct ferryComm *comm)
{
	const struct ferry_device_ops *before = comm->device->ops;
	ops[comm->rank.self] = *before;
	pieces[comm->rank.self] = *before->pieces;
	pieces[comm->rank.self].allocate = refuse;
	ops[comm->rank.self].pieces = &pieces[comm->rank.self];
	comm->device->ops = &ops[comm->rank.self];
	return before;
}

/* No rank has memory for the blocks: the call is none, and the next one is right. */
static void a_sum_without_memory_is_none(void **state)
{
	enum { COUNT = 3 * MIB };
	struct gang gang;
	struct buffer buffers[MOST];
	(void)state;
	gang_of(&gang, 2, "peer");
	open_buffers(&gang, 0, buffers, COUNT, COUNT, true, NULL);
	for (int opens = 0; opens < 2; opens++) {
		for (int rank = 0; rank < 2; rank++) {
			const struct ferry_device_ops *before = refuse_memory(gang.comms[rank]);
			struct ferry_open_group open = {0};
			enter(&gang, rank);
			if (opens)
				OK(ferryGroupStart());
			ferryResult_t result = ferryAllReduce(
			        pointer_of(buffers[rank].send), pointer_of(buffers[rank].receive), COUNT, ferryUint32,
			        ferrySum, gang.comms[rank], (ferryStream_t)buffers[rank].stream);
			if (opens) {
				assert_int_equal(result, ferrySuccess);
				assert_int_equal(ferry_group_end_open(&open), ferrySystemError);
				result = ferry_group_finish(&open);
			}
			assert_int_equal(result, ferrySystemError);
			gang.comms[rank]->device->ops = before;
		}
		for (int rank = 0; rank < 2; rank++) {
			ferryResult_t error;
			OK(ferryCommGetAsyncError(gang.comms[rank], &error));
			assert_int_equal(error, ferrySuccess);
			enter(&gang, rank);
			CU(cuStreamSynchronize(buffers[rank].stream));
			const uint32_t *in = fake_cuda_reach(buffers[rank].send);
			for (size_t i = 0; i < COUNT; i++)
				assert_int_equal(in[i], value_at(0, rank, i));
		}
	}
	for (int rank = 0; rank < 2; rank++)
		make(&gang, &buffers[rank], rank, false, COUNT);
	judge(&gang, 0, buffers, false, COUNT);
	close_buffers(&gang, buffers, true, true);
	gang_close(&gang);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(sums_are_right, no_misuse),
	                                   cmocka_unit_test_teardown(sums_of_a_group_are_right, no_misuse),
	                                   cmocka_unit_test_teardown(what_a_sum_needs_can_be_made_before_it,
	                                                             no_misuse),
	                                   cmocka_unit_test_teardown(few_streams_have_memory_before_their_calls,
	                                                             no_misuse),
	                                   cmocka_unit_test_teardown(sums_outlive_their_router, no_misuse),
	                                   cmocka_unit_test_teardown(ranks_group_sums_differently, no_misuse),
	                                   cmocka_unit_test_teardown(a_sum_without_memory_is_none, no_misuse)};
	fake_is_the_driver();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
