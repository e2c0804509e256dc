/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/peers/peers.h"

#include "bench/command/sample.h"
#include "bench/command/sibling.h"
#include "bench/peers/nccl.h"

#include <dlfcn.h>

bool peers_find(struct peers *peers, const char *name)
{
	char path[4096];
	*peers = (struct peers){.name = name, .nccl = name && !strcmp(name, "nccl")};
	if (!name || peers->nccl)
		return true;
	sibling_path(path, sizeof path, "../lib/ferry-perf-mpi.so");
	void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
	peers->mpi = module ? dlsym(module, "ferry_mpi_peer") : NULL;
	peers->count = 1;
	if (!peers->mpi)
		fprintf(stderr, "ferry-perf: --vs mpi: %s (built without MPI? install libmpich-dev and build again)\n",
		        dlerror());
	return peers->mpi != NULL;
}

bool peers_start(struct peers *peers)
{
	const char *refused = peers->mpi ? peers->mpi->open(&peers->rank, &peers->nranks) : NULL;
	if (refused)
		fprintf(stderr, "ferry-perf: %s\n", refused);
	return !refused;
}

bool peers_open(struct peers *peers, struct bench_rank *rank, enum ferry_collective collective, enum nccl_sweep sweep)
{
	return !peers->nccl || nccl_open(peers, rank, collective, sweep);
}

void peers_close(struct peers *peers)
{
	if (peers->nccl)
		nccl_close(peers);
	if (peers->mpi)
		peers->mpi->close();
}

enum peer_result peers_run(struct peers *peers, struct bench_rank *rank, unsigned setting,
                           const struct ferry_trial_call *call, bool first, const struct peer_sampling *how, double *us)
{
	if (peers->nccl)
		return nccl_run(rank, &peers->settings[setting], call, first, how, us);
	/* As a plain program of MPI: calls one after another, and none of Ferry's between them. */
	for (uint32_t i = 0; i < how->lead; i++)
		peers->mpi->run(call);
	sample_pause(how->pause_us);
	double before = sample_now_us();
	for (uint32_t i = 0; i < how->calls; i++)
		peers->mpi->run(call);
	*us = (sample_now_us() - before) / how->calls;
	return PEER_DONE;
}

void peers_drop(struct peers *peers, unsigned setting)
{
	nccl_drop(&peers->settings[setting]); /* MPI refuses nothing once it runs */
}
