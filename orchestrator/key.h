/* SPDX-License-Identifier: Apache-2.0 */
/** The key by which all ranks know a communicator of NCCL's: made of what they all have, its unique id above all. */
#ifndef FERRY_ORCHESTRATOR_KEY_H
#define FERRY_ORCHESTRATOR_KEY_H

#include <stddef.h>
#include <stdint.h>

/** A communicator's name, the same on all its ranks and in all their processes. */
struct ferry_nccl_key {
	uint64_t words[2];
};

/** A key made of bytes, and of a key and more bytes. */
struct ferry_nccl_key ferry_nccl_key(const struct ferry_nccl_key *parent, const void *bytes, size_t count);

#endif
