/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The real NCCL: found once per process, then a table of its functions. Called by names.c with the return address of
 * NCCL's caller, and through the functions below by every file that calls NCCL.
 *
 * NCCL's names are weak and it calls itself through them: under LD_PRELOAD such calls come back here. They are
 * recognized because the thread is inside NCCL already, or because they are made from NCCL's own code, as its helper
 * threads do.
 *
 * The first caller fills the table and publishes it by one compare and exchange (release); all others read it after an
 * acquiring load, and it is not written again. `inside` is the thread's own.
 */
#ifndef FERRY_ORCHESTRATOR_REAL_H
#define FERRY_ORCHESTRATOR_REAL_H

#include "orchestrator/nccl_types.h"

#include <stdatomic.h>
#include <stdbool.h>

/** NCCL's functions by their names without "nccl"; NULL for functions that the NCCL found is too old for. */
struct ferry_nccl_functions {
#define NCCL_VALUE(since, type, name, parameters, arguments) type(*name) parameters;
#include "orchestrator/functions.def"
};

struct ferry_nccl {
	struct ferry_nccl_functions functions;
	int version;         /* 22809: 2.28.9 */
	char path[512];      /* of the file */
	uintptr_t low, high; /* its code */
	bool on;             /* FERRY_NCCL is not off: there is more to do than to pass everything on */
};

extern _Atomic(const struct ferry_nccl *) ferry_nccl_found;
extern _Thread_local unsigned ferry_nccl_inside;

/**
 * Looks for NCCL, from where `caller` stands (search.h). NULL if there is none, after ferry_fail, and one line in the
 * log in the process's life. Any thread; two that come at the same time find the same one.
 */
const struct ferry_nccl *ferry_nccl_find(const void *caller);

/** The NCCL found, NULL before. */
static inline const struct ferry_nccl *ferry_nccl_get(void)
{
	return atomic_load_explicit(&ferry_nccl_found, memory_order_acquire);
}

/** Whether the call is one of NCCL's own. */
static inline bool ferry_nccl_calls_itself(const struct ferry_nccl *nccl, const void *caller)
{
	return ferry_nccl_inside || (uintptr_t)caller - nccl->low < nccl->high - nccl->low;
}

/**
 * Finds another library's function that this library stands before: that of the next object after this one, else that
 * of LIBRARY.so... if the process has loaded it; Python loads such libraries in scopes of their own. NULL if there is
 * none.
 */
void *ferry_nccl_find_behind(const char *library, const char *name);

/**
 * Reports that the NCCL found is too old for a function: as the thread's message, which ncclGetLastError gives, and in
 * the log, once for each `logged`. Returns ncclInvalidUsage.
 */
ncclResult_t ferry_nccl_too_old(const char *name, int since, atomic_flag *logged);

/** Returns the thread's message if its last error was this library's, else "". Returns it once. */
const char *ferry_nccl_message(void);

/* ferry_nccl_real_AllReduce(...) and so on: into NCCL, with the thread marked as being inside. */
#define NCCL_VALUE(since, type, name, parameters, arguments)
#define NCCL_RESULT(since, act, name, parameters, arguments)                                                           \
	static inline ncclResult_t ferry_nccl_real_##name parameters                                                   \
	{                                                                                                              \
		ferry_nccl_inside++;                                                                                   \
		ncclResult_t result = ferry_nccl_get()->functions.name arguments;                                      \
		ferry_nccl_inside--;                                                                                   \
		return result;                                                                                         \
	}
#include "orchestrator/functions.def"

#endif
