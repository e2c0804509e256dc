/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every collective, type, operation, a spread of counts, in place and not, over several ranks and domains: results against a
 * float64 reference (bench/perf_values.c states the bound per type; integers exact), and not a byte touched beyond them.
 */
#include "tests/api_ranks.h"

#include "bench/perf.h"

#include <stdio.h>
#include <string.h>

#define GUARD 256
#define LARGEST 40000 /* elements per rank */

struct buffers {
	char *send[FERRY_MAX_RANKS], *receive[FERRY_MAX_RANKS];
	size_t room;
};

static void allocate(struct buffers *buffers, int count)
{
	buffers->room = (size_t)count * LARGEST * 8 + 2 * GUARD + 64;
	for (int rank = 0; rank < count; rank++) {
		buffers->send[rank] = malloc(buffers->room);
		buffers->receive[rank] = malloc(buffers->room);
		assert_non_null(buffers->receive[rank]);
	}
}

static void release(struct buffers *buffers, int count)
{
	for (int rank = 0; rank < count; rank++) {
		free(buffers->send[rank]);
		free(buffers->receive[rank]);
	}
}

static void start(const struct perf_call *call, ferryComm_t comm)
{
	switch (call->collective) {
	case FERRY_ALLREDUCE:
		OK(ferryAllReduce(call->send, call->receive, call->count, call->type, call->op, comm, NULL));
		break;
	case FERRY_ALLGATHER:
		OK(ferryAllGather(call->send, call->receive, call->count, call->type, comm, NULL));
		break;
	case FERRY_REDUCESCATTER:
		OK(ferryReduceScatter(call->send, call->receive, call->count, call->type, call->op, comm, NULL));
		break;
	case FERRY_BROADCAST:
		OK(ferryBroadcast(call->send, call->receive, call->count, call->type, call->root, comm, NULL));
		break;
	case FERRY_REDUCE_TO_ROOT:
		OK(ferryReduce(call->send, call->receive, call->count, call->type, call->op, call->root, comm, NULL));
		break;
	case FERRY_GATHER:
		OK(ferryGather(call->send, call->receive, call->count, call->type, call->root, comm, NULL));
		break;
	case FERRY_SCATTER:
		OK(ferryScatter(call->send, call->receive, call->count, call->type, call->root, comm, NULL));
		break;
	default:
		OK(ferryAllToAll(call->send, call->receive, call->count, call->type, comm, NULL));
	}
}

/* Elements that the rank receives. */
static size_t received(const struct perf_call *call)
{
	size_t n = (size_t)call->nranks;
	bool at_root = call->rank == call->root;
	switch (call->collective) {
	case FERRY_ALLGATHER:
	case FERRY_ALLTOALL:
		return n * call->count;
	case FERRY_GATHER:
		return at_root ? n * call->count : 0;
	case FERRY_REDUCE_TO_ROOT:
		return at_root ? call->count : 0;
	default:
		return call->count;
	}
}

static void place(struct perf_call *call, struct buffers *buffers, bool in_place)
{
	size_t element = ferry_type_size(call->type), block = call->count * element * (size_t)call->rank;
	/* One element off: aligned to the element and to nothing more. */
	char *send = buffers->send[call->rank] + GUARD + element, *receive = buffers->receive[call->rank] + GUARD + element;
	bool mine = call->rank == call->root;
	memset(buffers->send[call->rank], 0x3c, buffers->room);
	memset(buffers->receive[call->rank], 0x3c, buffers->room);
	call->send = send;
	call->receive = receive;
	if (!in_place)
		return;
	if (call->collective == FERRY_ALLGATHER || (call->collective == FERRY_GATHER && mine))
		call->send = receive + block;
	else if (call->collective == FERRY_REDUCESCATTER || (call->collective == FERRY_SCATTER && mine))
		call->receive = send + block;
	else if (call->collective != FERRY_GATHER && call->collective != FERRY_SCATTER)
		call->send = receive;
}

static bool untouched(const char *from, size_t bytes)
{
	for (size_t i = 0; i < bytes; i++)
		if (from[i] != 0x3c)
			return false;
	return true;
}

static void check_one(const struct perf_call *call, const struct buffers *buffers, bool in_place)
{
	const char *receive = call->receive;
	size_t bytes = received(call) * ferry_type_size(call->type);
	char what[160];
	snprintf(what, sizeof what, "%s of %zu %s, %s, rank %d of %d, root %d%s", ferry_collective_name(call->collective), call->count,
	         ferry_type_name(call->type), ferry_redop_name(call->op), call->rank, call->nranks, call->root,
	         in_place ? ", in place" : "");
	long long wrong = perf_count_wrong(call, receive);
	if (wrong)
		fail_msg("%s: %lld elements wrong", what, wrong);
	if (in_place && (call->collective == FERRY_REDUCESCATTER || call->collective == FERRY_SCATTER))
		return; /* the guard is the other blocks, which are the input */
	if (!untouched(receive - GUARD, GUARD) || !untouched(receive + bytes, GUARD))
		if (!in_place || call->collective == FERRY_ALLGATHER)
			fail_msg("%s: bytes beyond the result were written", what);
	(void)buffers;
}

