/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How fast devices push into each other's memory, and what several links share: a PCIe port, a switch's uplink, the
 * link between sockets. Synthesizers decide by it (rank-lib/program/program.h), and a host device's copy engine models
 * it (router/copy/host.c). The process that knows the machine fills it in; afterwards it is only read.
 *
 * The links of a machine of host devices are given as text: FERRY_HOST_LINK, and `ferryprog synth --links`. Settings in
 * any order, separated by commas, speeds in GB/s:
 *
 * - d2h=GBPS, h2d=GBPS: between each device and the host.
 * - peer=GBPS: from each device to each other.
 * - links=dgx1v:GBPS: eight devices on the cube mesh of a DGX-1 with V100s; GBPS is one NVLink's.
 * - links=dgx1p:GBPS: the same with P100s, four NVLinks each.
 * - links=mesh:GBPS: as peer=GBPS.
 * - links=nvswitch:GBPS: any number of devices, each with GBPS to all others at once.
 * - links=bridges:BRIDGE:PCIE[:DEVICES]: at most 32 devices. Neighbours, 0 and 1, 2 and 3 (or DEVICES at a time), have
 *   BRIDGE from each to each other. A device has PCIE to all devices beyond the bridge together, and from all of them.
 * - links=pcie2:GBPS[:ACROSS[:SOCKETS]]: two sockets of four devices, each with GBPS to all others at once, and at most
 *   ACROSS (else GBPS) to each of the other socket. With SOCKETS, all that crosses shares a link of SOCKETS each way.
 * - peer@A-B=GBPS: between devices A and B, both ways, whatever the settings above say; 0: no link. Any number of
 *   these.
 * - port=GBPS: what each device sends to all others at once, whatever the settings above say.
 * - devices=A,B,...: the devices that ranks 0, 1, ... are on. Else rank n is on device n.
 */
#ifndef FERRY_IPC_LINKS_H
#define FERRY_IPC_LINKS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>

#define FERRY_MAX_SHARED_LINKS 64

/**
 * How fast each rank's device pushes into each other's memory, in GB/s; 0: not at all. The same on all ranks: it
 * decides which program they run.
 */
struct ferry_links {
	float speed[FERRY_MAX_RANKS][FERRY_MAX_RANKS]; /* from, to */
	float port[FERRY_MAX_RANKS];                   /* to all others at once; 0: as much as its links have */
	/* [from][to], bit k: the link goes through shared link k, which leads one way and has a speed above 0 */
	uint64_t through[FERRY_MAX_RANKS][FERRY_MAX_RANKS];
	float shared[FERRY_MAX_SHARED_LINKS];
};

struct ferry_host_links {
	double d2h, h2d;           /* GB/s; 0: as fast as memory */
	bool peers;                /* links between devices are modelled */
	uint32_t ndevices;         /* that the machine has */
	struct ferry_links links;  /* by device, not by rank */
	uint32_t nplaced;          /* ranks that devices= names a device for; 0: all, each its own number */
	uint8_t placed[FERRY_MAX_RANKS];
};

/**
 * Parses text that was given as `name`. Error: ferryInvalidArgument, with the place and what was expected there.
 */
ferryResult_t ferry_host_links_parse(const char *name, const char *text, struct ferry_host_links *machine);

/** Reads FERRY_HOST_LINK; unset: all as fast as memory and no links between devices. */
ferryResult_t ferry_host_links_load(struct ferry_host_links *machine);

/**
 * The links between the devices of `nranks` ranks, given as `name`. All 0 where none is modelled. ferryInvalidArgument
 * if the machine has fewer devices.
 */
ferryResult_t ferry_host_links_place(const char *name, const struct ferry_host_links *machine, uint32_t nranks,
                                     struct ferry_links *links);

#endif
