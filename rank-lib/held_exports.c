/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/held_exports.h"

#include "ipc/wait.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ferry_held_export {
	struct ferry_held_export *next; /* newer ones are in front */
	bool retired;
	uint64_t last; /* retired: no later submission names it */
	int *descriptors;
	struct ferry_exported exported; /* as far as ferry_exported_size says */
};

void ferry_held_exports_init(struct ferry_held_exports *held, const struct ferry_ring *ring)
{
	*held = (struct ferry_held_exports){.ring = ring};
	pthread_mutex_init(&held->lock, NULL);
}

static void close_all(const int *descriptors, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		close(descriptors[i]);
}

static void free_one(struct ferry_held_export *each)
{
	close_all(each->descriptors, each->exported.npieces);
	free(each->descriptors);
	free(each);
}

void ferry_held_exports_end(struct ferry_held_exports *held)
{
	for (struct ferry_held_export *each = held->first, *next; each; each = next) {
		next = each->next;
		free_one(each);
	}
	held->first = NULL;
	pthread_mutex_destroy(&held->lock);
}

/* Under the lock. */
static void forget_over(struct ferry_held_exports *held)
{
	uint64_t over = atomic_load_explicit(&held->ring->over, memory_order_acquire);
	for (struct ferry_held_export **link = &held->first; *link;) {
		struct ferry_held_export *each = *link;
		if (!each->retired || each->last > over) {
			link = &each->next;
			continue;
		}
		*link = each->next;
		free_one(each);
	}
}

static struct ferry_held_export *current(const struct ferry_held_exports *held, uint32_t index)
{
	struct ferry_held_export *each = held->first;
	while (each && (each->retired || each->exported.index != index))
		each = each->next;
	return each;
}

void ferry_held_exports_add(struct ferry_held_exports *held, const struct ferry_exported *exported,
                            const int *descriptors)
{
	size_t bytes = ferry_exported_size(exported);
	size_t room = offsetof(struct ferry_held_export, exported) + bytes;
	struct ferry_held_export *made = calloc(1, room > sizeof *made ? room : sizeof *made);
	int *kept = malloc(exported->npieces * sizeof *kept + 1);
	pthread_mutex_lock(&held->lock);
	forget_over(held);
	struct ferry_held_export *there = current(held, exported->index);
	if (!made || !kept || (there && there->exported.generation == exported->generation)) {
		close_all(descriptors, exported->npieces); /* mapped again, or not to be had again: the job would end */
		if (there && there->exported.generation == exported->generation)
			there->exported.landing |= exported->landing; /* for others, too, from now on */
		free(made);
		free(kept);
	} else {
		memcpy(&made->exported, exported, bytes);
		memcpy(kept, descriptors, exported->npieces * sizeof *kept);
		made->descriptors = kept;
		made->next = held->first;
		held->first = made;
		atomic_store_explicit(&held->has[exported->index], 1, memory_order_release);
	}
	pthread_mutex_unlock(&held->lock);
}

void ferry_held_exports_retire(struct ferry_held_exports *held, uint32_t index, uint64_t last)
{
	pthread_mutex_lock(&held->lock);
	struct ferry_held_export *each = current(held, index);
	if (each) {
		each->retired = true;
		each->last = last;
		atomic_store_explicit(&held->has[index], 0, memory_order_relaxed);
	}
	forget_over(held);
	pthread_mutex_unlock(&held->lock);
}

/* The list has newer ones in front, which are to come last. */
static ferryResult_t give_from(const struct ferry_held_export *each, const struct ferry_export_cell *cells,
                               uint64_t over,
                               ferryResult_t (*give)(void *context, const struct ferry_exported *exported,
                                                     const int *descriptors),
                               void *context, const struct ferry_held_export *until)
{
	const struct ferry_held_export *oldest = NULL;
	ferryResult_t result = ferrySuccess;
	while (!result && until != each) {
		for (oldest = each; oldest->next != until; oldest = oldest->next)
			;
		until = oldest;
		uint64_t used = oldest->retired ? oldest->last
		                                : atomic_load_explicit(&cells[oldest->exported.index].used,
		                                                       memory_order_acquire);
		if (used > over)
			result = give(context, &oldest->exported, oldest->descriptors);
	}
	return result;
}

ferryResult_t ferry_held_exports_each(struct ferry_held_exports *held, const struct ferry_export_cell *cells,
                                      ferryResult_t (*give)(void *context, const struct ferry_exported *exported,
                                                            const int *descriptors),
                                      void *context)
{
	pthread_mutex_lock(&held->lock);
	forget_over(held);
	uint64_t over = atomic_load_explicit(&held->ring->over, memory_order_acquire);
	ferryResult_t result = held->first ? give_from(held->first, cells, over, give, context, NULL) : ferrySuccess;
	pthread_mutex_unlock(&held->lock);
	return result;
}

/* Under the lock. */
static bool is_idle(struct ferry_held_exports *held, const struct ferry_held_export *each,
                    const struct ferry_export_cell *cells)
{
	uint32_t index = each->exported.index;
	if (each->retired || !each->exported.npieces)
		return false;
	atomic_store_explicit(&held->has[index], 0, memory_order_relaxed);
	ferry_full_fence();
	if (atomic_load_explicit(&cells[index].used, memory_order_acquire) <=
	    atomic_load_explicit(&held->ring->over, memory_order_acquire))
		return true;
	atomic_store_explicit(&held->has[index], 1, memory_order_release);
	return false;
}

void ferry_held_exports_sweep(struct ferry_held_exports *held, const struct ferry_export_cell *cells)
{
	pthread_mutex_lock(&held->lock);
	forget_over(held);
	for (struct ferry_held_export **link = &held->first; *link;) {
		struct ferry_held_export *each = *link;
		if (!is_idle(held, each, cells)) {
			link = &each->next;
			continue;
		}
		*link = each->next;
		free_one(each);
	}
	pthread_mutex_unlock(&held->lock);
}
