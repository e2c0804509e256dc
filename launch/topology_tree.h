/* SPDX-License-Identifier: Apache-2.0 */
/**
 * GPUs, the PCIe switches and CPUs above them, and the NVLinks between GPUs: what a topology file says, before it is
 * links. The readers of files (launch/topology_file.h) fill one in.
 */
#ifndef FERRY_LAUNCH_TOPOLOGY_TREE_H
#define FERRY_LAUNCH_TOPOLOGY_TREE_H

#include "ipc/links.h"

#define FERRY_MOST_TREE_NODES 1024
#define FERRY_NO_NODE UINT32_MAX

struct ferry_tree_node {
	uint32_t parent; /* FERRY_NO_NODE: the node is a CPU */
	double up;       /* GB/s each way to the parent */
	uint32_t ngpus;  /* at and below it; ferry_topology_tree_link counts them */
};

struct ferry_topology_tree {
	uint32_t nnodes, ngpus;
	struct ferry_tree_node nodes[FERRY_MOST_TREE_NODES]; /* parents before children */
	uint32_t gpu[FERRY_MAX_RANKS];                       /* its node */
	double nvlink[FERRY_MAX_RANKS][FERRY_MAX_RANKS];     /* from, to: GB/s; 0: none */
	double nvswitch[FERRY_MAX_RANKS];                    /* GB/s to all switches together */
};

/** Fills in the links of the tree's GPUs. False: there are more shared links than FERRY_MAX_SHARED_LINKS. */
bool ferry_topology_tree_link(struct ferry_topology_tree *tree, struct ferry_host_links *machine);

#endif
