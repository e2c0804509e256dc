/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How much of a GPU's memory a process has, by the driver's management library (NVML), which is opened at run time.
 * Called by ferry-stat, for the contexts of routers.
 */
#ifndef FERRY_LAUNCH_CONTEXT_MEMORY_H
#define FERRY_LAUNCH_CONTEXT_MEMORY_H

#include <stdint.h>
#include <sys/types.h>

/**
 * Returns the process's bytes on the GPU of that UUID ("GPU-..."). 0 if unknown: there is no such library or GPU, or it
 * numbers processes otherwise, as in a container.
 */
uint64_t ferry_context_memory(const char *uuid, pid_t pid);

#endif
