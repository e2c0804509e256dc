/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/descriptor.h"

#include "ipc/collective.h"
#include "ipc/wait.h"

#include <stdio.h>

void ferry_descriptor_write(struct ferry_descriptor *descriptor, uint64_t seq,
                            const struct ferry_descriptor_fields *fields)
{
	atomic_store_explicit(&descriptor->seq, 0, memory_order_relaxed);
	ferry_store_fence(); /* a reader that loads a new field below no longer loads the old number */
	atomic_store_explicit(&descriptor->plan_hash, fields->plan_hash, memory_order_relaxed);
	atomic_store_explicit(&descriptor->count, fields->count, memory_order_relaxed);
	atomic_store_explicit(&descriptor->scalar, fields->scalar, memory_order_relaxed);
	atomic_store_explicit(&descriptor->shape, fields->shape, memory_order_relaxed);
	atomic_store_explicit(&descriptor->root, fields->root, memory_order_relaxed);
	atomic_store_explicit(&descriptor->domains, fields->domains, memory_order_relaxed);
	atomic_store_explicit(&descriptor->name, fields->name, memory_order_relaxed);
	atomic_store_explicit(&descriptor->put_target_index, fields->put_target.index, memory_order_relaxed);
	atomic_store_explicit(&descriptor->put_target_generation, fields->put_target.generation, memory_order_relaxed);
	if (fields->put_target.generation) /* else there is none: the second cache line is left alone */
		atomic_store_explicit(&descriptor->put_target_offset, fields->put_target.offset, memory_order_relaxed);
	if (fields->memory.generation) { /* else no rank reads it */
		atomic_store_explicit(&descriptor->memory_index, fields->memory.index, memory_order_relaxed);
		atomic_store_explicit(&descriptor->memory_generation, fields->memory.generation, memory_order_relaxed);
		atomic_store_explicit(&descriptor->memory_offset, fields->memory.offset, memory_order_relaxed);
	}
	atomic_store_explicit(&descriptor->seq, seq, memory_order_release);
}

void ferry_descriptor_read(const struct ferry_descriptor *descriptor, struct ferry_descriptor_fields *fields)
{
	fields->plan_hash = atomic_load_explicit(&descriptor->plan_hash, memory_order_relaxed);
	fields->count = atomic_load_explicit(&descriptor->count, memory_order_relaxed);
	fields->scalar = atomic_load_explicit(&descriptor->scalar, memory_order_relaxed);
	fields->shape = atomic_load_explicit(&descriptor->shape, memory_order_relaxed);
	fields->root = atomic_load_explicit(&descriptor->root, memory_order_relaxed);
	fields->domains = atomic_load_explicit(&descriptor->domains, memory_order_relaxed);
	fields->name = atomic_load_explicit(&descriptor->name, memory_order_relaxed);
	fields->put_target = (struct ferry_buffer_name){
	        .index = atomic_load_explicit(&descriptor->put_target_index, memory_order_relaxed),
	        .generation = atomic_load_explicit(&descriptor->put_target_generation, memory_order_relaxed)};
	if (fields->put_target.generation)
		fields->put_target.offset = atomic_load_explicit(&descriptor->put_target_offset, memory_order_relaxed);
}

void ferry_descriptor_read_memory(const struct ferry_descriptor *descriptor, struct ferry_buffer_name *memory)
{
	*memory = (struct ferry_buffer_name){
	        .index = atomic_load_explicit(&descriptor->memory_index, memory_order_relaxed),
	        .generation = atomic_load_explicit(&descriptor->memory_generation, memory_order_relaxed),
	        .offset = atomic_load_explicit(&descriptor->memory_offset, memory_order_relaxed)};
}

static bool same_call(const struct ferry_descriptor_fields *one, const struct ferry_descriptor_fields *other)
{
	return one->shape == other->shape && one->root == other->root && one->count == other->count;
}

bool ferry_descriptor_agree(const struct ferry_descriptor_fields *one, const struct ferry_descriptor_fields *other)
{
	return same_call(one, other) && one->plan_hash == other->plan_hash && one->domains == other->domains;
}

/* "rank 3 calls reduce of 12 i32 (max, root 1)": operation and root of collectives that have one. Returns text. */
static const char *call_text(uint32_t rank, const struct ferry_descriptor_fields *calls, char text[128])
{
	const uint32_t of = calls->shape >> 24; /* the collective of which it is a step (rank-lib/call/gpu_sums.h) */
	enum ferry_collective collective = of ? of - 1 : calls->shape & 0xff;
	bool reduces = ferry_collective_reduces(collective), has_root = ferry_collective_has_root(collective);
	char root[16] = "";
	if (has_root)
		snprintf(root, sizeof root, "root %u", calls->root);
	snprintf(text, 128, "rank %u calls %s of %s%llu %s%s%s%s%s%s", rank, ferry_collective_name(collective),
	         of && collective == FERRY_ALLREDUCE ? "blocks of " : "", (unsigned long long)calls->count,
	         ferry_type_name(calls->shape >> 8 & 0xff),
	         reduces || has_root ? " (" : "", reduces ? ferry_redop_name(calls->shape >> 16 & 0xff) : "",
	         reduces && has_root ? ", " : "", root, reduces || has_root ? ")" : "");
	return text;
}

void ferry_descriptor_disagreement(char *text, size_t bytes, uint64_t seq,
                                   uint32_t rank, const struct ferry_descriptor_fields *calls,
                                   uint32_t other_rank, const struct ferry_descriptor_fields *other_calls)
{
	char one[128], other[128];
	snprintf(text, bytes, "call %llu: %s, %s%s", (unsigned long long)seq, call_text(rank, calls, one),
	         call_text(other_rank, other_calls, other),
	         same_call(calls, other_calls) ? "; their parts, programs or FERRY_ settings differ" : "");
}
