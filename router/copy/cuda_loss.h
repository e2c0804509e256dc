/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Errors of CUDA's after which a context is of no use any more: all that follows in it fails with the same, whatever it
 * is, and the driver's documentation asks for a new process. All others are of one call, or one buffer.
 */
#ifndef FERRY_ROUTER_COPY_CUDA_LOSS_H
#define FERRY_ROUTER_COPY_CUDA_LOSS_H

#include "router/copy/cuda_types.h"

#include <stdbool.h>

/**
 * Whether the driver's result can be of a context that is gone. A call may also bring it about by what it is given (a
 * handle that is none, say): whether it is one the context is asked (ferry_cuda_copier_failed).
 */
bool ferry_cuda_may_be_loss(CUresult result);

/** Who owns a copier's context, and is told that it is gone. May return, and may be told again. Any thread. */
struct ferry_cuda_owner {
	void (*lost)(const struct ferry_cuda_owner *owner, const char *why);
};

#endif
