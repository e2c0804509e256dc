/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/stream_flags.h"

#include "ipc/error.h"
#include "ipc/process.h"
#include "rank-lib/failover/router_monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST_UNUSED 1024u /* a table takes so many more flags until it drops those that nobody needs */
#define KEPT_STREAMS 64u  /* a table with no more flags than these keeps those of idle streams */
#define MOST_TAKEN   (FERRY_STREAM_FLAGS / 2) /* where more are taken those of idle streams stay: see `idle` */

#define BYTES (FERRY_STREAM_FLAGS * sizeof(struct ferry_stream_flag))

/*
 * Held while the block is registered with the device. Not taken around a fork, as the driver may hold locks of its own
 * then. Taken before `lock`.
 */
static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of all below, except the flags' own fields */
static struct ferry_stream_flag *flags;
static int block = -1;
static bool registered; /* with all contexts: CUDA's portable registration */
/*
 * Free flags, reused in the order in which they were given back: when all others have been used since, the stream that
 * waited for a flag has long seen it be 0. `done` of a flag counts on from use to use. So a record of an earlier use
 * that a router's successor still gets is over for it, and no two calls have the same flag and turn.
 */
static uint32_t *idle, first_idle, nidle;
static struct ferry_stream_flag_table orphans = {
        .lock = PTHREAD_MUTEX_INITIALIZER}; /* of communicators that have gone */
static struct ferry_monitor_entry orphan_entry;
static bool orphans_kept;

/* ---- the block ---- */

