/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cell of the ring by which ranks agree on each call (ipc/agreement.h), here a ring of one cell, so that every call
 * wraps around. Three ranks make the same calls, each as fast as it likes; each joins with a call of its own choice, or
 * never, and may die at any point. A word is sealed once, `sealed` is 1 + its call; up to `laps` calls behind it are
 * NCCL's alone, and all of them at LAPS. Another communicator has other cells and shares nothing.
 *
 * Checked: all ranks that have made a call have made it alike; a split is made by all or none, so a rank that did not
 * look had no split to find; nobody waits, whichever rank has died or never joins.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_JOIN       a rank seals a split though not all have joined
 *   -DLATE_JOIN     it does not ask with which call they have
 *   -DNO_PASSED     it seals anew though somebody may still look at what is sealed
 *   -DEARLY_PASSED  a rank says that it has passed a call before it looks
 *   -DNO_SWAP       it seals by a store
 *   -DNO_LAPS       where somebody is behind it makes the call NCCL's alone and leaves no word of it
 *   -DSHORT_LAPS    at LAPS it takes the cell for NCCL's, and lets others seal it again
 *   -DWAITS         where somebody is behind it waits
 */
#define RANKS 3
#define CALLS 3
#define LAPS 1

#define NOTHING 0
#define NONE 1 /* NCCL alone; a split is 2 + the rank that sealed it */

byte sealed, laps, word = NONE;
byte joined[RANKS], passed[RANKS]; /* joined: 1 + the call */
byte made[9];                      /* [rank * CALLS + call] */

inline make(me, n, what)
{
	atomic {
		assert((made[n] == NOTHING || made[n] == what) &&
		       (made[CALLS + n] == NOTHING || made[CALLS + n] == what) &&
		       (made[2 * CALLS + n] == NOTHING || made[2 * CALLS + n] == what));
		made[me * CALLS + n] = what
	}
}

/* The word that this rank would seal. */
inline choose(me, n, what)
{
	what = 2 + me;
	d_step { other = 0 }
	do
	:: other == RANKS -> break
	:: else ->
		d_step {
			if
#ifndef NO_JOIN
			:: joined[other] == 0 -> what = NONE
#endif
#ifndef LATE_JOIN
			:: joined[other] > n + 1 -> what = NONE
#endif
			:: else
			fi;
			other++
		}
	od
}

inline look_whether_passed(n, all)
{
	d_step { all = true; other = 0 }
	do
	:: n == 0 || other == RANKS -> break
	:: else ->
		d_step {
			if
			:: passed[other] <= n - 1 -> all = false
			:: else
			fi;
			other++
		}
	od;
#ifdef NO_PASSED
	all = true
#endif
}

proctype rank(byte me)
{
	byte n, first, other, what, seen_sealed, seen_laps, seen_word;
	bool all;
	select(first : 0 .. CALLS); /* CALLS: never */
	do
	:: n == CALLS -> break
	:: n < CALLS -> break
	:: n < CALLS && n < first -> make(me, n, NONE); n++
	:: n < CALLS && n >= first ->
		if
		:: joined[me] == 0 ->
			passed[me] = n;
			joined[me] = n + 1
		:: else
		fi;
#ifdef EARLY_PASSED
		passed[me] = n + 1;
#endif
		d_step { seen_sealed = sealed; seen_laps = laps; seen_word = word; what = NOTHING }
		do
		:: n + 1 == seen_sealed -> what = seen_word; break
		:: n + 1 < seen_sealed -> what = NONE; break
#ifdef SHORT_LAPS
		:: n + 1 > seen_sealed && (n + 1 - seen_sealed <= seen_laps) -> what = NONE; break
		:: n + 1 > seen_sealed && n + 1 - seen_sealed > LAPS -> what = NONE; break
		:: n + 1 > seen_sealed && n + 1 - seen_sealed > seen_laps && n + 1 - seen_sealed <= LAPS ->
#else
		:: n + 1 > seen_sealed && (n + 1 - seen_sealed <= seen_laps || seen_laps == LAPS) -> what = NONE; break
		:: n + 1 > seen_sealed && n + 1 - seen_sealed > seen_laps && seen_laps < LAPS ->
#endif
			look_whether_passed(n, all);
			if
			:: all ->
				choose(me, n, what);
				atomic {
					if
#ifndef NO_SWAP
					:: sealed != seen_sealed || laps != seen_laps
#endif
					:: else -> sealed = n + 1; laps = 0; word = what
					fi;
					seen_sealed = sealed; seen_laps = laps; seen_word = word; what = 0
				}
			:: !all ->
#ifdef WAITS
				(n == 0 || (passed[0] >= n && passed[1] >= n && passed[2] >= n))
#else
#ifdef NO_LAPS
				what = NONE; break
#else
				atomic {
					if
					:: sealed != seen_sealed || laps != seen_laps
					:: else -> laps = (n + 1 - seen_sealed < LAPS -> n + 1 - seen_sealed : LAPS)
					fi;
					seen_sealed = sealed; seen_laps = laps; seen_word = word; what = 0
				}
#endif
#endif
			fi
		od;
		make(me, n, what);
		passed[me] = n + 1;
		atomic { n++; what = 0; seen_sealed = 0; seen_laps = 0; seen_word = 0; all = false; other = 0 }
	od;
	atomic { n = 0; first = 0 }
}

init
{
	atomic {
		run rank(0);
		run rank(1);
		run rank(2)
	}
}
