/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/export.h"

#include "ipc/error.h"

#include <string.h>

#define MOST_BYTES (1ull << 46) /* 64 TiB: no GPU has as much, and no sum of lengths overflows */

static ferryResult_t check_pieces(const struct ferry_exported *exported, uint32_t ndescriptors)
{
	uint64_t sum = 0;
	if (exported->npieces < 1 || exported->npieces != ndescriptors)
		return ferry_fail(ferryInvalidArgument, "an export of %u pieces with %u descriptors", exported->npieces,
		                  ndescriptors);
	for (uint32_t i = 0; i < exported->npieces; i++) {
		if (exported->lengths[i] < 1 || exported->lengths[i] > MOST_BYTES)
			return ferry_fail(ferryInvalidArgument, "piece %u of an export has %llu bytes", i,
			                  (unsigned long long)exported->lengths[i]);
		sum += exported->lengths[i]; /* 240 times 2^46 at most */
	}
	if (sum != exported->bytes)
		return ferry_fail(ferryInvalidArgument, "an export of %llu bytes, whose %u pieces have %llu",
		                  (unsigned long long)exported->bytes, exported->npieces, (unsigned long long)sum);
	return ferrySuccess;
}

ferryResult_t ferry_exported_read(const void *bytes, size_t length, uint32_t ndescriptors,
                                  struct ferry_exported *exported)
{
	if (length < FERRY_EXPORTED_LEAST || length > sizeof *exported)
		return ferry_fail(ferryInvalidArgument, "an export of %zu bytes: %zu to %zu", length,
		                  FERRY_EXPORTED_LEAST, sizeof *exported);
	memset(exported, 0, sizeof *exported);
	memcpy(exported, bytes, length);
	if (exported->npieces > FERRY_MOST_PIECES || ferry_exported_size(exported) != length)
		return ferry_fail(ferryInvalidArgument, "an export of %u pieces (at most %u) in %zu bytes",
		                  exported->npieces, FERRY_MOST_PIECES, length);
	if (exported->index >= FERRY_MOST_EXPORTS || !exported->generation ||
	    exported->generation == FERRY_EXPORT_LEAVING || !exported->bytes ||
	    exported->bytes > MOST_BYTES)
		return ferry_fail(ferryInvalidArgument,
		                  "export %u (at most %u), generation %llu (from 1), of %llu bytes", exported->index,
		                  FERRY_MOST_EXPORTS - 1, (unsigned long long)exported->generation,
		                  (unsigned long long)exported->bytes);
	if (exported->put_target > 1)
		return ferry_fail(ferryInvalidArgument, "export %u: put_target is %u, not 0 or 1", exported->index,
		                  exported->put_target);
	if (exported->kind == FERRY_EXPORTED_VMM)
		return check_pieces(exported, ndescriptors);
	if (exported->kind != FERRY_EXPORTED_IPC || exported->npieces || ndescriptors)
		return ferry_fail(ferryInvalidArgument, "an export of kind %u with %u pieces and %u descriptors",
		                  exported->kind, exported->npieces, ndescriptors);
	return ferrySuccess;
}
