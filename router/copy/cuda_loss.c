/* SPDX-License-Identifier: Apache-2.0 */
#include "router/copy/cuda_loss.h"

#include <stddef.h>

bool ferry_cuda_may_be_loss(CUresult result)
{
	static const CUresult losses[] = {
	        /* Faults of what runs on the GPU, copies included: "the process must be terminated and relaunched". */
	        CUDA_ERROR_ILLEGAL_ADDRESS,
	        CUDA_ERROR_LAUNCH_TIMEOUT,
	        CUDA_ERROR_ASSERT,
	        CUDA_ERROR_HARDWARE_STACK_ERROR,
	        CUDA_ERROR_ILLEGAL_INSTRUCTION,
	        CUDA_ERROR_MISALIGNED_ADDRESS,
	        CUDA_ERROR_INVALID_ADDRESS_SPACE,
	        CUDA_ERROR_INVALID_PC,
	        CUDA_ERROR_LAUNCH_FAILED,
	        CUDA_ERROR_TENSOR_MEMORY_LEAK,
	        CUDA_ERROR_EXTERNAL_DEVICE,
	        /* Hardware: bits that cannot be corrected, in memory or on a link; a new context has other pages. */
	        CUDA_ERROR_ECC_UNCORRECTABLE,
	        CUDA_ERROR_NVLINK_UNCORRECTABLE,
	        CUDA_ERROR_CONTAINED,
	        /* A user has reset the GPU, or the MPS server has disconnected its client. */
	        CUDA_ERROR_CONTEXT_IS_DESTROYED,
	        CUDA_ERROR_DEVICE_UNAVAILABLE,
	        CUDA_ERROR_MPS_CLIENT_TERMINATED,
	        CUDA_ERROR_MPS_RPC_FAILURE,
	        /* A GPU that is not on the bus any more has no other name. */
	        CUDA_ERROR_UNKNOWN,
	};
	for (size_t i = 0; i < sizeof losses / sizeof *losses; i++)
		if (losses[i] == result)
			return true;
	return false;
}
