/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A second reading of the language, for tests: runs a program on real data straight from docs/program-language.md,
 * sharing no code with the checker's single-assignment form or the compiler. Statements run slice by slice in a random
 * legal order, every chunk version has one slot of one slice, and slots are poisoned when they are taken again.
 */
#ifndef FERRY_TESTS_PROGRAM_INTERPRETER_H
#define FERRY_TESTS_PROGRAM_INTERPRETER_H

#include "rank-lib/program/program.h"

/**
 * Runs the program on `count` elements (as the collective's API counts them; alltoallv draws a count of up to `count`
 * per pair) and compares every rank's output with the collective's definition. True if it ended and all of it is right;
 * else `reason` says what went wrong. The same seed gives the same data and the same order.
 */
bool interpret_program(const struct ferry_program *program, uint64_t count, uint64_t seed, char reason[256]);

/** The next number of a seeded sequence (splitmix64). */
uint64_t draw(uint64_t *state);

/** A number from 0 to bound - 1. */
uint32_t draw_below(uint64_t *state, uint32_t bound);

#endif
