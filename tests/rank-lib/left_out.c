/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of calls that leave a part of every block to others, on host devices: the rest comes, at its exact offset,
 * and no other byte is touched; ranks must agree on how much that is.
 */
#include "tests/api_ranks.h"
#include "tests/sanitized.h"

#include "rank-lib/api/group.h"
#include "rank-lib/call/comm.h"

#include <string.h>

#define MOST_RANKS 8
#define MOST_COUNT 5000
#define BEFORE     64 /* bytes before and behind a buffer */
#define ROOM       (MOST_RANKS * MOST_COUNT * 8 + 2 * BEFORE)
#define ROUNDS     REPEATS(60, 24)

struct call {
	enum ferry_collective collective;
	ferryDataType_t type;
	size_t count, element;
	struct ferry_left_out left_out;
	int nranks, root;
	bool in_place;
	uint64_t salt;
};

static unsigned char in[MOST_RANKS][ROOM], out[MOST_RANKS][ROOM], wanted[MOST_RANKS][ROOM];
static uint64_t seed = 1;

static uint64_t draw(uint64_t most)
{
	seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (seed >> 33) % most;
}

static uint64_t input(const struct call *c, int rank, size_t i)
{
	uint64_t all = ((uint64_t)rank << 40 ^ i ^ c->salt) * UINT64_C(0xff51afd7ed558ccd);
	return all ^ all >> 29;
}

static uint64_t output(const struct call *c, int rank, size_t block, size_t i)
{
	size_t mine = (size_t)rank * c->count + i;
	uint64_t sum = 0;
	switch (c->collective) {
	case FERRY_REDUCESCATTER:
		for (int from = 0; from < c->nranks; from++)
			sum += input(c, from, mine);
		return sum;
	case FERRY_ALLTOALL:
		return input(c, (int)block, mine);
	case FERRY_SCATTER:
		return input(c, c->root, mine);
	default:
		return input(c, (int)block, i);
	}
}

static size_t send_blocks(const struct call *c, int rank)
{
	bool all = c->collective == FERRY_REDUCESCATTER || c->collective == FERRY_ALLTOALL;
	if (c->collective == FERRY_SCATTER)
		return rank == c->root ? (size_t)c->nranks : 0;
	return all ? (size_t)c->nranks : 1;
}

static size_t receive_blocks(const struct call *c, int rank)
{
	bool all = c->collective == FERRY_ALLGATHER || c->collective == FERRY_ALLTOALL;
	if (c->collective == FERRY_GATHER)
		return rank == c->root ? (size_t)c->nranks : 0;
	return all ? (size_t)c->nranks : 1;
}

/* The first or, mirrored, of odd ranks' blocks the last ones are moved. */
static bool is_moved(const struct call *c, int rank, size_t block, size_t i)
{
	bool own = c->collective == FERRY_REDUCESCATTER || c->collective == FERRY_SCATTER;
	if (c->left_out.mirrored && c->collective != FERRY_ALLTOALL && (own ? (size_t)rank : block) % 2)
		return i >= c->left_out.count;
	return i < c->count - c->left_out.count;
}

static void find_places(const struct call *c, int rank, unsigned char **send, unsigned char **receive)
{
	size_t mine = (size_t)rank * c->count * c->element;
	*send = (c->in_place ? out[rank] : in[rank]) + BEFORE;
	*receive = out[rank] + BEFORE;
	if (c->in_place && (c->collective == FERRY_ALLGATHER || (c->collective == FERRY_GATHER && rank == c->root)))
		*send += mine;
	if (c->in_place &&
	    (c->collective == FERRY_REDUCESCATTER || (c->collective == FERRY_SCATTER && rank == c->root)))
		*receive += mine;
}

static void prepare(const struct call *c, int rank)
{
	unsigned char *send, *receive;
	memset(in[rank], 0xa5, ROOM);
	memset(out[rank], 0xa5, ROOM);
	find_places(c, rank, &send, &receive);
	unseen(true);
	for (size_t i = 0; i < send_blocks(c, rank) * c->count; i++) {
		uint64_t value = input(c, rank, i);
		memcpy(send + i * c->element, &value, c->element);
	}
	memcpy(wanted[rank], out[rank], ROOM);
	for (size_t block = 0; block < receive_blocks(c, rank); block++)
		for (size_t i = 0; i < c->count; i++) {
			uint64_t value = output(c, rank, block, i);
			if (is_moved(c, rank, block, i))
				memcpy(wanted[rank] + (receive - out[rank]) + (block * c->count + i) * c->element,
				       &value, c->element);
		}
	unseen(false);
}

/* Into the group that is open. */
static ferryResult_t make(const struct call *c, int rank, ferryComm_t comm)
{
	unsigned char *send, *receive;
	find_places(c, rank, &send, &receive);
	if (rank != c->root && c->collective == FERRY_SCATTER)
		send = NULL;
	if (rank != c->root && c->collective == FERRY_GATHER)
		receive = NULL;
	return ferry_group_call(&(struct ferry_request){c->collective, send, receive, c->count, c->type,
	                                                .root = c->root, .comm = comm, .left_out = c->left_out});
}

