/* SPDX-License-Identifier: Apache-2.0 */
/** A hash of bytes (FNV-1a): to tell texts and keys apart, where nobody gains by making two that are equal. */
#ifndef FERRY_IPC_HASH_H
#define FERRY_IPC_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define FERRY_HASH_START UINT64_C(0xcbf29ce484222325)

/** Returns the hash of what `hash` is of, FERRY_HASH_START being of nothing, with these bytes behind it. */
static inline uint64_t ferry_hash(uint64_t hash, const void *bytes, size_t count)
{
	const unsigned char *at = bytes;
	for (size_t i = 0; i < count; i++)
		hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/** Likewise of a text, without its end. */
static inline uint64_t ferry_hash_text(uint64_t hash, const char *text)
{
	return ferry_hash(hash, text, strlen(text));
}

#endif
