/* SPDX-License-Identifier: Apache-2.0 */
/* The layout of a described machine: an hwloc XML file, or a synthetic string such as "node:2 core:8 pu:1". */
#ifndef FERRY_TESTS_TOPOLOGY_H
#define FERRY_TESTS_TOPOLOGY_H

#include "ipc/layout.h"

#include <hwloc.h>
#include <string.h>

/* NULL: hwloc cannot read it. */
static inline hwloc_topology_t topology_read(const char *description)
{
	hwloc_topology_t machine;
	if (hwloc_topology_init(&machine))
		return NULL;
	if (!(strstr(description, ".xml") ? hwloc_topology_set_xml(machine, description)
	                                  : hwloc_topology_set_synthetic(machine, description)) &&
	    !hwloc_topology_load(machine))
		return machine;
	hwloc_topology_destroy(machine);
	return NULL;
}

static inline ferryResult_t topology_layout(const char *description, struct ferry_layout *layout)
{
	cpu_set_t all;
	hwloc_topology_t machine = topology_read(description);
	if (!machine)
		return ferryInvalidArgument;
	memset(&all, 0xff, sizeof all);
	ferryResult_t result = ferry_layout_partition(machine, &all, layout);
	hwloc_topology_destroy(machine);
	return result;
}

#endif
