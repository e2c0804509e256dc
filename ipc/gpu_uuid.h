/* SPDX-License-Identifier: Apache-2.0 */
/**
 * UUIDs of GPUs: processes identify a GPU by it, whatever device number each gives the GPU. Text is as nvidia-smi -L
 * prints it.
 */
#ifndef FERRY_IPC_GPU_UUID_H
#define FERRY_IPC_GPU_UUID_H

#include <stdint.h>

#define FERRY_GPU_BYTES 16 /* of a GPU's UUID */
#define FERRY_GPU_TEXT  41 /* "GPU-00112233-4455-6677-8899-aabbccddeeff", and its end */

/** Returns `text`. */
const char *ferry_gpu_uuid_print(const uint8_t uuid[FERRY_GPU_BYTES], char text[FERRY_GPU_TEXT]);

#endif
