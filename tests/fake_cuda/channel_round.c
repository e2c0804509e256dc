/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_cuda/channel_round.h"

#include "rank-lib/include/ferry_device.cuh"
#include "tests/fake_cuda/fake_cuda.h"

#define BLOCKS  3u
#define THREADS 5u
#define BYTES   1016u /* a multiple of 8, not of 16 */
#define SPAN    1024u /* of a place of bytes; one of packets has twice as much */

static void *reached(const void *address)
{
	return fake_cuda_reach((CUdeviceptr)(uintptr_t)address);
}

ferryChannels_t channels_reached(const ferryChannels_t *channels)
{
	ferryChannels_t c = *channels;
	for (int r = 0; r < c.nranks; r++) {
		c.memory[r] = reached(c.memory[r]);
		c.signals[r] = reached(c.signals[r]);
	}
	c.counters = reached(c.counters);
	c.abort = reached(c.abort);
	return c;
}

static uint64_t place(int sender, uint32_t block, uint32_t flag)
{
	return (((flag & 1) * BLOCKS + block) * FERRY_CHANNEL_RANKS + (uint32_t)sender) * 3 * SPAN;
}

/* What a rank says to another one. */
static void say(uint64_t *words, int from, int to, uint32_t block, uint32_t flag)
{
	for (uint32_t i = 0; i < BYTES / 8; i++)
		words[i] = i + 0x9e3779b97f4a7c15ull * (flag * 256ull + block * 64 + (uint32_t)(from * 8 + to));
}

static void send(const ferryChannels_t *c, uint32_t block, uint32_t flag)
{
	_Alignas(16) uint64_t words[SPAN / 8];
	for (int r = 0; r < c->nranks; r++) {
		say(words, c->rank, r, block, flag);
		for (uint32_t thread = 0; thread < THREADS; thread++) {
			ferryPut(c, r, place(c->rank, block, flag), words, BYTES, thread, THREADS);
			ferryPutPackets(c, r, place(c->rank, block, flag) + SPAN, words, BYTES, flag, thread, THREADS);
		}
		ferrySignal(c, r, block);
	}
}

static void receive(struct channel_round *round, const ferryChannels_t *c, uint32_t block, uint32_t flag)
{
	uint64_t expected[SPAN / 8], words[SPAN / 8];
	for (int r = 0; r < c->nranks && !round->given_up; r++) {
		const uint64_t packets = place(r, block, flag) + SPAN;
		say(expected, r, c->rank, block, flag);
		for (uint32_t thread = 0; thread < THREADS && !round->given_up; thread++)
			round->given_up = !ferryReadPackets(c, packets, words, BYTES, flag, thread, THREADS);
		round->given_up = round->given_up || !ferryWait(c, r, block);
		if (!round->given_up)
			round->wrong |= memcmp(words, expected, BYTES) != 0 ||
			                memcmp(c->memory[c->rank] + place(r, block, flag), expected, BYTES) != 0;
	}
}

void channel_round(void *argument)
{
	struct channel_round *round = argument;
	const ferryChannels_t c = channels_reached(&round->channels);
	uint32_t flags[BLOCKS];
	for (uint32_t block = 0; block < BLOCKS && !round->given_up; block++) {
		flags[block] = ferryFlag(&c, block);
		send(&c, block, flags[block]);
	}
	for (uint32_t block = 0; block < BLOCKS && !round->given_up; block++) {
		receive(round, &c, block, flags[block]);
		ferryEndRound(&c, block);
		round->flag = flags[block];
	}
	round->rounds += !round->given_up;
}
