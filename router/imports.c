/* SPDX-License-Identifier: Apache-2.0 */
#include "router/imports.h"

#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/later_export.h"

#include <stdlib.h>
#include <string.h>

#define SWEEP_NS 250000000 /* how often idle ones are looked for; */
#define BUSY_NS  10000000  /* and those that are to be unmapped and still in use */

struct ferry_imports *ferry_imports_new(uint32_t rank, const uint8_t *uuid, struct ferry_export_cell *cells)
{
	struct ferry_imports *imports = calloc(1, sizeof *imports);
	if (!imports)
		return NULL;
	imports->rank = rank;
	imports->cells = cells;
	memcpy(imports->uuid, uuid, sizeof imports->uuid);
	pthread_mutex_init(&imports->lock, NULL);
	pthread_cond_init(&imports->quiet, NULL);
	return imports;
}

struct ferry_imports *ferry_imports_new_guest(uint32_t rank, const uint8_t *uuid, struct ferry_export_cell *cells)
{
	struct ferry_imports *imports = ferry_imports_new(rank, uuid, cells);
	if (imports)
		imports->guest = true;
	return imports;
}

void ferry_imports_follow(struct ferry_imports *imports, const _Atomic uint64_t *over)
{
	atomic_store_explicit(&imports->over, over, memory_order_release);
}

ferryResult_t ferry_imports_open(struct ferry_imports *imports, struct ferry_gpus *gpus)
{
	struct ferry_gpu *gpu;
	ferryResult_t result = ferry_gpus_hold(gpus, imports->uuid, &gpu);
	if (!result)
		atomic_store_explicit(&imports->gpu, gpu, memory_order_release);
	return result;
}

void ferry_imports_other(struct ferry_imports *imports, struct ferry_gpu *gpu)
{
	if (gpu == ferry_imports_gpu(imports))
		return;
	for (uint32_t i = 0; i < imports->nothers; i++)
		if (imports->others[i] == gpu)
			return;
	imports->others[imports->nothers++] = gpu;
}

void ferry_imports_await_others(struct ferry_imports *imports)
{
	imports->awaits_others = true;
}

/* ---- lanes ---- */

/* Under the lock. A submission that was made before the index was exported anew names what is retired now. */
static struct ferry_import *find(const struct ferry_imports *imports, uint32_t index, uint64_t generation)
{
	struct ferry_import *import = imports->table[index];
	if (import && import->generation == generation)
		return import;
	for (import = imports->retired; import; import = import->next)
		if (import->index == index && import->generation == generation)
			return import;
	return NULL;
}

static ferryResult_t say_unknown(const struct ferry_imports *imports, const struct ferry_buffer_name *name,
                                 uint64_t mapped)
{
	return ferry_fail(ferryInvalidUsage,
	                  "rank %u names generation %llu of its export %u (of %u), of which generation %llu is mapped",
	                  imports->rank, (unsigned long long)name->generation, name->index, FERRY_MOST_EXPORTS,
	                  (unsigned long long)mapped);
}

/* Under the lock. What has not been exported as a landing nobody puts into, whoever names it. */
static char *start_for(const struct ferry_imports *imports, const struct ferry_import *import,
                       const struct ferry_gpu *gpu)
{
	if (!import->landings)
		return NULL;
	if (gpu == ferry_imports_gpu(imports))
		return import->mapping.address;
	for (uint32_t i = 0; i < import->nlandings; i++)
		if (import->landings[i].gpu == gpu)
			return import->landings[i].mapping.address;
	return NULL;
}

ferryResult_t ferry_imports_land(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 const struct ferry_gpu *gpu, char **address, struct ferry_import **held)
{
	if (name->index >= FERRY_MOST_EXPORTS)
		return say_unknown(imports, name, 0);
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *import = find(imports, name->index, name->generation);
	uint64_t size = import ? import->mapping.bytes : 0;
	char *start = import && name->offset <= size && bytes <= size - name->offset ? start_for(imports, import, gpu)
	                                                                             : NULL;
	bool shut = imports->shut;
	if (start && !shut) {
		import->users++;
		import->takes++;
		imports->putting++;
		*address = start + name->offset;
		*held = import;
	}
	pthread_mutex_unlock(&imports->lock);
	if (shut)
		return ferry_fail(ferryRemoteError, "rank %u has left the communicator", imports->rank);
	return start ? ferrySuccess
	             : ferry_fail(ferryInvalidUsage,
	                          "%llu bytes at %llu of generation %llu of export %u of rank %u, which has %llu: "
	                          "nothing that another GPU could put into",
	                          (unsigned long long)bytes, (unsigned long long)name->offset,
	                          (unsigned long long)name->generation, name->index, imports->rank,
	                          (unsigned long long)size);
}

