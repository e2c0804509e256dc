/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parts.c: workers that claim parts of slices of one instruction, each from its own queue or another's, finish
 * them in any order, and publish whole slices in order. Two workers, two queues with a part of each slice, one parity,
 * several calls: every slice is published, under its own call's number, and every call ends once.
 *
 * `publishing` is held by one worker at a time; another that finishes a slice meanwhile leaves it to the holder, which
 * looks once more after it let go. A worker can be put aside between finishing its part and coming to publish, and
 * others publish for it: so a call ends when the last worker has come out of publish, not when the last slice is
 * published. Else the next call of the parity begins, and the late worker spoils it. A worker tells of several parts at
 * once, and of none before it is out.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DEND_WITH_LAST_SLICE  the worker that publishes the last slice ends the call
 *   -DNO_SECOND_LOOK       the holder does not look again after it let go
 *   -DNO_BOUND             a worker claims slice k before slice k - WINDOW has been read
 *   -DTELL_EARLY           a worker tells of a part before it has come out of publish
 */
#ifndef CALLS
#define CALLS 2
#endif
#define SLICES 3
#define WINDOW 2
#define QUEUES 2 /* parts of a slice, one in each */

byte submitted;                    /* last call that the ranks have submitted */
byte last, running;                /* last call admitted; the call that runs, 0: none */
byte next_call[QUEUES], next_slice[QUEUES]; /* the claim words */
byte done[WINDOW];                 /* parts */
bool publishing;
byte published;
byte unfinished;                   /* parts whose worker has not told that it has come out of publish */
byte counter_call, counter_slices; /* one word in shared memory */
byte router_finished;
byte ends;                         /* how often a call was ended */

/* Readers take each slice at once: a slot is free when its slice is published. */
#ifdef NO_BOUND
#define SLOT_FREE(q) true
#else
#define SLOT_FREE(q) (next_slice[q] < (counter_call == next_call[q] -> counter_slices : 0) + WINDOW)
#endif
#define CLAIMABLE(q, call) (next_call[q] == call && next_slice[q] < SLICES && SLOT_FREE(q))

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
		:: reach < SLICES && done[reach % WINDOW] == QUEUES -> done[reach % WINDOW] = 0; reach++
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
		:: reach < SLICES && done[reach % WINDOW] == QUEUES
		:: else -> break
		fi
#endif
	od
}

inline tell(parts)
{
	atomic { unfinished = unfinished - parts; over = (unfinished == 0) }
	if
	:: over -> finish()
	:: else
	fi
}

inline run_part()
{
#ifdef TELL_EARLY
	tell(1);
#endif
	atomic {
		assert(done[slice % WINDOW] < QUEUES);
		done[slice % WINDOW]++;
		last_part = (done[slice % WINDOW] == QUEUES)
	}
	if
	:: last_part -> publish()
	:: else
	fi;
	batch++
}

active [2] proctype worker()
{
	byte mine, slice, before, reach, batch;
	bool over, last_part;
end:	do
	/* admit, under its lock */
	:: d_step { running == 0 && submitted > last ->
		published = 0; done[0] = 0; done[1] = 0; unfinished = SLICES * QUEUES;
		last = submitted;
		next_call[0] = submitted; next_slice[0] = 0; next_call[1] = submitted; next_slice[1] = 0;
		running = submitted }
	/* the call that it sees; it may be over when the worker comes to claim, which the claim words tell */
	:: atomic { mine == 0 && running != 0 && (CLAIMABLE(0, running) || CLAIMABLE(1, running)) -> mine = running }
	/* claim, by compare-and-swap */
	:: atomic { mine != 0 && CLAIMABLE(0, mine) -> slice = next_slice[0]; next_slice[0]++ } run_part()
	:: atomic { mine != 0 && CLAIMABLE(1, mine) -> slice = next_slice[1]; next_slice[1]++ } run_part()
	:: mine != 0 && (batch != 0 || !(CLAIMABLE(0, mine) || CLAIMABLE(1, mine))) ->
#if !defined(END_WITH_LAST_SLICE) && !defined(TELL_EARLY)
		if
		:: batch != 0 -> tell(batch)
		:: else
		fi;
#endif
		batch = 0;
		mine = 0
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
