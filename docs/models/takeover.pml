/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router that moves a rank's data dies, at any step, and a successor goes on, which may die as well. The rank has two
 * streams, each with a flag of its own (stream_flags.pml), whose calls are in one parity: flag A has two, flag B one. A
 * call sends slices from the stream's buffer through a window; the rank itself and another rank take them, the latter
 * with lanes of its own, which live on. In a half of all runs calls are captured: flag and `done` tell which they are,
 * and the descriptor tells their number. In the other half numbers were given when the calls were made.
 *
 * Copies are under way until the router has exited, and land at any time until then; to be killed is not to have
 * exited. A router that is only slow is one that is killed late: nobody adopts before it has exited, whatever made him
 * lose patience. The successor knows what is in the arena and in the flags, and gets the records of all submissions
 * above `over`, again. It asks of each flag whether its call is under way, and from which slice on; or over, and which
 * of the stores of its end are missing. These are
 *
 *   flag = OVER(turn), finished = n, done = turn + 1, flag = 0, over
 *
 * The stream waits for 0 and sees nothing of the first. As the first it tells a call that is over from the next one
 * on that flag: its number need not be known any more once `finished` is stored and the descriptor another call's.
 *
 * Checked: no slice is published before its data; no slot is written whose slice is published and not read by all; a
 * stream passes a call only when its data are there, and nothing is copied for it after that; no two routers write.
 * No call is lost or made twice, and all end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DBY_TIMEOUT      a successor begins when the router does not seem to do anything
 *   -DBY_SOCKET       a successor begins when the router's connections end, not when its process has
 *   -DFROM_ZERO       it moves all slices of the call again, and not from the counters on
 *   -DPUBLISH_FIRST   a slice is published before its copy has landed
 *   -DNO_OVER         the end is finished = n, flag = 0, done = turn + 1, over
 *   -DFINISHED_FIRST  the end begins with finished = n
 *   -DFINISHED_LAST   `finished` is stored when the stream goes on
 *   -DCOUNT_LAST      flag = 0 before done = turn + 1
 *   -DFORGET_EARLY    the rank drops its record of a call before flag = 0
 *   -DLAST_SUBMITTED  the last number is the descriptor's, though it may be about to be replaced
 *   -DBEGIN_AGAIN     a call that has a descriptor begins again, with a new number
 *   -DDESCRIBE_AGAIN  the descriptor of a call that goes on is written again
 */
#define SLICES 2 /* a window has one slot */
#define ROUTERS 3
#define A 0
#define B 1
#define CALLS 3
#define TURNS(w) (2 - (w))
#define NUMBER(w, turn) (1 + (w) + 2 * (turn)) /* that a call is given when it is made: A, B, A */
#define OVER(turn) (2 + (turn))
#define DATA(w, turn, slice) (1 + ((w) * 2 + (turn)) * SLICES + (slice))
#define TORN 255

bool captured;

/* In shared memory, and what the rank keeps: its records above over[w]. */
byte flag[2], done[2], over[2];
byte submitted, name;                  /* the descriptor: its number and its flag + 1 */
byte finished, other_finished;
byte up_call, up_slices, down_call, down_slices, other_call, other_slices;
byte window;
#define HAS(counter, call) (counter##_call == call -> counter##_slices : 0)

/* The streams'. */
byte turn[2];                          /* calls that it has passed */
bool in_call[2];
byte received[2 * SLICES];

/* By router, from 1. */
bool killed[ROUTERS + 1], exited[ROUTERS + 1];
byte writer;
byte rising[ROUTERS + 1], falling[ROUTERS + 1]; /* the copy under way in that direction: DATA */

#ifdef BY_TIMEOUT
#define GONE(e) true
#elif defined(BY_SOCKET)
#define GONE(e) killed[e]
#else
#define GONE(e) exited[e]
#endif

/* A store into shared memory, by router `me`. */
#define MINE assert(writer == me)

#define UNDER_WAY (mine != 0)
#ifdef PUBLISH_FIRST
#define RISEN true
#else
#define RISEN (rising[me] == 0)
#endif
#define FREE(slice) ((slice) < sunk + 1 && (slice) < HAS(other, n) + 1)

