/* SPDX-License-Identifier: Apache-2.0 */
/*
 * router/job.c: workers that claim slices of one instruction, finish them in any order, and publish them in order. Two workers,
 * one bank, several calls: every slice is published, under its own call's number, and every call ends once.
 *
 * `publishing` is held by one worker at a time; another that finishes a slice meanwhile leaves it to the holder, who looks
 * once more after it let go. A worker can be put aside between finishing its slice and coming to publish, and others publish
 * for it: so a call ends when the last worker has come out of publish, not when the last slice is published. Else the next call
 * of the bank begins, and the late worker spoils it.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DEND_WITH_LAST_SLICE   the worker that publishes the last slice ends the call
 *   -DNO_SECOND_LOOK        the holder does not look again after it let go
 *   -DNO_BOUND              a worker claims slice k before slice k - WINDOW has been read
 */
#ifndef CALLS
#define CALLS 2
#endif
#define SLICES 3
#define WINDOW 2

byte submitted;                    /* last call that the ranks have submitted */
byte last, running;                /* last call admitted; the call that runs, 0: none */
byte next_call, next_slice;        /* the claim word */
bool done[WINDOW];
bool publishing;
byte published;
byte unfinished;                   /* slices whose worker has not come out of publish */
byte counter_call, counter_slices; /* one word in shared memory */
byte router_finished;
byte ends;                         /* how often a call was ended */

/* Readers take each slice at once: a slot is free when its slice is published. */
#ifdef NO_BOUND
#define SLOT_FREE true
#else
#define SLOT_FREE (next_slice < (counter_call == running -> counter_slices : 0) + WINDOW)
#endif

inline finish()
{
	ends++;
	running = 0;
	router_finished = mine
}

inline publish()
{
	do
	:: atomic { publishing -> break } /* the holder looks again */
	:: atomic { !publishing -> publishing = true }
		before = published;
		reach = before;
		do
		:: reach < SLICES && done[reach % WINDOW] -> done[reach % WINDOW] = false; reach++
		:: else -> break
		od;
		published = reach;
		if
		:: reach != before -> atomic { counter_call = mine; counter_slices = reach }
		:: else
		fi;
		publishing = false;
#ifdef END_WITH_LAST_SLICE
		if
		:: reach != before && reach == SLICES -> finish(); break
		:: else
		fi;
#endif
#ifdef NO_SECOND_LOOK
		break
#else
		if
		:: reach < SLICES && done[reach % WINDOW]
		:: else -> break
		fi
#endif
	od
}

active [2] proctype worker()
{
	byte mine, slice, before, reach;
	bool over;
end:	do
	/* admit, under its lock */
	:: d_step { running == 0 && submitted > last ->
		published = 0; done[0] = false; done[1] = false; unfinished = SLICES;
		last = submitted; next_call = submitted; next_slice = 0; running = submitted }
	/* claim, by compare-and-swap */
	:: atomic { running != 0 && next_call == running && next_slice < SLICES && SLOT_FREE ->
		mine = running; slice = next_slice; next_slice++ }
		atomic { assert(!done[slice % WINDOW]); done[slice % WINDOW] = true }
		publish();
#ifndef END_WITH_LAST_SLICE
		atomic { unfinished--; over = (unfinished == 0) }
		if
		:: over -> finish()
		:: else
		fi
#endif
	od
}

active proctype ranks()
{
	byte call = 1;
	do
	:: call > CALLS -> break
	:: else ->
		submitted = call;
		counter_call == call && counter_slices == SLICES;
		router_finished == call;
		assert(ends == call);
		call++
	od
}
