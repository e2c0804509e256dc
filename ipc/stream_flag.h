/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Words: how a stream of a GPU and whoever moves its data speak. The stream writes 1 when it reaches a call and waits
 * for 0, which is stored when the call is over. Calls of one stream share a word, as the stream itself puts them in
 * order; a captured call has one of its own, which each replay writes and waits for again. A rank's process has one
 * block of them for all its communicators, makes it known to its GPUs once, and hands it to its routers.
 *
 * A call of a stream carries its turn on the word: how many calls were made on it before. It has started once `done`
 * has come to its turn and the word is 1. Its end stores a mark with its turn in the word, for which no stream waits,
 * then done + 1, then word = 0: who sees the new `done` no longer sees the old 1, and a router that takes another's
 * place tells from the two what that one had come to, whichever of the three it had stored last: the 1 of the next call
 * comes behind the 0. docs/models/words.pml and takeover.pml check all of this.
 *
 * Each replay of a captured call is a turn of its word, as if it had been made then.
 */
#ifndef FERRY_IPC_STREAM_FLAG_H
#define FERRY_IPC_STREAM_FLAG_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_STREAM_FLAGS 32768u /* in a process: streams that wait for calls, and captured calls */

/* A cache line. */
struct ferry_stream_flag {
	/* GPU: 1; who moves the data of the call that is at it: ferry_stream_flag_mark, then 0; release */
	_Alignas(64) _Atomic uint32_t flag;
	_Atomic uint32_t done;      /* calls of its stream that are over; who moves the data, release, between those */
	/* captured: 1 by the rank's process once no graph names it; 2 by who moves the data: it may be used again */
	_Atomic uint32_t forgotten;
	uint32_t reserved;
	_Atomic uint64_t scalar;    /* premulsum with a factor in device memory: GPU, before word = 1 */
	/*
	 * Messages that are numbered as streams come to them, by direction: bit r: all with rank r that the call has
	 * are over. That direction's lane of who moves the data, release, before another call's with that rank begin;
	 * 0 between the mark and `done`.
	 */
	_Atomic uint64_t passed[2];
};

_Static_assert(sizeof(struct ferry_stream_flag) == 64, "no two words share a line");

/** Whether the stream has reached the call of that turn. Acquires what the stream wrote before. */
static inline bool ferry_stream_flag_reached(const struct ferry_stream_flag *flag, uint32_t turn)
{
	return atomic_load_explicit(&flag->done, memory_order_acquire) == turn &&
	       atomic_load_explicit(&flag->flag, memory_order_acquire) == 1;
}

/** What the word holds of a call that is about to be over: neither 0 nor 1. */
static inline uint32_t ferry_stream_flag_mark(uint32_t turn)
{
	return turn << 2 | 2;
}

/** The call of that turn has all its data: before anybody is told that it is over. */
static inline void ferry_stream_flag_end(struct ferry_stream_flag *flag, uint32_t turn)
{
	atomic_store_explicit(&flag->flag, ferry_stream_flag_mark(turn), memory_order_release);
}

/** The call of that turn is over: its stream goes on. Where it had been stored in part, the rest. */
static inline void ferry_stream_flag_pass(struct ferry_stream_flag *flag, uint32_t turn)
{
	ferry_stream_flag_end(flag, turn);
	atomic_store_explicit(&flag->passed[0], 0, memory_order_release);
	atomic_store_explicit(&flag->passed[1], 0, memory_order_release);
	atomic_store_explicit(&flag->done, turn + 1, memory_order_release);
	atomic_store_explicit(&flag->flag, 0, memory_order_release);
}

#endif
