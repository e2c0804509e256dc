/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Promises of the kernel of messages, compiled as C, with a thread for each rank and block, and boxes in ordinary
 * memory: random groups of messages come whole and in order, in both layouts of the boxes, kernel behind kernel without
 * any other synchronization, also where a rank makes one after another what another one makes in a group, and where
 * numbers wrap; and what waits is free when it is given up.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>

#include "rank-lib/kernels/choice.h"
#include "tests/fake_cuda/kernels_emulated.h"
#include "tests/sanitized.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BOX_BYTES 4096u
#define GROUPS    REPEATS(60, 16)
#define TINY      120 /* groups before those, where numbers wrap: so many that slots are filled whole meanwhile */
#define PER_WAY   3 /* messages of a group, at most */
#define MOST      (1500u << 10)
#define AHEAD     0x40000000u

struct job {
	uint32_t nranks, begin;
	bool shared;
	uint64_t seed;
	char *boxes[FERRY_KERNEL_RANKS];
	_Alignas(8) uint32_t abort[16]; /* and what follows it */
};

struct player {
	struct job *job;
	uint32_t rank;
	struct ferry_kernel_state state;
	char *buffers[FERRY_MESSAGE_WAYS][PER_WAY];
	char wrong[160];
};

static uint64_t next(uint64_t *state)
{
	*state += 0x9e3779b97f4a7c15ull;
	uint64_t z = (*state ^ *state >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Lengths of the messages from one rank to another in a group: the same at both ends. Returns how many. */
static uint32_t lengths_of(const struct job *job, uint32_t group, uint32_t from, uint32_t to, uint32_t lengths[PER_WAY])
{
	uint64_t random = job->seed + ((group * 64ull + from) * 64 + to) * 7919;
	uint32_t count = (uint32_t)(next(&random) % (PER_WAY + 1)), kind = group % 4;
	if (group >= GROUPS)
		count = 2;
	else if (kind == 0) /* a ring, now and then of a message that has to go on piece by piece */
		count = to == (from + 1) % job->nranks;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t size = next(&random);
		uint32_t most = kind == 0 && group % 16 == 0 ? MOST : kind == 1 ? 200000 : 3000;
		lengths[i] = 1 + (uint32_t)(size % (group < GROUPS ? most : 100));
	}
	return count;
}

UNSEEN static char byte_of(const struct job *job, uint32_t group, uint32_t from, uint32_t to, uint32_t message,
                           uint32_t at)
{
	uint32_t x = (uint32_t)job->seed + group * 31 + from * 7 + to * 5 + message * 3 + at / 8;
	return (char)((x * 2654435761u >> 13) + at);
}

static void set_boxes(const struct job *job, uint32_t rank, struct ferry_kernel_call *call)
{
	const uint64_t region = FERRY_BOX_REGION(BOX_BYTES, job->shared);
	call->box_bytes = BOX_BYTES;
	call->out_shared = job->shared;
	call->rank = rank;
	call->nranks = job->nranks;
	call->abort = (uint32_t *)(uintptr_t)job->abort;
	for (uint32_t r = 0; r < job->nranks; r++) {
		call->out[r] = job->shared ? job->boxes[rank] : job->boxes[r] + rank * region;
		call->in[r] = job->shared ? job->boxes[r] : job->boxes[rank] + r * region;
	}
}

/* Adds messages of the way, in the order of the argument. */
static void add(const struct player *player, uint32_t way, const uint32_t *lengths, uint32_t count,
                struct ferry_kernel_messages *all, uint32_t *messages)
{
	for (uint32_t i = 0; i < count; i++) {
		uint32_t piece = ferry_kernel_message_piece(lengths[i], !player->job->shared);
		all->messages[(*messages)++] =
		        (struct ferry_kernel_message){player->buffers[way][i] + i, lengths[i], piece};
		all->pieces[way] += (lengths[i] + piece - 1) / piece;
	}
}

/* ways: bit w: the kernel has those of way w. */
static void launch(struct player *player, uint32_t group, uint32_t ways)
{
	struct ferry_kernel_messages all = {.messages = {{0}}};
	const struct job *job = player->job;
	uint32_t messages = 0, strands = FERRY_MESSAGE_STRANDS(job->shared);
	uint64_t random = job->seed + group * 8 + player->rank;
	set_boxes(job, player->rank, &all.call);
	all.call.state = &player->state;
	for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++) {
		uint32_t peer = way % FERRY_KERNEL_RANKS, lengths[PER_WAY];
		bool sends = way < FERRY_KERNEL_RANKS;
		all.items[way + 1] = all.items[way];
		all.first[way] = (uint16_t)messages;
		if (peer >= job->nranks || !(ways >> way & 1))
			continue;
		uint32_t count = lengths_of(job, group, sends ? player->rank : peer, sends ? peer : player->rank,
		                            lengths);
		add(player, way, lengths, count, &all, &messages);
		if (peer == player->rank)
			all.pieces[way] = 0;
		all.items[way + 1] += (uint16_t)(all.pieces[way] < strands ? all.pieces[way] : strands);
	}
	uint32_t blocks = 1 + (uint32_t)(next(&random) % 5);
	if (messages && !ferry_kernel_emulate("ferry_messages_u8", &all, blocks, 64u << next(&random) % 5))
		snprintf(player->wrong, sizeof player->wrong, "there is no such kernel");
}

