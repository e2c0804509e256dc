/* SPDX-License-Identifier: Apache-2.0 */
#include "ipc/machine.h"

#include "ipc/error.h"

#include <errno.h>
#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

hwloc_topology_t ferry_machine_here(void)
{
	static _Atomic(hwloc_topology_t) kept;
	hwloc_topology_t machine = atomic_load_explicit(&kept, memory_order_acquire), other = NULL;
	if (machine)
		return machine;
	if (hwloc_topology_init(&machine)) {
		ferry_fail(ferrySystemError, "hwloc_topology_init: %s", strerror(errno));
		return NULL;
	}
	/* This component would move the thread to each CPU in turn, to ask it what sysfs says already. */
	hwloc_topology_set_components(machine, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "x86");
	if (hwloc_topology_load(machine)) {
		ferry_fail(ferrySystemError, "hwloc cannot read this machine: %s", strerror(errno));
		hwloc_topology_destroy(machine);
		return NULL;
	}
	if (atomic_compare_exchange_strong(&kept, &other, machine))
		return machine;
	hwloc_topology_destroy(machine); /* another thread was first */
	return other;
}

/* ---- parts: CPUs with the same nearest memory ---- */

struct part {
	hwloc_obj_t nearest; /* a NUMA node, or where there is none a package, or the machine */
	struct ferry_domain domain;
};

struct partition {
	hwloc_topology_t machine;
	struct part *parts;
	unsigned nparts;
	struct ferry_domain *domains;
	uint32_t ndomains;
};

static bool has_memory(hwloc_obj_t node)
{
	return node->attr->numanode.local_memory > 0;
}

/* The better one of two NUMA nodes at the same object; either may be NULL. */
static hwloc_obj_t better(hwloc_obj_t a, hwloc_obj_t b)
{
	if (!a || !b)
		return a ? a : b;
	if (has_memory(a) != has_memory(b))
		return has_memory(a) ? a : b;
	return a->os_index < b->os_index ? a : b;
}

/* The best NUMA node that is attached to the object, maybe behind a memory-side cache; NULL: none is. */
static hwloc_obj_t node_at(hwloc_obj_t object)
{
	hwloc_obj_t best = object->type == HWLOC_OBJ_NUMANODE ? object : NULL;
	for (hwloc_obj_t child = object->memory_first_child; child; child = child->next_sibling)
		best = better(best, node_at(child));
	return best;
}

static hwloc_obj_t nearest_memory(hwloc_topology_t machine, hwloc_obj_t pu)
{
	hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_PACKAGE, pu), node = NULL;
	for (hwloc_obj_t object = pu; object && !node; object = object->parent)
		node = node_at(object);
	return node ? node : package ? package : hwloc_get_root_obj(machine);
}

static void add_to(struct ferry_domain *domain, const struct ferry_domain *other)
{
	bool first = !CPU_COUNT(&domain->cpus);
	domain->node = first || domain->node == other->node ? other->node : -1;
	CPU_OR(&domain->cpus, &domain->cpus, &other->cpus);
}

static void add_cpu(struct ferry_domain *domain, hwloc_obj_t pu, hwloc_obj_t nearest)
{
	bool bound = nearest->type == HWLOC_OBJ_NUMANODE && has_memory(nearest);
	struct ferry_domain alone = {.node = bound ? (int)nearest->os_index : -1};
	CPU_SET(pu->os_index, &alone.cpus);
	add_to(domain, &alone);
}

/* The next CPU in the order of the tree that is in `usable`; NULL: there is none. */
static hwloc_obj_t next_cpu(hwloc_topology_t machine, const cpu_set_t *usable, hwloc_obj_t pu)
{
	while ((pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu)))
		if (pu->os_index < CPU_SETSIZE && CPU_ISSET(pu->os_index, usable))
			return pu;
	return NULL;
}

static struct part *part_of(struct partition *partition, hwloc_obj_t nearest)
{
	for (unsigned i = 0; i < partition->nparts; i++)
		if (partition->parts[i].nearest == nearest)
			return &partition->parts[i];
	partition->parts[partition->nparts].nearest = nearest;
	return &partition->parts[partition->nparts++];
}

