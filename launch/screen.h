/* SPDX-License-Identifier: Apache-2.0 */
/** The rows of ferry-stat for people, in 80 columns, and for programs. */
#ifndef FERRY_LAUNCH_SCREEN_H
#define FERRY_LAUNCH_SCREEN_H

#include "launch/rows.h"

#include <stdio.h>

/**
 * Prints tables of routers, jobs, GPUs and tenants, if there are any. lines: of the screen, with the cursor's; 0: no
 * screen. If not all rows fit, shows as many of each table, and the last line says how many are left out.
 */
void ferry_screen_print(const struct ferry_rows *rows, const struct ferry_sockets *sockets, size_t lines, FILE *out);

/** Prints that no router answers, and where it was looked for. */
void ferry_screen_print_none(const struct ferry_sockets *sockets, FILE *out);

/** Prints one line of JSON; docs/man/ferry-stat.1 has its fields. Errors: ferrySystemError without memory. */
ferryResult_t ferry_screen_print_json(const struct ferry_rows *rows, FILE *out);

#endif
