/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/kills/kills_graph.h"

#include "bench/rank/gpu.h"
#include "ipc/error.h"
#include "tests/fake_cuda/cuda_api.h"

#include <dlfcn.h>
#include <stdlib.h>

#define STRING(name) #name
#define NAME(name)   STRING(name)
#define FUNCTIONS(F)                                                                                                   \
	F(cuStreamBeginCapture) F(cuStreamEndCapture) F(cuGraphInstantiateWithFlags)                                   \
	F(cuGraphDestroy) F(cuGraphLaunch) F(cuGraphExecDestroy)

/* The driver's, which Ferry itself does not call. */
static struct {
#define POINTER(name) __typeof__(name) *name;
	FUNCTIONS(POINTER)
} driver;

static ferryResult_t find_functions(void)
{
	const char *chosen = getenv("FERRY_CUDA_LIBRARY");
	void *library = driver.cuGraphLaunch ? NULL : dlopen(chosen ? chosen : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (driver.cuGraphLaunch)
		return ferrySuccess;
	if (!library)
		return ferry_fail(ferryInvalidUsage, "no CUDA driver: %s", dlerror());
#define FIND(name)                                                                                                     \
	if (!(*(void **)&driver.name = dlsym(library, NAME(name))))                                                    \
		return ferry_fail(ferryInvalidUsage, "the CUDA driver has no %s", NAME(name));
	FUNCTIONS(FIND)
	return ferrySuccess;
}

ferryResult_t kills_graph_begin(ferryStream_t stream)
{
	ferryResult_t result = find_functions();
	return result ? result
	              : gpu_good(driver.cuStreamBeginCapture((CUstream)stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
	                         "beginning to capture");
}

ferryResult_t kills_graph_end(ferryStream_t stream, void **graph)
{
	CUgraph captured;
	ferryResult_t result = gpu_good(driver.cuStreamEndCapture((CUstream)stream, &captured), "capturing");
	if (result)
		return result;
	result = gpu_good(driver.cuGraphInstantiateWithFlags((CUgraphExec *)graph, captured, 0),
	                  "instantiating a graph");
	driver.cuGraphDestroy(captured);
	return result;
}

ferryResult_t kills_graph_replay(void *graph, ferryStream_t stream)
{
	return gpu_good(driver.cuGraphLaunch(graph, (CUstream)stream), "replaying a graph");
}

void kills_graph_destroy(void *graph)
{
	if (graph)
		driver.cuGraphExecDestroy(graph);
}
