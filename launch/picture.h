/* SPDX-License-Identifier: Apache-2.0 */
/** `ferryprog draw`: a schedule as an SVG picture. Nothing here writes to the schedule. */
#ifndef FERRY_LAUNCH_PICTURE_H
#define FERRY_LAUNCH_PICTURE_H

#include "launch/schedule.h"

#include <stdio.h>

/**
 * Draws a box per domain, in it a row per lane that has something to do, time to the right; statements in the names
 * that the program gives its places. Error: ferrySystemError without memory; the caller checks `out` for write errors.
 */
ferryResult_t ferry_picture_draw(const struct ferry_schedule *schedule, FILE *out);

#endif
