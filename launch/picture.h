/* SPDX-License-Identifier: Apache-2.0 */
/** `ferryprog draw`: a schedule as an SVG picture. Nothing here writes to the schedule. */
#ifndef FERRY_LAUNCH_PICTURE_H
#define FERRY_LAUNCH_PICTURE_H

#include "launch/schedule.h"

#include <stdio.h>

/**
 * Draws a box per domain, and in it a row per lane that has statements, with time to the right. Places have the
 * program's names. Error: ferrySystemError without memory. The caller checks `out` for write errors.
 */
ferryResult_t ferry_picture_draw(const struct ferry_schedule *schedule, FILE *out);

#endif
