/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A push: rank 0's lane, in the router, copies into rank 1's receive buffer, which its application has back as soon as
 * its stream goes on (router/engine/put_targets.h, router/gpu/imports.h). Two runs of a call. The buffer is `ready`
 * while rank 1's stream waits in the call, and the application's before and after.
 *
 * Rank 1's D2H lane submits the call when the stream has reached it: its descriptor says where the buffer is. Rank 0's
 * lane puts once both have submitted. It holds rank 1's mapping meanwhile, which it takes under the lock of rank 1's
 * table unless that is shut, and counts itself in `putting`. It publishes behind the copy. Rank 1's H2D lane ends the
 * call once that is there; the stream goes on.
 *
 * The job may fail at any time, and rank 1 be gone: then its lanes are over, its table is shut under the lock, and when
 * nobody is putting any more the router says that it has let go: the stream goes on, and the buffer is the
 * application's.
 *
 * Checked: no copy begins, goes on or ends while the buffer is not ready; the router that shuts the table comes to its
 * end; rank 0's lane lets go of what it took.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_AGREEMENT   rank 0 puts as soon as its own stream has reached the call
 *   -DEARLY_PUBLISH  it publishes before the copy has ended
 *   -DNO_SHUT        the router lets go of a rank whose lanes are over, though a lane still puts into its memory
 *   -DNO_LOCK        rank 0 looks whether the table is shut, and counts itself in later
 *   -DEARLY_RELEASE  it counts itself out when the job has failed, with the copy under way
 *   -DKEPT           it does not count itself out when the job has failed
 */
#define RUNS 2

bool ready;             /* rank 1's stream waits in the call: nobody else touches the buffer */
byte submitted[2];      /* number of the last call that each rank has submitted */
byte published;         /* the last call whose slices rank 0 has published */
byte over;              /* the last call that rank 1 has ended */
bool failed, gone, released;
bool shut;              /* rank 1's table, under its lock */
byte putting;           /* the same */

/* Rank 1: its stream, its lanes, and the application behind them. */
proctype receiver()
{
	byte call = 1;
	do
	:: call > RUNS -> break
	:: failed -> break
	:: call <= RUNS && !failed ->
		ready = true;     /* the stream has reached the call */
		submitted[1] = call;
		if
		:: published >= call -> /* WAIT_PUT */
			atomic { over = call; ready = false } /* the stream goes on */
			call++
		:: failed -> break
		fi
	od;
	(!failed || released);
	atomic { released -> ready = false } unless { !failed && call > RUNS }
}

/* The router ends rank 1's part; its lanes are over by then. */
proctype closer()
{
	(failed);
	gone = true;
#ifndef NO_SHUT
	shut = true;
	(putting == 0);
#endif
	released = true
}

/* Rank 0's lane. */
proctype pusher()
{
	byte call = 1;
	bool held = false;
	do
	:: call > RUNS -> break
	:: failed -> break
	:: call <= RUNS && !failed ->
		submitted[0] = call;
#ifdef NO_AGREEMENT
		skip;
#else
		if
		:: submitted[1] >= call
		:: failed -> break
		fi;
#endif
#ifdef NO_LOCK
		if
		:: !shut
		:: shut -> break
		fi;
		putting++;
		held = true;
#else
		if
		:: atomic { !shut -> putting++; held = true }
		:: shut -> break
		fi;
#endif
		assert(ready);            /* the copy begins */
#ifdef EARLY_PUBLISH
		published = call;
#endif
#ifdef EARLY_RELEASE
		if
		:: atomic { failed -> putting--; held = false }
		:: skip
		fi;
#endif
		assert(ready);            /* and ends */
#ifndef EARLY_PUBLISH
		published = call;
#endif
		if
		:: held ->
#ifdef KEPT
			if
			:: failed -> break
			:: !failed
			fi;
#endif
			atomic { putting--; held = false }
		:: !held
		fi;
		(over >= call || failed);
		call++
	od;
#ifndef KEPT
	assert(!held)
#endif
}

proctype failure()
{
	if
	:: failed = true
	:: (over == RUNS)
	fi;
	failed = true /* or it ends: the table is shut all the same */
}

init {
	atomic { run receiver(); run closer(); run pusher(); run failure() }
}
