/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What only the driver's management library (NVML) says of a GPU: how much of its memory a process has, and where its
 * NVLinks go. The library is opened at run time, once; any thread may call.
 */
#ifndef FERRY_IPC_NVML_H
#define FERRY_IPC_NVML_H

#include <stdint.h>
#include <sys/types.h>

/**
 * Returns the process's bytes on the GPU of that UUID ("GPU-..."). 0 if unknown: there is no such library or GPU, or it
 * numbers processes otherwise, as in a container.
 */
uint64_t ferry_nvml_process_bytes(const char *uuid, pid_t pid);

/**
 * Returns how many active NVLinks lead straight from the GPU of the first UUID to that of the second. 0: they go to a
 * switch, or there are none, or it is not known.
 */
uint8_t ferry_nvml_count_links(const char *from, const char *to);

#endif