/* The end of a call on flag w, whose halves are both over: five stores. */
#define SAY_OVER flag[w] = OVER(done[w])
#define FINISH finished = ending
#define COUNT done[w] = done[w] + 1
#define PASS flag[w] = 0
#define FORGET over[w] = done[w]
#if defined(NO_OVER)
#define STORES(then) FINISH then(2) PASS then(3) COUNT then(4) FORGET then(5) skip
#elif defined(FINISHED_FIRST)
#define STORES(then) FINISH then(2) SAY_OVER then(3) COUNT then(4) PASS then(5) FORGET
#elif defined(FINISHED_LAST)
#define STORES(then) SAY_OVER then(2) COUNT then(3) PASS then(4) FORGET then(5) FINISH
#elif defined(COUNT_LAST)
#define STORES(then) SAY_OVER then(2) FINISH then(3) PASS then(4) COUNT then(5) FORGET
#elif defined(FORGET_EARLY)
#define STORES(then) SAY_OVER then(2) FINISH then(3) COUNT then(4) FORGET then(5) PASS
#else
#define STORES(then) SAY_OVER then(2) FINISH then(3) COUNT then(4) PASS then(5) FORGET
#endif
#define THEN(next) ; stage[w] = next } :: atomic { stage[w] == next -> MINE;

inline end_of(w) /* stage[w] says which store is next */
{
	if
	:: atomic { stage[w] == 1 -> MINE; STORES(THEN); stage[w] = 0 }
	fi
}

/* What the successor makes of a flag whose record it has got. */
#define KNOWN(w, t) (captured || (t) >= over[w])
#define IS_ITS(w) (submitted != 0 && name == (w) + 1 && finished < submitted)

inline adopt(w)
{
	d_step {
		if
		:: flag[w] >= 2 && KNOWN(w, flag[w] - 2) ->
			if
			:: done[w] == flag[w] - 2 ->
				stage[w] = (IS_ITS(w) -> 2 : 3);
				ending = submitted
			:: else -> stage[w] = 4
			fi
		:: flag[w] == 1 && IS_ITS(w) ->
#ifndef BEGIN_AGAIN
			mine = w + 1;
			n = submitted;
#ifndef FROM_ZERO
			risen = HAS(up, n);
			sunk = HAS(down, n);
#endif
			raised = risen;
			lowered = sunk
#endif
		:: else -> over[w] = done[w]
		fi
	}
}

