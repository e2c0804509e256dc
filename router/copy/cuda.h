/* SPDX-License-Identifier: Apache-2.0 */
/** A GPU's copy engines, by the CUDA driver, in a context that the opener of the copier keeps alive. */
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
 * A visit makes a context current for a few calls; ferry_cuda_visit_end restores what was current before. The calls
 * between end no capture of the application, in this thread or another. A visit inside another of the same context
 * costs nothing.
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
