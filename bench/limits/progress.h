/* SPDX-License-Identifier: Apache-2.0 */
/** The progress line of commands that measure. Used by the command's thread. */
#ifndef FERRY_BENCH_LIMITS_PROGRESS_H
#define FERRY_BENCH_LIMITS_PROGRESS_H

/** Shows what is being measured now, on stderr if that is a terminal; "" removes the line. */
void limits_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
