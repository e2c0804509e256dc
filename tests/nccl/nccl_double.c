/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the double of NCCL by itself, so that suites over it can be believed. */
#include "tests/nccl/ranks.h"

#include "tests/fake_cuda/fake_cuda.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void hold(void *until_zero)
{
	while (atomic_load((_Atomic int *)until_zero))
		sched_yield();
}

static _Atomic int held, launched;

/* In a stream behind a kernel, on device memory that the host cannot reach. */
static void in_stream(struct rank *r)
{
	CUcontext context;
	CUstream stream;
	CUdeviceptr buffer;
	EQUAL(cuDevicePrimaryCtxRetain(&context, r->rank), CUDA_SUCCESS);
	EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EQUAL(cuMemAlloc(&buffer, COUNT * sizeof(float)), CUDA_SUCCESS);
	float *here = fake_cuda_reach(buffer);
	for (int i = 0; i < COUNT; i++)
		here[i] = (float)(1 + r->rank);
	ranks_init(r);
	EQUAL(fake_cuda_launch(stream, hold, &held), CUDA_SUCCESS);
	void *pointer = (void *)(uintptr_t)buffer;
	NCCL(ncclAllReduce(pointer, pointer, COUNT, ncclFloat32, ncclSum, r->comm, (cudaStream_t)stream));
	HOLDS(here[COUNT - 1] == (float)(1 + r->rank)); /* it has returned, and nothing has begun */
	if (atomic_fetch_add(&launched, 1) + 1 == RANKS)
		atomic_store(&held, 0);
	EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	HOLDS(here[0] == SUM && here[COUNT - 1] == SUM);
	NCCL(ncclCommDestroy(r->comm));
	EQUAL(cuMemFree(buffer), CUDA_SUCCESS);
	EQUAL(cuStreamDestroy(stream), CUDA_SUCCESS);
	EQUAL(cuDevicePrimaryCtxRelease(r->rank), CUDA_SUCCESS);
}

static void calls_run_when_their_stream_reaches_them(void **state)
{
	(void)state;
	EQUAL(cuInit(0), CUDA_SUCCESS);
	atomic_store(&held, 1);
	free(ranks_run(in_stream));
}

#define LARGE 300000

static int run_process(ncclUniqueId id, int rank)
{
	static float in[2 * LARGE], out[2 * LARGE];
	ncclComm_t comm;
	for (int i = 0; i < 2 * LARGE; i++)
		in[i] = (float)(i % 1000 + rank);
	NCCL(ncclCommInitRank(&comm, 2, id, rank));
	NCCL(ncclReduceScatter(in, out, LARGE, ncclFloat32, ncclSum, comm, NULL));
	for (int i = 0; i < LARGE; i++)
		HOLDS(out[i] == (float)(2 * ((i + rank * LARGE) % 1000) + 1));
	NCCL(ncclAlltoAll(in, out, LARGE, ncclFloat32, comm, NULL));
	for (int i = 0; i < 2 * LARGE; i++)
		HOLDS(out[i] == (float)((i % LARGE + rank * LARGE) % 1000 + i / LARGE));
	NCCL(ncclGroupStart());
	NCCL(ncclRecv(out, 2 * LARGE, ncclFloat32, 1 - rank, comm, NULL));
	NCCL(ncclSend(in, 2 * LARGE, ncclFloat32, 1 - rank, comm, NULL));
	NCCL(ncclGroupEnd());
	HOLDS(out[2 * LARGE - 1] == (float)((2 * LARGE - 1) % 1000 + 1 - rank));
	NCCL(ncclCommDestroy(comm));
	return 0;
}

static void ranks_may_be_processes(void **state)
{
	(void)state;
	ncclUniqueId id;
	int status, parent = getpid();
	NCCL(ncclGetUniqueId(&id));
	for (int rank = 0; rank < 2; rank++)
		if (!fork())
			_exit(run_process(id, rank));
	HOLDS(getpid() == parent);
	for (int rank = 0; rank < 2; rank++) {
		HOLDS(wait(&status) > 0);
		EQUAL(status, 0);
	}
}

