/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank-lib/kernels/kernel_call.h: calls by kernels through mailboxes. A call's packets carry its number, in the half of
 * the box that the number's lowest bit names; numbers wrap. No rank waits for another one but for packets, and every
 * rank hears from every other one in every call. A call is short or long: a long one has a second packet, whose place
 * keeps what it had before in the short ones between.
 *
 * Two layouts: a rank writes into each peer's inbox (default), or into an outbox of its own that all read (-DOUTBOX).
 * Ranks run ahead of each other as far as packets let them; a rank that has ended a call may be replayed at once, as in
 * a graph. Stores of a rank reach a peer in any order, each with its flag and data at once.
 *
 * Each rank sweeps its own memory in two calls of each round of numbers: of an inbox the half that it has just read;
 * of an outbox the other half, which all peers have read. The first call of all sweeps nothing.
 *
 * Checked: what a rank takes for the packet of a call is that call's, from the first wrap on, too; all ranks end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DONE_HALF     there is one half
 *   -DNO_HEADERS   in a call of which one rank alone has data the others send nothing
 *   -DNO_SWEEP     nothing is swept
 *   -DOTHER_SWEEP  the half that is not the one above is swept
 */
#define RANKS 3
#define CALLS 6
#define WRAP  4  /* numbers: 0 to WRAP - 1 */

/* What a place holds: the number of its call, and which call that really was. */
typedef place { byte number; byte call }
typedef box { place at[4] } /* half * 2 + packet */

#ifdef OUTBOX
#define NBOXES RANKS
#define BOX(from, to) boxes[from]
#else
#define NBOXES (RANKS * RANKS)
#define BOX(from, to) boxes[(to) * RANKS + (from)]
#endif

box boxes[NBOXES];
#define OLD 255

byte kinds[CALLS + 1]; /* 1: short, 2: long, 3: one rank alone has data; enough of them vary */

#ifdef ONE_HALF
#define HALF(n) 0
#else
#define HALF(n) ((n) & 1)
#endif

#ifdef OUTBOX
#define SWEPT(p) BOX(me, p)
#else
#define SWEPT(p) BOX(p, me)
#endif
#if (defined OUTBOX) != (defined OTHER_SWEEP)
#define SWEPT_HALF(n) (1 - HALF(n))
#else
#define SWEPT_HALF(n) HALF(n)
#endif

#define NUMBER(n) ((n) % WRAP)

#ifdef NO_HEADERS
#define SENDS(rank, n) (kinds[n] != 3 || (rank) == 0)
#else
#define SENDS(rank, n) true
#endif

inline write(from, to, n, packet)
{
	BOX(from, to).at[HALF(n) * 2 + packet].number = NUMBER(n);
	BOX(from, to).at[HALF(n) * 2 + packet].call = n
}

#define arrived(from, to, n, packet) (BOX(from, to).at[HALF(n) * 2 + packet].number == NUMBER(n))

proctype rank(byte me)
{
	byte n = 1, p;
	do
	:: n <= CALLS ->
		p = 0;
		do
		:: p < RANKS ->
			d_step {
				if
				:: p != me && SENDS(me, n) ->
					write(me, p, n, 0)
				:: else
				fi
			};
			d_step {
				if
				:: p != me && SENDS(me, n) && kinds[n] == 2 ->
					write(me, p, n, 1)
				:: else
				fi;
				p++
			}
		:: else -> break
		od;
		p = 0;
		do
		:: p < RANKS && p != me && SENDS(p, n) ->
			atomic {
				arrived(p, me, n, 0) && (kinds[n] != 2 || arrived(p, me, n, 1));
				assert(BOX(p, me).at[HALF(n) * 2].call == n);
				assert(kinds[n] != 2 || BOX(p, me).at[HALF(n) * 2 + 1].call == n);
				p++
			}
		:: p < RANKS && (p == me || !SENDS(p, n)) -> p++
		:: p == RANKS -> break
		od;
#ifndef NO_SWEEP
		p = 0;
		do
		:: p < RANKS && NUMBER(n) < 2 && n > 1 ->
			d_step {
				SWEPT(p).at[SWEPT_HALF(n) * 2].number = OLD;
				SWEPT(p).at[SWEPT_HALF(n) * 2 + 1].number = OLD;
				p++
			}
		:: else -> break
		od;
#endif
		n++
	:: else -> break
	od
}

init
{
	byte i, j;
	atomic {
		for (i : 0 .. (NBOXES - 1)) {
			for (j : 0 .. 3) {
				boxes[i].at[j].number = OLD
			}
		}
		for (i : 1 .. CALLS) {
			kinds[i] = 1;
			if
			:: i == 2 || i == 3 || i == 6 -> if :: kinds[i] = 2 :: kinds[i] = 3 :: true fi
			:: else
			fi
		}
		run rank(0);
		run rank(1);
		run rank(2)
	}
}
