/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tenants of a shared router: which users beside its own may attach, and how much of it each may have. Read from a
 * file (ferry-router --config), whole or not at all; constant from then on. A router without such a file has no
 * tenants: it serves its own user and root, and they have no limits but the router's.
 */
#ifndef FERRY_ROUTER_DAEMON_TENANTS_H
#define FERRY_ROUTER_DAEMON_TENANTS_H

#include "ipc/ferry_types.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define FERRY_TENANT_NAME 32
#define FERRY_WEIGHT_MOST 64

/* In one domain each, as each router reads the file by itself. UINT64_MAX, UINT32_MAX: no limit. */
struct ferry_tenant {
	char name[FERRY_TENANT_NAME];
	uint64_t staging, job_staging; /* bytes: of all its jobs, of each */
	uint64_t windows;              /* bytes of GPUs' memory for windows of programs: of all its jobs */
	uint32_t jobs, ranks;          /* at a time; ranks of all its jobs */
	uint32_t plans;                /* that its jobs keep here, together */
	uint32_t connections;
	uint32_t weight;               /* of each of its jobs, against the other jobs that have work */
};

struct ferry_tenants;

/* The rights of a client's user at this router. */
struct ferry_standing {
	/* whose jobs the client may join: 0: those of the router's own user and of root; else its user's */
	uint32_t owner;
	const struct ferry_tenant *tenant; /* NULL: none, so there are no limits */
};

/**
 * Reads the tenants that a file names. The caller frees them with ferry_tenants_free. Errors: ferryInvalidArgument with
 * file, line and value; ferrySystemError where it cannot be read; ferryRefused where others than root, its group and
 * this user could have written it.
 */
ferryResult_t ferry_tenants_read(const char *file, struct ferry_tenants **tenants);
void ferry_tenants_free(struct ferry_tenants *tenants);

/** How many there are; 0 where `tenants` is NULL. And each, in the file's order. */
uint32_t ferry_tenants_count(const struct ferry_tenants *tenants);
const struct ferry_tenant *ferry_tenants_at(const struct ferry_tenants *tenants, uint32_t index);

/**
 * The first tenant that names this user, or one of these groups; NULL: none does. tenants: may be NULL.
 */
const struct ferry_tenant *ferry_tenants_find(const struct ferry_tenants *tenants, uid_t user, const gid_t *groups,
                                              size_t ngroups);

/**
 * Finds the standing of the user at the other end of a connection, as the kernel names it (SO_PEERCRED, SO_PEERGROUPS).
 * ferryRefused, with the uids, where that is neither this user, nor root, nor a tenant's.
 */
ferryResult_t ferry_tenants_judge(const struct ferry_tenants *tenants, int connection, struct ferry_standing *standing);

#endif
