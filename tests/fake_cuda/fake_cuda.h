/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A double of the CUDA driver: libcuda-fake.so exports the driver's names that Ferry calls, over threads and ordinary memory,
 * so that the cuda device is tested where there is no GPU. Point FERRY_CUDA_LIBRARY at it. Each stream is a thread that runs
 * its operations in order; a kernel is a function of the test. Wrong uses get the driver's error codes, and some things are
 * stricter than real so that tests find them:
 *
 * - device memory cannot be touched by the host: the process sees it at another address, see fake_cuda_reach;
 * - a copy across the link needs its host side registered or pinned, and its device side on the stream's device;
 * - both sides of a copy, and a word that is written or waited for, must be whole inside one allocation, when the call is made
 *   and when the stream comes to it (then: CUDA_ERROR_ILLEGAL_ADDRESS, and nothing works on that device any more);
 * - forgetting memory (cuMemFree, cuMemHostUnregister) waits for the device, and holds up whoever gives work to it meanwhile;
 * - a user object's destructor that calls the driver is refused and counted.
 *
 * Device memory is opened by other processes that run the double (cuIpcOpenMemHandle), as long as its owner lives.
 *
 * Environment, read by cuInit: FAKE_CUDA_DEVICES (4), CUDA_VISIBLE_DEVICES (numbers and UUIDs), FAKE_CUDA_CONNECTIONS (0: a
 * thread per stream; else the streams of a device and priority share so many queues, as GPUs do beyond
 * CUDA_DEVICE_MAX_CONNECTIONS: a stream that waits then holds up the others of its queue), FAKE_CUDA_PEERS (1: each device can
 * reach the others' memory; 0: none).
 */
#ifndef FERRY_TESTS_FAKE_CUDA_H
#define FERRY_TESTS_FAKE_CUDA_H

#include <cuda.h>

/** A kernel: runs kernel(argument) when the stream reaches it; capturable. */
CUresult fake_cuda_launch(CUstream stream, void (*kernel)(void *argument), void *argument);

/** Where the process finds the memory at this CUDA address, for kernels; NULL if CUDA knows nothing of it. */
void *fake_cuda_reach(CUdeviceptr address);

/** The device fails as after a fault: every call in its context returns `error`, its streams do nothing. 0: works again. */
CUresult fake_cuda_break(CUdevice device, CUresult error);

/** How often a destructor of a user object called the driver, or a stream met memory that was gone. */
unsigned fake_cuda_misuses(void);

#endif