static void run_one(struct ranks *ranks, struct buffers *buffers, const struct perf_call *what, bool in_place)
{
	struct perf_call calls[FERRY_MAX_RANKS];
	for (int rank = 0; rank < ranks->count; rank++) {
		calls[rank] = *what;
		calls[rank].rank = rank;
		calls[rank].nranks = ranks->count;
		place(&calls[rank], buffers, in_place);
		perf_fill(&calls[rank], (char *)calls[rank].send);
	}
	for (int rank = 0; rank < ranks->count; rank++)
		start(&calls[rank], ranks->comms[rank]);
	OK(ferryStreamSynchronize(NULL));
	for (int rank = 0; rank < ranks->count; rank++)
		check_one(&calls[rank], buffers, in_place);
}

static void run_matrix(int count, int domains, const size_t *counts, int ncounts)
{
	struct ranks ranks;
	struct buffers buffers;
	open_ranks(&ranks, count, domains);
	allocate(&buffers, count);
	for (int collective = 0; collective <= FERRY_ALLTOALL; collective++)
		for (int type = 0; type < ferryNumTypes; type++)
			for (int op = 0; op < (ferry_collective_reduces((enum ferry_collective)collective) ? ferryNumOps : 1); op++)
				for (int i = 0; i < ncounts; i++)
					for (int in_place = 0; in_place < 2; in_place++)
						run_one(&ranks, &buffers,
						        &(struct perf_call){.collective = (enum ferry_collective)collective, .type = (ferryDataType_t)type,
						                            .op = (ferryRedOp_t)op, .count = counts[i], .root = (type + op) % count},
						        in_place);
	release(&buffers, count);
	close_ranks(&ranks);
}

static const size_t small_counts[] = {0, 1, 7, 1000};
static const size_t large_counts[] = {33, LARGEST - 3};

static void one_rank_gets_its_own_result(void **state)
{
	(void)state;
	run_matrix(1, 1, small_counts, 4);
}

static void two_ranks_in_one_domain_agree_with_the_reference(void **state)
{
	(void)state;
	run_matrix(2, 1, small_counts, 4);
	run_matrix(2, 1, large_counts, 2);
}

static void three_ranks_in_two_domains_agree_with_the_reference(void **state)
{
	(void)state;
	run_matrix(3, 2, small_counts, 4);
}

static void five_ranks_in_three_domains_agree_with_the_reference(void **state)
{
	(void)state;
	run_matrix(5, 3, large_counts, 2);
}

static void two_ranks_in_eight_domains_agree_with_the_reference(void **state)
{
	(void)state;
	run_matrix(2, 8, small_counts, 4);
}

static void one_slot_windows_give_the_same_results(void **state)
{
	(void)state;
	setenv("FERRY_WINDOW", "1", 1);
	setenv("FERRY_SLICE", "128", 1);
	run_matrix(3, 2, small_counts, 4);
	unsetenv("FERRY_WINDOW");
	unsetenv("FERRY_SLICE");
}

static void results_have_the_same_bits_in_every_run(void **state)
{
	(void)state;
	struct ranks ranks;
	static float input[4][5000], first[5000], again[4][5000];
	open_ranks(&ranks, 4, 2);
	for (int rank = 0; rank < 4; rank++)
		for (int i = 0; i < 5000; i++)
			input[rank][i] = (float)((i * 7919 + rank * 104729) % 10007) * 1.1e-3f - 3.7f;
	for (int run = 0; run < 20; run++) {
		for (int rank = 0; rank < 4; rank++) {
			int shuffled = (rank * 3 + run) % 4; /* another order of arrival */
			OK(ferryAllReduce(input[shuffled], again[shuffled], 5000, ferryFloat32, ferrySum, ranks.comms[shuffled], NULL));
		}
		OK(ferryStreamSynchronize(NULL));
		if (!run)
			memcpy(first, again[0], sizeof first);
		for (int rank = 0; rank < 4; rank++)
			assert_memory_equal(first, again[rank], sizeof first);
	}
	close_ranks(&ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_rank_gets_its_own_result),
		cmocka_unit_test(two_ranks_in_one_domain_agree_with_the_reference),
		cmocka_unit_test(three_ranks_in_two_domains_agree_with_the_reference),
		cmocka_unit_test(five_ranks_in_three_domains_agree_with_the_reference),
		cmocka_unit_test(two_ranks_in_eight_domains_agree_with_the_reference),
		cmocka_unit_test(one_slot_windows_give_the_same_results),
		cmocka_unit_test(results_have_the_same_bits_in_every_run),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
