/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/gpu_uuid.h"

#include <stdio.h>
#include <string.h>

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

/* -1: it is none. */
static int digit(char letter)
{
	static const char digits[] = "0123456789abcdef";
	char small = letter >= 'A' && letter <= 'F' ? (char)(letter - 'A' + 'a') : letter;
	const char *found = letter ? strchr(digits, small) : NULL;
	return found ? (int)(found - digits) : -1;
}

bool ferry_gpu_uuid_parse(const char *text, uint8_t uuid[FERRY_GPU_BYTES])
{
	if (strlen(text) != FERRY_GPU_TEXT - 1 || strncmp(text, "GPU", 3))
		return false;
	text += 3;
	for (int i = 0; i < FERRY_GPU_BYTES; i++, text += 2) {
		if (begins_group(i) && *text++ != '-')
			return false;
		int high = digit(text[0]), low = digit(text[1]);
		if (high < 0 || low < 0)
			return false;
		uuid[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}
