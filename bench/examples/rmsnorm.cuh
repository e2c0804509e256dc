/* SPDX-License-Identifier: Apache-2.0 */
/*
 * AllReduce, the residual's addition and RMSNorm of bfloat16 rows, as the threads of a block share them. A row is one
 * block's: row r has channel r % FERRY_CHANNELS, which is the block's number. Compiled as CUDA by rmsnorm.cu, and as C
 * by a test.
 */
#ifndef RMSNORM_CUH
#define RMSNORM_CUH

#include "ferry_device.cuh"

struct rmsnorm {
	ferryChannels_t channels;
	const uint64_t *input;  /* rows of this rank's summand; or of the sum, */
	int summed;             /* if this is 1 */
	uint64_t *residual;     /* rows: becomes residual + sum */
	const uint64_t *weight; /* a row */
	uint64_t *output;       /* rows: the new residual / its root mean square * weight */
	uint32_t rows, words;   /* words of 4 elements, of a row */
	float epsilon;
};

/* Bytes of packets that a sender has for a channel, in each half of the receiver's memory. */
FERRY_DEVICE uint64_t rmsnorm_slot(const ferryChannels_t *c)
{
	return c->bytes / (2 * FERRY_CHANNELS * (uint32_t)c->nranks) / 16 * 16;
}

FERRY_DEVICE uint64_t rmsnorm_place(const struct rmsnorm *n, int sender, uint32_t row, uint32_t flag)
{
	const ferryChannels_t *c = &n->channels;
	const uint32_t channel = (flag & 1) * FERRY_CHANNELS + row % FERRY_CHANNELS;
	return (channel * (uint32_t)c->nranks + (uint32_t)sender) * rmsnorm_slot(c) +
	       row / FERRY_CHANNELS * 16ull * n->words;
}

/* Sends this rank's row to all others. */
FERRY_DEVICE void rmsnorm_send(const struct rmsnorm *n, uint32_t row, uint32_t flag, uint32_t thread, uint32_t threads)
{
	const ferryChannels_t *c = &n->channels;
	for (int r = 0; r < c->nranks; r++)
		if (r != c->rank)
			ferryPutPackets(c, r, rmsnorm_place(n, c->rank, row, flag), n->input + (uint64_t)row * n->words,
			                8ull * n->words, flag, thread, threads);
}

/* Word i of the sum of all ranks' rows. Where the communicator has failed it is anything. */
FERRY_DEVICE uint64_t rmsnorm_sum(const struct rmsnorm *n, uint32_t row, uint32_t i, uint32_t flag)
{
	const ferryChannels_t *c = &n->channels;
	const uint64_t own = n->input[(uint64_t)row * n->words + i];
	uint64_t words[FERRY_CHANNEL_RANKS] = {0};
	if (n->summed)
		return own;
	FERRY_UNROLL
	for (int r = 0; r < FERRY_CHANNEL_RANKS; r++)
		if (r == c->rank)
			words[r] = own;
		else if (r < c->nranks)
			ferryReadPacket(c, rmsnorm_place(n, r, row, flag) + 16ull * i, &words[r], flag);
	return ferrySumWords(ferryBfloat16, words, c->nranks);
}

/* Adds the sum to the residual. Returns the sum of squares of what this thread has of it. */
FERRY_DEVICE float rmsnorm_add(const struct rmsnorm *n, uint32_t row, uint32_t flag, uint32_t thread, uint32_t threads)
{
	float squares = 0;
	for (uint32_t i = thread; i < n->words; i += threads) {
		uint64_t *residual = &n->residual[(uint64_t)row * n->words + i], total = 0;
		const uint64_t sum = rmsnorm_sum(n, row, i, flag), before = *residual;
		FERRY_UNROLL
		for (uint32_t j = 0; j < 4; j++) {
			float value = ferryNumber(ferryBfloat16, sum, j) + ferryNumber(ferryBfloat16, before, j);
			total |= ferryPlaced(ferryBfloat16, value, j);
			value = ferryNumber(ferryBfloat16, total, j);
			squares += value * value;
		}
		*residual = total;
	}
	return squares;
}

/* factor: 1 / the root of the mean square. */
FERRY_DEVICE void rmsnorm_scale(const struct rmsnorm *n, uint32_t row, float factor, uint32_t thread, uint32_t threads)
{
	for (uint32_t i = thread; i < n->words; i += threads) {
		const uint64_t word = n->residual[(uint64_t)row * n->words + i], weight = n->weight[i];
		uint64_t scaled = 0;
		FERRY_UNROLL
		for (uint32_t j = 0; j < 4; j++)
			scaled |= ferryPlaced(ferryBfloat16,
			                      ferryNumber(ferryBfloat16, word, j) * factor *
			                              ferryNumber(ferryBfloat16, weight, j),
			                      j);
		n->output[(uint64_t)row * n->words + i] = scaled;
	}
}

#endif
