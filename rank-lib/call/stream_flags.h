/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The words of this process (ipc/stream_flag.h): one block for all communicators, made known to the GPUs once and kept
 * until the process ends, as a stream may still be about to look at one after the last communicator has gone. A
 * communicator takes one for each stream that it is called on, and one for each captured call.
 */
#ifndef FERRY_RANK_LIB_CALL_STREAM_FLAGS_H
#define FERRY_RANK_LIB_CALL_STREAM_FLAGS_H

#include "rank-lib/device/device.h"

#include <pthread.h>

/* A communicator's. Under `lock`, but for words->forgotten. */
struct ferry_stream_flag_use {
	uint64_t stream; /* its id; captured: 0 */
	uint32_t index;
	uint32_t made;   /* calls on it so far; captured: 0 */
	bool captured;
	bool held;       /* captured: somebody still tells others of it: not to be used again yet */
	bool lost;       /* of a communicator that has gone: not to be used again */
};

struct ferry_stream_flag_table {
	pthread_mutex_t lock;
	struct ferry_stream_flag_use *uses;
	uint32_t count, capacity;
};

/**
 * Makes the block, once, and has the device register it. *descriptor: of its shared memory, to be handed to routers.
 * Errors: ferrySystemError, the device's.
 */
ferryResult_t ferry_stream_flags_open(struct ferry_device *device, int *descriptor);

struct ferry_stream_flag *ferry_stream_flag_at(uint32_t index);

void ferry_stream_flag_table_init(struct ferry_stream_flag_table *table);

/** The stream's word and the turn of the call that is made on it now. Errors: ferrySystemError. */
ferryResult_t ferry_stream_flag_for_stream(struct ferry_stream_flag_table *table, uint64_t stream, uint32_t *index,
                                           uint32_t *turn);

/** A word for a captured call. ferryInvalidUsage, with the number, where all are taken. */
ferryResult_t ferry_stream_flag_for_capture(struct ferry_stream_flag_table *table, uint32_t *index);

/** The captured call's word, which is the table's, is not to be used again until it is held no longer. */
void ferry_stream_flag_hold(struct ferry_stream_flag_table *table, uint32_t index, bool held);

/**
 * No router has the captured call, nor will any have it: if no graph has it either, says so in the place of one. True:
 * it is forgotten.
 */
bool ferry_stream_flag_answer(uint32_t index);

/**
 * No graph has the captured call any more: from any thread. Who moves the data lets go of it, and the word may be used
 * again.
 */
void ferry_stream_flag_forget(uint32_t index);

/** Whether a stream is at a call. */
bool ferry_stream_flag_table_waits(struct ferry_stream_flag_table *table);

/**
 * Nobody moves data for these streams any more: those that are at a call go on. Returns whether there are any that
 * could still come to one. Only once no copy for them is under way.
 */
bool ferry_stream_flag_table_release(struct ferry_stream_flag_table *table);

/**
 * No more calls come: words that no stream is about to wait for are given back, the others are left to the router
 * monitor. Only once nobody moves data for them.
 */
void ferry_stream_flag_table_abandon(struct ferry_stream_flag_table *table);

/**
 * Before it is abandoned: the router that moved the data may still write to its words. They are looked after as others,
 * and never used again.
 */
void ferry_stream_flag_table_lose(struct ferry_stream_flag_table *table);

/** The communicator goes, and has abandoned its words with that. */
void ferry_stream_flag_table_end(struct ferry_stream_flag_table *table);

/** Around a fork: nobody else has the lock; a child begins with a block of its own. */
void ferry_stream_flags_before_fork(void);
void ferry_stream_flags_after_fork(bool in_child);

#endif
