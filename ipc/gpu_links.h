/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The links between the GPUs of a job's ranks. Its routers have found out which GPU reaches which, and over how many
 * NVLinks. Each rank reads that in the arenas and calls these functions, so all ranks have the same links.
 */
#ifndef FERRY_IPC_GPU_LINKS_H
#define FERRY_IPC_GPU_LINKS_H

#include "ipc/links.h"

/* How many NVLinks lead from one GPU straight to another; else one of these. */
#define FERRY_NVLINKS_UNKNOWN 0   /* they go to a switch, it is one GPU, or nobody says how many there are */
#define FERRY_NVLINKS_NONE    255 /* it reaches the other one by PCIe alone */

struct ferry_gpu_reach {
	uint64_t reach[FERRY_MAX_RANKS];                   /* bit t of reach[f]: rank f's GPU reaches rank t's */
	uint8_t nvlinks[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* [from][to], where rank `from` reaches rank `to` */
	uint8_t node[FERRY_MAX_RANKS]; /* of each rank, below FERRY_MAX_RANKS: PCIe between nodes is slow, and shared */
	/* in parts of a PCIe port's speed: from a GPU to one of another node, all from node to node; 0: unknown */
	float across, crossing;
};

/**
 * Fills in the links, with speeds in units of the slowest pair that has NVLinks. Links that are all alike (a switch, a
 * full mesh, PCIe alone in one node) have speeds of 1 and share nothing. Otherwise a GPU has a PCIe port of one
 * NVLink's speed each way, for all that it reaches by PCIe alone; to another node a pair has `across` (else half) of a
 * port's speed, and all pairs of the two nodes together `crossing` (else a whole port's). Where FERRY_MAX_SHARED_LINKS
 * are too few for that, nothing is shared.
 */
void ferry_gpu_links_make(const struct ferry_gpu_reach *found, uint32_t nranks, struct ferry_links *links);

/** Whether some GPU has NVLinks straight to another. Else each has one port for all others, to a switch or of PCIe. */
bool ferry_gpu_links_are_direct(const struct ferry_gpu_reach *found, uint32_t nranks);

#endif
