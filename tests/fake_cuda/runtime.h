/* SPDX-License-Identifier: Apache-2.0 */
/** The functions of CUDA's runtime that tests call, which build without its headers; results are cudaError_t. */
#ifndef FERRY_TESTS_RUNTIME_H
#define FERRY_TESTS_RUNTIME_H

#include "orchestrator/nccl_types.h"

int cudaSetDevice(int device);
int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);
int cudaFreeAsync(void *memory, cudaStream_t stream);
int cudaMemGetInfo(size_t *left, size_t *total);
int cudaStreamCreate(cudaStream_t *stream);
int cudaStreamSynchronize(cudaStream_t stream);
int cudaStreamQuery(cudaStream_t stream);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind); /* 1: to the device, 2: from it */
int cudaStreamDestroy(cudaStream_t stream);
int cudaStreamBeginCapture(cudaStream_t stream, int mode); /* 1: of this thread */
int cudaStreamEndCapture(cudaStream_t stream, void **graph);
int cudaGraphInstantiate(void **executable, void *graph, unsigned long long flags);
int cudaGraphLaunch(void *executable, cudaStream_t stream);
int cudaGraphExecDestroy(void *executable);
int cudaGraphDestroy(void *graph);

#endif
