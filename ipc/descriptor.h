/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The descriptor: what a rank tells the other ranks and the routers about its call number n, in slot n mod
 * FERRY_PARITIES of the ring in its line of the arena. The rank alone writes it. The other ranks and the routers with
 * work in the call wait for its number, copy the fields into memory of their own, and compare them with those of all
 * ranks. A difference ends the job, with one message wherever it is seen.
 */
#ifndef FERRY_IPC_DESCRIPTOR_H
#define FERRY_IPC_DESCRIPTOR_H

#include "ipc/export.h"

#include <stdatomic.h>
#include <stdbool.h>

/*
 * As plan_hash: a short call of host devices, in which no router has work. Before its descriptor a rank writes its part
 * into its place in the staging of the call's parity; it reads the others' parts there (rank-lib/call/short_call.h).
 */
#define FERRY_SHORT_CALL 0x73686f7274ull

/*
 * seq = 0 first, then the fields, then seq with release. The rank does not wait for routers without work in the call:
 * such a router sees by seq that the fields were being replaced as it read them.
 */
struct ferry_descriptor {
	_Atomic uint64_t seq;      /* n */
	_Atomic uint64_t plan_hash; /* the plan's name; rank 0 has given it to the routers with work in it */
	_Atomic uint64_t count;
	_Atomic uint64_t scalar;   /* premulsum: the bits of this rank's factor */
	/* collective | type << 8 | redop << 16 | (1 + the collective that it is a step of) << 24 */
	_Atomic uint32_t shape;
	_Atomic uint32_t root;
	_Atomic uint32_t domains;  /* bit d: the plan has work for router d; the others pass the call by */
	_Atomic uint32_t put_target_index; /* of `put_target` below */
	_Atomic uint64_t name;     /* rank 0, where it decides which call is number n: that call; else 0 (order.h) */
	_Atomic uint64_t put_target_generation, put_target_offset;
	_Atomic uint64_t memory_generation, memory_offset; /* of `memory` below */
	_Atomic uint32_t memory_index;
	char pad[36];
};

/* A process's private copy of the fields. */
struct ferry_descriptor_fields {
	uint64_t plan_hash, count, scalar, name;
	uint32_t shape, root, domains;
	/*
	 * Where other ranks put for this rank, in plans that have PUTs: its receive buffer, as its router names it; or,
	 * with index FERRY_PUT_TARGET_DIRECT, an address (offset) in the process of that number (generation).
	 */
	struct ferry_buffer_name put_target;
	struct ferry_buffer_name memory; /* the rank's device memory, in plans with windows there; generation 0: none */
};

#define FERRY_PUT_TARGET_DIRECT UINT32_MAX

/** The rank's own thread; the slot's call before, seq - FERRY_PARITIES, is over on all ranks. */
void ferry_descriptor_write(struct ferry_descriptor *descriptor, uint64_t seq,
                            const struct ferry_descriptor_fields *fields);

/**
 * Copies the fields. The caller has loaded seq with acquire and found the number. A caller that the writing rank does
 * not wait for reads seq again after a full fence: if the number is unchanged, the fields were that call's.
 */
void ferry_descriptor_read(const struct ferry_descriptor *descriptor, struct ferry_descriptor_fields *fields);

/**
 * Copies the field `memory`, which ferry_descriptor_read does not copy. It is set where the call's plan has windows in
 * device memory. What ferry_descriptor_read says of the number holds here, too.
 */
void ferry_descriptor_read_memory(const struct ferry_descriptor *descriptor, struct ferry_buffer_name *memory);

/** Whether two ranks make the same call, by the same plan. */
bool ferry_descriptor_agree(const struct ferry_descriptor_fields *one, const struct ferry_descriptor_fields *other);

/** Writes the error message for two ranks that disagree on a call: it names both calls. */
void ferry_descriptor_disagreement(char *text, size_t bytes, uint64_t seq,
                                   uint32_t rank, const struct ferry_descriptor_fields *calls,
                                   uint32_t other_rank, const struct ferry_descriptor_fields *other_calls);

#endif
