/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The ranks that a GPU test drives: all of them from one process, a rank per GPU, or this process's one under ferryrun.
 * A test loops over its local ranks and works either way. Included after check.h, by one file each.
 *
 * Alone: as many ranks as GPUs, at least 2 (then GPUs have several) and at most 4; FERRY_GPU_RANKS says otherwise.
 */
#ifndef FERRY_TESTS_GPU_GANG_H
#define FERRY_TESTS_GPU_GANG_H

#include "tests/gpu/check.h"

#include <pthread.h>

#define GANG_MOST 16

struct gang {
	int nranks, nlocal;
	int rank[GANG_MOST], device[GANG_MOST]; /* of each local rank */
	ferryComm_t comm[GANG_MOST];
};

struct gang_member {
	struct gang *gang;
	int local;
	const char *kind;
	ferryUniqueId id;
	int result;
	pthread_t thread;
};

static inline int gang_number(const char *name, int otherwise)
{
	return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static inline int gang_devices(void)
{
	int devices = 0;
	return cudaGetDeviceCount(&devices) ? 0 : devices;
}

static inline int gang_shape(struct gang *gang)
{
	int devices = gang_devices();
	memset(gang, 0, sizeof *gang);
	if (check_in_job()) {
		gang->nranks = gang_number("FERRY_SIZE", 1);
		gang->nlocal = 1;
		gang->rank[0] = gang_number("FERRY_RANK", 0);
		gang->device[0] = gang_number("FERRY_LOCAL_RANK", gang->rank[0]) % devices;
		return 0;
	}
	gang->nranks = gang->nlocal = gang_number("FERRY_GPU_RANKS", devices < 2 ? 2 : devices > 4 ? 4 : devices);
	REQUIRE(gang->nranks >= 1 && gang->nranks <= GANG_MOST, "FERRY_GPU_RANKS=%d: 1 to %d", gang->nranks, GANG_MOST);
	for (int i = 0; i < gang->nlocal; i++) {
		gang->rank[i] = i;
		gang->device[i] = i % devices;
	}
	return 0;
}

static inline int gang_join_one(struct gang_member *member)
{
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	struct gang *gang = member->gang;
	int local = member->local;
	CUDA(cudaSetDevice(gang->device[local]));
	config.device = member->kind;
	if (!strcmp(member->kind, "cuda"))
		config.ordinal = check_in_job() ? -1 : gang->device[local]; /* -1: the current one */
	if (check_in_job())
		FERRY(ferryCommInitEnv(&gang->comm[local], &config));
	else
		FERRY(ferryCommInitRankConfig(&gang->comm[local], gang->nranks, member->id, gang->rank[local],
		                              &config));
	return 0;
}

static inline void *gang_thread(void *argument)
{
	struct gang_member *member = (struct gang_member *)argument;
	member->result = gang_join_one(member);
	return NULL;
}

/** Opens a communicator of that kind ("cuda", "host") over all ranks. */
static inline int gang_open(struct gang *gang, const char *kind)
{
	struct gang_member members[GANG_MOST] = {};
	int result = 0;
	TRY(gang_shape(gang));
	if (!check_in_job())
		FERRY(ferryGetUniqueId(&members[0].id));
	for (int i = 0; i < gang->nlocal; i++) {
		members[i].gang = gang;
		members[i].local = i;
		members[i].kind = kind;
		members[i].id = members[0].id;
		REQUIRE(!pthread_create(&members[i].thread, NULL, gang_thread, &members[i]), "no thread for rank %d",
		        i);
	}
	for (int i = 0; i < gang->nlocal; i++) {
		pthread_join(members[i].thread, NULL);
		result |= members[i].result;
	}
	return result;
}

static inline int gang_close(struct gang *gang)
{
	for (int i = 0; i < gang->nlocal; i++)
		FERRY(ferryCommDestroy(gang->comm[i]));
	return 0;
}

#endif
