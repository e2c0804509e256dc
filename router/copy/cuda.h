/* SPDX-License-Identifier: Apache-2.0 */
/** A GPU's copy engines, by the driver, in a context that the caller that opens the copier keeps alive. */
#ifndef FERRY_ROUTER_COPY_CUDA_H
#define FERRY_ROUTER_COPY_CUDA_H

#include "router/copy/copy.h"
#include "router/copy/cuda_driver.h"
#include "router/copy/cuda_loss.h"

struct ferry_cuda_copier {
	struct ferry_copier base;
	const struct ferry_cuda_driver *driver;
	CUcontext context;
	const struct ferry_cuda_owner *owner; /* from the caller that opened it; NULL: losses are not reported */
	int priority; /* the greatest: copies go before the application's work */
};

/** The context is the caller's, current or not. Errors: the driver's. */
ferryResult_t ferry_cuda_copier_open(struct ferry_cuda_copier *copier, const struct ferry_cuda_driver *driver,
                                     CUcontext context);

/**
 * As ferry_cuda_failed, for a call in the copier's context. If the context itself answers that it is gone for good,
 * calls its owner's `lost` first.
 */
ferryResult_t ferry_cuda_copier_failed(const struct ferry_cuda_copier *copier, CUresult result, const char *tried);

/**
 * Makes a context current for a few calls; the caller's comes back with leave. No capture of the application's is any
 * business of the calls between: nothing that they do ends one, in this thread or another. A visit inside another of
 * the same context is free.
 */
struct ferry_cuda_visit {
	const struct ferry_cuda_driver *driver; /* NULL: inside another */
	CUcontext outer;                        /* where this thread was visiting before; NULL: nowhere */
	CUstreamCaptureMode mode;
};
ferryResult_t ferry_cuda_visit(const struct ferry_cuda_driver *driver, CUcontext context,
                               struct ferry_cuda_visit *visit);
void ferry_cuda_visit_end(struct ferry_cuda_visit *visit);

#endif
