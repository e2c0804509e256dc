/* SPDX-License-Identifier: Apache-2.0 */
/**
 * From a checked request to a call: its plan, its place in the order of calls, its stream. Then direct.c or mapped.c
 * makes the call, by who moves the rank's data. By the application's threads.
 */
#ifndef FERRY_RANK_LIB_CALL_LAUNCH_H
#define FERRY_RANK_LIB_CALL_LAUNCH_H

#include "rank-lib/call/request.h"

/** Whether its communicator takes calls, and the request is right; if not, why. */
ferryResult_t ferry_launch_check(const struct ferry_request *request);

/** Makes the call; checks it before, unless that was done when it was kept for a group. */
ferryResult_t ferry_launch(const struct ferry_request *request);

/**
 * The same in two steps (open_call.h): the call, and sends and receives of one communicator and stream, whose `open`
 * the first of them has. Then ferry_launch_finish, by the same thread, whatever the first step returned. The
 * communicator is held between the two.
 */
ferryResult_t ferry_launch_open(const struct ferry_request *requests, uint32_t nrequests);
ferryResult_t ferry_launch_finish(struct ferry_open_call *open);

/**
 * Shows the request's buffers to the routers ahead of the call, which then need not wait until they are mapped, up to
 * 10 ms; put target: others push into what it receives. whole: the call will be this request, to the element, so its
 * plan is made and given to the routers, too, which takes 0.1 to 0.5 ms, and says whether others push. By any thread;
 * calls of the communicator wait for it meanwhile. Nothing happens where no router moves the rank's data. Errors: those
 * of ferry_exports_name; ferry_exports_refused knows those with which a call goes another way. None fails the rank.
 */
ferryResult_t ferry_launch_show(const struct ferry_request *request, bool put_target, bool whole);

/* Unknown: somebody else is at the communicator. */
enum ferry_shown { FERRY_SHOWN_NOT, FERRY_SHOWN, FERRY_SHOWN_UNKNOWN };

/**
 * Whether the call would find all of that: well under 1 us. What was there may go again, buffers by idleness and plans
 * by others that are used (plan_cache.h).
 */
enum ferry_shown ferry_launch_has_shown(const struct ferry_request *request, bool put_target, bool whole);

/**
 * Whether the open call of that stamp is over, and how long it took from its stream's arrival on. False for ever on a
 * host device, for captured calls, and once another call has had the stamp's index.
 * The communicator is held.
 */
bool ferry_launch_took(ferryComm_t comm, uint32_t stamp, uint64_t *ns);

/** Starts sends and receives of one communicator and stream as one call. They are checked as by ferry_launch. */
ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests);

#endif
