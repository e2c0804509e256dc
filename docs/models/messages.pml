/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank-lib/kernels/messages.h: messages of a pair by kernels, each through slots that the pair has for one direction.
 * Piece n of a direction lies in slot n mod SLOTS, and its packets carry n as a flag, which wraps. A sender fills it
 * when the receiver's word says that the piece before in it has been read; only that reader writes the word, in memory
 * of its own. A short piece has one packet, a long one a second, whose place keeps what it had before in the short ones
 * between: so now and then the pieces of SLOTS in a row are sent as long ones.
 *
 * Two ranks exchange messages in groups. One block per rank carries all of a group, and takes whichever piece can go on
 * (several blocks wait for less). A program may also do the same one after another: on one rank against a group on the
 * other, or on both, sending first, as far as slots go.
 *
 * Checked: what a rank takes for a packet of a piece is that piece's, behind wraps, too; all ranks end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_CREDIT     a sender does not look whether its slot has been read
 *   -DEARLY_CREDIT  a receiver says so as soon as the piece begins to come
 *   -DIN_TURN       a group's messages go one after another, sent ones first
 *   -DRENDEZVOUS    a sender waits until its piece has been read
 *   -DNO_PAD        slots are never filled whole
 */
#define SLOTS  2
#define WRAP   8 /* flags: 0 to WRAP - 1 */
#define PAD    4 /* of each so many pieces the first SLOTS are whole: twice before a flag comes again */
#define GROUPS 4
#define OLD    255

typedef slot { byte flag[2]; byte piece[2] } /* piece: which it really is */
typedef way { slot slots[SLOTS]; byte read; byte length[GROUPS] } /* of a sender; read: the receiver's word */
way ways[2];
byte modes[GROUPS]; /* 0: groups; 1: one after another on rank 1, receiving first; 2: on both, sending first */
byte apart;         /* every so many pieces one is long */

#ifdef NO_PAD
#define LONG(n) ((n) % apart == 0)
#else
#define LONG(n) ((n) % apart == 0 || (n) % PAD < SLOTS)
#endif
#define SLOT(n) ((n) % SLOTS)
#define FLAG(n) ((n) % WRAP)

#ifdef NO_CREDIT
#define MAY_SEND true
#else
#define MAY_SEND (sent - ways[me].read < SLOTS)
#endif

inline put(p)
{
	ways[me].slots[SLOT(sent)].flag[p] = FLAG(sent);
	ways[me].slots[SLOT(sent)].piece[p] = sent
}

inline send()
{
	d_step {
		put(0)
	};
	d_step {
		if
		:: LONG(sent) -> put(1)
		:: else
		fi;
		sent++;
		to_send--
	};
#ifdef RENDEZVOUS
	ways[me].read == sent
#endif
}

#define HAS(p) (ways[1 - me].slots[SLOT(received)].flag[p] == FLAG(received))

inline receive()
{
#ifdef EARLY_CREDIT
	ways[1 - me].read++;
#endif
	atomic {
		!LONG(received) || HAS(1);
		assert(ways[1 - me].slots[SLOT(received)].piece[0] == received);
		assert(!LONG(received) || ways[1 - me].slots[SLOT(received)].piece[1] == received)
	};
	d_step {
#ifndef EARLY_CREDIT
		ways[1 - me].read++;
#endif
		received++;
		to_receive--
	}
}

inline send_all()
{
	do
	:: to_send && MAY_SEND -> send()
	:: !to_send -> break
	od
}

inline receive_all()
{
	do
	:: to_receive && HAS(0) -> receive()
	:: !to_receive -> break
	od
}

proctype rank(byte me)
{
	byte group, sent, received, to_send, to_receive;
	do
	:: group < GROUPS ->
		d_step {
			to_send = ways[me].length[group];
			to_receive = ways[1 - me].length[group]
		};
		if
		:: modes[group] == 1 && me == 1 -> receive_all(); send_all()
#ifdef IN_TURN
		:: modes[group] != 1 || me == 0 -> send_all(); receive_all()
#else
		:: modes[group] == 2 -> send_all(); receive_all()
		:: modes[group] == 0 || (modes[group] == 1 && me == 0) ->
			do
			:: to_send && MAY_SEND -> send()
			:: to_receive && HAS(0) -> receive()
			:: !to_send && !to_receive -> break
			od
#endif
		fi;
		group++
	:: else -> break
	od
}

init
{
	byte i, j;
	atomic {
		for (i : 0 .. 1) {
			for (j : 0 .. (SLOTS - 1)) {
				ways[i].slots[j].flag[0] = OLD;
				ways[i].slots[j].flag[1] = OLD
			}
		}
		for (i : 0 .. (GROUPS - 1)) {
			if
			:: modes[i] = 0; ways[0].length[i] = 3; ways[1].length[i] = 3
			:: modes[i] = 1; ways[0].length[i] = 3; ways[1].length[i] = 2
			:: modes[i] = 2; ways[0].length[i] = 1; ways[1].length[i] = 1
			fi
		}
		if
		:: apart = 1
		:: apart = 2
		:: apart = 8
		fi;
		run rank(0);
		run rank(1)
	}
}