void ferry_imports_let_go(struct ferry_import *held)
{
	struct ferry_imports *imports = held->owner;
	pthread_mutex_lock(&imports->lock);
	held->users--;
	if (!--imports->putting)
		pthread_cond_broadcast(&imports->quiet);
	pthread_mutex_unlock(&imports->lock);
}

void ferry_imports_shut(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	imports->shut = true;
	while (imports->putting)
		pthread_cond_wait(&imports->quiet, &imports->lock);
	pthread_mutex_unlock(&imports->lock);
}

ferryResult_t ferry_imports_take(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 char **address, struct ferry_import **held)
{
	uint64_t size = 0, mapped = 0;
	if (name->index >= FERRY_MOST_EXPORTS)
		return say_unknown(imports, name, 0);
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *import = find(imports, name->index, name->generation);
	if (import)
		size = import->mapping.bytes;
	else if (imports->table[name->index])
		mapped = imports->table[name->index]->generation;
	bool inside = import && name->offset <= size && bytes <= size - name->offset;
	if (inside) {
		import->users++;
		import->takes++;
		*address = import->mapping.address + name->offset;
		*held = import;
	}
	pthread_mutex_unlock(&imports->lock);
	if (!import)
		return say_unknown(imports, name, mapped);
	return inside ? ferrySuccess
	              : ferry_fail(ferryInvalidUsage,
	                           "rank %u names %llu bytes at %llu of its export %u, which has %llu", imports->rank,
	                           (unsigned long long)bytes, (unsigned long long)name->offset, name->index,
	                           (unsigned long long)size);
}

void ferry_imports_release(struct ferry_import *held)
{
	struct ferry_imports *imports = held->owner;
	pthread_mutex_lock(&imports->lock);
	held->users--;
	pthread_mutex_unlock(&imports->lock);
}

/* ---- the mapper: all of them unmap behind the lock ---- */

static void unmap_landings(struct ferry_landing_map *landings, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		ferry_gpu_unmap(landings[i].gpu, &landings[i].mapping);
		ferry_gpu_drop(landings[i].gpu);
	}
	free(landings);
}

/* When it is known for whom. */
static ferryResult_t map_later(struct ferry_imports *imports, const struct ferry_exported *exported,
                               const int *descriptors, struct ferry_import *import)
{
	if (exported->npieces > FERRY_MOST_LATER_PIECES - imports->later_pieces)
		return ferry_fail(ferrySystemError,
		                  "exports of %u pieces before all ranks have come: at most %u are kept so long",
		                  imports->later_pieces + exported->npieces, FERRY_MOST_LATER_PIECES);
	imports->later_pieces += exported->npieces;
	return ferry_later_export_new(exported, descriptors, &import->later);
}

/* For all GPUs that reach it. Nothing is left where one fails. */
static ferryResult_t map_landings(const struct ferry_imports *imports, const struct ferry_exported *exported,
                                  const int *descriptors, struct ferry_landing_map **mapped)
{
	struct ferry_landing_map *landings = calloc(imports->nothers + 1, sizeof *landings);
	if (!landings)
		return ferry_fail(ferrySystemError, "no memory for an export");
	for (uint32_t i = 0; i < imports->nothers; i++) {
		landings[i].gpu = imports->others[i];
		ferryResult_t result = ferry_gpu_map(landings[i].gpu, exported, descriptors, &landings[i].mapping);
		if (result) {
			unmap_landings(landings, i);
			return result;
		}
		ferry_gpu_hold(landings[i].gpu);
	}
	*mapped = landings;
	return ferrySuccess;
}

