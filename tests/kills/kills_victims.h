/* SPDX-License-Identifier: Apache-2.0 */
/** Ranks that are killed, over and over, beside a second job on the same routers. */
#ifndef FERRY_TESTS_KILLS_VICTIMS_H
#define FERRY_TESTS_KILLS_VICTIMS_H

#include "tests/kills/kills_shared.h"

/** Kills them, judges, says so in one line: the exit code. */
int kills_of_ranks(struct kills_shared *shared);

#endif
