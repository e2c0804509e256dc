/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/shares/crew.h"

#include "bench/rank/gpu.h"
#include "ipc/error.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(F)                                                                                                   \
	F(GetUniqueId, (ncclUniqueId * id))                                                                            \
	F(CommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank))                                    \
	F(CommDestroy, (ncclComm_t comm))                                                                              \
	F(AllReduce, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,              \
	              ncclComm_t comm, cudaStream_t stream))                                                           \
	F(AllGather, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclComm_t comm,             \
	              cudaStream_t stream))                                                                            \
	F(ReduceScatter, (const void *send, void *receive, size_t count, ncclDataType_t type, ncclRedOp_t op,          \
	                  ncclComm_t comm, cudaStream_t stream))

static struct {
#define MEMBER(name, parameters) ncclResult_t(*name) parameters;
	FUNCTIONS(MEMBER)
#undef MEMBER
} nccl;

static _Thread_local char message[512];

static const char *const names[CREW_COLLECTIVES] = {"allreduce", "allgather", "reducescatter"};

const char *crew_name(enum crew_collective collective)
{
	return names[collective];
}

bool crew_named(const char *name, enum crew_collective *collective)
{
	for (int i = 0; i < CREW_COLLECTIVES; i++)
		if (!strcmp(name, names[i])) {
			*collective = (enum crew_collective)i;
			return true;
		}
	return false;
}

void crew_pin(double share)
{
	char text[64];
	snprintf(text, sizeof text, "nccl:%.4f,host:%.4f", 1 - share, share);
	if (share < 0)
		unsetenv("FERRY_SHARES");
	else
		setenv("FERRY_SHARES", text, 1);
}

static const char *good(ncclResult_t result, const char *tried)
{
	if (!result)
		return NULL;
	snprintf(message, sizeof message, "%s: NCCL's error %d", tried, (int)result);
	return message;
}

static const char *open_library(const char *path)
{
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(message, sizeof message, "%s", dlerror());
		return message;
	}
#define FIND(name, parameters)                                                                                         \
	if (!(*(void **)&nccl.name = dlsym(library, "nccl" #name))) {                                                  \
		snprintf(message, sizeof message, "%s has no nccl" #name, path);                                      \
		return message;                                                                                        \
	}
	FUNCTIONS(FIND)
#undef FIND
	return NULL;
}

const char *crew_open(struct crew *crew, const char *library, int nranks, size_t bytes)
{
	struct gpu_facts facts;
	const char *wrong = gpu_missing();
	memset(crew, 0, sizeof *crew);
	if (wrong)
		return wrong;
	gpu_describe(&facts);
	crew->nranks = nranks ? nranks : facts.count;
	crew->nranks = crew->nranks > CREW_MOST ? CREW_MOST : crew->nranks;
	crew->bytes = bytes;
	if (crew->nranks < 2 || crew->nranks > facts.count) {
		snprintf(message, sizeof message, "%d GPUs, where there are %d", crew->nranks, facts.count);
		crew->nranks = 0;
		return message;
	}
	for (int rank = 0; rank < crew->nranks; rank++)
		if (gpu_open_stream(rank, &crew->ordinals[rank], &crew->streams[rank]) ||
		    gpu_take(crew->ordinals[rank], bytes, &crew->buffers[rank][0]) ||
		    gpu_take(crew->ordinals[rank], bytes, &crew->buffers[rank][1]))
			return ferry_last_message();
	pthread_barrier_init(&crew->together, NULL, (unsigned)crew->nranks);
	return open_library(library);
}

void crew_close(struct crew *crew)
{
	for (int rank = 0; rank < crew->nranks; rank++) {
		gpu_give_back(crew->buffers[rank][0]);
		gpu_give_back(crew->buffers[rank][1]);
		if (crew->streams[rank])
			gpu_close_stream(crew->ordinals[rank], crew->streams[rank]);
	}
}

struct member {
	struct crew *crew;
	int rank;
	char wrong[512];
};

static void *be_member(void *argument)
{
	struct member *member = argument;
	struct crew *crew = member->crew;
	ncclComm_t comm;
	CUcontext context;
	const char *wrong = gpu_enter(crew->ordinals[member->rank], &context) ? ferry_last_message() : NULL;
	if (!wrong)
		wrong = good(nccl.CommInitRank(&comm, crew->nranks, crew->id, member->rank), "ncclCommInitRank");
	if (!wrong) {
		wrong = crew->work(crew, member->rank, comm, crew->argument);
		const char *ended = good(nccl.CommDestroy(comm), "ncclCommDestroy");
		wrong = wrong ? wrong : ended;
	}
	if (wrong) { /* others wait for this rank */
		fprintf(stderr, "ferry-shares: rank %d: %s\n", member->rank, wrong);
		exit(1);
	}
	gpu_leave(crew->ordinals[member->rank]);
	return NULL;
}

const char *crew_run(struct crew *crew,
                     const char *(*work)(struct crew *crew, int rank, ncclComm_t comm, void *argument), void *argument)
{
	struct member members[CREW_MOST];
	pthread_t threads[CREW_MOST];
	const char *wrong = good(nccl.GetUniqueId(&crew->id), "ncclGetUniqueId");
	if (wrong)
		return wrong;
	crew->work = work;
	crew->argument = argument;
	for (int rank = 0; rank < crew->nranks; rank++) {
		members[rank] = (struct member){.crew = crew, .rank = rank};
		if (pthread_create(&threads[rank], NULL, be_member, &members[rank]))
			exit(1); /* those that run wait for it */
	}
	for (int rank = 0; rank < crew->nranks; rank++)
		pthread_join(threads[rank], NULL);
	return NULL;
}

const char *crew_call(struct crew *crew, int rank, ncclComm_t comm, enum crew_collective collective, size_t bytes)
{
	void *send = crew->buffers[rank][0], *receive = crew->buffers[rank][1];
	cudaStream_t stream = crew->streams[rank];
	size_t count = bytes / sizeof(float), block = count / (size_t)crew->nranks;
	switch (collective) {
	case CREW_ALLREDUCE:
		return good(nccl.AllReduce(send, receive, count, ncclFloat32, ncclSum, comm, stream), "ncclAllReduce");
	case CREW_ALLGATHER:
		return good(nccl.AllGather(send, receive, block, ncclFloat32, comm, stream), "ncclAllGather");
	default:
		return good(nccl.ReduceScatter(send, receive, block, ncclFloat32, ncclSum, comm, stream),
		            "ncclReduceScatter");
	}
}

const char *crew_wait(struct crew *crew, int rank)
{
	return gpu_wait(crew->streams[rank]) ? ferry_last_message() : NULL;
}
