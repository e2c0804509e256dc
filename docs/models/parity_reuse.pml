/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One parity of an arena (ipc/arena.h) through several calls: nobody reads a byte of another call, and no call waits
 * for ever. Parities share nothing, so one parity's calls n, n + PARITIES, ... are numbered 1, 2, ... here. Each rank
 * sends its part up, the router that has work reduces the parts, each rank takes the result down: slices.c, parts.c.
 *
 * Nothing is ever reset. A counter carries the call's number beside the slices, so what an earlier call left reads as
 * "nothing yet"; a rank may write again once every rank and every router with work have finished the call before. A
 * router without work in a call is not waited for: it may look at the descriptors at any time, while ranks write the
 * next ones.
 *
 * Bytes move in two steps, so an overlap of a reader and a writer is seen. Each of these breaks it, as
 * scripts/check-models shows:
 *   -DNO_WAIT_FOR_RANKS   a rank starts call n when the router has finished call n-1, though other ranks have not
 *   -DNO_WAIT_FOR_ROUTER  a rank starts call n when the ranks have finished call n-1
 *   -DNO_TAG              a counter is not tied to its call
 *   -DNO_SECOND_LOOK      a router takes the descriptors that it copied without looking whether they changed meanwhile
 *   -DNO_INVALIDATION     a rank writes a descriptor's fields while its number is still that of the call before
 *   -DLATE_AGREEMENT      a rank compares the other ranks' descriptors only after it has ended the call
 */
#ifndef CALLS
#define CALLS 3
#endif
#define RANKS 2
#define TORN 255 /* bytes that are being written */

byte descriptor_seq[RANKS];  /* released last */
byte descriptor_body[RANKS]; /* what the call is: its number stands for it */
byte sent[RANKS];            /* staging that rank r writes */
byte result;                 /* staging that the router writes */
byte sent_counter[RANKS];    /* the tag; a set tag means that the one slice is there */
byte result_counter;
byte halves[RANKS];          /* lanes of the rank that have ended this call */
byte finished[RANKS];        /* last call that the rank has finished */
byte router_finished;

#ifdef NO_TAG
#define THERE(counter, call) (counter != 0)
#else
#define THERE(counter, call) (counter == call)
#endif
#ifdef NO_WAIT_FOR_RANKS
#define RANKS_DONE(call) true
#else
#define RANKS_DONE(call) (finished[0] >= call && finished[1] >= call)
#endif
#ifdef NO_WAIT_FOR_ROUTER
#define ROUTER_DONE(call) true
#else
#define ROUTER_DONE(call) (router_finished >= call)
#endif
#define SUBMITTED(call) (descriptor_seq[0] == call && descriptor_seq[1] == call)

inline end_half(me, call)
{
	atomic {
		halves[me]++;
		if
		:: halves[me] == 2 -> halves[me] = 0; finished[me] = call
		:: else
		fi
	}
}

proctype up_lane(byte me)
{
	byte call = 1;
	do
	:: call > CALLS -> break
	:: else ->
		finished[me] == call - 1 && RANKS_DONE(call - 1) && ROUTER_DONE(call - 1); /* bank_free */
#ifndef NO_INVALIDATION
		descriptor_seq[me] = 0;
#endif
		descriptor_body[me] = call;
		descriptor_seq[me] = call;
		sent[me] = TORN;
		sent[me] = call;
		sent_counter[me] = call;
#ifdef LATE_AGREEMENT
		end_half(me, call);
#endif
		SUBMITTED(call);
		assert(descriptor_body[1 - me] == call);
#ifndef LATE_AGREEMENT
		end_half(me, call);
#endif
		call++
	od
}

proctype down_lane(byte me)
{
	byte call = 1;
	do
	:: call > CALLS -> break
	:: else ->
		THERE(result_counter, call); /* no look at the parity: the tag alone protects it */
		assert(result == call);
		assert(result == call); /* the end of the copy */
		end_half(me, call);
		call++
	od
}

/* The router with work. `last` is the last call that it has seen. */
proctype router()
{
	byte last = 0, call;
	do
	:: last == CALLS -> break
	:: else ->
		call = last + 1;
		SUBMITTED(call);
		assert(descriptor_body[0] == call && descriptor_body[1] == call);
		result = TORN;
		THERE(sent_counter[0], call);
		assert(sent[0] == call);
		assert(sent[0] == call);
		THERE(sent_counter[1], call);
		assert(sent[1] == call);
		assert(sent[1] == call);
		result = call;
		result_counter = call;
		assert(sent[0] == call); /* another REDUCE of the program, into a chunk that no rank takes down */
		router_finished = call;
		last = call
	od
}

/* A router without work here, awake for another job or parity: it copies what it finds and acts on it. */
proctype bystander()
{
	byte seq, first, second;
end:	do
	:: atomic { descriptor_seq[0] != 0 -> seq = descriptor_seq[0] }
		if
		:: descriptor_seq[1] == seq ->
			first = descriptor_body[0];
			second = descriptor_body[1];
#ifdef NO_SECOND_LOOK
			assert(first == second) /* else it would fail the job for a disagreement that there is not */
#else
			if
			:: SUBMITTED(seq) -> assert(first == second && first == seq)
			:: else /* the call went on, or ended, without this router */
			fi
#endif
		:: else
		fi
	od
}

init {
	atomic {
		run up_lane(0); run up_lane(1); run down_lane(0); run down_lane(1); run router(); run bystander()
	}
}
