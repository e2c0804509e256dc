/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A device's buffers in other processes of the machine. The process that owns a buffer exports it: a handle of plain
 * bytes, to be sent over any socket or collective. Another process imports it: a pointer for copies of its own device,
 * then a close.
 *
 * The owner writes a handle and nobody changes it; it may be exported and imported as often as one likes. The owner
 * keeps the allocation until all who import it have closed it: what becomes of copies otherwise is undefined.
 *
 * Nobody has to trust a handle: a damaged one is refused, and so is one that names more than there is. But whoever has
 * it can reach the whole allocation around the buffer, and where the driver puts small allocations together, its
 * neighbours.
 */
#ifndef FERRY_DEVICE_EXPORT_H
#define FERRY_DEVICE_EXPORT_H

#include "ipc/ferry_types.h"

struct ferry_device;

/** A handle. All sizes in bytes; no padding. */
struct ferry_export {
	char kind[8];             /* of the device, then zeros */
	int64_t process;          /* the owner's id, for messages */
	uint64_t allocation;      /* size of the allocation around the buffer */
	uint64_t offset, bytes;   /* of the buffer in it */
	unsigned char device[16]; /* cuda: the GPU's UUID, which no CUDA_VISIBLE_DEVICES changes */
	unsigned char name[64];   /* of the allocation, for the driver: cuda: a CUipcMemHandle */
	uint64_t check;           /* of all that is before it */
};

/** An exported buffer in this process. */
struct ferry_imported {
	void *address; /* of the buffer */
	void *mapping; /* of the allocation: the backend's */
};

/**
 * Names the bytes to other processes, without looking at streams: what is in them is up to the owner.
 * Errors: ferryInvalidUsage if this kind of device cannot export, ferryInvalidArgument, with the reason, if this memory
 * cannot be exported (cuda: only what cudaMalloc gives can, at any offset), the driver's refusal as
 * ferryUnhandledDeviceError.
 */
ferryResult_t ferry_device_export(struct ferry_device *device, const void *buffer, size_t bytes,
                                  struct ferry_export *handle);

/**
 * Opens a buffer of which `bytes` will be used: copies of `device` may name them from imported->address on. Every
 * import needs a close of its own, also where several are of one allocation. Errors: ferryInvalidArgument for a handle
 * that is damaged, of another kind of device, of fewer bytes, or of a device that this process does not see;
 * ferryInvalidUsage if `device` cannot reach that device, or if this process itself has exported the buffer (CUDA opens
 * it only in others); the driver's refusal as ferryUnhandledDeviceError. Nothing is then open.
 */
ferryResult_t ferry_device_import(struct ferry_device *device, const struct ferry_export *handle, size_t bytes,
                                  struct ferry_imported *imported);

/** Copies that name the buffer have finished. Nothing happens where nothing is open. */
void ferry_device_import_close(struct ferry_device *device, struct ferry_imported *imported);

/** Fills in handle->check; for backends. */
void ferry_export_seal(struct ferry_export *handle);

/** ferrySuccess for a handle as a device of that kind has made it, consistent in itself; for backends. */
ferryResult_t ferry_export_check(const struct ferry_export *handle, const char *kind);

#endif
