/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank-lib/call/short_call.c, router/engine/pair.c: a message that callers run goes through a few slots. No rank waits
 * for a thread that does something else, and no slot is written before it has been read. One rank sends a message of
 * SLICES slices, the other receives it. Each one's thread moves what it can and then either waits, and sleeps, or
 * leaves the call; its lane, which sleeps, takes a call that was left once another rank wakes it.
 *
 * As in eventcount.pml a store goes through the core's buffer, and a fence waits until that is empty: `sent` and
 * `taken` are what their writers have stored, seen_sent and seen_taken what the others can see. Announcements of
 * sleepers, and that a call is left, have a fence of their own, and so are seen at once.
 *
 * Checked: no execution ends with a thread or a lane asleep that has a call, unless both ranks have left it; and the
 * receiver finds each slice in its slot. Each of these breaks it, as scripts/check-models shows:
 *   -DNO_CREDIT       the sender does not wait for a free slot
 *   -DNO_FENCE        who has moved a slice looks for sleepers before that can be seen
 *   -DNO_RECHECK      a thread or lane does not look again once it has announced that it sleeps
 *   -DNO_LEFT         a thread does not say that it leaves its call
 *   -DNO_LEFT_RECHECK ... or does not look again once it has said so
 *   -DNO_WAKE_LEFT    who waits does not wake the lane of a rank that has left its call
 */
#define SLICES 3
#define SLOTS  1
#define SENDER 0
#define RECEIVER 1

byte sent, seen_sent, taken, seen_taken, slots[SLOTS];
bool left[2], held[2] = true; /* the call is a thread's, which may be about to leave it */
bool lane_calls[2];
bool thread_sleeps[2], lane_sleeps[2], thread_asleep[2], lane_asleep[2];
byte thread_rings[2], lane_rings[2];

#define OVER(me) ((me == SENDER && sent == SLICES) || (me == RECEIVER && taken == SLICES))
#define EMPTY(me) ((me == SENDER && seen_sent == sent) || (me == RECEIVER && seen_taken == taken))

active proctype memory()
{
end:	do
	:: atomic { seen_sent != sent -> seen_sent = sent }
	:: atomic { seen_taken != taken -> seen_taken = taken }
	od
}

inline ring_lane(rank)
{
	if
	:: lane_sleeps[rank] -> atomic { lane_rings[rank]++; lane_asleep[rank] = false }
	:: else
	fi
}

/* ferry_wake_end */
inline wake(rank)
{
#ifndef NO_FENCE
	EMPTY(1 - rank);
#endif
	if
	:: thread_sleeps[rank] -> atomic { thread_rings[rank]++; thread_asleep[rank] = false }
	:: else
	fi;
	if
	:: lane_calls[rank] -> ring_lane(rank)
	:: else
	fi
}

/* ferry_pair_move */
inline run_call(me)
{
	do
#ifdef NO_CREDIT
	:: me == SENDER && sent < SLICES ->
#else
	:: me == SENDER && sent < SLICES && sent < seen_taken + SLOTS ->
#endif
		atomic { slots[sent % SLOTS] = sent; sent++ }
		wake(RECEIVER)
	:: me == RECEIVER && taken < seen_sent ->
		assert(slots[taken % SLOTS] == taken);
		taken++;
		wake(SENDER)
	:: else -> break
	od
}

/* ferry_pair_wake_left */
inline wake_left(me)
{
	if
#ifdef NO_WAKE_LEFT
	:: false -> skip
#else
	:: left[1 - me] -> ring_lane(1 - me)
#endif
	:: else
	fi
}

/* ferry_short_call_start, then wait_for, or leave. */
proctype caller(byte me)
{
	byte seen;
	run_call(me);
	if
	:: OVER(me) -> goto over
	:: else
	fi;
	if
	:: goto waits
	:: skip
	fi;
#ifndef NO_LEFT
	EMPTY(me);
	left[me] = true;
#endif
#ifndef NO_LEFT_RECHECK
	run_call(me);
	if
	:: OVER(me) -> goto over
	:: else
	fi;
#endif
	held[me] = false;
	goto gone;
waits:
	do
	:: seen = thread_rings[me];
		thread_sleeps[me] = true;
#ifndef NO_RECHECK
		run_call(me);
#endif
		if
		:: OVER(me) -> break
		:: else
		fi;
		wake_left(me);
		atomic { thread_asleep[me] = (thread_rings[me] == seen) }
		!thread_asleep[me];
		thread_sleeps[me] = false;
		run_call(me);
		if
		:: OVER(me) -> break
		:: else
		fi
	od;
over:
	thread_sleeps[me] = false;
	left[me] = false;
gone:
	skip
}

proctype lane(byte me)
{
	byte seen;
	bool has;
	do
	:: seen = lane_rings[me];
		lane_sleeps[me] = true;
		if
		:: left[me] && held[me] -> goto again /* under the communicator's lock */
		:: left[me] && !held[me] -> atomic { has = true; lane_calls[me] = true; left[me] = false }
		:: else
		fi;
		if
		:: has ->
#ifndef NO_RECHECK
			run_call(me);
#endif
			if
			:: OVER(me) -> break
			:: else -> wake_left(me)
			fi
		:: else
		fi;
		atomic { lane_asleep[me] = (lane_rings[me] == seen) }
		if
		:: has -> !lane_asleep[me]
		:: else ->
end:			!lane_asleep[me]
		fi;
		if
		:: has -> run_call(me)
		:: else
		fi;
again:		lane_sleeps[me] = false
	od
}

init {
	atomic { run caller(0); run caller(1); run lane(0); run lane(1) }
}
