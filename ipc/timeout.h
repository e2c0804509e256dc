/* SPDX-License-Identifier: Apache-2.0 */
/**
 * For how long a call may wait for somebody without anything of it moving: FERRY_TIMEOUT and FERRY_ON_TIMEOUT. Read
 * once per communicator, by its rank, and told to who moves the rank's data in the rank's line (ipc/arena.h).
 */
#ifndef FERRY_IPC_TIMEOUT_H
#define FERRY_IPC_TIMEOUT_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

struct ferry_timeout {
	/*
	 * seconds after which it is told whom a call waits for; ends the job; a router that it is gets a successor; 0:
	 * never
	 */
	uint32_t reports, fails, replaces;
};

/** ferryInvalidArgument, with the value, for what the variables cannot be. */
ferryResult_t ferry_timeout_read(struct ferry_timeout *timeout);

/** Whether so many nanoseconds are `seconds`, if these are not 0. */
static inline bool ferry_timeout_over(uint32_t seconds, uint64_t waited_ns)
{
	return seconds && waited_ns >= seconds * 1000000000ull;
}

#endif
