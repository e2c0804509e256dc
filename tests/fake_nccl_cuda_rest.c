/* SPDX-License-Identifier: Apache-2.0 */
/* Weak entry points for what fake_cuda.c does not define: Ferry looks for all of its list and calls few of them. */
#include "rank-lib/device/cuda_driver.h"

int fake_cuda_unsupported(void);

__attribute__((used)) int fake_cuda_unsupported(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

#define TEXT(name)    TEXT_OF(name)
#define TEXT_OF(name) #name
#define REST(name)                                                                                                         \
	__asm__(".weak " TEXT(cu##name) "\n.type " TEXT(cu##name) ", @function\n.set " TEXT(cu##name) ", fake_cuda_unsupported\n");
FERRY_CUDA_FUNCTIONS(REST)
