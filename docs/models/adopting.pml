/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a successor comes to a job: two ranks, a router, and two successors of which the first may die as well, at any
 * step. Routers ask nobody: what they know of a job its ranks have handed over. A rank sees its connection end, waits
 * until the router has exited, connects to the router that listens by then, says ADOPT, repeats what it had asked for
 * and what it had given, and says ADOPTED. The successor begins when all have said so that have not left. A router
 * listens when the one before has no socket any more, though that may not have exited: DMA of it goes on.
 *
 * Rank 0 gives a plan, both make a call that needs it, rank 1 leaves when that is over, rank 0 when it has given
 * another. Rank 1 may be killed at any time, which is to fail the job and nothing else. A rank that leaves beside a
 * dead router says so in the arena itself.
 *
 * Checked: a router begins when all before it have exited, with all plans; the job fails only where a rank was killed;
 * nobody waits for ever, so either the call is over and both have left, or the job has failed.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_FENCE          a rank hands over when its connection has ended, not when that router has exited
 *   -DBEGIN_EARLY       the successor begins when some rank has handed over
 *   -DNO_WATCH          it does not look whether ranks that have not come are dead
 *   -DLEFT_READ_FIRST   it looks whether they have left, then whether they are dead
 *   -DWAIT_FOR_LEFT     it waits for ranks that have left, too
 *   -DNO_REPEAT         a request that was not answered is not made again
 *   -DHAND_OVER_ONCE    what another router has answered is not handed over
 *   -DANSWER_FIRST      a router answers a rank that leaves, then says in the arena that it has left
 *   -DLEAVE_SILENTLY    a rank that leaves beside a dead router says nothing in the arena
 */
#define ROUTERS 3
#define ADOPT 1
#define PLAN 2
#define ADOPTED 3
#define LEAVE 4
#define NEW 5 /* a plan, given to a router that has begun */

/* The arena. */
bool left[2], failed, submitted[2], over;

/* Processes. */
byte listening;                         /* the router that ranks find: the last that has begun to listen */
bool begun[ROUTERS + 1], killed[ROUTERS + 1], exited[ROUTERS + 1]; /* killed: its connections have ended */
bool dead[2], rank_killed;              /* ranks, however they ended */

/* Connections, by rank: to which router, and what is asked. */
byte to[2], asked[2];
bool answered[2];
bool closed[2];                         /* by the rank */

#ifdef NO_FENCE
#define GONE(e) killed[e]
#else
#define GONE(e) exited[e]
#endif
#define ENDED(r) (killed[to[r]])

/* Asks the router that it is connected to: answered, or that has died. */
inline ask(what)
{
	atomic { asked[me] = what; answered[me] = false }
	if
	:: answered[me]
	:: ENDED(me) || failed
	fi;
	asked[me] = 0
}

/*
 * Until a router has all from this rank that one needs. A router that has not answered ADOPT has not begun, as it waits
 * for this rank: nobody needs to wait for its end.
 */
inline hand_over()
{
	do
	:: failed || (!ENDED(me) && has_all) -> break
	:: else ->
		if
		:: ENDED(me) && known -> GONE(to[me]) || failed
		:: else
		fi;
		atomic { known = false; has_all = false; (!killed[listening] || failed) -> to[me] = listening }
		ask(ADOPT);
		if
		:: !ENDED(me) && !failed ->
			known = true;
#ifdef HAND_OVER_ONCE
			skip;
#else
			if
			:: given -> ask(PLAN)
			:: else
			fi;
#endif
			if
			:: ENDED(me) || failed
			:: else ->
				ask(ADOPTED);
				has_all = !ENDED(me)
			fi
		:: else
		fi
	od
}

inline request(what)
{
	do
	:: failed -> break
	:: else ->
		hand_over();
		if
		:: failed
		:: else -> ask(what)
		fi;
#ifdef NO_REPEAT
		if
		:: answered[me] || failed -> break
		:: else -> hand_over(); (answered[me] || failed); break
		fi
#else
		if
		:: answered[me] || failed -> break
		:: else
		fi
#endif
	od
}

/* The router answers, or is dead: then nobody waits for another. */
inline leave()
{
	if
	:: !ENDED(me) && has_all -> ask(LEAVE)
	:: else
	fi;
	if
	:: answered[me]
#ifdef LEAVE_SILENTLY
	:: !answered[me]
#else
	:: !answered[me] -> left[me] = true
#endif
	fi
}

