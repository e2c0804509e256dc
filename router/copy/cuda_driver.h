/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The CUDA driver, opened at run time: one struct of the entry points that Ferry calls. One binary serves machines with
 * and without GPUs, and is built where there is neither driver nor cuda.h. Used by routers, the cuda device, ferry-perf
 * and tests.
 */
#ifndef FERRY_ROUTER_COPY_CUDA_DRIVER_H
#define FERRY_ROUTER_COPY_CUDA_DRIVER_H

#include "ipc/ferry_types.h"
#include "router/copy/cuda_types.h"

struct ferry_cuda_driver {
#define CUDA_FUNCTION(name, symbol, parameters) CUresult(*name) parameters;
#include "router/copy/cuda_functions.def"
#undef CUDA_FUNCTION
};

/**
 * Opens libcuda.so.1 (or FERRY_CUDA_LIBRARY) and initializes it, once per process.
 * *driver points to constants of the process. Errors, remembered: ferryInvalidUsage with the reason if there is no
 * driver, it lacks an entry point (CUDA 12.8 has all), or it finds no device.
 */
ferryResult_t ferry_cuda_driver_open(const struct ferry_cuda_driver **driver);

/**
 * Maps another process's allocation in the current context: *address, and how many bytes are mapped from there on. What
 * the driver has mapped counts, not what the owner claims. Returns the driver's result; then nothing is mapped.
 */
CUresult ferry_cuda_open_handle(const struct ferry_cuda_driver *driver, const uint8_t handle[64], CUdeviceptr *address,
                                uint64_t *bytes);

/** Turns a driver's result into Ferry's, with a message: what was tried, the driver's words and the code. */
ferryResult_t ferry_cuda_failed(const struct ferry_cuda_driver *driver, CUresult result, const char *tried);

#endif
