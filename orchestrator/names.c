/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's names, as programs call them: nccl... and pnccl... of every function in functions.def. The same object is
 * libferry-nccl.so, for LD_PRELOAD, and libnccl.so.2 in a folder of its own, for programs that open NCCL by name.
 */
#include "ipc/error.h"
#include "orchestrator/real.h"
#include "orchestrator/watch.h"

#define EXPORTED __attribute__((visibility("default")))
#define CALLER   __builtin_return_address(0)

/* The NCCL, looked for by the first call. */
static inline const struct ferry_nccl *nccl_for(const void *caller)
{
	const struct ferry_nccl *nccl = ferry_nccl_get();
	return nccl ? nccl : ferry_nccl_find(caller);
}

/* Both names of one function. */
#define NAMES(type, name, parameters)                                                                                  \
	EXPORTED type nccl##name parameters;                                                                           \
	EXPORTED type pnccl##name parameters __attribute__((alias("nccl" #name)));                                     \
	EXPORTED type nccl##name parameters

#define REFUSE_OLD(since, name)                                                                                        \
	do {                                                                                                           \
		static atomic_flag logged = ATOMIC_FLAG_INIT;                                                          \
		return ferry_nccl_too_old("nccl" #name, since, &logged);                                               \
	} while (0)

#define NCCL_RESULT(since, act, name, parameters, arguments)                                                           \
	NAMES(ncclResult_t, name, parameters)                                                                          \
	{                                                                                                              \
		const struct ferry_nccl *nccl = nccl_for(CALLER);                                                      \
		if (!nccl)                                                                                             \
			return ncclSystemError;                                                                        \
		if (!nccl->functions.name)                                                                             \
			REFUSE_OLD(since, name);                                                                       \
		if (!nccl->on || ferry_nccl_calls_itself(nccl, CALLER))                                                \
			return nccl->functions.name arguments;                                                         \
		return NCCL_##act(name) arguments;                                                                     \
	}
#define NCCL_PASS(name)       ferry_nccl_real_##name
#define NCCL_WATCH(name)      ferry_nccl_##name
#define NCCL_ACCELERATE(name) ferry_nccl_##name

/* Functions that return a value, such as team geometry and sizes: all zeros if NCCL lacks the function. */
#define NCCL_VALUE(since, type, name, parameters, arguments)                                                           \
	NAMES(type, name, parameters)                                                                                  \
	{                                                                                                              \
		static atomic_flag logged = ATOMIC_FLAG_INIT;                                                          \
		const struct ferry_nccl *nccl = nccl_for(CALLER);                                                      \
		type none = {0};                                                                                       \
		if (nccl && nccl->functions.name)                                                                      \
			return nccl->functions.name arguments;                                                         \
		if (nccl)                                                                                              \
			ferry_nccl_too_old("nccl" #name, since, &logged);                                              \
		return none;                                                                                           \
	}

#define NCCL_VOID(since, name, parameters, arguments)                                                                  \
	NAMES(void, name, parameters)                                                                                  \
	{                                                                                                              \
		static atomic_flag logged = ATOMIC_FLAG_INIT;                                                          \
		const struct ferry_nccl *nccl = nccl_for(CALLER);                                                      \
		if (nccl && nccl->functions.name)                                                                      \
			nccl->functions.name arguments;                                                                \
		else if (nccl)                                                                                         \
			ferry_nccl_too_old("nccl" #name, since, &logged);                                              \
	}

#define NCCL_TEXT(since, name, parameters, arguments)
#include "orchestrator/functions.def"

NAMES(const char *, GetErrorString, (ncclResult_t result))
{
	const struct ferry_nccl *nccl = nccl_for(CALLER);
	return nccl && nccl->functions.GetErrorString ? nccl->functions.GetErrorString(result)
	                                              : ferry_result_text((ferryResult_t)result);
}

/* Returns this library's message, once, if the thread's last error was its own; else NCCL's. */
NAMES(const char *, GetLastError, (ncclComm_t comm))
{
	const struct ferry_nccl *nccl = nccl_for(CALLER);
	const char *message = ferry_nccl_message();
	return *message || !nccl || !nccl->functions.GetLastError ? message : nccl->functions.GetLastError(comm);
}
