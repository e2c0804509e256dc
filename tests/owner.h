/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The owner of memory that others import: a child process over the double of the driver, which allocates, exports and
 * frees as it is told. Byte k * PIECE of what it owns is k + 1.
 */
#ifndef FERRY_TESTS_OWNER_H
#define FERRY_TESTS_OWNER_H

#include "router/gpu/imports.h"
#include "tests/fake_cuda/cuda_api.h"

#define ROOM  (6u << 20) /* of an allocation */
#define PIECE (2u << 20)

enum order_kind { ALLOCATE, FREE, CREATE, UNMAP, LEFT };

struct order {
	enum order_kind kind;
	CUdeviceptr at;
	uint32_t npieces;
};

struct answer {
	struct ferry_exported exported; /* but index and generation */
	CUdeviceptr at;
	uint64_t left;
	int descriptors[FERRY_MOST_PIECES];
};

/**
 * Before this process calls the driver, which is the double of a machine of that name and this process's number, with
 * GPUs of so many bytes; 0: of as many as it gives them. False: it cannot be started.
 */
bool owner_start(const char *machine, unsigned long long memory);
void owner_end(void);

struct answer owner_tell(struct order order);

/** Those of an answer that nobody has taken. */
void owner_drop_descriptors(struct answer *answer);

/** An allocation of ROOM bytes, to be exported under that index and generation. */
struct answer owner_allocate(uint32_t index, uint64_t generation);

/** Of the GPU, as the owner sees it. */
uint64_t owner_memory_left(void);

#endif
