/* SPDX-License-Identifier: Apache-2.0 */
/** Making a communicator. By the application's threads; blocks until all ranks have come. */
#ifndef FERRY_RANK_LIB_COMM_INIT_H
#define FERRY_RANK_LIB_COMM_INIT_H

#include "ferry.h"
#include "rank-lib/attach/routers.h"

#include <stdatomic.h>
#include <stdbool.h>

/**
 * routers: those of the communicator that this one comes out of, or NULL: as `config` says. abandoned: set by another
 * thread, it is waited no longer for ranks that have not come; NULL: nobody does.
 */
ferryResult_t ferry_comm_make(ferryComm_t *comm, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
                              const struct ferry_routers *routers, const _Atomic bool *abandoned);

#endif
