/* SPDX-License-Identifier: Apache-2.0 */
/** Configurations of communicators as older and newer releases have them: `size` is the number of bytes. */
#ifndef FERRY_RANK_LIB_API_CONFIG_H
#define FERRY_RANK_LIB_API_CONFIG_H

#include "ferry.h"

/**
 * The first release's fields. Every later release begins with them, and has no padding behind, which might not be zero.
 */
#define FERRY_CONFIG_LEAST (offsetof(ferryConfig_t, staging) + sizeof(uint64_t))
#define FERRY_CONFIG_MOST 4096

/**
 * Reads `given`, perhaps from a program that was built for another release, over the defaults in `config`, of `bytes`
 * bytes; both begin with their size. Fields that an older program lacks keep their defaults. A newer one's is taken if
 * it asks for nothing unknown: all bytes beyond `bytes` are zero. given NULL: the defaults. `function` is for the
 * message. Error: ferryInvalidArgument, with the sizes.
 */
ferryResult_t ferry_config_read(const char *function, const void *given, void *config, size_t bytes);

#endif
