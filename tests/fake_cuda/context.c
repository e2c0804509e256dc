/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The primary contexts of devices, and each thread's stack of contexts. A context is made when it is first retained;
 * when nobody retains it any more all goes that was made in it. As with the driver it stays current where it was, and
 * every call says that it is destroyed; retained again, it has the same handle, and what was made before is stale.
 */
#include "tests/fake_cuda/fake.h"

#include <stdio.h>
#include <unistd.h>

#define STACK 32
static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;

/* Orders the making and the end of contexts. */
static pthread_mutex_t life = PTHREAD_MUTEX_INITIALIZER;

CUresult fake_enter_context(CUcontext *context)
{
	CUresult refused = fake_enter();
	if (refused)
		return refused;
	if (!depth || !stack[depth - 1])
		return CUDA_ERROR_INVALID_CONTEXT;
	*context = stack[depth - 1];
	return (CUresult)atomic_load_explicit(&(*context)->error, memory_order_relaxed);
}

CUresult fake_enter_unsafe(CUcontext *context)
{
	CUresult refused = fake_enter_context(context);
	return refused ? refused : fake_unsafe_call();
}

/* ---- from the first retain to the last release ---- */

static void leave(CUcontext context)
{
	if (context->memory >= 0)
		close(context->memory);
	if (context->claim >= 0)
		close(context->claim);
	context->memory = context->claim = -1;
}

static void notify(CUcontext context)
{
	FILE *logged = *fake_told ? fopen(fake_told, "a") : NULL;
	if (!logged)
		return;
	fprintf(logged, "%d %d\n", (int)getpid(), context->physical);
	fclose(logged);
}

static CUresult make(CUcontext context)
{
	if (fake_exclusive && (context->claim = fake_machine_claim(context->physical)) < 0)
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	context->memory = fake_machine_file(context->physical, "context", fake_machine_context);
	if (context->memory < 0) {
		leave(context);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	notify(context);
	context->made = true;
	atomic_store_explicit(&context->peers, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&context->generation, 1, memory_order_relaxed);
	atomic_store_explicit(&context->error, CUDA_SUCCESS, memory_order_relaxed);
	return CUDA_SUCCESS;
}

/* What is still in its streams does nothing; waits in them end. */
static void destroy(CUcontext context)
{
	if (!context->made)
		return;
	context->made = false;
	atomic_store_explicit(&context->error, CUDA_ERROR_CONTEXT_IS_DESTROYED, memory_order_relaxed);
	fake_drain_context(context);
	fake_streams_end(context);
	fake_memory_end(context);
	leave(context);
}

void fake_contexts_forked(void)
{
	for (int i = 0; i < fake_device_count; i++)
		leave(&fake_contexts[i]);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *retained, CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused || !retained)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_mutex_lock(&life);
	if (!context->made)
		refused = make(context);
	if (!refused) {
		atomic_fetch_add_explicit(&context->retained, 1, memory_order_relaxed);
		*retained = context;
	}
	pthread_mutex_unlock(&life);
	return refused;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused)
		return refused;
	pthread_mutex_lock(&life);
	int retained = atomic_load_explicit(&context->retained, memory_order_relaxed);
	if (retained <= 0)
		refused = CUDA_ERROR_INVALID_CONTEXT;
	else
		atomic_store_explicit(&context->retained, retained - 1, memory_order_relaxed);
	if (retained == 1)
		destroy(context);
	pthread_mutex_unlock(&life);
	return refused;
}

/* Destroys it, however often it is retained. */
CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
	CUcontext context;
	CUresult refused = fake_find_device(device, &context);
	if (refused)
		return refused;
	pthread_mutex_lock(&life);
	destroy(context);
	pthread_mutex_unlock(&life);
	return CUDA_SUCCESS;
}

/* ---- the thread's ---- */

static bool is_context(CUcontext context)
{
	for (int i = 0; i < fake_device_count; i++)
		if (context == &fake_contexts[i])
			return atomic_load_explicit(&context->generation, memory_order_relaxed) > 0;
	return false;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
	CUresult refused = fake_enter();
	if (refused || !context)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*context = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
	CUresult refused = fake_enter();
	if (refused || (context && !is_context(context)))
		return refused ? refused : CUDA_ERROR_INVALID_CONTEXT;
	if (!depth && context)
		depth = 1;
	if (depth)
		stack[depth - 1] = context;
	if (depth == 1 && !context)
		depth = 0;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
	CUresult refused = fake_enter();
	if (refused || !is_context(context) || depth == STACK)
		return refused ? refused : CUDA_ERROR_INVALID_CONTEXT;
	stack[depth++] = context;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
	CUresult refused = fake_enter();
	if (refused || !depth)
		return refused ? refused : CUDA_ERROR_INVALID_CONTEXT;
	depth--;
	if (context)
		*context = stack[depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !device)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	*device = context->ordinal;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused)
		return refused;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = 1 - FAKE_PRIORITIES;
	return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (!refused)
		refused = fake_unsafe_call();
	if (refused)
		return refused;
	fake_drain_context(context);
	return (CUresult)atomic_load_explicit(&context->error, memory_order_relaxed);
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || flags)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (!is_context(peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (peer == context || !fake_reaches(context->ordinal, peer->ordinal))
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	unsigned bit = 1u << peer->ordinal;
	return atomic_fetch_or_explicit(&context->peers, bit, memory_order_relaxed) & bit
	               ? CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED
	               : CUDA_SUCCESS;
}

CUresult fake_cuda_connect(void)
{
	return fake_unsafe_call();
}
