/* SPDX-License-Identifier: Apache-2.0 */
#include "rank-lib/call/exports.h"

#include "ipc/attach.h"
#include "ipc/error.h"
#include "ipc/wait.h"
#include "rank-lib/call/ranges.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HINTS 256 /* a power of 2 */
#define TRIES 8   /* the router unmaps an idle export only after a second: even one repetition is rare */
#define NONE  UINT32_MAX

struct entry {
	uint64_t start, end; /* addresses; 0: free */
	enum ferry_exported_kind kind;
	uint32_t npieces;
	struct ferry_piece *pieces;
	uint64_t generation; /* kept while the entry is free */
	uint64_t last;       /* number of the last submission that names it */
	uint32_t pins;
	uint64_t turn; /* when it was last named */
	bool put_target; /* other ranks put into it, and the routers know that */
	uint64_t seen; /* value of `calls` when its memory was last found to exist */
};

/* A router to which memory is exported. */
struct logged {
	struct ferry_link *link;
	struct ferry_export_cell *cells;
};

struct ferry_exports {
	struct ferry_device *device;
	const _Atomic uint32_t *failed;
	struct ferry_holders *holders;
	struct ferry_journal *journal; /* NULL: none */
	struct logged routers[FERRY_MAX_DOMAINS]; /* the first: of the rank's domain; others get put targets */
	uint32_t nrouters;
	uint64_t turns, calls;
	uint32_t hints[HINTS]; /* by buffer: the index that it was last found under */
	uint32_t nentries; /* all entries that were ever used are below it */
	struct entry entries[FERRY_MOST_EXPORTS];
	struct ferry_pieces found; /* scratch: the pieces of one buffer */
};

ferryResult_t ferry_exports_open(struct ferry_device *device, struct ferry_link *link, const _Atomic uint32_t *failed,
                                 struct ferry_export_cell *cells, struct ferry_holders *holders,
                                 struct ferry_exports **opened)
{
	if (!device->ops->pieces)
		return ferry_fail(ferryInvalidUsage, "%s devices export nothing", device->ops->kind);
	struct ferry_exports *exports = calloc(1, sizeof *exports);
	if (!exports)
		return ferry_fail(ferrySystemError, "no memory for exports");
	exports->device = device;
	exports->failed = failed;
	exports->holders = holders;
	ferry_exports_add_host(exports, link, cells);
	*opened = exports;
	return ferrySuccess;
}

void ferry_exports_add_host(struct ferry_exports *exports, struct ferry_link *link, struct ferry_export_cell *cells)
{
	exports->routers[exports->nrouters++] = (struct logged){link, cells};
}

void ferry_exports_journal(struct ferry_exports *exports, struct ferry_journal *journal)
{
	exports->journal = journal;
}

static void clear(struct ferry_exports *exports, struct entry *entry)
{
	if (entry->end && exports->journal)
		ferry_journal_retire_export(exports->journal, (uint32_t)(entry - exports->entries), entry->last);
	if (entry->end)
		ferry_ranges_remove(entry->start, entry->end, exports->holders);
	free(entry->pieces);
	entry->pieces = NULL;
	entry->start = entry->end = 0;
	entry->npieces = 0;
}

void ferry_exports_close(struct ferry_exports *exports)
{
	if (!exports)
		return;
	for (uint32_t index = 0; index < exports->nentries; index++)
		clear(exports, &exports->entries[index]);
	free(exports);
}

/* ---- finding memory that is exported ---- */

static uint32_t *hint_of(struct ferry_exports *exports, uint64_t start)
{
	return &exports->hints[(start >> 9 ^ start >> 21) & (HINTS - 1)];
}

static bool holds(const struct entry *entry, uint64_t start, uint64_t end)
{
	return entry->end && entry->start <= start && end <= entry->end;
}

/* Whether the entry's memory still exists; asks the driver once per call. */
static bool is_there(struct ferry_exports *exports, struct entry *entry)
{
	if (entry->seen == exports->calls)
		return true;
	if (!exports->device->ops->pieces->are_there(exports->device, entry->pieces, entry->npieces))
		return false;
	entry->seen = exports->calls;
	return true;
}

static uint32_t routers_of(const struct ferry_exports *exports, const struct entry *entry)
{
	return entry->put_target ? exports->nrouters : 1;
}

