/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs (nccl_random.c) in streams of GPUs, where short calls go by kernels. */
#define NCCL_RANDOM_ON_GPUS
#include "tests/nccl/nccl_random.c" /* the same suite */
