/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/kernels/boxes.h"

#include "ipc/error.h"
#include "rank-lib/call/stream_flags.h"

#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define STATE_BYTES (FERRY_BOX_TABLE + FERRY_MESSAGES_TABLE * sizeof(struct ferry_kernel_message))
/* how many unused ones are kept for each device; an import keeps the memory of another process */
#define BOXES_KEPT   4u
#define IMPORTS_KEPT FERRY_KERNEL_RANKS

struct ferry_box_import {
	struct ferry_box_import *next;
	struct ferry_device *device;
	struct ferry_box_claim claim;
	void *address;
	uint32_t users;
	bool failed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both lists, newest first; held in calls of the driver */
static struct ferry_box *boxes;
static struct ferry_box_import *imports;

_Static_assert(FERRY_BOX_LINES * sizeof(struct ferry_kernel_state) <= FERRY_BOX_COUNTERS, "counters come behind them");
_Static_assert(offsetof(struct ferry_stream_flag, waits) - offsetof(struct ferry_stream_flag, flag) ==
                       FERRY_KERNEL_WAITS,
               "kernels find these words from the other one,");
_Static_assert(offsetof(struct ferry_stream_flag, passed) - offsetof(struct ferry_stream_flag, flag) ==
                       FERRY_KERNEL_MESSAGE_WAITS,
               "and those of messages");

/* ---- boxes ---- */

void ferry_box_hold(void *box)
{
	atomic_fetch_add_explicit(&((struct ferry_box *)box)->holders, 1, memory_order_relaxed);
}

void ferry_box_drop(void *box)
{
	atomic_fetch_sub_explicit(&((struct ferry_box *)box)->holders, 1, memory_order_release);
}

static bool is_held(const struct ferry_box *box)
{
	return atomic_load_explicit(&box->holders, memory_order_acquire);
}

static bool is_over(const struct ferry_box *box, enum ferry_box_line line)
{
	const struct ferry_kernels_ops *kernels = box->device->ops->kernels;
	const struct ferry_kernel_order *order = &box->orders[line];
	if (!kernels->is_over(box->device, order) ||
	    kernels->read(box->device, &box->aborted->scalar, &box->states[line].counts, sizeof(uint64_t)))
		return false;
	uint64_t counts = atomic_load_explicit(&box->aborted->scalar, memory_order_relaxed);
	return (uint32_t)(counts >> 32) == order->counted;
}

/* Calls are last: their counts stay in `scalar` for ferry_mailboxes_close. */
bool ferry_box_is_idle(const struct ferry_box *box)
{
	return is_over(box, FERRY_BOX_MESSAGES) && is_over(box, FERRY_BOX_CALLS);
}

static void remove_windows(struct ferry_box *box)
{
	while (box->nwindows) {
		struct ferry_box_window *window = &box->windows[--box->nwindows];
		box->device->ops->kernels->remove_host(box->device, window->address);
		munmap(window->address, window->bytes);
	}
}

/* Waits for all that the device does, so nothing uses it any more. The box is in no list. */
static void box_free(struct ferry_box *box)
{
	remove_windows(box);
	for (int line = 0; line < FERRY_BOX_LINES; line++)
		box->device->ops->kernels->order_end(box->device, &box->orders[line]);
	for (int parity = 0; parity < FERRY_PARITIES; parity++)
		box->device->ops->kernels->order_end(box->device, &box->adds[parity]);
	if (box->memory)
		box->device->ops->pieces->release(box->device, box->memory);
	if (box->states)
		box->device->ops->pieces->release(box->device, box->states);
	atomic_store_explicit(&box->aborted->flag, 0, memory_order_relaxed);
	for (int i = 0; i < 2; i++) /* as calls of streams expect it */
		atomic_store_explicit(&box->aborted->passed[i], 0, memory_order_relaxed);
	ferry_stream_flag_give_back(box->word);
	free(box);
}

/* ---- what nobody has any more ---- */

/*
 * Whether no communicator has a box on the device: then no kernel waits there for other ranks. Kernels in graphs of
 * ended communicators give up at once. Under the lock.
 */
static bool is_quiet(const struct ferry_device *device)
{
	const struct ferry_box *box = boxes;
	while (box && (box->device != device || !box->owned))
		box = box->next;
	return !box;
}

/* Releases what boxes without holders use: none of their kernels can run any more. Under the lock. */
static void release_unheld(void)
{
	for (struct ferry_box *box = boxes; box; box = box->next) {
		if (is_held(box))
			continue;
		while (box->nnear)
			box->near[--box->nnear]->users--;
		while (box->nimports) {
			struct ferry_box_import *import = box->imports[--box->nimports];
			import->users--;
			import->failed |= box->failed;
		}
	}
}

/* Under the lock. */
static void sweep_boxes(struct ferry_device *device, const struct ferry_box *but)
{
	uint32_t kept = 0;
	for (struct ferry_box **link = &boxes; *link;) {
		struct ferry_box *box = *link;
		bool dead = box->device == device && box != but && !is_held(box) && !box->users &&
		            (box->failed || box->nwindows || ++kept > BOXES_KEPT);
		if (dead)
			*link = box->next;
		else
			link = &box->next;
		if (dead)
			box_free(box);
	}
}

/* Under the lock. */
static void sweep_imports(struct ferry_device *device)
{
	uint32_t kept = 0;
	for (struct ferry_box_import **link = &imports; *link;) {
		struct ferry_box_import *import = *link;
		bool dead = import->device == device && !import->users &&
		            (import->failed || ++kept > IMPORTS_KEPT);
		if (dead)
			*link = import->next;
		else
			link = &import->next;
		if (dead) {
			device->ops->kernels->unmap(device, import->address);
			free(import);
		}
	}
}

/*
 * Frees unused memory only as the device's last communicator ends in order: the driver then waits for all that the
 * device does, and lets nothing be launched meanwhile, so no kernel may run that waits for another rank's next one.
 * Until then boxes are used again, but for those with windows. What others may still write to stays for the next time.
 */
void ferry_box_give_back(struct ferry_box *box, bool discard, bool failed)
{
	struct ferry_device *device = box->device;
	pthread_mutex_lock(&lock);
	box->failed = discard;
	box->owned = false;
	box->resident = 0;
	ferry_box_drop(box);
	release_unheld();
	if (!failed && is_quiet(device)) {
		sweep_boxes(device, discard ? box : NULL);
		sweep_imports(device);
	}
	pthread_mutex_unlock(&lock);
}

/*
 * A box that may be used again: its last communicator's kernels are over. Other ranks write to it no more, as those
 * kernels have waited for all that was sent. Under the lock.
 */
static struct ferry_box *find(struct ferry_device *device, uint64_t bytes)
{
	struct ferry_box *box = boxes;
	release_unheld();
	while (box && (box->device != device || box->bytes != bytes || box->nwindows || box->failed || is_held(box) ||
	               box->users || !ferry_box_is_idle(box)))
		box = box->next;
	return box;
}

/* Under the lock. */
static ferryResult_t box_new(struct ferry_device *device, uint64_t bytes, struct ferry_box **made)
{
	void *memory = NULL, *state = NULL;
	struct ferry_box *box = calloc(1, sizeof *box);
	if (!box)
		return ferry_fail(ferrySystemError, "no memory for a mailbox");
	ferryResult_t result = ferry_stream_flag_take(&box->word);
	if (result) {
		free(box);
		return result;
	}
	box->device = device;
	box->aborted = ferry_stream_flag_at(box->word);
	result = device->ops->pieces->allocate(device, STATE_BYTES, &state);
	box->states = state;
	if (!result && bytes)
		result = device->ops->pieces->allocate(device, bytes, &memory);
	box->memory = memory;
	if (result) {
		box_free(box);
		return result;
	}
	box->bytes = bytes;
	box->next = boxes;
	boxes = box;
	*made = box;
	return ferrySuccess;
}

ferryResult_t ferry_box_take(struct ferry_device *device, const struct ferry_rank *rank, uint64_t bytes,
                             struct ferry_box **taken)
{
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&lock);
	struct ferry_box *box = find(device, bytes);
	if (!box)
		result = box_new(device, bytes, &box);
	if (!result) {
		atomic_store_explicit(&box->holders, 1, memory_order_relaxed);
		box->first = is_quiet(device);
		box->owned = true;
		memcpy(box->key, rank->key, sizeof box->key);
		box->rank = rank->self;
		atomic_store_explicit(&box->aborted->flag, 0, memory_order_relaxed);
		atomic_store_explicit(&box->aborted->waits[1], 0, memory_order_relaxed);
		atomic_store_explicit(&box->aborted->passed[1], 0, memory_order_relaxed);
		for (struct ferry_kernel_order *o = box->orders; o < box->orders + FERRY_BOX_LINES; o++)
			*o = (struct ferry_kernel_order){.event = o->event, .joint = o->joint, .beside = o->beside};
		result = device->ops->kernels->zero(device, box->states, FERRY_BOX_TABLE);
		if (!result && bytes)
			result = device->ops->kernels->zero(device, box->memory, bytes);
		if (result) { /* freed as the device's last communicator ends */
			box->failed = true;
			box->owned = false;
			atomic_store_explicit(&box->holders, 0, memory_order_relaxed);
		}
	}
	pthread_mutex_unlock(&lock);
	*taken = result ? NULL : box;
	return result;
}