static uint64_t used_until(const struct entry *entry)
{
	return entry->pins ? FERRY_EXPORT_PINNED : entry->last;
}

/* Stores `used` for all routers that may have the export, and in the journal for a successor. */
static void publish_used(struct ferry_exports *exports, uint32_t index)
{
	const struct entry *entry = &exports->entries[index];
	uint64_t used = used_until(entry);
	if (exports->journal)
		ferry_journal_use_export(exports->journal, index, used);
	uint32_t nrouters = routers_of(exports, entry);
	for (uint32_t i = 0; i < nrouters; i++)
		atomic_store_explicit(&exports->routers[i].cells[index].used, used, memory_order_release);
}

/*
 * Returns the index of the export that holds the range and whose memory exists; NONE: there is none. Frees entries
 * whose memory has gone: their pins no longer count, and the router unmaps the memory when it is idle after the last
 * submission, or when a new export takes the index, with another generation.
 */
static uint32_t find_known(struct ferry_exports *exports, uint64_t start, uint64_t end)
{
	uint32_t *hint = hint_of(exports, start);
	if (holds(&exports->entries[*hint], start, end) && is_there(exports, &exports->entries[*hint]))
		return *hint;
	for (uint32_t index = 0; index < exports->nentries; index++) {
		struct entry *entry = &exports->entries[index];
		if (!holds(entry, start, end))
			continue;
		if (is_there(exports, entry))
			return *hint = index;
		entry->pins = 0;
		publish_used(exports, index);
		clear(exports, entry);
	}
	return NONE;
}

/*
 * Returns a free index, or that of the unpinned export named longest ago; the router keeps its mapping until
 * submissions that name it have ended. NONE: all exports are pinned.
 */
static uint32_t find_place(const struct ferry_exports *exports)
{
	uint32_t oldest = NONE;
	for (uint32_t index = 0; index < exports->nentries; index++) {
		const struct entry *entry = &exports->entries[index];
		if (!entry->end)
			return index;
		if (!entry->pins && (oldest == NONE || entry->turn < exports->entries[oldest].turn))
			oldest = index;
	}
	return exports->nentries < FERRY_MOST_EXPORTS ? exports->nentries : oldest;
}

void ferry_exports_begin(struct ferry_exports *exports)
{
	exports->calls++;
}

bool ferry_exports_hold(struct ferry_exports *exports, const void *buffer, uint64_t bytes)
{
	uint64_t start = (uint64_t)(uintptr_t)buffer;
	return bytes && start + bytes > start && find_known(exports, start, start + bytes) != NONE;
}

/* ---- requests to routers ---- */

static ferryResult_t ask(const struct ferry_exports *exports, uint32_t router, struct ferry_attach_message *message,
                         const void *payload, const int *descriptors)
{
	struct ferry_attach_reply reply;
	return ferry_link_request(exports->routers[router].link, message, payload, descriptors, &reply,
	                          exports->failed);
}

/* Fills in the description that a router gets. */
static ferryResult_t describe(struct ferry_exports *exports, uint32_t index, struct ferry_exported *exported,
                              int *descriptors)
{
	const struct entry *entry = &exports->entries[index];
	*exported = (struct ferry_exported){.index = index,
	                                    .generation = entry->generation,
	                                    .put_target = entry->put_target};
	exports->found.kind = entry->kind;
	exports->found.count = entry->npieces;
	memcpy(exports->found.all, entry->pieces, entry->npieces * sizeof *entry->pieces);
	return exports->device->ops->pieces->name(exports->device, &exports->found, exported, descriptors);
}

static void add_to_journal(struct ferry_exports *exports, const struct ferry_exported *exported,
                           const int *descriptors)
{
	ferry_journal_add_export(exports->journal, exported, descriptors,
	                         used_until(&exports->entries[exported->index]));
}

/* Adds a mapped export that was named again after the journal had dropped it. */
static ferryResult_t journal_again(struct ferry_exports *exports, uint32_t index)
{
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES];
	ferryResult_t result = describe(exports, index, &exported, descriptors);
	if (!result)
		add_to_journal(exports, &exported, descriptors);
	return result;
}

