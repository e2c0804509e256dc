/* SPDX-License-Identifier: Apache-2.0 */
/** Configurations of communicators as older and newer releases know them: `size` says how many bytes there are. */
#ifndef FERRY_RANK_LIB_API_CONFIG_H
#define FERRY_RANK_LIB_API_CONFIG_H

#include "ferry.h"

/** What the first release had. Every later one has it in front, and no padding behind it, which might not be zero. */
#define FERRY_CONFIG_LEAST (offsetof(ferryConfig_t, staging) + sizeof(uint64_t))
#define FERRY_CONFIG_MOST 4096

/**
 * Reads `given`, of a program that was built for another release perhaps, over the defaults in `config`, of `bytes`
 * bytes; both begin with their size. What an older program does not know keeps its default. A newer one's is taken if
 * it asks for nothing that is not known here: what is behind ours is zero. given NULL: the defaults. `function` is for
 * the message. ferryInvalidArgument, with the sizes.
 */
ferryResult_t ferry_config_read(const char *function, const void *given, void *config, size_t bytes);

#endif