/* Under the lock, not abandoned. */
static uint64_t used_of(const struct ferry_imports *imports, uint32_t index)
{
	return atomic_load_explicit(&imports->cells[index].used, memory_order_acquire);
}

static void say_mapped(const struct ferry_imports *imports, uint32_t index, uint64_t generation)
{
	atomic_store_explicit(&imports->cells[index].mapped, generation, memory_order_release);
}

static bool is_leaving(const struct ferry_imports *imports, uint32_t index)
{
	return atomic_load_explicit(&imports->cells[index].mapped, memory_order_relaxed) == FERRY_EXPORT_LEAVING;
}

static void unmap_list(struct ferry_imports *imports, struct ferry_import *list)
{
	while (list) {
		struct ferry_import *import = list;
		list = import->next;
		unmap_landings(import->landings, import->nlandings);
		ferry_later_export_free(import->later);
		if (!imports->guest)
			ferry_gpu_unmap(ferry_imports_gpu(imports), &import->mapping);
		pthread_mutex_lock(&imports->lock);
		/* and not for an older one of that index, which was replaced and goes in front of it */
		if (import->leaves && imports->cells && is_leaving(imports, import->index))
			say_mapped(imports, import->index, 0);
		pthread_mutex_unlock(&imports->lock);
		free(import);
	}
}

/* Under the lock. */
static uint64_t ended_of(const struct ferry_imports *imports)
{
	const _Atomic uint64_t *over = atomic_load_explicit(&imports->over, memory_order_acquire);
	return atomic_load_explicit(over ? over : &imports->ended, memory_order_acquire);
}

/* Under the lock. */
static void retire(struct ferry_imports *imports, struct ferry_import *import)
{
	/* A pin is no submission: what was captured or registered has been given up by who has it replaced. */
	uint64_t used = used_of(imports, import->index);
	import->last = used == FERRY_EXPORT_PINNED ? 0 : used;
	import->next = imports->retired;
	imports->retired = import;
	imports->nretired++;
}

/* Under the lock: takes those retired that are not in use out of their list. */
static struct ferry_import *reap(struct ferry_imports *imports, struct ferry_import *list)
{
	uint64_t ended = imports->cells ? ended_of(imports) : UINT64_MAX;
	for (struct ferry_import **link = &imports->retired; *link;) {
		struct ferry_import *import = *link;
		if (import->users || import->last > ended) {
			link = &import->next;
			continue;
		}
		*link = import->next;
		import->next = list;
		list = import;
		imports->nretired--;
	}
	return list;
}

static ferryResult_t check_new(const struct ferry_imports *imports, const struct ferry_exported *exported)
{
	const struct ferry_import *old = imports->table[exported->index];
	if (memcmp(exported->gpu, imports->uuid, sizeof imports->uuid))
		return ferry_fail(ferryInvalidArgument,
		                  "rank %u exports memory of another GPU than the one that it has attached with",
		                  imports->rank);
	if (imports->guest && (!exported->landing || (!imports->nothers && !imports->awaits_others)))
		return ferry_fail(ferryInvalidArgument,
		                  "rank %u of another domain exports memory that none of this router's GPUs puts into",
		                  imports->rank);
	if (old && (exported->generation < old->generation ||
	            (exported->generation == old->generation && exported->bytes != old->mapping.bytes)))
		return ferry_fail(ferryInvalidArgument,
		                  "rank %u exports generation %llu of %u (%llu bytes), where generation %llu (%llu "
		                  "bytes) is mapped",
		                  imports->rank, (unsigned long long)exported->generation, exported->index,
		                  (unsigned long long)exported->bytes, (unsigned long long)old->generation,
		                  (unsigned long long)old->mapping.bytes);
	if (imports->nretired >= FERRY_MOST_EXPORTS)
		return ferry_fail(ferryRefused, "%u exports of rank %u that others have replaced are still in use",
		                  imports->nretired, imports->rank);
	return ferrySuccess;
}

