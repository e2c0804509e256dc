/* SPDX-License-Identifier: Apache-2.0 */
/*
 * router/engine/order.c: calls captured into graphs, whose replays no host thread makes. Two ranks, two streams each, a
 * captured call in each stream, replayed twice; the ranks' streams reach them in any order. Rank 0's lane gives each
 * run the next number and tells its name in the descriptor of its parity; the other rank begins the call that is named.
 * Under one number both run the same call, and every replay ends.
 *
 * A descriptor stays until both ranks have finished the run in it, because rank 0 takes a number only when its parity
 * is free: so a rank that has not begun that run can read seq and name one after the other.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DOWN_ORDER       each rank numbers runs as its own streams reach them
 *   -DNO_PARITY_GATE  rank 0 takes a number without waiting for its parity
 *   -DSEQ_FIRST       the descriptor's seq is stored before the name
 *   -DLATE_RESET      `started` is put back after the stream was let go, not before
 */
#define RANKS 2
#define STREAMS 2
#define PARITIES 2
#ifndef REPLAYS
#define REPLAYS 2
#endif
#define AT(rank, which) ((rank) * 2 + (which))

bool started[4];           /* rank and stream: the stream's flag; put back by the lane */
bool finished[4];          /* the lane's flag; put back by the stream */
byte desc_seq[4], desc_name[4]; /* rank and parity: what the rank has submitted */
byte over[4];              /* rank and parity: last run that the rank has finished */
byte number[4];              /* rank and stream: number of the run that the call is in; 0: none */
byte last[4];              /* rank and parity: number of the last run begun */
byte ended;                /* replays that ended */

proctype stream(byte rank, which)
{
	byte replay = 0;
	do
	:: replay < REPLAYS ->
		started[AT(rank, which)] = true;
		finished[AT(rank, which)];
		finished[AT(rank, which)] = false;
		ended++;
		replay++
	:: else -> break
	od
}

/* What a begun run needs before it can end: both descriptors of its number. They must be of one call. */
#define SUBMITTED(seq) (desc_seq[AT(0, (seq) % PARITIES)] == (seq) && desc_seq[AT(1, (seq) % PARITIES)] == (seq))

#ifdef NO_PARITY_GATE
#define PARITY_FREE(seq) true
#else
#define OVER(rank, seq) (over[AT(rank, (seq) % PARITIES)] >= (seq) - PARITIES)
#define PARITY_FREE(seq) ((seq) <= PARITIES || (OVER(0, seq) && OVER(1, seq)))
#endif

inline submit(which)
{
	desc_seq[AT(rank, seq % PARITIES)] = 0;
#ifdef SEQ_FIRST
	desc_seq[AT(rank, seq % PARITIES)] = seq;
	desc_name[AT(rank, seq % PARITIES)] = which + 1
#else
	desc_name[AT(rank, seq % PARITIES)] = which + 1;
	desc_seq[AT(rank, seq % PARITIES)] = seq
#endif
}

inline find_number(which)
{
	seq = 0;
#ifdef OWN_ORDER
	if
	:: true ->
#else
	if
	:: rank != 0 ->
		parity = 0;
		do
		:: parity < PARITIES && seq == 0 ->
			seen = desc_seq[AT(0, parity)];
			if
			:: seen > last[AT(rank, parity)] ->
				if
				:: desc_name[AT(0, parity)] == which + 1 -> seq = seen
				:: else
				fi
			:: else
			fi;
			parity++
		:: else -> break
		od
	:: else ->
#endif
		seq = (last[AT(rank, 0)] > last[AT(rank, 1)] -> last[AT(rank, 0)] : last[AT(rank, 1)]) + 1
	fi
}

inline try_begin(which)
{
	find_number(which);
	if
	:: seq != 0 && PARITY_FREE(seq) ->
#ifndef LATE_RESET
		started[AT(rank, which)] = false;
#endif
		last[AT(rank, seq % PARITIES)] = seq;
		number[AT(rank, which)] = seq;
		submit(which)
	:: else
	fi
}

inline try_end(which)
{
	seq = number[AT(rank, which)];
	if
	:: SUBMITTED(seq) ->
		assert(desc_name[AT(0, seq % PARITIES)] == desc_name[AT(1, seq % PARITIES)]);
		over[AT(rank, seq % PARITIES)] = seq;
		number[AT(rank, which)] = 0;
		finished[AT(rank, which)] = true;
#ifdef LATE_RESET
		started[AT(rank, which)] = false
#endif
	:: else
	fi
}

#define NEXT ((last[AT(0, 0)] > last[AT(0, 1)] -> last[AT(0, 0)] : last[AT(0, 1)]) + 1)
#define TOLD(b) desc_seq[AT(0, b)]
#define NAMED(which, b) (TOLD(b) > last[AT(1, b)] && desc_name[AT(0, b)] == which + 1 && PARITY_FREE(TOLD(b)))
#ifdef OWN_ORDER
#define WORTH_A_LOOK(which) true
#else
#define WORTH_A_LOOK(which) ((rank == 0 && PARITY_FREE(NEXT)) || (rank != 0 && (NAMED(which, 0) || NAMED(which, 1))))
#endif

/* One thread that looks at its calls in turn. Looking in vain is no step, so that being stuck shows as a deadlock. */
proctype lane(byte rank)
{
	byte seq, seen, parity;
	do
	:: started[AT(rank, 0)] && number[AT(rank, 0)] == 0 && WORTH_A_LOOK(0) -> try_begin(0)
	:: started[AT(rank, 1)] && number[AT(rank, 1)] == 0 && WORTH_A_LOOK(1) -> try_begin(1)
	:: number[AT(rank, 0)] != 0 && SUBMITTED(number[AT(rank, 0)]) -> try_end(0)
	:: number[AT(rank, 1)] != 0 && SUBMITTED(number[AT(rank, 1)]) -> try_end(1)
	:: ended == RANKS * STREAMS * REPLAYS -> break
	od
}

init {
	atomic {
		run lane(0);
		run lane(1);
		run stream(0, 0);
		run stream(0, 1);
		run stream(1, 0);
		run stream(1, 1)
	}
	(ended == RANKS * STREAMS * REPLAYS)
}
