/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank-lib/call/put_gate.h: a lane of another process puts into a host device's memory by itself. The memory is the
 * call's, and so `ready`, until the job has failed and its owner has shut the gate; then the owner's stream goes on,
 * and the memory is the application's.
 *
 * The sender sets its bit, looks whether the gate is shut, puts, takes the bit away, and rings the owner's lanes if the
 * gate has been shut meanwhile. Its process may be killed in the middle of a copy: its sockets close first, the copy
 * comes to its end, and then the process has ended, with the bit still set. The owner shuts the gate, and waits until
 * there is no bit but those of processes that have ended. It sleeps after a look that found one; nothing rings for an
 * end, which it looks for now and then.
 *
 * As in eventcount.pml a store goes into the core's buffer first, and `memory` moves it on. Checked: no copy begins,
 * goes on or ends in memory that is not the call's; the owner does not sleep for ever.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_PUTTER_FENCE  the sender looks whether it is shut before its bit is visible
 *   -DNO_OWNER_FENCE   the owner looks for bits before `shut` is visible
 *   -DLATE_BIT         the sender looks first, and sets its bit then
 *   -DEARLY_LEAVE      it takes its bit away with the copy under way
 *   -DNO_SHUT          the owner waits until there is no bit, and shuts nothing
 *   -DNO_LEAVE_FENCE   the sender looks for the owner before it is visible that its bit is gone
 *   -DNO_RING          it rings nobody
 *   -DBY_SOCKET        the owner takes a process for ended whose sockets have closed
 *   -DNO_ENDS          it waits for the bits of processes that have ended, too
 */
#define PUTS 2

bool ready = true;     /* the memory is the call's */
bool failed;
bool shut, putting;
bool shut_buffered;
byte putting_buffered; /* value + 1; 0: the buffer is empty */
bool rung;             /* the owner's bell, since it last prepared to sleep */
bool closed, ended;    /* the process that puts: its sockets; all of it */

#ifdef BY_SOCKET
#define GONE closed
#else
#ifdef NO_ENDS
#define GONE false
#else
#define GONE ended
#endif
#endif

proctype memory()
{
end:	do
	:: atomic { putting_buffered != 0 -> putting = putting_buffered - 1; putting_buffered = 0 }
	:: atomic { shut_buffered -> shut = true; shut_buffered = false }
	od
}

/* Stores of one core stay in order, so there is one to a buffer. */
inline store_putting(value)
{
	atomic { putting_buffered == 0 -> putting_buffered = value + 1 }
}

/* ferry_put_gate_leave */
inline leave()
{
	store_putting(0);
#ifndef NO_LEAVE_FENCE
	putting_buffered == 0;
#endif
	if
#ifndef NO_RING
	:: shut -> rung = true
	:: !shut
#else
	:: skip
#endif
	fi
}

/* A lane that puts. */
proctype putter()
{
	byte put;
	do
	:: put == PUTS -> break
	:: put < PUTS ->
		put++;
#ifdef LATE_BIT
		if
		:: shut -> break
		:: !shut
		fi;
		store_putting(1);
#else
		store_putting(1);
#ifndef NO_PUTTER_FENCE
		putting_buffered == 0; /* ferry_put_gate_enter */
#endif
		if
		:: shut -> leave(); break
		:: !shut
		fi;
#endif
		assert(ready); /* the copy begins */
#ifdef EARLY_LEAVE
		leave();
#endif
		if
		:: closed = true; /* killed */
			assert(ready);
			ended = true;
			break
		:: skip
		fi;
		assert(ready); /* and ends */
#ifndef EARLY_LEAVE
		leave()
#endif
	od
}

/* The rank whose memory it is: ferry_put_gate_shut, again and again. */
proctype owner()
{
	(failed);
#ifndef NO_SHUT
	shut_buffered = true;
#ifndef NO_OWNER_FENCE
	!shut_buffered;
#endif
#endif
	do
	:: rung = false; /* prepares to sleep */
		if
		:: !putting || GONE -> break
		:: putting && !GONE -> (rung || GONE)
		fi
	od;
	ready = false
}

init {
	atomic { run memory(); run putter(); run owner() }
	failed = true /* at any time */
}
