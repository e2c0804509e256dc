/* SPDX-License-Identifier: Apache-2.0 */
/** The reductions that an application has created on a communicator: ferryRedOpCreatePreMulSum. Any thread. */
#ifndef FERRY_RANK_LIB_API_REDOP_H
#define FERRY_RANK_LIB_API_REDOP_H

#include "ferry.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct ferry_redop {
	bool used;
	ferryDataType_t type;
	uint64_t scalar;
	const void *device_scalar;
};

#define FERRY_MAX_REDOPS 64

struct ferry_redops {
	pthread_mutex_t lock; /* protects `all` */
	struct ferry_redop all[FERRY_MAX_REDOPS];
};

void ferry_redops_init(struct ferry_redops *redops);
void ferry_redops_end(struct ferry_redops *redops);

/** As ferryRedOpCreatePreMulSum and ferryRedOpDestroy. */
ferryResult_t ferry_redops_create(struct ferry_redops *redops, ferryRedOp_t *op, const void *scalar,
                                  ferryDataType_t type, ferryScalarResidence_t residence);
ferryResult_t ferry_redops_destroy(struct ferry_redops *redops, ferryRedOp_t op);

/** Returns a created reduction; not `used` if `op` is built in or was never created. */
struct ferry_redop ferry_redops_find(struct ferry_redops *redops, ferryRedOp_t op);

#endif