/* It is used, after so long: it is kept for longer at once, and for less by and by. */
static void note_use(struct ferry_import *import, uint64_t now)
{
	uint64_t interval = now - import->busy_ns, wanted = FERRY_IMPORT_IDLE_NS;
	if (interval < FERRY_IMPORT_IDLE_MOST_NS) /* else it would be gone all the same */
		wanted = 2 * interval < FERRY_IMPORT_IDLE_MOST_NS ? 2 * interval : FERRY_IMPORT_IDLE_MOST_NS;
	wanted = wanted < FERRY_IMPORT_IDLE_NS ? FERRY_IMPORT_IDLE_NS : wanted;
	import->idle_ns = wanted > import->idle_ns ? wanted : import->idle_ns - (import->idle_ns - wanted) / 8;
	import->busy_ns = now;
}

/* Under the lock: whether the rank's export is mapped already, as it is wanted now, and stays. */
static bool is_mapped(struct ferry_imports *imports, const struct ferry_exported *exported)
{
	struct ferry_import *old = imports->table[exported->index];
	if (!old || old->generation != exported->generation ||
	    (exported->landing && !old->landings && !old->later))
		return false;
	note_use(old, ferry_now_ns());
	say_mapped(imports, exported->index, exported->generation);
	return true;
}

/* Not in the table yet. */
static ferryResult_t import_new(struct ferry_imports *imports, const struct ferry_exported *exported,
                                const int *descriptors, struct ferry_import **made)
{
	struct ferry_import *import = calloc(1, sizeof *import);
	if (!import)
		return ferry_fail(ferrySystemError, "no memory for an export");
	*import = (struct ferry_import){
	        .owner = imports, .index = exported->index, .generation = exported->generation};
	import->mapping.bytes = exported->bytes; /* a guest's: of each landing, as is checked there */
	ferryResult_t result = imports->guest ? ferrySuccess
	                                      : ferry_gpu_map(ferry_imports_gpu(imports), exported, descriptors,
	                                                      &import->mapping);
	if (result) {
		free(import);
		return result;
	}
	if (exported->landing && imports->awaits_others) {
		result = map_later(imports, exported, descriptors, import);
	} else if (exported->landing) {
		result = map_landings(imports, exported, descriptors, &import->landings);
		import->nlandings = result ? 0 : imports->nothers;
	}
	const struct ferry_import_past *past = &imports->past[exported->index];
	bool again = past->generation == exported->generation;
	uint64_t now = ferry_now_ns();
	import->busy_ns = again ? past->busy_ns : now;
	import->idle_ns = again ? past->idle_ns : FERRY_IMPORT_IDLE_NS;
	note_use(import, now);
	*made = import;
	if (result)
		unmap_list(imports, import);
	return result;
}

/* Under the lock: what the rank has exported without landings, and now wants with them. NULL: nothing such. */
static struct ferry_import *find_without_landings(const struct ferry_imports *imports,
                                                  const struct ferry_exported *exported)
{
	struct ferry_import *import = imports->table[exported->index];
	return import && import->generation == exported->generation ? import : NULL;
}

/* The mapper alone takes imports out of the table, so it stays there meanwhile. */
static ferryResult_t add_landings(struct ferry_imports *imports, const struct ferry_exported *exported,
                                  const int *descriptors, struct ferry_import *import)
{
	struct ferry_landing_map *landings = NULL;
	ferryResult_t result = imports->awaits_others ? map_later(imports, exported, descriptors, import)
	                                              : map_landings(imports, exported, descriptors, &landings);
	if (result)
		return result;
	pthread_mutex_lock(&imports->lock);
	import->landings = landings;
	import->nlandings = landings ? imports->nothers : 0;
	if (imports->cells)
		say_mapped(imports, import->index, import->generation);
	pthread_mutex_unlock(&imports->lock);
	return ferrySuccess;
}

/* One whose landings are to be mapped, as it is named now or was before. NULL: none. */
static struct ferry_import *find_later(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *import = imports->retired;
	while (import && !import->later)
		import = import->next;
	for (uint32_t index = 0; !import && index < FERRY_MOST_EXPORTS; index++)
		if (imports->table[index] && imports->table[index]->later)
			import = imports->table[index];
	pthread_mutex_unlock(&imports->lock);
	return import;
}

static void forget_later(struct ferry_import *import)
{
	ferry_later_export_free(import->later);
	import->later = NULL;
}