UNSEEN static void each_byte(struct player *player, uint32_t group, bool fill)
{
	const struct job *job = player->job;
	for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++) {
		uint32_t peer = way % FERRY_KERNEL_RANKS, lengths[PER_WAY];
		bool sends = way < FERRY_KERNEL_RANKS;
		uint32_t from = sends ? player->rank : peer, to = sends ? peer : player->rank;
		uint32_t count = peer < job->nranks ? lengths_of(job, group, from, to, lengths) : 0;
		for (uint32_t i = 0; i < count; i++) {
			char *bytes = player->buffers[way][i] + i;
			if (fill && !sends)
				memset(player->buffers[way][i], 0x77, lengths[i] + i + 8);
			for (uint32_t at = 0; at < lengths[i] && !player->wrong[0]; at++) {
				char byte = byte_of(job, group, from, to, i, at);
				if (fill && sends)
					bytes[at] = byte;
				else if (!fill && bytes[at] != byte)
					snprintf(player->wrong, sizeof player->wrong,
					         "group %u, message %u of %u bytes from %u to %u of %u: byte %u",
					         group, i, lengths[i], from, to, job->nranks, at);
			}
			if (!fill && !sends && bytes[lengths[i]] != 0x77)
				snprintf(player->wrong, sizeof player->wrong, "group %u writes too far", group);
		}
	}
}

/* One rank makes one after another what the others make in a group, now and then, and receives first. */
static void *play(void *argument)
{
	struct player *player = argument;
	uint32_t own = 1u << player->rank | 1u << (FERRY_KERNEL_RANKS + player->rank);
	for (uint32_t turn = 0; turn < (player->job->begin ? TINY : 0) + GROUPS; turn++) {
		uint32_t group = player->job->begin ? (turn + GROUPS) % (TINY + GROUPS) : turn;
		each_byte(player, group, true);
		if (group % player->job->nranks == player->rank && group % 3 == 0) {
			for (uint32_t way = FERRY_KERNEL_RANKS; way < FERRY_MESSAGE_WAYS; way++)
				launch(player, group, (1u << way) & ~own);
			for (uint32_t way = 0; way < FERRY_KERNEL_RANKS; way++)
				launch(player, group, (1u << way) & ~own);
			launch(player, group, own);
		} else {
			launch(player, group, ~0u);
		}
		each_byte(player, group, false);
	}
	return NULL;
}

/* The slots from one rank to another. */
static uint32_t *slots_of(const struct job *job, uint32_t from, uint32_t to)
{
	uint64_t slots = job->shared ? to * FERRY_MESSAGE_SLOTS(true) * (uint64_t)FERRY_MESSAGE_SLOT
	                             : from * FERRY_BOX_REGION(BOX_BYTES, false);
	return (uint32_t *)(void *)(job->boxes[job->shared ? from : to] + FERRY_BOX_SLOTS(BOX_BYTES) + slots);
}

/* As 2^32 pieces later: words of slots are flags of pieces to come, or, `left`, are none any more. */
static void make_old(const struct job *job, uint32_t from, uint32_t to, bool left)
{
	uint32_t *slots = slots_of(job, from, to), words = FERRY_MESSAGE_SLOTS(job->shared) * (FERRY_MESSAGE_SLOT / 4);
	for (uint32_t i = 0; i < (job->shared ? 1 : 2) * words; i++) {
		bool is_flag = i < words ? i % 2 : i % 32 >= 30; /* of a packet, of a line */
		if (!left)
			slots[i] = job->begin + AHEAD + i;
		else if (is_flag && slots[i] - job->begin >= AHEAD)
			fail_msg("from %u to %u a flag is left of %u pieces ahead", from, to, slots[i] - job->begin);
	}
}

/* The receivers have read all pieces before. */
static void make_words(const struct job *job, uint32_t rank)
{
	for (uint32_t region = 0; region < (job->shared ? 1 : job->nranks); region++) {
		char *at = job->boxes[rank] + region * FERRY_BOX_REGION(BOX_BYTES, job->shared);
		for (uint32_t i = 0; i < 1024; i++)
			((uint32_t *)(void *)(at + FERRY_BOX_READ(BOX_BYTES)))[i] = job->begin;
	}
}

