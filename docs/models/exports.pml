/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One export of a rank: an allocation that its router has mapped, under an index, in a generation. The rank's next
 * submission names {index, generation}; the router forgets a mapping that nobody uses, at any time. The export cell in
 * the rank's line of the arena: `used`, by the rank: number of its last submission that names the export; `mapped`, by
 * the router: the generation, 0 where it has none. Before the rank names it: store used, fence, look at mapped, export
 * once more (a message, which is answered) unless that is the generation. Before the router forgets it: store mapped =
 * 0, fence, look at used: as one sees the other, either the rank exports again or the router takes back.
 *
 * Calls end in any order. The router keeps a mapping while `users` calls are under way on it, or while `used` is a
 * submission that no lane has taken. A lane takes one, and the router decides to forget, under the table's lock;
 * mapping and unmapping take place outside of it, in one thread.
 *
 * An allocation that no call uses may be freed; another comes to its address, in the next generation. A rank may also
 * lie: submit what it likes, without a look. Then its job ends, and nothing else.
 *
 * As in eventcount.pml a store goes into the core's buffer first, and `memory` moves it on. Checked: no lane copies
 * through what is unmapped, or of another allocation than the call's; an honest rank's job does not fail; what nobody
 * uses is forgotten in the end; nobody waits for ever.
 *
 * Each of these breaks it, as scripts/check-models shows:
 *   -DNO_RANK_FENCE     the rank looks at `mapped` before its `used` is visible
 *   -DNO_ROUTER_FENCE   the router looks at `used` before its mapped = 0 is visible
 *   -DLATE_USED         the rank stores `used` once it has looked, or exported
 *   -DNO_TAKE_BACK      the router forgets what no call under way uses, whatever `used` is
 *   -DLAST_ENDED        the router keeps a mapping until the submission in `used` has ended, and looks at no others
 *   -DNO_GENERATION     the rank names what is mapped under its index
 *   -DMAP_ANEW          the router maps anew what is exported again and mapped still
 *   -DFORGET_ELSEWHERE  another thread than the one that maps forgets
 *   -DNO_LOCK           a lane takes a submission while the router decides
 *   -DLATE_END          a call's stream goes on before the call is none of the export's users any more
 *   -DNO_PUT_BACK       a rank that makes no submission after all leaves its number in `used`
 */
#ifndef CALLS
#define CALLS 3
#endif

byte used, mapped;                   /* the cell */
byte used_buffered, mapped_buffered; /* value + 1; 0: the buffer is empty */
byte request;                        /* the message: a generation to export; 0 once it is answered */

byte named[CALLS + 1];               /* submissions: the generation named */
byte meant[CALLS + 1];               /* and which allocation is meant, numbered as its generation */
byte submitted, over;                /* the ring's tail; calls whose streams went on */
bool liar, rank_done;

byte table;                          /* the router's: generation that lanes may use under the index */
byte live;                           /* generation that is mapped in fact */
byte taken, users;
bool ended[CALLS + 1];
bool locked, failed;

#define FLUSHED(buffer) (buffer == 0)

proctype memory()
{
end:	do
	:: atomic { used_buffered != 0 -> used = used_buffered - 1; used_buffered = 0 }
	:: atomic { mapped_buffered != 0 -> mapped = mapped_buffered - 1; mapped_buffered = 0 }
	od
}

/* Stores of one core stay in order, so there is one to a buffer. */
inline store_used(value)
{
	atomic { FLUSHED(used_buffered) -> used_buffered = value + 1 }
}

inline store_mapped(value)
{
	atomic { FLUSHED(mapped_buffered) -> mapped_buffered = value + 1 }
}

inline make_sure()
{
	if
#ifdef NO_GENERATION
	:: atomic { mapped != 0 -> generation = mapped }
	:: mapped == 0 ->
#else
	:: mapped == generation
	:: mapped != generation ->
#endif
		atomic { FLUSHED(used_buffered) -> request = generation } /* a system call */
		(request == 0)
	fi
}

