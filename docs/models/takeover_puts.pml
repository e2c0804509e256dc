/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router that pushes from GPU to GPU dies, at any step, and a successor goes on, which may die as well. Two calls in
 * place of three ranks: 0 and 1 swap what they have, and 1 passes on to 2 what comes from 0, slice by slice. So a push
 * writes straight into memory that its rank has back as soon as its stream goes on, and may read what another push has
 * written. A rank's end of a call is one step here, behind which its buffers are gone; takeover.pml has its stores. A
 * descriptor is marked as being replaced before it is written, and is written again by the router that replays the
 * call.
 *
 * 0 and 1 push from a copy of what they had, as the other writes over that; their streams make it, before they say that
 * they have come to the call.
 *
 * A copy has torn its destination before it is there, and goes on until its router has exited. The successor knows what
 * the arena says, and has the exports of calls that are not over, of each rank when that has come.
 *
 * Checked: no copy begins or ends where its receiver's stream does not wait in that call; each push finds where it goes
 * to; a stream goes on only when its data are there; every call comes to its end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DBY_SOCKET      a successor begins when the router's connections end, not when its process has
 *   -DBEFORE_ALL     it serves each rank as soon as that has come
 *   -DFROM_ZERO      it pushes all slices of a push again that is not over
 *   -DPUBLISH_FIRST  a slice is published before its copy has ended
 *   -DALL_TARGETS    it looks where all pushes of a call go to, those too that are over
 *   -DNO_AGREEMENT   it pushes as soon as the pusher has come to the call again: it had agreed before
 *   -DNO_ASIDE       ranks push from the buffer itself
 *   -DASIDE_AGAIN    the router makes the copy that is pushed from, as it begins the call
 *   -DNO_WAIT_PUT    a rank's call ends when its own pushes are over
 */
#define RANKS 3
#define CALLS 2
#define SLICES 2
#define ROUTERS 3

/* Push 0 goes from rank 0 to 1, push 1 from 1 to 0, push 2 from 1 to 2: what push 0 has brought. */
#define PUTS 3
#define FROM(p) ((p) == 0 -> 0 : 1)
#define TO(p) ((p) == 0 -> 1 : ((p) == 1 -> 0 : 2))

#define TORN 255
#define INPUT(r, call, s) (1 + (((call) - 1) * 2 + (r)) * SLICES + (s)) /* of ranks 0 and 1 */

/* Memory of the ranks, and their streams. */
byte buffer[RANKS * SLICES], aside[2 * SLICES];
bool in_call[RANKS];
byte turn[RANKS];                /* the call that the stream is at */

/* The arena, and the flags. */
byte submitted[RANKS];           /* descriptors; 0: being replaced */
byte finished[RANKS];
bool flag[RANKS];
byte put_call[PUTS], put_slices[PUTS];
#define HAS(p, call) (put_call[p] == (call) -> put_slices[p] : 0)

/* By router, from 1. */
bool killed[ROUTERS + 1], exited[ROUTERS + 1];
byte writer;
/* By router and push: the copy under way. */
byte flying[(ROUTERS + 1) * PUTS], flying_at[(ROUTERS + 1) * PUTS], flying_call[(ROUTERS + 1) * PUTS];
bool torn[(ROUTERS + 1) * PUTS];
#define FLIGHT(e, p) ((e) * PUTS + (p))

#ifdef BY_SOCKET
#define GONE(e) killed[e]
#else
#define GONE(e) exited[e]
#endif

/* The call that the rank's stream is at, or comes to. */
#define CALL(r) (finished[r] + 1)
#define ALL_FINISHED(call) (finished[0] >= (call) && finished[1] >= (call) && finished[2] >= (call))
#ifdef NO_AGREEMENT
#define AGREED(p) (me > 1 || (submitted[0] == CALL(FROM(p)) && submitted[1] == CALL(FROM(p)) && \
	submitted[2] == CALL(FROM(p))))