ferryResult_t ferry_imports_land_later(struct ferry_imports *imports)
{
	struct ferry_import *import;
	imports->awaits_others = false;
	while ((import = find_later(imports))) {
		struct ferry_landing_map *landings;
		/* It stays where it is: it is taken out by this thread alone. */
		ferryResult_t result = map_landings(imports, &import->later->exported, import->later->descriptors,
		                                    &landings);
		if (result)
			return ferry_fail_context(result, "export %u of rank %u, for others", import->index,
			                          imports->rank);
		pthread_mutex_lock(&imports->lock);
		import->landings = landings;
		import->nlandings = imports->nothers;
		pthread_mutex_unlock(&imports->lock);
		forget_later(import);
	}
	return ferrySuccess;
}

bool ferry_imports_do_without(struct ferry_imports *imports)
{
	struct ferry_import *import = imports->guest ? find_later(imports) : NULL;
	if (!import)
		return false;
	ferry_log(FERRY_LOG_INFO, "%s: nobody puts into that", ferry_last_message());
	forget_later(import);
	pthread_mutex_lock(&imports->lock);
	bool named = imports->table[import->index] == import;
	pthread_mutex_unlock(&imports->lock);
	if (named)
		ferry_imports_forget(imports, import->index);
	return true;
}

static ferryResult_t map_anew(struct ferry_imports *imports, const struct ferry_exported *exported,
                              const int *descriptors)
{
	uint32_t index = exported->index;
	struct ferry_import *import = NULL, *gone = NULL;
	ferryResult_t result = import_new(imports, exported, descriptors, &import);
	if (result)
		return result;
	pthread_mutex_lock(&imports->lock);
	if (imports->cells) {
		if (imports->table[index])
			retire(imports, imports->table[index]);
		imports->table[index] = import;
		import->seen_used = used_of(imports, index);
		say_mapped(imports, index, import->generation);
	} else {
		gone = import;
	}
	gone = reap(imports, gone);
	pthread_mutex_unlock(&imports->lock);
	unmap_list(imports, gone);
	return ferrySuccess;
}

ferryResult_t ferry_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported,
                                const int *descriptors)
{
	pthread_mutex_lock(&imports->lock);
	ferryResult_t result = check_new(imports, exported);
	bool over = result || !imports->cells || is_mapped(imports, exported);
	struct ferry_import *known = over ? NULL : find_without_landings(imports, exported);
	pthread_mutex_unlock(&imports->lock);
	if (over)
		return result;
	result = known ? add_landings(imports, exported, descriptors, known)
	               : map_anew(imports, exported, descriptors);
	return result ? ferry_fail_context(result, "export %u of rank %u, %llu bytes", exported->index, imports->rank,
	                                   (unsigned long long)exported->bytes)
	              : ferrySuccess;
}

void ferry_imports_forget(struct ferry_imports *imports, uint32_t index)
{
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	if (imports->cells && imports->table[index]) {
		retire(imports, imports->table[index]);
		imports->table[index] = NULL;
		say_mapped(imports, index, 0);
		gone = reap(imports, gone);
	}
	pthread_mutex_unlock(&imports->lock);
	unmap_list(imports, gone);
}

bool ferry_imports_keep(struct ferry_imports *imports, uint32_t index)
{
	bool kept = false;
	pthread_mutex_lock(&imports->lock);
	for (const struct ferry_import *import = imports->retired; import && !kept; import = import->next)
		kept = import->index == index;
	pthread_mutex_unlock(&imports->lock);
	return kept;
}

/* What is taken out: all that nobody uses; what is idle for as long as it may be; for the least time. */
enum idleness { UNUSED, IDLE, IDLE_AT_ALL };

/* Under the lock: nothing of it has been used since an idle time ago. */
static bool is_idle(struct ferry_imports *imports, struct ferry_import *import, uint64_t now,
                    enum idleness least)
{
	uint64_t used = used_of(imports, import->index);
	if (import->users || import->takes != import->seen_takes || used != import->seen_used ||
	    used > ended_of(imports)) {
		import->seen_takes = import->takes;
		import->seen_used = used;
		note_use(import, now);
	}
	return now - import->busy_ns >= (least == IDLE_AT_ALL ? FERRY_IMPORT_IDLE_NS : import->idle_ns);
}

