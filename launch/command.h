/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Looks for the ranks' command before anything is started: an mpiexec would report a missing one in its own words and
 * with its own exit code, when the routers already run. Called by ferryrun; nothing is kept.
 */
#ifndef FERRY_LAUNCH_COMMAND_H
#define FERRY_LAUNCH_COMMAND_H

#define FERRY_COMMAND_REFUSED 126 /* the exit codes of a shell, env(1) and timeout(1) */
#define FERRY_COMMAND_MISSING 127

/**
 * Looks for the command as execvp(3) does: a name without a slash on PATH. Returns 0 if it may be executed, else the
 * exit code to end with: FERRY_COMMAND_MISSING if there is none, FERRY_COMMAND_REFUSED if there is one that may not be
 * executed; ferry_last_message() says which. Errors that only execution shows, such as a missing interpreter, are not
 * found.
 */
int ferry_command_check(const char *name);

#endif
