/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Exports: a rank's device buffers, as the rank names them and its routers have them mapped. A rank exports an
 * allocation once, over its socket (struct ferry_exported), under an index of its choice; from then on it names buffers
 * by {index, generation, offset}. A generation is what an index names from one export to the next, numbered from 1. The
 * same allocation keeps its generation, also when it is exported again.
 *
 * An export cell says whether the router still has the export mapped. Writers: `used` the rank, `mapped` the router.
 *
 *   rank, to use it:   used = number of its submission; full fence; mapped == generation? Else it exports it again.
 *   router, to forget: mapped = LEAVING; full fence; used > last submission that has ended? Then mapped = generation.
 *
 * Once the memory is unmapped, mapped = 0; a rank that frees memory waits for that. One of the two sees the other's
 * store, so nothing is unmapped that a submission names (router/gpu/imports.h has the argument).
 */
#ifndef FERRY_IPC_EXPORT_H
#define FERRY_IPC_EXPORT_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stddef.h>

#define FERRY_MOST_EXPORTS 1024u /* indexes of a rank */
#define FERRY_MOST_PIECES  240u  /* of an export: a descriptor each in one message */
#define FERRY_EXPORT_PINNED                                                                                            \
	UINT64_MAX /* `used`: a captured call or ferryCommRegister names it; never forgotten for being idle */
#define FERRY_EXPORT_LEAVING UINT64_MAX /* `mapped`: forgotten for being idle, and still to be unmapped */

/** A buffer of a rank, as its submissions name it. */
struct ferry_buffer_name {
	uint32_t index;
	uint32_t reserved;
	uint64_t generation;
	uint64_t offset; /* bytes from the start of what was exported */
};

struct ferry_export_cell {
	/* rank: number of its last submission that names the index, from 1; or FERRY_EXPORT_PINNED */
	_Atomic uint64_t used;
	_Atomic uint64_t mapped; /* router: the generation that it has mapped, 0: none, FERRY_EXPORT_LEAVING */
};

enum ferry_exported_kind {
	FERRY_EXPORTED_IPC = 1, /* a whole allocation of cudaMalloc */
	FERRY_EXPORTED_VMM,     /* physical pieces mapped one behind another, a descriptor each */
};

/** EXPORT's payload: the first ferry_exported_size bytes are sent. */
struct ferry_exported {
	uint32_t index;
	uint32_t kind;
	uint64_t generation;
	uint64_t bytes;     /* of the whole */
	uint8_t gpu[16];    /* the UUID, which no CUDA_VISIBLE_DEVICES changes */
	uint8_t handle[64]; /* IPC: a CUipcMemHandle */
	uint32_t npieces;   /* VMM */
	uint32_t put_target; /* 1: others put into it, too: it is mapped for their GPUs as well; else 0 */
	uint64_t lengths[FERRY_MOST_PIECES]; /* VMM: bytes of each, in the order of addresses; their sum is `bytes` */
};

#define FERRY_EXPORTED_LEAST offsetof(struct ferry_exported, lengths)

/** Returns the bytes up to the last piece's length. */
static inline size_t ferry_exported_size(const struct ferry_exported *exported)
{
	return FERRY_EXPORTED_LEAST + exported->npieces * sizeof exported->lengths[0];
}

/**
 * Reads an export out of untrusted bytes that came with `ndescriptors` descriptors. Error: ferryInvalidArgument, with
 * the values, if its length does not fit its pieces, its index, generation, kind or lengths are out of range, or it has
 * not one descriptor per piece.
 */
ferryResult_t ferry_exported_read(const void *bytes, size_t length, uint32_t ndescriptors,
                                  struct ferry_exported *exported);

#endif
