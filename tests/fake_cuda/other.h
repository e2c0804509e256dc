/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Another process that uses the double: the same program, started again, which makes one call of the driver for each
 * order that comes over a socket and answers with its result. For suites of what processes share; their main gives a
 * lone argument to other_obeys.
 */
#ifndef FERRY_TESTS_OTHER_H
#define FERRY_TESTS_OTHER_H

#include "tests/fake_cuda/promises.h"

#include <stdbool.h>
#include <sys/types.h>

enum order_kind {
	RETAIN,
	RELEASE,
	ALLOCATE,
	FREE,
	OPEN,
	CLOSE,
	READ,
	WRITE,
	MAP,
	UNMAP,
	LEFT,
	UUID,
	REGISTER,
	MISUSES
};

/* `at`: an address there, or what was mapped by it. */
struct order {
	enum order_kind kind;
	int device;
	bool has_file; /* set by other_tell_with: a descriptor comes with it */
	CUdeviceptr at;
	size_t bytes;
	CUipcMemHandle handle;
	unsigned char value;
};

struct answer {
	CUresult result;
	CUdeviceptr at;
	size_t number;
	CUipcMemHandle handle;
	unsigned char value;
	CUuuid uuid;
};

struct other {
	pid_t pid;
	int channel;
};

/** Starts one, with this variable in its environment (NULL: with ours). */
struct other other_start(const char *variable, const char *value);
/** Ends it, and waits until it has. */
void other_finish(struct other *other);

struct answer other_tell(const struct other *other, struct order order);
/** With a descriptor for it; the caller's own stays open. */
struct answer other_tell_with(const struct other *other, struct order order, int file);
/** And the call succeeds. */
struct answer other_must(const struct other *other, struct order order);

/** What the other process does until its channel is closed; its exit status. */
int other_obeys(int channel);

#endif
