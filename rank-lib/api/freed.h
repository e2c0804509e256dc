/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory that the application frees. Where the library stands before cudaFree and its kin, the routers unmap the memory
 * at once, so that it returns to the device. Elsewhere a router unmaps it a second or more after its last call. Called
 * by any thread, for all communicators of the process.
 *
 * There are two steps, one before the memory is freed and one after. Before: the routers unmap what no call under way
 * names, because CUDA wants an allocation to be unmapped in other processes first. Memory that a call under way names
 * stays mapped until cudaFree has waited for the device, and so for the call; the thread holds no lock of Ferry's
 * there. After: the routers unmap the rest.
 *
 * The thread waits for a communicator's lock for a second at most, and for a router as long as any call does. If either
 * is busy for longer, the routers unmap the memory once it has been idle. A thread that holds a communicator's lock
 * never waits for a thread that frees memory.
 */
#ifndef FERRY_RANK_LIB_API_FREED_H
#define FERRY_RANK_LIB_API_FREED_H

#include <stdbool.h>
#include <stddef.h>

/**
 * To be called before the allocation that contains these bytes is freed. Returns when the routers have unmapped what no
 * call under way names, at once if they have mapped none of it. Returns whether calls under way keep some of it mapped.
 */
bool ferry_freed_before(const void *memory, size_t bytes);

/**
 * To be called after the memory was freed, if ferry_freed_before returned true, and the device has finished its calls.
 * Memory that could not be freed stays mapped. A graph that holds a call with the freed memory must not be replayed.
 */
void ferry_freed_behind(const void *memory, size_t bytes);

#endif
