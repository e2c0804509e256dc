/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that leave one by one, each behind its last call, while others go on: publish.h, stall.c. Rank r
 * makes calls 1 to makes[r] (rank 0 all), and leaves; calls that all ranks make complete. Rank 2 may leave in the
 * middle of its last call, as one does that ends its communicator while a graph is replayed: then rank 1 gets what it
 * needs of that call, and rank 0 does not.
 *
 * Nobody waits for ever: a call that cannot complete ends with the job. And the job does not end while a call that all
 * have made is under way on any rank. Parities are under way side by side, a parity's calls one after another. Slices
 * are left out: a rank finishes a call some time after all have submitted it.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DEARLY_BIT    a rank's bit is set before its lanes have stored their last
 *   -DNO_PATIENCE  the job is ended though ranks are in calls that a departed rank took part in
 *   -DNO_LOOK      nobody looks for departed ranks
 *   -DFOR_ANY      calls that any, not each, of the departed ranks has finished are waited for
 */
#define RANKS 3
#define CALLS 2
#define PARITIES 2

byte makes[RANKS];
bool drops;                    /* rank 2 its last call */
byte submitted[RANKS * PARITIES]; /* last call of the rank in the parity */
byte finished[RANKS * PARITIES];
byte through[RANKS];           /* parities of the rank that have no calls left */
bool gone[RANKS];
bool failed;

#define PARITY(rank, call) ((rank) * PARITIES + (call) % PARITIES)
#define SUBMITTED(c) (submitted[PARITY(0, c)] >= c && submitted[PARITY(1, c)] >= c && submitted[PARITY(2, c)] >= c)
#define OVER(c) (finished[PARITY(0, c)] >= c && finished[PARITY(1, c)] >= c && finished[PARITY(2, c)] >= c)
#define DROPPED(c) (drops && c == makes[2])
#define COMPLETES(c) (makes[0] >= c && makes[1] >= c && makes[2] >= c && !DROPPED(c))
#define MAY_FINISH(rank, c) (SUBMITTED(c) && !(DROPPED(c) && rank != 1))

/* ferry_departed; with the departed ranks in `l`, as bits: ferry_departed_are_over. */
#define DEPARTED (gone[0] + 2 * gone[1] + 4 * gone[2])
#define HAS(l, rank) (((l) >> (rank)) & 1)
#define LATER(x, y, parity) (finished[PARITY(x, parity)] >= finished[PARITY(y, parity)])
#ifdef FOR_ANY
#define PAST(l, x, parity) ((!HAS(l, 0) || LATER(x, 0, parity)) && (!HAS(l, 1) || LATER(x, 1, parity)) && \
                          (!HAS(l, 2) || LATER(x, 2, parity)))
#else
#define PAST(l, x, parity) ((HAS(l, 0) && LATER(x, 0, parity)) || (HAS(l, 1) && LATER(x, 1, parity)) || \
                          (HAS(l, 2) && LATER(x, 2, parity)))
#endif
#define PAST_ALL(l, x) (HAS(l, x) || (PAST(l, x, 0) && PAST(l, x, 1)))
#ifdef NO_PATIENCE
#define ARE_OVER(l) true
#else
#define ARE_OVER(l) (PAST_ALL(l, 0) && PAST_ALL(l, 1) && PAST_ALL(l, 2))
#endif

/* Ranks, as bits, that have not finished call c. */
#define LACKS(c) ((finished[PARITY(0, c)] < c) + 2 * (finished[PARITY(1, c)] < c) + 4 * (finished[PARITY(2, c)] < c))

/* ferry_stall_end_departed, at call c. */
inline look(c)
{
	seen = DEPARTED;
	atomic {
		failed = failed || ((seen & LACKS(c)) && ARE_OVER(seen));
		seen = 0
	}
}

inline finish(rank, c)
{
#ifdef EARLY_BIT
	/* the rank's thread goes ahead of its lanes */
	gone[rank] = gone[rank] || (c == makes[rank] && through[rank] == PARITIES - 1);
#endif
	finished[PARITY(rank, c)] = c
}

proctype parity(byte me; byte c)
{
	byte seen;
	bool looked; /* at a time of its own choice; after that, when a look would tell */
	do
	:: c > makes[me] -> break
	:: else ->
		atomic {
			if
			:: c <= PARITIES || OVER(c - PARITIES)
			:: failed -> break
			fi;
			submitted[PARITY(me, c)] = c
		}
		do
		:: MAY_FINISH(me, c) && !failed -> finish(me, c); break
		:: me == 2 && DROPPED(c) && SUBMITTED(c) -> break
		:: failed -> break
#ifndef NO_LOOK
		:: !looked -> looked = true; look(c)
		:: (DEPARTED & LACKS(c)) && ARE_OVER(DEPARTED) && !failed -> look(c)
#endif
		od;
		if
		:: finished[PARITY(me, c)] < c -> assert(!COMPLETES(c)); break
		:: else
		fi;
		looked = false;
		c = c + PARITIES
	od;
	/* the last: its router says that it has left; not where the job has failed */
	atomic {
		through[me]++;
		if
		:: through[me] == PARITIES && !failed -> gone[me] = true
		:: else
		fi
	}
}

init
{
	byte calls;
	atomic {
		makes[0] = CALLS;
		select(calls : 1 .. CALLS);
		makes[1] = calls;
		select(calls : 1 .. CALLS);
		makes[2] = calls;
		if
		:: drops = true
		:: drops = false
		fi;
		run parity(0, 1);
		run parity(0, 2);
		run parity(1, 1);
		run parity(1, 2);
		run parity(2, 1);
		run parity(2, 2)
	}
}
