/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/key.h"

#include "ipc/hash.h"

/* A hash twice, with different beginnings. */
struct ferry_nccl_key ferry_nccl_key(const struct ferry_nccl_key *parent, const void *bytes, size_t count)
{
	struct ferry_nccl_key key = {{FERRY_HASH_START, UINT64_C(0x84222325cbf29ce4)}};
	for (int i = 0; i < 2; i++) {
		key.words[i] ^= parent ? parent->words[i] * UINT64_C(0x9e3779b97f4a7c15) : 0;
		key.words[i] = ferry_hash(key.words[i], bytes, count);
	}
	return key;
}
