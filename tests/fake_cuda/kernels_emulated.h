/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The kernels compiled as C: the double of the driver runs them where a GPU would. Blocks run one after another in the
 * calling thread, which waits for the other ranks' kernels where they do; those of messages each in a thread.
 */
#ifndef FERRY_TESTS_FAKE_CUDA_KERNELS_EMULATED_H
#define FERRY_TESTS_FAKE_CUDA_KERNELS_EMULATED_H

#include "rank-lib/kernels/kernel_call.h"

#include <stdbool.h>

/**
 * Runs the kernel of that name until it is through, or its call is given up. call: its argument (kernel_call.h).
 * Returns false, and does nothing, if there is no such kernel.
 */
bool ferry_kernel_emulate(const char *name, const void *call, uint32_t blocks, uint32_t threads);

#endif
