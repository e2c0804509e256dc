/* SPDX-License-Identifier: Apache-2.0 */
#include "router/idle_imports.h"

#include "ipc/wait.h"

#define SWEEP_NS 250000000 /* how often idle ones are looked for; */
#define BUSY_NS  10000000  /* and those that are to be unmapped and still in use */

void ferry_idle_imports_note(struct ferry_import *import, uint64_t now)
{
	uint64_t interval = now - import->busy_ns, wanted = FERRY_IMPORT_IDLE_NS;
	if (interval < FERRY_IMPORT_IDLE_MOST_NS) /* else it would be gone all the same */
		wanted = 2 * interval < FERRY_IMPORT_IDLE_MOST_NS ? 2 * interval : FERRY_IMPORT_IDLE_MOST_NS;
	wanted = wanted < FERRY_IMPORT_IDLE_NS ? FERRY_IMPORT_IDLE_NS : wanted;
	import->idle_ns = wanted > import->idle_ns ? wanted : import->idle_ns - (import->idle_ns - wanted) / 8;
	import->busy_ns = now;
}

/* Of all imports of a rank at one time. */
struct look {
	uint64_t now;
	bool all;            /* whatever nobody uses goes, idle or not */
	uint64_t room, kept; /* bytes that may stay though they have been idle for the least time; that do */
	bool some;           /* some are mapped still */
};

/* Under the lock: for how long nothing of it has been used. */
static uint64_t idle_for(struct ferry_imports *imports, struct ferry_import *import, uint64_t now)
{
	uint64_t used = ferry_imports_used(imports, import->index);
	if (import->busy_ns == now) /* it has been noted */
		return 0;
	if (import->users || import->takes != import->seen_takes || used != import->seen_used ||
	    used > ferry_imports_last_ended(imports)) {
		import->seen_takes = import->takes;
		import->seen_used = used;
		ferry_idle_imports_note(import, now);
	}
	return now - import->busy_ns;
}

/* Under the lock. */
static bool stays(struct ferry_imports *imports, struct ferry_import *import, struct look *look)
{
	if (look->all)
		return import->users;
	uint64_t idle = idle_for(imports, import, look->now);
	if (idle < FERRY_IMPORT_IDLE_NS)
		return true;
	if (idle >= import->idle_ns || import->mapping.bytes > look->room - look->kept)
		return false;
	look->kept += import->mapping.bytes;
	return true;
}

/* Under the lock: the router's half of the cell's protocol. True: no submission names it that has not ended, and none
 * will. */
static bool withdraw(struct ferry_imports *imports, struct ferry_import *import)
{
	struct ferry_export_cell *cell = &imports->cells[import->index];
	atomic_store_explicit(&cell->mapped, FERRY_EXPORT_LEAVING, memory_order_relaxed);
	ferry_full_fence();
	/* Not what idle_for saw: the rank may have stored another number since, and then it is to find this mapped. */
	if (atomic_load_explicit(&cell->used, memory_order_relaxed) <= ferry_imports_last_ended(imports))
		return true;
	ferry_imports_say_mapped(imports, import->index, import->generation);
	return false;
}

/* Under the lock: takes out of the table what does not stay, and of those replaced what nobody uses. */
static void take_out(struct ferry_imports *imports, struct look *look, struct ferry_import **gone)
{
	for (uint32_t index = 0; imports->cells && index < FERRY_MOST_EXPORTS; index++) {
		struct ferry_import *import = imports->table[index];
		if (!import)
			continue;
		if (stays(imports, import, look) || !withdraw(imports, import)) {
			look->some = true;
			continue;
		}
		imports->table[index] = NULL;
		import->leaves = true;
		imports->past[index] = (struct ferry_import_past){import->generation, import->busy_ns, import->idle_ns};
		import->next = *gone;
		*gone = import;
	}
	*gone = ferry_imports_reap(imports, *gone);
}

bool ferry_idle_imports_clear(struct ferry_imports *imports)
{
	struct look look = {.now = ferry_now_ns(), .all = true};
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	take_out(imports, &look, &gone);
	pthread_mutex_unlock(&imports->lock);
	bool some = gone != NULL;
	ferry_imports_unmap(imports, gone);
	return some;
}

/* Under the lock: whether something may stay though it has been idle for the least time. */
static bool is_any_late(struct ferry_imports *imports, uint64_t now)
{
	for (uint32_t index = 0; imports->cells && index < FERRY_MOST_EXPORTS; index++) {
		struct ferry_import *import = imports->table[index];
		uint64_t idle = import ? idle_for(imports, import, now) : 0;
		if (idle >= FERRY_IMPORT_IDLE_NS && idle < import->idle_ns)
			return true;
	}
	return false;
}

/* For all that is late of this rank's, with what is kept of it already. */
static uint64_t find_room(const struct ferry_imports *imports)
{
	int64_t room = (int64_t)imports->kept + ferry_gpu_room(ferry_imports_gpu(imports));
	return room > 0 ? (uint64_t)room : 0;
}

static void tell_kept(struct ferry_imports *imports, uint64_t kept)
{
	if (kept == imports->kept)
		return;
	ferry_gpu_keep(ferry_imports_gpu(imports), (int64_t)kept - (int64_t)imports->kept);
	imports->kept = kept;
}

int64_t ferry_idle_imports_sweep(struct ferry_imports *imports)
{
	struct look look = {.now = ferry_now_ns()};
	struct ferry_import *gone = NULL;
	pthread_mutex_lock(&imports->lock);
	bool late = !imports->guest && is_any_late(imports, look.now);
	pthread_mutex_unlock(&imports->lock);
	if (late) /* lanes wait for the lock, so the driver is asked without it */
		look.room = find_room(imports);
	pthread_mutex_lock(&imports->lock);
	take_out(imports, &look, &gone);
	bool waits = imports->retired != NULL;
	pthread_mutex_unlock(&imports->lock);
	tell_kept(imports, look.kept);
	ferry_imports_unmap(imports, gone);
	return waits ? BUSY_NS : look.some ? SWEEP_NS : -1;
}
