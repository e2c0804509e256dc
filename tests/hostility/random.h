/* SPDX-License-Identifier: Apache-2.0 */
/** What a hostile rank writes: values that are little off, bounds, or anything; the same again for the same seed. */
#ifndef FERRY_TESTS_HOSTILITY_RANDOM_H
#define FERRY_TESTS_HOSTILITY_RANDOM_H

#include <stdint.h>

static inline uint64_t random_next(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static inline uint64_t random_below(uint64_t *state, uint64_t limit)
{
	return random_next(state) % limit;
}

/** A state for the n-th thing of a seed; never 0. */
static inline uint64_t random_begin(uint64_t seed, uint64_t n)
{
	uint64_t state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (n + 1) * UINT64_C(0xbf58476d1ce4e5b9);
	state = state ? state : 1;
	random_next(&state);
	random_next(&state);
	return state;
}

/** In place of `before`. */
static inline uint64_t random_value(uint64_t *state, uint64_t before)
{
	static const uint64_t values[] = {0, 1, 2, 3, 63, 64, 1023, 1024, 4096, 1ull << 16, UINT32_MAX, 1ull << 32,
	                                  1ull << 33, 7ull << 32, 1ull << 55, INT64_MAX, UINT64_MAX};
	switch (random_below(state, 6)) {
	case 0:
		return before + random_below(state, 9) - 4;
	case 1:
		return before ^ 1ull << random_below(state, 64);
	case 2:
		return before + ((random_below(state, 9) - 4) << 32);
	case 3:
		return random_next(state);
	default:
		return values[random_below(state, sizeof values / sizeof *values)];
	}
}

#endif
