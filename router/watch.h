/* SPDX-License-Identifier: Apache-2.0 */
/**
 * What a lane looks at now and then while calls are under way: whether the routers live, whether the other lane comes
 * out of the driver, and whether anything moves. It tells of what it can only tell of, and ends the job for the rest.
 * By the lane's thread.
 */
#ifndef FERRY_ROUTER_WATCH_H
#define FERRY_ROUTER_WATCH_H

#include "router/member.h"

#define FERRY_WATCH_US 50000 /* so often, at most; a lane with unfinished calls sleeps no longer than this */

struct ferry_watch {
	uint64_t checked;       /* nanoseconds: when the lane last looked */
	uint32_t other_driving; /* the other lane's `driving` at other_since, and until now */
	uint64_t other_since;
	bool reported;          /* that the other lane hangs */
};

/** Whether it is time to look again. */
static inline bool ferry_watch_due(struct ferry_watch *watch, uint64_t now)
{
	if (now - watch->checked < FERRY_WATCH_US * 1000ull)
		return false;
	watch->checked = now;
	return true;
}

/** One line if the other lane, which drives so (router/lane.h), is in the driver for stall_ns (0: never). */
void ferry_watch_other(struct ferry_watch *watch, enum ferry_direction other, const _Atomic uint32_t *driving,
                       uint64_t stall_ns, uint64_t now);

/** A seat: with calls one line if nothing has moved for long, and whether its routers live; and what others wrote. */
void ferry_watch_seat(struct ferry_seat *seat, uint64_t now);

#endif
