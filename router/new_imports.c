/* SPDX-License-Identifier: Apache-2.0 */
#include "router/new_imports.h"

#include "ipc/error.h"
#include "ipc/wait.h"
#include "router/idle_imports.h"
#include "router/later_export.h"

#include <stdlib.h>
#include <string.h>

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

static ferryResult_t check_new(const struct ferry_imports *imports, const struct ferry_exported *exported)
{
	const struct ferry_import *old = imports->table[exported->index];
	if (memcmp(exported->gpu, imports->uuid, sizeof imports->uuid))
		return ferry_fail(ferryInvalidArgument,
		                  "rank %u exports memory of another GPU than the one that it has attached with",
		                  imports->rank);
	if (imports->guest && (!exported->landing || (!imports->awaits_others && !imports->nothers)))
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

/* Under the lock: whether the rank's export is mapped already, as it is wanted now, and stays. */
static bool is_mapped(struct ferry_imports *imports, const struct ferry_exported *exported)
{
	struct ferry_import *old = imports->table[exported->index];
	if (!old || old->generation != exported->generation || (exported->landing && !old->landings && !old->later))
		return false;
	ferry_idle_imports_note(old, ferry_now_ns());
	ferry_imports_say_mapped(imports, exported->index, exported->generation);
	return true;
}

/* Not in the table yet. */
static ferryResult_t import_new(struct ferry_imports *imports, const struct ferry_exported *exported,
                                const int *descriptors, struct ferry_import **made)
{
	struct ferry_import *import = calloc(1, sizeof *import);
	if (!import)
		return ferry_fail(ferrySystemError, "no memory for an export");
	*import = (struct ferry_import){.owner = imports, .index = exported->index, .generation = exported->generation};
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
		result = ferry_landing_maps_new(imports->others, imports->nothers, exported, descriptors,
		                                &import->landings);
		import->nlandings = result ? 0 : imports->nothers;
	}
	const struct ferry_import_past *past = &imports->past[exported->index];
	bool again = past->generation == exported->generation;
	uint64_t now = ferry_now_ns();
	import->busy_ns = again ? past->busy_ns : now;
	import->idle_ns = again ? past->idle_ns : FERRY_IMPORT_IDLE_NS;
	ferry_idle_imports_note(import, now);
	*made = import;
	if (result)
		ferry_imports_unmap(imports, import);
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
	                                              : ferry_landing_maps_new(imports->others, imports->nothers,
	                                                                       exported, descriptors, &landings);
	if (result)
		return result;
	pthread_mutex_lock(&imports->lock);
	import->landings = landings;
	import->nlandings = landings ? imports->nothers : 0;
	if (imports->cells)
		ferry_imports_say_mapped(imports, import->index, import->generation);
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

ferryResult_t ferry_new_imports_land_later(struct ferry_imports *imports)
{
	struct ferry_import *import;
	imports->awaits_others = false;
	while ((import = find_later(imports))) {
		struct ferry_landing_map *landings;
		/* It stays where it is: it is taken out by this thread alone. */
		ferryResult_t result = ferry_landing_maps_new(imports->others, imports->nothers,
		                                              &import->later->exported, import->later->descriptors,
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

bool ferry_new_imports_do_without(struct ferry_imports *imports)
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
			ferry_imports_retire(imports, imports->table[index]);
		imports->table[index] = import;
		import->seen_used = ferry_imports_used(imports, index);
		ferry_imports_say_mapped(imports, index, import->generation);
	} else {
		gone = import;
	}
	gone = ferry_imports_reap(imports, gone);
	pthread_mutex_unlock(&imports->lock);
	ferry_imports_unmap(imports, gone);
	return ferrySuccess;
}

ferryResult_t ferry_new_imports_map(struct ferry_imports *imports, const struct ferry_exported *exported,
                                    const int *descriptors)
{
	pthread_mutex_lock(&imports->lock);
	ferryResult_t result = check_new(imports, exported);
	bool over = result || !imports->cells || is_mapped(imports, exported);
	struct ferry_import *known = over ? NULL : find_without_landings(imports, exported);
	pthread_mutex_unlock(&imports->lock);
	if (over)
		return result;
	result = known ? add_landings(imports, exported, descriptors, known) : map_anew(imports, exported, descriptors);
	return result ? ferry_fail_context(result, "export %u of rank %u, %llu bytes", exported->index, imports->rank,
	                                   (unsigned long long)exported->bytes)
	              : ferrySuccess;
}