static struct call draw_call(int nranks)
{
	static const enum ferry_collective kinds[] = {FERRY_ALLGATHER, FERRY_REDUCESCATTER, FERRY_ALLTOALL,
	                                              FERRY_GATHER, FERRY_SCATTER};
	static const ferryDataType_t types[] = {ferryUint8, ferryUint32, ferryUint64};
	struct call c = {.collective = kinds[draw(5)], .type = types[draw(3)], .nranks = nranks};
	c.salt = draw(1u << 30);
	c.element = ferry_type_size(c.type);
	c.count = draw(4) ? 1 + draw(MOST_COUNT) : draw(9);
	c.left_out.count = draw(8) ? draw(c.count + 1) : c.count;
	c.left_out.mirrored = draw(2);
	c.root = (int)draw((uint64_t)nranks);
	c.in_place = draw(2); /* an AllToAll too */
	return c;
}

static void compare(const struct call *c, int rank)
{
	bool same = !memcmp(out[rank], wanted[rank], ROOM); /* ThreadSanitizer looks at bytes one by one */
	for (size_t i = 0; i < ROOM && !same; i++)
		if (out[rank][i] != wanted[rank][i])
			fail_msg("rank %d of %d: %s of %zu elements of %zu bytes, %llu left out%s, root %d%s: byte %zu "
			         "is %02x, not %02x",
			         rank, c->nranks, ferry_collective_name(c->collective), c->count, c->element,
			         (unsigned long long)c->left_out.count, c->left_out.mirrored ? ", mirrored" : "",
			         c->root, c->in_place ? ", in place" : "", i, out[rank][i], wanted[rank][i]);
}

static void play(int nranks, int domains)
{
	struct ranks ranks;
	open_ranks(&ranks, nranks, domains);
	for (int round = 0; round < ROUNDS; round++) {
		struct call c = draw_call(nranks);
		for (int rank = 0; rank < nranks; rank++)
			prepare(&c, rank);
		OK(ferryGroupStart());
		for (int rank = 0; rank < nranks; rank++)
			OK(make(&c, rank, ranks.comms[rank]));
		OK(ferryGroupEnd());
		OK(ferryStreamSynchronize(NULL));
		for (int rank = 0; rank < nranks; rank++)
			compare(&c, rank);
	}
	close_ranks(&ranks);
}

static void what_is_not_left_out_comes_through_the_host(void **state)
{
	(void)state;
	for (int nranks = 1; nranks <= MOST_RANKS; nranks++)
		play(nranks, nranks % 2 ? 1 : 2);
}

static void and_by_pushes(void **state)
{
	(void)state;
	setenv("FERRY_FABRICS", "peer", 1);
	for (int nranks = 2; nranks <= MOST_RANKS; nranks += 3)
		play(nranks, 1);
	setenv("FERRY_FABRICS", "host,peer", 1);
	setenv("FERRY_SHARES", "host:0.4", 1);
	play(4, 2);
	unsetenv("FERRY_SHARES");
	unsetenv("FERRY_FABRICS");
}

static void what_cannot_be_left_out_is_refused(void **state)
{
	(void)state;
	struct ranks ranks;
	struct ferry_request request = {FERRY_ALLGATHER, in[0], out[0], 10, ferryInt, .left_out = {11, false}};
	open_ranks(&ranks, 2, 1);
	request.comm = ranks.comms[0];
	OK(ferryGroupStart());
	assert_int_equal(ferry_group_call(&request), ferryInvalidArgument);
	assert_non_null(strstr(ferryGetLastError(NULL), "allgather: 11 elements of blocks of 10 are left out"));
	assert_int_equal(ferryGroupEnd(), ferryInvalidArgument);
	OK(ferryGroupStart());
	request.collective = FERRY_SENDRECV;
	request.root = request.left_out.count = 1;
	assert_int_equal(ferry_group_call(&request), ferryInvalidArgument);
	assert_int_equal(ferryGroupEnd(), ferryInvalidArgument);
	close_ranks(&ranks);
}

/* Also where what one moves lies within what the other does. */
static void ranks_that_leave_out_different_parts_all_learn_it(void **state)
{
	(void)state;
	static const struct ferry_left_out of_rank_1[] = {
	        {.count = 0}, {.count = 101}, {.count = 100, .mirrored = true}};
	for (size_t i = 0; i < sizeof of_rank_1 / sizeof *of_rank_1; i++) {
		struct call c = {
		        .collective = FERRY_ALLGATHER, .type = ferryInt, .count = 1000, .nranks = 2, .element = 4};
		struct ranks ranks;
		open_ranks(&ranks, 2, 1);
		OK(ferryGroupStart());
		for (int rank = 0; rank < 2; rank++) {
			c.left_out = rank ? of_rank_1[i] : (struct ferry_left_out){.count = 100};
			OK(make(&c, rank, ranks.comms[rank]));
		}
		ferryGroupEnd(); /* the later rank may learn of it as it calls */
		assert_int_not_equal(ferryStreamSynchronize(NULL), ferrySuccess);
		for (int rank = 0; rank < 2; rank++) {
			ferryResult_t error;
			OK(ferryCommGetAsyncError(ranks.comms[rank], &error));
			assert_int_equal(error, ferryInvalidUsage);
			const char *said = ferryGetLastError(ranks.comms[rank]);
			if (!strstr(said, "their parts, programs or FERRY_ settings differ"))
				fail_msg("\"%s\"", said);
			assert_int_equal(ferryCommDestroy(ranks.comms[rank]), ferryInvalidUsage);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(what_is_not_left_out_comes_through_the_host),
	        cmocka_unit_test(and_by_pushes),
	        cmocka_unit_test(what_cannot_be_left_out_is_refused),
	        cmocka_unit_test(ranks_that_leave_out_different_parts_all_learn_it),
	};
	setenv("FERRY_DEVICE", "host", 1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