proctype rank()
{
	byte call = 1, before = 0, allocation = 1, generation;
	do
	:: call > CALLS || failed -> break
	:: call <= CALLS ->
		generation = allocation;
		if
		:: liar ->
			if
			:: skip
			:: store_used(call)
			:: atomic { request = generation } (request == 0 || failed)
			fi
		:: !liar ->
#ifndef LATE_USED
			store_used(call);
#ifndef NO_RANK_FENCE
			FLUSHED(used_buffered);
#endif
#endif
			make_sure();
#ifdef LATE_USED
			store_used(call);
			FLUSHED(used_buffered);
#endif
		fi;
		if
		:: atomic { FLUSHED(used_buffered) -> /* stores stay in order */
				named[call] = generation;
				meant[call] = allocation;
				submitted = call;
				before = call;
				call++ }
		:: break /* refused after all, the last thing that this rank wanted */
		fi;
		if
		:: skip
		:: atomic { over == submitted || liar -> allocation++ } /* freed, and another put there */
		fi
	od;
#ifndef NO_PUT_BACK
	if
	:: !liar -> store_used(before)
	:: liar
	fi;
#endif
	FLUSHED(used_buffered);
	if
	:: liar -> failed = true /* it has left */
	:: !liar
	fi;
	rank_done = true
}

#ifdef NO_LOCK
#define UNLOCKED true
#else
#define UNLOCKED !locked
#endif

proctype lane()
{
	byte call;
end:	do
	:: atomic { !failed && taken < submitted && UNLOCKED -> call = taken + 1 }
		if
		:: atomic { taken + 1 == call && UNLOCKED && named[call] == table -> taken++; users++ }
			assert(live == named[call] && (liar || live == meant[call]));
			assert(live == named[call]); /* the end of the copy */
#ifdef LATE_END
			over++;
			atomic { ended[call] = true; users-- }
#else
			atomic { ended[call] = true; users-- }
			over++
#endif
		:: atomic { taken + 1 == call && UNLOCKED && named[call] != table -> assert(liar); failed = true }
		:: taken >= call /* the other lane was quicker */
		fi;
		call = 0
	od
}

#ifdef LAST_ENDED
#define IN_USE (used != 0 && !ended[used] && !failed)
#elif defined(NO_TAKE_BACK)
#define IN_USE (users > 0)
#else
#define IN_USE (users > 0 || (used > taken && !failed))
#endif

inline lock()
{
	atomic { !locked -> locked = true }
}

/* The rank exports `request`: the index's first, or another allocation, or the same once more. */
inline export()
{
	lock();
	if
#ifdef MAP_ANEW
	:: false
#else
	:: table == request -> locked = false
#endif
	:: users > 0 && table != request -> assert(liar); failed = true; locked = false
	:: else ->
		table = 0;
		locked = false;
		live = 0;
		live = request;
		table = request
	fi;
	store_mapped(request);
	FLUSHED(mapped_buffered);
	request = 0
}

/* Worth it only where nobody uses it, so that a mapping that stays shows as a deadlock. */
#define FORGETTABLE (table != 0 && !IN_USE)

inline forget()
{
	lock();
	store_mapped(0);
#ifndef NO_ROUTER_FENCE
	FLUSHED(mapped_buffered);
#endif
	if
	:: !IN_USE -> table = 0; locked = false; live = 0
	:: IN_USE -> store_mapped(table); locked = false
	fi
}

proctype connection()
{
end:	do
	:: request != 0 && !failed -> export()
#ifndef FORGET_ELSEWHERE
	:: FORGETTABLE -> forget()
#endif
	od
}

#ifdef FORGET_ELSEWHERE
proctype forgetter()
{
end:	do
	:: FORGETTABLE -> forget()
	od
}
#endif

init {
	atomic {
		if
		:: liar = true
		:: liar = false
		fi;
		run memory(); run rank(); run lane(); run lane(); run connection();
#ifdef FORGET_ELSEWHERE
		run forgetter()
#endif
	}
	rank_done && (failed || taken == submitted) && live == 0
}
