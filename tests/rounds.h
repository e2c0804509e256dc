/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Rounds of calls that may push from GPU to GPU, over the double of the driver. A round is a kernel that fills the
 * buffers, the call, and a kernel that judges, so that a push that comes early shows in the round before.
 */
#ifndef FERRY_TESTS_ROUNDS_H
#define FERRY_TESTS_ROUNDS_H

#include "tests/fake_cuda/places.h"

#include <stdbool.h>

#define MOST_BYTES 300007 /* of a block */

enum kind { ALLGATHER, ALLTOALL, BROADCAST, GATHER, SCATTER, RING, EXCHANGE, UNEVEN, KINDS };

/* What all ranks of a call have in common. */
struct what {
	enum kind kind;
	size_t bytes, offset; /* of a block; of the buffers in their allocations */
	int nranks, root;
	bool in_place;
};

struct rank {
	const struct what *what;
	int rank, device, late_ms;
	CUstream stream;
	CUdeviceptr memory[2];
	char *send, *receive;
	uint32_t filled, judged; /* rounds; the kernels' */
	size_t wrong; /* stretches of what has come */
};

/** The host's view of a buffer. */
unsigned char *seen(char *address);

/** A kernel: the round's bytes into the send buffer. */
void fill(void *argument);

/** A kernel: whether the round's bytes have arrived. */
void judge(void *argument);

/** Streams and buffers of all ranks; pooled: of memory that cannot be exported. Close looks at the bytes around. */
void ranks_open(struct rank *ranks, const struct what *what, const struct gang *gang, bool pooled);
void ranks_close(struct rank *ranks, const struct gang *gang);

void call(const struct rank *mine, ferryComm_t comm);

/** Waits for all ranks, which have made so many rounds, and fails for what was wrong. */
void settle(struct rank *ranks, const struct gang *gang, uint32_t rounds);

/** Rounds of one call, back to back; late: a rank that comes late, or -1. */
void rounds_of(const struct gang *gang, struct what what, int rounds, int late, bool pooled);

/** Every kind, in place and not, of such blocks; back to back, with one rank that comes late. */
void all_kinds(const struct gang *gang, size_t bytes, size_t offset, bool pooled);

/** As gang_open, but several ranks may be on one device; FERRY_FABRICS and FERRY_SHARES as given, or unset. */
void open_with(struct gang *gang, int nranks, const int *devices, const char *fabrics, const char *shares);

void round_of(struct rank *ranks, const struct gang *gang);

#endif
