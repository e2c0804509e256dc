/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The layout: which domains this machine has, which CPUs and memory each owns, and which devices belong to which.
 * Read once by routers, ranks and the launcher; all must arrive at the same layout. Sources, first match wins:
 *   FERRY_LAYOUT=FILE or FERRY_LAYOUT="0: cpus=0-15 node=0 devices=0,1; 1: cpus=16-31 node=0 devices=2,3"   (override)
 *   FERRY_DOMAINS=D        the machine's CPUs in D equal parts, devices in D equal blocks
 *   FERRY_TOPOLOGY=FILE.xml or an hwloc synthetic string such as "node:2 core:8 pu:1"
 *   hwloc's view of this machine: one domain per NUMA node that has CPUs
 * Only the caller writes to a layout. hwloc does the topology, libnuma the binding.
 */
#ifndef FERRY_IPC_LAYOUT_H
#define FERRY_IPC_LAYOUT_H

#include "ipc/ferry_types.h"

#include <sched.h>
#include <stdbool.h>

#define FERRY_MAX_DEVICES 64

struct ferry_domain {
	cpu_set_t cpus;       /* where its router runs */
	int node;             /* OS index of the NUMA node its staging is bound to; -1: not bound */
	/* last-level cache that serves these CPUs, this domain's share of it if domains share one */
	uint64_t cache_bytes;
	uint64_t core_cache_bytes; /* private (L2) cache of one core; 0 unknown */
	uint32_t ncpus;
};

struct ferry_layout {
	uint32_t ndomains;
	struct ferry_domain domains[FERRY_MAX_DOMAINS];
	bool together;                               /* all domains lie in one NUMA node */
	bool devices_given;                          /* an override named devices */
	uint8_t device_domain[FERRY_MAX_DEVICES];    /* valid where devices_given; 0xff: not named */
	char source[256];                            /* for people: "FERRY_LAYOUT", "hwloc", ... with the value */
};

/**
 * Reads the layout from the environment and the machine. Errors: ferryInvalidArgument with text, position and what was
 * expected.
 */
ferryResult_t ferry_layout_load(struct ferry_layout *layout);

/** Parses an override string (not a file name). */
ferryResult_t ferry_layout_parse(const char *text, struct ferry_layout *layout);

/**
 * From an hwloc XML file or synthetic string; NULL: this machine's. Topologies of another machine have cpus that may
 * not exist here: not for pinning.
 */
ferryResult_t ferry_layout_from_topology(const char *description, struct ferry_layout *layout);

/** The domain of device `ordinal` of `ndevices` on this machine: as named by the layout, else equal blocks. */
uint32_t ferry_layout_device_domain(const struct ferry_layout *layout, uint32_t ordinal, uint32_t ndevices);

/**
 * Pins the calling thread to the domain's CPUs. CPUs that do not exist here are ignored; none left: no pinning, a
 * warning.
 */
ferryResult_t ferry_layout_pin(const struct ferry_layout *layout, uint32_t domain);

/** Writes the layout as the override string that would give it. */
void ferry_layout_print(const struct ferry_layout *layout, char *text, size_t bytes);

#endif
