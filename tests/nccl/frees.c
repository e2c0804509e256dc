/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of NCCL's and CUDA's runtime that uses nearly all memory: one process, a GPU for each rank. On each GPU a
 * buffer takes more than half of what is left, a call is made in it, and it is freed and allocated again: at once, as
 * cudaFree in this program is Ferry's. By the runtime's own cudaFree, past Ferry, it is not: so much for whether Ferry
 * has had a part in the call at all.
 *
 * `nccl_frees_linked`, `nccl_frees_opened` over the doubles (tests/nccl/nccl_preload.c), gpu_frees on GPUs:
 *
 *     FERRY_SPLIT_WAIT=60 FERRY_SHARES=nccl:0.5,host:0.5 ferryrun --nccl -- ./gpu_frees [ROUNDS]
 *
 * Exit code: 0, 1, or 77 where there are no two GPUs or there is no NCCL.
 */
#include "tests/fake_cuda/runtime.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define RANKS     2
#define COUNT     ((size_t)2 << 20) /* floats of a call */
#define STEP      ((size_t)2 << 20)
#define PATIENCE  60.0 /* seconds, for what comes back by idleness */
#define NOT_HERE  77

typedef ncclResult_t (*init_all)(ncclComm_t *comms, int ndevices, const int *devices);
typedef ncclResult_t (*all_reduce)(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                   ncclComm_t comm, cudaStream_t stream);
typedef ncclResult_t (*group)(void);
typedef ncclResult_t (*destroy)(ncclComm_t comm);
typedef ncclResult_t (*get_version)(int *version);

static struct {
	init_all CommInitAll;
	all_reduce AllReduce;
	group GroupStart, GroupEnd;
	destroy CommDestroy;
	get_version GetVersion;
	int (*free_past_ferry)(void *memory);
} call;

static struct {
	void *memory;
	size_t bytes;
	cudaStream_t stream;
	ncclComm_t comm;
} places[RANKS];

