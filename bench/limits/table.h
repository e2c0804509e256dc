/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The output of `ferry-perf limits` on a terminal: a progress line, and then a table with bars. Used by its command's
 * thread.
 */
#ifndef FERRY_BENCH_LIMITS_TABLE_H
#define FERRY_BENCH_LIMITS_TABLE_H

#include "rank-lib/program/limits.h"

/** Shows what is being measured now, on stderr if that is a terminal; "" removes the line. */
void limits_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

void limits_print(const struct ferry_limits *limits);

#endif
