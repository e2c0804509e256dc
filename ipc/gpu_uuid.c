/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/gpu_uuid.h"

#include <stdbool.h>
#include <stdio.h>

static bool begins_group(int byte)
{
	return !byte || byte == 4 || byte == 6 || byte == 8 || byte == 10;
}

const char *ferry_gpu_uuid_print(const uint8_t uuid[FERRY_GPU_BYTES], char text[FERRY_GPU_TEXT])
{
	int length = snprintf(text, FERRY_GPU_TEXT, "GPU");
	for (int i = 0; i < FERRY_GPU_BYTES; i++)
		length += snprintf(text + length, (size_t)(FERRY_GPU_TEXT - length), begins_group(i) ? "-%02x" : "%02x",
		                   uuid[i]);
	return text;
}
