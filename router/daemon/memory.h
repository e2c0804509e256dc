/* SPDX-License-Identifier: Apache-2.0 */
/**
 * How much memory there still is for arenas, and which limit says so: the machine, a NUMA node, a control group that
 * this process is in (v2 and v1), or /dev/shm. Read anew each time, by the router's connection thread.
 */
#ifndef FERRY_ROUTER_DAEMON_MEMORY_H
#define FERRY_ROUTER_DAEMON_MEMORY_H

#include "ipc/shared_memory.h"

struct ferry_memory {
	uint64_t left;    /* bytes that may be taken yet; UINT64_MAX: unknown */
	uint64_t whole;   /* used or not; the same */
	char holder[256]; /* its source: "this machine", "NUMA node 1", "the cgroup /sys/fs/cgroup/a (memory.max)" */
};

/* The memory in question. */
struct ferry_memory_question {
	const char *root;            /* in front of /proc, /sys and /dev; "": this machine's */
	uint32_t sharers;            /* routers that live on the same memory: each has its part. Not of a node's */
	int node;                    /* NUMA node that the memory is bound to; -1: none */
	enum ferry_shared_kind kind; /* /dev/shm counts for POSIX shared memory alone */
};

/**
 * Reads all sources: *least_left is the one with the least memory left, *least the one with the least in all. A source
 * that cannot be read limits nothing. Either may be NULL.
 */
void ferry_memory_read(const struct ferry_memory_question *question, struct ferry_memory *least_left,
                       struct ferry_memory *least);

#endif