/* ---- domains: parts, or neighbours in the tree together ---- */

/* The next part after `part` (NULL: the first) whose CPUs are all below the object; NULL: there is none. */
static struct part *next_in(const struct partition *partition, hwloc_obj_t object, struct part *part)
{
	cpu_set_t cpus, both;
	hwloc_cpuset_to_glibc_sched_affinity(partition->machine, object->cpuset, &cpus, sizeof cpus);
	for (part = part ? part + 1 : partition->parts; part < partition->parts + partition->nparts; part++) {
		CPU_AND(&both, &cpus, &part->domain.cpus);
		if (CPU_COUNT(&both) && CPU_EQUAL(&both, &part->domain.cpus))
			return part;
	}
	return NULL;
}

static unsigned count_in(const struct partition *partition, hwloc_obj_t object)
{
	unsigned count = 0;
	for (struct part *part = NULL; (part = next_in(partition, object, part));)
		count++;
	return count;
}

/* The parts below the object become one. */
static void merge_in(const struct partition *partition, hwloc_obj_t object)
{
	struct part *first = next_in(partition, object, NULL);
	for (struct part *part = first; part && (part = next_in(partition, object, part));) {
		add_to(&first->domain, &part->domain);
		CPU_ZERO(&part->domain.cpus);
	}
}

/* The parts below the object become domains, each of `each` neighbours, the last maybe of fewer. */
static void take_in(struct partition *partition, hwloc_obj_t object, unsigned each)
{
	unsigned taken = 0;
	for (struct part *part = NULL; (part = next_in(partition, object, part)); taken++) {
		partition->ndomains += taken % each == 0;
		add_to(&partition->domains[partition->ndomains - 1], &part->domain);
	}
}

/*
 * The parts below the object become at most `most` domains. Its children have equally many of these each, so that no
 * domain lies in two packages.
 */
static void place_in(struct partition *partition, hwloc_obj_t object, unsigned most)
{
	unsigned count = count_in(partition, object), children = 0, below = 0;
	for (hwloc_obj_t child = object->first_child; child; child = child->next_sibling) {
		unsigned inside = count_in(partition, child);
		children += inside > 0;
		below += inside;
	}
	bool by_children = count > most && below == count && children > 0;
	for (hwloc_obj_t child = object->first_child; child && by_children; child = child->next_sibling)
		if (children > most)
			merge_in(partition, child);
		else if (count_in(partition, child))
			place_in(partition, child, most / children);
	count = by_children ? children : count;
	if (!by_children || children > most)
		take_in(partition, object, (count + most - 1) / most);
}

ferryResult_t ferry_machine_partition(hwloc_topology_t machine, const cpu_set_t *usable,
                                      struct ferry_domain domains[FERRY_MAX_DOMAINS], uint32_t *ndomains)
{
	size_t most = (size_t)hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU);
	struct partition partition = {
	        .machine = machine, .parts = calloc(most, sizeof *partition.parts), .domains = domains};
	if (!partition.parts)
		return ferry_fail(ferrySystemError, "no memory for the partition of %zu CPUs", most);
	if (hwloc_bitmap_last(hwloc_topology_get_topology_cpuset(machine)) >= CPU_SETSIZE)
		ferry_log(FERRY_LOG_WARN, "CPUs from %d on are in no domain", CPU_SETSIZE);
	memset(domains, 0, FERRY_MAX_DOMAINS * sizeof *domains);
	for (hwloc_obj_t pu = NULL; (pu = next_cpu(machine, usable, pu));) {
		hwloc_obj_t nearest = nearest_memory(machine, pu);
		add_cpu(&part_of(&partition, nearest)->domain, pu, nearest);
	}
	place_in(&partition, hwloc_get_root_obj(machine), FERRY_MAX_DOMAINS);
	free(partition.parts);
	*ndomains = partition.ndomains;
	if (!partition.ndomains)
		ferry_machine_split(machine, usable, domains, *ndomains = 1);
	return ferrySuccess;
}

