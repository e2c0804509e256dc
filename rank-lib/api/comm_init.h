/* SPDX-License-Identifier: Apache-2.0 */
/** Making a communicator. By the application's threads; blocks until all ranks have come. */
#ifndef FERRY_RANK_LIB_API_COMM_INIT_H
#define FERRY_RANK_LIB_API_COMM_INIT_H

#include "ferry.h"
#include "rank-lib/attach/routers.h"
#include "rank-lib/failover/rank.h"

/**
 * routers: those of the communicator that this one comes out of, or NULL: as `config` says. maker: who may want it no
 * longer, and then ranks that have not come are not waited for; NULL: nobody does.
 */
ferryResult_t ferry_comm_make(ferryComm_t *comm, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
                              const struct ferry_routers *routers, const struct ferry_maker *maker);

#endif
