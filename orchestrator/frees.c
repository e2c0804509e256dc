/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cudaFree and its kin (frees.def), as programs call them. Exported beside NCCL's names; where nothing of Ferry's has
 * the memory, as with FERRY_NCCL=off, they cost a look at a short list.
 */
#include "ipc/error.h"
#include "orchestrator/real.h"
#include "orchestrator/search.h"
#include "rank-lib/api/freed.h"

#define EXPORTED __attribute__((visibility("default")))
#define CALLER   __builtin_return_address(0)

#define NOT_INITIALIZED 3 /* cudaErrorInitializationError, CUDA_ERROR_NOT_INITIALIZED */

/*
 * Returns the function behind this library's, which the first call looks for. NULL: there is none, which is logged
 * once.
 */
static void *behind(void *_Atomic *known, atomic_flag *logged, const char *library, const char *name)
{
	void *function = atomic_load_explicit(known, memory_order_acquire);
	if (function)
		return function;
	function = ferry_nccl_find_behind(library, name);
	if (function)
		atomic_store_explicit(known, function, memory_order_release);
	else if (!atomic_flag_test_and_set(logged))
		ferry_log(FERRY_LOG_ERROR, "%s is called, and no %s has been loaded", name, library);
	return function;
}

/* NCCL frees its own memory, and may do so while Ferry waits for it. */
static bool is_own(const void *caller)
{
	const struct ferry_nccl *nccl = ferry_nccl_get();
	return !nccl || ferry_nccl_calls_itself(nccl, caller);
}

#define FREE(library, name, parameters, arguments, memory, bytes, waits)                                               \
	EXPORTED int name parameters;                                                                                  \
	EXPORTED int name parameters                                                                                   \
	{                                                                                                              \
		static void *_Atomic known;                                                                            \
		static atomic_flag logged = ATOMIC_FLAG_INIT;                                                          \
		int(*function) parameters = (int(*) parameters)behind(&known, &logged, library, #name);                \
		if (!function)                                                                                         \
			return NOT_INITIALIZED;                                                                        \
		bool own = is_own(CALLER);                                                                             \
		if (!own)                                                                                              \
			ferry_freed_before(memory, bytes);                                                             \
		int result = function arguments;                                                                       \
		if (!own && (waits)) /* what was left, and what has been exported meanwhile */                         \
			ferry_freed_behind(memory, bytes);                                                             \
		return result;                                                                                         \
	}
#include "orchestrator/frees.def"
