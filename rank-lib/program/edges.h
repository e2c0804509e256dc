/* SPDX-License-Identifier: Apache-2.0 */
/** What a part's instructions wait for: compile.c calls it once all parts have their instructions. */
#ifndef FERRY_RANK_LIB_PROGRAM_EDGES_H
#define FERRY_RANK_LIB_PROGRAM_EDGES_H

#include "rank-lib/program/compiler.h"

/**
 * Adds the edges of the part's instructions: what each waits for, and which lanes it wakes. Sets compiler->failed if
 * there is no memory.
 */
void ferry_part_add_edges(struct ferry_part *part);

#endif
