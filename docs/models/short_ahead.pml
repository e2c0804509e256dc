/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that only send do not wait (ferry_order_hear_later in router/engine/order.c). Two ranks make calls 1 and 3,
 * which share a parity. In call 1 both only send, as each takes itself for the root: a disagreement that neither sees
 * in call 1. Before its call 3 a rank waits until the other one has finished call 1, in its lane if that takes long,
 * and then compares call 1 with what the other one's descriptor says, if that is still there.
 *
 * As in eventcount.pml a store goes through the core's buffer, and a fence waits until that is empty. Announcements of
 * sleepers are seen at once.
 *
 * Checked: no execution ends with a lane asleep, and one rank at least has compared call 1. Each of these breaks it:
 *   -DNO_FINISH_FENCE  a rank looks for lanes with calls before others can see that it has finished its own
 *   -DNO_GIVE_FENCE    the lane looks for that before others can see that it has a call
 *   -DHEAR_LATE        a rank compares once its own descriptor is that of call 3
 */
#define RANKS 2

byte descriptor[RANKS], descriptor_buffered[RANKS]; /* the call's number */
bool finished[RANKS], finished_buffered[RANKS];     /* call 1 */
bool lane_calls[RANKS], lane_calls_buffered[RANKS];
bool lane_sleeps[RANKS], lane_asleep[RANKS];
byte lane_rings[RANKS];
bool compared[RANKS], submitted[RANKS];

active proctype memory()
{
end:	do
	:: atomic { descriptor_buffered[0] -> descriptor[0] = descriptor_buffered[0]; descriptor_buffered[0] = 0 }
	:: atomic { descriptor_buffered[1] -> descriptor[1] = descriptor_buffered[1]; descriptor_buffered[1] = 0 }
	:: atomic { finished_buffered[0] -> finished[0] = true; finished_buffered[0] = false }
	:: atomic { finished_buffered[1] -> finished[1] = true; finished_buffered[1] = false }
	:: atomic { lane_calls_buffered[0] -> lane_calls[0] = true; lane_calls_buffered[0] = false }
	:: atomic { lane_calls_buffered[1] -> lane_calls[1] = true; lane_calls_buffered[1] = false }
	od
}

inline compare(me)
{
	if
	:: descriptor[1 - me] == 1 -> compared[me] = true
	:: else
	fi
}

inline submit(me, call)
{
	descriptor_buffered[me] = call;
	!descriptor_buffered[me]
}

/* ferry_order_end: wake_lanes */
inline finish(me)
{
	finished_buffered[me] = true;
#ifndef NO_FINISH_FENCE
	!finished_buffered[me];
#endif
	if
	:: lane_calls[1 - me] && lane_sleeps[1 - me] ->
		atomic { lane_rings[1 - me]++; lane_asleep[1 - me] = false }
	:: else
	fi
}

/* The lane has the call, and waits until its parity is free. */
inline wait_in_lane(me)
{
	byte seen;
	lane_calls_buffered[me] = true;
#ifndef NO_GIVE_FENCE
	!lane_calls_buffered[me];
#endif
	do
	:: finished[1 - me] -> break
	:: else ->
		seen = lane_rings[me];
		lane_sleeps[me] = true;
		if
		:: finished[1 - me] -> lane_sleeps[me] = false; break
		:: else
		fi;
		atomic { lane_asleep[me] = (lane_rings[me] == seen) }
		!lane_asleep[me];
		lane_sleeps[me] = false
	od
}

proctype rank(byte me)
{
	submit(me, 1);
	finish(me);
	if
	:: finished[1 - me]
	:: !finished[1 - me] -> wait_in_lane(me)
	fi;
#ifndef HEAR_LATE
	compare(me);
#endif
	submit(me, 3);
#ifdef HEAR_LATE
	compare(me);
#endif
	submitted[me] = true;
	assert(!(submitted[0] && submitted[1]) || compared[0] || compared[1])
}

init {
	atomic { run rank(0); run rank(1) }
}
