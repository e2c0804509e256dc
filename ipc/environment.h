/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The environment: every variable that Ferry reads is in one table, with name, default and meaning. docs/environment.md
 * and `ferry-stat --env` are printed from it; code reads variables only through it, so an undocumented one cannot
 * exist, and one of Ferry's prefix that the table lacks is a user's mistake, which is named. It also reads FERRY_DEBUG.
 * Read-only.
 */
#ifndef FERRY_IPC_ENVIRONMENT_H
#define FERRY_IPC_ENVIRONMENT_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdint.h>

struct ferry_variable {
	const char *name;
	const char *fallback; /* shown as the default; "" if none */
	const char *meaning;  /* one or two sentences */
};

/** The table; ends with a NULL name. */
extern const struct ferry_variable ferry_variables[];

/** The variables that a user looks for first, the other ones, and the ones that launchers set. */
enum ferry_variable_section {
	FERRY_VARIABLES_FIRST,
	FERRY_VARIABLES_OTHER,
	FERRY_VARIABLES_LAUNCHER,
	FERRY_VARIABLE_SECTIONS
};
enum ferry_variable_section ferry_variable_section(const struct ferry_variable *variable);

/**
 * The variable's value, or NULL if unset or empty. A name that the table lacks is a bug: NULL, and an error is logged.
 */
const char *ferry_env(const char *name);

/**
 * Warns, once per process, of each environment variable that begins with FERRY_ and that the table lacks, unless a
 * ferryrun above this process has had it, and so has warned of it.
 */
void ferry_env_name_unknown(void);

/** Bytes in [least, most]; the number may end with K, M or G (powers of 1024). Else as ferry_env_integer. */
ferryResult_t ferry_env_bytes(const char *name, uint64_t least, uint64_t most, uint64_t fallback, uint64_t *value);

/** An integer in [least, most]. Unset: fallback. Errors: ferryInvalidArgument with name, value and the range. */
ferryResult_t ferry_env_integer(const char *name, long least, long most, long fallback, long *value);

/** on or off. Unset: fallback. Errors: ferryInvalidArgument with name and value. */
ferryResult_t ferry_env_switch(const char *name, bool fallback, bool *value);

/** Parses "64K", "1G", "4096". Returns 0 if it is no such number. Used by command lines too. */
int ferry_parse_bytes(const char *text, uint64_t *value);

/**
 * Reads FERRY_DEBUG, again with each communicator: output of ranks and routers beside the log, whatever its level.
 * Error: ferryInvalidArgument, with its value.
 */
ferryResult_t ferry_debug_read(void);

bool ferry_debug_shows_plans(void);

#endif