static ferryResult_t send_export(struct ferry_exports *exports, uint32_t index, uint32_t router)
{
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES];
	ferryResult_t result = describe(exports, index, &exported, descriptors);
	if (result)
		return result;
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_EXPORT,
	                                       .descriptors = exported.npieces,
	                                       .payload = ferry_exported_size(&exported)};
	result = ask(exports, router, &message, &exported, descriptors);
	if (!result && exports->journal && router == 0)
		add_to_journal(exports, &exported, descriptors);
	else
		for (uint32_t i = 0; i < exported.npieces; i++)
			close(descriptors[i]);
	/* pieces->find refuses memory that cannot be exported; this is a refusal of the router or its driver */
	return result == ferryInvalidUsage ? ferryInternalError : result;
}

/* Exports memory that is not in the table. */
static ferryResult_t add(struct ferry_exports *exports, const void *buffer, uint64_t bytes, bool put_target,
                         uint32_t *index)
{
	struct ferry_pieces *found = &exports->found;
	ferryResult_t result = exports->device->ops->pieces->find(exports->device, buffer, bytes, found);
	if (result)
		return result;
	uint32_t place = find_place(exports);
	if (place == NONE)
		return ferry_fail(ferryRefused,
		                  "all %u exports of this rank are held by captured or registered buffers",
		                  FERRY_MOST_EXPORTS);
	struct ferry_piece *pieces = malloc(found->count * sizeof *pieces);
	if (!pieces)
		return ferry_fail(ferrySystemError, "no memory for an export of %u pieces", found->count);
	struct entry *entry = &exports->entries[place];
	clear(exports, entry);
	memcpy(pieces, found->all, found->count * sizeof *pieces);
	if (place == exports->nentries)
		exports->nentries++;
	entry->pieces = pieces;
	entry->npieces = found->count;
	entry->kind = found->kind;
	entry->start = pieces[0].start;
	entry->end = pieces[found->count - 1].start + pieces[found->count - 1].bytes;
	ferry_ranges_add(entry->start, entry->end, exports->holders);
	entry->generation++;
	entry->seen = exports->calls;
	entry->pins = 0;
	entry->put_target = put_target;
	if ((result = send_export(exports, place, 0))) {
		clear(exports, entry);
		return result;
	}
	*hint_of(exports, (uint64_t)(uintptr_t)buffer) = *index = place;
	return ferrySuccess;
}

/*
 * The rank's half of the cells' protocol (ipc/export.h). Returns false if *router has not mapped the export. Otherwise
 * all routers have, and keep it as long as `used` says.
 */
static bool use(struct ferry_exports *exports, uint32_t index, uint32_t *router)
{
	const struct entry *entry = &exports->entries[index];
	uint32_t nrouters = routers_of(exports, entry);
	publish_used(exports, index);
	ferry_full_fence();
	for (*router = 0; *router < nrouters; ++*router)
		if (atomic_load_explicit(&exports->routers[*router].cells[index].mapped, memory_order_acquire) !=
		    entry->generation)
			return false;
	return true;
}

bool ferry_exports_have(struct ferry_exports *exports, const void *buffer, uint64_t bytes, bool put_target)
{
	uint64_t start = (uint64_t)(uintptr_t)buffer;
	uint32_t index = bytes && start + bytes > start ? find_known(exports, start, start + bytes) : NONE;
	if (index == NONE || (put_target && !exports->entries[index].put_target))
		return false;
	const struct entry *entry = &exports->entries[index];
	for (uint32_t router = 0; router < routers_of(exports, entry); router++)
		if (atomic_load_explicit(&exports->routers[router].cells[index].mapped, memory_order_relaxed) !=
		    entry->generation)
			return false;
	return true;
}

static bool is_in_journal(const struct ferry_exports *exports, uint32_t index)
{
	return !exports->journal || ferry_journal_has_export(exports->journal, index);
}

/*
 * Has the routers map the export if they have not; more: also as put target. A router that took over before the journal
 * had the export lacks it: so the routers are checked once more after it was added to the journal.
 */
static ferryResult_t have_mapped(struct ferry_exports *exports, uint32_t index, bool more)
{
	uint32_t router;
	ferryResult_t result = more ? send_export(exports, index, 0) : ferrySuccess;
	bool added = false;
	for (uint32_t attempt = 0; !result; attempt++) {
		if (use(exports, index, &router)) {
			if (added || is_in_journal(exports, index))
				return ferrySuccess;
			added = true;
			result = journal_again(exports, index);
		} else {
			result = attempt < TRIES * exports->nrouters
			                 ? send_export(exports, index, router)
			                 : ferry_fail(ferryInternalError,
			                              "the router has not mapped export %u, and says it has", index);
		}
	}
	return result;
}

