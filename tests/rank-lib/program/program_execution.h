/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Executes a compiled plan in one process on real buffers, slice by slice, in a random order that its edges allow, and
 * compares the outputs with the collective's definition. Staging has just the plan's slots; every access is
 * bounds-checked.
 */
#ifndef FERRY_TESTS_PROGRAM_EXECUTION_H
#define FERRY_TESTS_PROGRAM_EXECUTION_H

#include "rank-lib/program/program.h"

/**
 * Validates the plan and runs it on 32-bit words. What must happen to each contribution once happens here by a factor
 * per rank (as premulsum's) and, where a sum is complete, by a common factor (as avg's division). Of alltoallv, which
 * has no count, draws up to `most` elements per pair. True if the plan is valid, ends, and every output is right; else
 * reason says why not.
 */
bool execute_plan(const struct ferry_plan *plan, bool in_place, uint64_t most, uint64_t seed, char reason[256]);

/** The same of a plan that leaves so much of every block out: what lies there stays as it was. */
bool execute_plan_in_part(const struct ferry_plan *plan, const struct ferry_left_out *left_out, bool in_place,
                          uint64_t seed, char reason[256]);

/**
 * Compiles the program for a random count, slice and window, and executes the plan on buffers in place or not, at
 * random.
 */
bool compile_and_execute(const struct ferry_program *program, uint64_t seed, char reason[256]);

/** The same of an alltoallv of all paths of that network, by shares that are drawn. */
bool compile_and_execute_divided(const struct ferry_program *program, const struct ferry_network *network,
                                 uint64_t seed, char reason[256]);

#endif
