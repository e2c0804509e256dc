/* SPDX-License-Identifier: Apache-2.0 */
/** Making a communicator. Called by the application's threads; blocks until all ranks have attached. */
#ifndef FERRY_RANK_LIB_API_COMM_INIT_H
#define FERRY_RANK_LIB_API_COMM_INIT_H

#include "ferry.h"
#include "rank-lib/attach/routers.h"
#include "rank-lib/failover/rank.h"

/**
 * Makes a communicator, as ferryCommInitRankConfig does. routers: those of the parent communicator; NULL: chosen by
 * `config`. maker: says when to give up waiting for ranks that have not come; NULL: after FERRY_ATTACH_TIMEOUT.
 */
ferryResult_t ferry_comm_make(ferryComm_t *comm, int nranks, const uint8_t *key, int rank, const ferryConfig_t *config,
                              const struct ferry_routers *routers, const struct ferry_maker *maker);

#endif
