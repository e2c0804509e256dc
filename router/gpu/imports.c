/* SPDX-License-Identifier: Apache-2.0 */
#include "router/gpu/imports.h"

#include "ipc/error.h"
#include "ipc/quarantine.h"

#include <stdlib.h>
#include <string.h>

#define IDLE_NS       1000000000ull  /* an import that was not used for so long is unmapped, */
#define COMES_BACK_NS 20000000000ull /* or for so long, where its rank comes back to it */

#define SWEEP_NS 250000000 /* how often the mapper sweeps for idle imports; */
#define BUSY_NS  10000000  /* and for imports that are to be unmapped and still in use */

/* An export whose put targets are mapped when all ranks have come. Its descriptors are its own. */
struct ferry_later_export {
	struct ferry_exported exported;
	int descriptors[FERRY_MOST_PIECES];
};

void ferry_imports_init(struct ferry_imports *imports, uint32_t rank, const uint8_t *uuid,
                        struct ferry_export_cell *cells, bool foreign_rank)
{
	*imports = (struct ferry_imports){.rank = rank, .foreign_rank = foreign_rank, .cells = cells};
	memcpy(imports->uuid, uuid, sizeof imports->uuid);
	pthread_mutex_init(&imports->lock, NULL);
	pthread_cond_init(&imports->quiet, NULL);
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

/* ---- lanes ---- */

/* Under the lock. A submission that was made before the index was exported anew names the REPLACED import. */
static struct ferry_import *find(const struct ferry_imports *imports, uint32_t index, uint64_t generation)
{
	struct ferry_import *import = index < FERRY_MOST_EXPORTS ? imports->table[index] : NULL;
	if (import && import->generation == generation)
		return import;
	for (import = imports->nreplaced ? imports->list : NULL; import; import = import->next)
		if (import->index == index && import->generation == generation)
			return import;
	return NULL;
}

/*
 * Under the lock. The address for pushes of that GPU, or (NULL) for copies of the own rank's lanes. Returns NULL where
 * the memory has not been exported as a put target for the GPU.
 */
static char *start_for(const struct ferry_import *import, const struct ferry_gpu *gpu)
{
	if (!gpu)
		return import->mapping.address;
	if (import->put_targets && gpu == ferry_imports_gpu(import->owner))
		return import->mapping.address;
	for (uint32_t i = 0; i < import->nput_targets; i++)
		if (import->put_targets[i].gpu == gpu)
			return import->put_targets[i].mapping.address;
	return NULL;
}

ferryResult_t ferry_imports_take(struct ferry_imports *imports, const struct ferry_buffer_name *name, uint64_t bytes,
                                 const struct ferry_gpu *gpu, char **address, struct ferry_import **held)
{
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *import = find(imports, name->index, name->generation);
	uint64_t size = import ? import->mapping.bytes : 0;
	bool inside = import && name->offset <= size && bytes <= size - name->offset, shut = imports->shut;
	char *start = inside && !shut ? start_for(import, gpu) : NULL;
	if (start) {
		import->users++;
		import->taken = true;
		imports->users++;
		*address = start + name->offset;
		*held = import;
	}
	pthread_mutex_unlock(&imports->lock);
	if (shut)
		return ferry_fail(ferryRemoteError, "rank %u has left the communicator", imports->rank);
	return start ? ferrySuccess
	             : ferry_fail(ferryInvalidUsage,
	                          "%llu bytes at %llu of generation %llu of export %u of rank %u, which has %llu%s",
	                          (unsigned long long)bytes, (unsigned long long)name->offset,
	                          (unsigned long long)name->generation, name->index, imports->rank,
	                          (unsigned long long)size, gpu ? ": nothing that another GPU could put into" : "");
}

void ferry_imports_release(struct ferry_import *held)
{
	struct ferry_imports *imports = held->owner;
	pthread_mutex_lock(&imports->lock);
	held->users--;
	if (!--imports->users && imports->shut)
		pthread_cond_broadcast(&imports->quiet);
	pthread_mutex_unlock(&imports->lock);
}

void ferry_imports_shut(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	imports->shut = true;
	while (imports->users)
		pthread_cond_wait(&imports->quiet, &imports->lock);
	pthread_mutex_unlock(&imports->lock);
}

/* ---- states: under the lock ---- */

static uint64_t used_of(const struct ferry_imports *imports, uint32_t index)
{
	return atomic_load_explicit(&imports->cells[index].used, memory_order_acquire);
}

static void publish_mapped(const struct ferry_imports *imports, uint32_t index, uint64_t generation)
{
	atomic_store_explicit(&imports->cells[index].mapped, generation, memory_order_release);
}

/* The last submission that has ended, with all before it. */
static uint64_t last_ended(const struct ferry_imports *imports)
{
	const _Atomic uint64_t *over = atomic_load_explicit(&imports->over, memory_order_acquire);
	return atomic_load_explicit(over ? over : &imports->ended, memory_order_acquire);
}

static void replace(struct ferry_imports *imports, struct ferry_import *import)
{
	/*
	 * A pin is no submission: a rank that replaces an import has given up its captured calls and registered buffers
	 * there.
	 */
	uint64_t used = used_of(imports, import->index);
	import->last = used == FERRY_EXPORT_PINNED ? 0 : used;
	import->state = FERRY_IMPORT_REPLACED;
	imports->table[import->index] = NULL;
	imports->nreplaced++;
}

/* The imports to unmap in one pass over a rank's imports, beside REPLACED ones that are not used any more. */
struct pass {
	enum { NO_MORE, IDLE_ONES, UNUSED_ONES } which;
	uint64_t now;
	bool knows_room, wants_room;
	uint64_t room, kept; /* idle bytes that may stay; that do */
	struct ferry_import *gone;
};

static uint64_t idle_for(struct ferry_imports *imports, struct ferry_import *import, uint64_t now)
{
	uint64_t used = used_of(imports, import->index);
	if (import->users || import->taken || used != import->seen_used || used > last_ended(imports)) {
		import->taken = false;
		import->seen_used = used;
		import->used_ns = now;
	}
	return now - import->used_ns;
}

static bool is_idle(struct ferry_imports *imports, struct ferry_import *import, struct pass *pass)
{
	uint64_t idle = idle_for(imports, import, pass->now);
	if (idle < IDLE_NS)
		return false;
	if (!import->comes_back || idle >= COMES_BACK_NS)
		return true;
	pass->wants_room |= !pass->knows_room;
	if (pass->knows_room && import->mapping.bytes > pass->room - pass->kept)
		return true;
	pass->kept += pass->knows_room ? import->mapping.bytes : 0;
	return false;
}

/* The router's half of the cell's protocol. True: no submission names it that has not ended, and none will. */
static bool withdraw(struct ferry_imports *imports, struct ferry_import *import)
{
	struct ferry_export_cell *cell = &imports->cells[import->index];
	atomic_store_explicit(&cell->mapped, FERRY_EXPORT_LEAVING, memory_order_relaxed);
	ferry_full_fence();
	/* A new load: the rank may have stored another number since idle_for, and must then find this mapped. */
	if (atomic_load_explicit(&cell->used, memory_order_relaxed) <= last_ended(imports))
		return true;
	publish_mapped(imports, import->index, import->generation);
	return false;
}

/* True: it leaves the list, and is to be unmapped. */
static bool step(struct ferry_imports *imports, struct ferry_import *import, struct pass *pass)
{
	switch (import->state) {
	case FERRY_IMPORT_MAPPED:
		if (pass->which == NO_MORE)
			return false;
		if (pass->which == IDLE_ONES ? !is_idle(imports, import, pass) : import->users > 0)
			return false;
		if (!withdraw(imports, import))
			return false;
		import->state = FERRY_IMPORT_LEAVING;
		imports->table[import->index] = NULL;
		imports->idled[import->index] = import->generation;
		return true;
	case FERRY_IMPORT_REPLACED:
		if (import->users || (imports->cells && import->last > last_ended(imports)))
			return false;
		imports->nreplaced--;
		return true;
	case FERRY_IMPORT_LEAVING:
		break; /* it is not in the list */
	}
	return false;
}

/* Takes the lock itself. What has been used since the last pass comes to the head of the list. */
static void pass_over(struct ferry_imports *imports, struct pass *pass)
{
	struct ferry_import **link = &imports->list, *import;
	pthread_mutex_lock(&imports->lock);
	while ((import = *link)) {
		bool leaves = step(imports, import, pass);
		bool used = pass->which == IDLE_ONES && import->used_ns == pass->now && link != &imports->list;
		if (!leaves && !used) {
			link = &import->next;
			continue;
		}
		struct ferry_import **list = leaves ? &pass->gone : &imports->list;
		*link = import->next;
		import->next = *list;
		*list = import;
	}
	pthread_mutex_unlock(&imports->lock);
}

/* ---- unmapping: the mapper ---- */

static void free_put_targets(struct ferry_put_target_map *put_targets, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		ferry_gpu_unmap(put_targets[i].gpu, &put_targets[i].mapping);
		ferry_gpu_drop(put_targets[i].gpu);
	}
	free(put_targets);
}

