/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc/wait.h, ferry_doorbell: no wake-up is lost. Two ringers publish slices in a counter each (ipc/publish.h); two
 * waiters want every slice of both, and sleep on one bell as a lane or a router does.
 *
 * A core's stores reach the others after its own later loads have been done, unless a fence stands between. So a store
 * goes into the core's buffer first (`*_buffered`), and `memory` moves it on at any later time. A fence, a
 * read-modify-write that releases, and the kernel's lock inside a futex call wait until the buffer is empty.
 *
 * Checked: no execution ends with a waiter asleep. Each of these breaks it, as scripts/check-models shows:
 *   -DNO_RINGER_FENCE   the ringer looks for sleepers before its slice is visible
 *   -DNO_WAITER_FENCE   the waiter looks for the slice before its announcement is visible
 *   -DNO_RECHECK        the waiter looks for the slice only before it announces itself
 *   -DLATE_TICKET       the waiter reads the futex word after its last look instead of before
 */
#ifndef SLICES
#define SLICES 2
#endif
#define WAITERS 2
#define RINGERS 2

byte counter[RINGERS];
byte counter_buffered[RINGERS]; /* 0: the buffer is empty */
byte rings;                     /* the futex word */
byte sleepers;
bool sleepers_buffered[WAITERS];
bool asleep[WAITERS];

#define OPEN(slice) (counter[0] >= slice && counter[1] >= slice)

active proctype memory()
{
end:	do
	:: atomic { counter_buffered[0] -> counter[0] = counter_buffered[0]; counter_buffered[0] = 0 }
	:: atomic { counter_buffered[1] -> counter[1] = counter_buffered[1]; counter_buffered[1] = 0 }
	:: atomic { sleepers_buffered[0] -> sleepers++; sleepers_buffered[0] = false }
	:: atomic { sleepers_buffered[1] -> sleepers++; sleepers_buffered[1] = false }
	od
}

/* ferry_publish, then ferry_doorbell_ring. */
proctype ringer(byte me)
{
	byte slice = 1;
	do
	:: slice > SLICES -> break
	:: else ->
		/* stores of one core stay in order */
		atomic { counter_buffered[me] == 0 -> counter_buffered[me] = slice }
#ifndef NO_RINGER_FENCE
		counter_buffered[me] == 0;
#endif
		if
		:: sleepers == 0
		:: sleepers > 0 ->
			atomic { counter_buffered[me] == 0 -> rings++ } /* ferry_doorbell_wake: release */
			atomic { asleep[0] = false; asleep[1] = false }
		fi
		slice++
	od
}

proctype waiter(byte me)
{
	byte slice = 1, ticket;
	bool open;
	do
	:: slice > SLICES -> break
	:: OPEN(slice) -> slice++ /* a round that finds work needs no bell */
	:: else ->
		/* ferry_doorbell_prepare */
#ifndef LATE_TICKET
		ticket = rings;
#endif
		sleepers_buffered[me] = true;
#ifndef NO_WAITER_FENCE
		!sleepers_buffered[me];
#endif
#ifdef NO_RECHECK
		open = false;
#else
		open = OPEN(slice);
#endif
#ifdef LATE_TICKET
		ticket = rings;
#endif
		if
		:: open
		:: else ->
			/* futex_wait: compares and goes to sleep under the kernel's lock */
			atomic { !sleepers_buffered[me] -> asleep[me] = (rings == ticket) }
			!asleep[me]
		fi;
		atomic { !sleepers_buffered[me] -> sleepers-- } /* cancel */
	od
}

init {
	atomic { run ringer(0); run ringer(1); run waiter(0); run waiter(1) }
}