static void check(uint32_t nranks, bool shared, uint32_t begin, uint64_t seed)
{
	struct job job = {.nranks = nranks, .shared = shared, .begin = begin, .seed = seed};
	struct player *players = calloc(nranks, sizeof *players);
	pthread_t threads[FERRY_KERNEL_RANKS];
	for (uint32_t r = 0; r < nranks; r++) {
		job.boxes[r] = calloc(shared ? 1 : nranks, FERRY_BOX_REGION(BOX_BYTES, shared));
		players[r].job = &job;
		players[r].rank = r;
		for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++) {
			players[r].state.moved[way] = begin;
			players[r].state.known[way % FERRY_KERNEL_RANKS] = begin;
			players[r].state.credit[way % FERRY_KERNEL_RANKS] = begin;
			for (uint32_t i = 0; i < PER_WAY; i++)
				players[r].buffers[way][i] = malloc(MOST + 16);
		}
	}
	for (uint32_t r = 0; r < nranks && begin; r++) {
		make_words(&job, r);
		for (uint32_t to = 0; to < nranks; to++)
			if (to != r)
				make_old(&job, r, to, false);
	}
	for (uint32_t r = 0; r < nranks; r++)
		assert_int_equal(pthread_create(&threads[r], NULL, play, &players[r]), 0);
	for (uint32_t r = 0; r < nranks; r++)
		pthread_join(threads[r], NULL);
	for (uint32_t pair = 0; pair < nranks * nranks && begin; pair++)
		if (pair / nranks != pair % nranks)
			make_old(&job, pair / nranks, pair % nranks, true);
	for (uint32_t r = 0; r < nranks; r++) {
		if (players[r].wrong[0])
			fail_msg("rank %u: %s", r, players[r].wrong);
		assert_int_equal((uint32_t)players[r].state.counts, 0); /* of calls, which these are not */
		assert_true(players[r].state.counts >> 32 >= GROUPS / 2);
		free(job.boxes[r]);
		for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way++)
			for (uint32_t i = 0; i < PER_WAY; i++)
				free(players[r].buffers[way][i]);
	}
	free(players);
}

static void messages_of_groups_come_by_inboxes(void **unused)
{
	(void)unused;
	for (uint32_t nranks = 2; nranks <= 4; nranks++)
		check(nranks, false, 0, nranks);
}

static void messages_of_groups_come_by_outboxes(void **unused)
{
	(void)unused;
	for (uint32_t nranks = 2; nranks <= 4; nranks++)
		check(nranks, true, 0, 10 + nranks);
}

static void numbers_may_wrap(void **unused)
{
	(void)unused;
	for (int shared = 0; shared < 2; shared++) {
		check(3, shared, -150u, 20 + (uint64_t)shared);
		check(3, shared, FERRY_KERNEL_SWEEP - 150, 30 + (uint64_t)shared);
	}
}

/* The other rank never comes: neither what it would send, nor more room. */
static void what_waits_is_free_when_it_is_given_up(void **unused)
{
	(void)unused;
	for (uint32_t way = 0; way < FERRY_MESSAGE_WAYS; way += FERRY_KERNEL_RANKS) {
		for (int shared = 0; shared < 2; shared++) {
			struct job job = {.nranks = 2, .shared = shared, .abort = {1}};
			struct ferry_kernel_state state = {0};
			struct ferry_kernel_messages all = {.messages = {{0}}};
			char *bytes = calloc(1, MOST);
			for (uint32_t r = 0; r < 2; r++)
				job.boxes[r] = calloc(shared ? 1 : 2, FERRY_BOX_REGION(BOX_BYTES, shared));
			set_boxes(&job, 0, &all.call);
			all.call.state = &state;
			state.moved[way + 1] = FERRY_MESSAGE_SLOTS(shared) - 1; /* room for one more piece */
			uint32_t piece = ferry_kernel_message_piece(MOST, !shared);
			all.messages[0] = (struct ferry_kernel_message){bytes, MOST, piece};
			all.pieces[way + 1] = (MOST + piece - 1) / piece;
			for (uint32_t after = way + 2; after <= FERRY_MESSAGE_WAYS; after++)
				all.items[after] = FERRY_MESSAGE_STRANDS(shared);
			assert_true(ferry_kernel_emulate("ferry_messages_u8", &all, 3, 256));
			assert_int_equal(state.given_up, 1);
			const uint32_t *waits = &job.abort[FERRY_KERNEL_MESSAGE_WAITS / sizeof(uint32_t)];
			assert_int_equal(waits[0], 1); /* to or from rank 1 */
			assert_int_equal(state.counts, 1ull << 32);
			for (uint32_t r = 0; r < 2; r++)
				free(job.boxes[r]);
			free(bytes);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(messages_of_groups_come_by_inboxes),
	        cmocka_unit_test(messages_of_groups_come_by_outboxes),
	        cmocka_unit_test(numbers_may_wrap),
	        cmocka_unit_test(what_waits_is_free_when_it_is_given_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
