/* SPDX-License-Identifier: Apache-2.0 */
/* The double of the CUDA driver, or Ferry's host streams: whichever the program has linked. */
#include "tests/fake_nccl/comm.h"

#include <stdint.h>

extern int fake_cuda_launch(void *stream, void (*kernel)(void *), void *argument) __attribute__((weak));
extern int fake_cuda_keep(void *stream, void (*forget)(void *), void *argument) __attribute__((weak));
extern int fake_cuda_connect(void) __attribute__((weak));
extern void *fake_cuda_reach(unsigned long long address) __attribute__((weak));
extern int cuCtxGetDevice(int *device) __attribute__((weak));
extern int ferryLaunchHostFunc(void *stream, void (*function)(void *), void *argument) __attribute__((weak));

bool fake_stream_run(cudaStream_t stream, void (*function)(void *), void *argument)
{
	if (!stream)
		return false;
	if (fake_cuda_launch)
		return !fake_cuda_launch(stream, function, argument);
	return ferryLaunchHostFunc && !ferryLaunchHostFunc(stream, function, argument);
}

bool fake_stream_keep(cudaStream_t stream, void (*forget)(void *), void *argument)
{
	return stream && fake_cuda_keep && !fake_cuda_keep(stream, forget, argument);
}

bool fake_stream_connect(void)
{
	return !fake_cuda_connect || !fake_cuda_connect();
}

void *fake_stream_reach(const void *address)
{
	void *here = fake_cuda_reach && address ? fake_cuda_reach((uintptr_t)address) : NULL;
	return here ? here : (void *)(uintptr_t)address;
}

int fake_stream_device(void)
{
	int device = 0;
	return cuCtxGetDevice && !cuCtxGetDevice(&device) ? device : 0;
}
