/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that come by themselves, as the environment says: a copy, or memory to register, is the one too many. */
#include "tests/fake_cuda/fake.h"

static size_t first; /* 0: none comes; these are written by cuInit alone */
static int device, error;
static bool once;
static _Atomic size_t operations;

void fake_fault_start(void)
{
	first = fake_number("FAKE_CUDA_FAULT", 0);
	device = (int)fake_number("FAKE_CUDA_FAULT_DEVICE", 0);
	error = (int)fake_number("FAKE_CUDA_FAULT_ERROR", CUDA_ERROR_ILLEGAL_ADDRESS);
	once = fake_number("FAKE_CUDA_FAULT_ONCE", 0);
}

static bool is_too_many(CUcontext context)
{
	return first && context->physical == device &&
	       atomic_fetch_add_explicit(&operations, 1, memory_order_relaxed) + 1 == first;
}

CUresult fake_fault_of_call(CUcontext context)
{
	return once && is_too_many(context) ? (CUresult)error : CUDA_SUCCESS;
}

bool fake_fault_of_context(CUcontext context)
{
	if (once || !is_too_many(context))
		return false;
	atomic_store_explicit(&context->error, error, memory_order_relaxed);
	return true;
}
