/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sends to one rank that are numbered as streams come to them, by a router that may die at any step, and by its
 * successors, which may die as well: pair.c, order.c, and what remote_ranks.c and call_decoder.c restore. A rank has
 * replays of two captured groups on two streams, each with its flag (stream_flags.pml); a group also has messages with
 * other ranks, so that it may be over long after all that it has with this one, and the other group's turn comes
 * meanwhile.
 *
 * A group's numbers are private to its router until it is the turn of one of them. Then the pair's line says, in one of
 * two places in turn (takeover_pairs.pml), the message, where its slices begin, the first number of its group, and
 * which run of which flag that is. The last message of a group is followed by a bit in the flag: all with that rank are
 * over. Of a group whose stream is at it the successor knows: that bit is there; or the last turn was the group's, so
 * that all its numbers are known; or nobody has seen any of them, and it has others. As the run before has left its
 * turn and its bit behind, the turn says which run, and the bit goes between the mark of the end and `done`.
 *
 * Checked: each run sends each of its messages once, whole, in order; numbers follow one another; no stream goes on
 * before that. All come to an end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DRETAKEN        a successor takes a turn again that has been taken
 *   -DNO_RUN         the turn says of which flag it is, and not of which run
 *   -DNUMBER_FIRST   the turn's number is stored before where its group's begin
 *   -DNO_BIT         there is no bit
 *   -DBIT_LATE       the bit is stored when it can be the next message's turn
 *   -DBIT_NOT_MADE   a successor does not make up for the bit of a group whose last message is over
 *   -DCLEARED_EARLY  the bit goes before the mark
 *   -DCLEARED_LATE   the bit goes behind flag = 0
 *   -DRENUMBERED     a successor gives the numbers behind the last turn to the next group, its own group's too
 */
#define A 0
#define B 1
#define COUNT(w) (2 - (w))      /* messages of a group */
#define LENGTH(w, i) (1 + ((w) + (i)) % 2) /* slices */
#define RUNS(w) (2 - (w))
#define MARK(turn) (2 + (turn))
#ifdef NO_RUN
#define CALL(w, turn) (1 + (w))
#else
#define CALL(w, turn) (1 + (w) + 2 * (turn))
#endif
#ifdef NO_BIT
#define BIT(w) false
#else
#define BIT(w) passed[w]
#endif
#ifndef CRASHES
#define CRASHES 3
#endif

/* Shared memory: flags, and the pair's line. */
byte flag[2], done[2];
bool passed[2];
byte published;                 /* slices of all time */
byte number[2], base[2], first[2], call[2];

/* The environment: messages with other ranks; the receiver, which sees the slots' heads. */
bool others[2];
byte runs[2];
byte sent[2];                   /* messages of the run at the flag that have come, whole */
byte inside, from, last_number; /* slices of the message that has come in part, and of which flag */
bool killed;
byte crashes;

inline receive(w, i, slice, n)
{
	assert(flag[w] == 1);
	assert(i == sent[w] && slice == inside);
	assert(inside == 0 -> n == last_number + 1 : (n == last_number && from == w));
	last_number = n;
	from = w;
	inside = inside + 1;
	if
	:: inside == LENGTH(w, i) -> inside = 0; sent[w]++
	:: else
	fi
}

#define PLACE(n) ((n) % 2)
#define OWNER(w) (flag[w] == 1 && call[at] == CALL(w, done[w]))

/* From what is in the pair's line: whose turn it was, and how far that is. */
inline restore()
{
	d_step {
		at = (number[1] > number[0] -> 1 : 0);
		mine = (number[at] == 0 -> 2 : (OWNER(A) -> A : (OWNER(B) -> B : 2)));
		turn = number[at];
		if
		:: mine == 2 -> slices = published; last = turn; next = turn + 1
		:: else ->
			made = published - base[at];
			last = first[at] + COUNT(mine) - 1;
#ifdef RENUMBERED
			last = turn;
#endif
			index[mine] = turn - first[at];
			start[mine] = first[at];
			if
			:: made >= LENGTH(mine, index[mine]) ->
				slices = published; next = turn + 1; made = 0; index[mine]++
			:: else -> slices = base[at]; next = turn
			fi
		fi
	}
#ifndef BIT_NOT_MADE
	if
	:: atomic { mine != 2 && index[mine] == COUNT(mine) -> passed[mine] = true }
	:: !(mine != 2 && index[mine] == COUNT(mine))
	fi
#endif
}

/* The record of a captured call is taken again: nobody has begun anything before all are. */
inline adopt(w)
{
	if
	:: atomic { flag[w] > 1 -> stage[w] = (flag[w] == MARK(done[w]) -> 2 : 4) }
	:: d_step { flag[w] == 1 ->
		runs_on[w] = true;
		if
		:: BIT(w) -> index[w] = COUNT(w)
		:: mine == w && !BIT(w)
		:: else -> index[w] = 0; start[w] = last + 1; last = last + COUNT(w)
		fi }
	:: flag[w] == 0
	fi
}