/* Under the lock: the router's half of the cell's protocol. True: no submission names it that has not ended, and none
 * will. */
static bool withdraw(struct ferry_imports *imports, struct ferry_import *import)
{
	struct ferry_export_cell *cell = &imports->cells[import->index];
	atomic_store_explicit(&cell->mapped, FERRY_EXPORT_LEAVING, memory_order_relaxed);
	ferry_full_fence();
	/* Not what is_idle saw: the rank may have stored another number since, and then it is to find this mapped. */
	if (atomic_load_explicit(&cell->used, memory_order_relaxed) <= ended_of(imports))
		return true;
	say_mapped(imports, import->index, import->generation);
	return false;
}

/* Under the lock: takes those out of the table, and of those replaced. True if some stay; *kept: some longer than the
 * least time. */
static bool take_out(struct ferry_imports *imports, enum idleness least, struct ferry_import **gone, bool *kept)
{
	uint64_t now = ferry_now_ns();
	bool some = false;
	*kept = false;
	for (uint32_t index = 0; imports->cells && index < FERRY_MOST_EXPORTS; index++) {
		struct ferry_import *import = imports->table[index];
		if (!import)
			continue;
		if ((least == UNUSED ? import->users : !is_idle(imports, import, now, least)) ||
		    !withdraw(imports, import)) {
			some = true;
			*kept |= now - import->busy_ns >= FERRY_IMPORT_IDLE_NS;
			continue;
		}
		imports->table[index] = NULL;
		import->leaves = true;
		imports->past[index] =
		        (struct ferry_import_past){import->generation, import->busy_ns, import->idle_ns};
		import->next = *gone;
		*gone = import;
	}
	*gone = reap(imports, *gone);
	return some;
}

bool ferry_imports_clear(struct ferry_imports *imports)
{
	struct ferry_import *gone = NULL;
	bool kept;
	pthread_mutex_lock(&imports->lock);
	take_out(imports, UNUSED, &gone, &kept);
	pthread_mutex_unlock(&imports->lock);
	bool some = gone != NULL;
	unmap_list(imports, gone);
	return some;
}

/* Of a guest's GPU it is not known here. */
static bool is_short(const struct ferry_imports *imports)
{
	return !imports->guest && ferry_gpu_is_short(ferry_imports_gpu(imports));
}

int64_t ferry_imports_sweep(struct ferry_imports *imports)
{
	struct ferry_import *gone = NULL;
	bool kept, again;
	pthread_mutex_lock(&imports->lock);
	bool some = take_out(imports, IDLE, &gone, &kept);
	pthread_mutex_unlock(&imports->lock);
	if (kept && is_short(imports)) { /* lanes wait for the lock, so the driver is asked without it */
		pthread_mutex_lock(&imports->lock);
		some = take_out(imports, IDLE_AT_ALL, &gone, &again);
		pthread_mutex_unlock(&imports->lock);
	}
	pthread_mutex_lock(&imports->lock);
	bool waits = imports->retired != NULL;
	pthread_mutex_unlock(&imports->lock);
	unmap_list(imports, gone);
	return waits ? BUSY_NS : some ? SWEEP_NS : -1;
}

/* ---- the end ---- */

void ferry_imports_abandon(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	for (uint32_t index = 0; index < FERRY_MOST_EXPORTS; index++) {
		if (!imports->table[index])
			continue;
		retire(imports, imports->table[index]);
		imports->table[index] = NULL;
	}
	imports->cells = NULL;
	pthread_mutex_unlock(&imports->lock);
}

bool ferry_imports_free(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *gone = reap(imports, NULL);
	bool empty = !imports->retired;
	pthread_mutex_unlock(&imports->lock);
	unmap_list(imports, gone);
	if (!empty)
		return false;
	if (ferry_imports_gpu(imports))
		ferry_gpu_drop(ferry_imports_gpu(imports));
	pthread_cond_destroy(&imports->quiet);
	pthread_mutex_destroy(&imports->lock);
	free(imports);
	return true;
}
