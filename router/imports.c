/* SPDX-License-Identifier: Apache-2.0 */
#include "router/imports.h"

#include "ipc/error.h"
#include "router/later_export.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- the mapper ---- */

uint64_t ferry_imports_used(const struct ferry_imports *imports, uint32_t index)
{
	return atomic_load_explicit(&imports->cells[index].used, memory_order_acquire);
}

void ferry_imports_say_mapped(const struct ferry_imports *imports, uint32_t index, uint64_t generation)
{
	atomic_store_explicit(&imports->cells[index].mapped, generation, memory_order_release);
}

static bool is_leaving(const struct ferry_imports *imports, uint32_t index)
{
	return atomic_load_explicit(&imports->cells[index].mapped, memory_order_relaxed) == FERRY_EXPORT_LEAVING;
}

void ferry_imports_unmap(struct ferry_imports *imports, struct ferry_import *list)
{
	while (list) {
		struct ferry_import *import = list;
		list = import->next;
		ferry_landing_maps_free(import->landings, import->nlandings);
		ferry_later_export_free(import->later);
		if (!imports->guest)
			ferry_gpu_unmap(ferry_imports_gpu(imports), &import->mapping);
		pthread_mutex_lock(&imports->lock);
		/* and not for an older one of that index, which was replaced and goes in front of it */
		if (import->leaves && imports->cells && is_leaving(imports, import->index))
			ferry_imports_say_mapped(imports, import->index, 0);
		pthread_mutex_unlock(&imports->lock);
		free(import);
	}
}

uint64_t ferry_imports_last_ended(const struct ferry_imports *imports)
{
	const _Atomic uint64_t *over = atomic_load_explicit(&imports->over, memory_order_acquire);
	return atomic_load_explicit(over ? over : &imports->ended, memory_order_acquire);
}

void ferry_imports_retire(struct ferry_imports *imports, struct ferry_import *import)
{
	/* A pin is no submission: what was captured or registered has been given up by who has it replaced. */
	uint64_t used = ferry_imports_used(imports, import->index);
	import->last = used == FERRY_EXPORT_PINNED ? 0 : used;
	import->next = imports->retired;
	imports->retired = import;
	imports->nretired++;
}

struct ferry_import *ferry_imports_reap(struct ferry_imports *imports, struct ferry_import *list)
{
	uint64_t ended = imports->cells ? ferry_imports_last_ended(imports) : UINT64_MAX;
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

void ferry_imports_forget(struct ferry_imports *imports, uint32_t index)
{
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	if (imports->cells && imports->table[index]) {
		ferry_imports_retire(imports, imports->table[index]);
		imports->table[index] = NULL;
		ferry_imports_say_mapped(imports, index, 0);
		gone = ferry_imports_reap(imports, gone);
	}
	pthread_mutex_unlock(&imports->lock);
	ferry_imports_unmap(imports, gone);
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

/* ---- the end ---- */

void ferry_imports_abandon(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	for (uint32_t index = 0; index < FERRY_MOST_EXPORTS; index++) {
		if (!imports->table[index])
			continue;
		ferry_imports_retire(imports, imports->table[index]);
		imports->table[index] = NULL;
	}
	imports->cells = NULL;
	pthread_mutex_unlock(&imports->lock);
}

bool ferry_imports_free(struct ferry_imports *imports)
{
	pthread_mutex_lock(&imports->lock);
	struct ferry_import *gone = ferry_imports_reap(imports, NULL);
	bool empty = !imports->retired;
	pthread_mutex_unlock(&imports->lock);
	ferry_imports_unmap(imports, gone);
	if (!empty)
		return false;
	if (ferry_imports_gpu(imports)) {
		ferry_gpu_keep(ferry_imports_gpu(imports), -(int64_t)imports->kept);
		ferry_gpu_drop(ferry_imports_gpu(imports));
	}
	pthread_cond_destroy(&imports->quiet);
	pthread_mutex_destroy(&imports->lock);
	free(imports);
	return true;
}
