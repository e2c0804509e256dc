/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router dies in the middle of a call's sums, at any step, and so may its successor: parts.c, works.c, job.c.
 * One rank's lanes, which live on, send slices up and take sums down; two workers sum. What the workers know besides
 * the arena dies with them: claims, parts done, what is published, which calls were admitted. The successor has the
 * descriptors, `finished` and the counters, and nothing else. That its predecessor writes no more is takeover.pml's.
 *
 * A sum reads windows and writes one of its own, in one pass, and never reads what it writes: so to sum a slice once
 * more is harmless, and needed, until it is published: its sources wait for its counter. Once it is published they do
 * not. A slice that is done and not published is as if it were not begun.
 *
 * Checked: no slice is published before its data, none lost, and no slot is written whose slice is published and not
 * read; every call ends once on each side. A crash can come between any two stores.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DARM_FROM_ZERO    the successor sums all slices of the call again, and not from the counter on
 *   -DCOUNT_ALL        it expects as many slices as the call has, though some are published
 *   -DWAIT_FOR_WORK    it does not end a call of which all slices are published
 *   -DPUBLISH_FIRST    a slice is published before its sum is written
 *   -DFINISH_FIRST     the router says that it has finished a call before it publishes the last slice
 *   -DIN_PLACE         the sum accumulates into the window that holds its first source
 *   -DKEEP_CLAIMS      claims are in shared memory, and the successor believes them
 */
#define CALLS 2
#define SLICES 3
#define WINDOW 2
#ifndef CRASHES
#define CRASHES 2
#endif
#define TORN 255
#define DATA(call, slice) (((call) - 1) * SLICES + (slice) + 1)
#define SUM(call, slice) (DATA(call, slice) + 100)

/* The arena. */
byte descriptor;                    /* last call that the ranks have submitted */
byte up[WINDOW], result[WINDOW];    /* windows */
byte up_call, up_slices;            /* counters: one word each */
byte sum_call, sum_slices;
byte down_call, down_slices;
byte rank_finished, router_finished;
#define HAS(counter, call) (counter##_call == call -> counter##_slices : 0)

byte halves;                        /* the rank's: of the call, ended */

/* The router's own: gone with it. */
byte epoch;                         /* routers that have died */
byte last, running;                 /* last call admitted; the one that runs, 0: none */
byte claimed, published, left;
#ifdef KEEP_CLAIMS
byte claimed_for;
#endif
bool done[WINDOW], admitting;
byte ended;                         /* workers, when it has been killed */

#ifdef IN_PLACE
#define RESULT up
#define SLOT_FREE(call, slice) ((slice) < HAS(down, call) + WINDOW)
#else
#define RESULT result
#define SLOT_FREE(call, slice) ((slice) < HAS(sum, call) + WINDOW)
#endif
#define GATE(call, slice) ((slice) < HAS(up, call) && (slice) < HAS(down, call) + WINDOW)
#define CLAIMABLE(call) (running == call && claimed < SLICES && claimed < HAS(sum, call) + WINDOW && \
                         GATE(call, claimed))

/* publish.pml has the lock, and late workers. */
inline publish()
{
#ifdef FINISH_FIRST
	if
	:: published == SLICES - 1 && done[published % WINDOW] -> router_finished = mine
	:: else
	fi;
#endif
	d_step {
		do
		:: published < SLICES && done[published % WINDOW] ->
			done[published % WINDOW] = false;
			published++;
			sum_call = mine;
			sum_slices = published
		:: else -> break
		od
	}
}

inline finish()
{
	atomic { running = 0; router_finished = mine }
}

inline sum()
{
#ifdef PUBLISH_FIRST
	d_step { done[slice % WINDOW] = true };
	publish();
#endif
	atomic {
		/* unpublished, and what was in the slot has been read */
		assert(HAS(sum, mine) <= slice && HAS(down, mine) + WINDOW > slice);
		part = up[slice % WINDOW]
#ifndef IN_PLACE
		; RESULT[slice % WINDOW] = TORN
#endif
	}
	atomic { RESULT[slice % WINDOW] = part + 100; part = 0 }
#ifndef PUBLISH_FIRST
	done[slice % WINDOW] = true;
	publish();
#endif
	atomic { left--; over = (left == 0) }
	if
	:: over -> finish()
	:: else
	fi
}

/* Under the lock of admitting: private, but for what it reads. */
#define ADMISSIBLE (running == 0 && descriptor > last)

inline arm()
{
	last = mine;
#ifdef ARM_FROM_ZERO
	claimed = 0;
	published = 0;
#else
	published = HAS(sum, mine);
#ifdef KEEP_CLAIMS
	claimed = (claimed_for == mine -> claimed : 0); claimed_for = mine;
#else
	claimed = published;
#endif
#endif
#ifdef COUNT_ALL
	left = SLICES;
#else
	left = SLICES - published;
#endif
	done[0] = false;
	done[1] = false;
	running = mine
}

proctype worker()
{
	byte born, mine, slice, part;
	bool over;
end:	do
	:: {
end_of_work:	do
		:: atomic { mine == 0 && ADMISSIBLE && !admitting -> admitting = true; mine = descriptor }
			/* it has looked at all descriptors a second time, and begins */
			d_step { arm(); over = (left == 0); admitting = false }
			if
#ifdef WAIT_FOR_WORK
			:: true
#else
			:: over -> finish()
			:: else
#endif
			fi;
			d_step { mine = 0; over = false }
		:: atomic { mine == 0 && running != 0 && CLAIMABLE(running) ->
			mine = running; slice = claimed; claimed++ }
			sum();
			d_step { mine = 0; slice = 0; over = false }
		od
		} unless { born != epoch };
		atomic { born = epoch; mine = 0; slice = 0; part = 0; over = false; ended++ }
		(ended == 0 || born != epoch)
	od
}
/* Between any two steps of the workers. The successor begins when both have ended, with nothing but the arena. */
proctype death()
{
	do
	:: epoch < CRASHES ->
		epoch++;
		d_step { ended == 2 ->
			ended = 0;
			last = router_finished;
			running = 0;
			published = 0;
			left = 0;
			done[0] = false;
			done[1] = false;
			admitting = false;
#ifndef KEEP_CLAIMS
			claimed = 0
#endif
		}
	:: break
	od
}

inline end_half(call)
{
	atomic {
		halves++;
		if
		:: halves == 2 -> halves = 0; rank_finished = call
		:: else
		fi
	}
}

proctype up_lane()
{
	byte call = 1, slice;
	do
	:: call > CALLS -> break
	:: else ->
		(rank_finished == call - 1 && router_finished >= call - 1);
		descriptor = call;
		do
		:: slice == SLICES -> break
		:: slice < SLICES && SLOT_FREE(call, slice) ->
			up[slice % WINDOW] = DATA(call, slice);
			d_step { slice++; up_call = call; up_slices = slice }
		od;
		end_half(call);
		d_step { slice = 0; call++ }
	od
}

proctype down_lane()
{
	byte call = 1, slice;
	do
	:: call > CALLS -> break
	:: else ->
		do
		:: slice == SLICES -> break
		:: slice < HAS(sum, call) ->
			d_step { assert(RESULT[slice % WINDOW] == SUM(call, slice)); /* the end of the copy */
				slice++; down_call = call; down_slices = slice }
		od;
		end_half(call);
		d_step { slice = 0; call++ }
	od;
	router_finished == CALLS
}

init {
	atomic { run worker(); run worker(); run up_lane(); run down_lane(); run death() }
}
