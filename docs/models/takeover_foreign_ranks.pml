/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A router that pushes into memory of a rank of another domain, its foreign rank, dies at any step, and a successor
 * goes on, which may die as well. The foreign rank's own router lives: so its calls end, and its memory is freed, while
 * the successor waits for others to come. The foreign rank names one buffer in call after call: `used`, then whether it
 * is mapped, in the cell of the router that pushes (exports.pml has the fences and the table's lock). It holds what it
 * has exported for the next router, until its calls are over (rank-lib/failover/journal.h). Its router monitor hands
 * that over to the successor, and then the link leads there; a foreign rank with something to export waits for that.
 * The successor keeps what it is given until all ranks have come, and maps it then (router/gpu/imports.h).
 *
 * Memory is freed by a program that asks nobody: no call names it any more, so no router need have it, and none can map
 * it from then on. Other memory takes the next generation. takeover_puts.pml has the copies themselves.
 *
 * Checked: each push finds where it goes to, and that is there from its begin to its end; no export fails that a call
 * needs; every call comes to its end.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNOTHING_GIVEN  the foreign rank says that it is there, and not what it has exported
 *   -DKEEP_CELLS     the successor leaves in the cells what the router before it had mapped
 *   -DGIVE_FIRST     the router monitor looks what calls name before the successor has wiped the cells
 *   -DHOLD_LAST      the foreign rank looks whether a buffer is mapped, holds it, and does not look again
 *   -DOPEN_LATE      a foreign rank may export when all ranks have come, as where a job begins
 *   -DPUSH_FIRST     lanes push before what was kept is mapped
 *   -DALL_NEEDED     what cannot be mapped ends the job
 *   -DUSED_NEEDED    it does so where `used` tells of a call that is not over
 *   -DALL_TARGETS    the successor looks where pushes of a call go to that are over, too
 */
#define CALLS 3
#define ROUTERS 3

#define NONE 0
#define ADOPT 1
#define EXPORT 2
#define ADOPTED 3

#define LEAVING 255 /* of a cell */

/* The arena: the foreign rank's cell at the router that pushes, and its own calls. */
byte used, mapped;
byte named[CALLS + 1], submitted, over;
byte put; /* calls whose pushes have been published */

/* The foreign rank's process. */
byte memory = 1;      /* the generation that is there */
byte held;            /* what is in the list; */
bool has, locked;
byte linked = 1;      /* to that router; 0: its connection has closed */

/* What is asked, of which router: by one thread of the foreign rank at a time. */
byte asked, subject, to;

/* Routers, from 1. */
bool killed[ROUTERS + 1], exited[ROUTERS + 1];
byte serving;

#define LIVES(e) (!killed[e])

/* True in `answered`: that router has done it. */
inline await_answer()
{
	if
	:: atomic { asked == NONE -> answered = true }
	:: atomic { asked != NONE && killed[to] -> asked = NONE; answered = false }
	fi
}

/* The router monitor asks when the link leads nowhere; a call that names a buffer asks by the link. */
inline ask(what, generation)
{
	atomic { asked = what; subject = generation; to = next }
	await_answer()
}

/* ---- the foreign rank ---- */

inline hold()
{
	atomic { !locked -> held = generation; has = true }
}

inline export()
{
	atomic { linked != 0 && asked == NONE -> asked = EXPORT; subject = generation; to = linked }
	await_answer();
	answered = false
}

proctype rank()
{
	byte call = 1, generation;
	bool answered, again;
	do
	:: call > CALLS -> break
	:: else ->
		if
		:: generation != memory -> generation = memory; hold() /* with the export to its own router */
		:: else
		fi;
		used = call;
		again = false;
#ifdef HOLD_LAST
		do
		:: mapped == generation -> break
		:: mapped != generation -> export()
		od;
		if
		:: !has -> hold()
		:: has
		fi;
#else
		do
		:: mapped == generation ->
			if
			:: has || again -> break
			:: else -> hold(); again = true
			fi
		:: mapped != generation -> export()
		od;
#endif
		atomic { named[call] = generation; submitted = call; call++ }
		if
		:: skip
		:: over == submitted -> memory++; atomic { !locked -> held = 0; has = false }
		fi
	od
}

/* The own router of the foreign rank, which lives. */
proctype own()
{
end:	do
	:: atomic { over < put -> over++ }
	od
}

#ifdef NOTHING_GIVEN
#define WANTED false
#else
#define WANTED (held != 0 && used > over)
#endif

/* Locked while it gives: what is held meanwhile comes after it. */
inline give()
{
	atomic { !locked -> locked = true }
#ifndef GIVE_FIRST
	wanted = WANTED;
#endif
	if
	:: wanted -> ask(EXPORT, held)
	:: else
	fi;
	locked = false
}

proctype router_monitor()
{
	byte next;
	bool answered, wanted;
end:	do
	:: atomic { linked != 0 && killed[linked] && asked == NONE -> linked = 0 }
	:: atomic { linked == 0 && serving != 0 && LIVES(serving) -> next = serving }
		answered = false;
#ifdef GIVE_FIRST
		wanted = WANTED;
#endif
		ask(ADOPT, 0);
		if
		:: answered -> give()
		:: else
		fi;
		if
		:: answered -> ask(ADOPTED, 0)
		:: else
		fi;
		if
		:: answered -> linked = next
		:: else
		fi;
		d_step { next = 0; answered = false; wanted = false }
	:: atomic { !locked && held != 0 && used <= over -> held = 0; has = false }
	od
}

/* ---- the router that pushes ---- */

#define ASKED(what) (asked == what && to == me)

#ifdef KEEP_CELLS
#define WIPE
#else
#define WIPE mapped = 0
#endif

#ifdef OPEN_LATE
#define MAY_EXPORT opened
#else
#define MAY_EXPORT true
#endif

/* A router that waits for others maps nothing yet. */
#define TAKE_EXPORT atomic { ASKED(EXPORT) -> \
	assert(MAY_EXPORT); \
	if \
	:: lands -> assert(subject == memory); table = subject \
	:: else -> later = subject \
	fi; \
	mapped = subject; asked = NONE }

