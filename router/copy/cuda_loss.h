/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Errors of CUDA after which a context is unusable: every later call in it fails with the same error, and the driver's
 * documentation asks for a new process. All other errors are of one call, or one buffer.
 */
#ifndef FERRY_ROUTER_COPY_CUDA_LOSS_H
#define FERRY_ROUTER_COPY_CUDA_LOSS_H

#include "router/copy/cuda_types.h"

#include <stdbool.h>

/**
 * Whether the driver's result can mean that a context is gone. A wrong argument may also cause it (an invalid handle,
 * for example): ferry_cuda_copier_failed asks the context which of the two it is.
 */
bool ferry_cuda_may_be_loss(CUresult result);

/**
 * The owner of a copier's context: `lost` is called when the context is gone. It may return, and may be called again.
 * Any thread.
 */
struct ferry_cuda_owner {
	void (*lost)(const struct ferry_cuda_owner *owner, const char *why);
};

#endif