static void slow(struct rank *r)
{
	ranks_init(r);
	double before = seconds();
	NCCL(ncclAllReduce(r->input, r->output, COUNT * RANKS, ncclFloat32, ncclSum, r->comm, NULL));
	HOLDS(seconds() - before >= COUNT * RANKS * 4 / 0.0001e9);
	NCCL(ncclCommDestroy(r->comm));
}

static void calls_are_as_slow_as_asked(void **state)
{
	(void)state;
	setenv("FAKE_NCCL_GBPS", "0.0001", 1);
	free(ranks_run(slow));
	unsetenv("FAKE_NCCL_GBPS");
}

/* Its call is under way, in a thread of its own. */
struct waiting {
	struct rank *rank;
	ncclComm_t comm;
	_Atomic bool over;
	pthread_t thread;
};

static void *wait_in_a_call(void *context)
{
	struct waiting *waiting = context;
	NCCL(all_reduce(waiting->rank, waiting->comm)); /* ends, with whatever it has */
	waiting->over = true;
	return NULL;
}

static pthread_barrier_t together;

static void abandoned(struct rank *r)
{
	struct waiting waiting = {.rank = r};
	ranks_init(r);
	waiting.comm = r->comm;
	if (r->rank)
		pthread_create(&waiting.thread, NULL, wait_in_a_call, &waiting);
	else
		NCCL(ncclCommAbort(r->comm));
	pthread_barrier_wait(&together);
	usleep(20000);
	HOLDS(!waiting.over); /* as with the real one it waits for the rank that has gone, */
	if (!r->rank)
		return;
	NCCL(ncclCommAbort(r->comm)); /* until it gives up */
	pthread_join(waiting.thread, NULL);
	HOLDS(waiting.over);
}

static void an_abort_ends_a_ranks_own_calls_and_no_others(void **state)
{
	(void)state;
	pthread_barrier_init(&together, NULL, RANKS);
	free(ranks_run(abandoned));
	pthread_barrier_destroy(&together);
}

static void dies_in_a_call(struct rank *r)
{
	struct waiting waiting = {.rank = r};
	ranks_init(r);
	waiting.comm = r->comm;
	pthread_create(&waiting.thread, NULL, wait_in_a_call, &waiting);
	usleep(20000);
	kill(getpid(), SIGKILL);
}

/* deaths: written to when the others are dead */
static void goes_on_alone(struct rank *r, int deaths)
{
	struct waiting waiting = {.rank = r};
	char byte;
	ranks_init(r);
	waiting.comm = r->comm;
	HOLDS(read(deaths, &byte, 1) == 1);
	pthread_create(&waiting.thread, NULL, wait_in_a_call, &waiting);
	usleep(20000);
	HOLDS(!waiting.over);
	NCCL(ncclCommAbort(r->comm));
	pthread_join(waiting.thread, NULL);
	_exit(0);
}

/* Whichever rank died in the middle of a call, and whatever it held: aborts end and the lock is not lost. */
static void a_rank_may_die_in_a_call(void **state)
{
	(void)state;
	ncclUniqueId id;
	int status, deaths[2];
	pid_t children[3];
	NCCL(ncclGetUniqueId(&id));
	HOLDS(!pipe(deaths));
	for (int rank = 0; rank < 3; rank++) {
		struct rank *r = calloc(1, sizeof *r);
		*r = (struct rank){.rank = rank, .id = id};
		children[rank] = fork();
		if (!children[rank] && rank)
			dies_in_a_call(r);
		if (!children[rank])
			goes_on_alone(r, deaths[0]);
		free(r);
	}
	for (int rank = 1; rank < 3; rank++)
		HOLDS(waitpid(children[rank], &status, 0) > 0 && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	HOLDS(write(deaths[1], "", 1) == 1);
	HOLDS(waitpid(children[0], &status, 0) > 0 && WIFEXITED(status) && !WEXITSTATUS(status));
	close(deaths[0]);
	close(deaths[1]);
}

/* ---- captures ---- */

static ncclResult_t captured_all_reduce(CUstream stream, void *buffer, ncclComm_t comm, CUgraph *graph, CUresult *ended)
{
	EQUAL(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), CUDA_SUCCESS);
	ncclResult_t result =
	        ncclAllReduce(buffer, buffer, COUNT, ncclFloat32, ncclSum, comm, (cudaStream_t)stream);
	*ended = cuStreamEndCapture(stream, graph);
	return result;
}

