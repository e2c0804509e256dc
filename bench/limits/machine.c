/* SPDX-License-Identifier: Apache-2.0 */
/* What machine this is. */
#include "bench/limits/measure.h"
#include "ipc/machine.h"

#include <hwloc.h>
#include <stdio.h>

ferryResult_t limits_find_machine(struct ferry_limits *limits)
{
	hwloc_topology_t machine = ferry_machine_here();
	if (!machine)
		return ferrySystemError;
	limits->cpus = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_PU);
	limits->cores = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_CORE);
	limits->numa_nodes = hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE);
	hwloc_obj_t package = hwloc_get_obj_by_type(machine, HWLOC_OBJ_PACKAGE, 0);
	const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
	snprintf(limits->cpu, sizeof limits->cpu, "%s", model ? model : "unknown CPU");
	limits->cores = limits->cores > 0 ? limits->cores : limits->cpus;
	return ferrySuccess;
}
