/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Calls of those who stay that a rank has not made before it left (ipc/publish.h): they would wait for ever, so the job
 * ends, with the name of who has left. Calls that the rank did make are none of these, whoever still is at them, and
 * they end before the job does. By the lane's thread.
 */
#ifndef FERRY_ROUTER_ABSENCE_H
#define FERRY_ROUTER_ABSENCE_H

#include "router/member.h"

/** For a seat with calls, none of which gets on: true if one waits for who has left, and the job has been ended. */
bool ferry_absence_end(struct ferry_seat *seat);

#endif
