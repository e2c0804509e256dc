/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A machine's GPUs and their links from the files that people have: NCCL's topology dumps (NCCL_TOPO_DUMP_FILE, and the
 * files for NCCL_TOPO_FILE that clouds give out) and hwloc's XML (lstopo machine.xml). ferryprog reads them.
 */
#ifndef FERRY_LAUNCH_TOPOLOGY_FILE_H
#define FERRY_LAUNCH_TOPOLOGY_FILE_H

#include "ipc/links.h"

/**
 * Reads the file into the links between its GPUs, which are numbered by NCCL's `dev` if all have one, else in the
 * file's order.
 *
 * - Two GPUs with NVLinks (xGMI) between them use these: their number times the speed of one, or the speed that hwloc
 *   gives. GPUs with links to NVSwitches push to each other with all of them at once.
 * - Other pairs use PCIe: up to the lowest switch, bridge or CPU above both, and down; each link on the way is shared
 * by
 *   all data in that direction. A PCIe link has the speed that NCCL assumes, 12 GB/s for 16 lanes of 8 GT/s.
 * - CPUs are linked with 20 GB/s each way, as no file gives that speed. hwloc's packages are CPUs.
 *
 * Errors: ferryInvalidArgument, "FILE:LINE: reason"; ferrySystemError if it cannot be read.
 */
ferryResult_t ferry_topology_file_read(const char *path, struct ferry_host_links *machine);

/**
 * Reads FILE.xml or FILE.xml,devices=A,B,..., or else links as text (ipc/links.h); the value was given as `name`.
 * Errors: those of ferry_topology_file_read and ferry_host_links_parse.
 */
ferryResult_t ferry_topology_read(const char *name, const char *value, struct ferry_host_links *machine);

#endif
