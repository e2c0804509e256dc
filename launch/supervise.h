/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes that ferryrun owns: routers, and either mpiexec or the ranks themselves. One thread, one list; signals
 * arrive by sigtimedwait, so nothing here runs in a handler.
 *
 * Ranks under an mpiexec are children of the mpiexec or its proxy, and unknown to this process. In each of them
 * ferry_become_rank makes the rank die with its parent: MPICH's mpiexec waits for ever if its proxy has died and ranks
 * live, and ends once they are dead.
 */
#ifndef FERRY_LAUNCH_SUPERVISE_H
#define FERRY_LAUNCH_SUPERVISE_H

#include "launch/run_directory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FERRY_MOST_SPARES   8 /* routers that stand by, per domain */
#define FERRY_MOST_CHILDREN (FERRY_MAX_RANKS + (1 + FERRY_MOST_SPARES) * FERRY_MAX_DOMAINS)

enum ferry_child_role { FERRY_CHILD_ROUTER, FERRY_CHILD_RANK, FERRY_CHILD_MPIEXEC };

struct ferry_child {
	pid_t pid; /* 0 once it has ended */
	enum ferry_child_role role;
	int number; /* rank, or domain; of a domain's n-th spare router: n * FERRY_MAX_DOMAINS + domain */
};

/* How far the ranks' end has come; never back. */
enum ferry_supervisor_state {
	FERRY_RANKS_RUN,
	FERRY_RANKS_ASKED, /* the ranks have got a signal to end, and are killed at the deadline */
	FERRY_RANKS_KILLED
};

struct ferry_supervisor {
	struct ferry_child children[FERRY_MOST_CHILDREN];
	int nchildren;
	int exit_code;       /* of the first rank that failed, or of mpiexec */
	bool failed;         /* exit_code is final: a rank, or mpiexec, has failed, or time is over */
	int asked;           /* the signal by which this process was asked to end; 0: none */
	uint64_t asked_at;   /* ns */
	enum ferry_supervisor_state state;
	unsigned grace_s;    /* between the signal to end and the killing of the ranks */
	uint64_t deadline;   /* ns: when running ranks are asked to end, and asked ones are killed; 0: never */
	uint64_t ended;      /* ranks that have ended with code 0 */
	bool told_missing;   /* a line has said that other ranks wait for one of these */
	struct ferry_run_directory *directory; /* NULL: none */
	/* called with `routers` when a router has ended with this status while ranks run: starts another; or NULL */
	void (*replace)(void *routers, struct ferry_supervisor *supervisor, int number, int status);
	void *routers;
};

/** Blocks the signals that ferry_supervise takes, whatever this process has inherited. Call before the first child. */
void ferry_supervisor_init(struct ferry_supervisor *supervisor, unsigned grace_s);

/**
 * Starts argv as a child that ends when this process does, in the place of an ended child of that role and number.
 * environment: NULL-terminated NAME=VALUE to add. null_input: stdin from /dev/null. Error: ferrySystemError, with the
 * name of a program that cannot be run.
 */
ferryResult_t ferry_start_child(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number,
                                char *const *argv, char *const *environment, bool null_input);

/**
 * For a caller that waits for a child before ferry_supervise does: waits until the descriptor can be read, for this
 * long at most. Returns false if that time is over, or a signal asks this process to end: then supervisor->asked is the
 * signal, and ferry_last_message() names it.
 */
bool ferry_supervisor_await(struct ferry_supervisor *supervisor, int descriptor, unsigned timeout_ms);

/**
 * Waits a second for the end of a child. Writes how it has ended ("ended with exit code 1"), or that it has not.
 * Returns the signal that has killed it, or 0.
 */
int ferry_supervisor_report_end(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number, char *text,
                                size_t bytes);

/**
 * Waits until all ranks (or mpiexec) have ended. Passes the first signal to end on to them; kills them at a second one,
 * or after the grace period. timeout_s: sends them SIGTERM after so many seconds; 0: never.
 */
void ferry_supervise(struct ferry_supervisor *supervisor, unsigned timeout_s);

/**
 * Called in a rank's process before its command is executed: makes the kernel kill it when its parent dies. Does
 * nothing if the parent has several threads, as Linux would kill the rank at the end of the thread that has forked it.
 */
void ferry_become_rank(void);

/** Ends all children, by SIGTERM and 5 s later by SIGKILL, and removes the directory. */
void ferry_supervisor_end(struct ferry_supervisor *supervisor);

#endif