#else
#define AGREED(p) (submitted[0] == CALL(FROM(p)) && submitted[1] == CALL(FROM(p)) && submitted[2] == CALL(FROM(p)))
#endif
#ifdef BEFORE_ALL
#define SERVES(r) come[r]
#else
#define SERVES(r) (come[0] && come[1] && come[2])
#endif
#ifdef ALL_TARGETS
#define LEFT(p) true
#else
#define LEFT(p) (HAS(p, CALL(FROM(p))) < SLICES)
#endif
#define IS_THERE(p, s) ((p) != 2 || (s) < HAS(0, CALL(1)))
#ifdef PUBLISH_FIRST
#define ENDED(p) true
#else
#define ENDED(p) (flying[FLIGHT(me, p)] == 0)
#endif

#define SENT(p, r) (HAS(p, CALL(r)) == SLICES)
#ifdef NO_WAIT_PUT
#define IS_OVER(r) ((r) == 0 -> SENT(0, r) : ((r) == 2 || (SENT(1, r) && SENT(2, r))))
#else
#define IS_OVER(r) ((r) == 0 -> SENT(0, r) && SENT(1, r) : SENT(2, r) && ((r) == 2 || (SENT(0, r) && SENT(1, r))))
#endif

/* Each of these is a lane's next step. All that it stores is where only the router of the job writes. */
#define MINE assert(writer == me)

/* It hands over what it has exported, and calls that are not over name. */
#define COME(r) atomic { !come[r] -> come[r] = true; export[r] = CALL(r) }

#define REPLACE(r) atomic { SERVES(r) && stage[r] == 0 && flag[r] && ALL_FINISHED(CALL(r) - 1) -> \
	MINE; submitted[r] = 0; stage[r] = 1 }
#ifdef ASIDE_AGAIN
#define SUBMIT(r) atomic { stage[r] == 1 -> MINE; \
	if \
	:: r < 2 -> aside[(r) * SLICES] = buffer[(r) * SLICES]; aside[(r) * SLICES + 1] = buffer[(r) * SLICES + 1] \
	:: else \
	fi; \
	submitted[r] = CALL(r); export[r] = CALL(r); stage[r] = 2 }
#else
#define SUBMIT(r) atomic { stage[r] == 1 -> MINE; submitted[r] = CALL(r); export[r] = CALL(r); stage[r] = 2 }
#endif

/* Where it goes to: the first router's lanes had it exported when the call was made, as those later calls' are. */
#define FIND(p) atomic { stage[FROM(p)] == 2 && !found[p] && LEFT(p) && AGREED(p) -> \
	assert(export[TO(p)] == CALL(FROM(p))); \
	found[p] = true; pushed[p] = FIRST(p) }
#ifdef FROM_ZERO
#define FIRST(p) 0
#else
#define FIRST(p) HAS(p, CALL(FROM(p)))
#endif

/* One slice, or both where they are there. */
#define PUSH(p, k) atomic { found[p] && !busy[p] && pushed[p] + k <= SLICES && IS_THERE(p, pushed[p] + k - 1) -> \
	flying[FLIGHT(me, p)] = k; flying_at[FLIGHT(me, p)] = pushed[p]; \
	flying_call[FLIGHT(me, p)] = CALL(FROM(p)); pushed[p] = pushed[p] + k; busy[p] = true }
#define PUBLISH(p) atomic { busy[p] && ENDED(p) -> \
	MINE; put_call[p] = CALL(FROM(p)); put_slices[p] = pushed[p]; busy[p] = false }

#define FORGET(p) found[p] = false; pushed[p] = 0
#define END(r) atomic { stage[r] == 2 && IS_OVER(r) -> \
	MINE; finished[r] = CALL(r); flag[r] = false; export[r] = 0; stage[r] = 0; \
	if \
	:: r == 0 -> FORGET(0) \
	:: r == 1 -> FORGET(1); FORGET(2) \
	:: else \
	fi }

#define OF_RANK(r) \
	:: COME(r) \
	:: REPLACE(r) \
	:: SUBMIT(r) \
	:: END(r)
#define OF_PUT(p) \
	:: FIND(p) \
	:: PUSH(p, 1) \
	:: PUSH(p, 2) \
	:: PUBLISH(p)

