/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program of NCCL's for nccl_ways: threads as ranks that sum. nccl_linker links libnccl.so.2; `nccl_opener
 * LIBRARY...` opens all that it is given and calls what it finds in the last.
 */
#include "orchestrator/nccl_types.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RANKS 2
#define COUNT 4096

#ifdef PROGRAM_LINKS
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
#define FIND(name) (nccl.name = nccl##name)
#else
#define FIND(name) (*(void **)&nccl.name = dlsym(library, "nccl" #name))
#endif

static struct {
	ncclResult_t (*GetUniqueId)(ncclUniqueId *id);
	ncclResult_t (*CommInitRank)(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank);
	ncclResult_t (*AllReduce)(const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
	                          ncclComm_t comm, cudaStream_t stream);
	ncclResult_t (*CommDestroy)(ncclComm_t comm);
} nccl;

static ncclUniqueId id;

/* NULL if all is right. */
static void *rank_main(void *context)
{
	int rank = (int)(size_t)context;
	static float in[RANKS][COUNT], out[RANKS][COUNT];
	ncclComm_t comm;
	for (int i = 0; i < COUNT; i++)
		in[rank][i] = (float)(rank + 1);
	if (nccl.CommInitRank(&comm, RANKS, id, rank) ||
	    nccl.AllReduce(in[rank], out[rank], COUNT, ncclFloat32, ncclSum, comm, NULL) || nccl.CommDestroy(comm))
		return "a call failed";
	return out[rank][COUNT - 1] == 3 ? NULL : "wrong";
}

int main(int argc, char **argv)
{
	pthread_t threads[RANKS];
	void *said, *library = NULL;
	for (int i = 1; i < argc; i++)
		if (!(library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))) {
			printf("%s\n", dlerror());
			return 1;
		}
	(void)library;
	FIND(GetUniqueId), FIND(CommInitRank), FIND(AllReduce), FIND(CommDestroy);
	if (nccl.GetUniqueId(&id)) {
		printf("no id\n");
		return 1;
	}
	int failed = 0;
	for (size_t i = 0; i < RANKS; i++)
		pthread_create(&threads[i], NULL, rank_main, (void *)i);
	for (int i = 0; i < RANKS; i++) {
		pthread_join(threads[i], &said);
		failed |= said != NULL;
	}
	printf("%s\n", failed ? "failed" : "right");
	return failed;
}
