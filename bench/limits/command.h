/* SPDX-License-Identifier: Apache-2.0 */
/**
 * `ferry-perf limits`: measures what the machine can do at most and writes it to the limits file. Called by
 * ferry-perf's main.
 */
#ifndef FERRY_BENCH_LIMITS_COMMAND_H
#define FERRY_BENCH_LIMITS_COMMAND_H

#include "ipc/ferry_types.h"

/** Makes the folders in which the file of limits lies. */
ferryResult_t limits_make_folders(const char *path);

/** Returns the exit code. */
int limits_command(int argc, char **argv);

#endif