#define MUST(what)                                                                                                     \
	do {                                                                                                           \
		int result_ = (int)(what);                                                                             \
		if (result_) {                                                                                         \
			printf("not ok: %s is %d (%s:%d)\n", #what, result_, __FILE__, __LINE__);                      \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* By the names that come first in this process, which are Ferry's where it is preloaded. */
static bool find_calls(void)
{
	int version;
	void *runtime = dlopen("libcudart.so.13", RTLD_LAZY | RTLD_NOLOAD);
	if (!runtime)
		runtime = dlopen("libcudart.so.12", RTLD_LAZY | RTLD_NOLOAD);
	*(void **)&call.CommInitAll = dlsym(RTLD_DEFAULT, "ncclCommInitAll");
	*(void **)&call.AllReduce = dlsym(RTLD_DEFAULT, "ncclAllReduce");
	*(void **)&call.GroupStart = dlsym(RTLD_DEFAULT, "ncclGroupStart");
	*(void **)&call.GroupEnd = dlsym(RTLD_DEFAULT, "ncclGroupEnd");
	*(void **)&call.CommDestroy = dlsym(RTLD_DEFAULT, "ncclCommDestroy");
	*(void **)&call.GetVersion = dlsym(RTLD_DEFAULT, "ncclGetVersion");
	*(void **)&call.free_past_ferry = runtime ? dlsym(runtime, "cudaFree") : NULL;
	return call.CommInitAll && call.AllReduce && call.GroupStart && call.GroupEnd && call.CommDestroy &&
	       call.free_past_ferry && call.GetVersion && !call.GetVersion(&version);
}

/* More than half of what is left. */
static void allocate_most(int rank)
{
	size_t left, total;
	MUST(cudaSetDevice(rank));
	MUST(cudaMemGetInfo(&left, &total));
	places[rank].bytes = left / 10 * 7 / STEP * STEP;
	MUST(cudaMalloc(&places[rank].memory, places[rank].bytes));
}

static void reduce(void)
{
	for (int round = 0; round < 3; round++) {
		MUST(call.GroupStart());
		for (int rank = 0; rank < RANKS; rank++)
			MUST(call.AllReduce(places[rank].memory, places[rank].memory, COUNT, ncclFloat32, ncclSum,
			                    places[rank].comm, places[rank].stream));
		MUST(call.GroupEnd());
	}
	for (int rank = 0; rank < RANKS; rank++) {
		MUST(cudaSetDevice(rank));
		MUST(cudaStreamSynchronize(places[rank].stream));
	}
}

/* Seconds until the buffers can be had again, all of them. *at_once: each could be had at the first attempt. */
static double again(int (*release)(void *memory), bool *at_once)
{
	double longest = 0;
	*at_once = true;
	for (int rank = 0; rank < RANKS; rank++) {
		void *more;
		MUST(cudaSetDevice(rank));
		if (!cudaMalloc(&more, places[rank].bytes)) {
			printf("not ok: GPU %d has twice what it has\n", rank);
			exit(1);
		}
		double begun = seconds();
		MUST(release(places[rank].memory));
		while (cudaMalloc(&places[rank].memory, places[rank].bytes)) {
			*at_once = false;
			if (seconds() - begun > PATIENCE) {
				printf("not ok: %zu MiB of GPU %d have not come back in %.0f s\n",
				       places[rank].bytes >> 20, rank, PATIENCE);
				exit(1);
			}
		}
		longest = seconds() - begun > longest ? seconds() - begun : longest;
	}
	return longest;
}

/* Whether the first attempt was enough: no allocator asks twice. */
static bool comes_back_at_once(void)
{
	for (int rank = 0; rank < RANKS; rank++) {
		MUST(cudaSetDevice(rank));
		MUST(cudaFree(places[rank].memory));
		if (cudaMalloc(&places[rank].memory, places[rank].bytes)) {
			printf("not ok: GPU %d has not got its %zu MiB back\n", rank, places[rank].bytes >> 20);
			return false;
		}
	}
	return true;
}

int frees_main(int rounds);
int frees_main(int rounds)
{
	ncclComm_t comms[RANKS];
	int devices[RANKS] = {0, 1};
	if (cudaSetDevice(0) || cudaSetDevice(1) || !find_calls()) {
		printf("skipped: two GPUs, CUDA's runtime and an NCCL are wanted\n");
		return NOT_HERE;
	}
	MUST(call.CommInitAll(comms, RANKS, devices));
	for (int rank = 0; rank < RANKS; rank++) {
		places[rank].comm = comms[rank];
		MUST(cudaSetDevice(rank));
		MUST(cudaStreamCreate(&places[rank].stream));
	}
	for (int rank = 0; rank < RANKS; rank++) {
		size_t bytes = COUNT * sizeof(float);
		MUST(cudaSetDevice(rank));
		MUST(cudaMalloc(&places[rank].memory, bytes));
	}
	reduce(); /* what NCCL and Ferry take for themselves they have now */
	for (int rank = 0; rank < RANKS; rank++) {
		MUST(cudaSetDevice(rank));
		MUST(cudaFree(places[rank].memory));
		allocate_most(rank);
	}
	reduce();
	bool at_once;
	double past = again(call.free_past_ferry, &at_once);
	if (at_once) {
		printf("not ok: Ferry had nothing of it, memory was back at once, after %.1f ms\n", 1e3 * past);
		return 1;
	}
	double longest = 0;
	for (int round = 0; round < rounds; round++) {
		reduce();
		double begun = seconds();
		if (!comes_back_at_once())
			return 1;
		longest = seconds() - begun > longest ? seconds() - begun : longest;
	}
	for (int rank = 0; rank < RANKS; rank++) {
		MUST(cudaSetDevice(rank));
		MUST(cudaFree(places[rank].memory));
		MUST(cudaStreamDestroy(places[rank].stream));
		MUST(call.CommDestroy(comms[rank]));
	}
	printf("ok: %zu MiB come back at once (cudaFree and cudaMalloc on both GPUs took %.1f ms at most), past Ferry "
	       "after %.0f ms\n",
	       places[0].bytes >> 20, 1e3 * longest, 1e3 * past);
	return 0;
}

#ifndef FREES_IS_OPENED
int main(int argc, char **argv)
{
	return frees_main(argc > 1 ? atoi(argv[1]) : 10);
}
#endif
