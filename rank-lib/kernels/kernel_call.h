/* SPDX-License-Identifier: Apache-2.0 */
/**
 * One call that a kernel carries, or a few of a group that one kernel carries side by side, as the host writes it and
 * the kernel reads it: the kernel's only argument, by value. Nothing in it changes from call to call of one kind, so a
 * captured call may be replayed: what changes lies in `state`, in device memory. Compiled as C and as CUDA.
 *
 * Mailboxes. A rank sends packets through a box and reads those of each peer out of a box; both are given by pointers,
 * so the kernels are the same in both layouts (mailboxes.h):
 * - by peer memory each rank has an inbox with a region per sender: out[p] is this rank's region in p's inbox, in[p]
 *   p's region in its own. out_shared = 0;
 * - by host memory each rank has an outbox of one region, which all others read: out[p] is the rank's own outbox for
 *   every p, in[p] the outbox of p. out_shared = 1: what goes to all is written once.
 *
 * A region is | half 0 | half 1 |, and a half is | LL packets | headers | flags | data |. What is a flag in one call is
 * never a user's byte in another one, which could look like a flag: data is either chunks of bulk (outboxes) or lines
 * of LL128 (inboxes), whose last 8 bytes are flags. Call n of the communicator uses half n mod 2. A rank reuses a half
 * two calls later. By then it has ended the call between, in which it has received from every peer; so every peer had
 * begun that call, and ended the one before. This needs a packet from every rank to every other one in every call: a
 * rank that has no data for a peer sends it a header. Calls of a group that one kernel carries have one number, each
 * other places in the half, and blocks of their own: they count as one call.
 *
 * Messages (messages.h) have a part of the region by themselves, behind its halves: a page of words, then slots.
 */
#ifndef FERRY_RANK_LIB_KERNELS_KERNEL_CALL_H
#define FERRY_RANK_LIB_KERNELS_KERNEL_CALL_H

#include <stdint.h>

#define FERRY_KERNEL_RANKS  8u     /* a communicator of more ranks has no kernels */
#define FERRY_MESSAGE_WAYS  (2u * FERRY_KERNEL_RANKS) /* to each rank, then from each */
#define FERRY_KERNEL_BLOCKS 64u    /* of a call at most */
#define FERRY_KERNEL_FLAGS  8192u  /* chunks of a half at most */

#define FERRY_BOX_LL_BYTES     (1u << 20)
#define FERRY_BOX_HEADER_BYTES 4096u
#define FERRY_BOX_FLAG_BYTES   (4u * FERRY_KERNEL_FLAGS)
#define FERRY_BOX_HEADERS      FERRY_BOX_LL_BYTES
#define FERRY_BOX_FLAGS        (FERRY_BOX_HEADERS + FERRY_BOX_HEADER_BYTES)
#define FERRY_BOX_DATA         (FERRY_BOX_FLAGS + FERRY_BOX_FLAG_BYTES)
/* Bytes of a half with room for so many bytes of data, a multiple of 4096. */
#define FERRY_BOX_HALF(data)   (FERRY_BOX_DATA + (uint64_t)(data))

#define FERRY_MESSAGE_SLOT          (16u << 10) /* a piece: 8 KiB as LL packets, */
#define FERRY_MESSAGE_LINES         (FERRY_MESSAGE_SLOT / 128 * 120u) /* or 15 KiB as lines of LL128 (inboxes) */
#define FERRY_MESSAGE_STRANDS(shared) ((shared) ? 8u : 16u)
#define FERRY_MESSAGE_SLOTS(shared) ((shared) ? 32u : 128u) /* of a pair of ranks, in one direction */
#define FERRY_BOX_READ(data)        (2 * FERRY_BOX_HALF(data)) /* 128 bytes of words for each sender */
#define FERRY_BOX_SLOTS(data)       (FERRY_BOX_READ(data) + 4096u)
/* Bytes of a region: an outbox has slots for each receiver, an inbox has slots of lines behind those of packets. */
#define FERRY_BOX_REGION(data, shared)                                                                                 \
	(FERRY_BOX_SLOTS(data) +                                                                                       \
	 (uint64_t)((shared) ? FERRY_KERNEL_RANKS : 2) * FERRY_MESSAGE_SLOTS(shared) * FERRY_MESSAGE_SLOT)

/*
 * A call's flag is its number, which comes again after 2^32 calls, hours of short ones. What a packet's place held
 * before must not look like the new flag, so every so many calls the two halves are filled with a number that is half
 * of all numbers away.
 */
#define FERRY_KERNEL_SWEEP (1u << 20)

/*
 * In the rank's own device memory, zeroed before the first call; written by its kernels alone. Kernels of calls and
 * kernels of messages have one each, and do not wait for each other.
 */
struct ferry_kernel_state {
	/*
	 * in the low half the number of the last call, 0 of messages; in the high half how many calls were counted, for
	 * which a call on another stream waits. One word, so that a kernel which has waited for the high half finds the
	 * low one without a fence.
	 */
	uint64_t counts;
	uint32_t arrived; /* blocks of the call under way that have ended */
	uint32_t given_up; /* 1: a warp has found the abort word to be 1 */
	uint32_t moved[FERRY_MESSAGE_WAYS]; /* pieces of messages so far, when no kernel of messages runs */
	/* by receiver: it has read all pieces below; a kernel stores `credit` as it asks, `known` as it ends */
	uint32_t known[FERRY_KERNEL_RANKS], credit[FERRY_KERNEL_RANKS];
};

/*
 * A warp that waits and looks at the abort word stores behind it what it waits for, in two words of 8 bytes: the rank,
 * or nranks for an earlier call of its own; and polls << 32 | the call's number. While it waits, that changes.
 */
