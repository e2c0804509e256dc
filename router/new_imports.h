/* SPDX-License-Identifier: Apache-2.0 */
/**
 * New imports: what a rank exports, mapped and put into its table (router/imports.h), and for the other GPUs that put
 * into it as soon as it is known which those are. The mapper's thread alone calls this; nothing is mapped under the
 * table's lock.
 */
#ifndef FERRY_ROUTER_NEW_IMPORTS_H
#define FERRY_ROUTER_NEW_IMPORTS_H

#include "router/imports.h"

/* Descriptors that are kept for a rank's exports until all ranks have come, at most: other jobs need some, too. */
#define FERRY_MOST_LATER_PIECES 2048u

/**
 * Maps what the rank exports, in the place of an older generation of that index; the same generation again only says
 * that it is mapped, and, now exported as a landing, maps it for the other GPUs, too. Errors: ferryInvalidArgument (an
 * older generation, another GPU, the same generation with other bytes), ferryRefused (too many replaced ones are still
 * in use), those of ferry_gpu_map. The index then names what it named before.
 */
ferryResult_t ferry_new_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported,
                                    const int *descriptors);

/**
 * They are known: maps for them what has been exported as a landing, older generations too, and from now on at once.
 * Errors: those of ferry_gpu_map; the rest is mapped by another call.
 */
ferryResult_t ferry_new_imports_land_later(struct ferry_imports *imports);

/**
 * That has failed. A guest's calls go on meanwhile, by its own router, and its memory is freed behind them, which may
 * be why: what could not be mapped is forgotten, and the rest may be mapped by another call. `used` does not tell
 * whether it is named still: other memory may have the index by now. Who does name it finds nothing to put into.
 * False: the rank is no guest.
 */
bool ferry_new_imports_do_without(struct ferry_imports *imports);

#endif
