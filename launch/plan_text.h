/* SPDX-License-Identifier: Apache-2.0 */
/** A compiled plan for people, in the names of its program: `ferryprog show`. Nothing here writes to the plan. */
#ifndef FERRY_LAUNCH_PLAN_TEXT_H
#define FERRY_LAUNCH_PLAN_TEXT_H

#include "rank-lib/program/versions.h"

#include <stdio.h>

/** A plan and what it was compiled from. The caller owns all of it. */
struct ferry_traced_plan {
	const struct ferry_plan *plan;
	const struct ferry_program *program;
	const struct ferry_versions *versions;
	const struct ferry_instr_origin *origins; /* by instruction */
};

/**
 * Prints the plan's numbers, the instructions in order with their dependencies, and the bytes per link. Error:
 * ferrySystemError without memory.
 */
ferryResult_t ferry_plan_print(const struct ferry_traced_plan *traced, FILE *out);

#endif
