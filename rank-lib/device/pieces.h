/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The memory that a buffer lies in, as who exports it sees it: one allocation, or pieces of physical memory mapped one
 * behind another. A piece's id is never another's in this process: memory that is freed and allocated again at the same
 * address has another.
 */
#ifndef FERRY_DEVICE_PIECES_H
#define FERRY_DEVICE_PIECES_H

#include "ipc/export.h"

#include <stdbool.h>

struct ferry_device;

struct ferry_piece {
	uint64_t start, bytes;
	uint64_t id;
};

struct ferry_pieces {
	enum ferry_exported_kind kind; /* IPC: one piece, the whole allocation */
	uint32_t count;
	struct ferry_piece all[FERRY_MOST_PIECES]; /* in the order of addresses, without gaps */
};

struct ferry_pieces_ops {
	/** The device's UUID. */
	ferryResult_t (*identify)(struct ferry_device *device, uint8_t uuid[16]);
	/**
	 * The pieces that a buffer lies in. ferryInvalidUsage, and that for nothing else: it is memory that cannot be
	 * exported (a pool's, without a shareable handle, in more pieces than an export may have);
	 * ferryInvalidArgument: it is no memory of this device.
	 */
	ferryResult_t (*find)(struct ferry_device *device, const void *buffer, uint64_t bytes,
	                      struct ferry_pieces *pieces);
	/** Whether they are what they were when they were found. */
	bool (*are_there)(struct ferry_device *device, const struct ferry_piece *pieces, uint32_t count);
	/**
	 * Fills in kind, bytes, handle and lengths, and as many descriptors, which are the caller's.
	 * ferryInvalidArgument: the pieces are not there any more.
	 */
	ferryResult_t (*name)(struct ferry_device *device, const struct ferry_pieces *pieces,
	                      struct ferry_exported *exported, int *descriptors);
	/**
	 * Memory of the device that can be exported, for Ferry's own use; a multiple of 4 bytes. Errors: the driver's.
	 */
	ferryResult_t (*allocate)(struct ferry_device *device, uint64_t bytes, void **memory);
	void (*release)(struct ferry_device *device, void *memory);
	/**
	 * A little of the same that is there until the process ends: to free memory waits for all that the device does,
	 * which may wait for a rank that is dead. The same for all who ask. Errors: the driver's.
	 */
	ferryResult_t (*sample)(struct ferry_device *device, struct ferry_piece *lasting);
};

#endif