static void free_later(struct ferry_import *import)
{
	if (import->later)
		ferry_quarantine_close(import->later->descriptors, import->later->exported.npieces);
	free(import->later);
	import->later = NULL;
}

/* Unmaps a list of imports that are in no table; says so in the cells. */
static void unmap(struct ferry_imports *imports, struct ferry_import *list)
{
	while (list) {
		struct ferry_import *import = list;
		list = import->next;
		free_put_targets(import->put_targets, import->nput_targets);
		free_later(import);
		if (!imports->foreign_rank)
			ferry_gpu_unmap(ferry_imports_gpu(imports), &import->mapping);
		pthread_mutex_lock(&imports->lock);
		if (import->state == FERRY_IMPORT_LEAVING && imports->cells)
			publish_mapped(imports, import->index, 0);
		pthread_mutex_unlock(&imports->lock);
		free(import);
	}
}

/* True if there was any. */
static bool unmap_replaced(struct ferry_imports *imports, bool all_unused)
{
	struct pass pass = {.which = all_unused ? UNUSED_ONES : NO_MORE};
	pass_over(imports, &pass);
	unmap(imports, pass.gone);
	return pass.gone;
}

bool ferry_imports_clear(struct ferry_imports *imports)
{
	return unmap_replaced(imports, true);
}

