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
	FERRY_KERNEL_LL_GROUP, /* LL, of several calls side by side; chosen for none alone */
	FERRY_KERNEL_LL128,    /* 120 bytes of data in a line of 128: peer memory */
	FERRY_KERNEL_BULK,     /* a chunk of data, then one flag: host memory */
	FERRY_KERNEL_REDUCE,   /* of blocks that copies have brought; chosen for no call alone */
	FERRY_KERNEL_ADD,      /* ADDs of a program, as their sources come; chosen for no call alone */
	FERRY_KERNEL_MESSAGES, /* Sends and Recvs of a group; chosen for no collective, and loaded for uint8 alone */
	FERRY_NUM_KERNELS
};

struct ferry_kernel_facts {
	enum ferry_collective collective;
	uint64_t bytes;     /* of a block: what one rank sends to another one at most */
	uint32_t nranks;
	bool peer;          /* mailboxes in peer memory, else in host memory */
	uint64_t box_bytes; /* data bytes of a half */
	uint32_t blocks;    /* at most: FERRY_KERNELS, or a quarter of the multiprocessors; */
	uint32_t line_blocks; /* of LL128 */
};

struct ferry_kernel_choice {
	enum ferry_kernel kernel;
	uint32_t blocks, threads;
	uint32_t chunk;  /* bulk */
	bool two_phases; /* LL128 */
};

struct ferry_kernel_choice ferry_kernel_choose(const struct ferry_kernel_facts *facts);

/** Returns the most bytes of a message that a kernel carries. */
uint64_t ferry_kernel_message_most(uint32_t nranks, bool peer);

/** Bytes of a piece of such a message: 2, 4 or 8 KiB, or FERRY_MESSAGE_LINES. */
uint32_t ferry_kernel_message_piece(uint64_t bytes, bool peer);

/** Returns how many bytes of a half the call's packets take, if LL is chosen for it: a multiple of 16. */
uint64_t ferry_kernel_packets(const struct ferry_kernel_facts *facts);

/**
 * Shares one kernel's blocks among the LL calls of a group. *threads: the most that any of them has. Lowers the blocks
 * of each, to 1 at least, until they are no more than `most` together. most: count at least.
 */
void ferry_kernel_share_blocks(struct ferry_kernel_choice *choices, const uint64_t *bytes, uint32_t count,
                               uint32_t most, uint32_t *threads);

#endif