static ferryResult_t make_block(void)
{
	ferryResult_t result = ferry_ulimit_check_file("a block of the words of calls", BYTES);
	if (result)
		return result;
	int descriptor = ferry_descriptor_above(memfd_create("ferry-words", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (descriptor < 0)
		return ferry_fail(ferrySystemError, "memory for the words of calls: %s%s", strerror(errno),
		                  ferry_descriptors_hint(errno));
	/* Sealed: routers map it, and it must not shrink under them. */
	void *memory = MAP_FAILED;
	uint32_t *ring = malloc(FERRY_STREAM_FLAGS * sizeof *ring);
	if (ring && !ftruncate(descriptor, BYTES) &&
	    !fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
	if (memory == MAP_FAILED) {
		result = ferry_fail(ferrySystemError, "%zu bytes for the words of calls: %s", BYTES, strerror(errno));
		free(ring);
		close(descriptor);
		return result;
	}
	for (uint32_t i = 0; i < FERRY_STREAM_FLAGS; i++)
		ring[i] = i;
	flags = memory;
	block = descriptor;
	idle = ring;
	first_idle = 0;
	nidle = FERRY_STREAM_FLAGS;
	return ferrySuccess;
}

ferryResult_t ferry_stream_flags_open(struct ferry_device *device, int *descriptor)
{
	pthread_mutex_lock(&opening);
	pthread_mutex_lock(&lock);
	ferryResult_t result = flags ? ferrySuccess : make_block();
	bool known = registered;
	*descriptor = block;
	pthread_mutex_unlock(&lock);
	if (!result && !known && !(result = device->ops->register_flags(device, flags, BYTES))) {
		pthread_mutex_lock(&lock);
		registered = true;
		pthread_mutex_unlock(&lock);
	}
	pthread_mutex_unlock(&opening);
	return result;
}

struct ferry_stream_flag *ferry_stream_flag_at(uint32_t index)
{
	return &flags[index];
}

static bool take(uint32_t *index)
{
	pthread_mutex_lock(&lock);
	bool any = nidle > 0;
	if (any) {
		*index = idle[first_idle];
		first_idle = (first_idle + 1) % FERRY_STREAM_FLAGS;
		nidle--;
	}
	pthread_mutex_unlock(&lock);
	if (any) {
		atomic_store_explicit(&flags[*index].forgotten, 0, memory_order_relaxed);
		for (int i = 0; i < 2; i++) /* left by a router that died */
			atomic_store_explicit(&flags[*index].passed[i], 0, memory_order_relaxed);
	}
	return any;
}

void ferry_stream_flag_give_back(uint32_t index)
{
	pthread_mutex_lock(&lock);
	idle[(first_idle + nidle++) % FERRY_STREAM_FLAGS] = index;
	pthread_mutex_unlock(&lock);
}

ferryResult_t ferry_stream_flag_take(uint32_t *index)
{
	if (take(index))
		return ferrySuccess;
	return ferry_fail(ferryInvalidUsage,
	                  "%u streams and captured calls of this process wait for calls: that is the most",
	                  FERRY_STREAM_FLAGS);
}

/* ---- tables ---- */

void ferry_stream_flag_table_init(struct ferry_stream_flag_table *table)
{
	memset(table, 0, sizeof *table);
	pthread_mutex_init(&table->lock, NULL);
}

/* Under the table's lock. */
static bool append(struct ferry_stream_flag_table *table, const struct ferry_stream_flag_use *use)
{
	if (table->count == table->capacity) {
		uint32_t capacity = table->capacity ? 2 * table->capacity : 8;
		void *grown = realloc(table->uses, capacity * sizeof *table->uses);
		if (!grown)
			return false;
		table->uses = grown;
		table->capacity = capacity;
	}
	table->uses[table->count++] = *use;
	return true;
}

/* Whether no stream will read the flag again, as far as this process knows, and no router will write it. */
static bool is_over(const struct ferry_stream_flag_use *use)
{
	const struct ferry_stream_flag *flag = &flags[use->index];
	if (use->captured)
		return atomic_load_explicit(&flag->forgotten, memory_order_acquire) == 2;
	return atomic_load_explicit(&flag->done, memory_order_acquire) == use->made &&
	       !atomic_load_explicit(&flag->flag, memory_order_acquire);
}

/*
 * Drops captured calls whose graphs are gone, and which their router has released, and idle streams, as they may have
 * been destroyed; one that comes again takes another flag. Those at the end first: of streams that are used little.
 * Under the table's lock.
 */
static void drop_unused(struct ferry_stream_flag_table *table)
{
	pthread_mutex_lock(&lock);
	bool streams = FERRY_STREAM_FLAGS - nidle <= MOST_TAKEN;
	pthread_mutex_unlock(&lock);
	for (uint32_t i = table->count; i-- > 0 && !table->released;)
		if (!table->uses[i].held && is_over(&table->uses[i]) &&
		    (table->uses[i].captured || (streams && table->count > KEPT_STREAMS))) {
			ferry_stream_flag_give_back(table->uses[i].index);
			table->uses[i] = table->uses[--table->count];
		}
	table->full = table->count + (table->count < MOST_UNUSED ? table->count : MOST_UNUSED);
}

static uint32_t done_of(uint32_t index)
{
	return atomic_load_explicit(&flags[index].done, memory_order_relaxed);
}

static ferryResult_t add_use(struct ferry_stream_flag_table *table, struct ferry_stream_flag_use *use)
{
	ferryResult_t result = ferrySuccess;
	if (table->count >= table->full)
		drop_unused(table);
	if (!take(&use->index)) {
		drop_unused(table);
		result = ferry_stream_flag_take(&use->index);
	}
	if (result || append(table, use))
		return result;
	ferry_stream_flag_give_back(use->index);
	return ferry_fail(ferrySystemError, "no memory for a call");
}

ferryResult_t ferry_stream_flag_for_stream(struct ferry_stream_flag_table *table, uint64_t stream, uint32_t *index,
                                           uint32_t *turn)
{
	struct ferry_stream_flag_use use = {.stream = stream};
	ferryResult_t result = ferrySuccess;
	uint32_t i = 0;
	pthread_mutex_lock(&table->lock);
	while (i < table->count && (table->uses[i].captured || table->uses[i].stream != stream))
		i++;
	if (i < table->count) {
		struct ferry_stream_flag_use *found = &table->uses[i], before = table->uses[i / 2];
		*index = found->index;
		*turn = found->made++;
		/* Streams that are used much come to the front. */
		table->uses[i / 2] = *found;
		if (i / 2 != i)
			table->uses[i] = before;
	} else if (!(result = add_use(table, &use))) {
		*index = use.index;
		*turn = done_of(use.index);
		table->uses[table->count - 1].made = *turn + 1;
	}
	pthread_mutex_unlock(&table->lock);
	return result;
}

ferryResult_t ferry_stream_flag_for_capture(struct ferry_stream_flag_table *table, uint32_t *index, uint32_t *turn)
{
	struct ferry_stream_flag_use use = {.captured = true};
	pthread_mutex_lock(&table->lock);
	ferryResult_t result = add_use(table, &use);
	if (!result) {
		*index = use.index;
		*turn = done_of(use.index);
	}
	pthread_mutex_unlock(&table->lock);
	return result;
}

void ferry_stream_flag_hold(struct ferry_stream_flag_table *table, uint32_t index, bool held)
{
	pthread_mutex_lock(&table->lock);
	uint32_t i = 0;
	while (i < table->count && table->uses[i].index != index)
		i++;
	if (i < table->count)
		table->uses[i].held = held;
	pthread_mutex_unlock(&table->lock);
}

bool ferry_stream_flag_answer(uint32_t index)
{
	uint32_t forgotten = 1;
	return atomic_compare_exchange_strong_explicit(&flags[index].forgotten, &forgotten, 2, memory_order_acq_rel,
	                                               memory_order_acquire) ||
	       forgotten == 2;
}

void ferry_stream_flag_forget(uint32_t index)
{
	atomic_store_explicit(&flags[index].forgotten, 1, memory_order_release);
}

bool ferry_stream_flag_table_waits(struct ferry_stream_flag_table *table)
{
	bool any = false;
	pthread_mutex_lock(&table->lock);
	for (uint32_t i = 0; !any && i < table->count; i++)
		any = atomic_load_explicit(&flags[table->uses[i].index].flag, memory_order_acquire) == 1;
	pthread_mutex_unlock(&table->lock);
	return any;
}

/* ---- the end ---- */

static void release(const struct ferry_stream_flag_use *use)
{
	struct ferry_stream_flag *flag = &flags[use->index];
	uint32_t value = atomic_load_explicit(&flag->flag, memory_order_acquire);
	uint32_t done = atomic_load_explicit(&flag->done, memory_order_relaxed);
	if (value) /* the mark of the turn before: the router has ended before it stored 0 */
		ferry_stream_flag_pass(flag, value == ferry_stream_flag_mark(done - 1) ? done - 1 : done);
	if (use->captured)
		ferry_stream_flag_answer(use->index);
}

bool ferry_stream_flag_table_release(struct ferry_stream_flag_table *table)
{
	bool any = false;
	pthread_mutex_lock(&table->lock);
	table->released = true;
	for (uint32_t i = 0; i < table->count; i++) {
		release(&table->uses[i]);
		any |= !is_over(&table->uses[i]);
	}
	pthread_mutex_unlock(&table->lock);
	return any;
}

static void part_with(const struct ferry_stream_flag_use *use)
{
	if (!use->lost)
		ferry_stream_flag_give_back(use->index);
}

static bool look_after_orphans(struct ferry_monitor_entry *entry)
{
	(void)entry;
	bool any = ferry_stream_flag_table_release(&orphans);
	pthread_mutex_lock(&orphans.lock);
	for (uint32_t i = orphans.count; i-- > 0;)
		if (is_over(&orphans.uses[i])) {
			part_with(&orphans.uses[i]);
			orphans.uses[i] = orphans.uses[--orphans.count];
		}
	pthread_mutex_unlock(&orphans.lock);
	return any;
}

/*
 * If there is no router monitor, for want of threads, these flags are lost, and a stream that comes to one waits for
 * ever: there is no remedy.
 */
static void adopt(const struct ferry_stream_flag_use *use)
{
	pthread_mutex_lock(&orphans.lock);
	bool kept = append(&orphans, use);
	if (!kept)
		ferry_fail(ferrySystemError, "no memory for its stream flag");
	if (!orphans_kept) {
		orphan_entry = (struct ferry_monitor_entry){.descriptor = -1, .look = look_after_orphans};
		orphans_kept = ferry_router_monitor_add(&orphan_entry) == ferrySuccess;
	}
	kept &= orphans_kept;
	pthread_mutex_unlock(&orphans.lock);
	if (kept)
		ferry_router_monitor_look(&orphan_entry);
	else
		ferry_log(FERRY_LOG_WARN, "a stream that comes to a call of a communicator that has gone will wait: %s",
		          ferry_last_message());
}

void ferry_stream_flag_table_lose(struct ferry_stream_flag_table *table)
{
	pthread_mutex_lock(&table->lock);
	for (uint32_t i = 0; i < table->count; i++)
		table->uses[i].lost = true;
	pthread_mutex_unlock(&table->lock);
}

void ferry_stream_flag_table_abandon(struct ferry_stream_flag_table *table)
{
	pthread_mutex_lock(&table->lock);
	for (uint32_t i = 0; i < table->count; i++)
		if (is_over(&table->uses[i]))
			part_with(&table->uses[i]);
		else
			adopt(&table->uses[i]);
	table->count = 0;
	pthread_mutex_unlock(&table->lock);
}

void ferry_stream_flag_table_end(struct ferry_stream_flag_table *table)
{
	ferry_stream_flag_table_abandon(table);
	free(table->uses);
	pthread_mutex_destroy(&table->lock);
	memset(table, 0, sizeof *table);
}

void ferry_stream_flags_before_fork(void)
{
	pthread_mutex_lock(&orphans.lock);
	pthread_mutex_lock(&lock);
}

void ferry_stream_flags_after_fork(bool in_child)
{
	if (in_child) { /* the block is the parent's: this process makes its own when it needs one */
		if (block >= 0)
			close(block);
		flags = NULL;
		block = -1;
		registered = false;
		orphans.count = 0;
		orphans_kept = false;
		pthread_mutex_init(&opening, NULL); /* the thread that held it is not in the child */
	}
	pthread_mutex_unlock(&lock);
	pthread_mutex_unlock(&orphans.lock);
}