/*
 * The room for all of this rank's imports, including those that stay already. A foreign rank's GPU is not known here.
 */
static uint64_t find_room(const struct ferry_imports *imports, uint64_t now)
{
	int64_t room = imports->foreign_rank ? 0
	                                     : (int64_t)imports->kept + ferry_gpu_room(ferry_imports_gpu(imports), now);
	return room > 0 ? (uint64_t)room : 0;
}

static void report_kept(struct ferry_imports *imports, uint64_t kept)
{
	if (kept != imports->kept)
		ferry_gpu_keep(ferry_imports_gpu(imports), (int64_t)kept - (int64_t)imports->kept);
	imports->kept = kept;
}

int64_t ferry_imports_sweep(struct ferry_imports *imports, uint64_t now)
{
	struct pass pass = {.which = IDLE_ONES, .now = now};
	pass_over(imports, &pass);
	if (pass.wants_room) { /* lanes wait for the lock, so the driver is asked without it */
		pass.room = find_room(imports, now);
		pass.knows_room = true;
		pass_over(imports, &pass);
	}
	report_kept(imports, pass.kept);
	unmap(imports, pass.gone);
	pthread_mutex_lock(&imports->lock);
	int64_t next = imports->nreplaced ? BUSY_NS : imports->list ? SWEEP_NS : -1;
	pthread_mutex_unlock(&imports->lock);
	return next;
}

void ferry_imports_forget(struct ferry_imports *imports, uint32_t index)
{
	pthread_mutex_lock(&imports->lock);
	if (imports->cells && imports->table[index]) {
		replace(imports, imports->table[index]);
		publish_mapped(imports, index, 0);
	}
	pthread_mutex_unlock(&imports->lock);
	unmap_replaced(imports, false);
}

bool ferry_imports_unmap_pending(struct ferry_imports *imports, uint32_t index)
{
	bool kept = false;
	pthread_mutex_lock(&imports->lock);
	for (const struct ferry_import *import = imports->list; import && !kept; import = import->next)
		kept = import->index == index && import->state == FERRY_IMPORT_REPLACED;
	pthread_mutex_unlock(&imports->lock);
	return kept;
}