/* The end of a run: the stores that takeover.pml has, and that the bit goes. */
#define SAY_OVER flag[w] = MARK(done[w])
#define CLEAR passed[w] = false
#ifdef CLEARED_EARLY
#define STORES(then) CLEAR then(2) SAY_OVER then(3) skip then(4) done[w]++ then(5) flag[w] = 0
#elif defined(CLEARED_LATE)
#define STORES(then) SAY_OVER then(2) skip then(3) done[w]++ then(4) flag[w] = 0 then(5) CLEAR
#else
#define STORES(then) SAY_OVER then(2) CLEAR then(3) done[w]++ then(4) flag[w] = 0 then(5) skip
#endif
#define THEN(following) ; stage[w] = following } :: atomic { stage[w] == following ->

inline end_of(w)
{
	if
	:: atomic { stage[w] == 1 -> STORES(THEN); stage[w] = 0; index[w] = 0; start[w] = 0 }
	fi
}

inline take_turn(w)
{
	if
#ifndef RETAKEN
	:: atomic { number[PLACE(next)] == next && base[PLACE(next)] == slices -> current = w + 1 }
	:: atomic { !(number[PLACE(next)] == next && base[PLACE(next)] == slices) -> number[PLACE(next)] = 0 }
#else
	:: number[PLACE(next)] = 0;
#endif
		base[PLACE(next)] = slices;
#ifdef NUMBER_FIRST
		number[PLACE(next)] = next;
		first[PLACE(next)] = start[w];
		atomic { call[PLACE(next)] = CALL(w, done[w]); current = w + 1 }
#else
		first[PLACE(next)] = start[w];
		call[PLACE(next)] = CALL(w, done[w]);
		atomic { number[PLACE(next)] = next; current = w + 1 }
#endif
	fi
}
#define MAY_TAKE(w) (runs_on[w] && !current && index[w] < COUNT(w) && start[w] + index[w] == next)

/* Whether all with this rank are over: then the bit, before the next message's turn. */
inline message_over()
{
	w = current - 1;
#if defined(BIT_LATE)
	atomic { slices = slices + made; next++; index[w]++; made = 0; current = 0 }
	if
	:: late == 0 && index[w] == COUNT(w) -> late = w + 1
	:: else
	fi;
#else
#ifndef NO_BIT
	if
	:: atomic { index[w] + 1 == COUNT(w) -> passed[w] = true }
	:: index[w] + 1 < COUNT(w)
	fi;
#endif
	atomic { slices = slices + made; next++; index[w]++; made = 0; current = 0 }
#endif
	w = 0
}

proctype lane()
{
	byte at, mine = 2, turn;
	byte next, last, slices;     /* whose turn it is; the last number given; slices of messages that are over */
	byte current, made;          /* the flag + 1 of the message that has its turn; slices that it has published */
	byte start[2], index[2];     /* of the run at a flag: its first number, messages of it that are over */
	bool runs_on[2];
	byte stage[2], w, late;
end_of_all:
	do
	:: {
		restore();
		adopt(A);
		adopt(B);
end:		do
		:: atomic { flag[A] == 1 && !runs_on[A] && stage[A] == 0 ->
			runs_on[A] = true; start[A] = last + 1; last = last + COUNT(A) }
		:: atomic { flag[B] == 1 && !runs_on[B] && stage[B] == 0 ->
			runs_on[B] = true; start[B] = last + 1; last = last + COUNT(B) }
		:: MAY_TAKE(A) -> take_turn(A)
		:: MAY_TAKE(B) -> take_turn(B)
		:: atomic { current && made < LENGTH(current - 1, index[current - 1]) ->
			receive((current - 1), index[current - 1], made, next);
			made++;
			published = slices + made }
		:: current && made == LENGTH(current - 1, index[current - 1]) -> message_over()
#ifdef BIT_LATE
		:: atomic { late -> passed[late - 1] = true; late = 0 }
#endif
		:: atomic { runs_on[A] && index[A] == COUNT(A) && others[A] && late != A + 1 ->
			runs_on[A] = false; stage[A] = 1 }
		:: atomic { runs_on[B] && index[B] == COUNT(B) && others[B] && late != B + 1 ->
			runs_on[B] = false; stage[B] = 1 }
		:: stage[A] != 0 -> end_of(A)
		:: stage[B] != 0 -> end_of(B)
		od
	} unless { killed };
		atomic {
			at = 0; mine = 2; turn = 0; next = 0; last = 0; slices = 0; current = 0; made = 0; w = 0;
			late = 0; start[A] = 0; start[B] = 0; index[A] = 0; index[B] = 0; stage[A] = 0; stage[B] = 0;
			runs_on[A] = false; runs_on[B] = false; killed = false
		}
	od
}

proctype stream(byte w)
{
	do
	:: runs[w] == RUNS(w) -> break
	:: else ->
		flag[w] = 1;
		atomic { flag[w] == 0 -> assert(sent[w] == COUNT(w)); sent[w] = 0; others[w] = false; runs[w]++ }
	od
}

proctype peers(byte w)
{
end:	do
	:: atomic { flag[w] == 1 && !others[w] -> others[w] = true }
	od
}

proctype death()
{
	do
	:: crashes < CRASHES -> atomic { !killed -> killed = true; crashes++ }
	:: break
	od
}

init {
	atomic {
		run lane(); run stream(A); run stream(B); run peers(A); run peers(B); run death()
	}
}