/* Lanes, each of whose steps may come between those of others. */
proctype router(byte me)
{
	bool come[RANKS], found[PUTS], busy[PUTS];
	byte stage[RANKS], pushed[PUTS], export[RANKS];
	byte n;
end_unused:
	atomic { writer == me - 1 && (me == 1 || GONE(me - 1)) -> writer = me }
	{
end:		do
		OF_RANK(0)
		OF_RANK(1)
		OF_RANK(2)
		OF_PUT(0)
		OF_PUT(1)
		OF_PUT(2)
		od
	} unless { killed[me] }
	atomic {
		n = 0;
		do
		:: n < PUTS ->
			found[n] = false; busy[n] = false; pushed[n] = 0;
			come[n] = false; stage[n] = 0; export[n] = 0;
			flying[FLIGHT(me, n)] = 0; flying_at[FLIGHT(me, n)] = 0; flying_call[FLIGHT(me, n)] = 0;
			torn[FLIGHT(me, n)] = false;
			n++
		:: else -> break
		od;
		n = 0;
		exited[me] = true
	}
}

/* Copies go on until their router has exited. */
#define WAITS(f, p) assert(in_call[TO(p)] && turn[TO(p)] == flying_call[f])
#ifdef NO_ASIDE
#define SOURCE(p, s) buffer[FROM(p) * SLICES + (s)]
#else
#define SOURCE(p, s) ((p) == 2 -> buffer[SLICES + (s)] : aside[FROM(p) * SLICES + (s)])
#endif
#define COPY(f, p) \
	:: atomic { flying[f] != 0 && !torn[f] -> \
		WAITS(f, p); \
		torn[f] = true; \
		buffer[TO(p) * SLICES + flying_at[f]] = TORN; \
		if \
		:: flying[f] == 2 -> buffer[TO(p) * SLICES + 1] = TORN \
		:: else \
		fi } \
	:: atomic { flying[f] != 0 && torn[f] -> \
		WAITS(f, p); \
		buffer[TO(p) * SLICES + flying_at[f]] = SOURCE(p, flying_at[f]); \
		if \
		:: flying[f] == 2 -> buffer[TO(p) * SLICES + 1] = SOURCE(p, 1) \
		:: else \
		fi; \
		torn[f] = false; flying[f] = 0; flying_at[f] = 0; flying_call[f] = 0 }

proctype engine(byte e)
{
end:	do
	COPY(FLIGHT(e, 0), 0)
	COPY(FLIGHT(e, 1), 1)
	COPY(FLIGHT(e, 2), 2)
	od
}

proctype death(byte e)
{
	if
	:: atomic { writer >= e -> killed[e] = true }
	:: true /* it lives on; nobody succeeds it */
	fi
}

/* Whose data a rank is to have. */
#define WANTED(r) ((r) == 0 -> 1 : 0)

inline fill(r, call)
{
	if
	:: r < 2 ->
		buffer[r * SLICES] = INPUT(r, call, 0);
		buffer[r * SLICES + 1] = INPUT(r, call, 1);
		aside[r * SLICES] = INPUT(r, call, 0);
		aside[r * SLICES + 1] = INPUT(r, call, 1)
	:: else
	fi
}

proctype stream(byte r)
{
	byte call = 1;
	do
	:: call > CALLS -> break
	:: else ->
		atomic { fill(r, call); turn[r] = call; in_call[r] = true; flag[r] = true }
		atomic { !flag[r] ->
			assert(buffer[r * SLICES] == INPUT(WANTED(r), call, 0));
			assert(buffer[r * SLICES + 1] == INPUT(WANTED(r), call, 1));
			in_call[r] = false;
			buffer[r * SLICES] = 0;
			buffer[r * SLICES + 1] = 0;
			call++ }
	od
}

init {
	atomic {
		run router(1); run router(2); run router(3); run engine(1); run engine(2); run engine(3);
		run death(1); run death(2); run stream(0); run stream(1); run stream(2)
	}
}
