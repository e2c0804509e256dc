/* SPDX-License-Identifier: Apache-2.0 */
/*
 * put_targets.pml with two routers: rank 0's lane is in another domain's router than rank 1, into whose buffer it puts
 * (router/engine/put_targets.h, router/gpu/imports.h, rank-lib/failover/copy_quiesce.h). Two calls. The buffer is
 * `ready` while rank 1's stream waits in a call, and the application's else.
 *
 * Rank 1 names the buffer: it says which call uses it, and looks whether rank 0's router still has it mapped, which
 * maps it otherwise. That router forgets what is idle: it withdraws its word, and unmaps unless a call that is not over
 * uses it, as rank 1's own router says, or its own lane holds it. (Stores and loads are in order here: the fences of
 * the two are those of exports.pml.)
 *
 * The job may fail. Then rank 0's lane lets go as soon as no copy is under way, and says that it has stopped; rank 1's
 * lane waits for that before it ends the call. Rank 0's router may be killed: its connections close, its copies go on,
 * its process ends; rank 1's router monitor sees the connection close, which ends the job, and says when the process
 * has ended, for which rank 1's lane waits, too. Or rank 1 aborts: its lane drops the call, and rank 0's router shuts
 * the table, waits until nobody puts, and lets go; rank 1 waits for that, or for one of the others.
 *
 * Checked: no copy begins, goes on or ends while the buffer is not ready, or not mapped; everybody comes to an end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_WAIT        rank 1's lane ends the call as soon as the job has failed
 *   -DEARLY_STOPPED  rank 0's lane says that it has stopped with a copy under way
 *   -DNO_STOPPED     it does not say so
 *   -DBY_SOCKET      rank 1's router monitor takes a router for ended whose connection has closed
 *   -DNO_ENDED       it does not say that the router has ended
 *   -DNO_SHUT        rank 0's router lets go of rank 1 without shutting the table
 *   -DNO_QUIET       it shuts the table and does not wait for lanes that put
 *   -DBY_TAKEN       rank 1's router says that calls are over which it has only taken
 *   -DNO_LOOK        rank 1 does not look whether the buffer is still mapped
 *   -DNO_HOLD        rank 0's lane does not hold what it puts into
 */
#define CALLS 2

bool ready;
byte submitted;          /* rank 1's calls */
byte published;          /* by rank 0's lane: slices of that call are there */
byte used, over;         /* rank 1's: the last call that names the buffer; that is over */
bool mapped, word;       /* rank 0's router: it has it mapped; and says so */
bool asked;              /* rank 1: to map it */
bool shut;
byte putting;
bool failed, stopped;
bool leaves, released;     /* rank 1 aborts; rank 0's router has let go of it */
bool closed, ended, told; /* rank 0's router: its connections, its process; rank 1's router monitor says so */
bool finished;           /* rank 1 has nothing to do any more */

inline name(call)
{
	used = call;
#ifndef NO_LOOK
	do
	:: word -> break
	:: !word && !asked -> asked = true
	:: closed -> goto failing /* the export fails, and no call is made */
	od
#else
	if
	:: call == 1 ->
		asked = true;
		if
		:: word
		:: closed -> goto failing
		fi
	:: else
	fi
#endif
}

/* Rank 1, and its own router's lane. */
proctype receiver()
{
	byte call = 1;
	bool aborts = false;
	do
	:: call > CALLS -> break
	:: call <= CALLS && !failed ->
		name(call);
		atomic { ready = true; submitted = call }
#ifdef BY_TAKEN
		over = call;
#endif
		if
		:: published >= call -> atomic { ready = false; over = call }
		:: failed -> break
		:: aborts = true; break
		fi;
		call++
	:: failed -> break
	od;
failing:
	if
	:: aborts ->
		failed = true;
		leaves = true;
		(released || stopped || ended)
	:: !aborts && ready ->
#ifndef NO_WAIT
		(stopped || told)
#else
		skip
#endif
	:: !aborts && !ready
	fi;
	atomic { ready = false; over = call; finished = true }
}

/* Rank 1's: the socket to rank 0's router. */
proctype router_monitor()
{
	if
	:: closed ->
		failed = true;
#ifndef BY_SOCKET
		(ended || released || stopped);
#endif
#ifndef NO_ENDED
		told = true
#endif
	:: finished
	fi
}

/* Rank 0's lane. What it has begun goes on until its process has ended. */
proctype pusher()
{
	byte call = 1;
	bool holds;
	do
	:: closed || failed || call > CALLS -> break
	:: !closed && !failed && call <= CALLS ->
		if
		:: submitted >= call
		:: failed || closed -> break
		fi;
		holds = false;
#ifndef NO_HOLD
		atomic {
			if
			:: !shut && mapped -> putting++; holds = true
			:: !shut && !mapped && !closed && !failed -> assert(false) /* what a call names is there */
			:: else
			fi
		}
#else
		holds = !shut;
#endif
		if
		:: holds
		:: !holds -> break
		fi;
		atomic { !ended -> assert(ready && mapped) } unless { ended };  /* the copy begins */
#ifdef EARLY_STOPPED
		if
		:: failed -> stopped = true
		:: else
		fi;
#endif
		atomic { !ended -> assert(ready && mapped) } unless { ended };  /* and ends */
		if
		:: !ended -> published = call
		:: ended -> break
		fi;
#ifndef NO_HOLD
		putting--;
#endif
		call++
	od;
#ifndef NO_STOPPED
	(failed || finished || closed);
	atomic { if :: !closed -> stopped = true :: closed fi }
#endif
}

/* Rank 0's router: maps, forgets what is idle, and ends rank 1's part. */
proctype mapper()
{
	byte looks; /* bounded, so that a process that waits in vain is found */
end:	do
	:: closed -> break
	:: finished -> break
	:: asked && !closed -> atomic { mapped = true; word = true; asked = false }
	:: !closed && word && !asked && looks < 3 ->
		looks++;
		word = false;
		atomic { /* under the table's lock */
			if
			:: used <= over && putting == 0 -> mapped = false
			:: else -> word = true
			fi
		}
	od
}

proctype closer()
{
	if
	:: leaves && !closed ->
#ifndef NO_SHUT
		shut = true;
#ifndef NO_QUIET
		(putting == 0 || closed);
#endif
#endif
		atomic { if :: !closed -> released = true :: closed fi }
	:: finished || closed
	fi
}

/* What goes wrong. */
proctype trouble()
{
	if
	:: failed = true
	:: closed = true; ended = true
	:: finished
	fi
}

init {
	atomic { run receiver(); run router_monitor(); run pusher(); run mapper(); run closer(); run trouble() }
}
