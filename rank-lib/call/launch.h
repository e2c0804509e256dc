/* SPDX-License-Identifier: Apache-2.0 */
/**
 * From a checked request to a call: its plan, its place in the order of calls, its stream. Then mapped.c makes the call
 * if a router moves the rank's data, else direct.c. Called by the application's threads.
 */
#ifndef FERRY_RANK_LIB_CALL_LAUNCH_H
#define FERRY_RANK_LIB_CALL_LAUNCH_H

#include "rank-lib/call/request.h"
#include "rank-lib/kernels/kernel_launch.h"

/** Checks that the communicator takes calls and the request is valid. Errors: why not. */
ferryResult_t ferry_launch_check(const struct ferry_request *request);

/** Makes the call. Checks it before, unless that was done when a group kept it. */
ferryResult_t ferry_launch(const struct ferry_request *request);

/**
 * Makes calls of a group of one communicator, each of which kernels carry (kernel_launch.h). They were checked when the
 * group kept them, and are not checked here.
 */
ferryResult_t ferry_launch_kernels(const struct ferry_request *requests, uint32_t nrequests);
/** The same for messages (ferry_kernels_exchange). */
ferryResult_t ferry_launch_exchange(const struct ferry_request *requests, uint32_t nrequests,
                                    enum ferry_kernels_step step);

/**
 * The first of two steps (open_call.h): makes a call, or sends and receives of one communicator and stream, whose
 * `open` the first request holds. The same thread must then call ferry_launch_finish, whatever this returns. The
 * communicator is held between the two.
 */
ferryResult_t ferry_launch_open(const struct ferry_request *requests, uint32_t nrequests);
ferryResult_t ferry_launch_finish(struct ferry_open_call *open);

/**
 * Has the routers map the request's buffers before the call, which then need not wait for that, up to 10 ms. put
 * target: other ranks push into the receive buffer. whole: the call will be exactly this request, so its plan is made
 * and given to the routers, too, in 0.1 to 0.5 ms; the plan says whether other ranks push. Called by any thread; calls
 * of the communicator wait for it meanwhile. Does nothing if no router moves the rank's data. Errors: those of
 * ferry_exports_name; after those that ferry_exports_refused accepts a call goes another way. No error fails the rank.
 */
ferryResult_t ferry_launch_preregister(const struct ferry_request *request, bool put_target, bool whole);

/* UNKNOWN: another thread holds the communicator's lock. */
enum ferry_preregistered { FERRY_PREREGISTERED_NOT, FERRY_PREREGISTERED, FERRY_PREREGISTERED_UNKNOWN };

/**
 * Whether a call would find its buffers mapped and its plan made: well under 1 us. Both may go again: idle buffers are
 * unmapped, and unused plans are evicted by others (plan_cache.h). now: the call is about to be made. Otherwise memory
 * that was found to be there since the last call began counts as still there; the driver is not asked again.
 */
enum ferry_preregistered ferry_launch_has_preregistered(const struct ferry_request *request, bool put_target,
                                                        bool whole, bool now);

/** Starts sends and receives of one communicator and stream as one call. They are checked as by ferry_launch. */
ferryResult_t ferry_launch_pairs(const struct ferry_request *requests, uint32_t nrequests);

#endif
