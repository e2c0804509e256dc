/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The machine as hwloc sees it, and its partition into domains: every CPU that may be used is in one domain, whatever
 * the memory nodes are. hwloc leaves out what the process's control group forbids. The layout (ipc/layout.h) asks once.
 */
#ifndef FERRY_IPC_MACHINE_H
#define FERRY_IPC_MACHINE_H

#include "ipc/ferry_types.h"

#include <sched.h>
#include <stdbool.h>

struct hwloc_topology; /* hwloc_topology_t is a pointer to it */

struct ferry_domain {
	cpu_set_t cpus;       /* where its router runs */
	int node;             /* OS index of the NUMA node its staging is bound to; -1: not bound */
	/* last-level cache that serves these CPUs, this domain's share of it if domains share one */
	uint64_t cache_bytes;
	uint64_t core_cache_bytes; /* private (L2) cache of one core; 0 unknown */
	uint32_t ncpus;
};

/** This machine, read once per process; only read it, and never free it. NULL: see ferry_last_message. */
struct hwloc_topology *ferry_machine_here(void);

/**
 * Makes domains of the machine's CPUs that are in `usable`, in the order of hwloc's tree. CPUs with the same nearest
 * memory are a domain, bound to that memory: the NUMA node with memory at their lowest ancestor that has one. Of
 * several such nodes the operating system numbers that of the CPUs first, before those of memory expanders or GPUs.
 * CPUs without a NUMA node are a domain per package, and not bound. Of more than FERRY_MAX_DOMAINS, neighbours in the
 * tree are merged, and not bound. If hwloc sees none of the usable CPUs, they are one domain.
 * Error: ferrySystemError for lack of memory.
 */
ferryResult_t ferry_machine_partition(struct hwloc_topology *machine, const cpu_set_t *usable,
                                      struct ferry_domain domains[FERRY_MAX_DOMAINS], uint32_t *ndomains);

/**
 * As ferry_machine_partition, but `ndomains` domains with equally many CPUs, neighbours in the tree. With fewer CPUs
 * than domains several domains share one.
 */
void ferry_machine_split(struct hwloc_topology *machine, const cpu_set_t *usable, struct ferry_domain *domains,
                         uint32_t ndomains);

/**
 * Fills in each domain's number of CPUs and cache sizes. A cache counts once: all CPUs that it serves, usable or not,
 * have equal shares of it, and domains that have the same CPU divide that CPU's share.
 */
void ferry_machine_find_caches(struct hwloc_topology *machine, struct ferry_domain *domains, uint32_t ndomains);

/** Whether all memory of this machine is one NUMA node. False where that is unknown. */
bool ferry_machine_has_one_node(void);

/** The CPUs of this machine near that NUMA node; none: there is no such node. */
void ferry_machine_node_cpus(int node, cpu_set_t *cpus);

#endif
