/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks attach to the routers of two domains, any of which may die meanwhile, as may their successors:
 * rank-lib/attach/attach.c. A router makes an arena for the first that comes; a successor knows of none. Whether ranks
 * keep the arena of a router that has died, and hand it to the next, or give it up, and attach anew, all must decide
 * alike: by the word `fate` in it. Rank 0 keeps the arenas of all domains when all ranks have attached to all, and has
 * the routers made ready after that; a rank that finds a router dead gives its arena up, if it is not kept by then.
 * With READY, and with an arena that is handed over, a router gets those of all domains.
 *
 * Checked: nobody attaches to a router to which another hands over; both ranks, and the routers that are left, end with
 * the same arenas; all become ready.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DBY_COUNT      an arena is kept if all ranks had attached to it
 *   -DKEEP_EACH     rank 0 keeps an arena, has its router made ready, and goes on to the next
 *   -DHAND_OVER     a rank hands over an arena that is kept, though not all are
 *   -DGIVE_UP_LATE  a rank looks whether an arena is kept, and gives it up after that
 *   -DREADY_ONCE    a rank that hands over does not make a router ready: READY alone does
 */
#define DOMAINS 2
#define ARENAS 3 /* of a domain: one for each of its routers, at most */
#ifndef DEATHS
#define DEATHS 2
#endif
#define OPEN 0
#define KEPT 1
#define GIVEN_UP 2
#define AT(d, arena) ((d) * ARENAS + (arena))

/* The arenas. */
byte fate[DOMAINS * ARENAS], attached[DOMAINS * ARENAS];
bool ready[DOMAINS * ARENAS];

/* The routers: which one lives in a domain, whose arena it has + 1, the ranks that it has answered and not counted yet;
 * the ranks that have handed over; and the other domain's arena that it was given + 1. */
byte lives[DOMAINS], has[DOMAINS], uncounted[DOMAINS], come[DOMAINS], given[DOMAINS];
bool adopts[DOMAINS];

/* The ranks: their arenas, and the routers that they are connected to. */
byte arena[2 * DOMAINS], router[2 * DOMAINS];
bool done[2];
#define MY(what, d) what[me * DOMAINS + (d)]
#define MINE(d) AT(d, MY(arena, d))
#define LOST(d) (MY(router, d) != lives[d])
#define ALL_ATTACHED (attached[MINE(0)] == 2 && attached[MINE(1)] == 2)
#define ALL_READY (ready[MINE(0)] && ready[MINE(1)])
#define ALL_KEPT (fate[MINE(0)] == KEPT && fate[MINE(1)] == KEPT)

inline attach(d)
{
	atomic {
		assert(!adopts[d]);
		if
		:: has[d] == 0 -> has[d] = lives[d] + 1
		:: else
		fi;
		MY(arena, d) = has[d] - 1;
		MY(router, d) = lives[d];
		uncounted[d]++
	}
}

inline give(d)
{
	assert(given[d] == 0 || given[d] == MY(arena, 1 - d) + 1);
	given[d] = MY(arena, 1 - d) + 1
}

inline hand_over(d)
{
	atomic {
		assert(has[d] == 0 || (adopts[d] && has[d] == MY(arena, d) + 1));
		has[d] = MY(arena, d) + 1;
		adopts[d] = true;
		give(d);
		MY(router, d) = lives[d];
		come[d] = come[d] | (1 << me);
#ifndef READY_ONCE
		ready[MINE(d)] = ready[MINE(d)] || come[d] == 3
#endif
	}
}

/* The router of domain d has ended. */
inline go_over(d)
{
	decided = OPEN;
#ifdef BY_COUNT
	decided = (attached[MINE(d)] == 2 -> KEPT : GIVEN_UP);
#elif defined(GIVE_UP_LATE)
	decided = (fate[MINE(d)] == KEPT -> KEPT : GIVEN_UP);
	if
	:: decided == GIVEN_UP -> fate[MINE(d)] = GIVEN_UP
	:: else
	fi;
#else
	atomic {
		if
		:: fate[MINE(d)] == OPEN -> fate[MINE(d)] = GIVEN_UP
		:: else
		fi;
		decided = fate[MINE(d)]
	}
#endif
	if
	:: decided == GIVEN_UP -> attach(d)
#if defined(HAND_OVER) || defined(BY_COUNT)
	:: decided == KEPT -> hand_over(d)
#else
	:: decided == KEPT && ALL_KEPT -> hand_over(d)
	:: decided == KEPT && !ALL_KEPT /* some may yet be given up */
#endif
	fi;
	decided = 0
}
#if defined(HAND_OVER) || defined(BY_COUNT)
#define MAY_GO_OVER(d) LOST(d)
#else
#define MAY_GO_OVER(d) (LOST(d) && (fate[MINE(d)] != KEPT || ALL_KEPT))
#endif

inline keep(d)
{
	atomic {
		if
		:: fate[MINE(d)] == OPEN -> fate[MINE(d)] = KEPT
		:: else
		fi
	}
}

inline ask_for_ready(d)
{
	atomic {
		asked[d] = true;
		if
		:: !LOST(d) -> give(d); ready[MINE(d)] = true
		:: else
		fi
	}
}

proctype rank(byte me)
{
	byte decided;
	bool asked[DOMAINS];
	attach(0);
	attach(1);
	do
	:: ALL_ATTACHED && ALL_READY -> break
	:: MAY_GO_OVER(0) -> go_over(0)
	:: MAY_GO_OVER(1) -> go_over(1)
	:: me == 0 && ALL_ATTACHED && fate[MINE(0)] != GIVEN_UP && fate[MINE(1)] != GIVEN_UP &&
		!(asked[0] && asked[1]) ->
#ifdef KEEP_EACH
		keep(0);
		if
		:: fate[MINE(0)] == KEPT && !asked[0] -> ask_for_ready(0)
		:: else
		fi;
		keep(1);
		if
		:: fate[MINE(1)] == KEPT && !asked[1] -> ask_for_ready(1)
		:: else
		fi
#else
		keep(0);
		if
		:: fate[MINE(0)] == KEPT -> keep(1)
		:: else
		fi;
#ifdef BY_COUNT
		if
		:: true ->
#else
		if
		:: ALL_KEPT ->
#endif
			if
			:: !asked[0] -> ask_for_ready(0)
			:: else
			fi;
			if
			:: !asked[1] -> ask_for_ready(1)
			:: else
			fi
		:: else
		fi
#endif
	od;
	done[me] = true;
	/* the router monitor's, from now on */
end:	do
	:: LOST(0) -> go_over(0)
	:: LOST(1) -> go_over(1)
	od
}

proctype routers()
{
end:	do
	:: atomic { uncounted[0] > 0 -> uncounted[0]--; attached[AT(0, has[0] - 1)]++ }
	:: atomic { uncounted[1] > 0 -> uncounted[1]--; attached[AT(1, has[1] - 1)]++ }
	od
}

proctype death()
{
	byte deaths, d;
	do
	:: deaths < DEATHS ->
		select(d : 0 .. 1);
		d_step {
			deaths++;
			lives[d]++;
			has[d] = 0;
			uncounted[d] = 0;
			come[d] = 0;
			given[d] = 0;
			adopts[d] = false
		}
	:: break
	od
}

proctype judge()
{
	done[0] && done[1];
	assert(arena[0] == arena[DOMAINS] && arena[1] == arena[DOMAINS + 1]);
	assert(given[0] == 0 || given[0] == arena[1] + 1);
	assert(given[1] == 0 || given[1] == arena[0] + 1)
}

init {
	atomic { run rank(0); run rank(1); run routers(); run death(); run judge() }
}
