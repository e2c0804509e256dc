/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The flag of a stream, when the router moves the data. For each call the stream writes flag = 1 and waits for 0; the
 * application thread puts a submission into a ring, before or after that is in the stream. The router's D2H lane takes
 * submissions and begins a call when done == turn and flag == 1; of the D2H and the H2D half the one that ends last
 * stores flag = 0, then done + 1.
 *
 * Flag A: a stream with several calls. Flag C: a captured call, replayed, then forgotten; then the line is another
 * communicator's, with a router of its own (`other`). The job may fail at any moment: the D2H lane, and nobody else,
 * then puts back every flag that becomes 1, unless a call is under way on it, whose halves give up. The router may die
 * at any moment: the rank's router monitor puts flags back instead. The thread that puts a flag back also answers when
 * it is to be forgotten.
 *
 * Checked: a call begins once, while its stream waits for it; no stream goes on while a living router copies for it,
 * nor before its copies are made unless the job has failed or its router is dead; no stream waits for ever; whatever
 * becomes of the job, it does nothing to a line that it has forgotten.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DDONE_FIRST          the last half counts the call in `done` before it stores flag = 0
 *   -DFLAG_READ_FIRST     the lane reads the flag, then `done`
 *   -DNO_TURN             the lane begins the next submission when its flag is 1, whatever `done` is
 *   -DTAIL_FIRST          the ring's tail is stored before the submission
 *   -DHEAD_FIRST          a submission's place is given back before it is read
 *   -DRELEASE_ONCE        a failed job's flags are put back once, not for good
 *   -DRELEASE_UNDER_WAY   a failed job's flags are put back while its lanes may still copy
 *   -DRELEASE_ELSEWHERE   another thread of the router than the lane that begins calls puts them back
 *   -DMONITOR_BY_SOCKET   the router monitor begins when the router's connection ends, not when its process has
 *   -DNO_MONITOR          nobody puts back the flags of a router that is dead
 *   -DNO_ANSWER           a line is used again before somebody has answered that it is forgotten
 *   -DEARLY_ANSWER        the router answers while a call is released and not counted yet
 *   -DANSWER_OF_THE_DEAD  a rank that wants a line forgotten waits for the router, be it dead
 */
#ifndef CALLS
#define CALLS 3
#endif
#ifndef REPLAYS
#define REPLAYS 2
#endif
#define A 0 /* flags */
#define C 1
#define CAPTURE (CALLS + 1) /* submissions; 1 to CALLS: the calls of flag A, by their turn + 1 */
#define FORGET (CALLS + 2)

byte flag[2], done[2];      /* the lines */
bool wanted, forgotten;     /* line C: the rank gives it up; the answer */
byte ring[2], tail, head;   /* the rank stores submissions and tail, the D2H lane head */
bool ring_locked;           /* among the rank's threads */
byte calls, replays;        /* on flag A; of flag C: many of one, or one of each */
bool failed, closed, dead;  /* the job; the router's connections; the router */
bool peers;                 /* the other ranks have made their calls: copies can go on to their end */

byte in_stream;             /* calls put into stream A */
byte reached[2], passed[2]; /* calls that the stream has come to, and come past */
bool idle;                  /* stream C has made its replays */
bool used_again;            /* line C is another communicator's */
byte base;                  /* its `done` when it became that */

byte taken;                 /* the D2H lane's: calls of flag A that it knows */
bool captured;              /* it knows the captured call */
bool given_up;              /* it has forgotten line C */
byte begun[2];              /* calls begun on each flag */
byte halves[2], copied_halves[2];
bool d2h[2], h2d[2];        /* halves under way */
byte copying[2];            /* copies under way */
byte copied[2];             /* calls whose copies are made */
bool other_copied;

