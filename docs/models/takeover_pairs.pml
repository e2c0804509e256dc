/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages from a rank of one domain to one of another, moved by the routers of both, each of which may die, at any
 * step and by itself, and have a successor: pair.c. The pair's counters count slices of all time, so they do not
 * say where a message began, and slices of its own that a router had counted died with it. Each end therefore writes
 * where a message begins, and which, before its first slice is under way: into one of two places in turn, so that there
 * is always one that is complete. The successor takes the later of the two. What is published behind that belongs to
 * that message; those before it are over, those behind it have not begun.
 *
 * A message's call may be over much later than the message, as others are in the same group, so the successor is handed
 * the records of messages that are long finished, too. Copies land until the router has exited, which is when its
 * successor begins (takeover.pml).
 *
 * Checked: every message arrives once, whole and in order; no slice is published before its data; no slot is written
 * that has not been taken; all ends come to an end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_BASE       the successor begins the first message that is not over, at what is published
 *   -DONE_BASE      there is one place for where a message begins
 *   -DNUMBER_FIRST  the message's number is written before where it begins
 *   -DBASE_LATE     where it begins is written when its first slice is published
 *   -DNO_FENCE      the successor begins while copies of the router before it may land
 */
#define MESSAGES 3
#define SLOTS 2
#define LENGTH(m) (1 + (m) % 2) /* slices of message m, from 1 */
#define DATA(m, k) ((m) * 2 + (k))
#define D2H 0   /* the sender's end */
#define H2D 1
#ifndef CRASHES
#define CRASHES 1
#endif

/* The pair line: what each end has published, and where its messages began. */
byte published[2];
byte base[4], number[4];      /* of end e: 2e and 2e + 1 */
byte slots[SLOTS];

/* Memory of the ranks, and their records. */
bool over[2 * (MESSAGES + 1)]; /* the call of the message: its buffer is the rank's again */
byte received[2 * (MESSAGES + 1)];

/* Copies under way, of each end, and of one that was killed and has not exited. */
byte flying[2 * SLOTS], late[2 * SLOTS];
bool killed[2];

#define OVER(e, m) over[(e) * (MESSAGES + 1) + (m)]
#define FLYING(e, s) flying[(e) * SLOTS + (s)]
#define LATE(e, s) late[(e) * SLOTS + (s)]
#ifdef ONE_BASE
#define PLACE(e, m) (2 * (e))
#else
#define PLACE(e, m) (2 * (e) + (m) % 2)
#endif
#define LAST(e) (number[2 * (e)] > number[2 * (e) + 1] -> 2 * (e) : 2 * (e) + 1)

/* May slice `s` of all time be copied: up, into a slot that has been taken; down, one that is there. */
#define OPEN(e, s) (e == D2H -> (s) < published[H2D] + SLOTS : (s) < published[D2H])

inline land(e, s)
{
	atomic {
		if
		:: e == D2H ->
			/* a successor that copies again what is not published writes the same */
			assert(!OVER(D2H, s / 2));
			slots[at] = s
		:: else ->
			assert(!OVER(H2D, s / 2));
			received[s] = slots[at]
		fi;
		at = 0
	}
}

inline begin_message()
{
#ifdef BASE_LATE
	first = published[me];
	begun = true
#else
#ifdef NUMBER_FIRST
	number[PLACE(me, message)] = message;
	base[PLACE(me, message)] = published[me];
#else
	base[PLACE(me, message)] = published[me];
	number[PLACE(me, message)] = message;
#endif
	atomic { first = published[me]; begun = true }
#endif
}

inline say_base()
{
#ifdef BASE_LATE
	if
	:: finished == 1 -> base[PLACE(me, message)] = first; number[PLACE(me, message)] = message
	:: else
	fi
#endif
	skip
}

/* From what is in the arena: which message, and how far. */
inline adopt()
{
	d_step {
#ifdef NO_BASE
		message = 1;
		do
		:: message <= MESSAGES && OVER(me, message) -> message++
		:: else -> break
		od;
#else
		if
		:: number[LAST(me)] == 0 -> message = 1
		:: else ->
			message = number[LAST(me)];
			first = base[LAST(me)];
			finished = published[me] - first;
			if
			:: finished == LENGTH(message) -> message++; finished = 0; first = 0
			:: else -> issued = finished; begun = true
			fi
		fi;
#endif
		m = 0
	}
}

/* A router, or its successor: the lane of one end. */
proctype lane(byte me)
{
	byte message, first, issued, finished, m;
	bool begun;
end:	do
	:: {
		adopt();
end_of_work:	do
		:: message <= MESSAGES && !begun -> begin_message()
		:: atomic { begun && issued < LENGTH(message) && OPEN(me, first + issued) ->
			assert(FLYING(me, (first + issued) % SLOTS) == 0);
			FLYING(me, (first + issued) % SLOTS) = DATA(message, issued);
			issued++ }
		:: atomic { begun && finished < issued && FLYING(me, (first + finished) % SLOTS) == 0 ->
			finished++;
			published[me] = first + finished } say_base()
		:: atomic { begun && finished == LENGTH(message) ->
			begun = false; message++; first = 0; issued = 0; finished = 0 }
		/* a call is over some time after its message */
		:: atomic { message > 1 && !OVER(me, 1) -> OVER(me, 1) = true }
		:: atomic { message > 2 && !OVER(me, 2) -> OVER(me, 2) = true }
		:: atomic { message > 3 && !OVER(me, 3) -> OVER(me, 3) = true }
		od
	} unless { killed[me] };
		atomic {
			LATE(me, 0) = FLYING(me, 0); LATE(me, 1) = FLYING(me, 1);
			FLYING(me, 0) = 0; FLYING(me, 1) = 0;
			message = 0; first = 0; issued = 0; finished = 0; begun = false
		}
#ifndef NO_FENCE
		d_step { LATE(me, 0) = 0; LATE(me, 1) = 0 } /* it has exited */
#endif
		killed[me] = false
	od
}

proctype engine(byte e)
{
	byte at, s;
end:	do
	:: atomic { FLYING(e, 0) != 0 -> s = FLYING(e, 0); FLYING(e, 0) = 0; at = 0; land(e, s); s = 0 }
	:: atomic { FLYING(e, 1) != 0 -> s = FLYING(e, 1); FLYING(e, 1) = 0; at = 1; land(e, s); s = 0 }
	:: atomic { LATE(e, 0) != 0 -> s = LATE(e, 0); LATE(e, 0) = 0; at = 0; land(e, s); s = 0 }
	:: atomic { LATE(e, 1) != 0 -> s = LATE(e, 1); LATE(e, 1) = 0; at = 1; land(e, s); s = 0 }
	od
}

proctype death(byte e)
{
	byte deaths;
	do
	:: deaths < CRASHES -> atomic { !killed[e] -> killed[e] = true; deaths++ }
	:: break
	od
}

proctype judge()
{
	byte m = 1;
	do
	:: m > MESSAGES -> break
	:: else ->
		OVER(D2H, m);
		OVER(H2D, m);
		assert(received[DATA(m, 0)] == DATA(m, 0));
		assert(LENGTH(m) == 1 || received[DATA(m, 1)] == DATA(m, 1));
		m++
	od
}

init {
	atomic {
		run lane(D2H); run lane(H2D); run engine(D2H); run engine(H2D);
		run death(D2H); run death(H2D); run judge()
	}
}
