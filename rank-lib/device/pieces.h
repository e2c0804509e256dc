/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The memory that a buffer lies in, as an exporter sees it: one allocation, or pieces of physical memory mapped one
 * behind another. A piece's id is unique in this process: memory that is freed and allocated again at the same address
 * has another id.
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
	 * Finds the pieces that a buffer lies in. Errors: ferryInvalidUsage, for this reason alone, if the memory
	 * cannot be exported (from a pool, without a shareable handle, in more pieces than an export may have);
	 * ferryInvalidArgument if it is no memory of this device.
	 */
	ferryResult_t (*find)(struct ferry_device *device, const void *buffer, uint64_t bytes,
	                      struct ferry_pieces *pieces);
	/** Whether each piece still has the id that it had when it was found: the memory has not been freed. */
	bool (*are_there)(struct ferry_device *device, const struct ferry_piece *pieces, uint32_t count);
	/**
	 * Fills in kind, bytes, handle, lengths and descriptors; the caller closes the descriptors. Error:
	 * ferryInvalidArgument if the pieces no longer exist.
	 */
	ferryResult_t (*name)(struct ferry_device *device, const struct ferry_pieces *pieces,
	                      struct ferry_exported *exported, int *descriptors);
	/**
	 * Allocates memory of the device that can be exported, for Ferry's own use; a multiple of 4 bytes. Errors: the
	 * driver's.
	 */
	ferryResult_t (*allocate)(struct ferry_device *device, uint64_t bytes, void **memory);
	void (*release)(struct ferry_device *device, void *memory);
	/**
	 * A small piece of such memory that stays until the process ends, the same for all callers. It is never freed,
	 * because freeing waits for all work of the device, which may wait for a rank that is dead. Errors: the
	 * driver's.
	 */
	ferryResult_t (*sample)(struct ferry_device *device, struct ferry_piece *lasting);
};

#endif