proctype rank(byte me)
{
	bool known = true, has_all = true, given; /* known: it holds that router's pidfd */
	{
		if
		:: me == 0 -> request(NEW); given = true
		:: else
		fi;
		submitted[me] = true;
		do
		:: over || failed -> break
		:: ENDED(me) && !over && !failed -> hand_over()
		od;
		if
		:: me == 0 && !failed -> request(NEW)
		:: else
		fi;
		/* one that has been told of the end may have to hand over once more before it leaves, or not */
		if
		:: ENDED(me) && !failed -> hand_over()
		:: true
		fi;
		answered[me] = false;
		if
		:: !failed -> leave()
		:: else
		fi
	} unless { me == 1 && rank_killed };
	atomic { closed[me] = true; asked[me] = 0; dead[me] = true }
}

inline begin()
{
	assert(me < 2 || exited[1]);
	assert(me < 3 || !begun[2] || exited[2]);
	begun[me] = true;
	ready = true
}

inline lose(r)
{
	if
	:: dead[r] -> failed = true
	:: else
	fi
}

inline serve()
{
	if
	:: atomic { asked[r] == PLAN || asked[r] == NEW -> plan = true; answered[r] = true }
	:: atomic { asked[r] == ADOPT -> answered[r] = true }
	:: atomic { asked[r] == ADOPTED -> arrived[r] = true; answered[r] = true }
	:: atomic { asked[r] == LEAVE ->
#ifdef ANSWER_FIRST
		answered[r] = true } left[r] = true
#else
		left[r] = true } answered[r] = true
#endif
	:: asked[r] == 0 /* the rank has ended */
	fi;
	r = 0
}

#define ASKS(r) (to[r] == me && asked[r] != 0 && !answered[r] && (ready || asked[r] != NEW))

proctype router(byte me)
{
	bool arrived[2], plan, ready, gone;
	byte r;
end_unused:
	atomic { listening == me - 1 && (me == 1 || killed[me - 1]) -> listening = me }
	if
	:: me == 1 -> d_step { arrived[0] = true; arrived[1] = true; ready = true; begun[1] = true }
	:: else
	fi;
	{
end:		do
		:: atomic { ASKS(0) -> r = 0 } serve()
		:: atomic { ASKS(1) -> r = 1 } serve()
		/* begin */
#ifdef BEGIN_EARLY
		:: atomic { !ready && (arrived[0] || arrived[1]) -> begin() }
#elif defined(WAIT_FOR_LEFT)
		:: atomic { !ready && arrived[0] && arrived[1] -> begin() }
#else
		:: atomic { !ready && (arrived[0] || left[0]) && (arrived[1] || left[1]) &&
			(arrived[0] || arrived[1]) -> begin() }
#endif
		/* the call */
		:: atomic { ready && submitted[0] && submitted[1] && !over && !failed -> assert(plan); over = true }
		/* a connection has ended */
		:: atomic { arrived[0] && to[0] == me && closed[0] && !left[0] && !failed -> failed = true }
		:: atomic { arrived[1] && to[1] == me && closed[1] && !left[1] && !failed -> failed = true }
#ifndef NO_WATCH
		/* ranks that have not come */
#ifdef LEFT_READ_FIRST
		:: !arrived[0] && !left[0] && !failed && !ready -> lose(0)
		:: !arrived[1] && !left[1] && !failed && !ready -> lose(1)
#else
		:: atomic { !arrived[0] && dead[0] && !left[0] && !failed -> failed = true }
		:: atomic { !arrived[1] && dead[1] && !left[1] && !failed -> failed = true }
#endif
#endif
		od
	} unless { killed[me] };
	atomic { arrived[0] = false; arrived[1] = false; plan = false; ready = false; r = 0; exited[me] = true }
}

proctype death(byte e)
{
	if
	:: atomic { listening >= e -> killed[e] = true }
	:: true
	fi
}

/* Of a rank that has not left. */
proctype fate()
{
	if
	:: atomic { !left[1] && !dead[1] -> rank_killed = true }
	:: true
	fi
}

/* Whatever happened: both ranks have come to their ends. */
proctype judge()
{
	dead[0] && dead[1];
	assert(rank_killed || (over && !failed && left[0] && left[1]));
	assert(!failed || rank_killed)
}

init {
	atomic {
		to[0] = 1;
		to[1] = 1;
		run router(1); run router(2); run router(3); run rank(0); run rank(1);
		run death(1); run death(2); run fate(); run judge()
	}
}