/* Lanes of both directions: each takes its next step when it can. */
proctype router(byte me)
{
	byte mine;           /* the flag of the call under way + 1 */
	byte n, last;        /* its number; that of the last */
	byte raised, risen;  /* slices begun, and published */
	byte lowered, sunk;
	byte stage[2], ending;
	byte w;
end_unused:
	atomic { writer == me - 1 && (me == 1 || GONE(me - 1)) -> writer = me }
	{
		adopt(A);
		adopt(B);
#ifdef DESCRIBE_AGAIN
		if
		:: atomic { mine != 0 -> MINE; submitted = 0 }
			atomic { MINE; submitted = n }
		:: mine == 0
		fi;
#endif
#ifdef LAST_SUBMITTED
		last = submitted;
#else
		last = (submitted > finished -> submitted : finished);
#endif
end:		do
		/* begin: the descriptor is taken back first, while it is replaced */
		:: atomic { !UNDER_WAY && finished == last && other_finished == last &&
			((flag[A] == 1 && stage[A] == 0 && (captured || NUMBER(A, done[A]) == last + 1)) ||
			(flag[B] == 1 && stage[B] == 0 && (captured || NUMBER(B, done[B]) == last + 1))) ->
			if
			:: flag[A] == 1 && stage[A] == 0 && (captured || NUMBER(A, done[A]) == last + 1) -> w = A
			:: flag[B] == 1 && stage[B] == 0 && (captured || NUMBER(B, done[B]) == last + 1) -> w = B
			fi;
			MINE;
			submitted = 0 }
			atomic { MINE; name = w + 1 }
			atomic { MINE; last++; submitted = last; n = last; mine = w + 1; w = 0 }
		/* up */
		:: atomic { UNDER_WAY && raised < SLICES && raised == risen && FREE(raised) ->
			MINE; rising[me] = DATA(mine - 1, done[mine - 1], raised); raised++ }
		:: atomic { UNDER_WAY && risen < raised && RISEN ->
			MINE; risen++; up_call = n; up_slices = risen }
		/* down */
		:: atomic { UNDER_WAY && lowered < HAS(up, n) && lowered == sunk ->
			MINE; falling[me] = DATA(mine - 1, done[mine - 1], lowered); lowered++ }
		:: atomic { UNDER_WAY && sunk < lowered && falling[me] == 0 ->
			MINE; sunk++; down_call = n; down_slices = sunk }
		/* the half that ends last */
		:: atomic { UNDER_WAY && risen == SLICES && sunk == SLICES && stage[A] != 2 && stage[B] != 2 ->
			stage[mine - 1] = 1; ending = n;
			mine = 0; n = 0; raised = 0; risen = 0; lowered = 0; sunk = 0 }
		:: stage[A] != 0 -> end_of(A)
		:: stage[B] != 0 -> end_of(B)
		od
	} unless { killed[me] }
	atomic {
		mine = 0; n = 0; last = 0; raised = 0; risen = 0; lowered = 0; sunk = 0; w = 0;
		stage[A] = 0; stage[B] = 0; ending = 0;
		rising[me] = 0; falling[me] = 0; exited[me] = true
	}
}

/* Copies land whenever they like, until their router has exited. */
#define ITS_WORD(id) (((id) - 1) / SLICES / 2)
#define ITS_TURN(id) (((id) - 1) / SLICES % 2)
#define ITS_SLICE(id) (((id) - 1) % SLICES)
#define STREAM_WAITS(id) (in_call[ITS_WORD(id)] && turn[ITS_WORD(id)] == ITS_TURN(id))

proctype engine(byte e)
{
	byte id;
end:	do
	:: atomic { rising[e] != 0 ->
		id = rising[e];
		assert(HAS(up, submitted) <= ITS_SLICE(id)); /* unpublished: what was there has been read by all */
		window = (STREAM_WAITS(id) -> id : TORN);
		rising[e] = 0;
		id = 0 }
	:: atomic { falling[e] != 0 ->
		id = falling[e];
		assert(STREAM_WAITS(id));
		received[ITS_WORD(id) * SLICES + ITS_SLICE(id)] = window;
		falling[e] = 0;
		id = 0 }
	od
}

proctype death(byte e)
{
	if
	:: atomic { writer >= e -> killed[e] = true }
	:: true /* it lives on; nobody succeeds it */
	fi
}

proctype stream(byte w)
{
	do
	:: turn[w] == TURNS(w) -> break
	:: else ->
		atomic { in_call[w] = true; flag[w] = 1 }
		atomic { flag[w] == 0 ->
			assert(received[w * SLICES] == DATA(w, turn[w], 0));
			assert(received[w * SLICES + 1] == DATA(w, turn[w], 1));
			in_call[w] = false;
			received[w * SLICES] = 0;
			received[w * SLICES + 1] = 0;
			turn[w]++ }
	od
}

/* A rank with lanes of its own. */
proctype other()
{
	byte call = 1, slice, made[2], w;
	do
	:: call > CALLS -> break
	:: submitted == call ->
		w = name - 1;
		do
		:: slice == SLICES -> break
		:: slice < HAS(up, call) ->
			d_step {
				assert(window == DATA(w, made[w], slice));
				slice++;
				other_call = call;
				other_slices = slice
			}
		od;
		atomic { slice = 0; made[w]++; other_finished = call; call++ }
	od
}

init {
	atomic {
		if
		:: captured = true
		:: captured = false
		fi;
		run router(1); run router(2); run router(3); run engine(1); run engine(2); run engine(3);
		run death(1); run death(2); run stream(A); run stream(B); run other()
	}
}
