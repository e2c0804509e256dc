/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The layout: which domains this machine has, which CPUs and memory each owns, and which devices belong to which.
 * All of a job have the same one: ranks ask the router of domain 0 where their environment says nothing. Sources, first
 * match wins:
 *   FERRY_LAYOUT="0: cpus=0-15 node=0 devices=0,1; 1: cpus=16-31 node=0 devices=2,3"   (override)
 *   FERRY_DOMAINS=D        the machine's CPUs in D equal parts, devices in D equal blocks
 *   hwloc's view of this machine: one domain per NUMA node, as ipc/machine.h says
 * Only the caller writes to a layout.
 */
#ifndef FERRY_IPC_LAYOUT_H
#define FERRY_IPC_LAYOUT_H

#include "ipc/machine.h"

#define FERRY_MAX_DEVICES 64

struct ferry_layout {
	uint32_t ndomains;
	struct ferry_domain domains[FERRY_MAX_DOMAINS];
	bool together;                               /* all domains lie in one NUMA node */
	bool devices_given;                          /* an override named devices */
	uint8_t device_domain[FERRY_MAX_DEVICES];    /* valid where devices_given; 0xff: not named */
	char source[256];                            /* for people: "FERRY_LAYOUT", "hwloc", ... with the value */
};

/**
 * Reads the layout from the environment, or the CPUs of this machine that the calling thread's affinity mask has.
 * Called by routers and the commands that start them. Errors: ferryInvalidArgument with text, position and what was
 * expected.
 */
ferryResult_t ferry_layout_load(struct ferry_layout *layout);

/** The same for a rank: of all CPUs that its control group allows, whatever its affinity mask. */
ferryResult_t ferry_layout_load_whole(struct ferry_layout *layout);

/** Parses an override string. */
ferryResult_t ferry_layout_parse(const char *text, struct ferry_layout *layout);

/** hwloc's view of a machine, of which the CPUs in `usable` count. Error: ferrySystemError for lack of memory. */
ferryResult_t ferry_layout_partition(struct hwloc_topology *machine, const cpu_set_t *usable,
                                     struct ferry_layout *layout);

/** The domain of device `ordinal` of `ndevices` on this machine: as named by the layout, else equal blocks. */
uint32_t ferry_layout_device_domain(const struct ferry_layout *layout, uint32_t ordinal, uint32_t ndevices);

/** The only domain that has CPUs near that NUMA node; -1: not exactly one of several has, or devices_given. */
int ferry_layout_node_domain(const struct ferry_layout *layout, int node);

/**
 * Pins the calling thread to the domain's CPUs, also to those that its mask lacks. Ignores CPUs that do not exist here,
 * or that the control group forbids; if none is left, warns and does not pin.
 */
ferryResult_t ferry_layout_pin(const struct ferry_layout *layout, uint32_t domain);

/** Writes the layout as the override string that would give it. */
void ferry_layout_print(const struct ferry_layout *layout, char *text, size_t bytes);

#endif