/* Both halves of a call end like this, with both copies made or given up. */
inline end_half(w, made)
{
	copied_halves[w] = copied_halves[w] + made;
	halves[w]--;
	last = (halves[w] == 0);
	if
	:: last -> copied[w] = copied[w] + (copied_halves[w] == 2 -> 1 : 0); copied_halves[w] = 0
	:: else
	fi
}

#ifdef DONE_FIRST
#define FIRST(w) done[w] = done[w] + 1
#define SECOND(w) flag[w] = 0
#else
#define FIRST(w) flag[w] = 0
#define SECOND(w) done[w] = done[w] + 1
#endif

inline run_half(half, w)
{
	if
	:: atomic { peers -> half = false; copying[w]++ } atomic { copying[w]--; end_half(w, 1) }
	:: atomic { failed -> half = false; end_half(w, 0) }
	fi;
	if
	:: atomic { last -> FIRST(w) } atomic { SECOND(w); last = false }
	:: else
	fi
}
#define MAY_RUN(half, w) (half[w] && (peers || failed))

#define KNOWN(w) (w == A -> taken > begun[A] : captured)
#ifdef NO_TURN
#define TURN(w) (halves[w] == 0)
#else
#define TURN(w) (done[w] == begun[w])
#endif
#ifdef RELEASE_UNDER_WAY
#define MAY_RELEASE(w) true
#else
#define MAY_RELEASE(w) (turn && !released[w])
#endif
/* Looking in vain is no step, so that being stuck shows as a deadlock. */
#ifdef FLAG_READ_FIRST
#define LOOK_AT(w) (flag[w] == 1)
#elif defined(RELEASE_UNDER_WAY)
#define LOOK_AT(w) (flag[w] == 1 && (failed || (TURN(w) && KNOWN(w))))
#elif defined(RELEASE_ELSEWHERE)
#define LOOK_AT(w) (flag[w] == 1 && TURN(w) && KNOWN(w) && !failed)
#else
#define LOOK_AT(w) (flag[w] == 1 && TURN(w) && (failed -> !released[w] : KNOWN(w)))
#endif

inline look(w)
{
#ifdef FLAG_READ_FIRST
	one = (flag[w] == 1);
	turn = TURN(w);
#else
	turn = TURN(w);
	one = (flag[w] == 1);
#endif
	if
	:: atomic { one && failed && MAY_RELEASE(w) ->
		turn = false;
		one = false;
#ifdef RELEASE_ONCE
		released[w] = true;
#endif
		} flag[w] = 0
	:: atomic { one && !failed && turn && KNOWN(w) -> turn = false; one = false }
		atomic {
			assert(reached[w] == begun[w] + 1 && passed[w] == begun[w]);
			begun[w]++; halves[w] = 2; d2h[w] = true; h2d[w] = true
		}
	:: atomic { !(one && failed && MAY_RELEASE(w)) && !(one && !failed && turn && KNOWN(w)) ->
		turn = false; one = false }
	fi
}

proctype d2h_lane()
{
	bool turn, one, last, forget, released[2];
	byte submission;
	{
end:		do
		:: head < tail ->
#ifdef HEAD_FIRST
			head++;
			submission = ring[(head - 1) % 2];
#else
			submission = ring[head % 2];
			head++;
#endif
			atomic {
				if
				:: submission == CAPTURE -> captured = true
				:: submission == FORGET -> forget = true
				:: else -> assert(submission == taken + 1); taken++
				fi;
				submission = 0
			}
#ifdef EARLY_ANSWER
		:: forget ->
#else
		:: forget && done[C] == begun[C] ->
#endif
			atomic { forget = false; captured = false; given_up = true; forgotten = true }
		:: LOOK_AT(A) -> look(A)
		:: LOOK_AT(C) && !given_up -> look(C)
		:: MAY_RUN(d2h, A) -> run_half(d2h[A], A)
		:: MAY_RUN(d2h, C) -> run_half(d2h[C], C)
		od
	} unless { dead }
}

