/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Memory that the application frees: whoever may stand before cudaFree and its kin has the routers let go of it, so
 * that it comes back at once; elsewhere a router forgets it a second or more after its last call. Any thread, for all
 * communicators of the process.
 *
 * In two steps, around the freeing. What no call under way names is forgotten before, as CUDA wants it: an allocation
 * is unmapped in other processes first. What one names waits for that call; who frees waits for it, too, in cudaFree,
 * which waits for the device, and holds nothing of Ferry's meanwhile. Then it is forgotten behind.
 *
 * A communicator's lock is waited for at most a second, and a router as long as in any call: who finds either busy for
 * longer leaves the memory to idleness. Nobody who has that lock waits for a thread that frees memory.
 */
#ifndef FERRY_RANK_LIB_API_FREED_H
#define FERRY_RANK_LIB_API_FREED_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Before these bytes are freed, of an allocation any of its bytes: returns when the routers have unmapped what no call
 * under way names, at once where they have none of it. True: some of it is left.
 */
bool ferry_freed_before(const void *memory, size_t bytes);

/**
 * Behind that, where some was left, and the memory is gone and the device has come to the end of all its calls. What is
 * there still, as it could not be freed, stays as it was. A graph that has a call with it must not be replayed any
 * more.
 */
void ferry_freed_behind(const void *memory, size_t bytes);

#endif
