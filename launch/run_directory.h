/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The directory of one ferryrun's sockets: run-XXXXXX in the socket directory, or ferry-run-XXXXXX in /tmp if a
 * socket's path there would be too long; an absolute path, as ranks may work in another directory. ferryrun makes it,
 * its routers put their sockets into it, and ferryrun removes it. If a ferryrun is killed together with its routers,
 * the next ferryrun removes its directory. Each ferryrun holds a lock (flock(2)) on its own directory as long as it
 * lives, however it ends.
 */
#ifndef FERRY_LAUNCH_RUN_DIRECTORY_H
#define FERRY_LAUNCH_RUN_DIRECTORY_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

struct ferry_run_directory {
	char path[80];
	int lock; /* the directory itself, open; -1: none */
};

/**
 * Removes stale directories, then makes a directory of mode 0700 and locks it. A directory of another ferryrun is stale
 * if it is this user's, no process holds its lock, it has only routers' sockets and their locks, by name and kind, and
 * no router answers on any. Errors: ferrySystemError with the path; those of ferry_endpoint_directory.
 */
ferryResult_t ferry_run_directory_make(struct ferry_run_directory *directory);

/** Whether ferryrun may have made a directory of that name, in the socket directory or in /tmp. */
bool ferry_run_directory_is(const char *name);

/** Removes the directory with all that is in it, and frees the lock. */
void ferry_run_directory_remove(struct ferry_run_directory *directory);

#endif
