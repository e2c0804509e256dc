/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules. The double compiles nothing: of a PTX text it takes which kernels it has. It runs `ferry_wait`, with the
 * address of a 32-bit word as its only parameter, as what its name says: it waits until the word is 0; and the kernels
 * of Ferry's calls, which are there as C, too (launch.c).
 */
#include "tests/fake_cuda/fake.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_MODULES   4096
#define MOST_FUNCTIONS 16384
#define WAIT           "ferry_wait"

struct CUmod_st {
	CUcontext context;
	unsigned generation; /* of the context */
	char *text;
	bool alive;          /* under the lock */
};

struct CUfunc_st {
	const struct CUmod_st *module;
	char name[40];
};

static struct CUmod_st modules[MOST_MODULES];
static struct CUfunc_st functions[MOST_FUNCTIONS];
static unsigned nmodules, nfunctions; /* under the lock */

static bool has_kernel(const char *text, const char *name)
{
	size_t length = strlen(name);
	while ((text = strstr(text, ".entry"))) {
		text += strlen(".entry");
		text += strspn(text, " \t\n");
		if (!strncmp(text, name, length) && !isalnum((unsigned char)text[length]) && text[length] != '_')
			return true;
	}
	return false;
}

/* Under the lock. */
static bool is_module(const struct CUmod_st *module)
{
	size_t offset = (size_t)((const char *)module - (const char *)modules);
	return offset < sizeof modules && offset % sizeof *modules == 0 && module->alive &&
	       module->generation == atomic_load_explicit(&module->context->generation, memory_order_relaxed);
}

/* Under the lock. */
static bool is_function(const struct CUfunc_st *function)
{
	size_t offset = (size_t)((const char *)function - (const char *)functions);
	return offset < sizeof functions && offset % sizeof *functions == 0 && is_module(function->module);
}

CUresult cuModuleLoadData(CUmodule *loaded, const void *image)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	if (refused || !loaded || !image)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	if (!strstr(image, ".version") || !strstr(image, ".target"))
		return CUDA_ERROR_INVALID_IMAGE;
	char *text = strdup(image);
	pthread_rwlock_wrlock(&fake_lock);
	if (text && nmodules < MOST_MODULES) {
		modules[nmodules] = (struct CUmod_st){
		        .context = context,
		        .alive = true,
		        .text = text,
		        .generation = atomic_load_explicit(&context->generation, memory_order_relaxed)};
		*loaded = &modules[nmodules++];
	} else {
		refused = CUDA_ERROR_OUT_OF_MEMORY;
		free(text);
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuModuleUnload(CUmodule module)
{
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

CUresult cuModuleGetFunction(CUfunction *found, CUmodule module, const char *name)
{
	CUcontext context;
	CUresult refused = fake_enter_context(&context);
	if (refused || !found || !name)
		return refused ? refused : CUDA_ERROR_INVALID_VALUE;
	pthread_rwlock_wrlock(&fake_lock);
	if (!is_module(module))
		refused = CUDA_ERROR_INVALID_HANDLE;
	else if (!has_kernel(module->text, name) || nfunctions == MOST_FUNCTIONS)
		refused = CUDA_ERROR_NOT_FOUND;
	if (!refused) {
		struct CUfunc_st *function = &functions[nfunctions++];
		function->module = module;
		snprintf(function->name, sizeof function->name, "%s", name);
		*found = function;
	}
	pthread_rwlock_unlock(&fake_lock);
	return refused;
}

CUresult cuFuncLoad(CUfunction function)
{
	CUcontext context;
	CUresult refused = fake_enter_unsafe(&context);
	pthread_rwlock_rdlock(&fake_lock);
	if (!refused && !is_function(function))
		refused = CUDA_ERROR_INVALID_HANDLE;
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
	bool known = is_function(function) && function->module->context == context;
	pthread_rwlock_unlock(&fake_lock);
	if (!known)
		return CUDA_ERROR_INVALID_HANDLE;
	if (strcmp(function->name, WAIT))
		return fake_kernel_launch(stream, function->name, parameters[0], gx, bx);
	struct fake_operation spin = {.kind = FAKE_SPIN,
	                              .to = (uintptr_t) * (const CUdeviceptr *)parameters[0],
	                              .bytes = 4,
	                              .flags = CU_STREAM_WAIT_VALUE_EQ};
	return fake_submit(stream, &spin, 1);
}
