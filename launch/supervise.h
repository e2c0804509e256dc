/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes that ferryrun owns: routers, and either mpiexec or the ranks themselves. One thread, one list; signals
 * arrive by sigtimedwait, so nothing here runs in a handler.
 */
#ifndef FERRY_LAUNCH_SUPERVISE_H
#define FERRY_LAUNCH_SUPERVISE_H

#include "launch/run_directory.h"

#include <stdbool.h>
#include <sys/types.h>

#define FERRY_MOST_CHILDREN (FERRY_MAX_RANKS + FERRY_MAX_DOMAINS)

enum ferry_child_role { FERRY_CHILD_ROUTER, FERRY_CHILD_RANK, FERRY_CHILD_MPIEXEC };

struct ferry_child {
	pid_t pid; /* 0 once it has ended */
	enum ferry_child_role role;
	int number; /* rank or domain */
};

struct ferry_supervisor {
	struct ferry_child children[FERRY_MOST_CHILDREN];
	int nchildren;
	int exit_code;       /* of the first rank that failed, or of mpiexec */
	bool failed;         /* exit_code is a failure's */
	int asked;           /* the signal that this process was told to end by; 0: none */
	bool stopping;       /* the ranks have been told to end */
	uint64_t deadline;   /* ns: when patience ends; 0: none */
	struct ferry_run_directory *directory; /* NULL: none */
};

/** Blocks the signals that ferry_supervise takes. Before the first child. */
void ferry_supervisor_init(struct ferry_supervisor *supervisor);

/**
 * Starts argv as a child that ends when this process does. environment: NULL-terminated NAME=VALUE to add. null_input:
 * stdin from /dev/null. Errors: ferrySystemError; a program that cannot be run is one, with its name.
 */
ferryResult_t ferry_start_child(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number,
                                char *const *argv, char *const *environment, bool null_input);

/** Waits until all ranks (or mpiexec) have ended, passing signals on. timeout_s: ends them after so long; 0: never. */
void ferry_supervise(struct ferry_supervisor *supervisor, unsigned timeout_s);

/** Ends the routers, politely first, and removes the socket directory. */
void ferry_supervisor_end(struct ferry_supervisor *supervisor);

#endif