#define FERRY_KERNEL_WAITS         40u /* bytes from the abort word to them, */
#define FERRY_KERNEL_MESSAGE_WAITS 24u /* and to those of kernels of messages */

struct ferry_kernel_call {
	const char *send;
	char *receive;
	uint64_t bytes;          /* of a block */
	/* bytes from one rank's block to the next in the user's buffers; 0: the same block for all, or a sum */
	uint64_t send_stride, receive_stride;
	struct ferry_kernel_state *state;
	uint32_t *abort;         /* 1: the call is given up; host memory, which warps that wait take turns to read */
	char *out[FERRY_KERNEL_RANKS];      /* half 0; out[rank] is unused */
	const char *in[FERRY_KERNEL_RANKS];
	uint64_t box_bytes;      /* data bytes of a half */
	uint32_t out_shared;
	uint32_t rank, nranks;
	uint32_t senders, receivers; /* bit r: rank r sends a block to each receiver, receives one from each sender */
	uint32_t reduces;        /* 1: the result is one block, the reduction of all senders' */
	uint32_t op;             /* ferryRedOp_t; ferryNumOps for premulsum */
	uint32_t divisor;        /* of integers: an average divides the sum by it; else 1 */
	uint32_t scaled;         /* 1: each rank multiplies by its factor (premulsum); 2: all by `factor` (averages) */
	uint64_t factor;         /* its bits in the type, */
	const char *factor_at;   /* or where they are in device memory; NULL: `factor` */
	uint32_t chunk;          /* of bulk: bytes of a chunk, a multiple of 16 */
	uint32_t two_phases;     /* of LL128 and AllReduce: each rank reduces its part for all */
	uint32_t uncounted;      /* 1: captured, or made since another one was */
	uint32_t awaits;         /* 1: the last call may be on another stream; waits until so many are counted */
	uint32_t awaited_plain;
	uint32_t place;          /* in a group: bytes from the start of LL packets to those of this call, */
	uint32_t first, blocks;  /* and the blocks of the kernel that carry it */
};

#define FERRY_KERNEL_GROUP 12u /* calls: a kernel's argument has 4 KiB */

/* state, abort, uncounted and awaits are those of the first call alone. */
struct ferry_kernel_group {
	struct ferry_kernel_call calls[FERRY_KERNEL_GROUP];
	uint32_t count;
};

/*
 * The ADDs of a program in a rank's memory, as one kernel makes them. Its cells in the rank's arena (ipc/arena.h): a
 * word for each ADD, by the router: how many of its slices may be added; then a word for each ADD and block, by the
 * kernel: how many it has added its part of. A word is the call's number << 32 | slices.
 */
#define FERRY_KERNEL_ADDS       96u
#define FERRY_KERNEL_ADD_BLOCKS 16u  /* at most; a kernel of fewer writes the words of the rest, too */
#define FERRY_KERNEL_SOURCES    384u /* of all its ADDs together */
#define FERRY_KERNEL_ADD_DONE(add, block) (8ull * (FERRY_KERNEL_ADDS + (add) * FERRY_KERNEL_ADD_BLOCKS + (block)))

struct ferry_kernel_add {
	uint64_t bytes;
	uint32_t to; /* its window: bytes from the start of the memory, over 64 */
	uint16_t first_source;
	uint8_t nsources;
	uint8_t last; /* 1: of all ranks' data: an average of integers divides here */
};

struct ferry_kernel_adds {
	struct ferry_kernel_call call; /* the type's operation, abort and state; the rest is the kernel's scratch */
	char *memory; /* the rank's, of the call's parity */
	uint64_t memory_bytes;
	char *cells;
	uint64_t one;    /* in the type's bits: the factor of a source that is a sum already */
	uint32_t number; /* of the call, its low half */
	uint32_t lap;    /* slot of slice 0 */
	uint32_t slice, window; /* bytes; slots */
	uint32_t count;
	/* windows as `to`, << 1 | 1: one rank's data, of which averages take the factor */
	uint32_t sources[FERRY_KERNEL_SOURCES];
	struct ferry_kernel_add adds[FERRY_KERNEL_ADDS];
};

/* The messages of a group, as one kernel carries them. */
struct ferry_kernel_message {
	char *buffer;
	uint32_t bytes; /* at least 1 */
	uint32_t piece; /* bytes of each but the last; the same at both ends; FERRY_MESSAGE_LINES: as lines of LL128 */
};

#define FERRY_MESSAGES_MOST  224u         /* a kernel's argument has 4 KiB; */
#define FERRY_MESSAGES_TABLE (32u << 10) /* those of a larger group are in device memory, in such a table */

struct ferry_kernel_messages {
	struct ferry_kernel_call call; /* what all calls have alike */
	/*
	 * NULL: the messages below. Else the group is larger: kernels with `puts` > 0 fill the table, each from
	 * `puts_at` on, and move nothing; then one with puts = 0 moves the messages of the table.
	 */
	struct ferry_kernel_message *table;
	uint16_t puts, puts_at;
	/*
	 * Pieces of each way, in the order of the messages from `first` on. What a rank sends to itself goes, without
	 * pieces, into those buffers that it receives from itself, which are as many.
	 */
	uint32_t pieces[FERRY_MESSAGE_WAYS];
	uint16_t first[FERRY_MESSAGE_WAYS]; /* of a way without messages: as of the next one */
	uint16_t items[FERRY_MESSAGE_WAYS + 1]; /* items of the ways before; each strand with a piece is an item */
	struct ferry_kernel_message messages[FERRY_MESSAGES_MOST];
};

#endif
