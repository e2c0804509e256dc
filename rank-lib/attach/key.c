/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/attach/key.h"

#include "ipc/error.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

static uint64_t mix(uint64_t value)
{
	value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9ull;
	value = (value ^ value >> 27) * 0x94d049bb133111ebull;
	return value ^ value >> 31;
}

void ferry_derive_key(uint8_t *key, const uint8_t *from, uint64_t first, uint64_t second)
{
	uint64_t half[2];
	memcpy(half, from, sizeof half);
	uint64_t low = mix(half[0] ^ mix(first + 0x9e3779b97f4a7c15ull) ^ mix(half[1] + second));
	uint64_t high = mix(half[1] ^ mix(second + 0xd1b54a32d192ed03ull) ^ mix(low + first));
	memcpy(key, &low, sizeof low);
	memcpy(key + sizeof low, &high, sizeof high);
}

ferryResult_t ferry_random_key(uint8_t *key)
{
	if (getrandom(key, FERRY_KEY_BYTES, 0) != FERRY_KEY_BYTES)
		return ferry_fail(ferrySystemError, "getrandom: %s", strerror(errno));
	return ferrySuccess;
}
