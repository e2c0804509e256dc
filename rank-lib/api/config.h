/* SPDX-License-Identifier: Apache-2.0 */
/** Configurations of communicators as older and newer releases have them: `size` is the number of bytes. */
#ifndef FERRY_RANK_LIB_API_CONFIG_H
#define FERRY_RANK_LIB_API_CONFIG_H

#include "ferry.h"

/* Bytes of the first release's fields. Every later release begins with them, and ends without padding. */
#define FERRY_CONFIG_LEAST (offsetof(ferryConfig_t, staging) + sizeof(uint64_t))
#define FERRY_CONFIG_MOST 4096

/**
 * Copies `given`, perhaps of a program that was built for another release, over the defaults in `config`, of `bytes`
 * bytes; both begin with their size. Fields that an older program lacks keep their defaults. A newer program's fields
 * beyond `bytes` must be zero. given NULL: keeps the defaults. `function` is for the message. Error:
 * ferryInvalidArgument, with the sizes.
 */
ferryResult_t ferry_config_read(const char *function, const void *given, void *config, size_t bytes);

#endif
