/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Whether a kernel carries a call, and which: one function of what is the same on all ranks (the collective, its size,
 * the mailboxes), never of addresses, streams or captures, so that all ranks choose alike. Pure.
 */
#ifndef FERRY_RANK_LIB_KERNELS_CHOICE_H
#define FERRY_RANK_LIB_KERNELS_CHOICE_H

#include "ipc/collective.h"

#include <stdbool.h>
#include <stdint.h>

enum ferry_kernel {
	FERRY_KERNEL_NONE,
	FERRY_KERNEL_LL,       /* 8 bytes of data in a packet of 16, a flag beside each half */
	FERRY_KERNEL_LL128,    /* 120 bytes of data in a line of 128: peer memory */
	FERRY_KERNEL_BULK,     /* a chunk of data, then one flag: host memory */
	FERRY_NUM_KERNELS
};

struct ferry_kernel_facts {
	enum ferry_collective collective;
	uint64_t bytes;     /* of a block: what one rank sends to another one at most */
	uint32_t nranks;
	bool peer;          /* mailboxes in peer memory, else in host memory */
	uint64_t box_bytes; /* data bytes of a half */
	uint32_t blocks;    /* at most: FERRY_KERNELS, or a quarter of the multiprocessors */
};

struct ferry_kernel_choice {
	enum ferry_kernel kernel;
	uint32_t blocks, threads;
	uint32_t chunk;  /* bulk */
	bool two_phases; /* LL128 */
};

struct ferry_kernel_choice ferry_kernel_choose(const struct ferry_kernel_facts *facts);

#endif