bool ferry_box_reserve(struct ferry_box *box, uint32_t blocks, uint32_t most)
{
	uint32_t sum = blocks;
	pthread_mutex_lock(&lock);
	for (const struct ferry_box *other = boxes; other; other = other->next)
		sum += other != box && other->device == box->device ? other->resident : 0;
	box->resident = sum <= most ? blocks : 0;
	pthread_mutex_unlock(&lock);
	return sum <= most;
}

struct ferry_device *ferry_box_of(struct ferry_box *box, int other, void **inbox)
{
	pthread_mutex_lock(&lock);
	struct ferry_box *found = boxes;
	while (found && (!found->owned || found->rank != other || found->bytes != box->bytes ||
	                 memcmp(found->key, box->key, sizeof box->key)))
		found = found->next;
	if (found) {
		box->near[box->nnear++] = found;
		found->users++;
	}
	struct ferry_device *device = found ? found->device : NULL;
	*inbox = found ? found->memory : NULL;
	pthread_mutex_unlock(&lock);
	return device;
}

ferryResult_t ferry_box_add_window(struct ferry_box *box, int descriptor, uint64_t from, uint64_t bytes,
                                   void **address)
{
	void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, (off_t)from);
	if (memory == MAP_FAILED)
		return ferry_fail(ferrySystemError, "mapping %llu bytes of mailboxes: %s", (unsigned long long)bytes,
		                  strerror(errno));
	ferryResult_t result = box->device->ops->kernels->add_host(box->device, memory, bytes);
	if (result) {
		munmap(memory, bytes);
		return result;
	}
	box->windows[box->nwindows++] = (struct ferry_box_window){memory, bytes};
	*address = memory;
	return ferrySuccess;
}

