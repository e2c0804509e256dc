/* SPDX-License-Identifier: Apache-2.0 */
#include "router/imports.h"

#include "ipc/error.h"
#include "ipc/wait.h"

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
	return imports;
}

ferryResult_t ferry_imports_open(struct ferry_imports *imports, struct ferry_gpus *gpus)
{
	struct ferry_gpu *gpu;
	ferryResult_t result = ferry_gpus_hold(gpus, imports->uuid, &gpu);
	if (!result)
		atomic_store_explicit(&imports->gpu, gpu, memory_order_release);
	return result;
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

static void unmap_list(struct ferry_imports *imports, struct ferry_import *list)
{
	while (list) {
		struct ferry_import *import = list;
		list = import->next;
		ferry_gpu_unmap(ferry_imports_gpu(imports), &import->mapping);
		free(import);
	}
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

static uint64_t ended_of(const struct ferry_imports *imports)
{
	return atomic_load_explicit(&imports->ended, memory_order_acquire);
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
	uint64_t ended = ended_of(imports);
	for (struct ferry_import **link = &imports->retired; *link;) {
		struct ferry_import *import = *link;
		if (import->users || (imports->cells && import->last > ended)) {
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

/* Under the lock: whether the rank's export is mapped already, and stays. */
static bool is_mapped(struct ferry_imports *imports, const struct ferry_exported *exported)
{
	struct ferry_import *old = imports->table[exported->index];
	if (!old || old->generation != exported->generation)
		return false;
	old->busy_ns = ferry_now_ns();
	say_mapped(imports, exported->index, exported->generation);
	return true;
}

ferryResult_t ferry_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported,
                                const int *descriptors)
{
	uint32_t index = exported->index;
	ferryResult_t result = ferrySuccess;
	pthread_mutex_lock(&imports->lock);
	result = check_new(imports, exported);
	bool over = result || !imports->cells || is_mapped(imports, exported);
	pthread_mutex_unlock(&imports->lock);
	if (over)
		return result;
	struct ferry_import *import = calloc(1, sizeof *import);
	if (!import)
		return ferry_fail(ferrySystemError, "no memory for an export");
	*import = (struct ferry_import){.owner = imports, .index = index, .generation = exported->generation};
	if ((result = ferry_gpu_map(ferry_imports_gpu(imports), exported, descriptors, &import->mapping))) {
		free(import);
		return ferry_fail_context(result, "export %u of rank %u, %llu bytes", index, imports->rank,
		                          (unsigned long long)exported->bytes);
	}
	import->busy_ns = ferry_now_ns();
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *gone = NULL;
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

/* Under the lock: nothing of it has been used since an idle time ago. */
static bool is_idle(struct ferry_imports *imports, struct ferry_import *import, uint64_t now)
{
	uint64_t used = used_of(imports, import->index);
	if (import->users || import->takes != import->seen_takes || used != import->seen_used ||
	    used > ended_of(imports)) {
		import->seen_takes = import->takes;
		import->seen_used = used;
		import->busy_ns = now;
	}
	return now - import->busy_ns >= FERRY_IMPORT_IDLE_NS;
}

/* Under the lock: the router's half of the cell's protocol. True: no submission names it that has not ended, and none
 * will. */
static bool withdraw(struct ferry_imports *imports, struct ferry_import *import)
{
	struct ferry_export_cell *cell = &imports->cells[import->index];
	atomic_store_explicit(&cell->mapped, 0, memory_order_relaxed);
	ferry_full_fence();
	/* Not what is_idle saw: the rank may have stored another number since, and then it is to find this mapped. */
	if (atomic_load_explicit(&cell->used, memory_order_relaxed) <= ended_of(imports))
		return true;
	say_mapped(imports, import->index, import->generation);
	return false;
}

/* Under the lock: takes those out of the table that are not in use, or idle. True if some stay. */
static bool take_out(struct ferry_imports *imports, bool idle, struct ferry_import **gone)
{
	uint64_t now = ferry_now_ns();
	bool some = false;
	for (uint32_t index = 0; imports->cells && index < FERRY_MOST_EXPORTS; index++) {
		struct ferry_import *import = imports->table[index];
		if (!import)
			continue;
		if ((idle ? !is_idle(imports, import, now) : import->users) || !withdraw(imports, import)) {
			some = true;
			continue;
		}
		imports->table[index] = NULL;
		import->next = *gone;
		*gone = import;
	}
	*gone = reap(imports, *gone);
	return some;
}

bool ferry_imports_clear(struct ferry_imports *imports)
{
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	take_out(imports, false, &gone);
	pthread_mutex_unlock(&imports->lock);
	bool some = gone != NULL;
	unmap_list(imports, gone);
	return some;
}

int64_t ferry_imports_sweep(struct ferry_imports *imports)
{
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	bool some = take_out(imports, true, &gone);
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
	pthread_mutex_destroy(&imports->lock);
	free(imports);
	return true;
}
