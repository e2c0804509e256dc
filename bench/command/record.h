/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Where a command's figures go: its standard output, and the file of --json ("-": standard output, and all other output
 * goes to standard error). Used by the commands of bench/, in one thread. A function that fails prints its reason after
 * the command's name.
 */
#ifndef FERRY_BENCH_RECORD_H
#define FERRY_BENCH_RECORD_H

#include <cjson/cJSON.h>
#include <stdbool.h>

/** Whether a file of this name can be written, to ask before a measurement; else errno says why. Prints nothing. */
bool record_can_write(const char *name);

/**
 * To be called before anything is printed: if the record goes to standard output, all other output goes to standard
 * error from now on. NULL: there is no record.
 */
bool record_print_beside(const char *command, const char *name);

/**
 * Puts `whole`, which it frees, into the file, which has the old text or the new one whole at any time, also when this
 * process is killed. A device, a pipe or "-" gets the last one alone.
 */
bool record_write(const char *command, const char *name, cJSON *whole, bool last);

/** Flushes standard output, for readers that follow it. */
void record_flush(void);

/** Whether all output has been written. To be called at the end. */
bool record_printed(const char *command);

#endif
