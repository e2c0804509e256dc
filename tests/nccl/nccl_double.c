/* SPDX-License-Identifier: Apache-2.0 */
/* Promises of the double of NCCL by itself, so that suites over it can be believed. */
#include "tests/nccl/ranks.h"

#include "tests/fake_cuda/fake_cuda.h"

#include <sched.h>
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

static void abandoned(struct rank *r)
{
	ranks_init(r);
	if (!r->rank) {
		NCCL(ncclCommAbort(r->comm));
		return;
	}
	NCCL(all_reduce(r, r->comm)); /* ends, with whatever it has */
	NCCL(ncclCommDestroy(r->comm));
}

static void an_abort_ends_the_calls_of_the_others(void **state)
{
	(void)state;
	free(ranks_run(abandoned));
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
	        cmocka_unit_test(calls_run_when_their_stream_reaches_them),
	        cmocka_unit_test(calls_are_as_slow_as_asked),
	        cmocka_unit_test(an_abort_ends_the_calls_of_the_others),
	        cmocka_unit_test(the_asked_call_fails),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
