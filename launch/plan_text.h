/* SPDX-License-Identifier: Apache-2.0 */
/** A compiled plan for people: `ferryprog show` prints it. Nothing here writes to the plan. */
#ifndef FERRY_LAUNCH_PLAN_TEXT_H
#define FERRY_LAUNCH_PLAN_TEXT_H

#include "ipc/plan.h"

#include <stdio.h>

/** A header, the instructions in order with what each waits for, and the bytes per link. The plan must be valid. */
void ferry_plan_print(const struct ferry_plan *plan, FILE *out);

/** The same as a graph for dot(1): an arrow per data dependence, a dashed one per reuse of a window's slot. */
void ferry_plan_print_dot(const struct ferry_plan *plan, FILE *out);

#endif