static void *destroy_comm(void *context)
{
	struct waiting *waiting = context;
	NCCL(ncclCommDestroy(waiting->comm));
	waiting->over = true;
	return NULL;
}

static void in_captures(struct rank *r)
{
	struct waiting waiting = {.rank = r};
	CUcontext context;
	CUstream stream;
	CUdeviceptr buffer;
	CUgraph graph;
	CUgraphExec executable;
	CUresult ended;
	EQUAL(cuDevicePrimaryCtxRetain(&context, r->rank), CUDA_SUCCESS);
	EQUAL(cuCtxSetCurrent(context), CUDA_SUCCESS);
	EQUAL(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
	EQUAL(cuMemAlloc(&buffer, COUNT * sizeof(float)), CUDA_SUCCESS);
	void *pointer = (void *)(uintptr_t)buffer;
	float *here = fake_cuda_reach(buffer);
	ranks_init(r);
	/* the first of its kind connects, which a capture forbids */
	EQUAL(captured_all_reduce(stream, pointer, r->comm, &graph, &ended), ncclUnhandledCudaError);
	EQUAL(ended, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	NCCL(ncclAllReduce(pointer, pointer, COUNT, ncclFloat32, ncclSum, r->comm, (cudaStream_t)stream));
	EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	EQUAL(captured_all_reduce(stream, pointer, r->comm, &graph, &ended), ncclSuccess);
	EQUAL(ended, CUDA_SUCCESS);
	EQUAL(cuGraphInstantiateWithFlags(&executable, graph, 0), CUDA_SUCCESS);
	EQUAL(cuGraphDestroy(graph), CUDA_SUCCESS);
	for (int i = 0; i < COUNT; i++)
		here[i] = 1;
	for (int i = 0; i < 2; i++)
		EQUAL(cuGraphLaunch(executable, stream), CUDA_SUCCESS);
	EQUAL(cuStreamSynchronize(stream), CUDA_SUCCESS);
	HOLDS(here[COUNT - 1] == RANKS * RANKS);
	waiting.comm = r->comm;
	pthread_create(&waiting.thread, NULL, destroy_comm, &waiting);
	usleep(20000);
	HOLDS(!waiting.over); /* it has calls in a graph */
	EQUAL(cuGraphExecDestroy(executable), CUDA_SUCCESS);
	pthread_join(waiting.thread, NULL);
	EQUAL(cuMemFree(buffer), CUDA_SUCCESS);
	EQUAL(cuStreamDestroy(stream), CUDA_SUCCESS);
	EQUAL(cuDevicePrimaryCtxRelease(r->rank), CUDA_SUCCESS);
}

static void captures_are_connected_before_and_hold_their_communicator(void **state)
{
	(void)state;
	EQUAL(cuInit(0), CUDA_SUCCESS);
	free(ranks_run(in_captures));
}

static void the_asked_call_fails(void **state)
{
	(void)state;
	void *memory;
	char fail[64];
	snprintf(fail, sizeof fail, "MemAlloc:%lu:2", fake_nccl_count("MemAlloc") + 2);
	setenv("FAKE_NCCL_FAIL", fail, 1);
	NCCL(ncclMemAlloc(&memory, 1));
	NCCL(ncclMemFree(memory));
	EQUAL(ncclMemAlloc(&memory, 1), ncclSystemError);
	unsetenv("FAKE_NCCL_FAIL");
	NCCL(ncclMemAlloc(&memory, 1));
	NCCL(ncclMemFree(memory));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
	        cmocka_unit_test(ranks_may_be_processes), /* before there are threads */
	        cmocka_unit_test(a_rank_may_die_in_a_call),
	        cmocka_unit_test(calls_run_when_their_stream_reaches_them),
	        cmocka_unit_test(calls_are_as_slow_as_asked),
	        cmocka_unit_test(an_abort_ends_a_ranks_own_calls_and_no_others),
	        cmocka_unit_test(captures_are_connected_before_and_hold_their_communicator),
	        cmocka_unit_test(the_asked_call_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
