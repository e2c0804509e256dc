/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Stream flags: how a stream of a GPU and the process that moves its data synchronize. The stream writes 1 when it
 * reaches a call and waits for 0, which is stored when the call is over. Calls of one stream share a flag, as the
 * stream itself puts them in order. A captured call has a flag of its own, which each replay writes and waits for
 * again. A flag whose calls are all over may go to another stream or captured call; its turns count on. A rank's
 * process has one block of flags for all its communicators, registers it with its GPUs once, and hands it to its
 * routers.
 *
 * A call of a stream carries its turn on the flag: how many calls were made on it before. The call has started once
 * `done` has come to its turn and the flag is 1. Its end stores three things: a mark with its turn in the flag, for
 * which no stream waits; then done + 1; then flag = 0. A thread that sees the new `done` no longer sees the old 1. A
 * router that takes another's place finds from the two how far the old one had come, whichever of the three it stored
 * last: the 1 of the next call comes after the 0. docs/models/stream_flags.pml and takeover.pml check this for one
 * stream.
 *
 * Each replay of a captured call is a turn of its flag, as if the call had been made then.
 */
#ifndef FERRY_IPC_STREAM_FLAG_H
#define FERRY_IPC_STREAM_FLAG_H

#include "ipc/ferry_types.h"

#include <stdatomic.h>
#include <stdbool.h>

#define FERRY_STREAM_FLAGS 32768u /* in a process: streams that wait for calls, and captured calls */

/* A cache line. */
struct ferry_stream_flag {
	/* GPU: 1; the process that moves the call's data: ferry_stream_flag_mark, then 0; release */
	_Alignas(64) _Atomic uint32_t flag;
	/* calls of it that are over; the process that moves the data, release, between the mark and 0 */
	_Atomic uint32_t done;
	/*
	 * of a captured call: the rank's process stores 1 once no graph has the call any more; the process that moves
	 * the data then stores 2: the flag may be used again
	 */
	_Atomic uint32_t forgotten;
	uint32_t reserved;
	_Atomic uint64_t scalar;    /* premulsum with a factor in device memory: GPU, before flag = 1 */
	/*
	 * For messages that are numbered as streams come to them, by direction. Bit r: all messages of the call with
	 * rank r are over. Stored by the lane of that direction, release, before the messages of another call with that
	 * rank begin; 0 between the mark and `done`. Of a mailbox: as `waits`, of messages.
	 */
	_Atomic uint64_t passed[2];
	_Atomic uint64_t waits[2]; /* of a mailbox: what its kernels wait for (rank-lib/kernels/kernel_call.h) */
};

_Static_assert(sizeof(struct ferry_stream_flag) == 64, "no two words share a line");

/** Whether the stream has reached the call of that turn. Acquires what the stream wrote before. */
static inline bool ferry_stream_flag_reached(const struct ferry_stream_flag *flag, uint32_t turn)
{
	return atomic_load_explicit(&flag->done, memory_order_acquire) == turn &&
	       atomic_load_explicit(&flag->flag, memory_order_acquire) == 1;
}

/** The mark of the call of that turn, which is neither 0 nor 1. */
static inline uint32_t ferry_stream_flag_mark(uint32_t turn)
{
	return turn << 2 | 2;
}

/**
 * Stores the mark: the call of that turn has all its data. Called before any stream or rank learns that the call is
 * over.
 */
static inline void ferry_stream_flag_end(struct ferry_stream_flag *flag, uint32_t turn)
{
	atomic_store_explicit(&flag->flag, ferry_stream_flag_mark(turn), memory_order_release);
}

/** Ends the call of that turn: its stream goes on. Also where a router that died has stored a part of the end. */
static inline void ferry_stream_flag_pass(struct ferry_stream_flag *flag, uint32_t turn)
{
	ferry_stream_flag_end(flag, turn);
	atomic_store_explicit(&flag->passed[0], 0, memory_order_release);
	atomic_store_explicit(&flag->passed[1], 0, memory_order_release);
	atomic_store_explicit(&flag->done, turn + 1, memory_order_release);
	atomic_store_explicit(&flag->flag, 0, memory_order_release);
}

#endif
