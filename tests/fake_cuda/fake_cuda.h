/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A double of the CUDA driver: libcuda-fake.so exports the driver's names that Ferry calls, over threads and ordinary
 * memory, so that the cuda device is tested where there is no GPU. Point FERRY_CUDA_LIBRARY at it. Each stream is a
 * thread that runs its operations in order; a kernel is a function of the test. Wrong uses get the driver's error
 * codes, and some things are stricter than real so that tests find them:
 *
 * - device memory cannot be touched by the host: the process sees it at another address, see fake_cuda_reach;
 * - a copy across the link needs its host side registered or pinned, and its device side on the stream's device, or
 * mapped from another process in the stream's own context, or reserved memory that the device may use (cuMemSetAccess);
 * - memory of another process that was opened in one context is used in that one alone;
 * - memory of this process on another device is used by contexts that were given access to it alone
 * (cuCtxEnablePeerAccess): real copies then go by way of the host;
 * - both sides of a copy, and a word that is written or waited for, must be whole inside one allocation, when the call
 * is made and when the stream comes to it (then: CUDA_ERROR_ILLEGAL_ADDRESS, and nothing works on that device any
 * more);
 * - forgetting memory (cuMemFree, cuMemHostUnregister) waits for the device, and holds up threads that give work to
 * it meanwhile;
 * - a user object's destructor that calls the driver is refused and counted;
 * - so is a stream of a context that is gone, a copy that names memory of another process that was closed, the launch
 * of a graph that names an event that is gone, and a graph that waits for an event behind its own record of it;
 * - a launch waits for what an event is as the host launches, and what it records is the event from then on.
 *
 * Processes share GPUs: memory is opened in others by CUDA IPC (a mapping per context) and by descriptors (cuMemCreate
 * and its like; nothing of those waits for streams), outlives its owner there, and counts as in use (cuMemGetInfo)
 * until the last one lets it go. Memory comes to lie where freed memory of its size was last, with another
 * CU_POINTER_ATTRIBUTE_BUFFER_ID. A process that retains no context of a device any more loses all that was made in it.
 * Kernels of the product run as C: `ferry_wait`, whose parameter is the address of a 32-bit word, waits until that is
 * 0, and those of rank-lib/kernels/ carry calls. They hold no other stream up.
 *
 * Environment, read by cuInit:
 * - FAKE_CUDA_DEVICES (4), CUDA_VISIBLE_DEVICES (numbers and UUIDs);
 * - FAKE_CUDA_CONNECTIONS (0: a thread per stream; else the streams of a device and priority share so many queues, as
 * GPUs do beyond CUDA_DEVICE_MAX_CONNECTIONS: a stream that waits by a memory operation then holds up the others of its
 * queue);
 * - FAKE_CUDA_PEERS (1: each device can reach the others' memory; 0: none; pairs as 0-1,1-2: these, both ways);
 * - FAKE_CUDA_NVLINKS (unset: 0 and 1, 2 and 3, ...): those that do so by NVLink, in the same way, the others by PCIe;
 * - FAKE_CUDA_MACHINE (empty): processes with the same one share GPUs, as far as memory in use and exclusive devices
 * go; a test that looks at these chooses a name of its own, before its processes start;
 * - FAKE_CUDA_MEMORY (80 GiB; where it is set, more is refused), FAKE_CUDA_CONTEXT_MEMORY (525 MiB for each process's
 * context of a device): in bytes;
 * - FAKE_CUDA_GRANULARITY (2 MiB): of cuMemCreate, in bytes;
 * - FAKE_CUDA_NO_IPC (0; 1: this process can map no other's memory), FAKE_CUDA_EXCLUSIVE (0; 1: a device has a context
 * of one process at a time), FAKE_CUDA_FLUSH (1; 0: as on an H100, waits cannot flush remote writes);
 * - FAKE_CUDA_UNREGISTER_MS, FAKE_CUDA_CLOSE_MS (0): how long cuMemHostUnregister and cuIpcCloseMemHandle take;
 * - FAKE_CUDA_PUSH_MS (0): how long a copy from GPU 0 to another device, in memory of other processes, takes, half of
 * which is there at once; from GPU n it takes n + 1 times as long;
 * - FAKE_CUDA_STUCK (empty): while there is a file of that name, cuMemcpyDtoDAsync does not return;
 * - FAKE_CUDA_FAULT (0: never): the how many-th copy, or memory that is registered, of the process on GPU
 * FAKE_CUDA_FAULT_DEVICE (0) fails, and from then on all in its context, with FAKE_CUDA_FAULT_ERROR (700, illegal
 * address); with FAKE_CUDA_FAULT_ONCE (0; 1) that call alone is refused with that error;
 * - FAKE_CUDA_TOLD (empty): a file that gets a line "PID GPU" for each context that is made;
 * - FAKE_CUDA_END_MB (0): a process named ferry-router has so much memory that it gives back as it ends, behind the
 * connections that it has made since: a driver takes its time then;
 * - FAKE_CUDA_HELD (empty): while there is a file of that name, copies are under way, and not over.
 */
#ifndef FERRY_TESTS_FAKE_CUDA_H
#define FERRY_TESTS_FAKE_CUDA_H

#include "tests/fake_cuda/cuda_api.h"

/** The most kernels of ADDs that one rank has had running at a time, since it was asked last. */
unsigned fake_cuda_most_adds(void);

/** A kernel: runs kernel(argument) when the stream reaches it; capturable. */
CUresult fake_cuda_launch(CUstream stream, void (*kernel)(void *argument), void *argument);

/** Where the stream is captured: the graph has `forget`, which comes when it is gone. An error: it is not captured. */
CUresult fake_cuda_keep(CUstream stream, void (*forget)(void *argument), void *argument);

/** A call that a capture of this thread may forbid, and ends that then; else it does nothing. */
CUresult fake_cuda_connect(void);

/** Where the process finds the memory at this CUDA address, for kernels; NULL if CUDA knows nothing of it. */
void *fake_cuda_reach(CUdeviceptr address);

/** The device fails as after a fault: every call in its context returns `error`, its streams do nothing. 0: works
 * again. */
CUresult fake_cuda_break(CUdevice device, CUresult error);

/** How often a destructor of a user object called the driver, or a stream or call met what was gone, and so on. */
unsigned fake_cuda_misuses(void);

/**
 * How many copies of this process to its devices were short and made by cuMemcpyHtoDAsync. Real ones wait for the
 * engine that runs kernels, which other processes use too.
 */
unsigned fake_cuda_inline_copies(void);

#endif