/* What was kept, when all have come. */
#ifdef ALL_NEEDED
#define IS_NEEDED true
#elif defined(USED_NEEDED)
#define IS_NEEDED (used > over)
#else
#define IS_NEEDED false
#endif

#ifdef ALL_TARGETS
#define LOOKS assert(put == 0 || table == named[put])
#else
#define LOOKS skip
#endif

#ifdef PUSH_FIRST
#define MAY_PUSH come
#else
#define MAY_PUSH opened
#endif

proctype router(byte me)
{
	byte table, later, call;
	bool come, opened, lands;
end_unused:
	atomic { serving == me - 1 && (me == 1 || exited[me - 1]) ->
		serving = me; come = me == 1; opened = me == 1; lands = me == 1 }
	{
end:		do
		:: atomic { ASKED(ADOPT) -> WIPE; asked = NONE }
		:: TAKE_EXPORT
		:: atomic { ASKED(ADOPTED) -> come = true; asked = NONE }
		/* and so have the others, at some time */
		:: atomic { come && !lands && later == 0 -> lands = true }
		:: atomic { come && !lands && later == memory -> table = later; later = 0; lands = true }
		:: atomic { come && !lands && later != 0 && later != memory -> assert(!IS_NEEDED);
			later = 0; mapped = 0 }
		:: atomic { lands && !opened -> LOOKS; opened = true }
		/* a push, from its begin to its end */
		:: atomic { MAY_PUSH && call == 0 && put < submitted -> call = put + 1; assert(table == named[call]);
			assert(memory == table) }
		:: atomic { call != 0 -> assert(memory == named[call] && over < call); put = call; call = 0 }
		/* for being idle */
		:: atomic { lands && table != 0 && call == 0 && mapped == table && used <= over -> mapped = LEAVING }
			if
			:: atomic { used <= over -> table = 0; mapped = 0 }
			:: atomic { used > over -> mapped = table }
			fi
		od
	} unless { killed[me] }
	atomic { table = 0; later = 0; call = 0; come = false; opened = false; lands = false;
		exited[me] = true }
}

proctype death(byte e)
{
	if
	:: atomic { serving >= e -> killed[e] = true }
	:: true /* it lives on; nobody succeeds it */
	fi
}

init {
	atomic {
		run router(1); run router(2); run router(3); run death(1); run death(2);
		run router_monitor(); run own(); run rank()
	}
}
