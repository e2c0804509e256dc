/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank-lib/call/short_call.c: no rank sleeps through a short call. Two ranks make one; each one's caller waits for the
 * other's descriptor, and at any moment may give the call to its lane, which then waits instead of it.
 *
 * The rank that submits last wakes all that sleep: callers, and lanes of ranks that say that their lanes have calls
 * (ferry_wake_callers), as idle lanes are asleep and a short call is to wake none of them. As in eventcount.pml a
 * store goes through the core's buffer, and a fence waits until that is empty. Announcements of sleepers are
 * ferry_doorbell's, with its fence, and so are seen at once.
 *
 * Checked: no execution ends with a thread asleep. Each of these breaks it, as scripts/check-models shows:
 *   -DNO_SUBMIT_FENCE  a rank looks whether all have submitted, and for sleepers, before its own descriptor is visible
 *   -DNO_GIVE_FENCE    the lane looks for the descriptors before others can see that it has a call
 *   -DNO_RECHECK       a caller does not look again once it has announced that it sleeps
 */
#define RANKS 2

bool submitted[RANKS], submitted_buffered[RANKS]; /* seq of the descriptor */
bool lane_calls[RANKS], lane_calls_buffered[RANKS];
bool caller_sleeps[RANKS], lane_sleeps[RANKS];    /* announced at the bells app and d2h */
bool caller_asleep[RANKS], lane_asleep[RANKS];
byte caller_rings[RANKS], lane_rings[RANKS];
bool given[RANKS], over[RANKS];

#define ALL (submitted[0] && submitted[1])
/* as a rank sees it, whose own stores it sees at once */
#define ALL_FOR(me) ((submitted[me] || submitted_buffered[me]) && submitted[1 - me])

active proctype memory()
{
end:	do
	:: atomic { submitted_buffered[0] -> submitted[0] = true; submitted_buffered[0] = false }
	:: atomic { submitted_buffered[1] -> submitted[1] = true; submitted_buffered[1] = false }
	:: atomic { lane_calls_buffered[0] -> lane_calls[0] = true; lane_calls_buffered[0] = false }
	:: atomic { lane_calls_buffered[1] -> lane_calls[1] = true; lane_calls_buffered[1] = false }
	od
}

inline wake(rank)
{
	if
	:: caller_sleeps[rank] -> atomic { caller_rings[rank]++; caller_asleep[rank] = false }
	:: else
	fi;
	if
	:: lane_calls[rank] ->
		if
		:: lane_sleeps[rank] -> atomic { lane_rings[rank]++; lane_asleep[rank] = false }
		:: else
		fi
	:: else
	fi
}

/* The thread that makes the call: ferry_order_submit, then wait_for. */
proctype caller(byte me)
{
	byte seen;
	submitted_buffered[me] = true;
#ifndef NO_SUBMIT_FENCE
	!submitted_buffered[me];
#endif
	if
	:: ALL_FOR(me) ->
		wake(0);
		wake(1)
	:: else
	fi;
	do
	:: ALL_FOR(me) -> over[me] = true; break
	:: !ALL_FOR(me) -> /* sleep_at_bell */
		seen = caller_rings[me];
		caller_sleeps[me] = true;
#ifndef NO_RECHECK
		if
		:: ALL_FOR(me) -> caller_sleeps[me] = false; over[me] = true; break
		:: else
		fi;
#endif
		atomic { caller_asleep[me] = (caller_rings[me] == seen) }
		!caller_asleep[me];
		caller_sleeps[me] = false
	:: !ALL_FOR(me) -> /* give_to_lanes */
		lane_calls_buffered[me] = true;
#ifndef NO_GIVE_FENCE
		!lane_calls_buffered[me];
#endif
		given[me] = true;
		break
	od
}

proctype lane(byte me)
{
	byte seen;
	(given[me] || over[me]);
	do
	:: over[me] -> break
	:: else ->
		if
		:: ALL_FOR(me) -> over[me] = true
		:: else ->
			seen = lane_rings[me];
			lane_sleeps[me] = true;
			if
			:: ALL_FOR(me)
			:: else ->
				atomic { lane_asleep[me] = (lane_rings[me] == seen) }
				!lane_asleep[me]
			fi;
			lane_sleeps[me] = false
		fi
	od
}

init {
	atomic { run caller(0); run caller(1); run lane(0); run lane(1) }
}
