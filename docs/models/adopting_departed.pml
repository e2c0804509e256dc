/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mapped rank leaves while routers adopt its job: one of two domains, member of domain 0's router and foreign rank of
 * domain 1's. Either router may have died, or both, and each successor may die while it adopts. The router monitor
 * hands over (ADOPT, an export, ADOPTED), the application's thread leaves meanwhile: it asks each router that it has,
 * says in the arena that it has left where its own has died, ends the router monitor's work, closes, and waits for
 * those routers that it has to let go of its memory. The job's other ranks come to each successor at some time, or
 * never. adoption.c has the successor: it begins when all have come, or have left; its lanes are opened by another
 * thread (opening), and then it serves.
 *
 * Checked: the rank leaves, whether the others come or not; the job never fails by that; no lanes are opened for a rank
 * that has not handed over everything; once a router serves and the rank has gone, none are open and nothing stays
 * mapped for longer than it is idle.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DLET_GO_LATER    the successor says that it has let go of the rank when it serves, not when the rank leaves
 *   -DCLOSE_SILENTLY  it says so to a rank that asks, not where the connection closes
 *   -DOPEN_ALL        lanes are opened for a rank that has only come with ADOPT, too
 *   -DKEEP_DEPARTED   the router does not look, when it serves, for ranks that have left
 *   -DTAKE_LATE       a rank that comes when lanes are being opened is taken
 *   -DFAIL_REFUSED    a rank that has left takes a router's refusal for the end of its job
 *   -DGIVE_UP_FIRST   the router monitor's work is ended before it is said that the rank has left
 */
#define ADOPT 1
#define EXPORT 2
#define ADOPTED 3
#define LEAVE 4
#define NONE 0
#define WAITS 1   /* for ranks to come */
#define OPENS 2
#define SERVES 3
#define YES 1
#define NO 2

/* The arenas. */
bool left, released[2], failed;

/* The rank: its link leads to a router that it has handed over to, or that has been there all the time. */
bool linked[2], given_up, keeping, gone;

/* Connections, one to each domain's router: of the router monitor's until it is the link's. */
bool closed[2];
byte asked[2], answer[2];

/* Routers: the successor, or the first one, where that lives. */
byte state[2];
bool dead[2], others[2], come[2], attached[2], lanes[2], mapped[2], ended[2], detached[2];

#define HAS_LEFT(d) (left || detached[d])

/* The result: YES, NO, or NONE where the router has died, or nobody waits for it any more. */
inline ask(d, what, patient)
{
	d_step { asked[d] = what; answer[d] = NONE }
	if
	:: answer[d] != NONE
	:: dead[d]
	:: !patient && given_up && answer[d] == NONE
	fi;
	d_step { asked[d] = NONE; result = answer[d] }
}

/* Refused: where the rank leaves that is nobody's loss. */
inline refused()
{
#ifdef FAIL_REFUSED
	failed = true
#else
	if
	:: given_up || left
	:: else -> failed = true
	fi
#endif
}

inline hand_over(d)
{
	ask(d, ADOPT, false);
	if
	:: result == YES -> ask(d, EXPORT, false)
	:: else
	fi;
	if
	:: result == YES -> ask(d, ADOPTED, false)
	:: else
	fi;
	if
	:: result == YES -> linked[d] = true
	:: result == NO -> refused(); closed[d] = true
	:: else -> closed[d] = true
	fi
}

proctype router_monitor()
{
	byte result;
	if
	:: atomic { !given_up -> keeping = true };
		if
		:: !linked[0] && state[0] != NONE && !dead[0] -> hand_over(0)
		:: true
		fi;
		keeping = false
	:: given_up
	fi;
	if
	:: atomic { !given_up -> keeping = true };
		if
		:: !linked[1] && state[1] != NONE && !dead[1] -> hand_over(1)
		:: true
		fi;
		keeping = false
	:: given_up
	fi
}

