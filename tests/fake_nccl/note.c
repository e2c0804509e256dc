/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/fake_nccl/note.h"

#include "tests/fake_nccl/fake_nccl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static _Thread_local struct fake_nccl_note last;
static _Atomic int mirrors, mirrored_result;

static void log_call(const char *name)
{
	const char *path = getenv("FAKE_NCCL_LOG");
	FILE *file = path ? fopen(path, "ae") : NULL;
	if (!file)
		return;
	fprintf(file, "%s\n", name);
	fclose(file);
}

void fake_nccl_note(const char *name)
{
	last.name = name;
	last.bytes = 0;
	log_call(name);
}

void fake_nccl_note_argument(const void *bytes, size_t count)
{
	if (last.bytes + count > sizeof last.text)
		abort();
	memcpy(last.text + last.bytes, bytes, count);
	last.bytes += count;
}

EXPORTED void fake_nccl_last(struct fake_nccl_note *note)
{
	*note = last;
}

EXPORTED void fake_nccl_mirror(int on, int result)
{
	atomic_store(&mirrored_result, result);
	atomic_store(&mirrors, on);
}

bool fake_nccl_cut_short(const char *name, unsigned long count, ncclResult_t *result)
{
	const char *fail = getenv("FAKE_NCCL_FAIL");
	char wanted[64];
	unsigned long nth;
	int code;
	if (atomic_load(&mirrors)) {
		*result = (ncclResult_t)atomic_load(&mirrored_result);
		return true;
	}
	if (!fail || sscanf(fail, "%63[^:]:%lu:%d", wanted, &nth, &code) != 3 || strcmp(wanted, name) || count != nth)
		return false;
	*result = (ncclResult_t)code;
	return true;
}
