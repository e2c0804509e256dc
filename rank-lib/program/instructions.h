/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A part's statements as instructions. compile.c calls these two in this order, and places the windows in between.
 */
#ifndef FERRY_RANK_LIB_PROGRAM_INSTRUCTIONS_H
#define FERRY_RANK_LIB_PROGRAM_INSTRUCTIONS_H

#include "rank-lib/program/compiler.h"

/** Finds the values that become part of another's REDUCE, and those that are one rank's input. */
void ferry_part_absorb(struct ferry_part *part);

/**
 * Adds the part's instructions, and copies for output that is a rank's own input. Error: ferryProgramError if an output
 * passes no REDUCE, where premulsum would scale it. Sets compiler->failed if there is no memory.
 */
ferryResult_t ferry_part_emit(struct ferry_part *part);

#endif