void ferry_imports_abandon(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	for (struct ferry_import *import = imports->list; import; import = import->next)
		if (import->state == FERRY_IMPORT_MAPPED)
			replace(imports, import);
	imports->cells = NULL;
	pthread_mutex_unlock(&imports->lock);
}

bool ferry_imports_end(struct ferry_imports *imports)
{
	unmap_replaced(imports, false);
	if (imports->list) /* abandoned, so no other thread changes it */
		return false;
	if (ferry_imports_gpu(imports)) {
		report_kept(imports, 0);
		ferry_gpu_drop(ferry_imports_gpu(imports));
	}
	pthread_cond_destroy(&imports->quiet);
	pthread_mutex_destroy(&imports->lock);
	return true;
}

/* ---- mapping: the mapper ---- */

/* Under the lock. */
static ferryResult_t check(const struct ferry_imports *imports, const struct ferry_exported *exported)
{
	const struct ferry_import *old = imports->table[exported->index];
	if (memcmp(exported->gpu, imports->uuid, sizeof imports->uuid))
		return ferry_fail(ferryInvalidArgument,
		                  "rank %u exports memory of another GPU than the one that it has attached with",
		                  imports->rank);
	if (imports->foreign_rank && (!exported->put_target || (!imports->awaits_others && !imports->nothers)))
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
	if (imports->nreplaced >= FERRY_MOST_EXPORTS)
		return ferry_fail(ferryRefused, "%u exports of rank %u that others have replaced are still in use",
		                  imports->nreplaced, imports->rank);
	return ferrySuccess;
}

/* Maps it for each of the other GPUs, in their order. */
static ferryResult_t map_put_targets(const struct ferry_imports *imports, const struct ferry_exported *exported,
                                     const int *descriptors, struct ferry_put_target_map **mapped)
{
	struct ferry_put_target_map *put_targets = calloc(imports->nothers + 1, sizeof *put_targets);
	if (!put_targets)
		return ferry_fail(ferrySystemError, "no memory for an export");
	for (uint32_t i = 0; i < imports->nothers; i++) {
		put_targets[i].gpu = imports->others[i];
		ferryResult_t result = ferry_gpu_map(put_targets[i].gpu, exported, descriptors,
		                                     &put_targets[i].mapping);
		if (result) {
			free_put_targets(put_targets, i);
			return result;
		}
		ferry_gpu_hold(put_targets[i].gpu);
	}
	*mapped = put_targets;
	return ferrySuccess;
}

static ferryResult_t keep_for_later(struct ferry_import *import, const struct ferry_exported *exported,
                                    int *descriptors)
{
	struct ferry_imports *imports = import->owner;
	if (exported->npieces > FERRY_MOST_LATER_PIECES - imports->later_pieces)
		return ferry_fail(ferrySystemError,
		                  "exports of %u pieces before all ranks have come: at most %u are kept so long",
		                  imports->later_pieces + exported->npieces, FERRY_MOST_LATER_PIECES);
	if (!(import->later = malloc(sizeof *import->later)))
		return ferry_fail(ferrySystemError, "no memory for an export");
	imports->later_pieces += exported->npieces;
	memcpy(&import->later->exported, exported, ferry_exported_size(exported));
	for (uint32_t i = 0; i < exported->npieces; i++) {
		import->later->descriptors[i] = descriptors[i];
		descriptors[i] = -1;
	}
	return ferrySuccess;
}

static ferryResult_t map_targets(struct ferry_import *import, const struct ferry_exported *exported,
                                 const int *descriptors)
{
	struct ferry_imports *imports = import->owner;
	struct ferry_put_target_map *put_targets = NULL;
	ferryResult_t result = map_put_targets(imports, exported, descriptors, &put_targets);
	if (result)
		return result;
	pthread_mutex_lock(&imports->lock);
	import->put_targets = put_targets;
	import->nput_targets = imports->nothers;
	pthread_mutex_unlock(&imports->lock);
	return ferrySuccess;
}