inline tell(d)
{
	if
	:: linked[d] -> ask(d, LEAVE, true)
	:: else -> result = NONE
	fi
}

proctype departing()
{
	byte result;
#ifdef GIVE_UP_FIRST
	given_up = true;
#endif
	tell(0);
	if
	:: result == NONE -> left = true
	:: else
	fi;
	tell(1);
	given_up = true;
	!keeping;
	closed[0] = true;
	closed[1] = true;
	if
	:: linked[0] -> released[0] || dead[0]
	:: else
	fi;
	if
	:: linked[1] -> released[1] || dead[1]
	:: else
	fi;
	gone = true
}

#ifdef TAKE_LATE
#define TAKES(d) (state[d] != SERVES)
#else
#define TAKES(d) (state[d] == WAITS)
#endif

inline release(d)
{
#ifdef LET_GO_LATER
	skip
#else
	released[d] = true
#endif
}

/* The rank that it serves: the reaper ends its lanes. */
inline end_lanes(d)
{
	lanes[d] = false;
	ended[d] = true;
	released[d] = true
}

inline serve(d)
{
	if
	:: asked[d] == ADOPT ->
		attached[d] = attached[d] || TAKES(d);
		answer[d] = (TAKES(d) -> YES : NO)
	:: asked[d] == EXPORT -> mapped[d] = true; answer[d] = YES
	:: asked[d] == ADOPTED ->
		come[d] = come[d] || TAKES(d);
		answer[d] = (TAKES(d) -> YES : NO)
	:: asked[d] == LEAVE ->
		detached[d] = true;
		if
		:: state[d] == SERVES -> end_lanes(d)
		:: else -> release(d)
		fi;
		left = left || d == 0;
		answer[d] = YES
	:: else /* nobody waits for it any more */
	fi
}

inline close_connection(d)
{
	failed = failed || !HAS_LEFT(d);
	attached[d] = false;
	if
	:: state[d] == SERVES && lanes[d] -> end_lanes(d)
	:: state[d] != SERVES ->
#ifdef CLOSE_SILENTLY
		skip
#else
		release(d)
#endif
	:: else
	fi
}

proctype router(byte d)
{
	bool opens;
end:	do
	:: atomic { asked[d] != NONE && answer[d] == NONE && !dead[d] -> serve(d) }
	:: atomic { attached[d] && closed[d] && asked[d] == NONE && !dead[d] -> close_connection(d) }
	:: atomic { state[d] == WAITS && others[d] && (come[d] || left) && !dead[d] ->
		opens = come[d];
#ifdef OPEN_ALL
		opens = attached[d];
#endif
		state[d] = OPENS }
	/* the other thread */
	:: atomic { state[d] == OPENS && !dead[d] ->
		assert(!opens || come[d]);
		assert(opens == come[d]);
		lanes[d] = opens;
		state[d] = SERVES;
		if
#ifndef KEEP_DEPARTED
		:: HAS_LEFT(d) -> end_lanes(d)
#endif
		:: else
		fi }
	:: dead[d] -> break
	od
}

/* A successor dies at any time; the others come at any time. */
proctype fate(byte d)
{
	if
	:: others[d] = true
	:: true
	fi;
	if
	:: dead[d] = true
	:: true
	fi
}

#define CLEAN(d) (dead[d] || state[d] != SERVES || (!lanes[d] && (!mapped[d] || ended[d])))

proctype judge()
{
	timeout;
	assert(!failed);
	assert(gone);
	assert(CLEAN(0));
	assert(CLEAN(1))
}

/* Lives, and serves the rank; or has died, and the next waits for ranks. */
inline begin(d)
{
	if
	:: state[d] = SERVES; linked[d] = true; attached[d] = true; come[d] = true;
		lanes[d] = true; mapped[d] = true
	:: state[d] = WAITS
	fi
}

init {
	atomic {
		begin(0);
		begin(1);
		run router(0); run router(1); run fate(0); run fate(1); run router_monitor(); run departing();
		run judge()
	}
}
