/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How fast devices push into each other's memory: what synthesizers decide by (rank-lib/program/program.h) and what a
 * host device's copy engine models (router/copy/host.c). Filled by who knows the machine, then only read.
 */
#ifndef FERRY_IPC_LINKS_H
#define FERRY_IPC_LINKS_H

#include "ipc/ferry_types.h"

/**
 * How fast each rank's device pushes into each other's memory, in GB/s; 0: not at all. The same on all ranks: it
 * decides which program they run.
 */
struct ferry_links {
	float speed[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to */
	float port[FERRY_MAX_RANKS];                   /* to all others at once; 0: as much as its links have */
};

#endif