static ferryResult_t import_new(struct ferry_imports *imports, const struct ferry_exported *exported,
                                const int *descriptors, struct ferry_import **made)
{
	struct ferry_import *import = calloc(1, sizeof *import);
	if (!import)
		return ferry_fail(ferrySystemError, "no memory for an export");
	*import = (struct ferry_import){.owner = imports,
	                                .index = exported->index,
	                                .generation = exported->generation,
	                                .state = FERRY_IMPORT_REPLACED, /* in no table yet */
	                                .comes_back = imports->idled[exported->index] == exported->generation};
	ferryResult_t result = ferrySuccess;
	if (imports->foreign_rank)
		import->mapping.bytes = exported->bytes; /* ferry_gpu_map checks it for each put target */
	else
		result = ferry_gpu_map(ferry_imports_gpu(imports), exported, descriptors, &import->mapping);
	if (result)
		free(import);
	else
		*made = import;
	return result;
}

/* Under the lock: its index names it from now on. */
static void enter(struct ferry_imports *imports, struct ferry_import *import)
{
	struct ferry_import *old = imports->table[import->index];
	if (old)
		replace(imports, old);
	imports->table[import->index] = import;
	import->state = FERRY_IMPORT_MAPPED;
	import->seen_used = used_of(imports, import->index);
	import->next = imports->list;
	imports->list = import;
}

/* Under the lock: whether the rank's export is mapped already, as it is wanted now. */
static bool is_mapped(const struct ferry_import *import, const struct ferry_exported *exported)
{
	return import && (!exported->put_target || import->put_targets || import->later);
}

ferryResult_t ferry_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported, int *descriptors)
{
	pthread_mutex_lock(&imports->lock);
	ferryResult_t result = check(imports, exported);
	/* It stays in the table meanwhile, unless the table is abandoned: this thread alone takes it out. */
	struct ferry_import *known = imports->table[exported->index], *fresh = NULL;
	known = known && known->generation == exported->generation ? known : NULL;
	bool abandoned = !imports->cells;
	pthread_mutex_unlock(&imports->lock);
	if (result || abandoned)
		return result;
	if (!known)
		result = import_new(imports, exported, descriptors, &fresh);
	struct ferry_import *import = known ? known : fresh;
	if (!result && exported->put_target && !is_mapped(import, exported))
		result = imports->awaits_others ? keep_for_later(import, exported, descriptors)
		                                : map_targets(import, exported, descriptors);
	pthread_mutex_lock(&imports->lock);
	if (!result && imports->cells) {
		if (fresh)
			enter(imports, fresh);
		import->taken = true;
		publish_mapped(imports, exported->index, exported->generation);
		fresh = NULL;
	}
	pthread_mutex_unlock(&imports->lock);
	unmap(imports, fresh);
	unmap_replaced(imports, false);
	return result ? ferry_fail_context(result, "export %u of rank %u, %llu bytes", exported->index, imports->rank,
	                                   (unsigned long long)exported->bytes)
	              : ferrySuccess;
}

/* An import, of a current or older generation, whose put targets are to be mapped. NULL: none. */
static struct ferry_import *find_later(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *import = imports->list;
	while (import && !import->later)
		import = import->next;
	pthread_mutex_unlock(&imports->lock);
	return import;
}

ferryResult_t ferry_imports_land_later(struct ferry_imports *imports)
{
	struct ferry_import *import; /* it stays where it is: this thread alone takes it out */
	imports->awaits_others = false;
	while ((import = find_later(imports))) {
		ferryResult_t result = map_targets(import, &import->later->exported, import->later->descriptors);
		if (result)
			return ferry_fail_context(result, "export %u of rank %u, for others", import->index,
			                          imports->rank);
		free_later(import);
	}
	return ferrySuccess;
}

bool ferry_imports_do_without(struct ferry_imports *imports)
{
	struct ferry_import *import = imports->foreign_rank ? find_later(imports) : NULL;
	if (!import)
		return false;
	ferry_log(FERRY_LOG_INFO, "%s: nobody puts into that", ferry_last_message());
	free_later(import);
	pthread_mutex_lock(&imports->lock);
	bool named = import->state == FERRY_IMPORT_MAPPED;
	pthread_mutex_unlock(&imports->lock);
	if (named)
		ferry_imports_forget(imports, import->index);
	return true;
}
