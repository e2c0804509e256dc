/* SPDX-License-Identifier: Apache-2.0 */
#include "orchestrator/key.h"

/* FNV-1a, twice, with different beginnings. */
struct ferry_nccl_key ferry_nccl_key(const struct ferry_nccl_key *parent, const void *bytes, size_t count)
{
	struct ferry_nccl_key key = {{UINT64_C(0xcbf29ce484222325), UINT64_C(0x84222325cbf29ce4)}};
	const unsigned char *text = bytes;
	for (int i = 0; i < 2; i++) {
		key.words[i] ^= parent ? parent->words[i] * UINT64_C(0x9e3779b97f4a7c15) : 0;
		for (size_t at = 0; at < count; at++)
			key.words[i] = (key.words[i] ^ text[at]) * UINT64_C(0x100000001b3);
	}
	return key;
}
