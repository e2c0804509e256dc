/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/device/export.h"

#include "ipc/error.h"
#include "rank-lib/device/device.h"

#include <stddef.h>
#include <string.h>

_Static_assert(offsetof(struct ferry_export, check) == 120 && sizeof(struct ferry_export) == 128,
               "a handle is all fields");

/* FNV-1a: against damage on the way, not against forgery. */
static uint64_t check_of(const struct ferry_export *handle)
{
	const unsigned char *bytes = (const unsigned char *)handle;
	uint64_t check = 0xcbf29ce484222325ull;
	for (size_t i = 0; i < offsetof(struct ferry_export, check); i++)
		check = (check ^ bytes[i]) * 0x100000001b3ull;
	return check;
}

void ferry_export_seal(struct ferry_export *handle)
{
	handle->check = check_of(handle);
}

ferryResult_t ferry_export_check(const struct ferry_export *handle, const char *kind)
{
	uint64_t check = check_of(handle);
	if (handle->check != check)
		return ferry_fail(ferryInvalidArgument,
		                  "the handle of a buffer is damaged: it says %016llx, its bytes make %016llx",
		                  (unsigned long long)handle->check, (unsigned long long)check);
	if (strncmp(handle->kind, kind, sizeof handle->kind))
		return ferry_fail(ferryInvalidArgument, "the handle is of a buffer of a %.8s device; this device is %s",
		                  handle->kind, kind);
	if (!handle->bytes || handle->offset > handle->allocation ||
	    handle->bytes > handle->allocation - handle->offset)
		return ferry_fail(ferryInvalidArgument, "the handle is of %llu bytes at %llu of an allocation of %llu",
		                  (unsigned long long)handle->bytes, (unsigned long long)handle->offset,
		                  (unsigned long long)handle->allocation);
	return ferrySuccess;
}

ferryResult_t ferry_device_export(struct ferry_device *device, const void *buffer, size_t bytes,
                                  struct ferry_export *handle)
{
	if (!device->ops->export_buffer)
		return ferry_fail(ferryInvalidUsage,
		                  "buffer %p: buffers of a %s device cannot be exported to other processes", buffer,
		                  device->ops->kind);
	if (!bytes)
		return ferry_fail(ferryInvalidArgument, "buffer %p of 0 bytes cannot be exported", buffer);
	return device->ops->export_buffer(device, buffer, bytes, handle);
}

ferryResult_t ferry_device_import(struct ferry_device *device, const struct ferry_export *given, size_t bytes,
                                  struct ferry_imported *imported)
{
	struct ferry_export handle = *given; /* checked and used as one: whoever sent it may still reach it */
	*imported = (struct ferry_imported){0};
	ferryResult_t result = ferry_export_check(&handle, device->ops->kind);
	if (result)
		return result;
	if (!device->ops->import_buffer)
		return ferry_fail(ferryInvalidUsage, "a %s device cannot import buffers of other processes",
		                  device->ops->kind);
	if (bytes > handle.bytes)
		return ferry_fail(ferryInvalidArgument,
		                  "%zu bytes of an exported buffer are wanted; its handle is of %llu", bytes,
		                  (unsigned long long)handle.bytes);
	return device->ops->import_buffer(device, &handle, imported);
}

void ferry_device_import_close(struct ferry_device *device, struct ferry_imported *imported)
{
	if (imported->mapping)
		device->ops->import_close(device, imported);
	*imported = (struct ferry_imported){0};
}
