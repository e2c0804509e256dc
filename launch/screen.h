/* SPDX-License-Identifier: Apache-2.0 */
/** The rows of ferry-stat for people, in 80 columns, and for programs. */
#ifndef FERRY_LAUNCH_SCREEN_H
#define FERRY_LAUNCH_SCREEN_H

#include "launch/rows.h"

#include <stdio.h>

/**
 * Prints a table of the routers, one of the jobs, one of the GPUs and one of the tenants, if there are any. lines: of
 * the screen, the cursor's among them; rows that do not fit are left out, of all tables alike, and the last line says
 * how many. 0: it is no screen.
 */
void ferry_screen_print(const struct ferry_rows *rows, const struct ferry_sockets *sockets, size_t lines, FILE *out);

/** Prints that no router answers, and where it was looked for. */
void ferry_screen_print_none(const struct ferry_sockets *sockets, FILE *out);

/** Prints one line of JSON; docs/man/ferry-stat.1 has its fields. Errors: ferrySystemError without memory. */
ferryResult_t ferry_screen_print_json(const struct ferry_rows *rows, FILE *out);

#endif
