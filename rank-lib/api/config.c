/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/api/config.h"

#include "ipc/error.h"

#include <stddef.h>
#include <string.h>

ferryResult_t ferry_config_read(const char *function, const void *given, void *config, size_t bytes)
{
	size_t size;
	if (!given)
		return ferrySuccess;
	memcpy(&size, given, sizeof size);
	if (size < FERRY_CONFIG_LEAST || size > FERRY_CONFIG_MOST)
		return ferry_fail(ferryInvalidArgument,
		                  "%s: a configuration of size %zu (FERRY_CONFIG_INITIALIZER has %zu)", function, size,
		                  bytes);
	for (size_t i = bytes; i < size; i++)
		if (((const unsigned char *)given)[i])
			return ferry_fail(ferryInvalidArgument,
			                  "%s: a configuration of size %zu asks, in byte %zu, for what this release "
			                  "does not know: its own has %zu bytes",
			                  function, size, i, bytes);
	memcpy(config, given, size < bytes ? size : bytes);
	memcpy(config, &bytes, sizeof bytes);
	return ferrySuccess;
}
