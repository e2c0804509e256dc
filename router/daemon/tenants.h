/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The tenants of a shared router: which users beside its own may attach, and how much of it each may have. Read from a
 * file (ferry-router --config), whole or not at all; constant from then on. A router without such a file has none: it
 * serves its own user and root, who then have no limits but the router's.
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
	uint32_t jobs, ranks;          /* at a time; ranks of all its jobs */
	uint32_t plans;                /* that its jobs keep here, together */
	uint32_t connections;
	uint32_t weight;               /* of each of its jobs among those that have work */
};

struct ferry_tenants;

/* What whoever has connected is to this router. */
struct ferry_standing {
	/* whose jobs it may join: 0: those of the router's own user and of root; else its user's */
	uint32_t owner;
	const struct ferry_tenant *tenant; /* NULL: none, so there are no limits */
};

/**
 * The tenants that a file names. To be freed. Errors: ferryInvalidArgument with file, line and value; ferrySystemError
 * where it cannot be read; ferryRefused where others than root, its group and this user could have written it.
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
 * Who is at the other end of a connection, as the kernel says (SO_PEERCRED, SO_PEERGROUPS). ferryRefused, with the
 * uids, where it is neither this user, nor root, nor a tenant's.
 */
ferryResult_t ferry_tenants_judge(const struct ferry_tenants *tenants, int connection, struct ferry_standing *standing);

#endif