proctype h2d_lane()
{
	bool last;
	{
end:		do
		:: MAY_RUN(h2d, A) -> run_half(h2d[A], A)
		:: MAY_RUN(h2d, C) -> run_half(h2d[C], C)
		od
	} unless { dead }
}

#ifdef RELEASE_ELSEWHERE
proctype releaser()
{
	{
end:		do
		:: failed && flag[A] == 1 && done[A] == begun[A] -> flag[A] = 0
		:: failed && flag[C] == 1 && done[C] == begun[C] && !given_up -> flag[C] = 0
		od
	} unless { dead }
}
#endif

/* The one thread of the rank's process, asleep on its routers. */
proctype router_monitor()
{
#ifdef MONITOR_BY_SOCKET
end:	(closed);
#else
end:	(dead);
#endif
end_kept:
	do
#ifndef NO_MONITOR
	:: flag[A] == 1 -> flag[A] = 0
	:: flag[C] == 1 && !forgotten -> flag[C] = 0
#endif
#ifndef ANSWER_OF_THE_DEAD
	:: wanted && !forgotten -> forgotten = true
#endif
	od
}

/* The router of the communicator that has line C afterwards. */
proctype other()
{
	used_again && done[C] == base && flag[C] == 1;
	other_copied = true;
	flag[C] = 0;
	done[C] = done[C] + 1
}

inline submit(what)
{
	if
	:: atomic { !ring_locked && tail - head < 2 -> ring_locked = true }
#ifdef TAIL_FIRST
		tail++;
		atomic { ring[(tail - 1) % 2] = what; ring_locked = false }
#else
		ring[tail % 2] = what;
		atomic { tail++; ring_locked = false }
#endif
	:: dead
	fi
}

proctype caller()
{
	byte call = 0;
	do
	:: call == calls || failed -> break
	:: call < calls ->
		call++;
		if
		:: submit(call); in_stream++
		:: in_stream++; submit(call)
		fi
	od;
	in_stream = calls /* once the job has failed, what comes into the stream need not be submitted any more */
}

proctype capturer()
{
	submit(CAPTURE);
	if
	:: replays == REPLAYS ->
		(idle); /* the owner of the graph destroys it when no replay is under way */
		wanted = true;
		submit(FORGET);
#ifndef NO_ANSWER
		(forgotten);
#endif
		base = done[C];
		used_again = true
	:: else
	fi
}

inline pass(w)
{
	atomic { reached[w]++; flag[w] = 1 };
	atomic {
		flag[w] == 0 ->
		assert(copying[w] == 0);
		assert((used_again && w == C -> other_copied : (copied[w] == reached[w] || failed || dead)));
		passed[w]++
	}
}

proctype stream_a()
{
	do
	:: passed[A] == calls -> break
	:: passed[A] < in_stream -> pass(A)
	od
}

proctype stream_c()
{
	do
	:: passed[C] == replays -> break
	:: else -> pass(C)
	od;
	idle = true;
	if
	:: replays == REPLAYS -> (used_again); pass(C)
	:: else
	fi
}

/* What may happen to the job, and to the router. */
proctype fate()
{
	if
	:: failed = true
	:: peers = true;
		if
		:: failed = true
		:: skip
		fi
	fi
}

proctype death()
{
	if
	:: skip
	:: closed = true; d_step { dead = true; copying[A] = 0; copying[C] = 0 } /* no copy of its lands any more */
	fi
}

init {
	atomic {
		if
		:: calls = CALLS
		:: replays = REPLAYS
		:: calls = 1; replays = 1
		fi;
		if
		:: replays > 0 -> run capturer(); run stream_c()
		:: else
		fi;
		if
		:: replays == REPLAYS -> run other()
		:: else
		fi;
		run d2h_lane(); run h2d_lane(); run router_monitor(); run caller(); run stream_a(); run fate();
		run death();
#ifdef RELEASE_ELSEWHERE
		run releaser()
#endif
	}
}