/* ---- of other processes ---- */

static bool is_import(const struct ferry_box_import *import, const struct ferry_device *device,
                      const struct ferry_box_claim *claim)
{
	return import->device == device && import->claim.process == claim->process &&
	       import->claim.start == claim->start && import->claim.bytes == claim->bytes &&
	       !memcmp(import->claim.handle, claim->handle, sizeof claim->handle);
}

/* Under the lock. */
static ferryResult_t map_import(struct ferry_device *device, const struct ferry_box_claim *claim,
                                struct ferry_box_import **mapped)
{
	uint64_t bytes;
	struct ferry_box_import *import = calloc(1, sizeof *import);
	if (!import)
		return ferry_fail(ferrySystemError, "no memory for a mailbox");
	ferryResult_t result = device->ops->kernels->map(device, claim->handle, &import->address, &bytes);
	if (result) {
		free(import);
		return result;
	}
	import->device = device;
	import->claim = *claim;
	import->next = imports;
	*mapped = imports = import;
	if (bytes >= claim->bytes)
		return ferrySuccess;
	import->claim.bytes = bytes;
	import->failed = true; /* so that it is unmapped with others: that waits for the device */
	return ferry_fail(ferryInvalidUsage, "a mailbox of %llu bytes, of which the driver has mapped %llu",
	                  (unsigned long long)claim->bytes, (unsigned long long)bytes);
}

ferryResult_t ferry_box_import(struct ferry_box *box, const struct ferry_box_claim *claim, void **address)
{
	struct ferry_device *device = box->device;
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&lock);
	struct ferry_box_import *import = imports;
	while (import && !is_import(import, device, claim))
		import = import->next;
	if (!import)
		result = map_import(device, claim, &import);
	if (!result) {
		import->users++;
		box->imports[box->nimports++] = import;
		*address = import->address;
	}
	pthread_mutex_unlock(&lock);
	return result;
}
