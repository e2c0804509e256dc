/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules. The double compiles nothing: of a PTX text it takes whether there is a kernel `ferry_wait`, with the address
 * of a 32-bit word as its only parameter, and runs that one as what its name says: it waits until the word is 0.
 */
#include "tests/fake_cuda/fake.h"

#include <ctype.h>
#include <string.h>

#define MOST_MODULES 4096
#define KERNEL       "ferry_wait"

struct CUfunc_st {
	CUcontext context;
	unsigned generation;    /* of the context */
	bool alive, has_kernel; /* under the lock */
};

static struct CUfunc_st modules[MOST_MODULES]; /* one function in each, so one handle for both */
static unsigned nmodules;                      /* under the lock */

static bool has_kernel(const char *text)
{
	while ((text = strstr(text, ".entry"))) {
		text += strlen(".entry");
		text += strspn(text, " \t\n");
		if (!strncmp(text, KERNEL, strlen(KERNEL)) && !isalnum((unsigned char)text[strlen(KERNEL)]) &&
		    text[strlen(KERNEL)] != '_')
			return true;
	}
	return false;
}

/* Under the lock. */
static bool is_module(const struct CUfunc_st *module)
{
	size_t offset = (size_t)((const char *)module - (const char *)modules);
	return offset < sizeof modules && offset % sizeof *modules == 0 && module->alive &&
	       module->generation == atomic_load_explicit(&module->context->generation, memory_order_relaxed);
}

CUresult cuModuleLoadData(CUmodule *loaded, const void *image)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	if (refused || !loaded || !image)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (!strstr(image, ".version") || !strstr(image, ".target"))
		return CUDA_ERROR_INVALID_IMAGE;
	pthread_rwlock_wrlock(&fake_lock);
	if (nmodules < MOST_MODULES) {
		modules[nmodules] = (struct CUfunc_st){
		        .context = context,
		        .alive = true,
		        .has_kernel = has_kernel(image),
		        .generation = atomic_load_explicit(&context->generation, memory_order_relaxed)};
		*loaded = (CUmodule)&modules[nmodules++];
	} else {
		refused = CUDA_ERROR_OUT_OF_MEMORY;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuModuleUnload(CUmodule given)
{
	struct CUfunc_st *module = (struct CUfunc_st *)given;
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	if (refused)
		return refused;
	pthread_rwlock_wrlock(&fake_lock);
	if (is_module(module))
		module->alive = false;
	else
		refused = CUDA_ERROR_INVALID_HANDLE;
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuModuleGetFunction(CUfunction *found, CUmodule given, const char *name)
{
	struct CUfunc_st *module = (struct CUfunc_st *)given;
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !found || !name)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_lock);
	if (!is_module(module))
		refused = CUDA_ERROR_INVALID_HANDLE;
	else if (!module->has_kernel || strcmp(name, KERNEL))
		refused = CUDA_ERROR_NOT_FOUND;
	else
		*found = module;
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                void **parameters, void **extra)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused)
		return refused;
	if (!gx || !gy || !gz || !bx || !by || !bz || bx > 1024 / by / bz || shared > 227 << 10 || !parameters ||
	    !parameters[0] || extra)
		return CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_rdlock(&fake_lock);
	bool known = is_module(function) && function->context == context;
	pthread_rwlock_unlock(&fake_lock);
	if (!known)
		return CUDA_ERROR_INVALID_HANDLE;
	struct fake_operation spin = {.kind = FAKE_SPIN,
	                              .to = (uintptr_t) * (const CUdeviceptr *)parameters[0],
	                              .bytes = 4,
	                              .flags = CU_STREAM_WAIT_VALUE_EQ};
	return fake_submit(stream, &spin, 1);
}
