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

/* What is taken out: all that nobody uses; what is idle for as long as it may be; for the least time. */
enum idleness { UNUSED, IDLE, IDLE_AT_ALL };

/* Under the lock: nothing of it has been used since an idle time ago. */
static bool is_idle(struct ferry_imports *imports, struct ferry_import *import, uint64_t now, enum idleness least)
{
	uint64_t used = ferry_imports_used(imports, import->index);
	if (import->users || import->takes != import->seen_takes || used != import->seen_used ||
	    used > ferry_imports_last_ended(imports)) {
		import->seen_takes = import->takes;
		import->seen_used = used;
		ferry_idle_imports_note(import, now);
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
	if (atomic_load_explicit(&cell->used, memory_order_relaxed) <= ferry_imports_last_ended(imports))
		return true;
	ferry_imports_say_mapped(imports, import->index, import->generation);
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
		imports->past[index] = (struct ferry_import_past){import->generation, import->busy_ns, import->idle_ns};
		import->next = *gone;
		*gone = import;
	}
	*gone = ferry_imports_reap(imports, *gone);
	return some;
}

bool ferry_idle_imports_clear(struct ferry_imports *imports)
{
	struct ferry_import *gone = NULL;
	bool kept;
	pthread_mutex_lock(&imports->lock);
	take_out(imports, UNUSED, &gone, &kept);
	pthread_mutex_unlock(&imports->lock);
	bool some = gone != NULL;
	ferry_imports_unmap(imports, gone);
	return some;
}

/* Of a guest's GPU it is not known here. */
static bool is_short(const struct ferry_imports *imports)
{
	return !imports->guest && ferry_gpu_is_short(ferry_imports_gpu(imports));
}

int64_t ferry_idle_imports_sweep(struct ferry_imports *imports)
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
	ferry_imports_unmap(imports, gone);
	return waits ? BUSY_NS : some ? SWEEP_NS : -1;
}