ferryResult_t ferry_exports_name(struct ferry_exports *exports, const void *buffer, uint64_t bytes, uint64_t submission,
                                 bool pin, bool put_target, struct ferry_buffer_name *name)
{
	uint64_t start = (uint64_t)(uintptr_t)buffer;
	ferryResult_t result = ferrySuccess;
	if (!bytes || start + bytes < start)
		return ferry_fail(ferryInvalidArgument, "buffer %p of %llu bytes", buffer, (unsigned long long)bytes);
	uint32_t index = find_known(exports, start, start + bytes);
	if (index == NONE && (result = add(exports, buffer, bytes, put_target, &index)))
		return result;
	struct entry *entry = &exports->entries[index];
	bool more = put_target && !entry->put_target;
	entry->put_target |= put_target;
	entry->pins += pin;
	if (submission > entry->last)
		entry->last = submission;
	entry->turn = ++exports->turns;
	if ((result = have_mapped(exports, index, more))) {
		entry->pins -= pin;
		publish_used(exports, index);
		entry->put_target &= !more;
		return result;
	}
	*name = (struct ferry_buffer_name){
	        .index = index, .generation = entry->generation, .offset = start - entry->start};
	return ferrySuccess;
}

static struct entry *entry_of(struct ferry_exports *exports, const struct ferry_buffer_name *name)
{
	struct entry *entry = &exports->entries[name->index];
	return entry->end && entry->generation == name->generation ? entry : NULL;
}

void ferry_exports_unpin(struct ferry_exports *exports, const struct ferry_buffer_name *name)
{
	struct entry *entry = entry_of(exports, name);
	if (entry && entry->pins && !--entry->pins)
		publish_used(exports, name->index);
}

/* Frees the index; the routers unmap the export, which is not awaited if the rank has failed. flags: of FORGET. */
static ferryResult_t forget(struct ferry_exports *exports, uint32_t index, uint32_t flags)
{
	struct entry *entry = &exports->entries[index];
	struct ferry_attach_message message = {.kind = FERRY_ATTACH_FORGET, .flags = flags, .index = index};
	uint32_t nrouters = routers_of(exports, entry);
	clear(exports, entry);
	ferryResult_t result = ferrySuccess;
	for (uint32_t router = 0; router < nrouters && !result; router++)
		result = ask(exports, router, &message, NULL, NULL);
	if (!result || !atomic_load_explicit(exports->failed, memory_order_acquire))
		return result;
	ferry_forget_message(); /* the router unmaps all exports of a rank that ends */
	return ferrySuccess;
}

ferryResult_t ferry_exports_forget(struct ferry_exports *exports, const struct ferry_buffer_name *name)
{
	const struct entry *entry = entry_of(exports, name);
	return entry && !entry->pins ? forget(exports, name->index, 0) : ferrySuccess;
}

/* Returns false if all routers have unmapped the export because it was idle. */
static bool is_mapped(const struct ferry_exports *exports, uint32_t index)
{
	const struct entry *entry = &exports->entries[index];
	for (uint32_t router = 0; router < routers_of(exports, entry); router++) {
		uint64_t mapped = atomic_load_explicit(&exports->routers[router].cells[index].mapped,
		                                       memory_order_acquire);
		if (mapped == entry->generation || mapped == FERRY_EXPORT_LEAVING)
			return true;
	}
	return false;
}

bool ferry_exports_forget_range(struct ferry_exports *exports, uint64_t start, uint64_t end, uint64_t over, bool gone)
{
	bool left = false;
	ferry_exports_begin(exports);
	for (uint32_t index = 0; index < exports->nentries; index++) {
		struct entry *entry = &exports->entries[index];
		if (entry->start >= end || start >= entry->end || (gone && is_there(exports, entry)))
			continue;
		if (!gone && (entry->pins || entry->last > over)) {
			left = true;
			continue;
		}
		entry->pins = 0;
		publish_used(exports, index);
		if (!is_mapped(exports, index))
			clear(exports, entry);
		else if (forget(exports, index, FERRY_ATTACH_UNMAPPED))
			ferry_forget_message();
	}
	return left;
}