void ferry_machine_split(hwloc_topology_t machine, const cpu_set_t *usable, struct ferry_domain *domains,
                         uint32_t ndomains)
{
	uint32_t count = 0, seen = 0;
	for (hwloc_obj_t pu = NULL; (pu = next_cpu(machine, usable, pu));)
		count++;
	memset(domains, 0, ndomains * sizeof *domains);
	for (hwloc_obj_t pu = NULL; (pu = next_cpu(machine, usable, pu)); seen++)
		for (uint32_t i = 0; i < ndomains; i++)
			if (count >= ndomains ? seen * ndomains / count == i : i * count / ndomains == seen)
				add_cpu(&domains[i], pu, nearest_memory(machine, pu));
	for (uint32_t i = 0; i < ndomains && !count; i++) /* hwloc sees other CPUs: without /sys and /proc it guesses */
		domains[i] = (struct ferry_domain){.cpus = *usable, .node = -1};
}

/* ---- caches ---- */

/* hwloc may show memory that caches other memory (MCDRAM of Knights Landing) as a third level of gigabytes. */
static bool is_memory_side(hwloc_obj_t cache)
{
	return cache->subtype && !strcmp(cache->subtype, "MemorySideCache");
}

/* The cache of level 2, or of level 3 where the CPU has one and `last` is asked for; NULL: there is none. */
static hwloc_obj_t cache_over(hwloc_obj_t pu, bool last)
{
	hwloc_obj_t found = NULL;
	for (hwloc_obj_t object = pu->parent; object; object = object->parent)
		if (object->type == HWLOC_OBJ_L2CACHE ||
		    (last && object->type == HWLOC_OBJ_L3CACHE && !is_memory_side(object)))
			found = object;
	return found;
}

/* A core's part of the level-2 cache over this CPU. */
static uint64_t core_cache(hwloc_topology_t machine, hwloc_obj_t pu)
{
	hwloc_obj_t cache = cache_over(pu, false);
	int cores = cache ? hwloc_get_nbobjs_inside_cpuset_by_type(machine, cache->cpuset, HWLOC_OBJ_CORE) : 0;
	return cache ? cache->attr->cache.size / (uint64_t)(cores > 1 ? cores : 1) : 0;
}

void ferry_machine_find_caches(hwloc_topology_t machine, struct ferry_domain *domains, uint32_t ndomains)
{
	double sums[FERRY_MAX_DOMAINS] = {0};
	for (hwloc_obj_t pu = NULL; (pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu));) {
		hwloc_obj_t last = cache_over(pu, true);
		uint64_t core = core_cache(machine, pu);
		uint32_t sharers = 0;
		for (uint32_t i = 0; i < ndomains && pu->os_index < CPU_SETSIZE; i++)
			sharers += !!CPU_ISSET(pu->os_index, &domains[i].cpus);
		for (uint32_t i = 0; i < ndomains && sharers; i++) {
			struct ferry_domain *domain = &domains[i];
			if (!CPU_ISSET(pu->os_index, &domain->cpus))
				continue;
			if (last)
				sums[i] += (double)last->attr->cache.size /
				           hwloc_bitmap_weight(last->complete_cpuset) / sharers;
			if (core && (!domain->core_cache_bytes || core < domain->core_cache_bytes))
				domain->core_cache_bytes = core;
		}
	}
	for (uint32_t i = 0; i < ndomains; i++) {
		domains[i].ncpus = (uint32_t)CPU_COUNT(&domains[i].cpus);
		domains[i].cache_bytes = (uint64_t)(sums[i] + 0.5);
	}
}

/* ---- NUMA nodes ---- */

bool ferry_machine_has_one_node(void)
{
	hwloc_topology_t machine = ferry_machine_here();
	return machine && hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE) <= 1;
}

void ferry_machine_node_cpus(int node, cpu_set_t *cpus)
{
	hwloc_topology_t machine = ferry_machine_here();
	hwloc_obj_t object = machine && node >= 0 ? hwloc_get_numanode_obj_by_os_index(machine, (unsigned)node) : NULL;
	CPU_ZERO(cpus);
	if (object)
		hwloc_cpuset_to_glibc_sched_affinity(machine, object->cpuset, cpus, sizeof *cpus);
}
