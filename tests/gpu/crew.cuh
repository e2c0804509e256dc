/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A process's part in a measurement on GPUs: a rank under ferryrun, its GPU, communicator, stream and two buffers, and
 * what the ranks agree on. It has no communicator on host memory, whose threads would be measured too. Included by one
 * file each, which names itself in CREW_PROGRAM.
 */
#ifndef FERRY_TESTS_GPU_CREW_CUH
#define FERRY_TESTS_GPU_CREW_CUH

#include "ferry.h"

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <vector>

#define DIE(...)                                                                                                       \
	do {                                                                                                           \
		fprintf(stderr, CREW_PROGRAM ": rank %d: ", crew.rank);                                                \
		fprintf(stderr, __VA_ARGS__);                                                                          \
		fprintf(stderr, "\n");                                                                                 \
		exit(1);                                                                                               \
	} while (0)
#define CUDA(call)                                                                                                     \
	do {                                                                                                           \
		cudaError_t error_ = (call);                                                                           \
		if (error_)                                                                                            \
			DIE("%s: %s", #call, cudaGetErrorString(error_));                                              \
	} while (0)
#define FERRY(call)                                                                                                    \
	do {                                                                                                           \
		ferryResult_t result_ = (call);                                                                        \
		if (result_)                                                                                           \
			DIE("%s: %s", #call, ferryGetLastError(NULL));                                                 \
	} while (0)

static struct {
	int rank, nranks;
	ferryComm_t comm;
	cudaStream_t stream; /* of the calls; non-blocking */
	float *send, *receive;
	double *agreed; /* one number, on the GPU */
	void *nccl;     /* its communicator: calls are NCCL's; NULL: Ferry's */
	int (*nccl_allreduce)(const void *, void *, size_t, int, int, void *, cudaStream_t);
	int (*nccl_allgather)(const void *, void *, size_t, int, void *, cudaStream_t);
	cudaGraphExec_t graph; /* of one call, which calls are replays of; NULL: calls are made */
} crew;

static inline double crew_now_us(void)
{
	return (double)std::chrono::duration_cast<std::chrono::nanoseconds>(
	               std::chrono::steady_clock::now().time_since_epoch())
	               .count() /
	       1e3;
}

/** Over all ranks, which meet here. */
static inline double crew_agree(double value, ferryRedOp_t op)
{
	CUDA(cudaMemcpyAsync(crew.agreed, &value, sizeof value, cudaMemcpyHostToDevice, crew.stream));
	FERRY(ferryAllReduce(crew.agreed, crew.agreed, 1, ferryFloat64, op, crew.comm, (ferryStream_t)crew.stream));
	CUDA(cudaMemcpyAsync(&value, crew.agreed, sizeof value, cudaMemcpyDeviceToHost, crew.stream));
	CUDA(cudaStreamSynchronize(crew.stream));
	return value;
}

static inline double crew_median(std::vector<double> values)
{
	std::sort(values.begin(), values.end());
	return values.empty() ? 0 : values[values.size() / 2];
}

/** From now on calls are NCCL's, the library that FERRY_NCCL_LIBRARY names or the system has. */
static inline void crew_take_nccl(void)
{
	struct id {
		char bytes[128];
	} id = {};
	const char *name = getenv("FERRY_NCCL_LIBRARY") ? getenv("FERRY_NCCL_LIBRARY") : "libnccl.so.2";
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *there;
	if (!library)
		DIE("%s", dlerror());
	auto get_id = (int (*)(struct id *))dlsym(library, "ncclGetUniqueId");
	auto init = (int (*)(void **, int, struct id, int))dlsym(library, "ncclCommInitRank");
	crew.nccl_allreduce = (decltype(crew.nccl_allreduce))dlsym(library, "ncclAllReduce");
	crew.nccl_allgather = (decltype(crew.nccl_allgather))dlsym(library, "ncclAllGather");
	if (!get_id || !init || !crew.nccl_allreduce || !crew.nccl_allgather || (!crew.rank && get_id(&id)))
		DIE("%s is no NCCL", name);
	CUDA(cudaMalloc(&there, sizeof id));
	CUDA(cudaMemcpy(there, &id, sizeof id, cudaMemcpyHostToDevice));
	FERRY(ferryBroadcast(there, there, sizeof id, ferryUint8, 0, crew.comm, (ferryStream_t)crew.stream));
	CUDA(cudaStreamSynchronize(crew.stream));
	CUDA(cudaMemcpy(&id, there, sizeof id, cudaMemcpyDeviceToHost));
	CUDA(cudaFree(there));
	if (init(&crew.nccl, crew.nranks, id, crew.rank))
		DIE("ncclCommInitRank of %s failed", name);
}

static inline void crew_call_nccl(bool gathers, size_t bytes)
{
	enum { F32 = 7, SUM = 0 };
	int failed = gathers ? crew.nccl_allgather(crew.send, crew.receive, bytes / 4 / (size_t)crew.nranks, F32,
	                                           crew.nccl, crew.stream)
	                     : crew.nccl_allreduce(crew.send, crew.receive, bytes / 4, F32, SUM, crew.nccl,
	                                           crew.stream);
	if (failed)
		DIE("NCCL's call failed (%d)", failed);
}

/** AllReduce or AllGather of so many bytes of result, in the crew's stream. */
static inline void crew_call(bool gathers, size_t bytes)
{
	ferryStream_t stream = (ferryStream_t)crew.stream;
	if (crew.graph)
		CUDA(cudaGraphLaunch(crew.graph, crew.stream));
	else if (crew.nccl)
		crew_call_nccl(gathers, bytes);
	else if (gathers)
		FERRY(ferryAllGather(crew.send, crew.receive, bytes / 4 / (size_t)crew.nranks, ferryFloat32, crew.comm,
		                     stream));
	else
		FERRY(ferryAllReduce(crew.send, crew.receive, bytes / 4, ferryFloat32, ferrySum, crew.comm, stream));
}

/** From now on calls are in place: each rank's block, or all of it for AllReduce, is sent from where it arrives. */
static inline void crew_send_in_place(bool gathers, size_t bytes)
{
	crew.send = crew.receive + (gathers ? bytes / 4 / (size_t)crew.nranks * (size_t)crew.rank : 0);
}

/** From now on calls are replays of such a one. */
static inline void crew_capture(bool gathers, size_t bytes)
{
	cudaGraph_t graph;
	cudaGraphExec_t replayed;
	crew_call(gathers, bytes); /* what is made at the first call is made */
	CUDA(cudaStreamSynchronize(crew.stream));
	CUDA(cudaStreamBeginCapture(crew.stream, cudaStreamCaptureModeRelaxed));
	crew_call(gathers, bytes);
	CUDA(cudaStreamEndCapture(crew.stream, &graph));
	CUDA(cudaGraphInstantiate(&replayed, graph, 0));
	CUDA(cudaGraphDestroy(graph));
	crew.graph = replayed;
}

/** Whether there is a GPU; then the crew is complete, with buffers of `bytes` zeros. */
static inline bool crew_open(unsigned device_flags, size_t bytes)
{
	int devices = 0;
	ferryConfig_t config = FERRY_CONFIG_INITIALIZER;
	cudaError_t none = cudaGetDeviceCount(&devices);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (none || !devices) {
		printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(none));
		return false;
	}
	const char *local = getenv("FERRY_LOCAL_RANK");
	if (!local)
		DIE("start it with ferryrun --fork -n GPUS -- " CREW_PROGRAM);
	CUDA(cudaInitDevice(atoi(local) % devices, device_flags, cudaInitDeviceFlagsAreValid));
	CUDA(cudaSetDevice(atoi(local) % devices));
	config.device = "cuda";
	FERRY(ferryCommInitEnv(&crew.comm, &config));
	FERRY(ferryCommUserRank(crew.comm, &crew.rank));
	FERRY(ferryCommCount(crew.comm, &crew.nranks));
	CUDA(cudaStreamCreateWithFlags(&crew.stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc((void **)&crew.send, bytes));
	CUDA(cudaMalloc((void **)&crew.receive, bytes));
	CUDA(cudaMalloc((void **)&crew.agreed, sizeof *crew.agreed));
	CUDA(cudaMemset(crew.send, 0, bytes));
	CUDA(cudaDeviceSynchronize());
	return true;
}

static inline void crew_close(void)
{
	CUDA(cudaStreamSynchronize(crew.stream));
	if (crew.graph)
		CUDA(cudaGraphExecDestroy(crew.graph));
	FERRY(ferryCommDestroy(crew.comm));
}

#endif
