/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that must be alone in the staging (FERRY_PLAN_ALONE, ipc/plan.h) among others that need not be: whichever they
 * are, nobody writes what another call's reader still wants. An alone call has parity 0's staging even in parity 1, so
 * it begins when the call before it is over everywhere, and the call behind it begins when it is:
 * router/engine/order.c, ferry_order_may_begin. Two ranks send to each other and to a router; streams reach the calls
 * of the two parities in any order, or at rank 1 all calls in one stream. A rank waits for the router by the last call
 * that it has submitted in a parity, unless that is a later one.
 *
 * Where rank 0 gives the numbers (call_names.pml), it alone waits, before it tells the number.
 *
 * Bytes move in two steps, as in parity_reuse.pml, which has the rest. Each of these breaks it, as scripts/check-models
 * shows:
 *   -DNO_WAIT_BEFORE  an alone call begins beside the call before it
 *   -DNO_WAIT_BEHIND  a call that need not be alone begins beside an alone one before it
 *   -DNO_PARITY_GATE  a call does not wait for the one before it in its parity
 *   -DNAME_EARLY      rank 0 tells the number of a call before it has waited
 *   -DWAIT_FOR_LATER  a rank waits for the router by the last call in the parity, though it be later than the call in
 *                     question
 */
#ifndef CALLS
#define CALLS 5
#endif
#define TORN 255
#define AT(rank, which) ((rank) * 2 + (which))

bool alone[CALLS + 2];
bool named;             /* rank 0 gives the numbers as its streams reach the calls */
byte told;              /* the last number that it has given */
bool serial;            /* rank 1 has all calls in one stream */
byte submitted[4];      /* rank and parity */
byte sent[4];           /* rank and staging: what lies there */
byte there[4];          /* rank and parity: the counter's tag */
byte finished[4];       /* rank and parity */
byte router_finished[2]; /* parity */

#ifdef WAIT_FOR_LATER
#define LATER(call) false
#else
#define LATER(call) (submitted[AT(rank, (call) % 2)] > (call))
#endif
#define ROUTER_OVER(call) (LATER(call) || router_finished[(call) % 2] >= submitted[AT(rank, (call) % 2)])
#define OVER(call) (finished[AT(0, (call) % 2)] >= call && finished[AT(1, (call) % 2)] >= call && ROUTER_OVER(call))
#define REACHED(call) (!serial || rank == 0 || (call) == 1 || finished[AT(rank, ((call) - 1) % 2)] >= (call) - 1)
#ifdef NO_PARITY_GATE
#define PARITY_FREE(call) true
#else
#define PARITY_FREE(call) ((call) <= 2 || OVER((call) - 2))
#endif
#ifdef NO_WAIT_BEFORE
#define BEFORE(call) false
#else
#define BEFORE(call) alone[call]
#endif
#ifdef NO_WAIT_BEHIND
#define BEHIND(call) false
#else
#define BEHIND(call) (alone[(call) - 1] && !alone[call])
#endif
#define MAY_BEGIN(call) (PARITY_FREE(call) && ((call) == 1 || !(BEFORE(call) || BEHIND(call)) || OVER((call) - 1)))

proctype lane(byte rank, parity)
{
	byte call = (parity == 0 -> 2 : 1), staging;
	do
	:: call > CALLS -> break
	:: else ->
		if
		:: named && rank == 0 ->
#ifdef NAME_EARLY
			atomic { told == call - 1 -> told = call };
			MAY_BEGIN(call)
#else
			atomic { told == call - 1 && MAY_BEGIN(call) -> told = call }
#endif
		:: named && rank != 0 -> told >= call && PARITY_FREE(call)
		:: !named -> REACHED(call) && MAY_BEGIN(call)
		fi;
		submitted[AT(rank, parity)] = call;
		staging = (alone[call] -> 0 : parity);
		sent[AT(rank, staging)] = TORN;
		sent[AT(rank, staging)] = call;
		there[AT(rank, parity)] = call;
		there[AT(1 - rank, parity)] == call;
		assert(sent[AT(1 - rank, staging)] == call);
		router_finished[parity] >= call;
		finished[AT(rank, parity)] = call;
		call = call + 2
	od
}

proctype router(byte parity)
{
	byte call = (parity == 0 -> 2 : 1), staging;
	do
	:: call > CALLS -> break
	:: else ->
		there[AT(0, parity)] == call && there[AT(1, parity)] == call;
		staging = (alone[call] -> 0 : parity);
		assert(sent[AT(0, staging)] == call);
		assert(sent[AT(1, staging)] == call);
		router_finished[parity] = call;
		call = call + 2
	od
}

init {
	byte i = 1;
	do
	:: i <= CALLS ->
		if
		:: alone[i] = true
		:: alone[i] = false
		fi;
		i++
	:: else -> break
	od;
	if
	:: named = true
	:: named = false
	:: serial = true
	fi;
	atomic {
		run lane(0, 0);
		run lane(0, 1);
		run lane(1, 0);
		run lane(1, 1);
		run router(0);
		run router(1)
	}
}
