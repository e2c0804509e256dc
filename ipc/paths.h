/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The paths that data may take from each rank to each other one: its link, one relay, three hops across bridges, the
 * host; and the resources that they load: links, ports, what links share, what a relay can pass on. Made from a
 * communicator's links, constant from then on. The synthesizer writes a program of all of them
 * (rank-lib/program/synth/synthesize_paths.c), and a router divides each call among them (router/engine/division.h).
 */
#ifndef FERRY_IPC_PATHS_H
#define FERRY_IPC_PATHS_H

#include "ipc/links.h"

#define FERRY_NO_RELAYS UINT32_MAX
#define FERRY_MOST_RELAYS 14 /* of a pair; of more than 16 ranks fewer */
#define FERRY_UNIT_WEIGHT 1024
#define FERRY_MOST_SPEED 1e9f /* GB/s */

enum ferry_resource_kind {
	FERRY_RESOURCE_LINK,
	FERRY_RESOURCE_SEND,    /* all that the port of rank `from` sends */
	FERRY_RESOURCE_RECEIVE, /* all that the port of rank `to` receives */
	FERRY_RESOURCE_SHARED,  /* shared link `from` of ferry_links */
	FERRY_RESOURCE_RELAY,   /* all that rank `from` passes on for others */
	FERRY_RESOURCE_UP,      /* from rank `from` to the host */
	FERRY_RESOURCE_DOWN     /* from the host to rank `to` */
};

struct ferry_resource {
	uint8_t kind, from, to;
	float speed;     /* GB/s */
	uint32_t weight; /* time per byte, in parts of FERRY_UNIT_WEIGHT of the fastest resource's */
};

struct ferry_path {
	uint8_t hops;    /* links: 1 to 3; 0: through the host */
	uint8_t via[2];  /* the ranks between */
	uint16_t nuses;
	uint32_t first_use;
};

struct ferry_paths {
	uint32_t nranks, npaths, nresources;
	float fastest;                    /* GB/s, of all resources */
	struct ferry_resource *resources;
	struct ferry_path *paths;
	uint16_t *uses;                   /* resources of paths */
	/* by pair (from * nranks + to): its first path, which is its link wherever there is one; one more at the end */
	uint32_t *first;
	/* by resource: the paths that use it are users[first_user[r]] to users[first_user[r + 1] - 1] */
	uint32_t *first_user, *users;
	uint32_t *pair;                   /* by path */
};

/** What else limits paths, GB/s of a rank. */
struct ferry_path_limits {
	float up, down; /* to and from the host; 0: no path through the host */
	float relay;    /* of what it passes on for others; 0: as much as its links carry */
	uint32_t relays; /* most paths over relays that a pair has; 0: FERRY_MOST_RELAYS; or FERRY_NO_RELAYS */
};

/** All that paths are made from. A plan has one if its calls are divided among paths (ipc/plan.h). */
struct ferry_network {
	struct ferry_links links;
	struct ferry_path_limits limits;
};

/**
 * Makes the paths of all pairs, but none that loads every resource of another path of its pair. Returns false if there
 * is no memory. ferry_paths_free frees them.
 */
bool ferry_paths_make(const struct ferry_links *links, uint32_t nranks, const struct ferry_path_limits *limits,
                      struct ferry_paths *paths);
void ferry_paths_free(struct ferry_paths *paths);

#endif
