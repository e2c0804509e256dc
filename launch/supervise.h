/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The processes that ferryrun owns: routers, and either mpiexec or the ranks themselves. One thread, one list; signals
 * arrive by sigtimedwait, so nothing here runs in a handler.
 *
 * Ranks under an mpiexec are children of its own, or of its proxy's, which this process does not know. In each of them
 * ferry_become_rank ties the rank's life to its parent's. MPICH's mpiexec waits for ever if its proxy has died and
 * ranks live; once they are dead it ends.
 */
#ifndef FERRY_LAUNCH_SUPERVISE_H
#define FERRY_LAUNCH_SUPERVISE_H

#include "launch/run_directory.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define FERRY_MOST_SPARES   8 /* routers per domain that stand by */
#define FERRY_MOST_CHILDREN (FERRY_MAX_RANKS + (1 + FERRY_MOST_SPARES) * FERRY_MAX_DOMAINS)

enum ferry_child_role { FERRY_CHILD_ROUTER, FERRY_CHILD_RANK, FERRY_CHILD_MPIEXEC };

struct ferry_child {
	pid_t pid; /* 0 once it has ended */
	enum ferry_child_role role;
	int number; /* rank or domain; n * FERRY_MAX_DOMAINS + domain: its n-th spare router */
};

/* How far the ranks' end has come; never back. */
enum ferry_supervisor_state {
	FERRY_RANKS_RUN,
	FERRY_RANKS_ASKED, /* they have got a signal to end, and are killed at the deadline */
	FERRY_RANKS_KILLED
};

struct ferry_supervisor {
	struct ferry_child children[FERRY_MOST_CHILDREN];
	int nchildren;
	int exit_code;       /* of the first rank that failed, or of mpiexec */
	bool failed;         /* exit_code is a failure's */
	int asked;           /* the signal by which this process was asked to end; 0: none */
	uint64_t asked_at;   /* ns */
	enum ferry_supervisor_state state;
	unsigned grace_s;    /* between the signal to end and the killing of the ranks */
	uint64_t deadline;   /* ns: when the ranks are killed; 0: never */
	uint64_t ended;      /* ranks that have ended with code 0 */
	bool told_missing;   /* that others wait for one of these */
	struct ferry_run_directory *directory; /* NULL: none */
	/*
	 * a router has ended with this status while ranks run: starts another; NULL: none is started. `routers` is its
	 */
	void (*replace)(void *routers, struct ferry_supervisor *supervisor, int number, int status);
	void *routers;
};

/** Blocks the signals that ferry_supervise takes, whatever this process has inherited. Before the first child. */
void ferry_supervisor_init(struct ferry_supervisor *supervisor, unsigned grace_s);

/**
 * Starts argv as a child that ends when this process does; it replaces an ended child of that role and number.
 * environment: NULL-terminated NAME=VALUE to add. null_input: stdin from /dev/null. Errors: ferrySystemError, also with
 * the name of a program that cannot be run.
 */
ferryResult_t ferry_start_child(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number,
                                char *const *argv, char *const *environment, bool null_input);

/**
 * For a caller that waits for a child before ferry_supervise does: waits until the descriptor can be read, for this
 * long at most. Returns false if that time is over, or a signal asked this process to end: the supervisor's `asked` is
 * the signal, and the message has it.
 */
bool ferry_supervisor_await(struct ferry_supervisor *supervisor, int descriptor, unsigned timeout_ms);

/**
 * Writes how that child has ended ("ended with exit code 1"), or that it has not: waits a second for it. Returns the
 * signal that has killed it, or 0.
 */
int ferry_supervisor_report_end(struct ferry_supervisor *supervisor, enum ferry_child_role role, int number, char *text,
                                size_t bytes);

/**
 * Waits until all ranks (or mpiexec) have ended. The first signal to end is passed on to them; with the second one, or
 * after the grace period, they are killed. timeout_s: sends them a signal to end after so long; 0: never.
 */
void ferry_supervise(struct ferry_supervisor *supervisor, unsigned timeout_s);

/**
 * Called in a rank's process before its command is executed: makes the kernel kill it when its parent dies, if the
 * parent has one thread. Linux looks at the death of the thread that forked, and a parent with several may have ended
 * that one.
 */
void ferry_become_rank(void);

/** Ends the routers, first by SIGTERM, and removes the socket directory. */
void ferry_supervisor_end(struct ferry_supervisor *supervisor);

#endif
