/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The host device's copy engine: the lane's thread. FERRY_HOST_LINK gives its links a speed, to the host and to other
 * devices: a copy then counts as finished no sooner than links of that speed, shared by all queues on the copier, would
 * be. It pushes into another process's memory by process_vm_writev.
 */
#ifndef FERRY_ROUTER_COPY_HOST_H
#define FERRY_ROUTER_COPY_HOST_H

#include "ipc/links.h"
#include "router/copy/copy.h"

#include <stdatomic.h>

struct ferry_host_copier {
	struct ferry_copier base;
	struct ferry_host_links machine;
	/* nanoseconds: when a modelled link is free; lanes, by compare-and-swap */
	_Atomic uint64_t busy_until[2];                    /* to and from the host, by direction */
	_Atomic uint64_t link_busy_until[FERRY_MAX_RANKS]; /* to another rank's device */
	_Atomic uint64_t port_busy_until;                  /* to all of them */
	_Atomic uint64_t shared_busy_until[FERRY_MAX_SHARED_LINKS]; /* where a target names no others */
};

/** Reads FERRY_HOST_LINK. ferryInvalidArgument, with what was expected, if that makes no sense. */
ferryResult_t ferry_host_copier_open(struct ferry_host_copier *copier);

#endif
