/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The stream flags of this process (ipc/stream_flag.h): one block for all communicators, registered with the GPUs once
 * and kept until the process ends, as a stream may still read a flag after the last communicator has gone. A
 * communicator takes one flag for each stream that it is called on, and one for each captured call. A flag that nobody
 * needs any more goes to another stream or captured call, of any communicator; its turns count on.
 */
#ifndef FERRY_RANK_LIB_CALL_STREAM_FLAGS_H
#define FERRY_RANK_LIB_CALL_STREAM_FLAGS_H

#include "rank-lib/device/device.h"

#include <pthread.h>

/* A communicator's use of a flag. Under `lock`, but for the flag's `forgotten`. */
struct ferry_stream_flag_use {
	uint64_t stream; /* its id; captured: 0 */
	uint32_t index;
	uint32_t made;   /* the next call's turn; captured: 0 */
	bool captured;
	/* must not be reused yet. captured: a router may still have it; else its stream does not yet wait for it */
	bool held;
	bool lost;       /* of a communicator that has gone: must not be reused */
};

struct ferry_stream_flag_table {
	pthread_mutex_t lock;
	struct ferry_stream_flag_use *uses;
	uint32_t count, capacity;
	bool released; /* a router that hangs may still write late, so no flag goes to another use */
	uint32_t full; /* at this count, those that nobody needs are dropped before another one is added */
};

/**
 * Makes the block once and registers it with the device. *descriptor: of its shared memory, for routers; it stays open.
 * Errors: ferrySystemError, the device's.
 */
ferryResult_t ferry_stream_flags_open(struct ferry_device *device, int *descriptor);

struct ferry_stream_flag *ferry_stream_flag_at(uint32_t index);

/** Takes a flag for another use than calls; its `flag` is 0. Error: ferryInvalidUsage, if all are taken. */
ferryResult_t ferry_stream_flag_take(uint32_t *index);
/** Nothing reads or writes it any more. */
void ferry_stream_flag_give_back(uint32_t index);

void ferry_stream_flag_table_init(struct ferry_stream_flag_table *table);

/** Returns the stream's flag and the turn of the call that is made. Errors: ferryInvalidUsage, ferrySystemError. */
ferryResult_t ferry_stream_flag_for_stream(struct ferry_stream_flag_table *table, uint64_t stream, uint32_t *index,
                                           uint32_t *turn);

/** Returns a flag for a captured call, and the turn of its first run. Errors: as for a stream. */
ferryResult_t ferry_stream_flag_for_capture(struct ferry_stream_flag_table *table, uint32_t *index, uint32_t *turn);

/** The flag, which is the table's, must not be reused while `held`. */
void ferry_stream_flag_hold(struct ferry_stream_flag_table *table, uint32_t index, bool held);

/**
 * No router has the captured call, or will get it. If no graph holds it either, marks the flag as a router would.
 * Returns true if no graph holds it.
 */
bool ferry_stream_flag_answer(uint32_t index);

/**
 * No graph holds the captured call any more: from any thread. The router then releases it, and the flag may be reused.
 */
void ferry_stream_flag_forget(uint32_t index);

/** Whether a stream is at a call. */
bool ferry_stream_flag_table_waits(struct ferry_stream_flag_table *table);

/**
 * Nothing moves data for these streams any more: releases those that wait at a call. Returns whether any stream could
 * still come to one. Only once no copy for them is under way.
 */
bool ferry_stream_flag_table_release(struct ferry_stream_flag_table *table);

/**
 * No more calls come: returns flags that no stream is about to wait for, and leaves the others to the router monitor.
 * Only once nothing moves data for them.
 */
void ferry_stream_flag_table_abandon(struct ferry_stream_flag_table *table);

/**
 * To be called before ferry_stream_flag_table_abandon if the router that moved the data may still write to the flags.
 * They are looked after as others, and never reused.
 */
void ferry_stream_flag_table_lose(struct ferry_stream_flag_table *table);

/** The communicator ends, having abandoned its flags. */
void ferry_stream_flag_table_end(struct ferry_stream_flag_table *table);

/** Around a fork: no other thread holds the lock; a child begins with a block of its own. */
void ferry_stream_flags_before_fork(void);
void ferry_stream_flags_after_fork(bool in_child);

#endif
